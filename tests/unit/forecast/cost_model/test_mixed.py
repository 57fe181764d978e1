"""Pipelines over unlike chips: layers follow speed and memory, links set the pace when they are slow."""

from dataclasses import replace

import pytest

from meridian.errors import InvalidArgumentError
from services.forecast.cost_model import TrainingLayout, fitted, machine_of
from services.forecast.cost_model.known_models import model_named
from services.forecast.cost_model.layout import Recompute
from services.forecast.cost_model.memory import memory_of
from services.forecast.cost_model.mixed import Placement, Segment, best_placements, place
from services.forecast.cost_model.search import HEADROOM, Work

A100, H100 = machine_of("A100-SXM4-80GB"), machine_of("H100-SXM5-80GB")
SHAPE = model_named("llama2-13b")
WORK = Work(4096, 128)


def test_the_faster_chip_gets_more_layers() -> None:
    found = best_placements(SHAPE, WORK, [Segment(A100, 8), Segment(H100, 8, 12.5e9)])
    assert found
    times = [placement.step_s for placement in found]
    assert times == sorted(times)
    for placement in found:
        assert sum(placement.layers) == SHAPE.layers
        assert min(placement.layers) > 0
        assert placement.layout.accelerators == 16
        first = placement.stages[0]
        slow, fast = sum(placement.layers[:first]) / first, sum(placement.layers[first:]) / placement.stages[1]
        assert fast > slow
        assert placement.limited_by.startswith("stage")


def test_equal_chips_share_layers_alike() -> None:
    layout = TrainingLayout(sequence=4096, global_batch=128, tp=4, pp=4, zero=0, sequence_parallel=True)
    found = place(SHAPE, layout, [Segment(H100, 8), Segment(H100, 8, 1e12)], (2, 2), fitted())
    assert found is not None
    # The last stage also computes the output layer, which weighs less than one layer here.
    assert found.layers in {(10, 10, 10, 10), (10, 10, 11, 9), (11, 10, 10, 9), (10, 11, 10, 9)}


def test_a_thin_link_sets_the_pace() -> None:
    layout = TrainingLayout(sequence=4096, global_batch=64, tp=8, pp=2, sequence_parallel=True)
    near, far = (
        place(SHAPE, layout, [Segment(H100, 8), Segment(H100, 8, rate, 0.02)], (1, 1), fitted())
        for rate in (12.5e9, 62.5e6)
    )
    assert near is not None
    assert far is not None
    block = 2 * 4096 * 5120
    assert far.transfer_s == (pytest.approx(block / 62.5e6),)
    assert far.limited_by == "link into segment 2"
    assert far.step_s > 64 * block / 62.5e6 > near.step_s
    assert far.crossing_bytes == 2 * 64 * block


def test_memory_bounds_the_layers_of_a_stage() -> None:
    assert best_placements(model_named("megatron-1t"), WORK, [Segment(A100, 8), Segment(H100, 8, 1e9)]) == []


@pytest.mark.parametrize("segments", [[Segment(A100, 8)], [Segment(A100, 8), Segment(H100, 8)]])
def test_a_pool_without_links_is_an_error(segments: list[Segment]) -> None:
    with pytest.raises(InvalidArgumentError):
        best_placements(SHAPE, WORK, segments)


@pytest.mark.parametrize("recompute", list(Recompute))
@pytest.mark.parametrize(("tp", "pp", "zero"), [(8, 2, 1), (2, 4, 1), (1, 2, 0)])
def test_a_stage_takes_what_the_memory_of_the_layout_takes(tp: int, pp: int, zero: int, recompute: Recompute) -> None:
    shape = model_named("llama-3-8b")
    layout = TrainingLayout(
        sequence=4096,
        global_batch=64,
        tp=tp,
        pp=pp,
        dp=2,
        zero=zero,
        recompute=recompute,
        sequence_parallel=tp > 1,
    )
    needed = memory_of(shape, layout).total / HEADROOM
    stages = (pp // 2, pp // 2)

    def placed(memory_bytes: float) -> Placement | None:
        machine = replace(H100, memory_bytes=memory_bytes)
        segments = [Segment(machine, stages[0] * tp * 2), Segment(machine, stages[1] * tp * 2, 1e12)]
        return place(shape, layout, segments, stages, fitted())

    assert placed(1.001 * needed) is not None
    found = placed(0.999 * needed)
    # Stages of equal layers do not fit any more; those with room to spare may take more.
    assert found is None or len(set(found.layers)) > 1


def test_the_last_stage_has_room_for_its_logits() -> None:
    shape = model_named("llama-3-8b")
    layout = TrainingLayout(sequence=8192, global_batch=4, micro_batch=4, pp=2, recompute=Recompute.FULL)
    needed = memory_of(shape, layout).total / HEADROOM
    tight = replace(H100, memory_bytes=0.999 * needed)
    roomy = replace(H100, memory_bytes=2 * needed)
    found = place(shape, layout, [Segment(roomy, 1), Segment(tight, 1, 1e12)], (1, 1), fitted())
    assert found is not None
    assert found.layers[1] < shape.layers // 2
