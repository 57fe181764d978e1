"""The slope of the loss over a window of ln(step + 1), from sums, so that its state is small and can be kept.

Samples are gathered in cells of 1/64 of the window. Least squares over their sums is that over the samples; only the old end
of the window moves by whole cells. A window holds at most 66 cells, however many samples they stand for.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

# Cells of a window.
_CELLS = 64


class Slope(NamedTuple):
    """-d(loss)/d(ln(step + 1)) and its standard error; ``samples`` it rests on."""

    fall: float
    error: float
    samples: int


class SlopeWindow:
    """The last ``width`` of ln(step + 1) of a loss.

    A cell is (start of the cell, samples, sums of x, y, x squared, x y, y squared), with x and y counted from the first
    sample, so that little is lost to rounding.
    """

    def __init__(self, width: float) -> None:
        self._width = width
        self._cell = width / _CELLS
        self._cells: deque[list[float]] = deque()
        self._origin: tuple[float, float] | None = None
        self._sums = [0.0] * 6

    def add(self, x: float, y: float) -> None:
        """Take a sample; ``x`` does not fall."""
        if self._origin is None:
            self._origin = (x, y)
        dx, dy = x - self._origin[0], y - self._origin[1]
        amounts = (1.0, dx, dy, dx * dx, dx * dy, dy * dy)
        start = math.floor(x / self._cell)
        if not self._cells or self._cells[-1][0] != start:
            self._cells.append([float(start), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
        newest = self._cells[-1]
        for place, amount in enumerate(amounts):
            newest[place + 1] += amount
            self._sums[place] += amount
        oldest = math.floor((x - self._width) / self._cell)
        if self._cells[0][0] < oldest:
            while self._cells[0][0] < oldest:
                self._cells.popleft()
            self._sums = self._added_up()

    def slope(self, least: int, newest: float | None = None) -> Slope | None:
        """The slope over the window, or over the ``newest`` part of it (in ln(step + 1), to a cell); None with fewer than
        ``least`` samples, or where they stand at one place."""
        count, sx, sy, sxx, sxy, syy = self._sums if newest is None else self._added_up(newest)
        spread = count * sxx - sx * sx
        if count < max(3, least) or spread <= 1e-9 * count * max(sxx, self._cell**2):
            return None
        slope = (count * sxy - sx * sy) / spread
        rest = max(0.0, (syy - sy * sy / count) - slope * (sxy - sx * sy / count))
        error = math.sqrt(rest / (count - 2) / (spread / count))
        return Slope(-slope, error, int(count))

    def state(self) -> dict[str, object]:
        """What `restore` takes, fit for JSON."""
        return {"origin": self._origin, "cells": [list(cell) for cell in self._cells]}

    def restore(self, origin: Sequence[float] | None, cells: Sequence[Sequence[float]]) -> None:
        """Go on from a kept state."""
        self._origin = None if origin is None else (float(origin[0]), float(origin[1]))
        self._cells = deque([float(number) for number in cell] for cell in cells)
        self._sums = self._added_up()

    def _added_up(self, newest: float = math.inf) -> list[float]:
        oldest = self._cells[-1][0] - newest / self._cell if self._cells else 0.0
        cells = [cell for cell in self._cells if cell[0] > oldest]
        return [math.fsum(cell[place] for cell in cells) for place in range(1, 7)]
