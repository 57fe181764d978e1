"""A decider of domains without a bus and a database, and its journal: what it decided comes out again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from google.protobuf.message import Message

from meridian.codec import Envelope
from meridian.contracts.forecast.v1.forecast_pb2 import (
    FORECAST_SUBJECT_KIND_DOMAIN,
    DemandForecast,
    ForecastPoint,
)
from meridian.contracts.graph.v1.graph_pb2 import NODE_STATE_ASLEEP, NODE_STATE_HEALTHY, NodeStateChanged
from services.scheduler.core.apart.messages import GrantName, Reply, Request, Session, Wanted
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.policy import Policy, policy_from_json
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.domains.deciding import Deciding
from services.scheduler.domains.journal import DeciderJournal
from services.scheduler.domains.replay import replay
from services.scheduler.events import event_name
from services.scheduler.journal import Entry, packed, unpacked
from services.scheduler.replay import ReplayError
from services.scheduler.shards.wire import request_message
from tests.unit.scheduler.recorded_messages import envelope, graph

POLICY = Policy()


def wanted(job_id: str, accelerators: int, epoch: int = 1) -> Wanted:
    demand = Demand(1, cpus=1.0, accelerators=accelerators)
    return Wanted(GrantName(UnitKey(job_id, 0), epoch), "lab", 0, demand)


class Collected(DeciderJournal):
    """A journal in memory, in the form of the database."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.term = 3

    def _add(self, kind: str, at_s: float, body: object) -> None:
        self.entries += unpacked(packed([Entry(kind, at_s, body)]))


class Live:
    """What the live decider does, without its transactions."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.policy = policy
        self.journal, self.events = Collected(), dict[str, Envelope]()
        self.deciding = Deciding(Fleet(), policy, 0)
        self.now_s = 1000.0
        self.load()

    def load(self) -> None:
        """Everything is read again, as it was written."""
        grants = {name: list(item.grants.values()) for name, item in self.deciding.domains.items()}
        sessions = {name: item.sessions for name, item in self.deciding.domains.items()}
        counted = self.deciding.next_count()
        self.journal.begin(self.now_s, self.deciding.fleet, self.policy, grants, sessions, counted)
        self.deciding = Deciding(self.deciding.fleet, self.policy, 3, grants, sessions, counted, self.now_s)

    def learn(self, *messages: Message) -> None:
        self.now_s += 1.0
        envelopes = [envelope(message) for message in messages]
        self.events.update({event_name(item): item for item in envelopes})
        found = self.deciding.learned(envelopes, self.now_s)
        assert found is not None
        self.journal.fleet(self.now_s, [event_name(item) for item in envelopes], found[0], self.policy)

    def ask(self, *requests: Request) -> list[Reply]:
        self.now_s += 1.0
        replies, _ = self.deciding.asked(requests, self.now_s)
        messages = [request_message(item, self.now_s) for item in requests]
        self.journal.requests(self.now_s, messages, replies, self.policy, self.deciding.take_woken())
        return replies

    def rest(self, after_s: float) -> list[str]:
        self.now_s += after_s
        told, replies, _ = self.deciding.rest(self.now_s)
        self.journal.rest(self.now_s, told, replies, self.policy)
        return [name for item in told for name in item.node_ids]


def a_day() -> Live:
    """Two shards in one domain: one takes what there is, the other waits until some of it is given back."""
    live = Live()
    live.learn(graph(2))
    first, second = Session(1, 1), Session(4, 2)
    live.ask(Request("north", "a", first, 1, begins=True, holdings=()))
    live.ask(Request("north", "a", first, 2, wanted=(wanted("job-1", 4), wanted("job-2", 3))))
    refused = live.ask(Request("north", "b", second, 1, begins=True, wanted=(wanted("job-3", 2),), waiting=True))
    assert [name.key.job_id for name, _ in refused[0].refused] == ["job-3"]
    live.load()
    told = live.ask(Request("north", "a", first, released=(wanted("job-1", 4).name,)))
    assert [item.shard for item in told] == ["b"]
    granted = live.ask(Request("north", "b", second, 2, wanted=(wanted("job-3", 2),)))
    assert [len(ranks) for _, ranks in granted[0].placed] == [1]
    live.learn(graph(1))
    return live


def test_a_decider_decides_the_same_again() -> None:
    live = a_day()
    report = replay(live.journal.entries, live.events)
    assert report.differences == []
    # Seven batches: two of the fleet, five of requests. Three units got nodes.
    assert (report.cycles, report.books, report.placements, report.events) == (7, 2, 3, 2)


def a_night() -> Live:
    """Two nodes that wake in 30 s: one of them is forecast to be needed, the other sleeps and is woken for a unit."""
    live = Live(policy_from_json({"options": {"idle_nodes": {"sleep_after_s": 100.0}}}))
    domain = graph(2)
    for node in domain.nodes:
        node.inventory.wake_s = 30.0
    points = [ForecastPoint(horizon_s=3600.0, expected=3.0)]
    forecast = DemandForecast(subject_kind=FORECAST_SUBJECT_KIND_DOMAIN, subject_id="north", points=points)
    live.learn(domain, forecast)
    assert live.rest(50.0) == []
    assert live.rest(60.0) == ["north-0"]
    live.learn(NodeStateChanged(domain_id="north", node_id="north-0", state=NODE_STATE_ASLEEP))
    first = Session(1, 1)
    live.ask(Request("north", "a", first, 1, begins=True, wanted=(wanted("job-1", 4),)))
    (answer,) = live.ask(Request("north", "a", first, 2, wanted=(replace(wanted("job-2", 4), wake=True),)))
    assert list(answer.wake_s.values()) == [30.0]
    live.load()
    live.learn(NodeStateChanged(domain_id="north", node_id="north-0", state=NODE_STATE_HEALTHY))
    return live


def test_a_decider_that_puts_nodes_to_sleep_and_wakes_them_decides_the_same_again() -> None:
    live = a_night()
    assert replay(live.journal.entries, live.events).differences == []
    resting = [item for item in live.journal.entries if item.kind == "rest"][1]
    assert resting.body["outcome"]["slept"] == [["north", "north-0"]]
    waking = [item for item in live.journal.entries if item.kind == "requests"][1]
    assert waking.body["outcome"]["woken"] == [["north", "job-2.0.1", "north-0"]]
    resting.body["outcome"]["slept"] = []
    waking.body["outcome"]["woken"] = []
    found = replay(live.journal.entries, live.events).differences
    assert [(item.field, item.at_s) for item in found] == [("slept", resting.at_s), ("woken", waking.at_s)]


def test_other_nodes_than_were_recorded_are_told() -> None:
    live = a_day()
    granting = [item for item in live.journal.entries if item.kind == "requests"][1]
    granting.body["outcome"]["replies"][0][3][0][1][0][0] = "north-7"
    (found,) = replay(live.journal.entries, live.events).differences
    assert (found.cycle, found.field, found.at_s) == (3, "replies", granting.at_s)


@pytest.mark.parametrize("kind", ["cycle", "answers"])
def test_a_journal_of_somebody_else_is_refused(kind: str) -> None:
    live = a_day()
    with pytest.raises(ReplayError, match=f"an entry '{kind}'"):
        replay([live.journal.entries[0], Entry(kind, 0.0, {})], live.events)


def test_an_event_that_is_gone_is_named() -> None:
    live = a_day()
    with pytest.raises(ReplayError, match="is not in the log"):
        replay(live.journal.entries, {})


def sequences(replies: Iterable[Reply]) -> list[int]:
    return [item.summary.sequence for item in replies]


def test_sequences_go_on_when_everything_is_read_again_in_one_term() -> None:
    live = Live()
    live.learn(graph(2))
    session = Session(1, 1)
    before = live.ask(Request("north", "a", session, 1, begins=True, wanted=(wanted("job-1", 1), wanted("job-2", 1))))
    # After a commit whose fate is unknown; a shard passes over summaries with a smaller sequence.
    live.load()
    after = live.ask(Request("north", "a", session, 2))
    assert sequences(after) > sequences(before)
