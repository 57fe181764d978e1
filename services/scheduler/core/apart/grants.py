"""A domain's side: which nodes it has granted to which unit of which shard. Only this gives its nodes away.

Rules that hold whatever comes, twice or late:
1. A shard is listened to in its newest session only, and that begins with all that the shard holds; what it does not name
   is taken back. What it names and the domain does not know is adopted: it runs, so its nodes are not free.
2. A unit holds at most one grant. It is named by its epoch: the same one asked for again is answered with the same nodes, a
   newer one takes the place of an older one, an older one is refused.
3. A grant ends by its release, by a newer epoch, or by holdings that do not name it; never by what happens to its nodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from services.scheduler.core.apart.messages import GrantName, Holding, Reply, Request, Session, Wanted
from services.scheduler.core.cluster import Cluster, RunningUnit
from services.scheduler.core.explanation import Explanation
from services.scheduler.core.fleet import Domain, Fleet
from services.scheduler.core.policy import Policy
from services.scheduler.core.queue import PendingUnit
from services.scheduler.core.refit import refit
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.two_level import Assignment, DomainSummary, Tally, place_in_domain, summarise

MOST_EXPLAINED = 20
"""Units of a request that are told why they were placed or refused; explanations are larger than all else in an answer."""
_TERM_BITS = 32
"""A sequence of summaries begins with the decider's term, so that it grows over restarts."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Nodes of a domain that a unit's run holds. ``ranks`` are numbered as the shard numbers them."""

    shard: str
    name: GrantName
    tenant_id: str
    demand: Demand
    ranks: tuple[PlacedRank, ...]
    since_s: float


@dataclass(slots=True)
class ShardSession:
    """What a domain knows of a shard: its session, its classes by number, and whether it waits for room. ``told`` is the
    state of the domain that it was told last."""

    session: Session
    classes: dict[int, Demand] = field(default_factory=dict)
    waiting: bool = False
    told: tuple[int, int] | None = None


@dataclass(slots=True)
class GrantChanges:
    """What is to be written since it was asked for last: grants by unit (None: ended), sessions by shard."""

    grants: dict[UnitKey, Grant | None] = field(default_factory=dict)
    sessions: dict[str, ShardSession] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.grants or self.sessions)


class DomainGrants:
    """One domain: its cluster, its grants, the sessions of the shards. See the module for the rules.

    ``fleet`` may have other domains too; ``term`` is that of the decider. ``counted`` is greater than that of any former
    `DomainGrants` of this domain in the same term: sequences of summaries go on from there.
    """

    def __init__(
        self,
        domain_id: str,
        fleet: Fleet,
        policy: Policy,
        term: int,
        grants: Iterable[Grant] = (),
        sessions: Iterable[tuple[str, ShardSession]] = (),
        counted: int = 0,
    ) -> None:
        self.domain_id = domain_id
        self.term = term
        self.grants: dict[UnitKey, Grant] = {}
        self.sessions: dict[str, ShardSession] = dict(sessions)
        self.fleet = part_of(fleet, domain_id)
        self.cluster = Cluster(table_of(self.fleet), policy)
        self.counted = counted
        self._tally = Tally()
        self._changes = GrantChanges()
        for grant in grants:
            self.grants[grant.name.key] = grant
            self._occupy(grant)

    @property
    def sequence(self) -> int:
        """Of the summary as it is now."""
        return (self.term << _TERM_BITS) + self.counted

    # -- what comes ----------------------------------------------------------------------------------------------------

    def handle(self, request: Request, now_s: float) -> Reply | None:
        """Carry out a request; None when it wants no answer or is of an older session."""
        known = self.sessions.get(request.shard)
        if known is not None and request.session < known.session:
            return None
        if not request.begins and (known is None or request.session != known.session):
            if not request.round:
                return None
            refused = tuple([(item.name, "the session has not begun here") for item in request.wanted])
            return replace(self._reply(request, ShardSession(request.session), (), refused), begin_again=True)
        session = known if known is not None and not request.begins else ShardSession(request.session)
        if session is not known:
            self._note(request.shard, session)
        if request.holdings is not None:
            self._reconcile(request.shard, request.holdings)
        for name in request.released:
            self._release(request.shard, name, now_s)
        self._learn(request, session)
        explanations: dict[UnitKey, Explanation] = {}
        placed, refused = self._place(request, session, now_s, explanations)
        if not request.round:
            return None
        names = {item.name.key: item.name for item in request.wanted}
        said = {names[key]: compact_json(item.as_json()) for key, item in explanations.items()}
        return replace(self._reply(request, session, placed, refused), explanations=said)

    def refit(self, fleet: Fleet) -> bool:
        """There is news of the fleet; whether it is about this domain."""
        after = part_of(fleet, self.domain_id, self.fleet)
        if after is self.fleet:
            return False
        refit(self.cluster, self.fleet, after)
        self.fleet = after
        self.counted += 1
        return True

    def news(self) -> list[Reply]:
        """For each shard that waits: that there may be more room than it was told last."""
        stamp = self._stamp()
        return [
            self._reply(Request(self.domain_id, shard, session.session), session, (), ())
            for shard, session in self.sessions.items()
            if session.waiting and session.told != stamp
        ]

    def summary(self) -> DomainSummary:
        """The domain as it is now, without rooms of classes."""
        return summarise(self.cluster, (), sequence=self.sequence, tally=self._tally)

    def take_changes(self) -> GrantChanges:
        """What changed since this was asked last."""
        changes, self._changes = self._changes, GrantChanges()
        return changes

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _reconcile(self, shard: str, holdings: Iterable[Holding]) -> None:
        named = {item.name.key: item for item in holdings}
        for key, grant in list(self.grants.items()):
            item = named.get(key)
            if grant.shard == shard and (item is None or item.name.epoch != grant.name.epoch):
                self._drop(grant)
        for key, item in named.items():
            if item.ranks and key not in self.grants:
                self._grant(Grant(shard, item.name, item.tenant_id, item.demand, item.ranks, item.since_s))

    def _release(self, shard: str, name: GrantName, now_s: float) -> None:
        grant = self.grants.get(name.key)
        if grant is not None and grant.shard == shard and grant.name.epoch <= name.epoch:
            self._drop(grant, now_s)

    def _learn(self, request: Request, session: ShardSession) -> None:
        if request.waiting != session.waiting or request.classes or request.dropped_classes:
            self._note(request.shard, session)
        session.waiting = request.waiting
        session.classes.update(request.classes)
        for number in request.dropped_classes:
            session.classes.pop(number, None)

    def _place(
        self, request: Request, session: ShardSession, now_s: float, explanations: dict[UnitKey, Explanation]
    ) -> tuple[tuple[tuple[GrantName, tuple[PlacedRank, ...]], ...], tuple[tuple[GrantName, str], ...]]:
        placed: list[tuple[GrantName, tuple[PlacedRank, ...]]] = []
        refused: list[tuple[GrantName, str]] = []
        assignments: list[Assignment] = []
        wanted: dict[UnitKey, Wanted] = {}
        for item in request.wanted:
            demand = item.demand or session.classes.get(item.class_number)
            why, held = self._why_not(request.shard, item, demand)
            if held is not None:
                placed.append((item.name, held.ranks))
            elif why or demand is None:
                refused.append((item.name, why))
            else:
                older = self.grants.get(item.name.key)
                if older is not None:
                    self._drop(older, now_s)
                unit = PendingUnit(item.name.key, item.tenant_id, 0, now_s, demand, limit_s=item.time_limit_s)
                wanted[unit.key] = item
                assignments.append(Assignment(unit, self.domain_id, item.first_rank, item.whole))
        begun, without = place_in_domain(self.cluster, assignments, now_s, explanations, MOST_EXPLAINED)
        for running in begun:
            item = wanted[running.unit.key]
            ranks = tuple([replace(rank, rank=item.first_rank + rank.rank) for rank in running.ranks])
            grant = Grant(request.shard, item.name, item.tenant_id, running.unit.demand, ranks, now_s)
            self.grants[grant.name.key] = self._changes.grants[grant.name.key] = grant
            self.counted += 1
            placed.append((item.name, ranks))
        refused += [(wanted[key].name, reason) for key, reason in without]
        return tuple(placed), tuple(refused)

    def _why_not(self, shard: str, item: Wanted, demand: Demand | None) -> tuple[str, Grant | None]:
        """Why a unit is not placed; or the grant that it has already."""
        grant = self.grants.get(item.name.key)
        if grant is not None and grant.shard != shard:
            return f"it was granted to {grant.shard}", None
        if grant is not None and grant.name.epoch == item.name.epoch:
            return "", grant
        if grant is not None and grant.name.epoch > item.name.epoch:
            return f"epoch {grant.name.epoch} of it was granted already", None
        return ("" if demand is not None else f"class {item.class_number} is not known"), None

    def _reply(
        self,
        request: Request,
        session: ShardSession,
        placed: tuple[tuple[GrantName, tuple[PlacedRank, ...]], ...],
        refused: tuple[tuple[GrantName, str], ...],
    ) -> Reply:
        classes = dict.fromkeys(session.classes.values())
        summary = summarise(self.cluster, list(classes), sequence=self.sequence, tally=self._tally)
        rooms = {number: summary.ranks[demand] for number, demand in session.classes.items()}
        session.told = self._stamp()
        return Reply(
            request.shard,
            self.domain_id,
            session.session,
            request.round,
            self.term,
            placed,
            refused,
            replace(summary, ranks={}),
            rooms,
        )

    def _stamp(self) -> tuple[int, int]:
        return self.cluster.view.gives, self.cluster.view.generation

    def _note(self, shard: str, session: ShardSession) -> None:
        self.sessions[shard] = self._changes.sessions[shard] = session

    def _grant(self, grant: Grant) -> None:
        self.grants[grant.name.key] = self._changes.grants[grant.name.key] = grant
        self._occupy(grant)
        self.counted += 1

    def _occupy(self, grant: Grant) -> None:
        unit = PendingUnit(grant.name.key, grant.tenant_id, 0, grant.since_s, grant.demand)
        self.cluster.occupy(RunningUnit(unit, grant.ranks, grant.since_s))

    def _drop(self, grant: Grant, now_s: float = float("nan")) -> None:
        del self.grants[grant.name.key]
        self._changes.grants[grant.name.key] = None
        self.cluster.release(grant.name.key, now_s)
        self.counted += 1


def compact_json(body: Mapping[str, Any]) -> str:
    """An explanation as text."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False)


def part_of(fleet: Fleet, domain_id: str, before: Fleet | None = None) -> Fleet:
    """What a fleet says about one domain; ``before`` itself when that is as it was."""
    # Nobody wakes nodes on two levels: what sleeps takes no work.
    nodes = {
        name: node if not node.wake_s else replace(node, wake_s=0.0)
        for name, node in fleet.nodes.items()
        if node.domain_id == domain_id
    }
    domains = {domain_id: fleet.domains.get(domain_id, Domain(domain_id))}
    marks = {
        key: mark
        for key, mark in fleet.marks.items()
        if mark.domain_id == domain_id or mark.node_id in nodes or mark.subject in {domain_id, *nodes}
    }
    if before is None:
        return Fleet(domains, nodes, marks)
    # What is the same stays the same object: a cluster is fitted anew only where something changed.
    after = Fleet(
        before.domains if before.domains == domains else domains,
        before.nodes if before.nodes == nodes else nodes,
        before.marks if before.marks == marks else marks,
    )
    same = after.domains is before.domains and after.nodes is before.nodes and after.marks is before.marks
    return before if same else after
