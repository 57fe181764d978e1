"""Choose a method per series by what it would have done, and say honestly how well that choice works.

1. Every method forecasts from every past origin.
2. A method is compared with persistence on those targets on which it had a forecast. At each origin the one with the
   smallest ratio of absolute errors, among the targets known by then, would have served; persistence, or what stands in
   for it (``Policy.stand_in``), unless another one is better by a margin on enough targets.
3. The skill that is reported is that of step 2 carried out at every origin (prequential), not that of the winner on the
   very targets that made it win.
4. The band is made of the empirical quantiles of the chosen method's own past errors; there is none when they are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.forecast.methods import Array, Method

# Series handled together, to bound memory: methods x series x time.
_CHUNK = 128


@dataclass(frozen=True, slots=True)
class Policy:
    """How methods are chosen."""

    # Targets, newest last, that count.
    recent: int = 1440
    # Errors a method must have before it may serve, and before there is a band.
    min_errors: int = 30
    # By how much a method must beat persistence.
    margin: float = 0.03
    # Serves in place of persistence where it says something else: it weighs itself against persistence, by all its past.
    stand_in: str = "settling"
    band: float = 0.8


@dataclass(frozen=True, slots=True)
class Forecasts:
    """Forecasts of all series at one horizon; NaN where there is no history, no band, or no skill to speak of.

    ``skill`` is 1 - sum|error| / sum|error of persistence| of the procedure as a whole (step 3); ``wape`` its sum of
    absolute errors over the sum of the values.
    """

    horizon: int
    method: list[str]
    expected: Array
    low: Array
    high: Array
    skill: Array
    wape: Array
    errors: NDArray[np.int64]


def forecast_all(values: Array, horizon: int, methods: Sequence[Method], policy: Policy) -> Forecasts:
    """Forecast each row of ``values`` [series, time] ``horizon`` windows ahead; ``methods[0]`` must be persistence."""
    parts = [
        _forecast_chunk(values[start : start + _CHUNK], horizon, methods, policy)
        for start in range(0, len(values), _CHUNK)
    ]
    if not parts:
        empty = np.empty(0)
        return Forecasts(horizon, [], empty, empty, empty, empty, empty, np.empty(0, np.int64))
    return Forecasts(
        horizon,
        method=[name for part in parts for name in part.method],
        expected=np.concatenate([part.expected for part in parts]),
        low=np.concatenate([part.low for part in parts]),
        high=np.concatenate([part.high for part in parts]),
        skill=np.concatenate([part.skill for part in parts]),
        wape=np.concatenate([part.wape for part in parts]),
        errors=np.concatenate([part.errors for part in parts]),
    )


def _recent_sums(amounts: Array, recent: int) -> Array:
    """For each time the sum over the last ``recent`` times up to it, along the last axis."""
    total = np.cumsum(amounts, axis=-1)
    total[..., recent:] = total[..., recent:] - total[..., :-recent].copy() if recent < total.shape[-1] else 0
    return total


@dataclass(frozen=True, slots=True)
class Backtest:
    """What every method would have forecast at every origin, and which would have served: steps 1 and 2.

    ``made`` [method, series, origin]; ``errors`` [method, series, target], value - forecast; ``chosen`` [series, origin].
    """

    values: Array
    horizon: int
    policy: Policy
    made: Array
    errors: Array
    chosen: NDArray[np.int64]

    @classmethod
    def of(cls, values: Array, horizon: int, methods: Sequence[Method], policy: Policy) -> Backtest:
        """Run the methods over ``values`` [series, time]; ``methods[0]`` is persistence."""
        made = np.stack([method.forecast(values, horizon) for method in methods])
        errors = np.full_like(made, np.nan)
        if values.shape[1] > horizon:
            errors[:, :, horizon:] = values[None, :, horizon:] - made[:, :, :-horizon]
        known = ~np.isnan(errors)
        size = np.where(known, np.abs(errors), 0.0)
        of_method = _recent_sums(size, policy.recent)
        of_persistence = _recent_sums(np.where(known, size[0][None], 0.0), policy.recent)
        count = _recent_sums(known.astype(np.float64), policy.recent)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = of_method / of_persistence
        unfit = (count < policy.min_errors) | ~(ratio <= 1 - policy.margin) | np.isnan(made)
        ratio = np.where(unfit, np.inf, ratio)
        ratio[0] = 1.0
        chosen = np.argmin(ratio, axis=0)
        for index, method in enumerate(methods):
            if method.name == policy.stand_in:
                speaks = np.isfinite(made[index]) & (made[index] != made[0])
                chosen = np.where((chosen == 0) & speaks, index, chosen)
        return cls(values, horizon, policy, made, errors, chosen)

    def served_errors(self) -> Array:
        """Errors of what would have served, by target (step 3)."""
        result = np.full_like(self.values, np.nan)
        times = self.values.shape[1]
        if times > self.horizon:
            rows = np.arange(len(self.values))[:, None]
            targets = np.arange(self.horizon, times)[None]
            result[:, self.horizon :] = self.errors[self.chosen[:, : -self.horizon], rows, targets]
        return result

    def forecast_at(self, origin: int) -> tuple[Array, Array, Array, NDArray[np.int64]]:
        """What is forecast at ``origin``: expectation, bounds of the band, number of errors behind it (step 4)."""
        rows = np.arange(len(self.values))
        now = self.chosen[:, origin]
        expected = self.made[now, rows, origin]
        own = self.errors[now, rows][:, max(0, origin + 1 - self.policy.recent) : origin + 1]
        count = np.sum(~np.isnan(own), axis=1)
        low, high = np.full(len(own), np.nan), np.full(len(own), np.nan)
        enough = count >= self.policy.min_errors
        if enough.any():
            tail = (1 - self.policy.band) / 2
            bounds = np.nanquantile(own[enough], [tail, 1 - tail], axis=1)
            low[enough] = np.maximum(0.0, np.minimum(expected[enough], expected[enough] + bounds[0]))
            high[enough] = np.maximum(expected[enough], expected[enough] + bounds[1])
        return expected, low, high, count.astype(np.int64)


def _forecast_chunk(values: Array, horizon: int, methods: Sequence[Method], policy: Policy) -> Forecasts:
    test = Backtest.of(values, horizon, methods, policy)
    expected, low, high, count = test.forecast_at(values.shape[1] - 1)
    served = np.abs(test.served_errors()[:, -policy.recent :])
    baseline = np.abs(test.errors[0][:, -policy.recent :])
    counted = ~np.isnan(baseline)
    volume = np.where(counted, np.abs(values[:, -policy.recent :]), 0.0).sum(axis=1)
    of_served = np.where(counted, served, 0.0).sum(axis=1)
    of_baseline = np.where(counted, baseline, 0.0).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        skill = np.where(of_baseline > 0, 1 - of_served / of_baseline, np.nan)
        wape = np.where(volume > 0, of_served / volume, np.nan)
    names = [methods[index].name for index in test.chosen[:, -1]]
    return Forecasts(horizon, names, expected, low, high, skill, wape, count)
