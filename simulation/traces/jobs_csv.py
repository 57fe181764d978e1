"""The simulator's own trace format: a CSV whose columns are the fields of `TraceJob` (docs/simulation-formats.md)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulation.model import Throughputs, Trace, TraceJob
from simulation.traces.gavel import read_throughputs
from simulation.traces.reading import MOST_WHOLE, Collected, Row, number, read_text, table

REQUIRED = ("submit_s", "duration_s")
LEAST_SHARE = 0.001
"""Parts of devices are counted in thousandths."""
Parser = Callable[[Row, str], Any]


def _text(row: Row, column: str) -> str:
    return row.text(column)


def _number(row: Row, column: str) -> float:
    return row.number(column)


def _signed(row: Row, column: str) -> int:
    value = row.number(column, least=float("-inf"))
    if not value.is_integer():
        raise row.error(column, f"is not a whole number: {row.text(column)}")
    if abs(value) > MOST_WHOLE:
        raise row.error(column, f"is beyond 64 bits: {row.text(column)}")
    return int(value)


def _whole(row: Row, column: str) -> int:
    return row.whole(column)


def _share(row: Row, column: str) -> float:
    value = row.number(column)
    if not LEAST_SHARE <= value <= 1:
        raise row.error(column, f"is not within {LEAST_SHARE:g} to 1: {value:g}")
    return value


def _flag(row: Row, column: str) -> bool:
    text = row.text(column).lower()
    if text not in {"true", "false"}:
        raise row.error(column, f"is not true or false: {text!r}")
    return text == "true"


def _names(row: Row, column: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in row.text(column).split("|"))
    if not all(names):
        raise row.error(column, "has an empty name between bars")
    return names


def _amounts(row: Row, column: str) -> dict[str, float]:
    amounts: dict[str, float] = {}
    for part in row.text(column).split("|"):
        name, equals, text = part.partition("=")
        value = number(text)
        if not equals or not name.strip() or value is None or value < 0 or name.strip() in amounts:
            raise row.error(column, f"is not of the form name=amount|name=amount: {part!r}")
        amounts[name.strip()] = value
    return amounts


PARSERS: dict[str, Parser] = {
    "job_id": _text,
    "submit_s": _number,
    "duration_s": _number,
    "ranks": _whole,
    "accelerators": _whole,
    "cpus": _number,
    "memory_bytes": _whole,
    "device_share": _share,
    "estimate_s": _number,
    "tenant": _text,
    "user": _text,
    "name": _text,
    "home_domain": _text,
    "priority": _signed,
    "accelerator_types": _names,
    "profile": _text,
    "work": _number,
    "min_ranks": _whole,
    "max_ranks": _whole,
    "deadline_s": _number,
    "value": _number,
    "preemptible": _flag,
    "checkpoint_interval_s": _number,
    "restart_cost_s": _number,
    "data_domain": _text,
    "data_bytes": _number,
    "cross_domain": _flag,
    "traffic_bytes_per_s": _number,
    "resources": _amounts,
}


def load(path: Path | str, *, throughputs: Path | str | None = None) -> Trace:
    """Columns ``submit_s`` and ``duration_s`` are required, any other field of `TraceJob` may follow in any order; an empty
    cell means the field's default. ``job_id`` defaults to the line number. Jobs with a ``profile`` need ``work`` and the
    option ``throughputs``, a JSON file of rates in Gavel's layout. Left out: zero duration, no ranks.
    """
    text, sha256 = read_text(path)
    measured = read_throughputs(throughputs)[0] if throughputs is not None else None
    collected = Collected()
    for row in table(path, text, REQUIRED, allowed=PARSERS):
        values = {
            column: PARSERS[column](row, column)
            for column in row.columns
            if column in REQUIRED or row.text(column, required=False)
        }
        values["job_id"] = collected.claim(row, "job_id", values.get("job_id") or str(row.line))
        job = TraceJob(**values)
        _check(row, job, measured)
        if job.duration_s == 0 or job.ranks == 0:
            collected.skipped["zero duration" if job.duration_s == 0 else "no processors"] += 1
            continue
        collected.add(row, job)
    return collected.trace(path, Path(path).stem, sha256, measured)


def _check(row: Row, job: TraceJob, measured: Throughputs | None) -> None:
    if job.deadline_s < job.submit_s:
        raise row.error("deadline_s", f"is before the submission: {job.deadline_s:g} < {job.submit_s:g}")
    if job.min_ranks > job.ranks:
        raise row.error("min_ranks", f"is more than the {job.ranks} ranks: {job.min_ranks}")
    if job.max_ranks and not job.min_ranks <= job.ranks <= job.max_ranks:
        raise row.error("max_ranks", f"{job.ranks} ranks are not within {job.min_ranks} to {job.max_ranks}")
    if bool(job.profile) != (job.work > 0):
        raise row.error("work", "goes with a profile, and a profile with work")
    if job.profile and (measured is None or not any(name == job.profile for name, _ in measured.rates)):
        raise row.error("profile", f"has no rate in the file of option throughputs: {job.profile!r}")
