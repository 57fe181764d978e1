"""Courses of things that are kept between questions, as long as all that they were followed from is the same.

Steps:
1. What courses read is written down with them: the nodes and what is free on them, what runs and until when it is thought to,
   what waits in which order, which nodes each demand may use. It is compared by its values: whatever happens in between, and
   however it came about, a question on another state finds nothing.
2. Courses speak for `FRESH_S` after they were drawn, and no longer than until a run ends in one of them. Within that time
   starts are those that were drawn then.
3. There are at most ``most`` of them (`MOST_KEPT`); the one that was asked longest ago goes first. Each holds, for 3 to 25 futures, sets of
   all nodes and at most some 260 moments with a few numbers for each pool of alike nodes: some 3 MB at 1,000 nodes.

Not for several threads at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.futures.layout import Layout, pools_of, spread_over
from services.scheduler.core.futures.open_course import OPEN, Answer, Asked, OpenCourse, fits_in, with_open_place
from services.scheduler.core.futures.spans import Spans
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Bools, Floats, Ints, Table
from services.scheduler.core.waiting_unit import PendingUnit

FRESH_S = 2.0
"""So long after they were drawn courses speak."""
MOST_KEPT = 4

Drawn = tuple[Spans, Floats, Floats]
"""What is left of the runs, when they end by future (S, R), how long the others last (S, W)."""


@dataclass(frozen=True, slots=True)
class Said:
    """What kept courses say of a unit: when they were drawn, from what is left of the runs then, and the answer of each."""

    at_s: float
    left: Spans
    answers: Sequence[Answer]


class KeptCourses:
    """See the module. ``followed`` counts the states from which courses were drawn."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._entries: list[_Entry] = []
        self.followed = 0

    def __len__(self) -> int:
        return len(self._entries)

    def ask(
        self,
        cluster: Cluster,
        discipline: str,
        order: Sequence[PendingUnit],
        unit: PendingUnit,
        now_s: float,
        horizon_s: float,
        draw: Callable[[], Drawn],
        settings: tuple[object, ...] = (),
    ) -> Said | None:
        """What the courses of this state say of ``unit``, one of those that wait in ``order``; None when open courses do not
        say it. ``draw`` draws the run times anew, by ``settings``; courses are followed for ``horizon_s``."""
        if not fits_in(order, unit, discipline):
            return None
        waiting = with_open_place(order, unit)
        entry = self._entry(cluster, discipline, waiting, now_s, horizon_s, draw, settings)
        demand, pool_of = unit.demand, entry.pool_of
        pools, together = pools_of(cluster, pool_of, demand), spread_over(cluster, pool_of, demand)
        asked = Asked(unit, pools, together, demand in entry.state.demands)
        answers = [course.ask(asked) for course in entry.courses]
        found = [item for item in answers if item is not None]
        return Said(entry.at_s, entry.left, found) if len(found) == len(answers) else None

    def _entry(
        self,
        cluster: Cluster,
        discipline: str,
        waiting: list[PendingUnit],
        now_s: float,
        horizon_s: float,
        draw: Callable[[], Drawn],
        settings: tuple[object, ...],
    ) -> _Entry:
        running = _running(cluster)
        settings = (discipline, horizon_s, *settings)
        for place, entry in enumerate(self._entries):
            if entry.at_s <= now_s < entry.until_s and entry.state.holds(cluster, waiting, running, settings):
                self._entries.insert(0, self._entries.pop(place))
                return entry
        self.followed += 1
        layout = Layout(cluster, waiting, discipline)
        left, ends, lasts = draw()
        courses = [
            OpenCourse(layout, now_s, own_ends, own_lasts, now_s + horizon_s)
            for own_ends, own_lasts in zip(ends.tolist(), lasts.tolist(), strict=True)
        ]
        until_s = min([now_s + FRESH_S, *(course.first_end_s() for course in courses)])
        entry = _Entry(now_s, until_s, _State.of(cluster, waiting, running, settings), layout.pool_of, left, courses)
        self._entries.insert(0, entry)
        del self._entries[self._most :]
        return entry


@dataclass(frozen=True, slots=True)
class _Entry:
    at_s: float
    until_s: float
    state: _State
    pool_of: Ints
    left: Spans
    courses: Sequence[OpenCourse]


_Running = list[tuple[object, ...]]


def _running(cluster: Cluster) -> _Running:
    """What courses read of runs."""
    return [
        (item.unit, item.since_s, item.expected_end_s, item.limit_end_s, item.rows) for item in cluster.running.values()
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """All that courses are followed from, but for the time and the unit that is asked about."""

    table: Table
    settings: tuple[object, ...]
    waiting: list[PendingUnit]
    running: _Running
    free: tuple[Bools | Ints | Floats, ...]
    demands: dict[Demand, Bools]

    @classmethod
    def of(
        cls, cluster: Cluster, waiting: list[PendingUnit], running: _Running, settings: tuple[object, ...]
    ) -> _State:
        free = tuple([values.copy() for values in _free(cluster)])
        demands = dict.fromkeys(unit.demand for unit in waiting if unit is not OPEN)
        return cls(
            cluster.table, settings, waiting, running, free, {demand: _allowed(cluster, demand) for demand in demands}
        )

    def holds(
        self, cluster: Cluster, waiting: list[PendingUnit], running: _Running, settings: tuple[object, ...]
    ) -> bool:
        """Whether it is the same in this cluster."""
        return (
            self.table is cluster.table
            and self.settings == settings
            and self.waiting == waiting
            and self.running == running
            and all(np.array_equal(one, other) for one, other in zip(self.free, _free(cluster), strict=True))
            and all(np.array_equal(allowed, _allowed(cluster, demand)) for demand, allowed in self.demands.items())
        )


def _free(cluster: Cluster) -> tuple[Bools | Ints | Floats, ...]:
    view = cluster.view
    return view.up, view.free_device_totals, view.free_cpus, view.free_memory_bytes


def _allowed(cluster: Cluster, demand: Demand) -> Bools:
    found: Bools = np.logical_or.reduce([item.allowed for item in cluster.candidates(demand)])
    return found
