"""What the detector finds to have changed. Times are seconds on the clock of its caller."""

from __future__ import annotations

from dataclasses import dataclass

from services.failover.beliefs import Evidence, NodeState


@dataclass(frozen=True, slots=True)
class DomainAppeared:
    """A domain was heard for the first time."""

    domain_id: str
    lease_s: float


@dataclass(frozen=True, slots=True)
class NodeAppeared:
    """A node was named for the first time."""

    domain_id: str
    node_id: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class NodeBecameSuspect:
    """A node has been silent for the suspect time."""

    domain_id: str
    node_id: str
    last_heard_s: float
    silence_s: float


@dataclass(frozen=True, slots=True)
class NodeDied:
    """A node is taken as dead. ``surviving_runs`` run under its newer incarnation and are not lost."""

    domain_id: str
    node_id: str
    incarnation: int
    last_heard_s: float
    evidence: Evidence
    quarantined: bool
    failures_s: tuple[float, ...]
    surviving_runs: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeReturned:
    """A suspected or failed node beats again."""

    domain_id: str
    node_id: str
    incarnation: int
    previous: NodeState


@dataclass(frozen=True, slots=True)
class NodeForgotten:
    """A failed node has not been named for so long that it is no longer known. ``failed_for_s``: since its declaration."""

    domain_id: str
    node_id: str
    incarnation: int
    failed_for_s: float


@dataclass(frozen=True, slots=True)
class DomainWentSilent:
    """A domain's agent is silent."""

    domain_id: str
    last_heard_s: float


@dataclass(frozen=True, slots=True)
class DomainLeaseRanOut:
    """The agent of a silent domain has certainly ended its runs by now."""

    domain_id: str
    last_heard_s: float
    lease_s: float


@dataclass(frozen=True, slots=True)
class DomainLeaseChanged:
    """A domain's agent names another lease than before."""

    domain_id: str
    lease_s: float


@dataclass(frozen=True, slots=True)
class DomainForgotten:
    """A domain's agent has been silent for so long that neither it nor its nodes are known any more."""

    domain_id: str
    silent_for_s: float


@dataclass(frozen=True, slots=True)
class DomainReturned:
    """A silent domain's agent is heard again."""

    domain_id: str


Transition = (
    DomainAppeared
    | NodeAppeared
    | NodeBecameSuspect
    | NodeDied
    | NodeReturned
    | NodeForgotten
    | DomainWentSilent
    | DomainLeaseRanOut
    | DomainLeaseChanged
    | DomainForgotten
    | DomainReturned
)
