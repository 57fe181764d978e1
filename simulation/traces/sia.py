"""Workloads of Sia (Subramanya et al., SOSP 2023): training jobs of known applications that may grow and shrink."""

from __future__ import annotations

import hashlib
from pathlib import Path

from simulation.model import Throughputs, Trace, TraceJob
from simulation.traces.errors import TraceError
from simulation.traces.reading import Collected, Row, read_text, table
from simulation.traces.sia_tables import CHIPS, NODE_SIZES, MeasuredTables, read_tables

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


def load(path: Path | str, *, tables: Path | str | None = None, reference: str = "t4", elastic: bool = True) -> Trace:
    """A job trains its application to the end of the measured run at its batch size: ``work`` is that run's number of
    iterations, the profile ``application/batch size``, the rate that of `MeasuredTables.rate` (as few nodes as possible).

    ``num_replicas`` is the number of ranks with one accelerator each; ``elastic`` jobs may have any number between the
    least and the greatest that was measured at this batch size (and fits). ``tables`` names the folder of measurements;
    without it, a folder ``traces`` beside or above the workload. Left out: jobs without replicas, and jobs whose number of
    replicas does not run on the ``reference`` chip.
    """
    if reference not in NODE_SIZES:
        raise TraceError(f"option reference is one of {', '.join(NODE_SIZES)}, not {reference!r}")
    text, sha256 = read_text(path)
    measured = read_tables(tables if tables is not None else _beside(Path(path)))
    throughputs = Throughputs()
    collected = Collected()
    for row in table(path, text, COLUMNS):
        _add(collected, row, measured, throughputs, reference, elastic)
    digest = hashlib.sha256((sha256 + measured.sha256).encode()).hexdigest()
    return collected.trace(path, Path(path).stem, digest, throughputs)


def _add(
    collected: Collected, row: Row, measured: MeasuredTables, throughputs: Throughputs, reference: str, elastic: bool
) -> None:
    job_id = collected.claim(row, "name", row.text("name"))
    submitted = row.number("time")
    application, batch_size = row.text("application"), row.whole("batch_size", least=1)
    ranks = row.whole("num_replicas")
    if application not in measured.convergence:
        raise row.error("application", f"has no measurements: {application!r}")
    run = measured.convergence[application].get(batch_size)
    if run is None:
        raise row.error("batch_size", f"has no measured run of {application}: {batch_size}")
    if ranks == 0:
        collected.skipped["no processors"] += 1
        return
    profile = f"{application}/{batch_size}"
    counts = sorted(count for name, count in throughputs.rates if name == profile)
    if not counts:
        counts = _rates(throughputs, measured, application, batch_size, profile)
    rate = throughputs.rate(profile, ranks, reference) if counts else 0.0
    if rate <= 0:
        collected.skipped["does not run on the reference chip"] += 1
        return
    collected.add(
        row,
        TraceJob(
            job_id=job_id,
            submit_s=submitted,
            duration_s=run.steps / rate,
            ranks=ranks,
            accelerators=1,
            name=application,
            profile=profile,
            work=run.steps,
            min_ranks=min(counts[0], ranks) if elastic else 0,
            max_ranks=max(counts[-1], ranks) if elastic else 0,
        ),
    )


def _rates(
    throughputs: Throughputs, measured: MeasuredTables, application: str, batch_size: int, profile: str
) -> list[int]:
    """Adds the rates of a profile on every chip; the counts that run somewhere, ascending."""
    for chip in CHIPS.values():
        for count, rate in measured.rates(application, chip, batch_size).items():
            throughputs.rates.setdefault((profile, count), {})[chip] = rate
    return sorted(count for name, count in throughputs.rates if name == profile)


def _beside(path: Path) -> Path:
    for folder in path.resolve().parents[:4]:
        if (folder / "traces").is_dir():
            return folder / "traces"
    raise TraceError("no folder traces beside it or above: option tables names it", path=path)
