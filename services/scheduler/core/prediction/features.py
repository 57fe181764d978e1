"""What a predictor may know of a job when it is submitted, and what it answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from services.scheduler.core.errors import PolicyError

SHORTEST_S = 1.0
"""Run times are counted as at least this long: logarithms stay finite and no answer is ever 0."""
LONGEST_S = 1e9
"""Run times and estimates are counted as at most this long (32 years): what stands for "no limit" overflows nothing."""

Vote = tuple[int, int, float, float, float]


@dataclass(frozen=True, slots=True)
class Features:
    """A job at submission. Empty texts, NaN and a ``place`` below 0 mean "unknown"; ``estimate_s`` is the user's limit in seconds,
    ``place`` the number of jobs before it in its burst (`Bursts`).
    """

    tenant: str = "default"
    user: str = ""
    name: str = ""
    ranks: int = 1
    accelerators: int = 0
    cpus: float = 0.0
    estimate_s: float = math.nan
    submit_s: float = 0.0
    place: int = -1


class Prediction(NamedTuple):
    """A run time or a remaining time in seconds: ``0 < low_s <= median_s <= high_s``, ``mean_s > 0``.

    ``evidence`` names the group of finished jobs that weighs most, ``n`` how many of them are remembered (0: nothing is
    known but the estimate, if that). ``votes`` is what each expert said (number, jobs remembered, logarithms of low, median
    and high): given back to `RunTimePredictor.observe` when the job has ended, each is scored on what it knew then.
    """

    median_s: float
    low_s: float
    high_s: float
    mean_s: float
    evidence: str
    n: int
    votes: tuple[Vote, ...] = ()


def finite_seconds(field: str, value: float) -> float:
    """``value`` when it is a finite number >= 0; raises `PolicyError` naming ``field``."""
    if not 0.0 <= value < math.inf:
        raise PolicyError(f"{field}: {value!r} is not a finite number of seconds >= 0")
    return value
