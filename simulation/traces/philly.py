"""Microsoft's Philly log as a table: one line per job with its virtual cluster (Jeon et al., ATC 2019)."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

from simulation.model import Trace, TraceJob
from simulation.traces.errors import TraceError
from simulation.traces.reading import (
    MOST_S,
    MOST_YEARS,
    Collected,
    Row,
    check_node_size,
    number,
    read_text,
    split_ranks,
    table,
)

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
_DATE, _SECONDS = "a date", "a number of seconds"


def load(path: Path | str, *, node_size: int = 8) -> Trace:
    """Columns ``timestamp`` (ISO 8601, UTC if without zone, or in the whole file seconds), ``duration`` (s), ``num_gpus``, ``gpu_time``
    (optional, only checked), ``cluster``.

    The cluster is tenant and home domain. Jobs of up to ``node_size`` GPUs are one rank, greater ones ranks of whole nodes.
    Left out: zero duration, no GPU. Time 0 is the first submission.
    """
    check_node_size(node_size)
    text, sha256 = read_text(path)
    collected = Collected()
    times = _Times()
    for row in table(path, text, COLUMNS):
        submitted = times.read(row)
        duration = row.number("duration")
        gpus = row.whole("num_gpus")
        cluster = row.text("cluster")
        if row.text("gpu_time", required=False):
            row.number("gpu_time")
        if duration == 0 or gpus == 0:
            collected.skipped["zero duration" if duration == 0 else "no processors"] += 1
            continue
        ranks, accelerators = split_ranks(gpus, node_size)
        times.kept.append(submitted)
        collected.add(
            row,
            TraceJob(
                job_id=f"{cluster}-{row.line}",
                submit_s=0.0,
                duration_s=duration,
                ranks=ranks,
                accelerators=accelerators,
                tenant=cluster,
                home_domain=cluster,
            ),
        )
    starts = times.seconds()
    first = min(starts, default=0.0)
    for job, start_s in zip(collected.jobs, starts, strict=True):
        job.submit_s = start_s - first
    return collected.trace(path, Path(path).stem, sha256)


class _Times:
    """The times of a file: dates on all lines, or numbers of seconds on all lines. Eight digits may be both (``20171009``): the other
    lines say which; a file of nothing else is refused."""

    def __init__(self) -> None:
        self.kept: list[tuple[float, float]] = []
        """Of jobs that are kept: as a date and as a number, NaN where it is none."""
        self._first: dict[str, int] = {}
        """The first line of each kind."""
        self._either: TraceError | None = None

    def read(self, row: Row) -> tuple[float, float]:
        """The time of a line; TraceError where it is none, or of the other kind than those before."""
        date_s = _date(row.text("timestamp"))
        plain = number(row.text("timestamp"))
        if math.isnan(date_s) and plain is None:
            raise row.error("timestamp", f"is not an ISO 8601 time, nor a number of seconds: {row.text('timestamp')!r}")
        if plain is None:
            self._of_kind(row, _DATE, _SECONDS)
            return date_s, math.nan
        if math.isnan(date_s):
            self._of_kind(row, _SECONDS, _DATE)
            if row.number("timestamp") > MOST_S:
                raise row.error(
                    "timestamp", f"is more than {MOST_YEARS} years: {plain:g} s; is the file's unit the second?"
                )
            return date_s, plain
        if self._either is None:
            text = row.text("timestamp")
            self._either = row.error(
                "timestamp",
                f"may be a date or a number of seconds: {text}; write {text[:4]}-{text[4:6]}-{text[6:]} or {text}.0",
            )
        return date_s, plain

    def _of_kind(self, row: Row, kind: str, other: str) -> None:
        self._first.setdefault(kind, row.line)
        if other in self._first:
            raise row.error(
                "timestamp", f"is {kind}, but line {self._first[other]} has {other}: {row.text('timestamp')}"
            )

    def seconds(self) -> list[float]:
        """The times of the jobs that are kept; TraceError where they may be both."""
        if self._either is not None and not self._first:
            raise self._either
        return [date_s if _DATE in self._first else plain for date_s, plain in self.kept]


def _date(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return math.nan
