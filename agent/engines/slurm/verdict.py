"""What a run's end in Slurm means for Meridian. Pure."""

from __future__ import annotations

from agent.engines.base import FailureKind
from agent.engines.local.gang import Cause
from agent.engines.slurm.words import QueuedJob

_TAKEN_AWAY = {
    "CANCELLED": "was cancelled in Slurm",
    "PREEMPTED": "was preempted by Slurm",
    "NODE_FAIL": "lost a node",
    "BOOT_FAIL": "lost a node while it booted",
    "REVOKED": "was revoked by Slurm",
    "LAUNCH_FAILED": "could not be launched on a node",
    "RECONFIG_FAIL": "lost a node while it was set up anew",
}


def cause_of(number: int, job: QueuedJob | None, limit_s: float) -> Cause | None:
    """Why the run of an allocation that has ended does not succeed, whatever its ranks say; None: they decide.

    Slurm ends a job's processes with ``SIGTERM`` first, and a program may answer that with any exit code: so its own word stands
    above theirs. ``job`` None: it is not remembered any more (``MinJobAge``). An allocation that was taken away costs the tenant
    no restart (``NODE_LOST``), one whose time is over does as the run's own limit (``limit_s``) does.
    """
    if job is None:
        return None
    if job.state in {"TIMEOUT", "DEADLINE"}:
        declared = f", the run's own is {limit_s:g} s" if limit_s else ", the run declared none"
        return Cause(FailureKind.TIME_LIMIT, f"Slurm's time limit of job {number} is over{declared}")
    if job.state == "OUT_OF_MEMORY":
        return Cause(FailureKind.OUT_OF_MEMORY, f"Slurm ended job {number}: out of memory")
    if job.state in _TAKEN_AWAY:
        by = f" ({job.reason})" if job.reason else ""
        return Cause(FailureKind.NODE_LOST, f"Slurm's job {number} {_TAKEN_AWAY[job.state]}{by}")
    return None


def cause_of_silence(number: int, job: QueuedJob | None, said: str, *, began: bool) -> Cause:
    """Why a run failed of which ranks never told their end; ``said`` is what the batch step printed. One of which no step ``began``
    though Slurm ran the job to its end is not to be had here again and again."""
    state = job.state if job is not None else "not known to Slurm any more"
    tail = f": {said}" if said else ""
    if not began and job is not None:
        return Cause(FailureKind.NOT_STARTABLE, f"Slurm's job {number} is {state}, and no step of it began{tail}")
    return Cause(FailureKind.NODE_LOST, f"Slurm's job {number} is {state}, and ranks did not tell how they ended{tail}")
