"""What stated fields give: against published figures (their sources are named in the cost model), and by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meridian.errors import InvalidArgumentError
from services.forecast.cost_model.known_models import model_named
from services.forecast.cost_model.layout import Recompute
from services.forecast.requirement import Layout, Model, estimate

GIB = 2**30

# Korthikanti et al. 2022, table 3: model and layout of the four models, micro batch, interleaved stages.
MODELS = {
    "22B": (Model(48, 6144, 64, 2048, 51200), Layout(4, 4, 0, 8, 1)),
    "175B": (Model(96, 12288, 96, 2048, 51200), Layout(64, 1, 0, 8, 8, virtual_stages=3)),
    "530B": (Model(105, 20480, 128, 2048, 51200), Layout(280, 1, 0, 8, 35, virtual_stages=3)),
    "1T": (Model(128, 25600, 160, 2048, 51200), Layout(512, 1, 0, 8, 64)),
}

LLAMA_7B = Model(32, 4096, 32, 2048, 32000, gated_ffn=True)


def test_gpt3_has_175_billion_parameters() -> None:
    # Narayanan 2021, table 2: 174.6 billion.
    assert estimate(MODELS["175B"][0], Layout()).parameters == pytest.approx(174.6e9, rel=0.0005)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "billions"),
    # Narayanan 2021, table 1.
    [(24, 2304, 24, 1.7), (30, 3072, 32, 3.6), (36, 4096, 32, 7.5), (40, 6144, 48, 18.4), (48, 8192, 64, 39.1),
     (60, 10240, 80, 76.1), (80, 12288, 96, 145.6), (96, 16384, 128, 310.1), (105, 20480, 128, 529.6),
     (128, 25600, 160, 1008.0)],
)  # fmt: skip
def test_parameters_of_narayanan_table_1(layers: int, hidden: int, heads: int, billions: float) -> None:
    model = Model(layers, hidden, heads, 2048, 51200)
    assert estimate(model, Layout()).parameters / 1e9 == pytest.approx(billions, abs=0.08)


def test_llama_parameters_but_for_the_last_norm() -> None:
    # Number of parameters of the published weights, less one weight per hidden value.
    assert LLAMA_7B.shape().ffn == 11008
    assert estimate(LLAMA_7B, Layout()).parameters == 6_738_415_616 - 4096
    assert estimate(Model(40, 5120, 40, 2048, 32000, gated_ffn=True), Layout()).parameters == 13_015_864_320 - 5120
    # Llama-3 8B: grouped queries, its own inner size.
    llama_3 = Model(32, 4096, 32, 8192, 128256, ffn_hidden=14336, gated_ffn=True, kv_heads=8)
    assert estimate(llama_3, Layout()).parameters == 8_030_261_248 - 4096


@pytest.mark.parametrize(
    ("name", "state_gib", "kept_gib", "selective_gib"),
    # Korthikanti 2022, figure 1: parameters and optimiser; activations kept; with selective recomputation and sequence
    # parallelism. The figure leaves the embeddings out.
    [("22B", 45.56, 59.25, 9.56), ("175B", 45.56, 66.84, 12.35), ("530B", 31.64, 114.02, 23.08),
     ("1T", 32.96, 131.25, 26.56)],
)  # fmt: skip
def test_memory_of_korthikanti_figure_1(name: str, state_gib: float, kept_gib: float, selective_gib: float) -> None:
    model, layout = MODELS[name]
    model = replace(model, known=replace(model.shape(), vocabulary=0))
    parts = estimate(model, replace(layout, fused_attention=False)).memory_parts_bytes
    state = parts["parameters"] + parts["gradients"] + parts["optimiser"]
    # Norms and biases are on every rank; the figure divides them.
    assert state / GIB == pytest.approx(state_gib, rel=0.002)
    assert parts["activations"] / GIB == pytest.approx(kept_gib, abs=0.01)
    selective = replace(layout, sequence_parallel=True, recompute=Recompute.SELECTIVE)
    assert estimate(model, selective).memory_parts_bytes["activations"] / GIB == pytest.approx(selective_gib, abs=0.01)


@pytest.mark.parametrize("name", MODELS)
def test_flops_agree_with_narayanan_equation_3(name: str) -> None:
    model, layout = MODELS[name]
    l, h, s, v = model.layers, model.hidden, model.sequence, model.vocabulary  # noqa: E741
    per_token = 96 * l * h * h * (1 + s / (6 * h) + v / (16 * l * h))
    found = estimate(model, replace(layout, recompute=Recompute.FULL))
    assert found.flops_per_token == pytest.approx(per_token, rel=0.006)


@pytest.mark.parametrize(
    ("name", "accelerators", "step_s", "utilisation"),
    # Korthikanti 2022, table 5: A100 (312 teraFLOP/s), iteration time and model FLOPs utilisation.
    [("22B", 8, 1.10, 0.415), ("175B", 64, 13.75, 0.514), ("530B", 280, 37.83, 0.560), ("1T", 512, 71.49, 0.563)],
)  # fmt: skip
def test_utilisation_of_korthikanti_table_5(name: str, accelerators: int, step_s: float, utilisation: float) -> None:
    model, layout = MODELS[name]
    found = estimate(model, layout)
    assert found.flops_per_step / (step_s * accelerators * 312e12) == pytest.approx(utilisation, rel=0.01)


def test_selective_recomputation_repeats_the_forward_products_of_attention() -> None:
    # 4 L h s of the 12 L h s per token. (Korthikanti's hardware FLOPs, eq. 9, count three times as much.)
    model, layout = MODELS["22B"]
    extra = estimate(model, replace(layout, recompute=Recompute.SELECTIVE)).flops_per_token
    assert extra - estimate(model, layout).flops_per_token == pytest.approx(4 * 48 * 6144 * 2048)


def test_step_and_total_are_products() -> None:
    found = estimate(LLAMA_7B, Layout(global_batch=2048, steps=1000, data_parallel=8))
    # Tables are looked up, norms multiply no matrix.
    multiplying = 6_738_415_616 - 32_000 * 4096 - (2 * 32 + 1) * 4096
    per_token = 6 * multiplying + 12 * 32 * 4096 * 2048
    assert found.flops_per_token == per_token
    assert found.flops_per_step == per_token * 2048 * 2048
    assert found.total_flops == found.flops_per_step * 1000


def test_checkpoints_by_operator_repeat_keys_output_and_half_of_a_gated_feed_forward() -> None:
    model = Model(
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn_hidden=14336, gated_ffn=True, vocabulary=128256, sequence=8192
    )
    layout = Layout(global_batch=8, data_parallel=8)
    plain = estimate(model, layout).flops_per_token
    extra = estimate(model, replace(layout, recompute=Recompute.PRODUCTS)).flops_per_token - plain
    assert extra == pytest.approx(2 * 32 * (4096 * 1024 + 4096 * 4096 + 4096 * 14336))


def test_full_recomputation_costs_a_forward_pass_and_keeps_two_bytes() -> None:
    model, layout = MODELS["22B"]
    kept, full = estimate(model, layout), estimate(model, replace(layout, recompute=Recompute.FULL))
    assert full.flops_per_token == pytest.approx(kept.flops_per_token * 4 / 3)
    assert full.model_flops_per_token == kept.flops_per_token
    values = 2048 * 4 * 6144
    # One layer is whole while it is computed again: of 34 bytes 10 are on every rank of the tensor group.
    whole, logits = values * (10 + 24 / 8), 10 * 2048 * 4 * 51200 / 8
    assert full.memory_parts_bytes["activations"] == pytest.approx(2 * values * 47 + whole + logits)


def test_bytes_per_parameter_and_zero_stages() -> None:
    # ZeRO, figure 1: 7.5 billion parameters, 64 replicas. There gradients are 16 bit; ours are 32 bit (18 bytes).
    model = Model(parameters=7_500_000_000)

    def state_gb(stage: int, precision: str = "bf16") -> float:
        parts = estimate(model, Layout(data_parallel=64, zero_stage=stage, precision=precision)).memory_parts_bytes
        return (parts["parameters"] + parts["gradients"] + parts["optimiser"]) / 1e9

    assert state_gb(0) == pytest.approx(7.5 * 18)
    assert state_gb(1) == pytest.approx(7.5 * (6 + 12 / 64))
    assert state_gb(2) == pytest.approx(7.5 * (2 + 16 / 64))
    assert state_gb(3) == pytest.approx(7.5 * 18 / 64)
    assert state_gb(0, "fp32") == pytest.approx(7.5 * 16)


def test_traffic_of_a_step() -> None:
    model, layout = MODELS["175B"]
    found = estimate(model, replace(layout, data_parallel=4)).traffic_bytes_per_step
    local = estimate(model, layout).parameters_per_accelerator
    # An all-reduce of gradients of 4 bytes.
    assert found["data_parallel"] == pytest.approx(2 * 3 / 4 * local * 4)
    # 16 micro batches, 12 layers a stage, 4 all-reduces of 2 s b h bytes over 8.
    assert found["tensor_parallel"] == pytest.approx(16 * 12 * 4 * 2 * 2048 * 12288 * 2 * 7 / 8)
    assert found["pipeline_parallel"] == pytest.approx(16 * 2 * 3 * 2 * 2048 * 12288 / 8)
    alone = estimate(model, Layout(global_batch=1)).traffic_bytes_per_step
    assert set(alone.values()) == {0.0}


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"tensor_parallel": 5}, "/tensor_parallel"),
        ({"pipeline_parallel": 64}, "/pipeline_parallel"),
        ({"expert_parallel": 2}, "/expert_parallel"),
        ({"context_parallel": 3}, "/context_parallel"),
        ({"virtual_stages": 2}, "/virtual_stages"),
        ({"global_batch": 6}, "/global_batch"),
        ({"zero_stage": 4}, "/zero_stage"),
        ({"precision": "int3"}, "/precision"),
    ],
)
def test_impossible_layouts_name_the_field(change: dict[str, object], pointer: str) -> None:
    model, layout = MODELS["22B"]
    with pytest.raises(InvalidArgumentError) as caught:
        estimate(model, replace(layout, **change))  # type: ignore[arg-type]
    assert [item.pointer for item in caught.value.errors] == [pointer]


@pytest.mark.parametrize(
    ("model", "pointer"),
    [(Model(), "/layers"), (Model(2, 100, 3), "/heads"), (Model(2, 128, 8, kv_heads=3), "/kv_heads")],
)
def test_impossible_models_name_the_field(model: Model, pointer: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        estimate(model, Layout())
    assert [item.pointer for item in caught.value.errors] == [pointer]


def test_parameters_alone_give_what_follows_from_them_and_say_what_is_missing() -> None:
    found = estimate(Model(parameters=10**9, sequence=1024), Layout(global_batch=8, steps=10))
    assert found.total_flops == 6e9 * 8 * 1024 * 10
    assert found.memory_parts_bytes["activations"] == 0
    assert len(found.notes) == 1


@given(
    layers=st.sampled_from([8, 16, 32]),
    hidden=st.sampled_from([512, 1024]),
    tensor=st.sampled_from([1, 2, 4, 8]),
    stages=st.sampled_from([1, 2, 4, 8]),
    zero=st.integers(0, 3),
    gated=st.booleans(),
)
def test_more_parallelism_or_sharding_never_needs_more_memory(
    layers: int, hidden: int, tensor: int, stages: int, zero: int, gated: bool
) -> None:
    model = Model(layers, hidden, 8, 512, 32000, gated_ffn=gated)
    layout = Layout(8, 1, 1, tensor, stages, 8, zero_stage=zero)
    found = estimate(model, layout)
    assert found.memory_bytes_per_accelerator == pytest.approx(sum(found.memory_parts_bytes.values()))
    assert (
        found.memory_bytes_per_accelerator
        <= estimate(model, replace(layout, zero_stage=0)).memory_bytes_per_accelerator
    )
    alone = estimate(model, replace(layout, tensor_parallel=1, pipeline_parallel=1))
    assert found.memory_bytes_per_accelerator <= alone.memory_bytes_per_accelerator
    assert found.flops_per_step == alone.flops_per_step


def test_experts_and_a_well_known_model() -> None:
    # Mixtral 8x7B has 46.7 billion parameters; a token visits 12.9 billion (arXiv:2401.04088).
    stated = Model(32, 4096, 32, 4096, 32000, ffn_hidden=14336, gated_ffn=True, kv_heads=8, experts=8, top_k=2)
    named = Model(sequence=4096, known=model_named("mixtral-8x7b"))
    layout = Layout(global_batch=64, data_parallel=8, expert_parallel=8)
    found = estimate(stated, layout)
    assert found.parameters == pytest.approx(46.7e9, rel=0.001)
    assert found.model_flops_per_token / 6 == pytest.approx(12.9e9 + 2 * 32 * 4096 * 4096, rel=0.02)
    assert found == estimate(named, layout)
    assert found.traffic_bytes_per_step["expert_parallel"] > 0


def test_a_stated_total_that_the_shape_does_not_have_is_said() -> None:
    (note,) = estimate(replace(LLAMA_7B, parameters=13 * 10**9), Layout(global_batch=8, steps=1)).notes
    assert "13,000,000,000" in note
    assert estimate(replace(LLAMA_7B, parameters=6_700_000_000), Layout(global_batch=8, steps=1)).notes == ()
