"""Traces and measured throughputs of Gavel (Narayanan et al., OSDI 2020): jobs as numbers of steps of known models.

A trace line has seven columns, separated by tabs, without a header: job type (model and batch size), command, name of the
argument that sets the number of steps, whether the command needs a data folder (0/1), total steps, arrival time (s), scale
factor (number of accelerators). The traces of the physical cluster have ten, with working directory, weight and service level;
those of Shockwave (Zheng et al., NSDI 2023) twelve, with the mode of adaptation and the duration that was drawn; the oldest six,
without the data folder.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simulation.model import UNKNOWN, Throughputs, Trace, TraceJob
from simulation.traces.errors import TraceError
from simulation.traces.reading import Collected, Row, lines, read_json, read_text

COLUMNS = ("job_type", "command", "num_steps_arg", "needs_data_dir", "total_steps", "arrival_time", "scale_factor")
THROUGHPUTS_FILE = "simulation_throughputs.json"
_BEFORE = ("job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps", "scale_factor")
LAYOUTS = (
    COLUMNS,
    ("job_type", "command", "num_steps_arg", "total_steps", "arrival_time", "scale_factor"),
    (*_BEFORE, "priority_weight", "slo", "arrival_time"),
    (*_BEFORE, "mode", "priority_weight", "slo", "duration", "arrival_time"),
)
_INDEX = {len(layout): {name: index for index, name in enumerate(layout)} for layout in LAYOUTS}
_KEY = re.compile(r"\('(?P<profile>.+)', (?P<ranks>[1-9][0-9]*)\)")


def load(
    path: Path | str,
    *,
    throughputs: Path | str | None = None,
    reference: str = "v100",
    unmeasured: str = "keep",
) -> Trace:
    """One trace file, or a folder of ``*.trace`` files (each a home domain, all beginning at time 0).

    A scale factor of n is n ranks of one accelerator; the file's name is tenant and home domain; ``duration_s`` is total
    steps / rate on the ``reference`` chip at this scale factor. ``throughputs`` names the JSON file of rates; without it,
    `THROUGHPUTS_FILE` is looked for beside the trace and in the two folders above. Scale factors that were never measured
    take the rate that `Throughputs.rate` gives, or with ``unmeasured="skip"`` their jobs are left out. Left out too: no
    steps, scale factor 0, and jobs whose model does not run on the reference chip.

    A file is of one of the `LAYOUTS`. A service level above 0 is a deadline: so many times ``duration_s`` after the arrival, as
    Gavel takes it. Weights, modes and drawn durations are not used.
    """
    if unmeasured not in {"keep", "skip"}:
        raise TraceError(f"option unmeasured is 'keep' or 'skip', not {unmeasured!r}")
    path = Path(path)
    files = sorted(path.glob("*.trace")) if path.is_dir() else [path]
    if not files:
        raise TraceError("holds no *.trace file", path=path)
    texts = [read_text(file) for file in files]
    measured, rates_sha = read_throughputs(throughputs if throughputs is not None else _beside(path))
    if not any(reference in models for models in measured.rates.values()):
        raise TraceError(f"option reference: no throughput of a chip {reference!r}", path=path)
    collected = Collected()
    for file, (text, _) in zip(files, texts, strict=True):
        for row in _rows(file, text):
            _add(collected, row, file.stem, measured, reference, unmeasured)
    parts = [sha256 for _, sha256 in texts] + [rates_sha]
    digest = hashlib.sha256("".join(parts).encode()).hexdigest()
    return collected.trace(path, path.stem if path.is_file() else path.name, digest, measured)


def _rows(path: Path, text: str) -> Iterator[Row]:
    """The lines of a file, all of the layout of the first."""
    columns: dict[str, int] = {}
    for line, content in lines(text):
        if not content.strip():
            continue
        cells = content.split("\t")
        columns = columns or _INDEX.get(len(cells), {})
        if len(cells) != len(columns):
            expected = [layout for layout in LAYOUTS if not columns or len(layout) == len(columns)]
            known = " or the ".join(f"{len(layout)} of {', '.join(layout)}" for layout in expected)
            raise TraceError(f"{len(cells)} cells between tabs, not the {known}", path=path, line=line)
        yield Row(path, line, columns, cells)


def _add(collected: Collected, row: Row, domain: str, measured: Throughputs, reference: str, unmeasured: str) -> None:
    profile = row.text("job_type")
    steps = row.number("total_steps")
    arrival = row.number("arrival_time")
    ranks = row.whole("scale_factor")
    if steps == 0 or ranks == 0:
        collected.skipped["zero duration" if steps == 0 else "no processors"] += 1
        return
    if unmeasured == "skip" and (profile, ranks) not in measured.rates:
        collected.skipped["scale factor never measured"] += 1
        return
    rate = measured.rate(profile, ranks, reference)
    if rate <= 0:
        if not any(name == profile for name, _ in measured.rates):
            raise row.error("job_type", f"has no measured throughput: {profile!r}")
        collected.skipped["does not run on the reference chip"] += 1
        return
    slo = row.number("slo", least=-math.inf) if "slo" in row.columns else 0.0
    collected.add(
        row,
        TraceJob(
            job_id=f"{domain}-{row.line}",
            submit_s=arrival,
            duration_s=steps / rate,
            deadline_s=arrival + slo * steps / rate if slo > 0 else UNKNOWN,
            ranks=ranks,
            accelerators=1,
            tenant=domain,
            home_domain=domain,
            name=profile,
            profile=profile,
            work=steps,
        ),
    )


def _beside(path: Path) -> Path:
    folder = path if path.is_dir() else path.parent
    for place in (folder, *folder.resolve().parents[:2]):
        if (place / THROUGHPUTS_FILE).is_file():
            return place / THROUGHPUTS_FILE
    raise TraceError(f"no {THROUGHPUTS_FILE} beside it or above: option throughputs names it", path=path)


def read_throughputs(path: Path | str) -> tuple[Throughputs, str]:
    """Rates in steps/s from Gavel's JSON, and the SHA-256 of the file.

    ``{chip: {"('job type', scale)": {"null": rate alone, "('other', scale)": [own rate, other's rate]}}}``. Zero means that
    it does not run (out of memory) and is left out. Chips named ``..._unconsolidated`` are rates over several nodes.
    """
    content, sha256 = read_json(path)
    measured = Throughputs()
    for chip, profiles in _object(path, content, "the file").items():
        for text, entries in _object(path, profiles, chip).items():
            profile, ranks = _key(path, text)
            alone = measured.rates.setdefault((profile, ranks), {})
            shared: dict[tuple[str, int], tuple[float, float]] = {}
            for other, value in _object(path, entries, f"{chip} {text}").items():
                place = f"{chip} {text} {other}"
                if other == "null":
                    if (rate := _rate(path, value, place)) > 0:
                        alone[chip] = rate
                    continue
                if not isinstance(value, list) or len(value) != 2:
                    raise TraceError(f"{place}: not a pair of rates", path=path)
                own, others = _rate(path, value[0], place), _rate(path, value[1], place)
                if own > 0 and others > 0:
                    shared[_key(path, other)] = (own, others)
            if shared:
                measured.pairs[profile, ranks, chip] = shared
    return measured, sha256


def _object(path: Path | str, value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise TraceError(f"{place}: not a JSON object with entries", path=path)
    return value


def _key(path: Path | str, text: str) -> tuple[str, int]:
    match = _KEY.fullmatch(text)
    if match is None:
        raise TraceError(f"not a key of the form ('job type', scale factor): {text!r}", path=path)
    return match["profile"], int(match["ranks"])


def _rate(path: Path | str, value: Any, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise TraceError(f"{place}: not a rate: {value!r}", path=path)
    return float(value)
