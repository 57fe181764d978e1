"""Service-level objectives of a tenant or queue: what was promised, whether it is kept, what breaking it has cost, and how
urgent a waiting unit is by it.

Times are seconds; inside, whole microseconds, so that sums never drift. Money is integer micro-units of a currency.

What is a violation, and when its penalty accrues (each once):
  recovery_time, response_time   an observation longer than the target: at once
  deadline                       a unit not finished ``target`` seconds (tolerance, usually 0) after its deadline: when
                                 that moment has passed, whether or not it finishes later
  average_wait                   at the end of each window: the average wait of the units that started in it, and of those
                                 that still wait and have already waited longer than the target (else a queue that starts
                                 nothing would break no promise), exceeds the target
  throughput                     at the end of each window: fewer than ``target`` units finished in it although some still
                                 wait at its end (an empty queue is not the provider's fault)
Windows of the last two follow one another from the account's start; `compliance` looks at the sliding window before now.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from meridian.errors import ConflictError, InvalidArgumentError
from services.scheduler.core.sla_values import MICRO, Compliance, Objective, ObjectiveKind, Urgency


@dataclass(slots=True)
class _Unit:
    queued_us: int
    deadline_us: int | None = None
    run_us: int = 0
    lost_us: int | None = None
    due: dict[int, int] = field(default_factory=dict)
    """When each deadline objective (by place) is missed, as long as it is neither kept nor missed."""


@dataclass(slots=True)
class _Book:
    """State of one objective: the sliding window's entries (time, value), and the counters of the current one."""

    objective: Objective
    target_us: int
    window_us: int
    window_end_us: int
    entries: deque[tuple[int, int]] = field(default_factory=deque)
    total: int = 0
    window_count: int = 0
    window_total: int = 0
    violations: int = 0

    def note(self, at_us: int, value: int) -> None:
        self.entries.append((at_us, value))
        self.total += value
        self.window_count += 1
        self.window_total += value

    def forget(self, now_us: int) -> None:
        while self.entries and self.entries[0][0] <= now_us - self.window_us:
            self.total -= self.entries.popleft()[1]


class SlaAccount:
    """Watches the units of one tenant against its objectives. Observations come in order of time.

    Each costs O(objectives), O(log units) where deadlines are kept; the end of a window of average_wait adds the units
    that are overdue then.
    """

    def __init__(self, objectives: Sequence[Objective], start_s: float = 0.0) -> None:
        self._now_us = _micros("start_s", start_s)
        self._books = []
        for item in objectives:
            window_us = _micros("window_s", item.window_s)
            target_us = round(item.target * MICRO)
            self._books.append(_Book(item, target_us, window_us, self._now_us + window_us))
        self._units: dict[str, _Unit] = {}
        self._waiting: dict[str, int] = {}
        self._due: list[tuple[int, str, int]] = []

    # -- observations ----------------------------------------------------------------------------------------------

    def queued(
        self,
        unit: str,
        at_s: float,
        *,
        deadline_s: float | None = None,
        run_time_s: float = 0.0,
        lost_at_s: float | None = None,
    ) -> None:
        """The unit waits from now on. ``deadline_s``: when it is to be finished; ``run_time_s``: how long it is expected to
        run; ``lost_at_s``: when it lost its run, if it is queued again (its deadline stays). ConflictError when it waits
        already."""
        if unit in self._waiting:
            raise ConflictError(f"unit {unit!r} is queued already")
        at_us = _micros("at_s", at_s)
        due_us = None if deadline_s is None else _micros("deadline_s", deadline_s)
        run_us = _micros("run_time_s", run_time_s)
        lost_us = None if lost_at_s is None else _micros("lost_at_s", lost_at_s)
        if run_us < 0:
            raise InvalidArgumentError(f"run_time_s must be at least 0, not {run_time_s!r}")
        self._advance(at_us)
        known = self._units.get(unit)
        if known is None:
            known = self._units[unit] = _Unit(at_us)
        known.queued_us, known.run_us, known.lost_us = at_us, run_us, lost_us
        self._waiting[unit] = at_us
        if due_us is not None and known.deadline_us is None:
            known.deadline_us = due_us
            for place, book in enumerate(self._books):
                if book.objective.kind is ObjectiveKind.DEADLINE:
                    known.due[place] = max(at_us, due_us + book.target_us)
                    heapq.heappush(self._due, (known.due[place], unit, place))

    def started(self, unit: str, at_s: float) -> None:
        """The unit no longer waits. ConflictError when it did not."""
        at_us = _micros("at_s", at_s)
        if unit not in self._waiting:
            raise ConflictError(f"unit {unit!r} is not queued")
        self._advance(at_us)
        self._note(ObjectiveKind.AVERAGE_WAIT, at_us - self._waiting.pop(unit))

    def finished(self, unit: str, at_s: float) -> None:
        """The unit has done its work. ConflictError when it is unknown or still waits."""
        at_us = _micros("at_s", at_s)
        if unit not in self._units or unit in self._waiting:
            raise ConflictError(f"unit {unit!r} is not running")
        self._advance(at_us)
        gone = self._units.pop(unit)
        self._note(ObjectiveKind.THROUGHPUT, 1)
        for place in gone.due:  # those still open: what is late was charged by `_advance`
            self._books[place].note(at_us, 1)

    def withdrawn(self, unit: str, at_s: float) -> None:
        """The unit was cancelled: nothing more is promised. ConflictError when it is unknown."""
        at_us = _micros("at_s", at_s)
        if unit not in self._units:
            raise ConflictError(f"unit {unit!r} is not known")
        self._advance(at_us)
        self._units.pop(unit)
        self._waiting.pop(unit, None)

    def recovered(self, at_s: float, took_s: float, unit: str = "") -> None:
        """A lost run goes on again after ``took_s``; ``unit``, when named, no longer counts as lost."""
        self._measured(ObjectiveKind.RECOVERY_TIME, at_s, took_s)
        if unit in self._units:
            self._units[unit].lost_us = None

    def responded(self, at_s: float, took_s: float) -> None:
        """A service answered after ``took_s``."""
        self._measured(ObjectiveKind.RESPONSE_TIME, at_s, took_s)

    def advance(self, now_s: float) -> None:
        """Nothing happened until ``now_s``: closes windows and finds deadlines that have passed."""
        self._advance(_micros("now_s", now_s))

    def adopted(self, unit: str, at_s: float) -> None:
        """The unit runs already and is known from now on; nothing is observed. ConflictError when it was known."""
        at_us = _micros("at_s", at_s)
        if unit in self._units:
            raise ConflictError(f"unit {unit!r} is known already")
        self._advance(at_us)
        self._units[unit] = _Unit(at_us)

    # -- keeping ---------------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """The time it was advanced to."""
        return self._now_us / MICRO

    def knows(self, unit: str) -> bool:
        """Whether the unit waits or runs."""
        return unit in self._units

    def waits(self, unit: str) -> bool:
        """Whether the unit waits."""
        return unit in self._waiting

    def snapshot(self) -> SlaAccount:
        """A copy that goes its own way."""
        other = object.__new__(SlaAccount)
        other._now_us = self._now_us
        other._books = [replace(book, entries=book.entries.copy()) for book in self._books]
        other._units = {name: replace(item, due=dict(item.due)) for name, item in self._units.items()}
        other._waiting, other._due = dict(self._waiting), list(self._due)
        return other

    def state(self) -> dict[str, Any]:
        """Everything as JSON types; see `load`."""
        return {
            "now_us": self._now_us,
            "books": [
                [asdict(book.objective), book.window_end_us, list(book.entries), book.window_count, book.window_total,
                 book.violations]
                for book in self._books
            ],
            "units": [
                [name, item.queued_us, item.deadline_us, item.run_us, item.lost_us, list(item.due.items())]
                for name, item in self._units.items()
            ],
            "waiting": list(self._waiting.items()),
        }  # fmt: skip

    def load(self, state: Mapping[str, Any]) -> None:
        """Be as `state` had it. An objective that is not in it has nothing behind it; one that is in it alone is dropped."""
        self._now_us = state["now_us"]
        known = {place: (body, rest) for place, (body, *rest) in enumerate(state["books"])}
        places: dict[int, int] = {}
        for mine, book in enumerate(self._books):
            book.window_end_us = self._now_us + book.window_us
            place = next((at for at, (body, _) in known.items() if body == asdict(book.objective)), None)
            if place is None:
                continue
            places[place] = mine
            _, (book.window_end_us, entries, book.window_count, book.window_total, book.violations) = known.pop(place)
            book.entries = deque((at_us, value) for at_us, value in entries)
            book.total = sum(value for _, value in book.entries)
        self._units, self._due = {}, []
        for name, queued_us, deadline_us, run_us, lost_us, due in state["units"]:
            # By place among the objectives of then: they may stand at others now.
            kept = {places[place]: at_us for place, at_us in due if place in places}
            self._units[name] = _Unit(queued_us, deadline_us, run_us, lost_us, kept)
            self._due += [(at_us, name, place) for place, at_us in kept.items()]
        heapq.heapify(self._due)
        self._waiting = dict(state["waiting"])

    # -- reading ---------------------------------------------------------------------------------------------------

    def compliance(self, now_s: float) -> list[Compliance]:
        """How each objective stands at ``now_s``, in the order given. Advances the account to it."""
        self.advance(now_s)
        return [self._stand(book) for book in self._books]

    def penalties(self, now_s: float) -> dict[str, int]:
        """Penalties accrued until ``now_s``: micro-units by currency. Advances the account to it."""
        self.advance(now_s)
        owed: dict[str, int] = {}
        for book in self._books:
            currency = book.objective.currency
            owed[currency] = owed.get(currency, 0) + book.violations * book.objective.penalty_micro_units
        return owed

    def urgency(self, unit: str, now_s: float) -> Urgency:
        """How pressing a waiting unit is at ``now_s``; changes nothing. ConflictError when it does not wait.

        Slacks: deadline + tolerance - now - expected run time; queued + target - now for the average wait, of which one
        of n waiting units bears 1/n of the penalty; lost + target - now for recovery. A deadline already missed is charged
        and no longer counts, so that lost causes do not delay what can still be kept. Penalties are compared by number
        whatever their currency.
        """
        if unit not in self._waiting:
            raise ConflictError(f"unit {unit!r} is not queued")
        now_us = _micros("now_s", now_s)
        item = self._units[unit]
        slack, rate = math.inf, 0.0
        for place, book in enumerate(self._books):
            stake = float(book.objective.penalty_micro_units)
            if book.objective.kind is ObjectiveKind.DEADLINE and item.deadline_us is not None:
                last_us = item.deadline_us + book.target_us
                if place not in item.due or now_us > last_us:
                    continue
                left = (last_us - now_us - item.run_us) / MICRO
            elif book.objective.kind is ObjectiveKind.AVERAGE_WAIT:
                left = (item.queued_us + book.target_us - now_us) / MICRO
                stake /= len(self._waiting)
            elif book.objective.kind is ObjectiveKind.RECOVERY_TIME and item.lost_us is not None:
                left = (item.lost_us + book.target_us - now_us) / MICRO
            else:
                continue
            slack = min(slack, left)
            rate += stake / max(left, 1.0)
        return Urgency(slack, -rate)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _measured(self, kind: ObjectiveKind, at_s: float, took_s: float) -> None:
        at_us, took_us = _micros("at_s", at_s), _micros("took_s", took_s)
        if took_us < 0:
            raise InvalidArgumentError(f"took_s must be at least 0, not {took_s!r}")
        self._advance(at_us)
        for book in self._books:
            if book.objective.kind is kind:
                kept = took_us <= book.target_us
                book.note(at_us, int(kept))
                book.violations += not kept

    def _note(self, kind: ObjectiveKind, value: int) -> None:
        for book in self._books:
            if book.objective.kind is kind:
                book.note(self._now_us, value)

    def _advance(self, now_us: int) -> None:
        if now_us < self._now_us:
            raise InvalidArgumentError(f"time went back from {self._now_us / MICRO} to {now_us / MICRO}")
        self._now_us = now_us
        while self._due and self._due[0][0] < now_us:
            late_us, unit, place = heapq.heappop(self._due)
            item = self._units.get(unit)
            # Otherwise the unit is gone, or another bears its name.
            if item is not None and item.due.get(place) == late_us:
                del item.due[place]
                self._books[place].note(late_us, 0)
                self._books[place].violations += 1
        for book in self._books:
            if book.objective.kind in {ObjectiveKind.AVERAGE_WAIT, ObjectiveKind.THROUGHPUT}:
                self._close_windows(book, now_us)
            book.forget(now_us)

    def _close_windows(self, book: _Book, now_us: int) -> None:
        """Judges every window that ended at or before now. Nothing started, finished or joined since the last observation,
        so all but the first of several are empty and alike but for the waits."""
        if now_us < book.window_end_us:
            return
        end_us = book.window_end_us
        further = (now_us - end_us) // book.window_us
        if book.objective.kind is ObjectiveKind.THROUGHPUT:
            if self._waiting:
                book.violations += book.window_count < book.objective.target
                book.violations += further if book.objective.target > 0 else 0
        else:
            count, total = self._overdue(book, end_us)
            count, total = count + book.window_count, total + book.window_total
            book.violations += total > book.target_us * count
            if self._waiting and further:
                # Units are kept in order of queueing: the first is the oldest, overdue from then on.
                late_us = next(iter(self._waiting.values())) + book.target_us
                before = max(0, (late_us - end_us) // book.window_us) if late_us >= end_us else 0
                book.violations += max(0, further - before)
        book.window_end_us = end_us + (further + 1) * book.window_us
        book.window_count = book.window_total = 0

    def _overdue(self, book: _Book, at_us: int) -> tuple[int, int]:
        """(Number, summed waits in microseconds) of units that have waited longer than the target at a moment."""
        count = total = 0
        for queued_us in self._waiting.values():
            if at_us - queued_us <= book.target_us:
                break
            count += 1
            total += at_us - queued_us
        return count, total

    def _stand(self, book: _Book) -> Compliance:
        seen, objective = len(book.entries), book.objective
        if objective.kind is ObjectiveKind.AVERAGE_WAIT:
            count, total = self._overdue(book, self._now_us)
            count, total = count + seen, total + book.total
            average = total / count / MICRO if count else math.nan
            return Compliance(average, total <= book.target_us * count, count, book.violations)
        if objective.kind is ObjectiveKind.THROUGHPUT:
            return Compliance(float(seen), seen >= objective.target or not self._waiting, seen, book.violations)
        share = book.total / seen if seen else math.nan
        return Compliance(share, book.total == seen, seen, book.violations)


def _micros(name: str, seconds: float) -> int:
    if not math.isfinite(seconds):
        raise InvalidArgumentError(f"{name} must be finite, not {seconds!r}")
    return round(seconds * MICRO)
