"""Services that follow their load: replicas beyond those that are wanted are parked, and come back when they are wanted.

A service with ``scaling`` has as many units as it may have replicas. Those that are wanted wait, run and restart like others; the
rest is `BLOCKED` without depending on anything: parked. `scaling.py` says how many are wanted.
"""

from __future__ import annotations

from collections.abc import Collection

from services.scheduler.core import binding
from services.scheduler.core.book import Draft
from services.scheduler.core.policy import RestartRules
from services.scheduler.core.replica_loads import FRESH_S, Replicas
from services.scheduler.core.scaling import Scaling
from services.scheduler.core.state import Job, JobState, Unit, UnitState


def follow(draft: Draft, replicas: Replicas, now_s: float, rules: RestartRules, content: Collection[str] = ()) -> None:
    """Start and stop replicas of the services that report loads. No more are started of those in ``content``: their replicas
    have just got what they need otherwise (shares.py).

    Those that wait are parked first, then those that run, the last first; the first that are parked come back first.
    """
    for job_id in sorted(replicas.scalers):
        job = draft.job(job_id)
        if job is None or job.spec.scaling is None or job.state not in {JobState.QUEUED, JobState.RUNNING}:
            continue
        units = list(draft.units_of(job))
        wanted = [unit for unit in units if unit.state is not UnitState.BLOCKED]
        loads = [
            load.value
            for unit in wanted
            if unit.state is UnitState.RUNNING
            and (load := replicas.loads.get(unit.key)) is not None
            and now_s - load.at_s <= FRESH_S
        ]
        count = replicas.scalers[job_id].step(job.spec.scaling, len(wanted), loads, len(wanted) - len(loads), now_s)
        if job_id in content:
            count = min(count, len(wanted))
        if count != len(wanted):
            _change(draft, job, units, count, _why(job.spec.scaling, len(wanted), count, loads), now_s, rules)


def _change(draft: Draft, job: Job, units: list[Unit], count: int, why: str, now_s: float, rules: RestartRules) -> None:
    parked = [unit for unit in units if unit.state is UnitState.BLOCKED]
    there = len(units) - len(parked)
    for unit in parked[: max(count - there, 0)]:
        binding.unpark(draft, unit.key, why, now_s)
    last_first = sorted(
        (unit for unit in units if unit.state is not UnitState.BLOCKED),
        key=lambda unit: (unit.state is UnitState.RUNNING, -unit.key.unit_index),
    )
    for unit in last_first[: max(there - count, 0)]:
        binding.park(draft, unit.key, why, now_s, rules)


def _why(rules: Scaling, before: int, count: int, loads: list[float]) -> str:
    mean = sum(loads) / len(loads)
    return (
        f"{count} instead of {before} replicas: {rules.metric} is {mean:g} per replica that reports, "
        f"{rules.target:g} is wanted"
    )
