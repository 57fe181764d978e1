"""Forecasts of many series that are kept up window by window: methods, the choice among them, structure, bands.

After each window, for all series and horizons at once:
1. The window shows how wrong the forecasts of it were. Sums of absolute errors are carried on, fading over
   ``Policy.recent`` targets.
2. Every method forecasts. Persistence serves, or what stands in for it (``Policy.stand_in``), unless another method was
   better by a margin on enough targets. While that one has lost more to persistence lately than it gains in as many targets
   by all it has shown (`_failing`), persistence serves: a season has ended, a level has shifted.
3. Where the structure of the jobs says what it expects (`services.forecast.structure`), the forecast lies between that
   and what the history says, or the level of this moment, at the shares that were best for the series so far (`SHARES`); a
   series that has shown little yet leans on what was best for all.
4. The band follows the errors of what served (`conformal`). There is none while few errors are known and the structure
   is not.

The skill is that of the whole procedure as it served: each choice was made with what was known then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.forecast.conformal import Tracking, pace_of
from services.forecast.methods import Method
from services.forecast.past import Array, Past, Rows, rearranged


@dataclass(frozen=True, slots=True)
class Policy:
    """How methods are chosen."""

    # Over how many targets errors fade.
    recent: float = 1440.0
    # Errors a method must have before it may serve, and before there is a band.
    min_errors: int = 30
    # By how much a method must beat persistence.
    margin: float = 0.03
    # Over how many targets what it lost to persistence lately fades, and over how many horizons at least: errors of
    # forecasts that overlap are nearly one.
    lately: float = 36.0
    lately_horizons: float = 6.0
    # Serves in place of persistence where it says something else: it weighs itself against persistence, by all its past.
    stand_in: str = "settling"
    band: float = 0.8
    # Windows from one choice to the next.
    rechoose: int = 10
    # Targets of all series that a series leans on when it weighs structure against history.
    lean: float = 20.0


# What is weighed, as shares of (history, structure, level), and what each is taken to miss, in errors of the history,
# before any was seen.
SHARES = np.array(
    [
        (1.0, 0.0, 0.0),
        (0.75, 0.25, 0.0),
        (0.5, 0.5, 0.0),
        (0.25, 0.75, 0.0),
        (0.0, 1.0, 0.0),
        (0.0, 0.75, 0.25),
        (0.0, 0.5, 0.5),
        (0.0, 0.25, 0.75),
        (0.0, 0.0, 1.0),
    ]
)
_STRUCTURE = 4
_EXPECTED = np.array([1.0, 0.97, 0.95, 0.93, 0.92, 0.93, 0.94, 0.95, 0.96])
# A series in which the structure misleads speaks against it in others no louder than this.
_MOST = 1.5


@dataclass(frozen=True, slots=True)
class Structural:
    """What the structure expects, [horizon, series], NaN where it knows nothing; ``spread`` is a standard deviation.

    ``level`` [series] is the demand at this moment: later than the last window, which is a mean.
    """

    expected: Array
    spread: Array
    level: Array


@dataclass(frozen=True, slots=True)
class Current:
    """The newest forecasts, all [horizon, series], NaN where there is none.

    ``method`` is the place of the method whose forecast the history's is, ``share`` that of what is not
    history in what is ``expected``. ``skill`` is 1 - error / error of persistence, ``wape`` the error over the demand;
    ``errors`` counts them.
    """

    method: NDArray[np.intp]
    history: Array
    share: Array
    expected: Array
    low: Array
    high: Array
    skill: Array
    wape: Array
    errors: NDArray[np.int64]


class Rolling:
    """See the module; ``methods[0]`` is persistence, ``horizons`` are in windows."""

    def __init__(
        self, methods: Sequence[Method], horizons: Sequence[int], policy: Policy | None = None, series: int = 0
    ) -> None:
        self.methods = tuple(methods)
        self.horizons = tuple(horizons)
        self.policy = policy or Policy()
        count, depth = len(self.methods), max(self.horizons) + 1
        shape = (len(self.horizons), series)
        self._past = Past(max(method.reach for method in self.methods) + depth + 1, series)
        self._forecasters = [method.start(self.horizons, series) for method in self.methods]
        self._windows = 0
        # By origin, [window modulo depth, ...]: of the methods, and history, structure, level, what served, its spread.
        self._made: Array = np.full((depth, count, *shape), np.nan)
        self._served: Array = np.full((depth, 5, *shape), np.nan)
        # Absolute errors of each method and those of persistence on the same targets, and how many there are.
        self._own: Array = np.zeros((count, *shape))
        self._reference: Array = np.zeros((count, *shape))
        self._count: Array = np.zeros((count, *shape))
        # By how much each method missed more than persistence lately; how many targets that is, and the sums above are.
        self._lost: Array = np.zeros((count, *shape))
        self._lately: Array = np.zeros((count, *shape))
        self._weight: Array = np.zeros((count, *shape))
        self._keeps = 1 - 1 / np.maximum(self.policy.lately, self.policy.lately_horizons * np.array(horizons))[:, None]
        # The same of each share of the structure.
        self._shares: Array = np.zeros((len(SHARES), *shape))
        self._shared: Array = np.zeros(shape)
        paces = np.array([[pace_of(horizon)] for horizon in self.horizons])
        self._tracking = Tracking(shape, self.policy.band, pace=paces)
        # Errors of what served, of persistence, and demand; how many there are.
        self._totals: Array = np.zeros((3, *shape))
        self._errors: Array = np.zeros(shape)
        stand_in = [place for place, method in enumerate(self.methods) if method.name == self.policy.stand_in]
        self._stand_in = stand_in[0] if stand_in else None
        # What was chosen last, and the newest forecasts with all that says them.
        self._best: NDArray[np.intp] = np.zeros(shape, np.intp)
        self._newest: _Newest | None = None

    @property
    def series(self) -> int:
        """How many series there are."""
        return self._past.series

    def rearrange(self, rows: Rows) -> None:
        """Series i is the one that was at ``rows[i]``; -1 is new."""
        self._past.rearrange(rows)
        for forecaster in self._forecasters:
            forecaster.rearrange(rows)
        self._made, self._served = rearranged(self._made, rows, np.nan), rearranged(self._served, rows, np.nan)
        self._own, self._reference = rearranged(self._own, rows, 0.0), rearranged(self._reference, rows, 0.0)
        self._count, self._errors = rearranged(self._count, rows, 0.0), rearranged(self._errors, rows, 0.0)
        self._lost, self._lately = rearranged(self._lost, rows, 0.0), rearranged(self._lately, rows, 0.0)
        self._weight = rearranged(self._weight, rows, 0.0)
        self._shares, self._shared = rearranged(self._shares, rows, 0.0), rearranged(self._shared, rows, 0.0)
        self._totals = rearranged(self._totals, rows, 0.0)
        self._tracking.rearrange(rows)
        best = self._best[..., rows] if self._best.shape[-1] else np.zeros((len(self.horizons), len(rows)), np.intp)
        best[..., rows < 0] = 0
        self._best = best
        self._newest = None

    def prime(self, values: Array) -> None:
        """Let the methods look back on ``values`` [series, window], the newest last, of which nothing is learned."""
        for t in range(values.shape[1]):
            self._past.append(values[:, t])

    def advance(self, values: Array, structure: Structural | None = None, measured: Array | None = None) -> None:
        """Take in the newest window, [series] (NaN: not known), and what the structure says after it.

        ``measured`` is what forecasts are held against where that is not ``values``: for example where gaps are filled.
        """
        self._past.append(values)
        self._learn(values if measured is None else measured)
        made = self._made[self._windows % len(self._made)]
        for place, forecaster in enumerate(self._forecasters):
            made[place] = forecaster.advance(self._past)
        chosen = self._choose(made)
        history = np.take_along_axis(made, chosen[None], axis=0)[0]
        served = self._served[self._windows % len(self._served)]
        share, expected = self._fuse(history, structure)
        spread = self._tracking.spread(None if structure is None else structure.spread)
        served[0], served[3], served[4] = history, expected, spread
        served[1] = np.nan if structure is None else structure.expected
        served[2] = np.nan if structure is None else structure.level
        self._newest = _Newest(chosen, share, served, None if structure is None else structure.spread)
        self._windows += 1

    def newest(self) -> Array:
        """What each method forecast after the newest window, [method, horizon, series]."""
        newest: Array = self._made[(self._windows - 1) % len(self._made)]
        return newest

    def _before(self, ring: Array) -> Array:
        """What was made one horizon ago for the newest window, [..., horizon, series]."""
        result = np.full(ring.shape[1:], np.nan)
        for place, horizon in enumerate(self.horizons):
            if self._windows >= horizon:
                result[:, place] = ring[(self._windows - horizon) % len(ring), :, place]
        return result

    def _learn(self, values: Array) -> None:
        """Step 1."""
        if not self._windows:
            return
        fade = 1 - 1 / self.policy.recent
        errors = values - self._before(self._made)
        known = ~np.isnan(errors)
        missed = np.abs(errors)
        if not known.all():
            missed = np.where(known, missed, 0.0)
        self._own *= fade
        self._own += missed
        last = missed[0] if known.all() else np.where(known, missed[0], 0.0)
        self._reference *= fade
        self._reference += last
        self._count += known
        self._weight *= fade
        self._weight += known
        # What was not measured neither fades nor counts.
        keeps = self._keeps if known.all() else np.where(known, self._keeps, 1.0)
        self._lost *= keeps
        self._lost += missed - last
        self._lately *= keeps
        self._lately += known
        before = self._before(self._served)
        self._learn_shares(values, before[:3], fade)
        served, spread = before[3:]
        error = values - served
        self._tracking.advance(error, spread)
        both = ~np.isnan(error) & known[0]
        self._totals *= fade
        for place, part in enumerate((np.abs(error), missed[0], np.abs(values))):
            self._totals[place] += np.where(both, part, 0.0)
        self._errors += ~np.isnan(error)

    def _learn_shares(self, values: Array, parts: Array, fade: float) -> None:
        known = ~np.isnan(parts).any(axis=0) & ~np.isnan(values)
        if not known.any():
            return
        blended = np.tensordot(SHARES, np.where(known, parts, 0.0), axes=1)
        self._shares *= fade
        self._shares += np.where(known, np.abs(values - blended), 0.0)
        self._shared = fade * self._shared + known

    def _choose(self, made: Array) -> NDArray[np.intp]:
        """Step 2: the place of the method that serves, [horizon, series]."""
        if self._windows % self.policy.rechoose == 0:
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                ratio = self._own / self._reference
            fit = (ratio <= 1 - self.policy.margin) & (self._count >= self.policy.min_errors)
            ratio = np.where(fit, ratio, np.inf)
            ratio[0] = 1.0
            self._best = np.argmin(ratio, axis=0)
        chosen = self._best
        if chosen.any():
            chosen = np.where(self._failing(chosen), 0, chosen)
        said = np.take_along_axis(made, chosen[None], axis=0)[0]
        silent = np.isnan(said)
        if silent.any():
            chosen = np.where(silent, 0, chosen)
        if self._stand_in is not None:
            said = made[self._stand_in]
            speaks = (chosen == 0) & ~np.isnan(said) & (said != made[0])
            if speaks.any():
                chosen = np.where(speaks, self._stand_in, chosen)
        return chosen

    def _failing(self, chosen: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Whether each chosen method lost more to persistence lately than it gains in as many targets, [horizon, series]."""

        def of(sums: Array) -> Array:
            found: Array = np.take_along_axis(sums, chosen[None], axis=0)[0]
            return found

        gain = np.maximum(0.0, of(self._reference) - of(self._own)) / np.maximum(of(self._weight), 1.0)
        failing: NDArray[np.bool_] = of(self._lost) > gain * of(self._lately)
        return failing

    def _fuse(self, history: Array, structure: Structural | None) -> tuple[Array, Array]:
        """Step 3: the share of the structure and what is expected."""
        if structure is None:
            return np.zeros_like(history), history
        weight = np.minimum(self._shared, self.policy.min_errors)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(self._shares[0] > 0, np.minimum(self._shares / self._shares[0], _MOST), 1.0)
            total = weight.sum(axis=1)
            pooled = np.where(total > 0, (ratio * weight).sum(axis=2) / total, _EXPECTED[:, None])
        # Before many targets of any series are known, what is taken for granted counts too.
        trust = (total / (total + self.policy.min_errors))[None]
        pooled = trust * pooled + (1 - trust) * _EXPECTED[:, None]
        size = np.where(self._shared > 0, self._shares[0] / np.maximum(self._shared, 1e-12), 0.0)
        size = np.where(size > 0, size, 1.0)
        missed = self._shares + self.policy.lean * size * pooled[:, :, None]
        best = np.argmin(missed, axis=0)
        known = ~np.isnan(structure.expected) & ~np.isnan(structure.level)
        best = np.where(np.isnan(history) & (SHARES[best, 0] > 0), _STRUCTURE, best)
        parts = np.stack([history, structure.expected, np.broadcast_to(structure.level, history.shape)])
        # A part without a share may be unknown.
        shares = np.moveaxis(SHARES[best], -1, 0)
        blended = np.sum(np.where(shares > 0, shares * parts, 0.0), axis=0)
        share = np.where(known, 1.0 - shares[0], 0.0)
        return share, np.where(known, np.maximum(0.0, blended), history)

    def current(self) -> Current:
        """The forecasts after the newest window; ValueError where there is none."""
        if self._newest is None:
            raise ValueError("no window was taken in since the series were arranged")
        newest = self._newest
        history, _, _, expected, spread = newest.served
        low, high = self._tracking.bounds(expected, spread)
        unsure = self._errors < self.policy.min_errors
        if newest.spread is not None:
            unsure = unsure & ~(~np.isnan(newest.spread) & (newest.share > 0))
        skill = 1 - _ratio(self._totals[0], self._totals[1])
        wape = _ratio(self._totals[0], self._totals[2])
        return Current(
            newest.chosen,
            history.copy(),
            newest.share,
            expected.copy(),
            np.where(unsure, np.nan, low),
            np.where(unsure, np.nan, high),
            skill,
            wape,
            self._errors.astype(np.int64),
        )


@dataclass(frozen=True, slots=True)
class _Newest:
    chosen: NDArray[np.intp]
    share: Array
    served: Array
    spread: Array | None


def _ratio(part: Array, whole: Array) -> Array:
    """NaN where there is no whole, or one so small that the ratio is no number."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found = part / whole
    return np.where((whole > 0) & np.isfinite(found), found, np.nan)
