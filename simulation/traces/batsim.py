"""Schedules of Batsim (Dutot et al., JSSPP 2016) as an answer key: the jobs, and when another simulator started them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from simulation.model import UNKNOWN, Trace, TraceJob
from simulation.traces.reading import Collected, number, read_text, table

COLUMNS = (
    *("job_id", "submission_time", "requested_number_of_resources", "requested_time", "success"),
    *("starting_time", "execution_time", "finish_time"),
)


@dataclass(frozen=True, slots=True)
class BatsimSchedule:
    """The jobs of a schedule, and by job id its start and finish (s)."""

    trace: Trace
    start_s: dict[str, float]
    finish_s: dict[str, float]


def load(path: Path | str) -> Trace:
    """The jobs only; see `schedule`."""
    return schedule(path).trace


def schedule(path: Path | str) -> BatsimSchedule:
    """One rank with one CPU per requested resource; ``estimate_s`` is the requested time.

    Left out: jobs that did not succeed, zero duration, no resources.
    """
    text, sha256 = read_text(path)
    collected = Collected()
    start_s: dict[str, float] = {}
    finish_s: dict[str, float] = {}
    for row in table(path, text, COLUMNS):
        job_id = collected.claim(row, "job_id", row.text("job_id"))
        submitted = row.number("submission_time")
        if row.whole("success") != 1:
            # One that was rejected has no times.
            collected.skipped["did not succeed"] += 1
            continue
        duration = row.number("execution_time")
        started = row.number("starting_time", least=submitted)
        finished = row.number("finish_time", least=started)
        ranks = row.whole("requested_number_of_resources")
        asked_s = number(row.text("requested_time"))
        estimate = UNKNOWN if asked_s == -1 else row.number("requested_time")
        if duration == 0 or ranks == 0:
            collected.skipped["zero duration" if duration == 0 else "no processors"] += 1
            continue
        start_s[job_id], finish_s[job_id] = started, finished
        collected.add(
            row, TraceJob(job_id, submitted, duration, ranks=ranks, cpus=1.0, estimate_s=estimate, preemptible=False)
        )
    return BatsimSchedule(collected.trace(path, Path(path).stem, sha256), start_s, finish_s)
