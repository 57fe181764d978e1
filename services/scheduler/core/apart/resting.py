"""Nodes of a domain that sleep, as its decider sees them: it alone puts its nodes to sleep and has them woken.

1. A node that sleeps takes no work by itself (`as_if_nobody_wakes`), so a unit for which there is room elsewhere wakes nobody.
2. What there would be besides if all sleeping nodes were woken is told to shards apart from the rest (`Sleepers`).
3. A unit that a shard wants even so is placed on all nodes, asleep or not (`place_waking`). Its grant keeps them while they wake.
4. Idle nodes are told to sleep by the decider's own policy (sleeping.py), but for those that a class could use of which a shard said
   that units wait.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from services.scheduler.core.apart.messages import Asleep, GrantName
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.explaining.explanation import Explanation
from services.scheduler.core.fleet import Fleet, NodeState
from services.scheduler.core.policy import Policy
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.two_level import Assignment, Tally, place_in_domain, summarise


@dataclass(frozen=True, slots=True)
class Woken:
    """The agent of ``domain_id`` is to wake nodes: the unit of a grant waits for them."""

    domain_id: str
    name: GrantName
    tenant_id: str
    node_ids: tuple[str, ...]

    @property
    def reason(self) -> str:
        """Why, for the agent's log."""
        return f"{self.name.key} waits for them"


def asleep_of(fleet: Fleet, ranks: Iterable[PlacedRank]) -> tuple[str, ...]:
    """Those nodes of ranks that sleep."""
    return tuple(sorted({rank.node_id for rank in ranks if fleet.sleeps(rank.node_id)}))


def wake_s_of(fleet: Fleet, ranks: Iterable[PlacedRank]) -> float:
    """How long it takes until all nodes of ranks are awake; 0 when they are."""
    return max((fleet.nodes[name].wake_s for name in asleep_of(fleet, ranks)), default=0.0)


class Sleepers:
    """The nodes of a domain that sleep, can be woken, and are not kept for anybody, as a cluster of their own: made anew only when
    they are others."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._fleet: Fleet | None = None
        self._able: frozenset[str] = frozenset()
        self._idle: frozenset[str] = frozenset()
        self._cluster: Cluster | None = None
        self._tally = Tally()

    def told(self, fleet: Fleet, held: Collection[str], classes: dict[int, Demand], sequence: int) -> Asleep | None:
        """What these nodes would have room for, by number of class; None when there are none. ``held`` are nodes with grants."""
        cluster = self._of(fleet, held)
        if cluster is None:
            return None
        summary = summarise(cluster, list(dict.fromkeys(classes.values())), sequence=sequence, tally=self._tally)
        rooms = {number: summary.ranks[demand] for number, demand in classes.items()}
        return Asleep(replace(summary, ranks={}), rooms)

    def _of(self, fleet: Fleet, held: Collection[str]) -> Cluster | None:
        if fleet is not self._fleet:
            self._fleet = fleet
            self._able = frozenset(
                name
                for name, node in fleet.nodes.items()
                if node.state is NodeState.ASLEEP and node.wake_s > 0 and not fleet.why_down(node)
            )
            self._idle = frozenset()
        idle = frozenset(name for name in self._able if name not in held)
        if idle != self._idle:
            self._idle, self._tally = idle, Tally()
            nodes = {name: fleet.nodes[name] for name in sorted(idle)}
            self._cluster = Cluster(table_of(Fleet(fleet.domains, nodes, fleet.marks)), self._policy)
        return self._cluster if idle else None


def place_waking(
    fleet: Fleet,
    policy: Policy,
    running: Iterable[RunningUnit],
    assignments: Sequence[Assignment],
    now_s: float,
    explanations: dict[UnitKey, Explanation],
    most_explained: int,
) -> tuple[list[RunningUnit], list[tuple[UnitKey, str]]]:
    """Place parts on all nodes of a domain, on sleeping ones where those awake do not suffice; see `place_in_domain`. ``running``
    is all that holds nodes. The cluster for it is made for the occasion: waking takes longer."""
    cluster = Cluster(table_of(fleet), policy)
    for item in running:
        cluster.occupy(replace(item, rows=()))
    return place_in_domain(cluster, assignments, now_s, explanations, most_explained)
