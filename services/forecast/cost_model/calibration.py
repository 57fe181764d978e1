"""Calibration: what a few measured runs of a group say about the parameters, as a posterior update.

1. The logarithms of the parameters have a normal prior around the served values (``SPREAD``), and a group has a factor of
   its own (what no parameter names), ln-normal around 1. ``FACTOR_SPREAD`` is the root mean square of the biases of
   published families by parameters that were fitted without them (`bench/cost_model.py`).
2. Each measured run is an observation of ln(step time). The group's noise is estimated with the rest: its variance has a
   scaled inverse chi-squared prior (``NOISE``, worth ``NOISE_WEIGHT`` runs). Runs that agree are believed, runs that
   scatter leave the prior where it is. A run that the model cannot explain counts less (Student's t, ``DEGREES`` of
   freedom).
3. Gauss-Newton with reweighting finds the most probable parameters (Gelman et al. 2013, Bayesian Data Analysis, sections
   3.2, 4.1 and 17.2).
With one to three runs the factor takes nearly all; parameters move where runs of different shape disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from services.forecast.cost_model.efficiency import BOUNDS, NAMES, Efficiency, from_mapping, to_mapping

# Standard deviations of logarithms.
SPREAD = dict.fromkeys(NAMES, 0.03) | {"dispatch_s": 0.06, "fabric": 0.06, "overlap_gradients": 0.06}
FACTOR_SPREAD = 0.08
NOISE = 0.08
NOISE_WEIGHT = 2.0
DEGREES = 3.0
_STEP = 1e-3
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Parameters of a group and the factor on its step times."""

    efficiency: Efficiency
    factor: float

    @classmethod
    def cold(cls, efficiency: Efficiency) -> Calibrated:
        """Nothing was measured."""
        return cls(efficiency, 1.0)


def calibrate(
    prior: Efficiency, predict: Callable[[Efficiency], Sequence[float]], measured_s: Sequence[float]
) -> Calibrated:
    """The most probable parameters; ``predict`` gives the step times of the measured runs for parameters."""
    if not measured_s:
        return Calibrated.cold(prior)
    served = to_mapping(prior)
    center = np.log([served[name] for name in NAMES])
    low, high = (np.log([BOUNDS[name][side] for name in NAMES]) for side in (0, 1))
    spread = np.array([SPREAD[name] for name in NAMES])
    observed = np.log(np.asarray(measured_s, dtype=float))

    def predicted(at: np.ndarray) -> np.ndarray:
        values = dict(zip(NAMES, np.exp(np.clip(at, low, high)).tolist(), strict=True))
        # exp(log(bound)) may leave the bounds by a rounding.
        held = {name: min(max(value, BOUNDS[name][0]), BOUNDS[name][1]) for name, value in values.items()}
        return np.asarray(np.log(np.asarray(predict(from_mapping(held)), dtype=float)))

    moved, factor = np.zeros(len(NAMES)), 0.0
    variance = np.full(len(observed), NOISE**2)
    scale = np.append(spread, FACTOR_SPREAD)
    for _ in range(_ROUNDS):
        base = predicted(center + moved)
        columns = []
        for index in range(len(NAMES)):
            step = np.zeros(len(NAMES))
            step[index] = _STEP
            columns.append((predicted(center + moved + step) - base) / _STEP)
        jacobian = np.column_stack([*columns, np.ones(len(base))])
        # Minimise |J d - r|^2 / noise^2 + |d / scale|^2 for d, the distance from the prior.
        at = np.append(moved, factor)
        target = observed - (base + factor) + jacobian @ at
        weighted = jacobian * scale
        inner = weighted @ weighted.T + np.diag(variance)
        at = scale * (weighted.T @ np.linalg.solve(inner, target))
        left = observed - (base + factor) - jacobian @ (at - np.append(moved, factor))
        noise = (NOISE_WEIGHT * NOISE**2 + float(left @ left)) / (NOISE_WEIGHT + len(left))
        variance = noise * (DEGREES + left**2 / noise) / (DEGREES + 1)
        moved, factor = np.clip(center + at[:-1], low, high) - center, float(at[-1])
    values = np.exp(center + moved).tolist()
    held = {name: min(max(value, BOUNDS[name][0]), BOUNDS[name][1]) for name, value in zip(NAMES, values, strict=True)}
    return Calibrated(from_mapping(held), float(np.exp(factor)))
