"""A pipeline over unlike chips, in one domain or in several: which layers go where, and what a step takes.

Stages of one kind of chip stand together, in the order given; tensor and data parallelism stay within a stage and are the
same everywhere, so only activations and their gradients cross from kind to kind (Yuan et al. 2022, arXiv:2206.01288).

1. One layer of the model is timed on each kind of chip.
2. Layers go one by one to the stage that is then the least loaded and has memory left (longest processing time first;
   with equal layers the greedy choice is the best one).
3. The slowest stage or the slowest link sets the pace: m micro batches at that pace, and once through all stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meridian.errors import FieldError, InvalidArgumentError
from services.forecast.cost_model.efficiency import Efficiency, fitted
from services.forecast.cost_model.kernels import Kernels
from services.forecast.cost_model.layout import Recompute, TrainingLayout, divides_heads
from services.forecast.cost_model.links import Links
from services.forecast.cost_model.machine import Machine
from services.forecast.cost_model.memory import (
    FRAGMENTATION,
    STATE_RESERVE,
    common_buffers,
    layer_activations,
    logits_bytes,
)
from services.forecast.cost_model.search import HEADROOM, Work, divisors
from services.forecast.cost_model.shapes import ModelShape
from services.forecast.cost_model.step_time import data_parallel, per_micro_batch


@dataclass(frozen=True, slots=True)
class Segment:
    """Equal chips, and the link from the segment before: bytes per second for all streams together, one way, and delay."""

    machine: Machine
    accelerators: int
    entry_bytes_per_s: float = 0.0
    entry_delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Placement:
    """A layout over segments: layers of each stage, stages of each segment, and what sets the pace."""

    layout: TrainingLayout
    stages: tuple[int, ...]
    layers: tuple[int, ...]
    step_s: float
    # Of every stage, per micro batch.
    stage_s: tuple[float, ...]
    # Per micro batch, of each link between segments.
    transfer_s: tuple[float, ...]
    bubble_s: float
    crossing_bytes: float

    @property
    def limited_by(self) -> str:
        """What sets the pace."""
        if self.transfer_s and max(self.transfer_s) > max(self.stage_s):
            return f"link into segment {self.transfer_s.index(max(self.transfer_s)) + 2}"
        return f"stage {self.stage_s.index(max(self.stage_s)) + 1}"


def best_placements(
    shape: ModelShape,
    work: Work,
    segments: Sequence[Segment],
    *,
    count: int = 5,
    efficiency: Efficiency | None = None,
) -> list[Placement]:
    """The fastest pipelines over all segments that fit, best first.

    InvalidArgumentError when there are fewer than two segments, a link between them is not stated, or no pipeline is possible at
    all.
    """
    if len(segments) < 2:
        raise _wrong("segments", "a mixed pipeline needs at least two")
    for number, segment in enumerate(segments[1:], start=2):
        if segment.entry_bytes_per_s <= 0:
            raise _wrong("entry_bytes_per_s", f"segment {number} has no link from the one before")
    found, possible = [], 0
    for layout, stages in _layouts(shape, work, segments):
        possible += 1
        placed = place(shape, layout, segments, stages, efficiency or fitted())
        if placed is not None:
            found.append(placed)
    if not possible:
        pool = " + ".join(str(segment.accelerators) for segment in segments)
        raise _wrong(
            "accelerators",
            f"no pipeline divides the model and a batch of {work.global_batch} over {pool} accelerators: "
            f"a stage for each group of them takes at least one of {shape.layers} layers",
        )
    return sorted(found, key=lambda placement: placement.step_s)[:count]


def _wrong(name: str, detail: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name}: {detail}", errors=(FieldError(f"/{name}", detail),))


def _layouts(
    shape: ModelShape, work: Work, segments: Sequence[Segment]
) -> Iterator[tuple[TrainingLayout, tuple[int, ...]]]:
    node = min(segment.machine.node_size for segment in segments)
    common = math.gcd(*(segment.accelerators for segment in segments))
    for tp in (size for size in (1, 2, 4, 8) if size <= node and divides_heads(shape, size)):
        if common % tp:
            continue
        for dp in divisors(common // tp):
            if work.global_batch % dp:
                continue
            stages = tuple(segment.accelerators // (tp * dp) for segment in segments)
            if sum(stages) > shape.layers:
                continue
            for micro in (1, 2, 4):
                if (work.global_batch // dp) % micro:
                    continue
                for recompute in (Recompute.NONE, Recompute.FULL):
                    layout = TrainingLayout(
                        sequence=work.sequence,
                        global_batch=work.global_batch,
                        micro_batch=micro,
                        tp=tp,
                        pp=sum(stages),
                        dp=dp,
                        precision=work.precision,
                        zero=1 if dp > 1 else 0,
                        recompute=recompute,
                        sequence_parallel=tp > 1,
                    )
                    yield layout, stages


def place(
    shape: ModelShape,
    layout: TrainingLayout,
    segments: Sequence[Segment],
    stages: tuple[int, ...],
    efficiency: Efficiency,
) -> Placement | None:
    """Divide the layers over the stages of the segments; None when they do not fit."""
    machines = [segment.machine for segment, number in zip(segments, stages, strict=True) for _ in range(number)]
    per_layer = [_layer_seconds(shape, layout, machine, efficiency) for machine in machines]
    output = Kernels(machines[-1], efficiency, layout).output(shape)
    load = [0.0] * len(machines)
    load[-1] = output.forward + output.backward
    room = [_most_layers(shape, layout, machine, position) for position, machine in enumerate(machines)]
    layers = [0] * len(machines)
    for _ in range(shape.layers):
        open_stages = [position for position in range(len(machines)) if layers[position] < room[position]]
        if not open_stages:
            return None
        # Every stage has a layer before any has two.
        chosen = min(open_stages, key=lambda p: (layers[p] > 0, load[p] + per_layer[p]))
        layers[chosen] += 1
        load[chosen] += per_layer[chosen]
    if 0 in layers:
        return None
    block = layout.state.weights * layout.micro_batch * layout.sequence * shape.hidden
    # All replicas share a link between segments; a stage sends its activations once, divided over its tensor group.
    transfers = [layout.dp * block / segment.entry_bytes_per_s for segment in segments[1:]]
    pace = max(*load, *transfers)
    m = layout.micro_batches
    through = sum(load) + 2 * sum(transfers) + 2 * sum(segment.entry_delay_s for segment in segments[1:])
    reduced = max(
        data_parallel(shape, layout, Links(segment.machine, efficiency), efficiency, max(load), m)
        for segment in segments
    )
    bubble = through - max(load)
    step = m * pace + bubble + reduced + efficiency.step_s
    return Placement(
        layout,
        stages,
        tuple(layers),
        step,
        tuple(load),
        tuple(transfers),
        bubble,
        2 * m * layout.dp * block * len(transfers),
    )


def _layer_seconds(shape: ModelShape, layout: TrainingLayout, machine: Machine, efficiency: Efficiency) -> float:
    """One layer and micro batch, forward and backward, with what is exposed of its collectives."""
    layer = Kernels(machine, efficiency, layout).layer(shape, experts=bool(shape.expert_layers))
    share = shape.expert_layers / shape.layers
    exposed = per_micro_batch(shape, layout, Links(machine, efficiency), efficiency, layer, share)
    return layer.forward + layer.backward + layer.recomputed(layout) + exposed["tp"] + exposed["ep"]


def _most_layers(shape: ModelShape, layout: TrainingLayout, machine: Machine, position: int) -> int:
    """Layers that the memory of a stage's chip holds, counted as `memory.memory_of` does; the first stages keep more micro
    batches in flight, the last holds the logits."""
    kept, whole = layer_activations(shape, layout)
    in_flight = min(layout.pp - position, layout.micro_batches)
    weights = shape.attention_matrix_weights + shape.dense_ffn_weights
    if shape.experts:
        weights = shape.attention_matrix_weights + shape.shared_weights + shape.expert_weights
    state = layout.state
    whole_state = state.weights + state.gradients + state.beside
    each = (1 + STATE_RESERVE) * (whole_state + state.optimiser / (layout.dp if layout.zero else 1))
    per_layer = each * (weights / layout.tp + shape.small_weights) + kept * in_flight * (1 + FRAGMENTATION)
    # The first stage holds the input embedding, the last the output layer.
    ends = each * shape.embedding_weights / layout.tp if position in (0, layout.pp - 1) else 0.0
    # Whatever the number of layers: one of them whole while it is recomputed, and the logits.
    once = whole - kept if layout.recompute is not Recompute.NONE else 0.0
    once += logits_bytes(shape, layout) if position == layout.pp - 1 else 0.0
    left = HEADROOM * machine.memory_bytes - common_buffers(shape, layout) - ends - once * (1 + FRAGMENTATION)
    return max(0, int(left // per_layer))
