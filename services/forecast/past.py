"""The newest windows of many series, for methods that advance window by window: appended to in constant time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rows = NDArray[np.intp]


def rearranged(array: Array, rows: Rows, fill: float) -> Array:
    """``array`` [..., series] with series i taken from its old place ``rows[i]``; a new one, -1, holds ``fill``."""
    old = array.shape[-1]
    result: Array = array[..., rows] if old else np.full((*array.shape[:-1], len(rows)), fill)
    result[..., rows < 0] = fill
    return result


class Past:
    """The last ``windows`` values of each series by age in windows; NaN where nothing was yet.

    Windows lie behind each other in a block twice as long as needed, so that any run of them is a view.
    """

    def __init__(self, windows: int, series: int) -> None:
        self._windows = max(1, windows)
        self._block: Array = np.full((2 * self._windows, series), np.nan)
        # One past the newest.
        self._end = self._windows

    @property
    def series(self) -> int:
        """How many series there are."""
        return int(self._block.shape[1])

    def append(self, values: Array) -> None:
        """Add the newest window, [series]."""
        if self._end == len(self._block):
            self._block[: self._windows] = self._block[self._windows :]
            self._end = self._windows
        self._block[self._end] = values
        self._end += 1

    def back(self, age: int) -> Array:
        """The values ``age`` windows before the newest, [series]; a view that the next `append` may overwrite."""
        if age >= self._windows:
            return np.full(self.series, np.nan)
        found: Array = self._block[self._end - 1 - age]
        return found

    def run(self, oldest: int, newest: int, stride: int = 1) -> Array:
        """The values of ages ``oldest`` down to ``newest``, every ``stride``-th, [window, series]; a view."""
        return self._block[self._end - 1 - oldest : self._end - newest : stride]

    def rearrange(self, rows: Rows) -> None:
        """Series i is the one that was at ``rows[i]``; -1 is new."""
        self._block = rearranged(self._block, rows, np.nan)
