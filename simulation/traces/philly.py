"""Microsoft's Philly log as a table: one line per job with its virtual cluster (Jeon et al., ATC 2019)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from simulation.model import Trace, TraceJob
from simulation.traces.reading import Collected, Row, check_node_size, read_text, split_ranks, table

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")


def load(path: Path | str, *, node_size: int = 8) -> Trace:
    """Columns ``timestamp`` (ISO 8601, UTC if without zone), ``duration`` (s), ``num_gpus``, ``gpu_time`` (optional, only
    checked), ``cluster``.

    The cluster is tenant and home domain. Jobs of up to ``node_size`` GPUs are one rank, greater ones ranks of whole nodes.
    Left out: zero duration, no GPU. Time 0 is the first submission.
    """
    check_node_size(node_size)
    text, sha256 = read_text(path)
    collected = Collected()
    starts: list[float] = []
    for row in table(path, text, COLUMNS):
        submitted = _timestamp(row)
        duration = row.number("duration")
        gpus = row.whole("num_gpus")
        cluster = row.text("cluster")
        if "gpu_time" in row.columns:
            row.number("gpu_time")
        if duration == 0 or gpus == 0:
            collected.skipped["zero duration" if duration == 0 else "no processors"] += 1
            continue
        ranks, accelerators = split_ranks(gpus, node_size)
        starts.append(submitted)
        collected.add(
            row,
            TraceJob(
                job_id=f"{cluster}-{row.line}",
                submit_s=submitted,
                duration_s=duration,
                ranks=ranks,
                accelerators=accelerators,
                tenant=cluster,
                home_domain=cluster,
            ),
        )
    first = min(starts, default=0.0)
    for job in collected.jobs:
        job.submit_s -= first
    return collected.trace(path, Path(path).stem, sha256)


def _timestamp(row: Row) -> float:
    text = row.text("timestamp")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise row.error("timestamp", f"is not an ISO 8601 time: {text!r}") from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
