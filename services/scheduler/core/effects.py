"""What the world is told when the book changes: values that the live service turns into events, the simulator into acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.scheduler.core.state import Checkpoint, Job, JobState, Run, UnitKey, UnitSpec


@dataclass(frozen=True, slots=True)
class Queued:
    """A job, or with ``unit_index`` one unit of it, waits in the queue."""

    job: Job
    reason: str = ""
    unit_index: int | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """A unit got its nodes."""

    job: Job
    run: Run
    checkpoint: Checkpoint | None
    policy_version: str
    reason: str


@dataclass(frozen=True, slots=True)
class Start:
    """The agent of ``domain_id`` is to start its ranks of ``run``."""

    job: Job
    unit: UnitSpec
    run: Run
    domain_id: str
    checkpoint: Checkpoint | None


@dataclass(frozen=True, slots=True)
class Stop:
    """The agent of ``domain_id`` is to end the run and every older one of the unit."""

    job: Job
    run: Run
    domain_id: str
    reason: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Adjust:
    """The agents of a run are to tell its ranks that they have other parts of their devices."""

    job: Job
    run: Run


@dataclass(frozen=True, slots=True)
class Wake:
    """The agent of ``domain_id`` is to wake nodes: a unit of the job waits for them."""

    job: Job
    key: UnitKey
    domain_id: str
    node_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Sleep:
    """The agent of ``domain_id`` is to put nodes to sleep: nobody needs them."""

    domain_id: str
    node_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Preempted:
    """A run lost its nodes; to ``beneficiary`` when a unit took them."""

    job: Job
    run: Run
    reason: str
    beneficiary: UnitKey | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The job reached its final state."""

    job: Job
    outcome: JobState
    reason: str


Effect = Queued | Placed | Start | Stop | Adjust | Wake | Sleep | Preempted | Finished


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision as it is kept for people: ``explanation`` is a JSON object."""

    decision_id: str
    key: UnitKey
    kind: str
    at_s: float
    policy_version: str
    explanation: Mapping[str, Any]
