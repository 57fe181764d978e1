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

The parties of two levels have replays of their own that stand on this one: shards/replay.py, domains/replay.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from meridian.codec import Envelope
from meridian.errors import MeridianError
from services.scheduler.core import lifecycle, sleeping
from services.scheduler.core.book import Book
from services.scheduler.core.cycle import run_cycle
from services.scheduler.core.idle_nodes import idle_rules_of
from services.scheduler.core.loads import by_load
from services.scheduler.core.measured import News
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
    """A cycle (numbered from 1) that decided something else; ``field`` is the part of the outcome that differs first. On two
    levels a turn of a shard, or a batch of answers or requests, stands for a cycle."""

    cycle: int
    at_s: float
    field: str
    recorded: Any
    replayed: Any


@dataclass(slots=True)
class Report:
    """What a replay found. ``placements`` counts runs that were begun, or units to which a domain gave nodes."""

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
    return Replay(events).run(entries)


class Replay:
    """The steps of a replay by kind of entry; see the module."""

    def __init__(self, events: Mapping[str, Envelope]) -> None:
        self.report = Report()
        self.policy = Policy()
        self.steps: dict[str, Callable[[Entry], None]] = {
            "begin": self.begin,
            "events": self._apply,
            "tick": self._tick,
            "policy": self.change,
            "steps": self._learn,
            "rest": self._rest,
            "cycle": self._decide,
        }
        self._events = events
        self._book: Book | None = None
        self._numbers = count(1)

    def run(self, entries: Iterable[Entry]) -> Report:
        """All entries in order."""
        for entry in entries:
            if not self.report.books and entry.kind != "begin":
                raise ReplayError(f"the journal begins with {entry.kind!r}, not with a book")
            step = self.steps.get(entry.kind)
            if step is None:
                raise ReplayError(f"the journal has an entry {entry.kind!r}; known here are {', '.join(self.steps)}")
            step(entry)
        return self.report

    @property
    def book(self) -> Book:
        """The book as the last entry left it."""
        assert self._book is not None
        return self._book

    def begin(self, entry: Entry) -> None:
        """A book was read from the database."""
        body = entry.body
        loaded = Loaded.from_json(body["loaded"])
        self.policy = policy_from_json(body["policy"])
        run_times = RunTimes.restored(body["run_times"])
        self._book = Book.restored(
            loaded.fleet, loaded.jobs, loaded.units, loaded.runs, self.policy, run_times, loaded.measured
        )
        if loaded.saved is not None:
            self._book.promises.begin(loaded.saved, entry.at_s)
        self._book.begin(entry.at_s)
        self.report.books += 1

    def named(self, names: Iterable[str]) -> list[Envelope]:
        """Events of the log; ReplayError when one is missing."""
        try:
            found = [self._events[name] for name in names]
        except KeyError as error:
            raise ReplayError(f"the event {error.args[0]!r} is not in the log") from None
        self.report.events += len(found)
        return found

    def new_id(self) -> str:
        """A name for a decision."""
        return f"replay-{next(self._numbers)}"

    def compare(self, entry: Entry, recorded: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Note the first part of an outcome that differs."""
        self.report.cycles += 1
        for name, value in recorded.items():
            if value != found.get(name):
                self.report.differences.append(Difference(self.report.cycles, entry.at_s, name, value, found.get(name)))
                return

    def change(self, entry: Entry) -> None:
        """Another policy applies."""
        self.policy = policy_from_json(entry.body)
        self.book.use(self.policy, entry.at_s)

    def _apply(self, entry: Entry) -> None:
        draft = self.book.draft()
        batch = Batch(draft, entry.at_s, self.policy.restarts, set(entry.body["known"]))
        apply(batch, self.named(entry.body["events"]))
        self.book.merge(draft)

    def _tick(self, entry: Entry) -> None:
        book = self.book
        draft = book.draft()
        draft.at_s = entry.at_s
        lifecycle.tick(draft, book.due(entry.at_s), entry.at_s, self.policy.restarts)
        book.merge(draft)

    def _rest(self, entry: Entry) -> None:
        rules = idle_rules_of(self.policy)
        if rules is None or self.book.idle is None:
            raise ReplayError("nodes were told to sleep by a policy that lets them be")
        draft = self.book.draft()
        draft.at_s = entry.at_s
        sleeping.follow(draft, self.book.idle, rules, entry.at_s)
        self.book.merge(draft)

    def _learn(self, entry: Entry) -> None:
        draft = self.book.draft()
        draft.at_s = entry.at_s
        news = News.from_json(entry.body)
        self.book.learn(news, entry.at_s)
        by_load(draft, news, entry.at_s, self.policy.restarts)
        self.book.merge(draft)

    def _decide(self, entry: Entry) -> None:
        book = self.book
        draft = book.draft()
        draft.at_s = entry.at_s
        cycle = run_cycle(draft, self.policy, entry.at_s, self.new_id, entry.body.get("most", 0))
        self.report.placements += len(cycle.begun)
        self.report.preemptions += len(cycle.preempted)
        self.compare(entry, entry.body, outcome_of(cycle))
        book.merge(draft)
        book.remember(cycle.decisions)
