"""Layout search: the best layouts of a model on a pool of equal chips.

1. Enumerate the group sizes that divide heads, experts, sequence and batch, whether or not layers fill the stages evenly;
   tensor groups stay within a node.
2. Drop what does not fit the memory; of each group sizes keep the least recomputation that fits.
3. Estimate the rest, best first. Layouts that no bound excludes are all tried: no local search, so no local optimum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from meridian.errors import FieldError, InvalidArgumentError
from services.forecast.cost_model.efficiency import Efficiency, fitted
from services.forecast.cost_model.estimate import Estimate, estimate
from services.forecast.cost_model.layout import Recompute, TrainingLayout, check, divides_heads, places_beside
from services.forecast.cost_model.machine import Machine
from services.forecast.cost_model.memory import memory_of
from services.forecast.cost_model.shapes import ModelShape
from services.forecast.cost_model.step_time import step_time

# Share of the memory that a layout may take by estimate: below it nine of ten fit (error of the estimate, memory.py).
HEADROOM = 0.88
_MICRO_BATCHES = (1, 2, 4, 8, 16)
# Sequences from which context parallelism is tried.
_LONG = 16_384
_RECOMPUTATION = (
    (Recompute.NONE, 1.0),
    (Recompute.FULL, 0.25),
    (Recompute.FULL, 0.5),
    (Recompute.FULL, 1.0),
)


@dataclass(frozen=True, slots=True)
class Work:
    """What is trained in a step."""

    sequence: int
    global_batch: int
    precision: str = "bf16"


@dataclass(frozen=True, slots=True)
class Found:
    """The best layouts, best first; how many were possible, and how many of those fit."""

    best: tuple[tuple[TrainingLayout, Estimate], ...]
    possible: int
    fitting: int


def best_layouts(
    shape: ModelShape,
    work: Work,
    machine: Machine,
    accelerators: int,
    *,
    count: int = 5,
    efficiency: Efficiency | None = None,
) -> Found:
    """The ``count`` fastest layouts that use all ``accelerators`` and fit, no two of which differ in chunks alone; none when
    nothing fits.

    InvalidArgumentError when no layout is possible at all.
    """
    parameters = efficiency or fitted()
    possible = 0
    timed: list[tuple[float, TrainingLayout]] = []
    for sizes in _group_sizes(shape, work, machine, accelerators):
        possible += 1
        layout = _least_recomputed(shape, sizes, machine)
        if layout is not None:
            timed.append((step_time(shape, layout, machine, parameters).total_s, layout))
    if not possible:
        detail = f"no layout divides the model and a batch of {work.global_batch} over {accelerators} accelerators"
        raise InvalidArgumentError(f"accelerators: {detail}", errors=(FieldError("/accelerators", detail),))
    timed.sort(key=lambda item: item[0])
    # Of layouts that differ in their chunks alone the fastest stands for the others.
    different: dict[TrainingLayout, TrainingLayout] = {}
    for _, layout in timed:
        different.setdefault(replace(layout, vpp=1, recompute=Recompute.NONE, recompute_share=1.0), layout)
    best = tuple((each, estimate(shape, each, machine, parameters)) for each in list(different.values())[:count])
    return Found(best, possible, len(timed))


def _least_recomputed(shape: ModelShape, layout: TrainingLayout, machine: Machine) -> TrainingLayout | None:
    for way, share in _RECOMPUTATION:
        candidate = replace(layout, recompute=way, recompute_share=share)
        if memory_of(shape, candidate).total <= HEADROOM * machine.memory_bytes:
            return candidate
    return None


def _group_sizes(shape: ModelShape, work: Work, machine: Machine, accelerators: int) -> Iterator[TrainingLayout]:
    for tp in _powers(min(machine.node_size, shape.heads, 16)):
        if not divides_heads(shape, tp) or accelerators % tp:
            continue
        for cp in _powers(max(1, work.sequence // _LONG * 2)):
            # A ring balances causal attention by two parts of the sequence for each chip.
            if accelerators % (tp * cp) or (cp > 1 and work.sequence % (2 * cp)):
                continue
            for pp in divisors(accelerators // (tp * cp)):
                if pp <= shape.layers:
                    dp = accelerators // (tp * cp * pp)
                    yield from _with_batches(
                        shape,
                        work,
                        TrainingLayout(
                            sequence=work.sequence,
                            global_batch=work.global_batch,
                            precision=work.precision,
                            tp=tp,
                            cp=cp,
                            pp=pp,
                            dp=dp,
                            sequence_parallel=tp > 1,
                            fused_loss=machine.compiled,
                        ),
                    )


def _with_batches(shape: ModelShape, work: Work, base: TrainingLayout) -> Iterator[TrainingLayout]:
    if work.global_batch % base.dp:
        return
    per_replica = work.global_batch // base.dp
    groups = math.gcd(shape.experts, base.tp * base.replicas) if shape.experts else 1
    experts = [size for size in _powers(groups) if groups % size == 0]
    stages = [1] if base.replicas == 1 else ([1, 3] if base.pp == 1 else [1])
    for micro in _MICRO_BATCHES:
        if per_replica % micro:
            continue
        for chunks in _chunks(shape, base.pp):
            if chunks > 1 and (per_replica // micro) % base.pp:
                continue
            for ep in experts:
                for zero in stages if base.replicas > 1 else [0]:
                    layout = replace(base, micro_batch=micro, vpp=chunks, ep=ep, zero=zero)
                    check(shape, layout)
                    yield layout


def _chunks(shape: ModelShape, stages: int) -> list[int]:
    """Numbers of chunks per stage: those that divide the layers evenly, and one."""
    if stages == 1:
        return [1]
    most = math.ceil((shape.layers + shape.predicting_layers) / stages)
    return [n for n in range(1, most + 1) if n == 1 or places_beside(shape, stages * n) is not None]


def _powers(limit: int) -> list[int]:
    return [2**n for n in range(limit.bit_length()) if 2**n <= limit]


def divisors(number: int) -> list[int]:
    """All divisors, smallest first."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return [*small, *(number // n for n in reversed(small) if n * n != number)]
