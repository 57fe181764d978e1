"""What the model says of cells before they are measured, what probe runs change, and which to ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.telemetry.index.features import Array

_ODD_DEVIATIONS, _PASSES = 2.5, 2
_LEAST_DEVIATION = 0.1
"""However sure the facts are: chips are capped, throttled and badly cooled."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Log-throughputs of ``n`` cells before they are measured: ``mean`` (n,), ``covariance`` (n, n) without noise."""

    mean: Array
    covariance: Array
    noise: float
    widths: tuple[float, ...] = (1.0,)
    """Factor on the deviation after 0, 1, ... probe runs (the last holds for more), from training chips left out."""
    probed: int = 0
    tasks: tuple[str, ...] = ()
    """The task of each cell; without them no cell shares its task with another."""

    def given(self, probes: Sequence[int], log_throughputs: Array) -> Prediction:
        """After the cells with the indices ``probes`` were measured as ``log_throughputs``; odd ones move it less.

        Of a single run more than ``_ODD_DEVIATIONS`` off, only the cells of its own task follow all the way.
        """
        if not len(probes):
            return self
        chosen = np.asarray(probes)
        measured = self.covariance[np.ix_(chosen, chosen)] + self.noise * np.eye(len(chosen))
        error = log_throughputs - self.mean[chosen]
        if len(chosen) > 1:
            measured = _held(measured, error)
        gain = np.linalg.solve(measured, self.covariance[chosen]).T
        moved = gain @ error
        if len(chosen) == 1:
            # What is beyond the limit is of the task that was run, not of the chip.
            most = _ODD_DEVIATIONS * max(float(np.sqrt(measured[0, 0])), _LEAST_DEVIATION)
            moved = np.where(self._of_the_task(int(chosen[0])), moved, gain @ np.clip(error, -most, most))
        return Prediction(
            self.mean + moved,
            self.covariance - gain @ self.covariance[chosen],
            self.noise,
            self.widths,
            self.probed + len(chosen),
            self.tasks,
        )

    def _of_the_task(self, index: int) -> NDArray[np.bool_]:
        """Which cells are of the same task as the cell ``index``, itself among them."""
        if not self.tasks:
            return np.array([other == index for other in range(len(self.mean))])
        return np.array([task == self.tasks[index] for task in self.tasks])

    def part(self, which: Sequence[int]) -> Prediction:
        """The prediction of the cells with the indices ``which``."""
        chosen = np.asarray(which)
        return Prediction(
            self.mean[chosen],
            self.covariance[np.ix_(chosen, chosen)],
            self.noise,
            self.widths,
            self.probed,
            tuple(self.tasks[index] for index in chosen) if self.tasks else (),
        )

    @property
    def deviation(self) -> Array:
        """Standard deviation of a measurement of each cell, in logarithms."""
        variance: Array = np.maximum(np.diag(self.covariance), 0.0) + self.noise
        return np.sqrt(variance) * self.widths[min(self.probed, len(self.widths) - 1)]


def _held(covariance: Array, error: Array) -> Array:
    """``covariance`` (n, n) of probe runs with more noise for those that the others and the facts make odd.

    A run whose error given all the others is more than ``_ODD_DEVIATIONS`` of its deviations counts as one that is just so
    far off (Huber's weights; Huber, Robust estimation of a location parameter, 1964): one odd cell must not move all.
    """
    held = covariance.copy()
    for _ in range(_PASSES):
        inverse = np.linalg.inv(held)
        variance = 1 / np.diag(inverse)
        left = (inverse @ error) * variance
        worst = int(np.argmax(left**2 / variance))
        more = left[worst] ** 2 / _ODD_DEVIATIONS**2 - variance[worst]
        if more <= 0:
            break
        held[worst, worst] += more
    return held


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
