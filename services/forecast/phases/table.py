"""Curves from a CSV file with the columns run, step, train_loss and optionally lr, gbs, total_steps, group."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from services.forecast.phases.curve import Array, Curve
from services.forecast.phases.detector import LARGEST_LOSS
from services.forecast.tables import LeftAside, cells_taken_for_empty, lines_of

NEEDED = ("run", "step", "train_loss")
OPTIONAL = ("lr", "gbs", "total_steps", "group")
# A run of which more than this share of the lines contradict each other is not judged.
_CONTRADICTING = 0.5
# Nor one that began again after more than this share of it, or whose last share of it has no usable loss.
_BEGUN_AGAIN = 0.10
_HOLE_AT_THE_END = 0.10


@dataclass(frozen=True, slots=True)
class Curves:
    """What a file holds: usable curves, runs that are not usable with the reason, lines left aside, cells taken for empty."""

    curves: list[Curve]
    unusable: dict[str, str]
    left_aside: LeftAside
    unread: LeftAside = field(default_factory=cells_taken_for_empty)


def family_of(run: str, group: str) -> str:
    """The group where it is given, else what stands before the first slash of the run's name, else ``ungrouped``."""
    return group or (run.split("/", 1)[0] if "/" in run else "ungrouped")


class _Lines:
    def __init__(self, family: str) -> None:
        self.family = family
        self.rows: list[tuple[float, float, float, float]] = []
        self.totals: set[float] = set()
        self.declared_after = 0
        self.seen = 0
        self.contradicting = 0
        self.bad_total = False
        # The last step of any line, and the highest one from which the steps went back to the first.
        self.last_step = -math.inf
        self.begun_again_after = -math.inf


def read_curves(path: Path) -> Curves:
    """Read ``path``. A line without a step or with a loss that is no finite number up to `LARGEST_LOSS` is left aside,
    and so is one whose step is not after all earlier ones of its run (a duplicate, or work repeated after a restart). A
    learning rate or batch size that is no number is taken for none, and counted. InvalidTableError where a column is
    missing."""
    aside, unread = LeftAside(), cells_taken_for_empty()
    runs: dict[str, _Lines] = {}
    for line, cells in lines_of(path, NEEDED, OPTIONAL, aside):
        if not cells["run"]:
            aside.add("no run", line)
            continue
        found = runs.setdefault(cells["run"], _Lines(family_of(cells["run"], cells.get("group", ""))))
        _take(found, cells, line, aside, unread)
    curves: list[Curve] = []
    unusable: dict[str, str] = {}
    for run, found in runs.items():
        if reason := _problem(found):
            unusable[run] = reason
        else:
            curves.append(_curve(run, found))
    return Curves(curves, unusable, aside, unread)


def _take(found: _Lines, cells: dict[str, str], line: int, aside: LeftAside, unread: LeftAside) -> None:
    step, loss = number(cells["step"]), number(cells["train_loss"])
    total = cells.get("total_steps", "")
    if total:
        if (steps := number(total)) > 0:
            if not found.totals:
                found.declared_after = len(found.rows)
            found.totals.add(steps)
        else:
            found.bad_total = True
    if not cells["train_loss"]:
        aside.add("no train_loss", line)
        return
    found.seen += 1
    if step >= 0:
        found.last_step = max(found.last_step, step)
    if not step >= 0:
        aside.add("step is no number from 0", line)
    elif not math.isfinite(loss):
        aside.add("train_loss is no finite number", line)
    elif abs(loss) > LARGEST_LOSS:
        aside.add(f"train_loss is larger than {LARGEST_LOSS:g}", line)
    elif found.rows and step <= found.rows[-1][0]:
        found.contradicting += 1
        same = step == found.rows[-1][0]
        if not same and step <= found.rows[0][0]:
            found.begun_again_after = found.rows[-1][0]
        aside.add("step is there twice" if same else "step goes back", line)
    else:
        lr, gbs = (number(cells.get(name, "")) for name in ("lr", "gbs"))
        for name, value in (("lr", lr), ("gbs", gbs)):
            if math.isnan(value) and cells.get(name):
                unread.add(f"{name} is no finite number", line)
        found.rows.append((step, loss, lr, gbs))


def _problem(found: _Lines) -> str:
    if not found.seen:
        return "no train_loss at all"
    if not found.rows:
        return "no usable sample"
    if found.contradicting > _CONTRADICTING * found.seen:
        return f"{found.contradicting} of {found.seen} samples repeat or go back in steps"
    first, last = found.rows[0][0], found.rows[-1][0]
    if found.begun_again_after - first > _BEGUN_AGAIN * (last - first):
        return f"begins again at step {first:g} after step {found.begun_again_after:g}: two runs of one name"
    if found.last_step - last > _HOLE_AT_THE_END * found.last_step:
        return f"no usable train_loss between steps {last:g} and {found.last_step:g}, more than 10 % of the run"
    apart = [after[0] - before[0] for before, after in pairwise(found.rows)]
    if apart and median(apart) < 1:
        return f"steps lie {median(apart):g} apart: count updates of the weights, not epochs"
    if found.bad_total:
        return "total_steps is no positive number"
    if len(found.totals) > 1:
        return f"total_steps differs within the run ({min(found.totals):g} to {max(found.totals):g})"
    if found.totals and last > max(found.totals):
        return f"step {last:g} is beyond total_steps {max(found.totals):g}"
    return ""


def number(text: str) -> float:
    """The finite number that ``text`` is, else NaN."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _curve(run: str, found: _Lines) -> Curve:
    step, loss, lr, gbs = np.array(found.rows, dtype=np.float64).T
    # Samples before the line that declares the length were seen without it.
    places = [-math.inf, *step[1:].tolist(), math.inf]
    declared_at = places[found.declared_after]
    return Curve(run, found.family, step, loss, _any(lr), _any(gbs), next(iter(found.totals), None), declared_at)


def _any(column: Array) -> Array | None:
    return column if np.isfinite(column).any() else None
