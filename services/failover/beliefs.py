"""What agents say, what is believed of nodes and domains, and when silence becomes a declaration.

All times are seconds on one monotonic clock, that of the detector's caller.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from services.failover.backlog import BacklogFilter


class NodeState(StrEnum):
    """What is believed of a node."""

    ALIVE = "alive"
    SUSPECTED = "suspected"
    FAILED = "failed"


class DomainState(StrEnum):
    """What is believed of a domain's agent."""

    REACHABLE = "reachable"
    UNREACHABLE = "unreachable"


def node_state_of(text: str) -> NodeState:
    """The state that a node is kept in. One that a later release added is alive: it is judged by its beats, like any other."""
    return NodeState(text) if text in set(NodeState) else NodeState.ALIVE


def domain_state_of(text: str, *, lease_ran_out: bool) -> DomainState:
    """The state that a domain is kept in. One that a later release added is unreachable where its lease had run out, as its runs were
    planned by that; else reachable, and judged by whether it is heard."""
    if text in set(DomainState):
        return DomainState(text)
    return DomainState.UNREACHABLE if lease_ran_out else DomainState.REACHABLE


class Evidence(StrEnum):
    """Why a node was declared failed."""

    SILENT = "silent"
    EXITED = "exited"
    RESTARTED = "restarted"
    AGENT_RESTARTED = "agent_restarted"
    NOT_LISTED = "not_listed"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When silence becomes a declaration."""

    suspect_after_s: float = 1.0
    failed_after_s: float = 2.0
    exit_confirmation_s: float = 0.3
    unreachable_after_s: float = 3.0
    lease_margin_s: float = 2.0
    # A summary older than this says nothing about the nodes any more; at least three intervals of the agent, and at most so long that
    # no node is dead by its agent's silence alone (failed_after_s - suspect_after_s / 2).
    voice_s: float = 0.6
    # After the start of this detector, and of an agent, before anything is declared.
    start_grace_s: float = 5.0
    agent_grace_s: float = 3.0
    # Own tick later than this: the loop was stalled.
    stall_s: float = 0.5
    # Domains that fell silent within this time of each other fell silent together.
    together_s: float = 1.0
    hold_s: float = 30.0
    # A failed node that beats again under the same incarnation has returned after this time.
    steady_s: float = 2.0
    flap_failures: int = 3
    flap_window_s: float = 600.0
    quarantine_s: float = 60.0
    backlog_s: float = 5.0
    # A failed node that its agent does not name is forgotten after this time.
    forget_after_s: float = 30 * 86_400.0
    # A domain whose agent has been silent for this time has left the network.
    forget_domain_after_s: float = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Beat:
    """What an agent says about one node."""

    node_id: str
    incarnation: int
    age_s: float
    running: bool = True
    exited: bool = False
    run_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """One heartbeat of an agent. ``sent_at_s`` is on the agent's clock and serves only to recognise backlog."""

    domain_id: str
    agent_id: str
    incarnation: int
    sequence: int
    sent_at_s: float
    interval_s: float
    lease_s: float
    beats: tuple[Beat, ...]


@dataclass(slots=True)
class NodeView:
    """What is known of one node."""

    node_id: str
    domain_id: str
    incarnation: int
    heard_at_s: float
    state: NodeState = NodeState.ALIVE
    reported_at_s: float | None = None
    exited_since_s: float | None = None
    exited_until_s: float | None = None
    failed_incarnation: int | None = None
    failed_at_s: float = -inf
    named_at_s: float = -inf
    steady_since_s: float | None = None
    failures_s: list[float] = field(default_factory=list)
    quarantined: bool = False
    run_ids: tuple[str, ...] = ()

    def silence_s(self, now_s: float) -> float:
        """Time since the node was last heard by its agent, as far as is known."""
        return max(0.0, now_s - self.heard_at_s)


@dataclass(slots=True)
class DomainView:
    """What is known of one domain's agent."""

    domain_id: str
    heard_at_s: float
    state: DomainState = DomainState.REACHABLE
    incarnation: int = 0
    sequence: int = -1
    interval_s: float = 0.2
    lease_s: float = 10.0
    lease_ran_out: bool = False
    # Since when it is unreachable.
    silent_since_s: float = inf
    judge_from_s: float = 0.0
    backlog: BacklogFilter = field(default_factory=BacklogFilter)
    nodes: dict[str, NodeView] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node as an earlier detector left it."""

    node_id: str
    domain_id: str
    incarnation: int
    state: NodeState
    quarantined: bool = False
    # Seconds before the start of this detector: its failures, and since when it is in its state.
    failed_ago_s: tuple[float, ...] = ()
    changed_ago_s: float = 0.0


@dataclass(frozen=True, slots=True)
class KnownDomain:
    """A domain as an earlier detector left it."""

    domain_id: str
    state: DomainState
    lease_s: float
    lease_ran_out: bool = False
    # Seconds before the start of this detector since when it is in its state.
    changed_ago_s: float = 0.0
