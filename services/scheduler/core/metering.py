"""From programs' reports of steps to rates: what the live service measures before it tells the book of it.

Steps:
1. Of each run the reports of one domain count (the first that reports), by that domain's clock. The first report begins the
   measurement, so that what a program does before its first steps is no part of it.
2. The rate of a run is that of its last `WINDOW_S`: steps between the oldest and the newest report of the window over the time
   between them, pauses for checkpoints included. Fewer than `LEAST_STEPS` steps, or less than `LEAST_S`, say nothing.
3. The rate of a job with a model and a number of ranks is the mean of its runs that are measured.
4. `news` tells rates that are new or have changed by more than `CHANGE`, and the newest steps of each unit.

Reports come from programs: steps that go back begin the measurement anew, reports out of order are passed over. Their times are by
a domain's clock, which may be wrong: where the newest was dated more than `AHEAD_S` ahead of when it was heard, an earlier date means
that the clock was set back, and the measurement begins anew. No steps are done later than they were heard of.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from services.scheduler.core.measured import Cell, Done, News
from services.scheduler.core.state import UnitKey

WINDOW_S = 600.0
LEAST_STEPS = 3
LEAST_S = 1.0
CHANGE = 0.05
AHEAD_S = 60.0
_POINTS = 32


@dataclass(frozen=True, slots=True)
class Report:
    """A program's report: ``step`` of ``total`` (0: it does not say) at ``at_s`` by the clock of ``domain_id``; ``heard_s`` is when
    it was heard, by the scheduler's clock."""

    run_id: str
    domain_id: str
    step: int
    total: int
    at_s: float
    heard_s: float = math.inf


@dataclass(slots=True)
class _Track:
    """A run: where it runs, reports of the window (time, steps), oldest first, and when the newest was heard."""

    key: UnitKey
    cell: Cell
    domain_id: str
    total: int = 0
    points: deque[tuple[float, int]] = field(default_factory=deque)
    heard_s: float = math.inf

    def add(self, at_s: float, step: int, heard_s: float) -> bool:
        points = self.points
        if points and at_s <= points[-1][0]:
            if at_s == points[-1][0] or points[-1][0] <= heard_s + AHEAD_S:
                return False
            points.clear()
        self.heard_s = heard_s
        if points and step < points[-1][1]:
            points.clear()
        if len(points) > 1 and at_s - points[-2][0] < WINDOW_S / _POINTS:
            points[-1] = at_s, step
        else:
            points.append((at_s, step))
        while len(points) > 2 and at_s - points[1][0] >= WINDOW_S:
            points.popleft()
        return True

    @property
    def done(self) -> Done:
        at_s, step = self.points[-1]
        return Done(step, self.total, min(at_s, self.heard_s))

    @property
    def rate(self) -> float | None:
        (begun_s, before), (at_s, step) = self.points[0], self.points[-1]
        if step - before < LEAST_STEPS or at_s - begun_s < LEAST_S:
            return None
        return (step - before) / (at_s - begun_s)


class Metering:
    """See the module."""

    def __init__(self) -> None:
        self._tracks: dict[str, _Track] = {}
        self._fresh: dict[str, None] = {}
        self._told: dict[tuple[str, Cell], float] = {}

    def report(self, key: UnitKey, cell: Cell, report: Report) -> None:
        """A run of a unit reports."""
        track = self._tracks.get(report.run_id)
        if track is None:
            track = self._tracks[report.run_id] = _Track(key, cell, report.domain_id)
        if report.domain_id != track.domain_id or not track.add(report.at_s, report.step, report.heard_s):
            return
        track.total = report.total or track.total
        self._fresh[report.run_id] = None

    def news(self, open_runs: Collection[str]) -> News:
        """What is to be told, once; runs that are not among those open are forgotten."""
        for run_id in [name for name in self._tracks if name not in open_runs]:
            del self._tracks[run_id]
            self._fresh.pop(run_id, None)
        fresh = [self._tracks[run_id] for run_id in self._fresh]
        self._fresh.clear()
        cells = dict.fromkeys((track.key.job_id, track.cell) for track in fresh)
        measured: dict[tuple[str, Cell], list[float]] = {}
        if cells:
            for track in self._tracks.values():
                name = (track.key.job_id, track.cell)
                if name in cells and (rate := track.rate) is not None:
                    measured.setdefault(name, []).append(rate)
        rates = []
        for name, found in measured.items():
            rate, before = sum(found) / len(found), self._told.get(name)
            if before is None or abs(rate - before) > CHANGE * before:
                self._told[name] = rate
                rates.append((*name, rate))
        done = [(track.key, track.done) for track in fresh]
        self._forget_untracked()
        return News(tuple(rates), tuple(done))

    def begin(self) -> None:
        """The book was built anew: what was told to the one before is told again."""
        self._told.clear()
        self._fresh = dict.fromkeys(self._tracks)

    def _forget_untracked(self) -> None:
        jobs = {track.key.job_id for track in self._tracks.values()}
        for name in [name for name in self._told if name[0] not in jobs]:
            del self._told[name]
