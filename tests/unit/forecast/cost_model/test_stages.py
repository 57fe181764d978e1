"""Layers of pipeline stages, where they divide and where they do not: by hand, published layouts, what follows from them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meridian.errors import InvalidArgumentError
from services.forecast.cost_model import TrainingLayout, estimate, machine_of
from services.forecast.cost_model.efficiency import PRIOR
from services.forecast.cost_model.evaluation.runs import run_of
from services.forecast.cost_model.kernels import Kernels
from services.forecast.cost_model.known_models import model_named
from services.forecast.cost_model.layout import Recompute, check
from services.forecast.cost_model.memory import layer_activations, local_parameters, logits_bytes, memory_of
from services.forecast.cost_model.search import Work, best_layouts
from services.forecast.cost_model.shapes import shape_of
from services.forecast.cost_model.stages import layers_of_stages
from services.forecast.cost_model.step_time import step_time

LAYOUT = TrainingLayout(sequence=4096, global_batch=64)
H100 = machine_of("H100-SXM5-80GB")


@pytest.mark.parametrize(
    ("name", "pp", "vpp", "stages"),
    [
        ("llama3-70b", 4, 5, (20, 20, 20, 20)),
        # arXiv:2407.21783 section 3.3.2: one layer less on the first and on the last of 16 stages.
        ("llama3.1-405b", 16, 1, (7, *[8] * 14, 7)),
        # arXiv:2211.05100: 70 layers on 12 stages, embedding and output layer counted.
        ("bloom-176b", 12, 1, (5, *[6] * 10, 5)),
        # 61 layers, one that predicts further tokens, embedding and output layer on 16 stages (arXiv:2412.19437).
        ("deepseek-v3", 16, 1, (3, *[4] * 14, 2)),
        # Kimi K2: nothing predicts; four stages have at most 16.
        ("kimi-k2", 4, 4, (15, 16, 15, 15)),
        ("kimi-k2", 4, 1, (15, 16, 15, 15)),
        ("kimi-k2", 2, 1, (31, 30)),
        ("llama2-7b", 5, 1, (6, 7, 7, 6, 6)),
    ],
)
def test_layers_of_stages(name: str, pp: int, vpp: int, stages: tuple[int, ...]) -> None:
    shape = model_named(name)
    layout = replace(LAYOUT, pp=pp, vpp=vpp)
    check(shape, layout)
    assert layers_of_stages(shape, layout) == stages


@given(st.integers(1, 130), st.integers(1, 40), st.integers(1, 6), st.integers(0, 2))
def test_every_layer_is_on_one_stage(layers: int, pp: int, vpp: int, predicting: int) -> None:
    shape = shape_of(layers=layers, hidden=1024, heads=8, predicting_layers=predicting)
    layout = replace(LAYOUT, pp=pp, vpp=vpp if pp > 1 else 1)
    if pp > 1 and pp * layout.vpp > layers + 2 + predicting:
        with pytest.raises(InvalidArgumentError, match="pp"):
            check(shape, layout)
        return
    check(shape, layout)
    stages = layers_of_stages(shape, layout)
    assert len(stages) == pp
    assert sum(stages) == layers
    assert min(stages) >= 0
    # No stage has more than it must; layers that predict take places of their own.
    assert -(-layers // pp) <= max(stages) <= -(-(layers + predicting * 3) // pp)


def test_the_fullest_stage_sets_the_pace() -> None:
    # Without an output layer that weighs anything: 9 layers on 4 stages take what 12 do, but for the way through the others.
    plain = shape_of(layers=12, hidden=2048, heads=16, vocabulary=1)
    near = replace(H100, node_size=64, link_bytes_per_s=1e18)
    free = replace(PRIOR, collective_s=1e-30)
    layout = replace(LAYOUT, pp=4)
    layer = Kernels(near, free, layout).layer(plain, experts=False)
    each = layer.forward + layer.backward
    even, uneven = (step_time(replace(plain, layers=n), layout, near, free) for n in (12, 9))
    assert even.compute_s == pytest.approx(uneven.compute_s, rel=5e-3)
    # Through the other stages: 9 layers where 12 stand evenly, 6 where 3 of 9 are on the fullest.
    assert even.bubble_s == pytest.approx(9 * each, rel=5e-3)
    assert uneven.bubble_s == pytest.approx(6 * each, rel=5e-3)


def test_a_last_stage_with_fewer_layers_hides_its_output_layer() -> None:
    shape = model_named("llama3-8b")
    layout = replace(LAYOUT, pp=4)
    evenly, eased = (step_time(shape, replace(layout, stage_layers=each), H100, PRIOR) for each in ((), (8, 9, 9, 6)))
    output = Kernels(H100, PRIOR, layout).output(shape)
    layer = Kernels(H100, PRIOR, layout).layer(shape, experts=False)
    # Eight layers and the output layer, or nine layers, whichever is longer.
    assert evenly.compute_s == pytest.approx(
        64 * (8 * (layer.forward + layer.backward) + output.forward + output.backward)
    )
    assert eased.compute_s == pytest.approx(64 * 9 * (layer.forward + layer.backward))


def test_memory_is_that_of_the_fullest_stage() -> None:
    shape = model_named("llama3-8b")
    layout = replace(LAYOUT, pp=4, micro_batch=1, recompute=Recompute.FULL)
    kept, whole = layer_activations(shape, layout)
    # First: fewer layers and the embedding, four micro batches in flight; second: most layers, three in flight.
    stated = replace(layout, stage_layers=(2, 12, 12, 6))
    found = memory_of(shape, stated)
    assert found.parameters == pytest.approx(2 * sum(local_parameters(shape, stated, 1)))
    assert sum(local_parameters(shape, stated, 1)) == pytest.approx(
        12 * (shape.attention_matrix_weights + shape.dense_ffn_weights + shape.small_weights)
    )
    assert found.activations == pytest.approx(3 * 12 * kept + whole - kept)
    assert memory_of(shape, replace(layout, stage_layers=(8, 8, 8, 8))) == memory_of(shape, layout)


def test_interleaved_stages_keep_more_micro_batches_also_at_the_end() -> None:
    # Megatron-Core's interleaved schedule: (v - 1) p + 1 chunks before the last stage's first backward pass, 2 (p - 1) more on
    # the first (Korthikanti 2022, section 4.2.3, has p + (p - 1) / v micro batches there).
    shape = replace(model_named("llama3-8b"), vocabulary=1_000_000)
    layout = replace(LAYOUT, pp=4, vpp=8, recompute=Recompute.FULL)
    kept, whole = layer_activations(shape, layout)
    last = 8 * kept * (7 * 4 + 1) / 8 + whole - kept + logits_bytes(shape, layout)
    first = 8 * kept * (4 + 3 / 8) + whole - kept
    assert last > first
    assert memory_of(shape, layout).activations == pytest.approx(last)
    # No more than there are.
    few = replace(layout, global_batch=4)
    assert memory_of(replace(shape, vocabulary=1000), few).activations == pytest.approx(8 * kept * 4 + whole - kept)


@pytest.mark.parametrize(
    ("changes", "field", "text"),
    [
        ({"pp": 64}, "/pp", "32 layers"),
        ({"pp": 8, "vpp": 8}, "/pp", "32 layers"),
        ({"pp": 4, "stage_layers": (8, 8, 16)}, "/stage_layers", "3 stages are stated, not pp = 4"),
        ({"pp": 4, "stage_layers": (8, 8, 8, 9)}, "/stage_layers", "33 layers, the model has 32"),
        ({"pp": 4, "stage_layers": (40, -8, 0, 0)}, "/stage_layers", "at least 0"),
    ],
)
def test_what_no_framework_can_run_is_refused(changes: dict[str, object], field: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text) as caught:
        check(model_named("llama2-7b"), replace(LAYOUT, **changes))  # type: ignore[arg-type]
    assert [item.pointer for item in caught.value.errors] == [field]


def test_stages_that_differ_are_said_and_those_that_do_not_are_not() -> None:
    kimi = model_named("kimi-k2")
    layout = replace(LAYOUT, pp=4, ep=8, dp=8)
    notes = estimate(kimi, layout, H100).assumptions
    assert any("stages of 15, 16, 15, 15 layers" in note for note in notes)
    assert not any("stages of" in note for note in estimate(model_named("llama2-7b"), LAYOUT, H100).assumptions)


def test_a_row_may_state_its_stages() -> None:
    row = {"accelerator": "H100", "model": "kimi-k2", "n_accel": "256", "seq": "4096", "gbs": "4096", "mbs": "2"}
    row |= {"tp": "1", "pp": "4", "vpp": "4", "ep": "64", "precision": "fp8"}
    assert run_of(row).layout.stage_layers == ()
    assert run_of({**row, "stage_layers": "16;16;16;13"}).layout.stage_layers == (16, 16, 16, 13)
    for cell in ("16;16;16", "16;16;16;x", "sixteen", "16;16;16;13.5"):
        with pytest.raises(InvalidArgumentError) as caught:
            run_of({**row, "stage_layers": cell})
        assert [item.pointer for item in caught.value.errors] == ["/stage_layers"]


def test_the_search_also_tries_stages_that_differ() -> None:
    # 61 layers and nothing that predicts: four or eight stages are no division, and yet the fastest that fit.
    found = best_layouts(model_named("kimi-k2"), Work(4096, 4096, "fp8"), machine_of("GB300"), 256, count=20)
    assert {layout.pp for layout, _ in found.best} & {4, 8}


@pytest.mark.parametrize(("name", "accelerators"), [("kimi-k2", 384), ("qwen1.5-moe-a2.7b", 12)])
def test_the_search_divides_experts_by_what_divides_them(name: str, accelerators: int) -> None:
    # 384 experts on 384 chips: 256 is a power of two up to there, and no divisor; nor is 8 of 60 experts on 12.
    shape = model_named(name)
    found = best_layouts(shape, Work(4096, 4 * accelerators), machine_of("GB300"), accelerators, count=100)
    assert found.best
    assert all(shape.experts % layout.ep == 0 for layout, _ in found.best)
