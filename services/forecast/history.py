"""The windows of all series as one matrix, appended to as windows close."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from services.forecast.ledger import Subject
from services.forecast.methods import Array


class History:
    """Accelerators in demand: one row per subject, one column per window; NaN before a subject appeared."""

    def __init__(self, windows: int) -> None:
        self._limit = windows
        self._rows: dict[Subject, int] = {}
        self._values: Array = np.empty((0, 0))

    @property
    def subjects(self) -> list[Subject]:
        """The subjects in the order of the rows."""
        return list(self._rows)

    @property
    def values(self) -> Array:
        """The matrix [subject, window]."""
        return self._values

    def append(self, window: Mapping[Subject, float]) -> None:
        """Add the newest window. A subject that is missing in it keeps a gap, which counts as no demand."""
        new = [subject for subject in window if subject not in self._rows]
        if new:
            for subject in sorted(new):
                self._rows[subject] = len(self._rows)
            blank = np.full((len(new), self._values.shape[1]), np.nan)
            self._values = np.vstack([self._values, blank])
        column = np.zeros((len(self._rows), 1))
        for subject, value in window.items():
            column[self._rows[subject], 0] = value
        self._values = np.hstack([self._values, column])[:, -self._limit :]

    def drop(self, subjects: Iterable[Subject]) -> None:
        """Forget subjects."""
        gone = set(subjects)
        kept = [(subject, row) for subject, row in self._rows.items() if subject not in gone]
        self._values = self._values[[row for _, row in kept]] if kept else np.empty((0, self._values.shape[1]))
        self._rows = {subject: index for index, (subject, _) in enumerate(kept)}
