"""A request that cannot be carried out is set aside with its reason; it does not end the agent, nor is anything given away by it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from agent.placing.soundness import why_unsound
from meridian.contracts.scheduler.v1.scheduler_pb2 import (
    Demand,
    DemandClass,
    GrantName,
    Holding,
    PlacementRequest,
    WantedUnit,
)
from tests.unit.agent.broker_network import Network, network, placing_of, running, until

__all__ = ["network"]


def _request(**fields: object) -> PlacementRequest:
    given = {"domain_id": "north", "shard": "s", "term": 1, "session": 1, "begins": True, "complete": True, "round": 1}
    return PlacementRequest(**{**given, **fields})  # type: ignore[arg-type]


def _wants(demand: Demand, **fields: object) -> PlacementRequest:
    given = {"job_id": "j", "unit_index": 0, "epoch": 1, "demand": demand}
    return _request(wanted=[WantedUnit(**{**given, **fields})])  # type: ignore[arg-type]


UNSOUND: list[tuple[Callable[[], PlacementRequest], str]] = [
    (lambda: _request(shard=""), "shard"),
    (lambda: _wants(Demand(ranks=2), first_rank=2**31 - 2), "first_rank"),
    (lambda: _wants(Demand(ranks=1), first_rank=-1), "first_rank"),
    (lambda: _wants(Demand(ranks=1, cpus=math.nan)), "cpus"),
    (lambda: _wants(Demand(ranks=1, cpus=math.inf)), "cpus"),
    (lambda: _wants(Demand(ranks=1, cpus=-4)), "cpus"),
    (lambda: _wants(Demand(ranks=1, memory_bytes=-1)), "memory_bytes"),
    (lambda: _wants(Demand(ranks=1, accelerators=-1)), "accelerators"),
    (lambda: _wants(Demand(ranks=1, device_milli=1001)), "device_milli"),
    (lambda: _wants(Demand(ranks=1, resources={"seats": math.nan})), "seats"),
    (lambda: _wants(Demand()), "ranks"),
    (lambda: _wants(Demand(ranks=2**31 - 1)), "ranks"),
    (lambda: _wants(Demand(ranks=1), job_id="../../j"), "job_id"),
    (lambda: _wants(Demand(ranks=1), epoch=0), "epoch"),
    (lambda: _wants(Demand(ranks=1), time_limit_s=math.nan), "time_limit_s"),
    (lambda: _request(classes=[DemandClass(number=1, demand=Demand(ranks=1, cpus=math.nan))]), "classes[0]"),
    (lambda: _request(holdings=[Holding(name=GrantName(job_id="", epoch=1), demand=Demand(ranks=1))]), "holdings[0]"),
]


@pytest.mark.parametrize(("request_of", "field"), UNSOUND)
def test_what_cannot_be_is_named(request_of: Callable[[], PlacementRequest], field: str) -> None:
    assert field in why_unsound(request_of())


def test_sound_requests() -> None:
    of_class = [WantedUnit(job_id="j", epoch=3, class_number=1, first_rank=2**30)]
    classes = [DemandClass(number=1, demand=Demand(ranks=2, cpus=0.5, resources={"seats": 1}))]
    assert why_unsound(_request(classes=classes, wanted=of_class)) == ""
    assert why_unsound(_wants(Demand(ranks=1), time_limit_s=math.inf)) == ""
    assert why_unsound(_request(round=0, waiting=True)) == ""


async def test_the_agent_lives_on_and_answers_others(network: Network) -> None:
    placing = placing_of(network, 1)
    await placing.start()
    async with running(placing.run()):
        for request_of, _ in UNSOUND:
            await network.send(request_of(), 0)
        await network.send(_wants(Demand(ranks=1, cpus=8), job_id="sound"), 0)
        await until(lambda: ("sound", 0) in placing.book.grants)
    assert list(placing.book.grants) == [("sound", 0)]
    letters = network.broker.topics.get(f"{placing._topic.name}.dlq").partitions[0]
    assert letters.end_offset == len(UNSOUND)
    await placing.stop()
