"""What a training job declares of its schedule, and what its stages and phases ask for by it.

Steps count every update of the weights, also those with a smaller batch while the batch is being ramped up. Pauses for evaluations
and checkpoints ask for the same accelerators as training, but carry out no FLOPs of it; their time is said beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.forecast.phases.curve import Phase
from services.forecast.phases.demand import BatchRamp, StageDemand, ramped, stages
from services.forecast.phases.detector import Schedule


@dataclass(frozen=True, slots=True)
class TrainingSchedule:
    """The declared schedule of a training job; zero means unknown (pauses: none).

    ``flops_per_sample`` of one sequence, ``replicas`` data-parallel, ``accelerators`` of the whole job.
    """

    steps: int
    global_batch: int
    flops_per_sample: float
    replicas: int = 1
    accelerators: float = 0.0
    warm_up_steps: int = 0
    ramp: BatchRamp | None = None
    evaluate_every_steps: int = 0
    evaluation_s: float = 0.0
    checkpoint_every_s: float = 0.0
    checkpoint_s: float = 0.0

    @property
    def is_known(self) -> bool:
        """Whether stages can be told."""
        return self.steps > 0 and self.global_batch > 0

    def for_detector(self) -> Schedule:
        """What the detector of phases may know of it."""
        warm_up = max(self.warm_up_steps, self._ramp_end()) or None
        return Schedule(float(self.steps) if self.steps else None, None if warm_up is None else float(warm_up))

    def stages(self) -> list[StageDemand]:
        """The stretches of constant batch size, ending with the declared steps; InvalidScheduleError names a wrong field."""
        if not self.is_known:
            return []
        plan = [] if self.ramp is None else ramped(self.ramp, self.global_batch)
        left, samples = self.steps, 0
        for batch, until in plan:
            steps = min(left, max(0, -(-(until - samples) // batch)))
            left, samples = left - steps, samples + steps * batch
        return stages(
            samples + left * self.global_batch,
            self.global_batch,
            self.flops_per_sample or 1.0,
            replicas=self.replicas,
            ramp=self.ramp,
        )

    def _ramp_end(self) -> int:
        """The first step with the full batch, where there is a ramp."""
        if self.ramp is None or not self.is_known:
            return 0
        return next(
            (stage.first_step for stage in self.stages() if stage.global_batch == self.global_batch), self.steps
        )


@dataclass(frozen=True, slots=True)
class PhaseStretch:
    """A phase from ``first_step`` to before ``end_step``; ``phase`` None is unknown (told) or still to come."""

    phase: Phase | None
    first_step: int
    end_step: int
    told: bool


@dataclass(frozen=True, slots=True)
class PhaseNeed:
    """What the stretch of a phase asks for.

    ``accelerators`` held; ``busy_accelerators`` the most that have work at its end, ``mean_busy_share`` over its steps;
    ``training_s`` without, ``evaluation_s`` and ``checkpoint_s`` of pauses: None where the time of a step is not known.
    """

    stretch: PhaseStretch
    stages: tuple[StageDemand, ...]
    flops: float | None
    accelerators: float
    busy_accelerators: float
    mean_busy_share: float
    evaluations: int
    training_s: float | None
    evaluation_s: float
    checkpoint_s: float | None


def stretches(told: Sequence[tuple[int, Phase | None]], steps: int, warm_up_until: int, now: int) -> list[PhaseStretch]:
    """The phases told up to step ``now``, and what the schedule says of the rest: a declared warm-up, then one stretch.

    ``told`` are (step from which on, phase) in the order of the steps.
    """
    found: list[PhaseStretch] = []
    for place, (first, phase) in enumerate(told):
        end = told[place + 1][0] if place + 1 < len(told) else max(now, first)
        if end > first:
            found.append(PhaseStretch(phase, first, end, told=True))
    begin = max(now, found[-1].end_step if found else 0)
    if begin < min(warm_up_until, steps):
        found.append(PhaseStretch(Phase.WARM_UP, begin, min(warm_up_until, steps), told=False))
        begin = min(warm_up_until, steps)
    if begin < steps:
        latest = told[-1][1] if told and told[-1][1] is not Phase.WARM_UP else None
        found.append(PhaseStretch(latest, begin, steps, told=False))
    return found


def needs(
    schedule: TrainingSchedule, found: Sequence[PhaseStretch], step_s: dict[Phase | None, float]
) -> list[PhaseNeed]:
    """What each stretch asks for by the schedule; ``step_s`` are seconds of a step by phase, without pauses."""
    plan = schedule.stages()
    return [_need(schedule, plan, stretch, step_s.get(stretch.phase)) for stretch in found]


def _need(
    schedule: TrainingSchedule, plan: Sequence[StageDemand], stretch: PhaseStretch, step_s: float | None
) -> PhaseNeed:
    parts = []
    for stage in plan:
        first, end = max(stage.first_step, stretch.first_step), min(stage.end_step, stretch.end_step)
        if first < end:
            share = (end - first) / (stage.end_step - stage.first_step)
            samples = (end - first) * stage.global_batch
            parts.append(
                StageDemand(
                    first, end, stage.global_batch, samples, stage.flops * share, stage.busy_replicas, stage.busy_share
                )
            )
    steps = sum(part.end_step - part.first_step for part in parts)
    busy = sum(part.busy_share * (part.end_step - part.first_step) for part in parts) / steps if steps else 1.0
    every = schedule.evaluate_every_steps
    evaluations = (stretch.end_step // every - stretch.first_step // every) if every else 0
    training_s = None if step_s is None else step_s * (stretch.end_step - stretch.first_step)
    checkpoints_s: float | None = 0.0
    if schedule.checkpoint_every_s and schedule.checkpoint_s:
        checkpoints_s = None if training_s is None else training_s / schedule.checkpoint_every_s * schedule.checkpoint_s
    return PhaseNeed(
        stretch=stretch,
        stages=tuple(parts),
        flops=sum(part.flops for part in parts) if schedule.flops_per_sample and parts else None,
        accelerators=schedule.accelerators,
        busy_accelerators=schedule.accelerators * (parts[-1].busy_share if parts else 1.0),
        mean_busy_share=busy,
        evaluations=evaluations,
        training_s=training_s,
        evaluation_s=evaluations * schedule.evaluation_s,
        checkpoint_s=checkpoints_s,
    )
