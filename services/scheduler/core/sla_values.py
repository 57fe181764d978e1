"""What is promised to a tenant or queue, and how a promise stands: values. `sla.py` keeps account of them, and says what a
violation is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from services.scheduler.core.errors import PolicyError

MICRO = 1_000_000
"""Microseconds of a second."""


class ObjectiveKind(StrEnum):
    AVERAGE_WAIT = "average_wait"
    THROUGHPUT = "throughput"
    RECOVERY_TIME = "recovery_time"
    RESPONSE_TIME = "response_time"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Objective:
    """One promise. ``target``: seconds; for throughput, units finished in a window. ``window_s``: over which compliance is
    judged. ``penalty_micro_units`` for each violation. PolicyError names the field that is wrong."""

    kind: ObjectiveKind
    target: float
    window_s: float
    penalty_micro_units: int = 0
    currency: str = "USD"

    def __post_init__(self) -> None:
        if self.kind not in set(ObjectiveKind):
            raise PolicyError(f"kind must be one of {', '.join(ObjectiveKind)}, not {self.kind!r}")
        # Written so that NaN fails too.
        if not 0 <= self.target < math.inf:
            raise PolicyError(f"{self.kind}: target must be at least 0 and finite, not {self.target!r}")
        if not 1 / MICRO <= self.window_s < math.inf:
            raise PolicyError(f"{self.kind}: window_s must be above 0 and finite, not {self.window_s!r}")
        money = self.penalty_micro_units
        if not isinstance(money, int) or isinstance(money, bool) or money < 0:
            raise PolicyError(f"{self.kind}: penalty_micro_units must be an integer of at least 0, not {money!r}")
        if not self.currency:
            raise PolicyError(f"{self.kind}: currency is missing")


class Compliance(NamedTuple):
    """How an objective stands over its window before now.

    ``value``: the average wait in seconds, the number of finished units, or, for the other kinds, the share of
    observations that kept the target; NaN without ``observations``. ``met``: the promise is kept at present (for shares:
    by all observations). ``violations``: charged so far, over the account's whole life.
    """

    value: float
    met: bool
    observations: int
    violations: int


class Urgency(NamedTuple):
    """A key for ordering waiting units, the smallest first: least slack, then the greatest loss by delay.

    ``slack_s``: how long the unit may still be delayed before an objective breaks; negative when it is overdue, inf when
    nothing is promised. ``minus_penalty_micro_units_per_s``: minus the penalties at stake, each spread over its slack (at
    least one second): a rate to compare units by, not a forecast.
    """

    slack_s: float
    minus_penalty_micro_units_per_s: float
