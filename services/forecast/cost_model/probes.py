"""Which few runs of a group to measure: those that tell most of all others, by what runs are and not by what they take.

One by one the run whose measurement takes most off the sum of the variances of all runs' discrepancies, by the Gaussian process of
``calibration`` (Cohn et al. 1996, arXiv:cs/9603104: the integrated variance; its variances do not depend on what is measured).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.forecast.cost_model.calibration import PRIOR, Likeness, Prior, Traits

# Runs that tell as much but for rounding: the first is taken.
_ROUNDING = 1e-9


class Telling:
    """How much the runs of one group tell of one another."""

    def __init__(self, among: Likeness, prior: Prior = PRIOR) -> None:
        self._covariance = among.near(prior)
        self._noise = prior.noise**2
        # After the runs measured in this order, what each run would take off.
        self._told: dict[tuple[int, ...], np.ndarray] = {}

    @classmethod
    def of(cls, runs: Sequence[Traits], prior: Prior = PRIOR) -> Telling:
        """Of the runs of a group."""
        return cls(Likeness.of(runs, runs), prior)

    def most(self, count: int, available: Sequence[int]) -> list[int]:
        """Positions of the ``count`` runs to measure, first to last, of those ``available``; all when there are no more."""
        chosen: list[int] = []
        left = list(dict.fromkeys(available))
        while left and len(chosen) < count:
            told = self._after(tuple(chosen))[left]
            chosen.append(left.pop(int(np.argmax(told >= told.max() * (1 - _ROUNDING)))))
        return chosen

    def _after(self, measured: tuple[int, ...]) -> np.ndarray:
        """What each run would take off the sum of variances once ``measured`` are known."""
        if measured not in self._told:
            left = self._covariance
            for position in measured:
                column = left[:, position]
                left = left - np.outer(column, column) / (column[position] + self._noise)
            self._told[measured] = np.asarray((left**2).sum(axis=0) / (np.diag(left) + self._noise))
        return self._told[measured]
