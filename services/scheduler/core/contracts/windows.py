"""Windows of a share account as JSON types, and where their domains stand at other places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from services.scheduler.core.contracts.plan import Window
from services.scheduler.core.table import Floats

_FIELDS = 8


def row_of(window: Window) -> list[Any]:
    """A window without single units' parts, as JSON types."""
    return [
        window.number,
        window.given.tolist(),
        window.up.tolist(),
        maybe_list(window.wanted),
        window.reasons,
        maybe_list(window.issued),
        maybe_list(window.promised),
        maybe_list(window.owed),
    ]


def window_of(row: Sequence[Any]) -> Window:
    """What `row_of` gave; rows saved before plans were issued per window end with the reasons."""
    number, given, up, wanted, reasons, issued, promised, owed = [*row, None, None, None][:_FIELDS]
    return Window(
        number,
        floats(given),
        floats(up),
        wanted=maybe_floats(wanted),
        reasons=None if reasons is None else tuple(reasons),
        issued=maybe_floats(issued),
        promised=maybe_floats(promised),
        owed=maybe_floats(owed),
    )


def moved(row: Floats, places: Sequence[int], missing: float) -> Floats:
    """A row (D) of domains that stood at these places, ``missing`` for new ones (-1)."""
    return np.array([row[place] if place >= 0 else missing for place in places], dtype=np.float64)


def moved_fractions(row: Floats, places: Sequence[int]) -> Floats | None:
    """The same of fractions, which sum to 1 again; None when nothing is left. NaN for new domains."""
    found = moved(row, places, math.nan)
    total = float(np.nansum(found))
    return found / total if total > 0 else None


def moved_window(window: Window, places: Sequence[int]) -> Window:
    """A window of domains that stood at these places."""
    return replace(
        window,
        given=moved(window.given, places, 0.0),
        up=moved(window.up, places, 0.0),
        committed=None if window.committed is None else moved(window.committed, places, 0.0),
        wanted=None if window.wanted is None else moved(window.wanted, places, math.nan),
        issued=None if window.issued is None else moved(window.issued, places, math.nan),
        promised=None if window.promised is None else moved(window.promised, places, math.nan),
        owed=None if window.owed is None else moved(window.owed, places, 0.0),
        reasons=None if window.reasons is None else tuple(window.reasons[at] if at >= 0 else "" for at in places),
    )


def floats(values: Sequence[float]) -> Floats:
    """Numbers as an array."""
    return np.array(values, dtype=np.float64)


def maybe_floats(values: Sequence[float] | None) -> Floats | None:
    """The same, or None."""
    return None if values is None else floats(values)


def maybe_list(row: Floats | None) -> list[float] | None:
    """An array as a list, or None."""
    return None if row is None else row.tolist()
