"""How predicted starts turned out, and what that says about the band of the next one.

The band of a prediction comes from run times alone (prospect.py). What it leaves out - who comes later, predictors that err
together - shows in how often starts lie before or after it. So both ends are moved, on line, until they are passed as often
as they should be: quantile tracking by online gradient descent on the pinball loss (Gibbs and Candes, NeurIPS 2021;
Angelopoulos, Candes and Tibshirani, NeurIPS 2023). It holds in the long run whatever the data do, without a model of them.

Steps:
1. A unit that begins to wait is predicted, and the band that was said is remembered (`asked`).
2. It turns out below (started before the band), inside, or above: the latter as soon as the band is over, so that nobody
   waits for the start of what is late (`advance`).
3. Below or above, that end moves outwards by ``step`` times the coverage wanted of it; else inwards by the rest of the step.
   Ends move by factors of the wait, in classes of the predicted wait: short and long waits err differently. The start moves
   the same way until half of them are later.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.futures.prospect import Prospect
from services.scheduler.core.state import UnitKey

_CLASSES_S = (1800.0, 4 * 3600.0)
_BESIDE_S = 300.0
"""Added to waits before their logarithms are compared: seconds between short waits say nothing."""
_STEP = 0.03
_FURTHEST = 5.0
_MOST_OPEN = 10_000

Open = tuple[float, float, float, int]
"""(low, start, high, class): times, and the number of the class."""


class TrackRecord:
    """Moves the ends of bands; ``coverage`` is the part of starts that should lie inside. See the module.

    Pure: times come from the caller, nothing is drawn. `state` and `restored` carry it over a restart.
    """

    def __init__(self, coverage: float = 0.8) -> None:
        if not 0.0 < coverage < 1.0:
            raise PolicyError(f"coverage: must be between 0 and 1, not {coverage:g}")
        self._miss = (1.0 - coverage) / 2
        self.lows = [0.0] * (len(_CLASSES_S) + 1)
        """By class, the logarithm by which the low ends are moved; ``middles`` and ``highs`` the same of starts and high ends."""
        self.middles = [0.0] * (len(_CLASSES_S) + 1)
        self.highs = [0.0] * (len(_CLASSES_S) + 1)
        self.counted = 0
        """Predictions that turned out."""
        self._open: dict[UnitKey, Open] = {}
        self._overdue: list[tuple[float, UnitKey]] = []

    def band(self, said: Prospect, now_s: float) -> Prospect:
        """The prediction of ``now_s`` with its band moved; what has no end keeps none."""
        if said.start_s == math.inf:
            return said
        number = _class_of(said.start_s - now_s)
        start_s = _moved(said.start_s - now_s, self.middles[number])
        low_s = min(_moved(said.low_s - now_s, self.lows[number]), start_s)
        high_s = max(_moved(said.high_s - now_s, self.highs[number]), start_s)
        return replace(said, start_s=now_s + start_s, low_s=now_s + low_s, high_s=now_s + high_s)

    def asked(self, said: Prospect, now_s: float) -> Prospect:
        """A unit was predicted that is to be counted; returns the moved band. The first prediction of a unit counts."""
        found = self.band(said, now_s)
        if found.high_s < math.inf and said.key not in self._open and len(self._open) < _MOST_OPEN:
            self._open[said.key] = found.low_s, found.start_s, found.high_s, _class_of(said.start_s - now_s)
            heapq.heappush(self._overdue, (found.high_s, said.key))
        return found

    def started(self, key: UnitKey, at_s: float) -> None:
        """A unit started; nothing when it was not asked about."""
        self.advance(at_s)
        known = self._open.pop(key, None)
        if known is not None:
            self._count(known, below=at_s < known[0], above=False, later=at_s > known[1])

    def left(self, key: UnitKey) -> None:
        """A unit waits no more and will not start."""
        self._open.pop(key, None)

    def advance(self, now_s: float) -> None:
        """Count those whose bands are over."""
        while self._overdue and self._overdue[0][0] < now_s:
            high_s, key = heapq.heappop(self._overdue)
            known = self._open.get(key)
            if known is not None and known[2] == high_s:
                del self._open[key]
                self._count(known, below=False, above=True, later=True)

    @property
    def open(self) -> frozenset[UnitKey]:
        """Units whose predictions did not turn out yet."""
        return frozenset(self._open)

    def _count(self, known: Open, *, below: bool, above: bool, later: bool) -> None:
        number = known[3]
        self.counted += 1
        _move(self.lows, number, self._miss - below)
        _move(self.middles, number, later - 0.5)
        _move(self.highs, number, above - self._miss)

    def state(self) -> dict[str, Any]:
        """Everything, as JSON types."""
        waiting = [[key.job_id, key.unit_index, *known] for key, known in self._open.items()]
        return {
            "lows": self.lows,
            "middles": self.middles,
            "highs": self.highs,
            "counted": self.counted,
            "open": waiting,
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any], coverage: float = 0.8) -> TrackRecord:
        """Goes on where `state` was taken; PolicyError when it does not read."""
        made = cls(coverage)
        try:
            for values, read in (
                (made.lows, state["lows"]),
                (made.middles, state["middles"]),
                (made.highs, state["highs"]),
            ):
                values[:] = [float(value) for _, value in zip(values, read, strict=True)]
            made.counted = int(state["counted"])
            for job_id, index, low_s, start_s, high_s, number in state["open"]:
                key = UnitKey(str(job_id), int(index))
                if not 0 <= int(number) < len(made.lows):
                    raise ValueError(f"open: there is no class {number}")
                made._open[key] = float(low_s), float(start_s), float(high_s), int(number)
                heapq.heappush(made._overdue, (float(high_s), key))
        except (KeyError, TypeError, ValueError) as error:
            raise PolicyError(f"the track record of predicted starts does not read: {error!r}") from error
        return made


def _class_of(wait_s: float) -> int:
    return sum(wait_s > bound for bound in _CLASSES_S)


def _move(values: list[float], number: int, by: float) -> None:
    values[number] = max(min(values[number] + _STEP * by, _FURTHEST), -_FURTHEST)


def _moved(wait_s: float, by: float) -> float:
    return max((wait_s + _BESIDE_S) * math.exp(by) - _BESIDE_S, 0.0) if wait_s < math.inf else wait_s
