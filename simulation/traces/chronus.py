"""Jobs with deadlines of Chronus (Gao et al., SoCC 2021), made from the Philly log; times in minutes."""

from __future__ import annotations

from pathlib import Path

from simulation.model import UNKNOWN, Trace, TraceJob
from simulation.traces.errors import TraceError
from simulation.traces.reading import Collected, Row, check_node_size, read_text, split_ranks, table

COLUMNS = (
    *("job_id", "user", "num_gpu", "submit_time", "model_name", "duration"),
    *("expect_time_list", "expect_value_list", "best_effort", "job_type"),
)


def load(path: Path | str, *, node_size: int = 8, time_unit_s: float = 60.0) -> Trace:
    """``expect_time_list`` is the time wanted after submission and ``expect_value_list`` what it is worth; of several,
    joined by ``-``, the first is taken. Best-effort jobs have no deadline (their expected time repeats the submission, or is empty).

    The user is a virtual cluster: tenant and home domain. ``time_unit_s`` is the length of the file's unit: the log spans
    14 days as 20,160. Left out: zero duration, no GPU.
    """
    check_node_size(node_size)
    if not time_unit_s > 0:
        raise TraceError(f"option time_unit_s must be positive, not {time_unit_s}")
    text, sha256 = read_text(path)
    collected = Collected()
    for row in table(path, text, COLUMNS):
        job_id = collected.claim(row, "job_id", row.text("job_id"))
        submitted = row.number("submit_time") * time_unit_s
        duration = row.number("duration") * time_unit_s
        gpus = row.whole("num_gpu")
        best_effort = row.whole("best_effort")
        if best_effort > 1:
            raise row.error("best_effort", f"is not 0 or 1: {best_effort}")
        expected = _first(row, "expect_time_list", UNKNOWN if best_effort else None) * time_unit_s
        value = _first(row, "expect_value_list", 1.0 if best_effort else None)
        if duration == 0 or gpus == 0:
            collected.skipped["zero duration" if duration == 0 else "no processors"] += 1
            continue
        ranks, accelerators = split_ranks(gpus, node_size)
        tenant = row.text("user")
        collected.add(
            row,
            TraceJob(
                job_id=job_id,
                submit_s=submitted,
                duration_s=duration,
                ranks=ranks,
                accelerators=accelerators,
                tenant=tenant,
                name=row.text("model_name", required=False),
                home_domain=tenant,
                deadline_s=UNKNOWN if best_effort else submitted + expected,
                value=value,
            ),
        )
    return collected.trace(path, Path(path).stem, sha256)


def _first(row: Row, column: str, missing: float | None) -> float:
    if missing is not None and not row.text(column, required=False):
        return missing
    values = [row.as_number(column, part) for part in row.text(column).split("-")]
    return values[0]
