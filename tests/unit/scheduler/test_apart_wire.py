"""What shards and domains say, through the contracts and back."""

from __future__ import annotations

from dataclasses import fields, replace

from meridian.contracts.scheduler.v1 import scheduler_pb2
from services.scheduler.core.apart.messages import Asleep, GrantName, Holding, Reply, Request, Session, Wanted
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.table import DeviceModel
from services.scheduler.core.two_level import ANY, DomainSummary
from services.scheduler.shards.wire import (
    answer_from,
    answer_message,
    demand_from,
    demand_message,
    request_from,
    request_message,
)

NAME = GrantName(UnitKey("job-1", 2), 3)
RANKS = (PlacedRank(4, "east", "east-1", 1, (0, 7), 250), PlacedRank(5, "east", "east-2", 0, ()))
FULL = Demand(
    ranks=3,
    cpus=1.5,
    memory_bytes=2**33,
    accelerators=2,
    accelerator_types=("a100", "h100"),
    domains=frozenset({"east", "west"}),
    excluded_domains=frozenset({"north"}),
    min_security_level=2,
    real_accelerators=True,
    cross_domain=True,
    service_port=8080,
    excluded_nodes=frozenset({"east-9"}),
    checkpoint_domain="west",
    checkpoint_bytes=2**30,
    device_milli=250,
    resources=(("fpga", 1.0), ("licence", 2.0)),
    topology="rack",
    topology_required=True,
    labels=frozenset({"training"}),
    avoid=frozenset({"inference"}),
    profile="bert",
    data=(("north", 1e9), ("west", 2e9)),
    traffic_bytes_per_s=1e8,
)


def test_no_field_of_a_demand_is_forgotten() -> None:
    default = Demand(1)
    for item in fields(Demand):
        if item.compare:
            assert getattr(FULL, item.name) != getattr(default, item.name), f"{item.name} is not tried here"
    parsed = scheduler_pb2.Demand.FromString(demand_message(FULL).SerializeToString())
    assert demand_from(parsed) == FULL
    assert hash(demand_from(parsed)) == hash(FULL)
    assert demand_from(demand_message(default)) == default


def test_a_request_comes_as_it_was_sent() -> None:
    request = Request(
        "east",
        "scheduler_1",
        Session(4, 2),
        7,
        begins=True,
        holdings=(
            Holding(NAME, "lab", FULL, RANKS, 1000.25),
            Holding(NAME, "lab", FULL, (), 0.0),
            Holding(NAME, "lab", FULL, RANKS, 1000.5, waking=True, least_milli=100, asked_milli=700),
        ),
        released=(GrantName(UnitKey("job-0", 0), 1),),
        classes=((1, FULL), (2, Demand(1, cpus=1.0))),
        dropped_classes=(9,),
        wanted=(
            Wanted(NAME, "lab", 1, None, 0, True, 60.0),
            Wanted(NAME, "lab", 0, Demand(2, cpus=1.0), 4, False, wake=True, least_milli=200),
        ),
        waiting=True,
        own_scheduler=True,
        waiting_classes=(2, 1),
        parts=((NAME, 800),),
    )
    message = request_message(request, 1234.5)
    assert request_from(scheduler_pb2.PlacementRequest.FromString(message.SerializeToString())) == request
    nothing = Request("east", "scheduler", Session(1, 1), holdings=())
    assert request_from(request_message(nothing, 0.0)).holdings == ()
    assert request_from(request_message(Request("east", "scheduler", Session(1, 1)), 0.0)).holdings is None


def test_an_answer_comes_as_it_was_sent() -> None:
    model, nameless = DeviceModel("NVIDIA", "A100", False), DeviceModel("", "", False)
    summary = DomainSummary(
        "east",
        (3 << 32) + 5,
        {},
        {model: (1, 0, 2), nameless: (0, 1)},
        {model: 8, nameless: 1},
        12.5,
        64.0,
        2**35,
        2,
        6,
    )
    reply = Reply(
        "scheduler_1",
        "east",
        Session(4, 2),
        7,
        3,
        ((NAME, RANKS),),
        ((GrantName(UnitKey("job-9", 0), 1), "no room"),),
        summary,
        {1: {model: 4, nameless: 1}, 2: {ANY: 12}},
        True,
        wake_s={NAME: 30.5},
        asleep=Asleep(replace(summary, free_cpus=3.0), {1: {model: 8}, 2: {ANY: 1}}),
        parts=((NAME, 400),),
    )
    message = answer_message(reply, 1234.5)
    found = answer_from(scheduler_pb2.PlacementAnswer.FromString(message.SerializeToString()))
    assert found.summary.share_gap != found.summary.share_gap, "not a number: it does not travel"
    for item in fields(Reply):
        if item.name not in {"summary", "asleep"}:
            assert getattr(found, item.name) == getattr(reply, item.name)
    assert found.asleep is not None
    assert reply.asleep is not None
    assert found.asleep.rooms == reply.asleep.rooms
    for part in fields(DomainSummary):
        if part.name != "share_gap":
            assert getattr(found.summary, part.name) == getattr(summary, part.name)
            assert getattr(found.asleep.summary, part.name) == getattr(reply.asleep.summary, part.name)
    awake = answer_from(answer_message(replace(reply, wake_s={}, asleep=None), 1234.5))
    assert (awake.wake_s, awake.asleep) == ({}, None)
