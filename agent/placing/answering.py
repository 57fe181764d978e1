"""The domain's side of the two levels where the domain has a scheduler of its own: sessions, grants, answers (scheduler.proto).

Rules that hold whatever comes, twice or late:
1. A shard is listened to in its newest session only, which begins with all that the shard holds here. What it does not name is
   taken back; what it names and the domain does not know is adopted, as it runs.
2. A unit holds at most one grant, named by its epoch: asked for again it is given again, a newer one replaces it, an older one
   is refused.
3. A grant ends by its release, by a newer epoch, or by holdings that do not name it.
4. A run starts only on what its grant names (`why_refused`), so an order that came by another way overcommits nothing.
5. Requests of different shards about different units may be handled side by side; those of one shard, and those about one unit,
   come one after another (`Answering.concerns`).
6. Whoever was refused hears of whatever may have become free since it was asked for: a refusal goes out under the number that the
   domain had before the scheduler was asked, unless only less was free afterwards.
7. What an answer has no room for is not granted: it is refused, and asked for again while others of the answer were placed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from agent.engines.own_scheduler import DeviceKind, Held, OwnScheduler, Refusal, Room, UnitName
from agent.journal import Record
from agent.placing.answer_size import ANSWER_BYTES, begun_again, fitted
from agent.placing.grant_book import Grant, GrantBook, Session
from agent.placing.reading import ReadPositions
from agent.placing.wording import (
    constraints_of,
    grant_name,
    held_of,
    rank_messages,
    summary_message,
    unit_name,
    why_not_granted,
)
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.scheduler.v1 import scheduler_pb2

_CHANGES_BITS = 24
"""A sequence of summaries begins with the agent's incarnation, so that it grows over restarts, and beyond that of a decider
that answered for the domain before."""


class _Version(NamedTuple):
    """How often the domain has changed, and how often there was more room then."""

    changed: int
    gave: int


class Answering:
    """One domain; see the module. ``term`` is the agent's incarnation, greater with each start."""

    def __init__(
        self,
        domain_id: str,
        term: int,
        book: GrantBook,
        scheduler: OwnScheduler,
        *,
        emulated: bool = False,
        most_bytes: int = ANSWER_BYTES,
    ) -> None:
        """``most_bytes``: of an answer."""
        self.domain_id, self.term = domain_id, term
        self._most_bytes = most_bytes
        self._book, self._scheduler, self._emulated = book, scheduler, emulated
        self._changed = 0
        self._gave = 0
        self._said = -1
        self._running = 0
        self._refused_some = False
        self._room_before: Room | None = None
        self._reading = ReadPositions()

    async def restore(self) -> None:
        """Tell the scheduler what was given away before the agent started."""
        held: dict[UnitName, Held] = {grant.name: held_of(grant.holding) for grant in self._book.grants.values()}
        self._running = len(held)
        await self._scheduler.restore(held)

    @staticmethod
    def concerns(request: scheduler_pb2.PlacementRequest) -> set[Hashable]:
        """Names; requests that share one are to be handled in the order in which they came."""
        names = [*(item.name for item in request.holdings), *request.released]
        units = {(name.job_id, name.unit_index) for name in names}
        return {request.shard, *units, *((item.job_id, item.unit_index) for item in request.wanted)}

    def received(self, partition: int, offset: int) -> None:
        """A request was read from there, in the order of offsets, and is going to be handled."""
        self._reading.begin(partition, offset)

    async def handle(self, request: scheduler_pb2.PlacementRequest, event: str, partition: int, offset: int) -> None:
        """Carry a request out and write down what it changed, with the answer that is due. One that was sent twice (``event``
        names it) is handled once: a session that begins again would take back what was granted since."""
        if event in self._book.handled:
            self._book.write(self._read(partition, offset))
            return
        changes: list[Record] = []
        answer, heard = await self._carry_out(request, changes)
        if answer is not None:
            changes.append(self._book.answer(self._book.next_answer(), answer))
        self._book.write([*changes, self._book.request(event), *self._read(partition, offset)])
        session = self._book.sessions.get(request.shard)
        if answer is not None and session is not None:
            session.told = heard.gave

    def look(self) -> bool:
        """Whether there is something new to tell everybody; shards that wait are told, by answers, where there is more room."""
        self._notice()
        news: list[Record] = []
        for shard, session in self._book.sessions.items():
            if session.waiting and session.told != self._gave:
                session.told = self._gave
                news.append(self._book.answer(self._book.next_answer(), self._answer(shard, session, 0, [], [])))
        if news:
            self._book.write(news)
        said, self._said = self._said, self._changed
        return said != self._changed

    def offer_again(self) -> None:
        """Let units that were refused be asked for once more though the room is as it was: a scheduler may refuse for what does not
        show there, and which passes. Nothing happens when none was refused since the last time."""
        if self._refused_some:
            self._refused_some = False
            self._changed += 1
            self._gave += 1

    def too_large(self, number: int) -> bool:
        """The bus did not take an answer because of its size: a brief one stands for it, and those that follow have half of it at most.
        False when it is as brief as can be."""
        answer = self._book.unanswered[number]
        self._most_bytes = min(self._most_bytes, answer.ByteSize() // 2)
        brief = begun_again(answer)
        if brief is not None:
            self._book.write([self._book.answer(number, brief)])
        return brief is not None

    def summary(self) -> scheduler_pb2.DomainSummary:
        """The domain as it is now."""
        return self._summary(self._changed)

    def why_refused(self, order: run_pb2.Assignment) -> str:
        """Why a START is not carried out; empty: it may be."""
        return why_not_granted(order, self._book.grants.get((order.job_id, order.unit_index)))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _read(self, partition: int, offset: int) -> list[Record]:
        """The position, where everything up to one has been handled that was not before."""
        position = self._reading.end(partition, offset)
        return [] if position is None else [self._book.position(partition, position)]

    def _notice(self) -> None:
        """Count what changed in the room since it was looked at last."""
        room = self._scheduler.room()
        before, self._room_before = self._room_before, room
        if before is not None and room != before:
            self._changed += 1
            self._gave += _is_more(room, before)

    async def _carry_out(
        self, request: scheduler_pb2.PlacementRequest, changes: list[Record]
    ) -> tuple[scheduler_pb2.PlacementAnswer | None, _Version]:
        """The answer, and as of when it says what the domain refuses."""
        number = (request.term, request.session)
        known = self._book.sessions.get(request.shard)
        now = _Version(self._changed, self._gave)
        if known is not None and number < known.number:
            return None, now
        if not request.begins and (known is None or number != known.number):
            if not request.round:
                return None, now
            why = "the session has not begun here"
            refused = [_refused(_name_of(item), why) for item in request.wanted]
            answer = self._answer(request.shard, Session(number), request.round, [], refused)
            answer.begin_again = True
            return fitted(answer, self._most_bytes)[0], now
        session = known if known is not None and not request.begins else Session(number)
        # The grants as they will be when the changes are written; no other request changes those of this shard meanwhile.
        grants = dict(self._book.grants)
        if request.complete:
            await self._reconcile(request, grants, changes)
        for item in request.released:
            name = unit_name(item)
            grant = grants.get(name.key)
            if grant is not None and grant.shard == request.shard and grant.name.epoch <= name.epoch:
                await self._drop(grant, grants, changes)
        session = self._learned(request, session, begins=session is not known, changes=changes)
        known_here, to_place = self._sorted_out(request, session, grants)
        for name in to_place:
            if name.key in grants:
                await self._drop(grants[name.key], grants, changes)
        self._notice()
        before = _Version(self._changed, self._gave)
        known_here |= await self._place(request, to_place, grants, changes)
        if not request.round:
            self._notice()
            return None, _Version(self._changed, self._gave)
        placed, refused = [], []
        for wanted in request.wanted:
            found = known_here[_name_of(wanted)]
            if isinstance(found, Refusal):
                refused.append(_refused(_name_of(wanted), found.reason))
            else:
                placed.append(scheduler_pb2.PlacedUnit(name=found.holding.name, ranks=found.holding.ranks))
        answer, untold = fitted(self._answer(request.shard, session, request.round, placed, refused), self._most_bytes)
        for item in untold:
            # Where some were told the rest is to be asked for again at once; what is too large by itself is so then, too.
            grant = grants.get((item.job_id, item.unit_index))
            if grant is not None:
                await self._drop(grant, grants, changes, gives=bool(answer.placed))
        self._notice()
        after = _Version(self._changed, self._gave)
        refused_some = bool(refused or untold)
        heard = after if after.gave == before.gave or not refused_some else before
        self._refused_some = self._refused_some or refused_some
        answer.summary.CopyFrom(self._summary(heard.changed))
        return answer, heard

    async def _reconcile(
        self,
        request: scheduler_pb2.PlacementRequest,
        grants: dict[tuple[str, int], Grant],
        changes: list[Record],
    ) -> None:
        named = {unit_name(item.name).key: item for item in request.holdings}
        for key, grant in list(grants.items()):
            item = named.get(key)
            if grant.shard == request.shard and (item is None or item.name.epoch != grant.name.epoch):
                await self._drop(grant, grants, changes)
        for key, item in named.items():
            if item.ranks and key not in grants:
                grant = grants[key] = Grant(request.shard, item)
                self._give(grant, changes)
                await self._scheduler.adopt(grant.name, held_of(item))

    def _learned(
        self,
        request: scheduler_pb2.PlacementRequest,
        session: Session,
        *,
        begins: bool,
        changes: list[Record],
    ) -> Session:
        if not begins and request.waiting == session.waiting and not request.classes and not request.dropped_classes:
            return session
        classes = {} if begins else dict(session.classes)
        classes |= {item.number: item.demand for item in request.classes}
        for number in request.dropped_classes:
            classes.pop(number, None)
        session = Session(session.number, classes, request.waiting, session.told)
        changes.append(self._book.session(request.shard, session))
        return session

    @staticmethod
    def _sorted_out(
        request: scheduler_pb2.PlacementRequest, session: Session, grants: dict[tuple[str, int], Grant]
    ) -> tuple[dict[UnitName, Grant | Refusal], dict[UnitName, tuple[scheduler_pb2.WantedUnit, scheduler_pb2.Demand]]]:
        """What the book alone says of the units of a request, and those of which the scheduler is to be asked, with their demands:
        they hold nothing, or what an older epoch of theirs was given."""
        known: dict[UnitName, Grant | Refusal] = {}
        to_place: dict[UnitName, tuple[scheduler_pb2.WantedUnit, scheduler_pb2.Demand]] = {}
        newest: dict[tuple[str, int], int] = {}
        for wanted in request.wanted:
            key = (wanted.job_id, wanted.unit_index)
            newest[key] = max(newest.get(key, 0), wanted.epoch)
        for wanted in request.wanted:
            name = _name_of(wanted)
            grant = grants.get(name.key)
            demand = wanted.demand if wanted.HasField("demand") else session.classes.get(wanted.class_number)
            if grant is not None and grant.shard != request.shard:
                known[name] = Refusal(f"it was granted to {grant.shard}")
            elif grant is not None and grant.name.epoch == name.epoch:
                known[name] = grant
            elif grant is not None and grant.name.epoch > name.epoch:
                known[name] = Refusal(f"epoch {grant.name.epoch} of it was granted already")
            elif name.epoch < newest[name.key]:
                known[name] = Refusal(f"epoch {newest[name.key]} of it is asked for too")
            elif demand is None:
                known[name] = Refusal(f"class {wanted.class_number} is not known")
            else:
                to_place[name] = wanted, demand
        return known, to_place

    async def _place(
        self,
        request: scheduler_pb2.PlacementRequest,
        to_place: dict[UnitName, tuple[scheduler_pb2.WantedUnit, scheduler_pb2.Demand]],
        grants: dict[tuple[str, int], Grant],
        changes: list[Record],
    ) -> dict[UnitName, Grant | Refusal]:
        found = await self._scheduler.place_all(
            {name: constraints_of(demand, wanted.time_limit_s) for name, (wanted, demand) in to_place.items()}
        )
        answers: dict[UnitName, Grant | Refusal] = {}
        for name, (wanted, demand) in to_place.items():
            ranks = found[name]
            if isinstance(ranks, Refusal):
                answers[name] = ranks
                continue
            holding = scheduler_pb2.Holding(
                name=grant_name(name),
                tenant_id=wanted.tenant_id,
                demand=demand,
                ranks=rank_messages(ranks, wanted.first_rank),
                since=request.asked_at,
            )
            answers[name] = grants[name.key] = grant = Grant(request.shard, holding)
            self._give(grant, changes)
        return answers

    def _give(self, grant: Grant, changes: list[Record]) -> None:
        changes.append(self._book.given(grant))
        self._changed += 1
        self._running += 1

    async def _drop(
        self, grant: Grant, grants: dict[tuple[str, int], Grant], changes: list[Record], *, gives: bool = True
    ) -> None:
        del grants[grant.name.key]
        changes.append(self._book.ended(grant.name.key))
        self._changed += 1
        self._gave += gives
        self._running -= 1
        await self._scheduler.release(grant.name)

    def _answer(
        self,
        shard: str,
        session: Session,
        number: int,
        placed: Iterable[scheduler_pb2.PlacedUnit],
        refused: Iterable[scheduler_pb2.RefusedUnit],
        changed: int | None = None,
    ) -> scheduler_pb2.PlacementAnswer:
        """``changed`` None: the domain as it is now."""
        return scheduler_pb2.PlacementAnswer(
            shard=shard,
            domain_id=self.domain_id,
            term=session.number[0],
            session=session.number[1],
            round=number,
            domain_term=self.term,
            placed=placed,
            refused=refused,
            summary=self._summary(self._changed if changed is None else changed),
        )

    def _summary(self, changed: int) -> scheduler_pb2.DomainSummary:
        return summary_message(
            self.domain_id,
            self._scheduler.room(),
            sequence=(self.term << _CHANGES_BITS) + changed,
            term=self.term,
            running=self._running,
            emulated=self._emulated,
        )


def _is_more(room: Room, before: Room) -> bool:
    """Whether something is free that was not, or free for another one."""
    return (
        room.free_cpus > before.free_cpus
        or room.free_memory_bytes > before.free_memory_bytes
        or any(amount > before.free_resources.get(name, 0.0) for name, amount in room.free_resources.items())
        or any(_free(room, kind) > _free(before, kind) for kind in room.total)
        or room.turns > before.turns
    )


def _free(room: Room, kind: DeviceKind) -> int:
    return sum(size * nodes for size, nodes in enumerate(room.nodes_by_free.get(kind, ())))


def _name_of(wanted: scheduler_pb2.WantedUnit) -> UnitName:
    return UnitName(wanted.job_id, wanted.unit_index, wanted.epoch)


def _refused(name: UnitName, reason: str) -> scheduler_pb2.RefusedUnit:
    return scheduler_pb2.RefusedUnit(name=grant_name(name), reason=reason)
