"""The fit: a Gaussian process over cells, its variances by maximum a posteriori from the cells given, nothing else.

Steps: (1) log-throughputs, each column centred on its cells; (2) the covariance is an offset per column and the
components of ``covariance``; (3) variances by L-BFGS on the marginal likelihood with a log-normal prior, exact
gradients; (4) cells of a new chip are predicted jointly, so that probe runs on some of them correct the others.

Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), chapters 2 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from meridian.hardware import Chip
from services.telemetry.index.cells import Cell, Encoded, Encoder
from services.telemetry.index.covariance import COMPONENTS, NOISE_VARIANCE, components, same_column
from services.telemetry.index.features import Array

FUNCTION_ID = "meridian-sensitivity-gp/1"
"""Names the normalisation; scores under different ids do not compare."""
_OFFSET_VARIANCE = 25.0
_PRIOR_DEVIATION = 1.5
_JITTER = 1e-7


@dataclass(frozen=True, slots=True)
class Prediction:
    """Log-throughputs of ``n`` cells before they are measured: ``mean`` (n,), ``covariance`` (n, n) without noise."""

    mean: Array
    covariance: Array
    noise: float

    def given(self, probes: Sequence[int], log_throughputs: Array) -> Prediction:
        """After the cells with the indices ``probes`` were measured as ``log_throughputs``."""
        if not len(probes):
            return self
        chosen = np.asarray(probes)
        measured = self.covariance[np.ix_(chosen, chosen)] + self.noise * np.eye(len(chosen))
        gain = np.linalg.solve(measured, self.covariance[chosen]).T
        return Prediction(
            self.mean + gain @ (log_throughputs - self.mean[chosen]),
            self.covariance - gain @ self.covariance[chosen],
            self.noise,
        )

    @property
    def deviation(self) -> Array:
        """Standard deviation of a measurement of each cell, in logarithms."""
        variance: Array = np.maximum(np.diag(self.covariance), 0.0) + self.noise
        return np.sqrt(variance)


def best_probes(prediction: Prediction, count: int) -> list[int]:
    """The cells whose measurement is expected to reduce the summed variance of all cells most, one after the other."""
    chosen: list[int] = []
    left = prediction.covariance.copy()
    for _ in range(min(count, len(left))):
        gain = (left**2).sum(axis=0) / (np.diag(left) + prediction.noise)
        gain[chosen] = -np.inf
        best = int(np.argmax(gain))
        chosen.append(best)
        left = left - np.outer(left[:, best], left[best]) / (left[best, best] + prediction.noise)
    return chosen


class IndexModel:
    """Fitted to cells; predicts others."""

    def __init__(self, cells: Mapping[Cell, float], chips: Mapping[str, Chip], log_variances: Array) -> None:
        """``cells`` are throughputs; ``log_variances`` as ``fit`` finds them (components, then noise)."""
        self._keys = list(cells)
        self._encoder = Encoder.of(self._keys, chips)
        self._encoded = self._encoder.encode(self._keys)
        self.log_variances = log_variances
        logs = np.log(np.array([cells[key] for key in self._keys]))
        self._level = {
            column: float(logs[self._encoded.column == code].mean())
            for code, column in {
                int(code): key[1] for code, key in zip(self._encoded.column, self._keys, strict=True)
            }.items()
        }
        centred = logs - np.array([self._level[column] for _, column in self._keys])
        variances = np.exp(log_variances)
        prior = self._prior(self._encoded, self._encoded, variances)
        prior[np.diag_indices(len(self._keys))] += variances[-1] + _JITTER
        self._factor = cho_factor(prior, lower=True)
        self._weights = cho_solve(self._factor, centred)

    @classmethod
    def fit(cls, cells: Mapping[Cell, float], chips: Mapping[str, Chip], *, iterations: int = 30) -> IndexModel:
        """The model of ``cells`` ((chip id, column) -> throughput, positive); at least two cells.

        ``chips`` holds every chip of ``cells`` and every chip to be predicted later.
        """
        return cls(cells, chips, fitted_variances(cells, chips, iterations=iterations))

    @staticmethod
    def _prior(a: Encoded, b: Encoded, variances: Array) -> Array:
        offset = _OFFSET_VARIANCE * same_column(a, b)
        prior: Array = offset + np.tensordot(variances[:-1], components(a, b), 1)
        return prior

    def predict(self, cells: Sequence[Cell]) -> Prediction:
        """Log-throughputs of ``cells``, jointly; their columns must be among those of the fit (KeyError)."""
        encoded = self._encoder.encode(cells)
        variances = np.exp(self.log_variances)
        cross = self._prior(encoded, self._encoded, variances)
        level = np.array([self._level[column] for _, column in cells])
        mean = level + cross @ self._weights
        covariance = self._prior(encoded, encoded, variances) - cross @ cho_solve(self._factor, cross.T)
        return Prediction(mean, covariance, float(variances[-1]))

    @property
    def variances(self) -> dict[str, float]:
        """Component -> fitted variance."""
        names = [*(name for name, _ in COMPONENTS), "noise"]
        return dict(zip(names, np.exp(self.log_variances).tolist(), strict=True))


def fitted_variances(cells: Mapping[Cell, float], chips: Mapping[str, Chip], *, iterations: int = 30) -> Array:
    """Logarithms of the components' variances and the noise's, most probable given ``cells``."""
    keys = list(cells)
    encoded = Encoder.of(keys, chips).encode(keys)
    logs = np.log(np.array([cells[key] for key in keys]))
    count = len(keys)
    offsets = same_column(encoded, encoded)
    centred = logs - (offsets @ logs) / offsets.sum(axis=1)
    offsets *= _OFFSET_VARIANCE
    parts = components(encoded, encoded)
    flat = parts.reshape(len(parts), -1)
    start = np.log(np.array([*(variance for _, variance in COMPONENTS), NOISE_VARIANCE]))

    def loss(log_variances: Array) -> tuple[float, Array]:
        variances = np.exp(log_variances)
        prior = offsets + np.tensordot(variances[:-1], parts, 1)
        prior[np.diag_indices(count)] += variances[-1] + _JITTER
        try:
            factor = cho_factor(prior, lower=True)
        except np.linalg.LinAlgError:
            return 1e12, np.zeros_like(log_variances)
        inverse = cho_solve(factor, np.eye(count))
        weights = inverse @ centred
        slope = np.outer(weights, weights) - inverse
        gradient = np.append(flat @ slope.ravel(), np.trace(slope)) * (-0.5 * variances)
        away = (log_variances - start) / _PRIOR_DEVIATION
        value = 0.5 * centred @ weights + np.log(np.diag(factor[0])).sum() + 0.5 * away @ away
        return float(value), gradient + away / _PRIOR_DEVIATION

    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": iterations})
    fitted: Array = np.asarray(found.x, dtype=np.float64)
    return fitted
