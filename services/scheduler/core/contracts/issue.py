"""The plan of a single window: issued when it begins, as close to the promise and to what is owed as can be kept.

A promise of standing shares cannot be kept in every hour without moving what runs: few units begin, and those that hold a domain
end when they end. So where a policy plans per window (`SharePlan.plan`), the promise is kept over a day, and each window gets a
plan from what is known when it begins:
1. `wanted`: the promise, and a part of what is owed from the windows before, at most the tolerated deviation of it.
2. `issue`: what runs goes on; of what is thought to begin, as much as in the windows before, a part (`REACH`) goes where most is
   lacking, and the rest makes up for what ends, as it comes.
Nothing that happens in the window changes its plan. A domain has at least `LEAST` of it, so that whatever it gives counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.scheduler.core.contracts.plan import SharePlan
from services.scheduler.core.table import Floats

REACH = 0.25
"""Part of what begins in a window that a plan counts on; chosen in simulation (bench/share_contract.py)."""
REPAID_IN = 96.0
"""Windows in which what is owed is to be made up for; faster ones overshoot, as what was begun goes on."""
LEAST = 1e-3
_REMEMBERED = 1.0 / 168.0
"""Part of what is owed that is forgotten per window: a domain that was away for days does not bear it for months."""
_SMOOTHING = 0.1
_HALVINGS = 60


class Issuer:
    """Plans of an account's windows; ``owed`` (D) are accelerator-seconds that were promised and not given so far, ``begun`` is how
    many the units that begin in a window give in it, on average (None: not known yet)."""

    def __init__(self, domains: int) -> None:
        self.owed: Floats = np.zeros(domains)
        self.begun: float | None = None

    def close(self, promised: Floats, given: Floats, begun: float) -> None:
        """A window is over: (D), (D) accelerator-seconds that were ``promised`` (NaN without a contract) and ``given``, and those of
        them by units that ``begun`` in it."""
        self.owed = (self.owed + np.nan_to_num(promised - given)) * (1.0 - _REMEMBERED)
        self.begun = begun if self.begun is None else self.begun + _SMOOTHING * (begun - self.begun)

    def issue(self, plan: SharePlan, row: Floats, held: Floats) -> Floats | None:
        """(D) fractions for the window that begins now, NaN without a contract; ``row`` (D) is the promise, ``held`` (D) are
        accelerators in use. None when nothing is: the promise is the plan then."""
        named = ~np.isnan(row)
        going_on = np.where(named, held * plan.window_s, 0.0)
        if going_on.sum() <= 0:
            return None
        begin = self.begun or 0.0
        wanted = self.wanted(plan, row, float(going_on.sum()) + begin)
        base = going_on * (1.0 + (1.0 - REACH) * begin / going_on.sum())
        found = base + _raised(base[named], wanted[named], REACH * begin, named)
        found = np.where(named, np.maximum(found / found.sum(), LEAST), np.nan)
        issued: Floats = found / np.nansum(found)
        return issued

    def wanted(self, plan: SharePlan, row: Floats, total: float) -> Floats:
        """(D) fractions that the domains should give where they give ``total`` accelerator-seconds: the promise ``row`` and a part
        of what is owed; NaN without a contract."""
        if total <= 0:
            return row
        most = plan.tolerance * row
        found = row + np.clip(self.owed / REPAID_IN / total, -most, most)
        scaled: Floats = found / np.nansum(found)
        return scaled

    def fit(self, places: Sequence[int]) -> None:
        """The domains are those that stood at these places (-1: a new one, to which nothing is owed)."""
        self.owed = np.array([self.owed[place] if place >= 0 else 0.0 for place in places], dtype=np.float64)

    def copy(self) -> Issuer:
        """One that goes its own way."""
        other = Issuer(0)
        other.owed, other.begun = self.owed, self.begun
        return other


def _raised(base: Floats, wanted: Floats, amount: float, named: Floats) -> Floats:
    """(D) what of ``amount`` each domain gets, so that those that lack most, relative to ``wanted``, are raised to the same level."""
    given = np.zeros(len(named))
    if amount <= 0:
        return given
    low, high = 0.0, float(((base + amount) / wanted).max())
    for _ in range(_HALVINGS):
        level = (low + high) / 2.0
        if np.maximum(wanted * level - base, 0.0).sum() > amount:
            high = level
        else:
            low = level
    given[named] = np.maximum(wanted * low - base, 0.0)
    return given
