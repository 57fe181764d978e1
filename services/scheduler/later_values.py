"""What is kept under a value that a later release added: what an older release, which may lead after it wrote, takes it for. Pure.

The rule: nothing is lost, nothing runs twice, nothing begins that somebody forbade. A row that the older release does not change stays as
it is, so the newer one finds its own value again.

| kept | unknown value is taken for |
|---|---|
| state of a job | failed when it has an end; ending when it has an outcome; else running while runs of it are, or queued |
| outcome of a job | failed |
| state of a unit | running while a run of its epoch is active, else blocked: it waits, and is neither placed nor given up |
| state of a run | ended when it has an end, else active: it holds its nodes and is heard |
| state of a node | unknown, as where the graph tells it (`wire.node_state`) |
| kind of a mark | suspected, for one that names a node; domain unreachable, for one that names only a domain: no new work there. Others are left out |

Kinds of jobs have no such rule: what a job of an unknown kind runs is not known either. A release that adds one lets jobs of it in
(gateway) only when no scheduler of an earlier release is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from services.scheduler.core.fleet import Mark, MarkKey, MarkKind, NodeState
from services.scheduler.core.state import JobState, RunState, UnitState

E = TypeVar("E", bound=StrEnum)


def _value(kind: type[E], text: str, instead: E) -> E:
    try:
        return kind(text)
    except ValueError:
        return instead


def job_state(text: str, *, outcome: str | None, finished_at_s: float, active_runs: int) -> JobState:
    """The state of a job."""
    if finished_at_s > 0:
        return _value(JobState, text, JobState.FAILED)
    if outcome:
        return _value(JobState, text, JobState.ENDING)
    return _value(JobState, text, JobState.RUNNING if active_runs else JobState.QUEUED)


def job_outcome(text: str | None) -> JobState | None:
    """The outcome of a job, None while there is none."""
    return _value(JobState, text, JobState.FAILED) if text else None


def unit_state(text: str, *, active: bool) -> UnitState:
    """The state of a unit; ``active``: a run of its epoch is."""
    return _value(UnitState, text, UnitState.RUNNING if active else UnitState.BLOCKED)


def run_state(text: str, *, ended_at_s: float) -> RunState:
    """The state of a run."""
    return _value(RunState, text, RunState.ENDED if ended_at_s > 0 else RunState.ACTIVE)


def node_state(text: str) -> NodeState:
    """The state of a node."""
    return _value(NodeState, text, NodeState.UNKNOWN)


def marks_of(rows: Iterable[Iterable[str]]) -> dict[MarkKey, Mark]:
    """Marks by their keys, of rows (kind, subject, reason, domain, node)."""
    found: dict[MarkKey, Mark] = {}
    instead: dict[MarkKey, Mark] = {}
    for text, subject, reason, domain_id, node_id in rows:
        known = next((kind for kind in MarkKind if kind == text), None)
        if known is not None:
            found[known, subject] = Mark(known, subject, reason, domain_id, node_id)
        elif node_id:
            kind = MarkKind.NODE_SUSPECTED
            instead[kind, node_id] = Mark(kind, node_id, f"{text}: {reason}", domain_id, node_id)
        elif domain_id:
            kind = MarkKind.DOMAIN_UNREACHABLE
            instead[kind, domain_id] = Mark(kind, domain_id, f"{text}: {reason}", domain_id)
    return instead | found
