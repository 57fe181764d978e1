"""Choose a method per series by what it would have done, and say honestly how well that choice works.

1. Every method forecasts from every past origin.
2. A method is compared with persistence on those targets on which it had a forecast. At each origin the one with the
   smallest ratio of absolute errors, among the targets known by then, would have served; persistence, unless another one
   is better by a margin on enough targets.
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


def _forecast_chunk(values: Array, horizon: int, methods: Sequence[Method], policy: Policy) -> Forecasts:
    series, times = values.shape
    made = np.stack([method.forecast(values, horizon) for method in methods])
    # By target: column t holds what was forecast for t.
    errors = np.full_like(made, np.nan)
    if times > horizon:
        errors[:, :, horizon:] = values[None, :, horizon:] - made[:, :, :-horizon]
    known = ~np.isnan(errors)
    size = np.where(known, np.abs(errors), 0.0)
    of_method = _recent_sums(size, policy.recent)
    of_persistence = _recent_sums(np.where(known, size[0][None], 0.0), policy.recent)
    count = _recent_sums(known.astype(np.float64), policy.recent)

    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = of_method / of_persistence
    unfit = (count < policy.min_errors) | ~(ratio <= 1 - policy.margin) | np.isnan(made)
    ratio = np.where(unfit, np.inf, ratio)
    ratio[0] = 1.0
    chosen = np.argmin(ratio, axis=0)

    rows = np.arange(series)
    now = chosen[:, -1]
    expected = made[now, rows, -1]
    own = errors[now, rows][:, -policy.recent :]
    count_now = np.sum(~np.isnan(own), axis=1)
    low, high = _band(own, expected, count_now, policy)
    skill, wape = _prequential(values, size, known, chosen, horizon, policy.recent)
    return Forecasts(
        horizon, [methods[index].name for index in now], expected, low, high, skill, wape, count_now.astype(np.int64)
    )


def _band(own: Array, expected: Array, count: NDArray[np.int64], policy: Policy) -> tuple[Array, Array]:
    low, high = np.full(len(own), np.nan), np.full(len(own), np.nan)
    enough = count >= policy.min_errors
    if enough.any():
        tail = (1 - policy.band) / 2
        bounds = np.nanquantile(own[enough], [tail, 1 - tail], axis=1)
        low[enough] = np.maximum(0.0, np.minimum(expected[enough], expected[enough] + bounds[0]))
        high[enough] = np.maximum(expected[enough], expected[enough] + bounds[1])
    return low, high


def _prequential(
    values: Array, size: Array, known: NDArray[np.bool_], chosen: NDArray[np.int64], horizon: int, recent: int
) -> tuple[Array, Array]:
    series, times = values.shape
    none = np.full(series, np.nan)
    if times <= horizon:
        return none, none.copy()
    # The choice made at the origin of each target.
    choice = chosen[:, :-horizon]
    targets = np.arange(horizon, times)
    rows = np.arange(series)[:, None]
    served = size[choice, rows, targets[None]][:, -recent:]
    baseline = size[0][:, horizon:][:, -recent:]
    counted = known[0][:, horizon:][:, -recent:]
    volume = np.where(counted, np.abs(values[:, horizon:][:, -recent:]), 0.0).sum(axis=1)
    of_served = np.where(counted, served, 0.0).sum(axis=1)
    of_baseline = np.where(counted, baseline, 0.0).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        skill = np.where(of_baseline > 0, 1 - of_served / of_baseline, np.nan)
        wape = np.where(volume > 0, of_served / volume, np.nan)
    return skill, wape
