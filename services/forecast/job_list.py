"""Lists of recorded jobs, as `meridian evaluate demand` reads them: one line per job with its start, length and size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.forecast.demand_series import time_of, why_no_time
from services.forecast.job_replay import JobList
from services.forecast.tables import InvalidTableError, LeftAside, columns_of, lines_of

# Names of columns, the first is the one that documents use; others are those of public lists.
START = ("start", "timestamp", "submitted")
DURATION = ("duration_s", "duration")
ACCELERATORS = ("accelerators", "num_gpus", "gpus")
USER = ("user", "tenant")
DOMAIN = ("domain", "cluster")
# Third powers of many more could no longer be summed.
_MOST_ACCELERATORS = 1e9
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class JobTable:
    """The jobs of a file, their times from the first one's midnight on, and the lines left aside."""

    jobs: JobList
    left_aside: LeftAside
    last_start_s: float


def is_job_list(path: Path) -> bool:
    """Whether a file has the columns of a list of jobs."""
    names = columns_of(path)
    return all(any(name in names for name in group) for group in (START, DURATION, ACCELERATORS))


def read_jobs(path: Path) -> JobTable:
    """Read ``path``. Left aside and counted are lines without a start, with a length or number of accelerators that is no
    positive finite number, or with more accelerators than can be. InvalidTableError where a column is missing or nothing is left."""
    names = columns_of(path)
    start, duration, accelerators = (_named(path, names, group) for group in (START, DURATION, ACCELERATORS))
    user, domain = (next((name for name in group if name in names), "") for group in (USER, DOMAIN))
    aside = LeftAside()
    rows: list[tuple[float, float, float, str, str]] = []
    for line, cells in lines_of(
        path, (start, duration, accelerators), [name for name in (user, domain) if name], aside
    ):
        at_s = time_of(cells[start])
        length_s, amount = _positive(cells[duration]), _positive(cells[accelerators])
        if math.isnan(at_s):
            aside.add(f"{start} is {why_no_time(cells[start])}", line)
        elif math.isnan(length_s):
            aside.add(f"{duration} is no positive number", line)
        elif math.isnan(amount):
            aside.add(f"{accelerators} is no positive number", line)
        elif amount > _MOST_ACCELERATORS:
            aside.add(f"{accelerators} is larger than {_MOST_ACCELERATORS:g}", line)
        else:
            where = cells.get(domain) or "all"
            rows.append((at_s, length_s, amount, cells.get(user) or where, where))
    if not rows:
        raise InvalidTableError("; ".join([f"{path.name}: no line is a job", *aside.sentences()]))
    rows.sort(key=lambda row: row[0])
    begin_s = math.floor(rows[0][0] / _DAY_S) * _DAY_S
    starts = np.array([row[0] for row in rows]) - begin_s
    user_names, domain_names = sorted({row[3] for row in rows}), sorted({row[4] for row in rows})
    users, domains = ({name: place for place, name in enumerate(group)} for group in (user_names, domain_names))
    jobs = JobList(
        starts,
        np.array([row[1] for row in rows]),
        np.array([row[2] for row in rows]),
        np.array([users[row[3]] for row in rows], np.intp),
        np.array([domains[row[4]] for row in rows], np.intp),
        tuple(user_names),
        tuple(domain_names),
    )
    return JobTable(jobs, aside, float(starts[-1]))


def without(jobs: JobList, domains: frozenset[str]) -> JobList:
    """The jobs of other domains."""
    kept_names = tuple(name for name in jobs.domain_names if name not in domains)
    places = {jobs.domain_names.index(name): place for place, name in enumerate(kept_names)}
    kept = np.isin(jobs.domains, list(places))
    return JobList(
        jobs.start_s[kept],
        jobs.duration_s[kept],
        jobs.accelerators[kept],
        jobs.users[kept],
        np.array([places[domain] for domain in jobs.domains[kept].tolist()], np.intp),
        jobs.user_names,
        kept_names,
    )


def _named(path: Path, names: list[str], group: tuple[str, ...]) -> str:
    for name in group:
        if name in names:
            return name
    raise InvalidTableError(f"{path.name}, line 1: the column {group[0]} is missing")


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) and value > 0 else math.nan
