"""Rates that users declare for their jobs, as the fact ``throughputs`` that scores and planners read.

A declaration is its own profile (`profile_of`), so jobs that say the same are one class, and nothing has to be kept beside the
jobs themselves. Nothing is measured here.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable
from functools import lru_cache

from services.scheduler.core.errors import MalformedJobError

Rate = tuple[str, int, float]
"""Accelerator type, ranks, rate of the whole job."""


def profile_of(rates: Iterable[Rate]) -> str:
    """The profile of a declaration; empty without rates. MalformedJobError when one makes no sense."""
    rows = sorted(set(rates))
    for model, ranks, rate in rows:
        if not model or ranks < 1 or not (math.isfinite(rate) and rate >= 0):
            raise MalformedJobError(
                f"rates: an accelerator type, at least one rank and a rate of at least 0 are wanted, not {(model, ranks, rate)}"
            )
    places = [(model, ranks) for model, ranks, _ in rows]
    if len(set(places)) != len(places):
        raise MalformedJobError("rates: two rates for the same accelerator type and number of ranks")
    return json.dumps(rows, separators=(",", ":"), ensure_ascii=False) if rows else ""


class DeclaredRates:
    """See the module. A type names the models in which all its words occur, as in a job's ``accelerator_types``.

    1. Rates between declared numbers of ranks are interpolated linearly. Below the least they shrink with the ranks, beyond
       the greatest they stay.
    2. A model that no type names runs, at the least rate that is declared for any: nothing is known of it.
    3. A rate of 0 says that the job does not run there.
    """

    def rate(self, profile: str, ranks: int, model: str) -> float:
        """Work per second of a whole job; MalformedJobError for a profile that `profile_of` did not make."""
        return _rate(profile, ranks, model)


@lru_cache(maxsize=65536)
def _rate(profile: str, ranks: int, model: str) -> float:
    by_type: dict[str, list[tuple[int, float]]] = {}
    try:
        for name, count, rate in json.loads(profile):
            by_type.setdefault(str(name), []).append((int(count), float(rate)))
    except (TypeError, ValueError) as error:
        raise MalformedJobError(f"the profile {profile[:80]!r} is no declaration of rates") from error
    words = _words(model)
    named = [_at(points, ranks) for name, points in by_type.items() if _words(name) <= words]
    if named:
        return max(named)
    others = [found for points in by_type.values() if (found := _at(points, ranks)) > 0]
    return min(others, default=0.0)


def _at(points: list[tuple[int, float]], ranks: int) -> float:
    points = sorted(points)
    exact = dict(points).get(ranks)
    if exact is not None:
        return exact
    if ranks < points[0][0]:
        return points[0][1] * ranks / points[0][0]
    for (low, low_rate), (high, high_rate) in itertools.pairwise(points):
        if ranks <= high:
            return low_rate + (high_rate - low_rate) * (ranks - low) / (high - low)
    return points[-1][1]


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", text.lower()))
