"""What runs, as the decisions see it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from services.scheduler.core.state import PlacedRank
from services.scheduler.core.table import Table
from services.scheduler.core.waiting_unit import PendingUnit

SLACK_S = 1e-6
"""Times are sums, and not exact."""


@dataclass(slots=True)
class RunningUnit:
    """A unit that holds nodes. ``unit`` is as it was when it was placed (its ``demand`` is what it holds).

    ``rows`` gives (node row, devices) per rank. ``kept_s`` is how much of this run an interruption would keep (the last
    checkpoint); ``expected_end_s`` and ``limit_end_s`` are times, infinite when unknown.
    """

    unit: PendingUnit
    ranks: tuple[PlacedRank, ...]
    since_s: float
    rows: tuple[tuple[int, tuple[int, ...]], ...] = ()
    kept_s: float = 0.0
    expected_end_s: float = float("inf")
    limit_end_s: float = float("inf")
    service_index: float = 0.0

    def said_end_s(self, estimate: str) -> float:
        """When it ends by what was estimated: "expected", "high" or "limit", whichever is known; infinite when nothing is."""
        if estimate == "limit":
            return self.limit_end_s if self.limit_end_s != inf else self.expected_end_s
        if estimate == "high" and self.unit.high_s != inf:
            return self.since_s + max(self.unit.high_s - self.unit.attained_s, 0.0)
        return self.expected_end_s if self.expected_end_s != inf else self.limit_end_s

    def end_s(self, now_s: float, estimate: str) -> float:
        """When it is thought to end, later than now. One that outlived its estimate is given half as long again as that was, at
        least a minute, and so on (its limit is not trusted either: what kills it may be late). The result depends on
        ``now_s`` only through how often that was done."""
        end_s = self.said_end_s(estimate)
        while end_s <= now_s + SLACK_S:
            end_s += max(60.0, 0.5 * (end_s - self.since_s))
        return end_s

    def lost_s(self, now_s: float) -> float:
        """What an interruption now would cost in time: the work since the last checkpoint, and the restart."""
        return max(now_s - self.since_s - self.kept_s, 0.0) + self.unit.restart_s

    def settled_s(self, now_s: float) -> float:
        """How long it is where it is, without the restart with which it goes on."""
        return now_s - self.since_s - (self.unit.restart_s if self.unit.service_s > 0 else 0.0)

    def service_s(self, now_s: float) -> float:
        """How long it held nodes altogether."""
        return self.unit.service_s + max(now_s - self.since_s, 0.0)

    def ran_s(self, now_s: float) -> float:
        """How long it ran altogether, with its former runs."""
        return self.unit.attained_s + max(now_s - self.since_s, 0.0)


def model_of(table: Table, running: RunningUnit) -> str:
    """The accelerator model that a unit holds, empty when none."""
    for row, devices in running.rows:
        for index, column in table.devices_of[row]:
            if devices and index == devices[0]:
                return table.models[column].model
    return ""
