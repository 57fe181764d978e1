"""The agent as the decider of its domain: sessions, grants by unit and epoch, and what a crash leaves of them."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.engines.local.first_fit import FirstFit, Limits, NodeFacts
from agent.engines.own_scheduler import DeviceKind
from agent.placing.answering import Answering
from agent.placing.grant_book import GrantBook
from meridian.contracts.run.v1.run_pb2 import AssignedRank, Assignment
from meridian.contracts.scheduler.v1.scheduler_pb2 import (
    Demand,
    DemandClass,
    GrantName,
    Holding,
    PlacementAnswer,
    PlacementRequest,
    WantedUnit,
)

A100 = DeviceKind("NVIDIA", "A100")
NODES = (NodeFacts("n1", 8, 64, (A100,) * 2), NodeFacts("n2", 8, 64, (A100,) * 2))


class Domain:
    """A domain of two nodes with two accelerators each, whose agent can die."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.up = {"n1", "n2"}
        self.fpgas = 0.0
        self.term = 0
        self.offset = 0

    async def begin(self) -> None:
        """A new incarnation on what the journal holds."""
        self.term += 1
        self.book = GrantBook(self.directory / "grants")
        self.scheduler = FirstFit(NODES, Limits(), lambda: self.up, lambda: {"n1": {"fpga": self.fpgas}})
        self.answering = Answering("d", self.term, self.book, self.scheduler, emulated=True)
        self.book.open()
        await self.answering.restore()
        self.answering.look()

    async def end(self) -> None:
        await self.book.close()

    async def ask(self, shard: str = "s", session: int = 1, event: str = "", **fields: Any) -> PlacementAnswer | None:
        """The answer to a request, if one is due; ``event`` names it."""
        request = PlacementRequest(domain_id="d", shard=shard, term=1, session=session, **fields)
        before = set(self.book.unanswered)
        self.offset += 1
        await self.answering.handle(request, event or f"event-{self.offset}", 0, self.offset)
        new = set(self.book.unanswered) - before
        return self.book.unanswered[new.pop()] if new else None


def wanted(job: int, epoch: int = 1, accelerators: int = 1, ranks: int = 1, first_rank: int = 0) -> WantedUnit:
    demand = Demand(ranks=ranks, cpus=1, accelerators=accelerators)
    return WantedUnit(job_id=f"j{job}", epoch=epoch, tenant_id="lab", demand=demand, first_rank=first_rank)


def name(job: int, epoch: int = 1) -> GrantName:
    return GrantName(job_id=f"j{job}", epoch=epoch)


def places(answer: PlacementAnswer | None) -> dict[str, list[tuple[int, str, tuple[int, ...]]]]:
    assert answer is not None
    return {
        item.name.job_id: [(rank.rank, rank.node_id, tuple(rank.accelerator_indices)) for rank in item.ranks]
        for item in answer.placed
    }


def reasons(answer: PlacementAnswer | None) -> list[str]:
    assert answer is not None
    return [item.reason for item in answer.refused]


BEGIN: dict[str, Any] = {"begins": True, "complete": True}


async def test_a_grant_is_named_by_unit_and_epoch(tmp_path: Path) -> None:
    domain = Domain(tmp_path)
    await domain.begin()
    first = await domain.ask(**BEGIN, round=1, wanted=[wanted(1, 2, ranks=2, first_rank=3)])
    assert places(first) == {"j1": [(3, "n1", (0,)), (4, "n1", (1,))]}
    assert first is not None
    assert (first.round, first.domain_term, first.summary.own_scheduler, first.summary.running) == (1, 1, True, 1)
    assert list(first.summary.devices[0].nodes_by_free) == [1, 0, 1]
    again = await domain.ask(round=2, wanted=[wanted(1, 2, ranks=2, first_rank=3)])
    assert places(again) == places(first)
    older = await domain.ask(round=3, wanted=[wanted(1, 1)])
    assert reasons(older) == ["epoch 2 of it was granted already"]
    other = await domain.ask("t", **BEGIN, round=1, wanted=[wanted(1, 3)])
    assert reasons(other) == ["it was granted to s"]
    newer = await domain.ask(round=4, wanted=[wanted(1, 3, accelerators=2)])
    assert places(newer) == {"j1": [(0, "n1", (0, 1))]}
    assert len(domain.scheduler.held) == 1
    # An older release comes late; one of another shard is not its own.
    assert await domain.ask(released=[name(1, 2)]) is None
    await domain.ask("t", released=[name(1, 9)])
    assert len(domain.book.grants) == 1
    await domain.ask(released=[name(1, 3)])
    assert not domain.book.grants
    assert not domain.scheduler.held
    await domain.end()


async def test_a_shard_is_listened_to_in_its_newest_session(tmp_path: Path) -> None:
    domain = Domain(tmp_path)
    await domain.begin()
    unknown = await domain.ask(session=2, round=1, wanted=[wanted(1)])
    assert unknown is not None
    assert (unknown.begin_again, reasons(unknown)) == (True, ["the session has not begun here"])
    assert await domain.ask(session=2, released=[name(1)]) is None
    ran = Holding(name=name(7), tenant_id="lab", demand=Demand(ranks=1, cpus=8), ranks=[AssignedRank(node_id="n1")])
    asked = Holding(name=name(8), tenant_id="lab", demand=Demand(ranks=1))
    begun = await domain.ask(session=2, **BEGIN, round=2, holdings=[ran, asked], wanted=[wanted(1)])
    assert places(begun) == {"j1": [(0, "n2", (0,))]}, "what runs on n1 is adopted"
    assert set(domain.book.grants) == {("j7", 0), ("j1", 0)}
    assert await domain.ask(session=1, **BEGIN, round=3) is None
    await domain.ask(session=3, **BEGIN, holdings=[ran])
    assert set(domain.book.grants) == {("j7", 0)}, "what is not named is taken back"
    classes = [DemandClass(number=4, demand=Demand(ranks=1, accelerators=2))]
    answer = await domain.ask(
        session=3, round=4, classes=classes, wanted=[WantedUnit(job_id="j2", epoch=1, class_number=4)]
    )
    assert places(answer) == {"j2": [(0, "n1", (0, 1))]}
    gone = WantedUnit(job_id="j3", epoch=1, class_number=4)
    assert reasons(await domain.ask(session=3, round=5, dropped_classes=[4], wanted=[gone])) == ["class 4 is not known"]
    await domain.end()


async def test_who_waits_is_told_once_of_more_room(tmp_path: Path) -> None:
    domain = Domain(tmp_path)
    await domain.begin()
    await domain.ask(**BEGIN, round=1, wanted=[wanted(1, accelerators=2), wanted(2, accelerators=2)])
    full = await domain.ask(round=2, waiting=True, wanted=[wanted(3)])
    assert reasons(full) == ["the domain's own scheduler has room for 0 of 1 ranks now, each with 1 accelerators"]
    said = set(domain.book.unanswered)
    domain.answering.look()
    assert set(domain.book.unanswered) == said, "nothing is freer than it was told"
    await domain.ask(released=[name(1)], waiting=True)
    assert domain.answering.look()
    (new,) = set(domain.book.unanswered) - said
    told = domain.book.unanswered[new]
    assert (told.round, list(told.summary.devices[0].nodes_by_free)) == (0, [1, 0, 1])
    assert not domain.answering.look()
    domain.up.discard("n1")
    assert domain.answering.look(), "there is less"
    assert len(domain.book.unanswered) == len(said) + 1
    domain.up.add("n1")
    assert domain.answering.look(), "and again more"
    assert len(domain.book.unanswered) == len(said) + 2
    assert domain.answering.summary().sequence > told.summary.sequence
    domain.fpgas = 1.0
    assert domain.answering.look(), "and of what users define"
    assert len(domain.book.unanswered) == len(said) + 3
    await domain.end()


async def test_what_is_sent_twice_is_handled_once(tmp_path: Path) -> None:
    domain = Domain(tmp_path)
    await domain.begin()
    begin: dict[str, Any] = {**BEGIN, "round": 1, "event": "begin"}
    first: dict[str, Any] = {"round": 2, "event": "first", "wanted": [wanted(1, accelerators=2)]}
    await domain.ask(**begin)
    assert places(await domain.ask(**first)) == {"j1": [(0, "n1", (0, 1))]}
    await domain.ask(round=3, wanted=[wanted(2)])
    await domain.end()
    await domain.begin()
    # The shard's outbox did not know that these were sent. Carried out again, the first would take back what runs.
    assert await domain.ask(**begin) is None
    assert await domain.ask(**first) is None
    assert set(domain.book.grants) == {("j1", 0), ("j2", 0)}
    await domain.ask(released=[name(1)])
    assert await domain.ask(**first) is None
    assert set(domain.book.grants) == {("j2", 0)}
    assert domain.book.positions == {0: domain.offset}
    await domain.end()


async def test_only_what_was_granted_starts(tmp_path: Path) -> None:
    domain = Domain(tmp_path)
    await domain.begin()
    await domain.ask(**BEGIN, round=1, wanted=[wanted(1)])

    def why(epoch: int, node: str, *indices: int) -> str:
        ranks = [AssignedRank(node_id=node, accelerator_indices=indices)]
        return domain.answering.why_refused(Assignment(domain_id="d", job_id="j1", epoch=epoch, ranks=ranks))

    assert why(1, "n1", 0) == ""
    assert why(2, "n1", 0) == "the domain's own scheduler has not given nodes to this run"
    assert why(1, "n1", 1) == why(1, "n2", 0) == "the order names other nodes than the domain's own scheduler gave"
    await domain.end()


REQUESTS = st.lists(
    st.one_of(
        st.tuples(st.just("want"), st.integers(0, 5), st.integers(1, 3), st.integers(1, 3)),
        st.tuples(st.just("release"), st.integers(0, 5), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("begin"), st.integers(0, 5), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("crash"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=15,
)


@settings(max_examples=40, deadline=None)
@given(REQUESTS)
def test_a_crash_loses_nothing_and_nothing_is_given_twice(steps: list[tuple[str, int, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(played(Domain(Path(directory)), steps))


async def played(domain: Domain, steps: list[tuple[str, int, int, int]]) -> None:
    await domain.begin()
    await domain.ask(**BEGIN)
    session = 1
    for action, job, epoch, size in steps:
        if action == "want":
            unit = wanted(job, epoch, accelerators=min(size, 2), ranks=size)
            answer = await domain.ask(session=session, round=1, wanted=[unit])
            assert answer is not None
            assert len(answer.placed) + len(answer.refused) == 1
        elif action == "release":
            await domain.ask(session=session, released=[name(job, epoch)])
        elif action == "begin":
            session += 1
            kept = [grant.holding for key, grant in domain.book.grants.items() if key[0] != f"j{job}"]
            await domain.ask(session=session, **BEGIN, holdings=kept)
            assert len(domain.book.grants) == len(kept)
        else:
            await domain.book.durable()
            before = (domain.book.grants, domain.book.positions, domain.book.unanswered)
            sessions = {shard: (item.number, item.waiting) for shard, item in domain.book.sessions.items()}
            await domain.end()
            await domain.begin()
            assert (domain.book.grants, domain.book.positions, domain.book.unanswered) == before
            assert {shard: (item.number, item.waiting) for shard, item in domain.book.sessions.items()} == sessions
        assert {held.key for held in domain.scheduler.held} == set(domain.book.grants)
        used = Counter(
            (rank.node_id, index)
            for grant in domain.book.grants.values()
            for rank in grant.holding.ranks
            for index in rank.accelerator_indices
        )
        assert all(count == 1 for count in used.values())
        assert domain.answering.summary().running == len(domain.book.grants)
    await domain.end()
