"""Replay without a bus and a database: a recorded history is decided again; what does not fit is said."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from dataclasses import replace as changed
from itertools import count
from typing import Any

import pytest
from google.protobuf.message import Message

from meridian.codec import Envelope
from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.run.v1 import run_pb2
from services.scheduler.core import lifecycle
from services.scheduler.core.book import Book
from services.scheduler.core.cycle import run_cycle
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.policy import Policy
from services.scheduler.core.run_times import RunTimes
from services.scheduler.core.state import RunState
from services.scheduler.events import Batch, apply, event_name
from services.scheduler.journal import Entry, outcome_of, packed, unpacked
from services.scheduler.replay import ReplayError, replay
from services.scheduler.store import Loaded
from tests.unit.scheduler.recorded_messages import envelope, graph

_ids = count(1)
PREEMPTIVE = changed(Policy(), name="preemptive", preemptions=("priority",))


@dataclass
class Recorded:
    """The live service's steps on a book, with their journal."""

    policy: Policy = field(default_factory=Policy)
    now_s: float = 1000.0
    entries: list[Entry] = field(default_factory=list)
    events: dict[str, Envelope] = field(default_factory=dict)
    specs: dict[str, bytes] = field(default_factory=dict)
    most: int = 0
    """What bounds the placements of a cycle."""

    def __post_init__(self) -> None:
        self.book = Book(self.policy)
        self.begin()

    def begin(self) -> None:
        """As at a start: the book is built from what was written."""
        old = self.book
        jobs, units, runs = tuple(old.jobs.values()), tuple(old.units.values()), tuple(old.runs.values())
        loaded = Loaded(old.fleet if jobs or old.fleet.nodes else Fleet(), jobs, units, runs, self.specs)
        self._add("begin", (loaded, self.policy, old.run_times.state()))
        times = RunTimes.restored(old.run_times.state())
        self.book = Book.restored(loaded.fleet, jobs, units, runs, self.policy, times)

    def _add(self, kind: str, body: object) -> None:
        # Through the form in the database, as it is at this moment.
        self.entries += unpacked(packed([Entry(kind, self.now_s, body)]))

    def handle(self, *messages: Message) -> None:
        envelopes = [envelope(message) for message in messages]
        self.events.update({event_name(item): item for item in envelopes})
        draft = self.book.draft()
        batch = Batch(draft, self.now_s, self.policy.restarts, set())
        apply(batch, envelopes)
        self.specs.update(batch.new_specs)
        self.book.merge(draft)
        self._add("events", {"events": [event_name(item) for item in envelopes], "known": []})

    def cycle(self) -> None:
        draft = self.book.draft()
        cycle = run_cycle(draft, self.policy, self.now_s, lambda: f"decision-{next(_ids)}", self.most)
        self.book.merge(draft)
        self.book.remember(cycle.decisions)
        self._add("cycle", outcome_of(cycle))

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        draft = self.book.draft()
        lifecycle.tick(draft, self.book.due(self.now_s), self.now_s, self.policy.restarts)
        self.book.merge(draft)
        self._add("tick", None)

    def use(self, policy: Policy) -> None:
        self.policy = policy
        self.book.cluster.use(policy)
        self._add("policy", policy)


def submitted(number: int, source: random.Random) -> job_pb2.JobSubmitted:
    spec = job_pb2.JobSpec(
        kind=job_pb2.JOB_KIND_GANG,
        ranks=source.randint(1, 4),
        command=["run"],
        priority=source.randint(0, 2),
        max_restarts=3,
        max_run_time_s=source.choice([0, 30, 300]),
        resources=Resources(cpus=source.choice([0.1, 0.7, 3.3]), accelerators=source.choice([0, 1, 2, 4])),
    )
    return job_pb2.JobSubmitted(job_id=f"job-{number}", tenant_id=f"tenant-{number % 3}", spec=spec)


def report(history: Recorded, source: random.Random) -> None:
    """Some runs end: what was told to stop has stopped, the others finish or fail."""
    messages: list[Message] = []
    for run in list(history.book.runs.values()):
        if source.random() < 0.4:
            continue
        name: dict[str, Any] = {"run_id": run.run_id, "job_id": run.key.job_id}
        where = run.domains[0]
        if run.state is RunState.STOPPING:
            kind = run_pb2.RUN_FAILURE_KIND_STOPPED
            messages.append(run_pb2.RunFailed(domain_id=where, kind=kind, **name))
        elif source.random() < 0.2:
            kind = run_pb2.RUN_FAILURE_KIND_PROGRAM
            messages.append(run_pb2.RunFailed(domain_id=where, kind=kind, **name))
        elif source.random() < 0.5:
            messages.append(run_pb2.RunCheckpointed(domain_id=where, step=run.epoch, path="/ckpt", **name))
        else:
            messages.append(run_pb2.RunFinished(domain_id=where, **name))
    if messages:
        history.handle(*messages)


def a_history(seed: int, *policies: Policy) -> Recorded:
    source, history = random.Random(seed), Recorded()
    history.handle(graph(5))
    for number in range(60):
        history.handle(submitted(number, source))
        history.cycle()
        history.advance(source.choice([0.3, 2.0, 20.0]))
        report(history, source)
        history.cycle()
        if number % 15 == 9:
            history.handle(job_pb2.JobCancelRequested(job_id=f"job-{number - 2}", tenant_id="tenant-0"))
        if number % 25 == 24:
            history.handle(graph(4 + number % 2))
        if number % 20 == 12:
            history.use(policies[(number // 20) % len(policies)])
        if number == 40:
            history.begin()
    return history


EASY = changed(Policy(), name="easy", order=("age",), discipline="easy")


@pytest.mark.parametrize("seed", range(4))
def test_the_same_decisions_node_by_node(seed: int) -> None:
    history = a_history(seed, PREEMPTIVE, EASY)
    found = replay(history.entries, history.events)
    assert found.differences == []
    assert (found.books, found.cycles) == (2, 120)
    assert found.placements > 40
    assert found.preemptions > 0


def test_another_decision_is_found_where_it_begins() -> None:
    history = a_history(0, PREEMPTIVE)
    cycles = [entry for entry in history.entries if entry.kind == "cycle"]
    number, first = next(pair for pair in enumerate(cycles, 1) if pair[1].body["placed"])
    first.body["placed"][0][1][0][0] = "elsewhere"
    (difference,) = replay(history.entries, history.events).differences
    assert (difference.cycle, difference.at_s, difference.field) == (number, first.at_s, "placed")


def test_an_event_that_was_left_out_changes_what_follows() -> None:
    history = a_history(0, PREEMPTIVE)
    place = next(place for place, entry in enumerate(history.entries) if entry.kind == "events")
    assert replay([*history.entries[:place], *history.entries[place + 1 :]], history.events).differences


def test_what_does_not_fit_is_said() -> None:
    history = a_history(0, PREEMPTIVE)
    with pytest.raises(ReplayError, match="begins with 'events'"):
        replay(history.entries[1:], history.events)
    missing = history.entries[1].body["events"][0]
    with pytest.raises(ReplayError, match=missing.replace("|", r"\|")):
        replay(history.entries, {name: item for name, item in history.events.items() if name != missing})


def test_bounded_cycles_are_made_again_as_they_were_bounded() -> None:
    history = Recorded()
    source = random.Random(5)
    history.handle(graph(5))
    history.handle(*(submitted(number, source) for number in range(30)))
    for most in (2, 3, 0):
        history.most = most
        history.cycle()
    cycles = [entry.body for entry in history.entries if entry.kind == "cycle"]
    assert [(len(body["placed"]), body["most"]) for body in cycles[:2]] == [(2, 2), (3, 3)]
    assert replay(history.entries, history.events).differences == []
    assert {job_id for body in cycles for job_id, _ in body["placed"]} == set(history.book.runs)
    # Of before there were bounds.
    for body in cycles:
        del body["most"]
    assert replay(history.entries, history.events).differences[0].field == "placed"
