"""An answer that is larger than its topic takes: what it has no room for is not granted, and nobody waits behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent.engines.local.first_fit import FirstFit, Limits, NodeFacts
from agent.placing.answering import Answering
from agent.placing.grant_book import GrantBook
from meridian.contracts.scheduler.v1.scheduler_pb2 import (
    Demand,
    GrantName,
    PlacementAnswer,
    PlacementRequest,
    RefusedUnit,
    WantedUnit,
)
from tests.unit.agent.broker_network import Network, network, placing_of, running, until

__all__ = ["network"]

MOST_BYTES = 1000


class Domain:
    """A domain of one node with room for a thousand ranks, whose topic takes little."""

    def __init__(self, directory: Path) -> None:
        self.book = GrantBook(directory / "grants")
        self.book.open()
        self.scheduler = FirstFit((NodeFacts("n1", 1000, 64, ()),), Limits(), lambda: {"n1"}, dict)
        self.answering = Answering("d", 1, self.book, self.scheduler, most_bytes=MOST_BYTES)
        self.asked = 0

    async def ask(self, **fields: Any) -> PlacementAnswer:
        request = PlacementRequest(domain_id="d", shard="s", term=1, session=1, waiting=True, **fields)
        self.asked += 1
        await self.answering.handle(request, f"event-{self.asked}", 0, self.asked)
        return self.book.unanswered[max(self.book.unanswered)]


def _wanted(job: int, ranks: int = 1) -> WantedUnit:
    return WantedUnit(job_id=f"j{job}", epoch=1, tenant_id="lab", demand=Demand(ranks=ranks, cpus=1))


async def test_what_an_answer_has_no_room_for_is_taken_back_and_asked_for_again(tmp_path: Path) -> None:
    domain = Domain(tmp_path)
    await domain.answering.restore()
    domain.answering.look()
    wanted = [_wanted(job) for job in range(40)]
    placed: set[str] = set()
    answer = await domain.ask(begins=True, complete=True, round=1, wanted=wanted)
    for number in range(2, 60):
        assert answer.ByteSize() <= MOST_BYTES
        assert answer.placed
        placed |= {item.name.job_id for item in answer.placed}
        held = {job_id for job_id, _ in domain.book.grants}
        assert held == placed == {name.job_id for name in domain.scheduler.held}, "no grant is held untold"
        if len(placed) == len(wanted):
            break
        assert answer.refused[0].reason == "the answer would be larger than its topic takes"
        refused_at = answer.summary.sequence
        domain.answering.look()
        news = domain.book.unanswered[max(domain.book.unanswered)]
        assert (news.round, news.summary.sequence > refused_at) == (0, True), "there is room for the others"
        answer = await domain.ask(round=number, wanted=[item for item in wanted if item.job_id not in placed])
    assert len(placed) == len(wanted)
    await domain.book.close()


async def test_a_unit_that_no_answer_can_tell_is_refused_and_not_offered_at_once(tmp_path: Path) -> None:
    domain = Domain(tmp_path)
    await domain.answering.restore()
    domain.answering.look()
    answer = await domain.ask(begins=True, complete=True, round=1, wanted=[_wanted(1, ranks=500)])
    assert [(item.name.job_id, item.reason) for item in answer.refused] == [
        ("j1", "the answer would be larger than its topic takes")
    ]
    assert not domain.book.grants
    assert not domain.scheduler.held
    said = set(domain.book.unanswered)
    domain.answering.look()
    assert set(domain.book.unanswered) == said, "the shard would ask for it again without end"
    assert domain.answering.summary().sequence == answer.summary.sequence
    await domain.book.close()


async def test_long_reasons_are_cut(tmp_path: Path) -> None:
    domain = Domain(tmp_path)
    await domain.answering.restore()
    answer = await domain.ask(round=1, wanted=[_wanted(job) for job in range(100)])
    assert answer.begin_again
    assert answer.ByteSize() <= MOST_BYTES
    assert answer.refused
    await domain.book.close()


async def test_an_answer_that_the_bus_does_not_take_holds_up_no_other(network: Network) -> None:
    """It stands in the journal since a release that did not look at its size."""
    placing = placing_of(network, 1)
    await placing.start()
    large = PlacementAnswer(shard="s", domain_id="north", term=1, session=3, round=8, domain_term=1)
    large.refused.append(RefusedUnit(name=GrantName(job_id="j1", epoch=1), reason="r" * (2 << 20)))
    sound = PlacementAnswer(shard="t", domain_id="north", term=1, session=1, round=1, domain_term=1)
    book = placing.book
    book.write([book.answer(book.next_answer(), large), book.answer(book.next_answer(), sound)])
    async with running(placing.run()):
        await until(lambda: not book.unanswered)
    await placing.stop()
    topic = network.broker.topics.get("meridian.scheduler.answers.v1")
    assert sum(partition.end_offset for partition in topic.partitions) == 2, "the shard is told to begin again"
