"""States that a later release kept: what an older gateway, which may take events after it wrote, takes them for. Pure.

States are derived from facts that only grow (`lifecycle`), so they are derived again: nothing that was told is lost, and the newer release
derives its own. A job that is over by its facts, in a way that is not known, has failed.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from services.gateway.lifecycle import JobState, RunState, UnitState

E = TypeVar("E", bound=StrEnum)


def _value(kind: type[E], text: str, instead: E) -> E:
    return kind(text) if text in set(kind) else instead


def job_state(
    text: str, *, finished_at: datetime | None, placed_at: datetime | None, queued_at: datetime | None
) -> JobState:
    """The state of a job."""
    if finished_at is not None:
        return _value(JobState, text, JobState.FAILED)
    going_on = JobState.RUNNING if placed_at else JobState.QUEUED if queued_at else JobState.SUBMITTED
    return _value(JobState, text, going_on)


def unit_state(text: str, *, placed_epoch: int, lost_epoch: int) -> UnitState:
    """The state of a unit."""
    return _value(UnitState, text, UnitState.RUNNING if placed_epoch > lost_epoch else UnitState.QUEUED)


def run_state(text: str, *, ended_at: datetime | None, started_at: datetime | None) -> RunState:
    """The state of a run."""
    going_on = RunState.STARTED if started_at else RunState.ASSIGNED
    return _value(RunState, text, RunState.FAILED if ended_at is not None else going_on)
