"""The demand of all subjects window by window, and the forecasts that are kept up of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from services.forecast.backtest import replayed
from services.forecast.ledger import Subject
from services.forecast.past import Array
from services.forecast.rolling import Rolling, Structural

# Windows of a history that is read again of which the choice of methods learns; those before are only looked back on.
RELEARNED = 1440

Window = Mapping[Subject, float]


class History:
    """One series per subject, in the order in which they appeared; ``begin`` makes the forecasting of no series.

    A subject that is missing in a window has no demand there; before its first window nothing is known of it.
    """

    def __init__(self, begin: Callable[[], Rolling], windows: int) -> None:
        self._begin = begin
        self._limit = windows
        self._rolling = begin()
        self._rows: dict[Subject, int] = {}
        # Windows since a subject appeared.
        self._ages: list[int] = []

    @property
    def subjects(self) -> list[Subject]:
        """The subjects in the order of the rows."""
        return list(self._rows)

    @property
    def rolling(self) -> Rolling:
        """Their forecasting."""
        return self._rolling

    def windows_of(self, row: int) -> int:
        """Windows that the forecast of a row rests on at most."""
        return min(self._ages[row], self._limit)

    def replay(self, windows: Sequence[Window]) -> None:
        """Begin anew with ``windows``, the newest last."""
        self._rows = {}
        for window in windows:
            for subject in sorted(window):
                self._rows.setdefault(subject, len(self._rows))
        values = np.full((len(self._rows), len(windows)), np.nan)
        started = np.zeros(len(self._rows), np.bool_)
        for place, window in enumerate(windows):
            values[started, place] = 0.0
            for subject, value in window.items():
                row = self._rows[subject]
                values[row, place] = value
                started[row] = True
        self._ages = [int(np.count_nonzero(~np.isnan(row))) for row in values]
        fresh = self._begin()
        self._rolling = replayed(values, fresh.horizons, fresh.methods, fresh.policy, RELEARNED)

    def subjects_after(self, window: Window) -> list[Subject]:
        """The subjects in the order of the rows once ``window`` is added."""
        return [*self._rows, *self._new(window)]

    def _new(self, window: Window) -> list[Subject]:
        return sorted(subject for subject in window if subject not in self._rows)

    def append(self, window: Window, structure: Structural | None = None) -> None:
        """Add the newest window; ``structure`` is what the jobs let expect after it, in the order of `subjects_after`."""
        new = self._new(window)
        if new:
            rows = [*range(len(self._rows)), *(-1 for _ in new)]
            for subject in new:
                self._rows[subject] = len(self._rows)
            self._ages += [0] * len(new)
            self._rolling.rearrange(np.array(rows, np.intp))
        values: Array = np.zeros(len(self._rows))
        for subject, value in window.items():
            values[self._rows[subject]] = value
        self._ages = [age + 1 for age in self._ages]
        self._rolling.advance(values, structure)

    def drop(self, subjects: Iterable[Subject]) -> None:
        """Forget subjects; `Rolling.current` speaks again after the next window."""
        gone = set(subjects) & set(self._rows)
        if not gone:
            return
        kept = [(subject, row) for subject, row in self._rows.items() if subject not in gone]
        self._rows = {subject: index for index, (subject, _) in enumerate(kept)}
        self._ages = [self._ages[row] for _, row in kept]
        self._rolling.rearrange(np.array([row for _, row in kept], np.intp))
