"""Memory against Korthikanti 2022 and ZeRO, traffic and impossible layouts by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meridian.errors import InvalidArgumentError
from services.forecast.cost_model.known_models import model_named
from services.forecast.cost_model.layout import (
    Gradients,
    Recompute,
    TrainingLayout,
    check,
    precision_named,
    recompute_named,
)
from services.forecast.cost_model.machine import machine_of
from services.forecast.cost_model.memory import layer_activations, local_parameters, logits_bytes, memory_of, verdict
from services.forecast.cost_model.shapes import shape_of
from services.forecast.cost_model.traffic import traffic_of

GIB = 2**30
# arXiv:2205.05198 figure 1 (GiB of one chip): parameters and optimiser, activations without recomputation and without
# sequence parallelism, and with both. The larger models are interleaved, with three chunks per stage (530B: one layer).
KORTHIKANTI = [
    ("megatron-22b", 8, 1, 1, 4, 45.56, 59.25, 9.56),
    ("gpt3-175b", 8, 8, 3, 1, 45.56, 66.84, 12.35),
    ("megatron-530b", 8, 35, 3, 1, 31.64, 114.02, 23.08),
    ("megatron-1t", 8, 64, 1, 1, 32.96, 131.25, 26.56),
]


@pytest.mark.parametrize(("name", "tp", "pp", "vpp", "mbs", "state", "whole", "selective"), KORTHIKANTI)
def test_activations_of_korthikanti(
    name: str, tp: int, pp: int, vpp: int, mbs: int, state: float, whole: float, selective: float
) -> None:
    shape = model_named(name)
    layout = TrainingLayout(
        sequence=2048,
        global_batch=mbs * pp,
        micro_batch=mbs,
        tp=tp,
        pp=pp,
        vpp=vpp,
        fused_attention=False,
        # The state of figure 1 is that with gradients in 32 bit: 18 bytes per parameter.
        precision="bf16",
    )
    # In flight on the first stage: all layers of the model at once, (p - 1) / (p v) more with interleaving.
    factor = shape.layers * (1 + (pp - 1) / (pp * vpp) if vpp > 1 else 1)
    kept, _ = layer_activations(shape, layout)
    assert kept * factor / GIB == pytest.approx(whole, rel=0.005)
    both = replace(layout, recompute=Recompute.SELECTIVE, sequence_parallel=True)
    kept, _ = layer_activations(shape, both)
    assert kept * factor / GIB == pytest.approx(selective, rel=0.005)
    found = memory_of(shape, layout)
    assert (found.parameters + found.gradients + found.optimiser) / GIB == pytest.approx(state, rel=0.10)


def test_state_is_divided_as_zero_says() -> None:
    shape = model_named("llama2-7b")
    base = TrainingLayout(sequence=4096, global_batch=64, dp=64)
    dense, _ = local_parameters(shape, base)
    assert dense == shape.parameters
    for stage, each in [(0, 18.0), (1, 6 + 12 / 64), (2, 2 + 16 / 64), (3, 18 / 64)]:
        found = memory_of(shape, replace(base, zero=stage))
        assert found.parameters + found.gradients + found.optimiser == pytest.approx(each * dense)


def test_state_in_fp16_holds_gradients_twice() -> None:
    shape = model_named("llama2-7b")
    found = memory_of(shape, TrainingLayout(sequence=4096, global_batch=8, dp=8, zero=1, precision="fp16"))
    # 2 of weights, 2 of gradients, 4 + 4 + 4 of the optimiser and 4 of gradients for its step, those divided.
    assert found.parameters + found.gradients + found.optimiser == pytest.approx((4 + 16 / 8) * shape.parameters)


def test_the_last_stage_may_be_the_fullest() -> None:
    shape = model_named("llama3-8b")
    layout = TrainingLayout(sequence=8192, global_batch=8, micro_batch=4, pp=2, recompute=Recompute.FULL)
    kept, whole = layer_activations(shape, layout)
    logits = 10 * 4 * 8192 * shape.vocabulary
    # First stage: two micro batches of sixteen layers in flight; last: one, and the logits.
    assert memory_of(shape, layout).activations == pytest.approx(16 * kept + whole - kept + logits)
    small = replace(shape, vocabulary=1000)
    assert memory_of(small, layout).activations == pytest.approx(2 * 16 * kept + whole - kept)


# Published memory of whole cards (GiB as the driver reports it), all with full recomputation and divided optimisers:
# BigScience's chronicles of BLOOM, prequel, models of 72 layers of 14,336 (fp16) and 70 (bf16).
BLOOM = [
    (72, "fp16", 8, 12, 4, 2, 37),
    (72, "fp16", 8, 6, 8, 4, 55),
    (72, "fp16", 8, 2, 24, 1, 65),
    (72, "fp16", 4, 12, 8, 2, 44),
    (72, "fp16", 2, 12, 16, 2, 63),
    (70, "bf16", 4, 12, 8, 2, 59),
    (70, "bf16", 4, 12, 8, 4, 73),
]


@pytest.mark.parametrize(("layers", "precision", "tp", "pp", "dp", "mbs", "measured"), BLOOM)
def test_memory_of_bloom(layers: int, precision: str, tp: int, pp: int, dp: int, mbs: int, measured: float) -> None:
    shape = shape_of(layers=layers, hidden=14336, heads=64, vocabulary=250880)
    layout = TrainingLayout(
        sequence=2048,
        global_batch=mbs * dp * pp,
        micro_batch=mbs,
        tp=tp,
        pp=pp,
        dp=dp,
        zero=1,
        precision=precision,
        # DeepSpeed's BF16_Optimizer, which BLOOM was trained with (arXiv:2211.05100 section 3.4.3).
        gradients=Gradients.BOTH if precision == "bf16" else None,
        recompute=Recompute.FULL,
        fused_attention=False,
    )
    # The reserve was chosen with these in view; DeepSpeed's other buffers are not modelled.
    assert memory_of(shape, layout).total / GIB == pytest.approx(measured, rel=0.20)


def test_experts_are_divided_by_their_groups() -> None:
    shape = model_named("mixtral-8x7b")
    _, whole = local_parameters(shape, TrainingLayout(sequence=4096, global_batch=64, dp=8))
    assert whole == 32 * 8 * 3 * 4096 * 14336
    _, eighth = local_parameters(shape, TrainingLayout(sequence=4096, global_batch=64, dp=8, ep=8))
    assert eighth == whole / 8


@given(
    st.sampled_from(["llama3-8b", "megatron-18.4b", "mixtral-8x7b"]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
)
def test_more_recomputation_never_needs_more(name: str, tp: int, mbs: int) -> None:
    shape = model_named(name)
    base = TrainingLayout(sequence=2048, global_batch=8, micro_batch=mbs, tp=tp, fused_attention=False)
    kept = [layer_activations(shape, replace(base, recompute=each))[0] for each in Recompute]
    assert kept == sorted(kept, reverse=True)
    half = replace(base, recompute=Recompute.FULL, recompute_share=0.5)
    assert kept[2] < layer_activations(shape, half)[0] < kept[0]


def test_a_verdict_is_surer_the_farther_off() -> None:
    found = memory_of(model_named("llama3-8b"), TrainingLayout(sequence=2048, global_batch=8))
    # The reserve of an allocator is given back when it is needed.
    assert found.reserve > 0
    assert found.needed + found.reserve == pytest.approx(found.total)
    even, wide, none = (verdict(found, found.needed * share) for share in (1.0, 1.5, 0.5))
    assert (even.fits, wide.fits, none.fits) == (True, True, False)
    assert even.confidence == pytest.approx(0.5)
    assert wide.confidence > 0.99
    assert none.confidence > 0.99
    assert none.margin_bytes == pytest.approx(-found.needed / 2)


def test_traffic_by_hand() -> None:
    shape, machine = model_named("megatron-18.4b"), machine_of("A100-SXM4-80GB")
    layout = TrainingLayout(sequence=2048, global_batch=64, micro_batch=2, tp=8, pp=2, dp=4)
    found = traffic_of(shape, layout, machine)
    block = 2 * 2 * 2048 * 6144  # bytes of one micro batch of activations
    # 8 micro batches, 20 layers, 2 all-reduces forward and 2 backward, 2 x 7/8 of the block each.
    assert found.by_kind["tp"] == pytest.approx(8 * 20 * 4 * 2 * 7 / 8 * block)
    # Forward and backward once per micro batch, divided over the tensor group.
    assert found.by_kind["pp"] == pytest.approx(8 * 2 * block / 8)
    dense, _ = local_parameters(shape, layout)
    # Gradients of 4 bytes, summed; of 2 in fp16. Scattered and the weights gathered where the optimiser is divided.
    assert found.by_kind["dp"] == pytest.approx(2 * 3 / 4 * dense * 4)
    # Gradients of which a chip keeps its part are scattered in each of the 8 micro batches.
    ways = [
        ({"precision": "fp16"}, 2 + 2),
        ({"zero": 1}, 4 + 2),
        ({"zero": 2}, 8 * 4 + 2),
        ({"zero": 3}, 8 * (4 + 2 * 2)),
    ]
    for changes, each in ways:
        other = traffic_of(shape, replace(layout, **changes), machine)  # type: ignore[arg-type]
        assert other.by_kind["dp"] == pytest.approx(3 / 4 * dense * each)
    assert found.by_kind["cp"] == found.by_kind["ep"] == 0
    # Eight chips of a tensor group are a node; the rest leaves it.
    assert found.by_link == {"node": found.by_kind["tp"], "fabric": found.by_kind["pp"] + found.by_kind["dp"]}


def test_traffic_of_experts_by_hand() -> None:
    shape, machine = model_named("mixtral-8x7b"), machine_of("A100-SXM4-80GB")
    layout = TrainingLayout(sequence=4096, global_batch=8, dp=8, ep=8)
    # There and back, forward and backward, 32 layers. The experts of a token are on two of eight places, or on one (1 in 8),
    # and its own place, where nothing is sent, is among them or not.
    token = 32 * 4 * 2 * 4096 * 4096
    for once, places in ((True, 2 - 1 / 8 - (1 - (7 / 8) ** 2)), (False, 2 * 7 / 8)):
        found = traffic_of(shape, replace(layout, dispatch_once=once), machine)
        assert found.by_kind["ep"] == pytest.approx(token * places)


def test_gradients_of_experts_are_summed_by_those_that_have_them() -> None:
    shape, machine = model_named("mixtral-8x7b"), machine_of("A100-SXM4-80GB")
    # Sixteen chips; each expert is on one, on two, or on all of them.
    for tp, ep, alike in ((2, 8, 2), (1, 8, 2), (8, 8, 2), (1, 1, 16)):
        layout = TrainingLayout(sequence=4096, global_batch=16, tp=tp, dp=16 // tp, ep=ep)
        dense, expert = local_parameters(shape, layout)
        n = 16 // tp
        found = traffic_of(shape, layout, machine).by_kind
        assert found["dp"] == pytest.approx(2 * 4 * ((n - 1) / n * dense + (alike - 1) / alike * expert))
    spread = TrainingLayout(sequence=4096, global_batch=8, dp=8, ep=8)
    assert traffic_of(shape, spread, machine).by_kind["dp"] == pytest.approx(
        2 * 4 * 7 / 8 * local_parameters(shape, spread)[0]
    )
    # All layers have experts: with these spread, one all-reduce in a pass is left, that of attention.
    tensor = [traffic_of(shape, replace(spread, tp=2, dp=4, ep=ep), machine).by_kind["tp"] for ep in (1, 8)]
    assert tensor[1] == pytest.approx(tensor[0] / 2)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tp": 5}, "/tp"),
        ({"pp": 64}, "/pp"),
        ({"vpp": 2}, "/vpp"),
        ({"dp": 3}, "/gbs"),
        ({"micro_batch": 3}, "/gbs"),
        ({"cp": 3}, "/cp"),
        ({"ep": 2}, "/ep"),
        ({"zero": 4}, "/zero"),
        ({"tp": 0}, "/tp"),
        ({"precision": "int8"}, "/precision"),
        ({"recompute_share": 1.5}, "/recompute_share"),
    ],
)
def test_impossible_layouts_name_the_field(changes: dict[str, object], named: str) -> None:
    layout = replace(TrainingLayout(sequence=2048, global_batch=64), **changes)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError) as caught:
        check(model_named("llama3-8b"), layout)
    assert named in [item.pointer for item in caught.value.errors]


def test_accelerators_must_be_the_product() -> None:
    with pytest.raises(InvalidArgumentError, match="n_accel: 9 is not"):
        check(model_named("llama3-8b"), TrainingLayout(sequence=2048, global_batch=64, tp=8), 9)


def test_embedding_and_output_layer_may_count_as_layers() -> None:
    # Llama 3.1 405B: 126 layers on 16 stages (arXiv:2407.21783).
    check(model_named("llama3.1-405b"), TrainingLayout(sequence=8192, global_batch=2048, tp=8, pp=16, dp=8))


def test_names_of_precision_and_recomputation() -> None:
    assert [precision_named(name) for name in ("amp_bf16", "BF16", "MXFP8", "NVFP4")] == ["bf16", "bf16", "fp8", "fp4"]
    assert recompute_named("selective+SP") is Recompute.SELECTIVE
    for read in (precision_named, recompute_named):
        with pytest.raises(InvalidArgumentError, match="'maybe'"):
            read("maybe")


def test_checkpoints_by_operator_keep_attention_and_every_second_product() -> None:
    shape = model_named("llama3-8b")
    layout = TrainingLayout(8192, 8, recompute=Recompute.PRODUCTS)
    kept, whole = layer_activations(shape, layout)
    # In 16 bit: the input of the layer, queries (4,096), values (1,024), what attention gives (4,096), one inner product (14,336)
    # and what leaves the feed-forward.
    assert kept == 2 * 8192 * (4096 + 4096 + 1024 + 4096 + 14336 + 4096)
    assert kept < whole == layer_activations(shape, replace(layout, recompute=Recompute.NONE))[1]
    assert recompute_named("selective_op") is Recompute.PRODUCTS


def test_layers_of_which_nothing_is_fused_keep_norms_in_32_bit_and_the_gate() -> None:
    shape = model_named("llama2-7b")
    layout = TrainingLayout(4096, 8)
    fused, eager = (layer_activations(shape, replace(layout, eager=flag))[0] for flag in (False, True))
    # Each of two norms keeps 4 + 2 bytes more than its input and output, which are counted anyway; a gate 2 per inner value.
    assert eager - fused == 4096 * (12 * 4096 + 2 * 11008)
    gpt = model_named("gpt3-6.7b")
    assert layer_activations(gpt, replace(layout, eager=True)) == layer_activations(gpt, layout)


def test_a_compiled_loss_holds_logits_and_their_gradient_in_16_bit() -> None:
    shape, layout = model_named("llama3-8b"), TrainingLayout(8192, 8)
    assert logits_bytes(shape, replace(layout, fused_loss=True)) == 2 * 2 * 8192 * 128256
    assert logits_bytes(shape, layout) == 10 * 8192 * 128256
