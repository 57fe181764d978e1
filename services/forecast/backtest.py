"""What would have been forecast at every past origin of recorded series, by each method and by what would have served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.forecast.autoregression import Autoregression
from services.forecast.methods import DampedTrend, Method, Persistence, RollingMedian, SeasonalNaive
from services.forecast.past import Array
from services.forecast.rolling import Current, Policy, Rolling, Structural
from services.forecast.settling import Settling


def standard_methods(window_s: float, periods_s: tuple[float, ...], windows: int) -> list[Method]:
    """Persistence first, then smoothing, a seasonal method for each period that fits twice into the history, and those
    that learn from the history."""
    methods: list[Method] = [
        Persistence(),
        DampedTrend(0.5, 0.0, 1.0, "smoothing"),
        DampedTrend(0.6, 0.2, 0.9, "damped_trend"),
        Settling(),
        RollingMedian(),
    ]
    seasons = {period_s: round(period_s / window_s) for period_s in periods_s}
    seasons = {period_s: period for period_s, period in seasons.items() if period >= 2 and 2 * period <= windows}
    methods += [SeasonalNaive(period, f"seasonal_{period_s:.0f}s") for period_s, period in seasons.items()]
    return [*methods, Autoregression(tuple(seasons.values()))]


def replayed(
    values: Array, horizons: Sequence[int], methods: Sequence[Method], policy: Policy, windows: int | None = None
) -> Rolling:
    """Forecasting that has gone through ``values`` [series, time]: the last ``windows`` of them one by one, those before
    only as what methods look back on."""
    rolling = Rolling(methods, horizons, policy, len(values))
    first = 0 if windows is None else max(0, values.shape[1] - windows)
    columns = np.ascontiguousarray(values.T)
    rolling.prime(columns[:first].T)
    for column in columns[first:]:
        rolling.advance(column)
    return rolling


def forecast_all(values: Array, horizons: Sequence[int], methods: Sequence[Method], policy: Policy) -> Current:
    """The forecasts after the newest window of ``values`` [series, time], all of whose windows are gone through."""
    return replayed(values, horizons, methods, policy).current()


@dataclass(frozen=True, slots=True)
class Backtest:
    """What every method would have forecast at every origin, and what would have served.

    ``made`` [method, series, origin]; ``errors`` [method, series, target], value - forecast; ``chosen`` [series, origin];
    ``served``, ``low`` and ``high`` [series, origin]: what is forecast there, and its band.
    """

    values: Array
    horizon: int
    made: Array
    errors: Array
    chosen: NDArray[np.intp]
    served: Array
    low: Array
    high: Array

    @classmethod
    def of(
        cls,
        values: Array,
        horizon: int,
        methods: Sequence[Method],
        policy: Policy,
        structure: Structural | None = None,
        inputs: Array | None = None,
    ) -> Backtest:
        """Run the methods over ``values`` [series, time]; ``methods[0]`` is persistence.

        ``structure`` is what it said at each origin, all [series, origin]. ``inputs`` are what the methods see in place of
        ``values``, for example with gaps filled.
        """
        rolling = Rolling(methods, (horizon,), policy, len(values))
        seen = values if inputs is None else inputs
        made = np.full((len(methods), *values.shape), np.nan)
        chosen = np.zeros(values.shape, np.intp)
        served, low, high = (np.full_like(values, np.nan) for _ in range(3))
        for t in range(values.shape[1]):
            said = None
            if structure is not None:
                said = Structural(structure.expected[None, :, t], structure.spread[None, :, t], structure.level[:, t])
            rolling.advance(seen[:, t], said, values[:, t])
            now = rolling.current()
            made[:, :, t] = rolling.newest()[:, 0]
            chosen[:, t] = now.method[0]
            served[:, t], low[:, t], high[:, t] = now.expected[0], now.low[0], now.high[0]
        errors = np.full_like(made, np.nan)
        if values.shape[1] > horizon:
            errors[:, :, horizon:] = values[None, :, horizon:] - made[:, :, :-horizon]
        return cls(values, horizon, made, errors, chosen, served, low, high)

    def served_errors(self) -> Array:
        """Errors of what would have served, by target."""
        result = np.full_like(self.values, np.nan)
        if self.values.shape[1] > self.horizon:
            result[:, self.horizon :] = self.values[:, self.horizon :] - self.served[:, : -self.horizon]
        return result
