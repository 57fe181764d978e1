"""The values that scheduling is about: jobs, their units, and the runs that execute them.

The state machines of jobs and runs stand in the contracts (job.proto, run.proto). Inside, two states more exist:

  unit  blocked -> queued -> running -> succeeded | failed | cancelled
        running -> recovering -> queued    its run was lost; the recovery plan (or its fall-back timer) is awaited
        running -> queued                  restart after a program failure, a recovery plan arrived, or preempted
        any of these <-> blocked           a replica that is not wanted is parked (replicas.py)
  job   queued <-> running -> ending -> succeeded | failed | cancelled
        ending: the outcome is certain, runs that were told to stop have not all reported
  run   active -> ended                    every domain reported
        active -> stopping -> ended        fenced or stopped; keeps its capacity until each domain confirms, or a timer

All times are seconds since 1970 UTC; 0 means "never".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import NamedTuple

from services.scheduler.core.scaling import Scaling


class JobKind(StrEnum):
    TASK = "task"
    ARRAY = "array"
    GANG = "gang"
    WORKFLOW = "workflow"
    SERVICE = "service"


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    ENDING = "ending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class UnitState(StrEnum):
    BLOCKED = "blocked"
    QUEUED = "queued"
    RUNNING = "running"
    RECOVERING = "recovering"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class RunState(StrEnum):
    ACTIVE = "active"
    STOPPING = "stopping"
    ENDED = "ended"


FINAL_JOB_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
FINAL_UNIT_STATES = frozenset({UnitState.SUCCEEDED, UnitState.FAILED, UnitState.CANCELLED})


class FailureKind(StrEnum):
    """Why a run ended without success (RunFailureKind of the contracts)."""

    PROGRAM = "program"
    NODE_LOST = "node_lost"
    TIME_LIMIT = "time_limit"
    OUT_OF_MEMORY = "out_of_memory"
    STOPPED = "stopped"
    REFUSED = "refused"
    NOT_STARTABLE = "not_startable"
    AGENT_RESTARTED = "agent_restarted"
    LEASE_EXPIRED = "lease_expired"


class UnitKey(NamedTuple):
    """Names one unit of one job."""

    job_id: str
    unit_index: int

    def __str__(self) -> str:
        return f"{self.job_id}.{self.unit_index}"

    @property
    def is_unit(self) -> bool:
        """False for the names under which runs that are told to stop hold their nodes: ``job_id`` is such a run's."""
        return self.unit_index >= 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a unit can resume: ``size_bytes`` 0 and ``domain_id`` "" mean unknown."""

    path: str
    step: int
    domain_id: str = ""
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """What placing a unit asks for. Units with equal demands are one equivalence class: judged once in a cycle.

    ``cpus``, ``memory_bytes`` and ``accelerators`` are per rank. ``domains`` empty means all. ``service_port`` other
    than 0 must be free on the node's address. ``checkpoint`` is where the unit would resume from.

    ``device_milli`` is the part of each accelerator in thousandths (1000: the whole device); ``resources`` are amounts of
    user-defined resources per rank. ``topology`` names a level of the nodes' topology ("rack", "spine", "island") that the
    ranks should share, must share with ``topology_required``. ``labels`` say what the unit is, ``avoid`` with which labels
    it may not share a node. ``profile`` names a row of the throughput matrix. ``data`` is where its input lies:
    (domain, bytes) pairs. ``traffic_bytes_per_s`` is what its ranks exchange if they are in different domains.
    """

    ranks: int
    cpus: float = 0.0
    memory_bytes: int = 0
    accelerators: int = 0
    accelerator_types: tuple[str, ...] = ()
    domains: frozenset[str] = frozenset()
    excluded_domains: frozenset[str] = frozenset()
    min_security_level: int = 0
    real_accelerators: bool = False
    cross_domain: bool = False
    service_port: int = 0
    excluded_nodes: frozenset[str] = frozenset()
    checkpoint_domain: str = ""
    checkpoint_bytes: int = 0
    device_milli: int = 1000
    resources: tuple[tuple[str, float], ...] = ()
    topology: str = ""
    topology_required: bool = False
    labels: frozenset[str] = frozenset()
    avoid: frozenset[str] = frozenset()
    profile: str = ""
    data: tuple[tuple[str, float], ...] = ()
    traffic_bytes_per_s: float = 0.0
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Demands are looked up all the time and have many fields.
        values = tuple(getattr(self, name) for name in _DEMAND_FIELDS)
        object.__setattr__(self, "_hash", hash(values))

    def __hash__(self) -> int:
        return self._hash


_DEMAND_FIELDS = tuple(item.name for item in fields(Demand) if item.compare)


@dataclass(frozen=True, slots=True)
class UnitSpec:
    """The unchanging part of a unit."""

    index: int
    demand: Demand
    name: str = ""
    command: tuple[str, ...] = ()
    depends_on: tuple[int, ...] = ()
    array_index: int | None = None


@dataclass(frozen=True, slots=True)
class WorkflowTask:
    """A task of a workflow; ``demand`` None takes the job's resources."""

    name: str
    command: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    ranks: int = 1
    demand: Demand | None = None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a tenant asks for. ``demand`` is that of one rank of the job (its ``ranks`` field is not used).

    A gang with ``min_ranks`` < ``max_ranks`` may be run with any number of ranks in between. ``steps`` is how many its program
    makes altogether, in the unit of its declared rates; ``deadline_s`` when it should be finished; 0: unknown, none.
    ``scaling`` says how many replicas of a service run; ``replicas`` is the number to begin with.
    ``least_milli`` and ``most_milli`` bound the part of an accelerator that a rank which shares it has; 0: it stays as it is.
    """

    kind: JobKind
    demand: Demand
    name: str = ""
    command: tuple[str, ...] = ()
    working_dir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 0
    array_size: int = 0
    replicas: int = 0
    service_port: int = 0
    tasks: tuple[WorkflowTask, ...] = ()
    max_restarts: int = 0
    priority: int = 0
    max_run_time_s: float = 0.0
    min_ranks: int = 0
    max_ranks: int = 0
    steps: int = 0
    deadline_s: float = 0.0
    scaling: Scaling | None = None
    least_milli: int = 0
    most_milli: int = 0

    @property
    def elastic(self) -> bool:
        """Whether the number of ranks may change."""
        return self.kind is JobKind.GANG and self.max_ranks > self.min_ranks > 0


@dataclass(frozen=True, slots=True)
class Job:
    """A job in the scheduler's book. ``outcome`` is set from ``ending`` on; the counters are over its units and runs."""

    job_id: str
    tenant_id: str
    spec: JobSpec
    units: tuple[UnitSpec, ...]
    submitted_at_s: float
    state: JobState = JobState.QUEUED
    outcome: JobState | None = None
    reason: str = ""
    succeeded_units: int = 0
    active_runs: int = 0
    open_runs: int = 0
    restarts: int = 0
    decisions: int = 0
    finished_at_s: float = 0.0
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class PlacedRank:
    """One rank and the place it got; ``local_rank`` counts the run's ranks on the node, ``device_milli`` is what it holds of
    each of its devices, in thousandths."""

    rank: int
    domain_id: str
    node_id: str
    local_rank: int
    devices: tuple[int, ...] = ()
    device_milli: int = 1000


@dataclass(frozen=True, slots=True)
class Nomination:
    """Nodes kept for a queued unit until the runs that are being taken off them have ended: ``waits_for`` are their ids.

    It is given up when one of them is still open at ``until_s``. The rest says why the unit goes there.
    """

    ranks: tuple[PlacedRank, ...]
    waits_for: frozenset[str]
    until_s: float
    decision_id: str = ""
    policy_version: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unit:
    """The changing part of a unit. ``epoch`` is that of its newest run, 0 before the first.

    ``attained_s`` is how much run time of former runs the checkpoint keeps with which the newest run began, ``kept_s`` how
    much of the newest run the newest checkpoint keeps. ``served_s`` is how long runs that have ended held nodes altogether.
    """

    key: UnitKey
    state: UnitState
    queued_at_s: float = 0.0
    epoch: int = 0
    failures: int = 0
    recoveries: int = 0
    not_before_s: float = 0.0
    recovery_due_s: float = 0.0
    checkpoint: Checkpoint | None = None
    excluded_nodes: frozenset[str] = frozenset()
    excluded_until_s: float = 0.0
    reason: str = ""
    attained_s: float = 0.0
    kept_s: float = 0.0
    nomination: Nomination | None = None
    served_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt to execute a unit. It holds the capacity of its ranks in ``open_domains``. ``preempted_for`` says for
    whom it was taken off (a unit, or "plan"); empty when it was not."""

    run_id: str
    key: UnitKey
    epoch: int
    tenant_id: str
    ranks: tuple[PlacedRank, ...]
    open_domains: frozenset[str]
    cpus: float
    memory_bytes: int
    assigned_at_s: float
    state: RunState = RunState.ACTIVE
    master_addr: str = ""
    master_port: int = 0
    service_port: int = 0
    started_at_s: float = 0.0
    stop_until_s: float = 0.0
    ended_at_s: float = 0.0
    reason: str = ""
    decision_id: str = ""
    preempted_for: str = ""

    @property
    def open_ranks(self) -> tuple[PlacedRank, ...]:
        """Ranks in domains that have not reported the end."""
        return tuple([rank for rank in self.ranks if rank.domain_id in self.open_domains])

    @property
    def accelerators(self) -> int:
        """Accelerators over all ranks."""
        return sum(len(rank.devices) for rank in self.ranks)

    @property
    def domains(self) -> tuple[str, ...]:
        """Domains that hold ranks, in rank order."""
        return tuple(dict.fromkeys(rank.domain_id for rank in self.ranks))


def run_id_of(key: UnitKey, epoch: int) -> str:
    """``<job_id>.<unit_index>.<epoch>``"""
    return f"{key.job_id}.{key.unit_index}.{epoch}"
