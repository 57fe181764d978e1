"""What a forecast of demand could say at most of recorded jobs: `python bench/demand_bounds.py JOBS.csv [--json OUT]`.

JOBS.csv is a list of jobs as `meridian evaluate demand` reads it, with the column ``submitted`` of `job_lists.py`. Those who know what nobody
knows are scored as forecasts there are: windows, changed windows (by more than 10 %), all but the first fifth of the origins.

- ``ends_known``: the ends of all running jobs, and that nothing else comes. With ``_and_mean_of_what_came`` there comes what came on average
  until then; ``_best_line_in_hindsight`` weighs it with the present level, by least absolute error on the scored windows themselves.
- ``queue_known``: also the starts and ends of all jobs that wait at the origin.
- ``hour_of_day_in_hindsight``: the present level and the median change of that hour of the day, in the scored windows themselves.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.result import DataSource, Row, Setting, command_line, print_table, write
from services.forecast.demand_scoring import CHANGED

Array = NDArray[np.float64]
_DAY_S = 86_400.0
_ROUNDS = 60


def read(path: Path) -> Array:
    """(submitted, start, end, accelerators) [job], from the midnight before the first start on."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = [
            (float(job["submitted"]), float(job["start"]), float(job["duration_s"]), float(job["accelerators"]))
            for job in csv.DictReader(stream)
        ]
    jobs = np.array(sorted(rows, key=lambda job: job[1]))
    jobs[:, 2] += jobs[:, 1]
    jobs[:, :3] -= np.floor(jobs[0, 1] / _DAY_S) * _DAY_S
    return jobs


def _held(jobs: Array, begin_s: float, end_s: float) -> Array:
    """The mean of what each of ``jobs`` holds between the two times, [job]."""
    within = np.minimum(jobs[:, 2], end_s) - np.maximum(jobs[:, 1], begin_s)
    result: Array = jobs[:, 3] * np.clip(within, 0, None) / (end_s - begin_s)
    return result


def bounds(jobs: Array, window_s: float, ahead: int) -> tuple[Array, dict[str, Array]]:
    """The demand of each window that is scored, and what would have been said of it, [window]."""
    windows = int(jobs[-1, 1] // window_s)
    value = np.array([_held(jobs, place * window_s, (place + 1) * window_s).sum() for place in range(windows)])
    origins = np.arange(windows // 5, windows - ahead)
    level, running, queued, other = (np.zeros(len(origins)) for _ in range(4))
    for place, origin in enumerate(origins.tolist()):
        now_s, begin_s = (origin + 1) * window_s, (origin + ahead) * window_s
        later = _held(jobs, begin_s, begin_s + window_s)
        runs = (jobs[:, 1] <= now_s) & (jobs[:, 2] > now_s)
        waits = (jobs[:, 0] <= now_s) & (jobs[:, 1] > now_s)
        level[place] = jobs[runs, 3].sum()
        running[place], queued[place], other[place] = later[runs].sum(), later[waits].sum(), later[~runs & ~waits].sum()
    actual = value[origins + ahead]
    came = np.cumsum(queued + other) / np.arange(1, len(origins) + 1)
    hour = ((origins + ahead + 0.5) * window_s % _DAY_S // 3600).astype(int)
    usual = np.array([np.median((actual - level)[hour == each]) if (hour == each).any() else 0.0 for each in range(24)])
    return actual, {
        "persistence": value[origins],
        "level_stays": level,
        "ends_known": running,
        "ends_known_and_mean_of_what_came": running + np.concatenate([np.zeros(ahead + 1), came[: -ahead - 1]]),
        "ends_known_best_line_in_hindsight": _best_line(np.stack([level, running, np.ones(len(level))], 1), actual),
        "queue_known": running + queued,
        "hour_of_day_in_hindsight": level + usual[hour],
    }


def _best_line(known: Array, actual: Array) -> Array:
    """The line of least absolute error, by reweighted least squares."""
    weight: NDArray[np.floating[Any]] = np.ones(len(actual))
    line: NDArray[np.floating[Any]] = np.zeros(known.shape[1])
    for _ in range(_ROUNDS):
        line = np.linalg.lstsq(known * weight[:, None], actual * weight, rcond=None)[0]
        weight = 1 / np.sqrt(np.maximum(np.abs(actual - known @ line), 1e-3 * np.mean(actual)))
    return np.asarray(known @ line, np.float64)


def rows_of(actual: Array, said: dict[str, Array], label: str) -> list[Row]:
    """Accuracy, skill over persistence, and the error in changed windows over that of persistence."""
    stays = said["persistence"]
    base = np.abs(actual - stays)
    changed = base > CHANGED * np.maximum(stays, 1e-12)
    rows = []
    for subject, forecast in said.items():
        missed = np.abs(actual - forecast)
        for measure, top, bottom, rest in (
            ("accuracy", missed, actual, True),
            ("skill_over_persistence", missed, base, True),
            ("wape_changed_to_persistence", missed[changed], base[changed], False),
        ):
            total = float(bottom.sum())
            value = None if total <= 0 else float(top.sum()) / total
            rows.append(
                Row(
                    subject,
                    f"{measure}_{label}_ratio",
                    1 - value if rest and value is not None else value,
                    n=len(top),
                    baseline=True,
                    reason="nothing to compare" if value is None else None,
                )
            )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path, metavar="JOBS.csv")
    parser.add_argument("--window-s", type=float, default=600.0)
    parser.add_argument("--ahead", type=int, default=6, help="windows")
    parser.add_argument("--json", metavar="OUT", help="write the result in the form of bench/result.py")
    options = parser.parse_args(arguments)
    label = f"{options.window_s * options.ahead / 60:g}m"
    rows = rows_of(*bounds(read(options.jobs), options.window_s, options.ahead), label)
    print_table(rows)
    if options.json:
        command = command_line("bench.demand_bounds", arguments)
        write(options.json, command, [DataSource.of(options.jobs)], 0, Setting.OFFLINE, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
