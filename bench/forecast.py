"""Skill of the demand forecasters over "the last value stays": `python bench/forecast.py [--json OUT]`.

Synthetic series of known structure (setting "offline"): steps of jobs that come and go (nothing to predict), a daily
pattern (a season to find), a ramp. Where MERIDIAN_DATA names the public data sets, also the active nodes of the Philly
cluster and the running GPUs of 16 virtual clusters of Helios Earth in 10-minute windows, marked external in the slice.
Rows are wape, skill, wape on targets that changed by more than 10 %, and the coverage of the 80 % band.

Speed, in processor time of this process: what forecasting takes when one more window has passed, with 4,320 windows of history
behind it, of several numbers of series (`growth_exponent` is the slope of its logarithm over that of the number); and what
reading a history again takes, once after a start. Two horizons, all methods; values are no whole numbers, which is the
slower case. Baseline: going through the whole history for every window. Also what it takes to work out what so many running
units let expect of 450 domains, tenants and jobs.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

# Small arrays: threads would only wait for each other. Read when numpy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.result import DataSource, Row, Setting, command_line, print_table, write
from services.forecast import ledger
from services.forecast.backtest import replayed, standard_methods
from services.forecast.evaluate import SERVED, Score, evaluate
from services.forecast.expectation import Expectation
from services.forecast.history import RELEARNED
from services.forecast.ledger import Job, Placement, Subject, SubjectKind
from services.forecast.past import Array
from services.forecast.progress import Progress
from services.forecast.rolling import Policy
from services.forecast.work_store import Arrived, AskingJob, Ended, Learned

WINDOW_S = 600.0
HORIZONS_S = (600.0, 3600.0)
DAYS = 21
HISTORY = 4320
SERIES = (250, 500, 1000, 2000)
MEASURED = 1000
UNITS = (1000, 3000, 10_000)
# Windows over which a window is timed: one round of learning is in them.
TIMED = 72
PHILLY = "figures/series_philly_nodes_10min.csv.gz"
HELIOS = "figures/series_helios_earth_vc_10min.csv.gz"


def synthetic(seed: int) -> dict[str, dict[str, Array]]:
    """Groups of series by name."""
    chance = np.random.default_rng(seed)
    times = np.arange(round(DAYS * 86_400 / WINDOW_S))
    steps = {}
    for number in range(8):
        level = np.zeros(len(times))
        for start in np.flatnonzero(chance.random(len(times)) < 0.02):
            level[start : start + 1 + int(chance.exponential(60))] += chance.choice([1, 2, 4, 8, 16])
        steps[f"steps-{number}"] = level
    day = 2 * math.pi * times * WINDOW_S / 86_400
    daily = {
        f"daily-{number}": np.maximum(0, np.round(60 + 40 * np.sin(day + number) + chance.normal(0, 2, len(times))))
        for number in range(8)
    }
    ramp = {
        f"ramp-{number}": 10 + times * (0.05 + 0.02 * number) + chance.normal(0, 0.3, len(times)) for number in range(4)
    }
    return {"steps": steps, "daily": daily, "ramp": ramp}


def _columns(path: Path, series: str | None, value: str) -> dict[str, Array]:
    found: dict[str, list[float]] = {}
    with gzip.open(path, "rt", newline="") as stream:
        for row in csv.DictReader(stream):
            found.setdefault(row[series] if series else path.name, []).append(float(row[value] or "nan"))
    return {name: np.asarray(values) for name, values in found.items()}


def external(folder: Path) -> tuple[dict[str, dict[str, Array]], list[DataSource]]:
    """The public series below ``folder`` that are there."""
    groups, sources = {}, []
    for name, relative, series, value in (
        ("external_philly_nodes", PHILLY, None, "active"),
        ("external_helios_earth", HELIOS, "series", "running_gpu_num"),
    ):
        path = folder / relative
        if path.is_file():
            groups[name] = _columns(path, series, value)
            sources.append(DataSource.of(path))
    return groups, sources


def speed(seed: int) -> list[Row]:
    """What forecasting costs."""
    horizons, rows, seconds = (10, 60), list[Row](), list[float]()
    methods = standard_methods(60.0, (3600.0, 86_400.0), HISTORY)
    for count in SERIES:
        chance = np.random.default_rng(seed)
        values = 10 + np.abs(np.cumsum(chance.normal(0, 1, (count, HISTORY)), axis=1))
        started = time.process_time()
        rolling = replayed(values, horizons, methods, Policy(), RELEARNED if count == MEASURED else TIMED)
        again = time.process_time() - started
        started = time.process_time()
        for step in chance.normal(0, 1, (TIMED, count)):
            rolling.advance(values[:, -1] + step)
            rolling.current()
        seconds.append((time.process_time() - started) / TIMED)
        rows.append(Row("meridian", "window_cpu_s", seconds[-1], f"series={count}", n=TIMED))
        if count == MEASURED:
            whole = (HISTORY / RELEARNED) * again
            rows.append(Row("meridian", "history_read_again_cpu_s", again, f"series={count}", n=RELEARNED))
            rows.append(Row("whole_history", "window_cpu_s", whole, f"series={count}", n=1, baseline=True))
            rows.append(Row("meridian", "times_faster_ratio", whole / seconds[-1], f"series={count}", n=TIMED))
    slope = np.polyfit(np.log(SERIES), np.log(seconds), 1)[0]
    return [*rows, Row("meridian", "growth_exponent", float(slope), n=len(SERIES))]


def structure_speed(seed: int) -> list[Row]:
    """What it costs to expect demand of the jobs that are known, after one window: every unit is a job of its own."""
    rows, seconds = list[Row](), list[float]()
    at_s = 1e9
    for count in UNITS:
        chance = np.random.default_rng(seed)
        jobs = []
        for number in range(count):
            domain, tenant = f"d{number % 50}", f"t{number % 200}"
            given = Placement({domain: 8.0}, {domain: 1}, {domain: {f"c{number % 10}": 8.0}}, at_s - number)
            job = ledger.place(Job(f"j{number}"), tenant, 0, 1, given)
            reported = Progress(at_s - 60, 500.0, 1000.0, 1.0, 0.1, 5) if number % 2 else None
            jobs.append(AskingJob(job, None, {} if reported is None else {0: reported}))
        subjects = [Subject(SubjectKind.DOMAIN, f"d{place}") for place in range(50)]
        subjects += [Subject(SubjectKind.TENANT, f"t{place}") for place in range(200)]
        subjects += [Subject(SubjectKind.JOB, f"j{place}") for place in range(200)]
        at = datetime.fromtimestamp(at_s - 60, UTC)
        ended = [Ended(f"t{n % 200}", 8.0, float(chance.lognormal(8, 1)), by_itself=True, at=at) for n in range(count)]
        came = [Arrived(Subject(SubjectKind.TENANT, f"t{n % 200}"), f"t{n % 200}", 8.0, at) for n in range(count)]
        expectation = Expectation(lambda _spec, _chip: None)
        expectation.learn(Learned(ended, came, (0, 0)), at_s)
        started = time.process_time()
        expectation.expect(jobs, subjects, {}, (600.0, 3600.0, 86_400.0), 60.0, at_s)
        seconds.append(time.process_time() - started)
        rows.append(Row("meridian", "structure_cpu_s", seconds[-1], f"units={count}", n=1))
    slope = np.polyfit(np.log(UNITS), np.log(seconds), 1)[0]
    return [*rows, Row("meridian", "structure_growth_exponent", float(slope), n=len(UNITS))]


def rows_of(group: str, scores: Sequence[Score]) -> list[Row]:
    """The figures of what serves and of persistence."""
    rows = []
    for score in scores:
        if score.method not in {SERVED, "persistence"}:
            continue
        baseline = score.method != SERVED
        where = f"{group}/{score.horizon_s:g}s"
        subject = "persistence" if baseline else "meridian"
        figures: list[tuple[str, float | None]] = [
            ("wape_ratio", score.wape),
            ("wape_changed_ratio", score.wape_changed),
        ]
        if not baseline:
            figures += [("skill_ratio", score.skill), ("coverage_80_ratio", score.coverage)]
        for measure, value in figures:
            missing = value is None or not math.isfinite(value)
            reason = "no such target" if missing else None
            rows.append(
                Row(
                    subject,
                    measure,
                    None if missing else value,
                    where,
                    n=score.targets,
                    baseline=baseline,
                    reason=reason,
                )
            )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate all groups."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="OUT", help="write the result in the form of bench/result.py")
    options = parser.parse_args(arguments)
    groups, sources = synthetic(options.seed), list[DataSource]()
    if os.environ.get("MERIDIAN_DATA"):
        public, sources = external(Path(os.environ["MERIDIAN_DATA"]))
        groups.update(public)
    rows: list[Row] = []
    for group, series in groups.items():
        rows += rows_of(group, evaluate(series, WINDOW_S, HORIZONS_S))
    rows += speed(options.seed)
    rows += structure_speed(options.seed)
    print_table(rows)
    if options.json:
        command = command_line("bench.forecast", arguments)
        write(options.json, command, sources, options.seed, Setting.OFFLINE, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
