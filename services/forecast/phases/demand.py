"""What each phase of a run asks for, from its schedule alone: the batch size is ramped up, the loss changes nothing.

A batch of B sequences keeps at most B / micro_batch data-parallel replicas busy; until the ramp is over, a run on more
replicas leaves some idle. Ramp as in Megatron-LM (``--rampup-batch-size start increment samples``): the batch grows by
``increment`` after each equal share of ``samples``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MOST_GROWTHS = 10_000
"""Steps of a ramp at most; that of BLOOM-176B has 116."""


class InvalidScheduleError(ValueError):
    """The schedule is impossible; the message names the field."""


@dataclass(frozen=True, slots=True)
class BatchRamp:
    """A batch that grows from ``start`` by ``increment`` sequences to the full one over ``samples`` sequences."""

    start: int
    increment: int
    samples: int


@dataclass(frozen=True, slots=True)
class StageDemand:
    """One stretch of constant batch size.

    ``first_step`` to before ``end_step``; ``samples`` sequences; ``flops`` of all of them; ``busy_replicas`` the most
    data-parallel replicas that have work in a step, ``busy_share`` those over the run's replicas (1 = all).
    """

    first_step: int
    end_step: int
    global_batch: int
    samples: int
    flops: float
    busy_replicas: int
    busy_share: float


def stages(
    total_samples: int,
    global_batch: int,
    flops_per_sample: float,
    *,
    replicas: int,
    micro_batch: int = 1,
    ramp: BatchRamp | None = None,
) -> list[StageDemand]:
    """The stages of a run of ``total_samples`` sequences, in order; the last step of a stage is always a whole one.

    Raises InvalidScheduleError where a size is not positive or the ramp does not reach ``global_batch``.
    """
    for name, value in (
        ("total_samples", total_samples),
        ("global_batch", global_batch),
        ("flops_per_sample", flops_per_sample),
        ("replicas", replicas),
        ("micro_batch", micro_batch),
    ):
        if not value > 0 or not math.isfinite(value):
            raise InvalidScheduleError(f"{name}: must be positive, not {value}")
    plan = [*(() if ramp is None else ramped(ramp, global_batch)), (global_batch, total_samples)]
    result: list[StageDemand] = []
    step = done = 0
    for batch, until in plan:
        steps = max(0, -(-(min(until, total_samples) - done) // batch))
        if steps:
            busy = min(replicas, max(1, batch // micro_batch))
            samples = steps * batch
            result.append(
                StageDemand(step, step + steps, batch, samples, samples * flops_per_sample, busy, busy / replicas)
            )
            step, done = step + steps, done + samples
    return result


def ramped(ramp: BatchRamp, global_batch: int) -> list[tuple[int, int]]:
    """(batch, samples until which it lasts) of each step of the ramp, without the full batch behind it.

    InvalidScheduleError where a size is not positive, or the ramp does not reach ``global_batch`` or has too many steps.
    """
    for name, value in (("start", ramp.start), ("increment", ramp.increment), ("samples", ramp.samples)):
        if value <= 0:
            raise InvalidScheduleError(f"ramp.{name}: must be positive, not {value}")
    if ramp.start > global_batch or (global_batch - ramp.start) % ramp.increment:
        raise InvalidScheduleError(
            f"ramp.increment: {ramp.start} does not grow to {global_batch} in steps of {ramp.increment}"
        )
    growths = (global_batch - ramp.start) // ramp.increment
    if growths > MOST_GROWTHS:
        raise InvalidScheduleError(f"ramp.increment: the batch grows {growths} times, at most {MOST_GROWTHS}")
    sizes = [ramp.start + number * ramp.increment for number in range(growths)]
    ends = [round((number + 1) * ramp.samples / growths) for number in range(growths)]
    return list(zip(sizes, ends, strict=True))
