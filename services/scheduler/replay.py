"""Replay: the decisions of the live scheduler made again from its journal and the event log, without a database or a clock.

    entries = [entry for body in bodies for entry in journal.unpacked(body)]
    report = replay(entries, {event_name(item): item for item in envelopes})
    assert not report.differences

Steps:
1. A ``begin`` entry gives the book as it was read from the database, the policy and what was known of run times.
2. Events, deadlines and changes of the policy are applied in the order and at the times of the journal, by the functions that
   the live service calls.
3. Each cycle is decided again on the book's cluster and compared with what was recorded: runs with their nodes and devices,
   nodes kept, runs taken off, reservations, how many wait, and by which policy. Then it is carried out, so that a difference
   shows once where it begins, and again in whatever follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from meridian.codec import Envelope
from meridian.errors import MeridianError
from services.scheduler.core import lifecycle
from services.scheduler.core.book import Book
from services.scheduler.core.cycle import run_cycle
from services.scheduler.core.policy import Policy, policy_from_json
from services.scheduler.core.run_times import RunTimes
from services.scheduler.events import Batch, apply
from services.scheduler.journal import Entry, outcome_of
from services.scheduler.store import Loaded


class ReplayError(MeridianError):
    """The journal and the event log do not fit together."""

    code = "REPLAY"
    status = 422
    title = "Replay is not possible"


@dataclass(frozen=True, slots=True)
class Difference:
    """A cycle (numbered from 1) that decided something else; ``field`` is the part of the outcome that differs first."""

    cycle: int
    at_s: float
    field: str
    recorded: Any
    replayed: Any


@dataclass(slots=True)
class Report:
    """What a replay found. ``placements`` counts runs that were begun."""

    cycles: int = 0
    placements: int = 0
    preemptions: int = 0
    events: int = 0
    books: int = 0
    differences: list[Difference] = field(default_factory=list)


def replay(entries: Iterable[Entry], events: Mapping[str, Envelope]) -> Report:
    """Make all decisions again. ``events``: by `events.event_name`, at least those that the entries name.

    ReplayError when the first entry does not begin a book, or an event is missing.
    """
    return _Replay(events).run(entries)


class _Replay:
    def __init__(self, events: Mapping[str, Envelope]) -> None:
        self._events = events
        self._report = Report()
        self._book: Book | None = None
        self._policy = Policy()
        self._numbers = count(1)

    def run(self, entries: Iterable[Entry]) -> Report:
        steps = {
            "begin": self._begin,
            "events": self._apply,
            "tick": self._tick,
            "policy": self._change,
            "cycle": self._decide,
        }
        for entry in entries:
            if self._book is None and entry.kind != "begin":
                raise ReplayError(f"the journal begins with {entry.kind!r}, not with a book")
            steps[entry.kind](entry)
        return self._report

    def _known_book(self) -> Book:
        assert self._book is not None
        return self._book

    def _begin(self, entry: Entry) -> None:
        body = entry.body
        loaded = Loaded.from_json(body["loaded"])
        self._policy = policy_from_json(body["policy"])
        run_times = RunTimes.restored(body["run_times"])
        self._book = Book.restored(loaded.fleet, loaded.jobs, loaded.units, loaded.runs, self._policy, run_times)
        if loaded.saved is not None:
            self._book.promises.begin(loaded.saved, entry.at_s)
        self._report.books += 1

    def _apply(self, entry: Entry) -> None:
        book = self._known_book()
        draft = book.draft()
        batch = Batch(draft, entry.at_s, self._policy.restarts, set(entry.body["known"]))
        try:
            envelopes = [self._events[name] for name in entry.body["events"]]
        except KeyError as error:
            raise ReplayError(f"the event {error.args[0]!r} is not in the log") from None
        apply(batch, envelopes)
        book.merge(draft)
        self._report.events += len(envelopes)

    def _tick(self, entry: Entry) -> None:
        book = self._known_book()
        draft = book.draft()
        draft.at_s = entry.at_s
        lifecycle.tick(draft, book.due(entry.at_s), entry.at_s, self._policy.restarts)
        book.merge(draft)

    def _change(self, entry: Entry) -> None:
        self._policy = policy_from_json(entry.body)
        self._known_book().use(self._policy, entry.at_s)

    def _decide(self, entry: Entry) -> None:
        book, report = self._known_book(), self._report
        draft = book.draft()
        draft.at_s = entry.at_s
        cycle = run_cycle(draft, self._policy, entry.at_s, lambda: f"replay-{next(self._numbers)}")
        report.cycles += 1
        report.placements += len(cycle.begun)
        report.preemptions += len(cycle.preempted)
        found = outcome_of(cycle)
        for name, recorded in entry.body.items():
            if recorded != found.get(name):
                report.differences.append(Difference(report.cycles, entry.at_s, name, recorded, found.get(name)))
                break
        book.merge(draft)
        book.remember(cycle.decisions)
