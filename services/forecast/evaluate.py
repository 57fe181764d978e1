"""Backtest the forecasters over recorded series: `python -m services.forecast.evaluate FILE --window-s 600`.

FILE is CSV (also .gz) with the columns series, time, value; times in order, one row per window, none missing. Every
forecast is made from its past alone; scored are the newest 20 % of the targets. Printed for each horizon and method:
  wape      sum|error| / sum|value|
  skill     1 - sum|error| / sum|error of persistence|
  changed   wape on targets that differ by more than 10 % from the value at the origin, where the last value fails
  coverage  share of targets inside the 80 % band, for what serves
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.forecast.backtest import Backtest, standard_methods
from services.forecast.demand_scoring import windows_ahead
from services.forecast.past import Array
from services.forecast.rolling import Policy

SERVED = "served"


@dataclass(frozen=True, slots=True)
class Score:
    """How a method (or ``served``: the choice among them) did at a horizon, pooled over the series."""

    method: str
    horizon_s: float
    wape: float
    skill: float
    wape_changed: float
    changed_share: float
    coverage: float | None
    targets: int


def read_series(path: Path) -> dict[str, Array]:
    """The series of a CSV file; ValueError names the line that is wrong."""
    found: dict[str, list[float]] = {}
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as stream:
        reader = csv.DictReader(stream)
        for row in reader:
            try:
                found.setdefault(row["series"], []).append(float(row["value"]))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {reader.line_num}: needs series, time, value ({error})") from None
    return {name: np.asarray(values) for name, values in found.items()}


def evaluate(
    series: Mapping[str, Array],
    window_s: float,
    horizons_s: Sequence[float],
    *,
    seasons_s: tuple[float, ...] = (3600.0, 86_400.0, 604_800.0),
    test_share: float = 0.2,
    policy: Policy | None = None,
) -> list[Score]:
    """Scores of every method and of what serves, at each horizon; shorter series are aligned at their ends."""
    policy = policy or Policy()
    length = max(len(values) for values in series.values())
    matrix = np.full((len(series), length), np.nan)
    for row, values in enumerate(series.values()):
        matrix[row, length - len(values) :] = values
    first = length - max(1, round(length * test_share))
    scores: list[Score] = []
    for horizon_s in horizons_s:
        horizon = windows_ahead(horizon_s, window_s)
        methods = standard_methods(window_s, seasons_s, length)
        test = Backtest.of(matrix, horizon, methods, policy)
        named = {method.name: test.errors[index] for index, method in enumerate(methods)}
        named[SERVED] = test.served_errors()
        coverage = _coverage(test, first)
        for name, errors in named.items():
            scores.append(_score(name, horizon, horizon_s, matrix, errors, test.errors[0], first, coverage))
    return scores


def _score(
    name: str,
    horizon: int,
    horizon_s: float,
    values: Array,
    errors: Array,
    baseline: Array,
    first: int,
    coverage: float | None,
) -> Score:
    target, error, last = values[:, first:], np.abs(errors[:, first:]), np.abs(baseline[:, first:])
    origin = values[:, first - horizon : values.shape[1] - horizon]
    both = ~np.isnan(error) & ~np.isnan(last)
    changed = both & (np.abs(target - origin) > 0.1 * np.maximum(np.abs(origin), 1e-12))

    def share(part: Array, whole: Array, where: NDArray[np.bool_]) -> float:
        total = float(np.abs(whole[where]).sum())
        return float(part[where].sum()) / total if total > 0 else float("nan")

    return Score(
        name,
        horizon_s,
        share(error, target, both),
        1 - share(error, last, both),
        share(error, target, changed),
        float(changed.sum() / max(1, both.sum())),
        coverage if name == SERVED else None,
        int(both.sum()),
    )


def _coverage(test: Backtest, first: int) -> float | None:
    h = test.horizon
    last = max(first, h)
    low, high, target = test.low[:, last - h : -h], test.high[:, last - h : -h], test.values[:, last:]
    known = ~np.isnan(low) & ~np.isnan(target)
    # Demand is counted: a bound that is hit exactly is inside.
    inside = known & (target >= low - 1e-9) & (target <= high + 1e-9)
    return float(inside.sum() / known.sum()) if known.any() else None


def print_scores(scores: Sequence[Score]) -> None:
    """A table for people."""
    print(
        f"{'horizon':>8}  {'method':<18}{'wape':>8}{'skill':>8}{'changed':>9}{'share':>7}{'coverage':>10}{'targets':>9}"
    )
    for score in scores:
        coverage = "-" if score.coverage is None else f"{score.coverage:.3f}"
        print(
            f"{score.horizon_s:>7g}s  {score.method:<18}{score.wape:>8.4f}{score.skill:>8.3f}"
            f"{score.wape_changed:>9.3f}{score.changed_share:>7.1%}{coverage:>10}{score.targets:>9}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--window-s", type=float, required=True)
    parser.add_argument("--horizon-s", type=float, action="append", help="default 600 and 3600")
    options = parser.parse_args(arguments)
    try:
        series = read_series(options.file)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print_scores(evaluate(series, options.window_s, options.horizon_s or [600.0, 3600.0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
