"""A domain's side: which nodes it has granted to which unit of which shard. Only this gives its nodes away.

Rules that hold whatever comes, twice or late:
1. A shard is listened to in its newest session only, and that begins with all that the shard holds; what it does not name
   is taken back. What it names and the domain does not know is adopted: it runs, so its nodes are not free.
2. A unit holds at most one grant. It is named by its epoch: the same one asked for again is answered with the same nodes, a
   newer one takes the place of an older one, an older one is refused.
3. A grant ends by its release, by a newer epoch, or by holdings that do not name it; never by what happens to its nodes.
4. A grant on nodes that sleep is good at once and keeps them; its shard is told when all of them are awake (resting.py).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from services.scheduler.core.apart.fleets import as_if_nobody_wakes, part_of
from services.scheduler.core.apart.granted import Grant, GrantChanges, ShardSession
from services.scheduler.core.apart.messages import GrantName, Holding, Reply, Request, Wanted
from services.scheduler.core.apart.parts import Part, PartsToTell, device_of, free_milli, moved
from services.scheduler.core.apart.resting import (
    Sleepers,
    Woken,
    asleep_of,
    place_waking,
    wake_s_of,
)
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.effects import Sleep
from services.scheduler.core.explaining.explanation import Explanation
from services.scheduler.core.fleet import Fleet, NodeState
from services.scheduler.core.idle_nodes import IDLE_NODES, IdleNodes, IdleRules, idle_rules_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.refit import refit
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.shares import Device
from services.scheduler.core.sleeping import rest
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.two_level import Assignment, DomainSummary, Tally, place_in_domain, summarise
from services.scheduler.core.waiting_unit import PendingUnit

MOST_EXPLAINED = 20
"""Units of a request that are told why they were placed or refused; explanations are larger than all else in an answer."""
_TERM_BITS = 32
"""A sequence of summaries begins with the decider's term, so that it grows over restarts."""


class DomainGrants:
    """One domain: its cluster, its grants, the sessions of the shards. See the module for the rules.

    ``fleet`` may have other domains too; ``term`` is that of the decider. ``counted`` is greater than that of any former
    `DomainGrants` of this domain in the same term: sequences of summaries go on from there. Nodes that hold nothing count as idle since
    ``begun_s``, where the policy puts them to sleep.
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
        begun_s: float = 0.0,
    ) -> None:
        self.domain_id = domain_id
        self.term = term
        self.grants: dict[UnitKey, Grant] = {}
        self.sessions: dict[str, ShardSession] = dict(sessions)
        self.fleet = part_of(fleet, domain_id)
        self._seen = as_if_nobody_wakes(self.fleet)
        self.cluster = Cluster(table_of(self._seen), policy)
        self.idle: IdleNodes | None = None
        if idle_rules_of(policy) is not None:
            self.idle = self.cluster.watch(IDLE_NODES, None, lambda: IdleNodes(begun_s))
        self.counted = counted
        self._policy = policy
        self._sleepers = Sleepers(policy)
        self._holds: Counter[str] = Counter()
        self._woken: list[Woken] = []
        self._awoke: list[Grant] = []
        self._parts = PartsToTell()
        self._freed: set[Device] = set()
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
        self._pass_time(now_s)
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
        self._move(request, now_s)
        if not request.round:
            return None
        placed += tuple(
            (grant.name, grant.ranks)
            for item in request.holdings or ()
            if item.waking and (grant := self.grants.get(item.name.key)) is not None and grant.name == item.name
        )
        names = {item.name.key: item.name for item in request.wanted}
        said = {names[key]: compact_json(item.as_json()) for key, item in explanations.items()}
        return replace(self._reply(request, session, placed, refused), explanations=said)

    def take_back(self, request: Request, reply: Reply, untold: Iterable[GrantName], now_s: float) -> Reply:
        """Take back what the request was given and ``reply`` has no room to tell; the reply with the domain as it is then. Where others
        were told, the shard hears of the room at once; what is too large by itself would be so again."""
        asked, gone = {item.name for item in request.wanted}, set(untold)
        for name in sorted(gone & asked):
            grant = self.grants.get(name.key)
            if grant is not None and (grant.shard, grant.name) == (request.shard, name):
                self._drop(grant, now_s)
        self._woken = [item for item in self._woken if item.name not in gone]
        session = self.sessions[request.shard]
        now = self._reply(request, session, (), ())
        if reply.placed:
            session.told = None
        return replace(reply, summary=now.summary, rooms=now.rooms, asleep=now.asleep)

    def refit(self, fleet: Fleet, now_s: float = float("nan")) -> bool:
        """There is news of the fleet; whether it is about this domain."""
        before, after = self.fleet, part_of(fleet, self.domain_id, self.fleet)
        if after is before:
            return False
        self._pass_time(now_s)
        if self.idle is not None:
            self.idle.fleet_changed(before, after)
        seen = as_if_nobody_wakes(after, self._seen)
        refit(self.cluster, self._seen, seen)
        self.fleet, self._seen = after, seen
        woke = {
            name for name, node in before.nodes.items() if node.state is NodeState.ASLEEP and not after.sleeps(name)
        }
        if woke and not woke.isdisjoint(self._holds):
            self._awoke += [
                grant
                for grant in self.grants.values()
                if any(rank.node_id in woke for rank in grant.ranks) and not asleep_of(after, grant.ranks)
            ]
        self.counted += 1
        return True

    def rest(self, rules: IdleRules, now_s: float) -> tuple[Fleet, list[Sleep]]:
        """Which idle nodes are told to sleep now, with the fleet of this domain as it is then: nothing has changed here before `refit`."""
        if self.idle is None:
            return self.fleet, []
        self._pass_time(now_s)
        wanted = [
            session.classes[number]
            for session in self.sessions.values()
            for number in session.waiting_classes
            if session.waiting and number in session.classes
        ]
        return rest(self.fleet, self.cluster, wanted, self.idle, rules, now_s)

    def news(self) -> list[Reply]:
        """For each shard that waits: that there may be more room than it was told last; and which grants have all their nodes awake now."""
        stamp, awoke = self._stamp(), self._awoke
        self._awoke = []
        replies = []
        for shard, session in self.sessions.items():
            awake = tuple((item.name, item.ranks) for item in awoke if item.shard == shard)
            parts = self._parts.take(shard)
            if awake or parts or (session.waiting and session.told != stamp):
                reply = self._reply(Request(self.domain_id, shard, session.session), session, awake, ())
                replies.append(replace(reply, parts=parts))
        return replies

    def take_woken(self) -> list[Woken]:
        """Nodes that are to be woken since this was asked last."""
        woken, self._woken = self._woken, []
        return woken

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
            known = self.grants.get(key)
            if item.ranks and known is None:
                least, asked = item.least_milli, item.asked_milli
                self._grant(
                    Grant(shard, item.name, item.tenant_id, item.demand, item.ranks, item.since_s, least, asked)
                )
            elif item.ranks and known is not None and known.shard == shard and known.ranks != item.ranks:
                # It was told, and the one who heard it may be gone.
                self._parts.note(shard, item.name, known.ranks[0].device_milli)

    def _release(self, shard: str, name: GrantName, now_s: float) -> None:
        grant = self.grants.get(name.key)
        if grant is not None and grant.shard == shard and grant.name.epoch <= name.epoch:
            self._drop(grant, now_s)

    def _learn(self, request: Request, session: ShardSession) -> None:
        waits = request.waiting, request.waiting_classes
        if waits != (session.waiting, session.waiting_classes) or request.classes or request.dropped_classes:
            self._note(request.shard, session)
        session.waiting, session.waiting_classes = waits
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
        again = {key for key, _ in without if wanted[key].wake}
        if again:
            tried = [item for item in assignments if item.unit.key in again]
            woken, still = self._place_waking(tried, now_s, explanations)
            begun, without = begun + woken, [pair for pair in without if pair[0] not in again] + still
        for running in begun:
            item = wanted[running.unit.key]
            ranks = tuple([replace(rank, rank=item.first_rank + rank.rank) for rank in running.ranks])
            demand = running.unit.demand
            grant = Grant(
                request.shard,
                item.name,
                item.tenant_id,
                demand,
                ranks,
                now_s,
                item.least_milli,
                demand.device_milli if device_of(ranks) is not None else 0,
            )
            self.grants[grant.name.key] = self._changes.grants[grant.name.key] = grant
            self._holds.update({rank.node_id for rank in ranks})
            self.counted += 1
            placed.append((item.name, ranks))
            asleep = asleep_of(self.fleet, ranks)
            if asleep:
                self._woken.append(Woken(self.domain_id, item.name, item.tenant_id, asleep))
        refused += [(wanted[key].name, reason) for key, reason in without]
        return tuple(placed), tuple(refused)

    def _place_waking(
        self, assignments: list[Assignment], now_s: float, explanations: dict[UnitKey, Explanation]
    ) -> tuple[list[RunningUnit], list[tuple[UnitKey, str]]]:
        """Those for which the nodes that are awake have no room: what is begun holds its nodes here."""
        for item in assignments:
            explanations.pop(item.unit.key, None)
        running = self.cluster.running.values()
        begun, refused = place_waking(
            self.fleet, self._policy, running, assignments, now_s, explanations, MOST_EXPLAINED
        )
        for placed in begun:
            self.cluster.occupy(replace(placed, rows=()))
        return begun, refused

    def _move(self, request: Request, now_s: float) -> None:
        """Parts of devices move to runs that would like more; what became free goes to those that have less than they asked for."""
        wanted: dict[Device, dict[UnitKey, int]] = {device: {} for device in self._freed}
        for name, milli in request.parts:
            grant = self.grants.get(name.key)
            device = device_of(grant.ranks) if grant is not None else None
            if grant is not None and device is not None and (grant.shard, grant.name) == (request.shard, name):
                wanted[device] = {**wanted.get(device, {}), name.key: min(max(milli, 1), 1000)}
                self._parts.note(request.shard, name, grant.ranks[0].device_milli)
        self._freed.clear()
        if not wanted:
            return
        shared: dict[Device, list[Part]] = {}
        for grant in self.grants.values():
            if (part := grant.part()) is not None and part.device in wanted:
                shared.setdefault(part.device, []).append(part)
        for device, parts in shared.items():
            for key, milli in moved(parts, wanted[device], free_milli(self.cluster, device)).items():
                grant = self.grants[key].with_part(milli)
                self.cluster.release(key, now_s)
                self.grants[key] = self._changes.grants[key] = grant
                unit = PendingUnit(key, grant.tenant_id, 0, grant.since_s, grant.demand)
                self.cluster.occupy(RunningUnit(unit, grant.ranks, grant.since_s))
                self.counted += 1
                self._parts.note(grant.shard, grant.name, milli)

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
            wake_s={name: wake_s for name, ranks in placed if (wake_s := wake_s_of(self.fleet, ranks))},
            asleep=self._sleepers.told(self.fleet, self._holds, session.classes, self.sequence),
        )

    def _pass_time(self, now_s: float) -> None:
        if self.idle is not None:
            self.idle.at_s = max(self.idle.at_s, now_s)

    def _stamp(self) -> tuple[int, int]:
        return self.cluster.view.gives, self.cluster.view.generation

    def _note(self, shard: str, session: ShardSession) -> None:
        self.sessions[shard] = self._changes.sessions[shard] = session

    def _grant(self, grant: Grant) -> None:
        self.grants[grant.name.key] = self._changes.grants[grant.name.key] = grant
        self._occupy(grant)
        self.counted += 1

    def _occupy(self, grant: Grant) -> None:
        self._holds.update({rank.node_id for rank in grant.ranks})
        unit = PendingUnit(grant.name.key, grant.tenant_id, 0, grant.since_s, grant.demand)
        self.cluster.occupy(RunningUnit(unit, grant.ranks, grant.since_s))

    def _drop(self, grant: Grant, now_s: float = float("nan")) -> None:
        del self.grants[grant.name.key]
        self._changes.grants[grant.name.key] = None
        self.cluster.release(grant.name.key, now_s)
        device = device_of(grant.ranks)
        if device is not None and grant.ranks[0].device_milli < 1000:
            self._freed.add(device)
        for name in {rank.node_id for rank in grant.ranks}:
            self._holds[name] -= 1
            if not self._holds[name]:
                del self._holds[name]
        self.counted += 1


def compact_json(body: Mapping[str, Any]) -> str:
    """An explanation as text."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False)
