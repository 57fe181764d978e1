"""How many replicas of a service should run, by the load that they report.

The rule is that of the Kubernetes Horizontal Pod Autoscaler (kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale,
"Algorithm details"): replicas times load over target, rounded up; nothing within a tolerance; replicas that report nothing count as
idle when more are wanted and as fully loaded when fewer are, so that neither is exaggerated; fewer only when nothing in a
window asked for more (stabilisation).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.scheduler.core.errors import MalformedJobError

DEFAULT_METRIC = "load"
DEFAULT_TOLERANCE = 0.1
DEFAULT_DOWN_AFTER_S = 300.0
DEFAULT_COOLDOWN_S = 15.0
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Scaling:
    """A service's rules: between ``least`` and ``most`` replicas, each with a load of ``target`` in the unit of ``metric``.

    Nothing changes while the mean load is within ``tolerance`` (a part of the target) of it, nor for ``cooldown_s`` after a
    change; fewer replicas are taken after ``down_after_s`` in which so few were enough all the time.
    """

    least: int
    most: int
    target: float
    metric: str = DEFAULT_METRIC
    tolerance: float = DEFAULT_TOLERANCE
    down_after_s: float = DEFAULT_DOWN_AFTER_S
    cooldown_s: float = DEFAULT_COOLDOWN_S

    def check(self, replicas: int) -> None:
        """MalformedJobError when the rules, or the number to begin with, make no sense."""
        if not 1 <= self.least <= replicas <= self.most:
            raise MalformedJobError(
                "scaling: 1 <= min_replicas <= replicas <= max_replicas is wanted, "
                f"not {self.least}, {replicas}, {self.most}"
            )
        if not (math.isfinite(self.target) and self.target > 0):
            raise MalformedJobError(f"scaling.target must be a positive number, not {self.target}")
        if not 0 <= self.tolerance < 1:
            raise MalformedJobError(f"scaling.tolerance must be at least 0 and below 1, not {self.tolerance}")
        for name in ("down_after_s", "cooldown_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise MalformedJobError(f"scaling.{name} must be at least 0, not {value}")


def recommended(rules: Scaling, replicas: int, loads: Sequence[float], silent: int) -> int:
    """How many replicas are wanted where ``replicas`` are now: ``loads`` of those that report, ``silent`` others that should run
    and do not report (yet). Without any report it stays as it is."""
    if not loads:
        return replicas
    total, size = sum(loads), len(loads) + silent
    up = total / (rules.target * size)
    down = (total + silent * rules.target) / (rules.target * size)
    wanted = replicas
    if up > 1.0 + rules.tolerance:
        wanted = max(math.ceil(total / rules.target - _ROUNDING), replicas)
    elif down < 1.0 - rules.tolerance:
        wanted = min(math.ceil(total / rules.target + silent - _ROUNDING), replicas)
    return min(max(wanted, rules.least), rules.most)


@dataclass(slots=True)
class Scaler:
    """What was recommended for a service of late, and when its replicas changed last (s since 1970)."""

    changed_at_s: float = -math.inf
    begun_at_s: float = math.inf
    recent: deque[tuple[float, int]] = field(default_factory=deque)

    def step(self, rules: Scaling, replicas: int, loads: Sequence[float], silent: int, now_s: float) -> int:
        """How many replicas are to run from now on.

        1. What is recommended now joins the window of ``down_after_s``.
        2. After a change nothing changes for ``cooldown_s``.
        3. More are taken at once; fewer are the most that was recommended in the window, once it is full.
        """
        return self.settle(rules, replicas, recommended(rules, replicas, loads, silent), now_s)

    def settle(self, rules: Scaling, now: int, wanted: int, now_s: float) -> int:
        """The same for a number that is ``now`` and is recommended to be ``wanted``."""
        self.begun_at_s = min(self.begun_at_s, now_s)
        self.recent.append((now_s, wanted))
        while self.recent[0][0] < now_s - rules.down_after_s:
            self.recent.popleft()
        if now_s - self.changed_at_s < rules.cooldown_s:
            return now
        if wanted < now:
            if now_s - self.begun_at_s < rules.down_after_s:
                return now
            wanted = min(max(count for _, count in self.recent), now)
        if wanted != now:
            self.changed_at_s = now_s
        return wanted
