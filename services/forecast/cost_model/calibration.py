"""Calibration: what a few measured runs of a group say about the parameters, as a posterior update.

1. The logarithms of the parameters have a normal prior around the served values (``SPREAD``). A group has a factor of its
   own on the times of chips and links (what no parameter names), ln-normal around 1; the time of the host has a parameter
   of its own, so runs that wait for the host say nothing of the factor, and it says nothing of them. ``FACTOR_SPREAD`` is
   the root mean square of the biases of published families by parameters that were fitted without them
   (`bench/cost_model.py`).
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
FACTOR_SPREAD = 0.056
NOISE = 0.08
NOISE_WEIGHT = 2.0
DEGREES = 3.0
_STEP = 1e-3
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Parameters of a group and the factor on the times of its chips and links."""

    efficiency: Efficiency
    factor: float

    @classmethod
    def cold(cls, efficiency: Efficiency) -> Calibrated:
        """Nothing was measured."""
        return cls(efficiency, 1.0)

    @property
    def applied(self) -> Efficiency:
        """Parameters that hold the factor: what predicts the group's other runs."""
        return self.efficiency.slowed(self.factor)


def calibrate(
    prior: Efficiency,
    predict: Callable[[Efficiency], Sequence[float]],
    measured_s: Sequence[float],
    factor_spread: float = FACTOR_SPREAD,
) -> Calibrated:
    """The most probable parameters; ``predict`` gives the step times of the measured runs for parameters.

    ``factor_spread``: standard deviation of the logarithm of the group's factor, above 0.
    """
    if not measured_s:
        return Calibrated.cold(prior)
    served = to_mapping(prior)
    center = np.log([served[name] for name in NAMES])
    low, high = (np.log([BOUNDS[name][side] for name in NAMES]) for side in (0, 1))
    observed = np.log(np.asarray(measured_s, dtype=float))

    def calibrated(at: np.ndarray) -> Calibrated:
        values = np.exp(np.clip(center + at[:-1], low, high)).tolist()
        # exp(log(bound)) may leave the bounds by a rounding.
        held = {n: min(max(value, BOUNDS[n][0]), BOUNDS[n][1]) for n, value in zip(NAMES, values, strict=True)}
        return Calibrated(from_mapping(held), float(np.exp(at[-1])))

    def predicted(at: np.ndarray) -> np.ndarray:
        return np.asarray(np.log(np.asarray(predict(calibrated(at).applied), dtype=float)))

    # Distances from the prior: logarithms of the parameters, then of the factor.
    at = np.zeros(len(NAMES) + 1)
    scale = np.append([SPREAD[name] for name in NAMES], factor_spread)
    variance = np.full(len(observed), NOISE**2)
    for _ in range(_ROUNDS):
        base = predicted(at)
        jacobian = np.column_stack([(predicted(at + step) - base) / _STEP for step in np.eye(len(at)) * _STEP])
        # Minimise |J d - r|^2 / noise^2 + |d / scale|^2 for d, the distance from the prior.
        target = observed - base + jacobian @ at
        weighted = jacobian * scale
        inner = weighted @ weighted.T + np.diag(variance)
        found = scale * (weighted.T @ np.linalg.solve(inner, target))
        left = target - jacobian @ found
        noise = (NOISE_WEIGHT * NOISE**2 + float(left @ left)) / (NOISE_WEIGHT + len(left))
        variance = noise * (DEGREES + left**2 / noise) / (DEGREES + 1)
        at = np.append(np.clip(center + found[:-1], low, high) - center, found[-1])
    return calibrated(at)
