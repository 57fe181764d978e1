"""What a stopped job keeps, and what it costs to start it again.

Progress is counted in the job's own unit: its ``work`` units where it has a profile, else seconds of undisturbed run. A
checkpoint is written at every so much progress (as trainers do, every N steps), counted from the job's first start; so the
grid does not move when the job is resumed, and a slower chip writes less often in time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from meridian.errors import InvalidArgumentError
from simulation.checks import at_least_zero
from simulation.model import TraceJob

SMALL_JOB_ACCELERATORS = 1
MIDDLE_JOB_ACCELERATORS = 8
SMALL_RESTART_S, MIDDLE_RESTART_S, LARGE_RESTART_S = 7.0, 30.0, 60.0


def default_restart_s(accelerators: float) -> float:
    """Checkpoint and cold start by size of the job, seconds: 7 up to 1 accelerator, 30 up to 8, 60 beyond.

    The figures of the Helios simulator (Hu et al., SC'21, public artifact), themselves an optimistic reading of the 62 s
    that Tiresias measured on average (Gu et al., NSDI'19, 5.2.4).
    """
    if accelerators <= SMALL_JOB_ACCELERATORS:
        return SMALL_RESTART_S
    return MIDDLE_RESTART_S if accelerators <= MIDDLE_JOB_ACCELERATORS else LARGE_RESTART_S


def transfer_restart_s(fixed_s: float, size_bytes: float, bandwidth_bytes_per_s: float) -> float:
    """A fixed part and the time to read a checkpoint of ``size_bytes``, seconds; infinite without bandwidth."""
    at_least_zero("fixed_s", fixed_s)
    at_least_zero("size_bytes", size_bytes)
    at_least_zero("bandwidth_bytes_per_s", bandwidth_bytes_per_s)
    if size_bytes == 0:
        return fixed_s
    return fixed_s + size_bytes / bandwidth_bytes_per_s if bandwidth_bytes_per_s > 0 else math.inf


def kept_work(done_work: float, interval_work: float, phase_work: float | None = None) -> float:
    """Progress at the last checkpoint at or before ``done_work``: the beginning, or ``phase + k x interval``.

    ``phase_work`` is the progress at the first checkpoint, one interval by default. An interval of 0 keeps everything, an
    infinite one nothing but the checkpoint at the phase, if that is finite. A checkpoint missed only by rounding (1 in
    10^9 of the interval) counts as reached.
    """
    at_least_zero("done_work", done_work)
    for name, value in (("interval_work", interval_work), ("phase_work", 0.0 if phase_work is None else phase_work)):
        if not value >= 0:
            raise InvalidArgumentError(f"{name}: {value} is not a number of 0 or more")
    first = interval_work if phase_work is None else phase_work
    if math.isinf(interval_work):
        return first if done_work >= first else 0.0
    if interval_work == 0:
        return done_work if done_work >= first else 0.0
    steps = math.floor((done_work - first) / interval_work + 1e-9)
    return min(first + steps * interval_work, done_work) if steps >= 0 else 0.0


@dataclass(frozen=True, slots=True)
class Resumption:
    """A job starts again from ``kept_work`` and makes progress from ``working_from_s`` on; ``lost_work`` is done twice."""

    kept_work: float
    lost_work: float
    restart_s: float
    working_from_s: float


@dataclass(slots=True)
class RestartTally:
    """What restarts cost a job so far: how many, work done again (its unit), and seconds of restarting."""

    restarts: int = 0
    lost_work: float = 0.0
    restart_s: float = 0.0


@dataclass(slots=True)
class Checkpoints:
    """Checkpoint rules of a simulation, and their accounts by job.

    ``default_interval_s`` holds for a job that names none (infinite: no checkpoints). ``phase_s`` is the undisturbed run
    time to the first checkpoint, one interval when None. The restart cost is the job's own, else by ``checkpoint_bytes``
    and ``bandwidth_bytes_per_s`` when both are given (with ``fixed_s``), else `default_restart_s` of its accelerators.
    """

    default_interval_s: float = math.inf
    phase_s: float | None = None
    fixed_s: float = 0.0
    checkpoint_bytes: float | None = None
    bandwidth_bytes_per_s: float | None = None
    tallies: dict[str, RestartTally] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.default_interval_s >= 0:
            raise InvalidArgumentError(f"default_interval_s: {self.default_interval_s} is not a number of 0 or more")
        if self.phase_s is not None and not self.phase_s >= 0:
            raise InvalidArgumentError(f"phase_s: {self.phase_s} is not a number of 0 or more")
        if (self.checkpoint_bytes is None) != (self.bandwidth_bytes_per_s is None):
            raise InvalidArgumentError("checkpoint_bytes, bandwidth_bytes_per_s: both or neither")
        if self.checkpoint_bytes is not None and self.bandwidth_bytes_per_s is not None:
            transfer_restart_s(self.fixed_s, self.checkpoint_bytes, self.bandwidth_bytes_per_s)

    def kept(self, job: TraceJob, done_work: float) -> float:
        """Progress that a job keeps when it fails after ``done_work``, both in its own unit."""
        interval_s = self.default_interval_s if math.isnan(job.checkpoint_interval_s) else job.checkpoint_interval_s
        if not interval_s >= 0:
            raise InvalidArgumentError(f"checkpoint_interval_s: {interval_s} of job {job.job_id!r} is below 0")
        unit = _work_per_s(job)
        return kept_work(done_work, interval_s * unit, None if self.phase_s is None else self.phase_s * unit)

    def restart_s(self, job: TraceJob) -> float:
        """Seconds from the start of a resumed job to its first new progress."""
        if not math.isnan(job.restart_cost_s):
            at_least_zero(f"restart_cost_s of job {job.job_id!r}", job.restart_cost_s)
            return job.restart_cost_s
        if self.checkpoint_bytes is not None and self.bandwidth_bytes_per_s is not None:
            return transfer_restart_s(self.fixed_s, self.checkpoint_bytes, self.bandwidth_bytes_per_s)
        return default_restart_s(job.devices)

    def resume(self, job: TraceJob, done_work: float, now_s: float, *, saved: bool = False) -> Resumption:
        """Start a stopped job again at ``now_s``, and enter what that costs into its tally.

        ``done_work`` is its progress when it stopped. ``saved`` says that it wrote a checkpoint on being stopped (a
        preemption with notice): then nothing is lost.
        """
        at_least_zero("done_work", done_work)
        kept = done_work if saved else self.kept(job, done_work)
        cost_s = self.restart_s(job)
        tally = self.tallies.setdefault(job.job_id, RestartTally())
        tally.restarts += 1
        tally.lost_work += done_work - kept
        tally.restart_s += cost_s
        return Resumption(kept, done_work - kept, cost_s, now_s + cost_s)


def _work_per_s(job: TraceJob) -> float:
    """Progress units in a second of undisturbed run on the reference chip."""
    if job.work <= 0:
        return 1.0
    if not 0 < job.duration_s < math.inf:
        raise InvalidArgumentError(f"duration_s: {job.duration_s} of job {job.job_id!r}, which has work to do")
    return job.work / job.duration_s
