"""How much of the last 30 days each machine was up, as the agent saw it, and the domain with all of them.

Only time in which the agent looked counts, on either side: while it was down itself, a machine started, or one slept on
purpose, nothing is known. Time is kept per day (UTC), so the oldest day leaves as a whole; what is kept survives a restart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from pathlib import Path

from agent.collectors.base import Collector, Reading, Source, Statistic
from agent.collectors.metrics import Metric
from agent.collectors.unknown import UnknownKind
from agent.kept_file import keep

DAYS = 30
DAY_S = 86_400.0
# Two looks that are further apart say nothing of what was between them.
MOST_BETWEEN_S = 60.0
KEEP_EVERY_S = 60.0
NOT_SEEN = "the machine was not looked at twice yet"


@dataclass(frozen=True, slots=True)
class Look:
    """The machines that were seen up and down; those that are in neither are not known."""

    up: Set[str]
    down: Set[str]


@dataclass(slots=True)
class UpTime:
    """Seconds up and seconds seen by machine and day (days since 1970). Pure: times come in."""

    days: dict[str, dict[int, tuple[float, float]]] = field(default_factory=dict)

    def add(self, before: Look, after: Look, from_s: float, to_s: float) -> None:
        """Count the time between two looks: a machine was up as long as the later of them finds it so.

        A machine counts when both looks know it; time that is longer than `MOST_BETWEEN_S`, or goes back, counts not.
        """
        if not 0 < to_s - from_s <= MOST_BETWEEN_S:
            return
        for node_id in (before.up | before.down) & (after.up | after.down):
            of_node = self.days.setdefault(node_id, {})
            for day, seconds in _by_day(from_s, to_s):
                up_s, seen_s = of_node.get(day, (0.0, 0.0))
                of_node[day] = up_s + (seconds if node_id in after.up else 0.0), seen_s + seconds

    def forget(self, now_s: float) -> None:
        """Drop days that are older than `DAYS`, and machines that were not seen since."""
        oldest = int(now_s // DAY_S) - DAYS
        for node_id, of_node in list(self.days.items()):
            for day in [day for day in of_node if day < oldest]:
                del of_node[day]
            if not of_node:
                del self.days[node_id]

    def share(self, node_ids: Iterable[str]) -> float | None:
        """The share of the time seen in which the machines were up, all together; None: they were not seen."""
        sums = [seconds for node_id in node_ids for seconds in self.days.get(node_id, {}).values()]
        seen_s = sum(seen for _, seen in sums)
        return min(sum(up for up, _ in sums) / seen_s, 1.0) if seen_s > 0 else None


def _by_day(from_s: float, to_s: float) -> Iterable[tuple[int, float]]:
    midnight_s = (from_s // DAY_S + 1) * DAY_S
    if to_s <= midnight_s:
        return ((int(from_s // DAY_S), to_s - from_s),)
    return ((int(from_s // DAY_S), midnight_s - from_s), (int(midnight_s // DAY_S), to_s - midnight_s))


class AvailabilityCollector(Collector):
    """Readings of the nodes and of the domain; ``look`` says how the machines are now."""

    def __init__(self, node_ids: Iterable[str], look: Callable[[], Look], path: Path) -> None:
        self._node_ids = tuple(node_ids)
        self._look = look
        self._path = path
        self._time = UpTime(_read(path))
        self._before: tuple[Look, float] | None = None
        self._kept_at_s = 0.0

    def collect(self, now: datetime) -> list[Reading]:
        now_s, look = now.timestamp(), self._look()
        if self._before is not None:
            self._time.add(self._before[0], look, self._before[1], now_s)
        self._before = look, now_s
        self._time.forget(now_s)
        if abs(now_s - self._kept_at_s) >= KEEP_EVERY_S:
            self._kept_at_s = now_s
            keep(self._path, self._time.days)
        shares = [(node_id, self._time.share([node_id])) for node_id in self._node_ids]
        return [
            Reading(
                node_id,
                Metric.AVAILABILITY,
                share,
                Source.AGGREGATION,
                now,
                statistic=Statistic.MEAN,
                reason="" if share is not None else NOT_SEEN,
                kind=None if share is not None else UnknownKind.NEEDS_SECOND_SAMPLE,
            )
            for node_id, share in [*shares, ("", self._time.share(self._node_ids))]
        ]


def _read(path: Path) -> dict[str, dict[int, tuple[float, float]]]:
    """What was kept; of a file that cannot be what was written, nothing."""
    try:
        content = json.loads(path.read_text())
        found = {
            str(node_id): {int(day): (float(up), float(seen)) for day, (up, seen) in days.items()}
            for node_id, days in content.items()
        }
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}
    sound = all(
        isfinite(seen) and 0 <= up <= seen + 1e-6 <= DAY_S + 1 for days in found.values() for up, seen in days.values()
    )
    return found if sound else {}
