"""Scores of the IETF's Computing-Aware Traffic Steering beside the index: L0 raw, L1 per category, L2 one number.

Levels, the range 0 (poorest) to 10 (best) and the reading 0-3 avoid, 4-7 optional, 8-10 prefer are those of
draft-ietf-cats-metric-definition. The draft leaves the normalisation to its users and warns that scores compare only
under the same function: ours is named ``NORMALISATION`` and travels with each score. L0 and L1 are for the domain, L2 is
what goes to the network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

NORMALISATION = "log-min-max/1"
"""Each category: 10 x ln(value / lowest) / ln(highest / lowest), held to 0..10; L2: weighted mean, rounded half up."""
RANGES: Mapping[str, tuple[float, float]] = {"computing": (1 / 16, 4.0), "communication": (1e9, 1e12)}
"""Lowest and highest of the compute index, and of the bandwidth between chips in bytes per second."""
WEIGHTS: Mapping[str, float] = {"computing": 0.7, "communication": 0.3}


@dataclass(frozen=True, slots=True)
class Scores:
    """L0 by name, L1 by category, L2 or None when no category is known."""

    l0: Mapping[str, float]
    l1: Mapping[str, float]
    l2: int | None
    reading: str | None
    normalisation: str = NORMALISATION


def scores(index: float | None, link_bytes_per_s: float | None) -> Scores:
    """The scores of a chip whose compute index is ``index``; what is not known has no score and no weight."""
    raw = {"computing": index, "communication": link_bytes_per_s}
    known = {name: value for name, value in raw.items() if value is not None and value > 0}
    l1 = {name: _normalised(value, *RANGES[name]) for name, value in known.items()}
    if not l1:
        return Scores(known, {}, None, None)
    weight = sum(WEIGHTS[name] for name in l1)
    l2 = math.floor(sum(WEIGHTS[name] * score for name, score in l1.items()) / weight + 0.5)
    return Scores(known, l1, l2, "avoid" if l2 <= 3 else "optional" if l2 <= 7 else "prefer")


def _normalised(value: float, lowest: float, highest: float) -> float:
    return min(10.0, max(0.0, 10.0 * math.log(value / lowest) / math.log(highest / lowest)))
