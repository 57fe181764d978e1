"""Traces of real clusters as jobs of the simulator: one reader per format, all strict, all or nothing.

Formats, their columns and what is made of them: docs/simulation-formats.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulation.model import Trace
from simulation.traces import batsim, chronus, gavel, jobs_csv, openb, philly, sia, swf
from simulation.traces.batsim import BatsimSchedule
from simulation.traces.batsim import schedule as batsim_schedule
from simulation.traces.errors import TraceError
from simulation.traces.gavel import read_throughputs
from simulation.traces.openb import nodes as openb_nodes
from simulation.traces.reading import number
from simulation.traces.shaping import days, limited, offered_load, scaled
from simulation.traces.sia_tables import MeasuredTables
from simulation.traces.sia_tables import read_tables as sia_tables
from simulation.traces.spot import series as spot_series
from simulation.traces.swf import machines as swf_machines

__all__ = [
    "FORMATS",
    "BatsimSchedule",
    "MeasuredTables",
    "TraceError",
    "batsim_schedule",
    "days",
    "limited",
    "load",
    "offered_load",
    "openb_nodes",
    "read_throughputs",
    "scaled",
    "sia_tables",
    "spot_series",
    "swf_machines",
]

FORMATS: dict[str, Callable[..., Trace]] = {
    "batsim": batsim.load,
    "chronus": chronus.load,
    "csv": jobs_csv.load,
    "gavel": gavel.load,
    "openb": openb.load,
    "philly": philly.load,
    "sia": sia.load,
    "swf": swf.load,
}


def load(path: Path | str, format: str, **options: Any) -> Trace:  # noqa: A002 - the word everyone uses
    """Reads a trace of one of `FORMATS` with that reader's options.

    Raises `TraceError` (file, line, column): unknown format or option, a file that is missing, empty or malformed.
    """
    reader = FORMATS.get(format)
    if reader is None:
        raise TraceError(f"unknown format {format!r}: known are {', '.join(FORMATS)}", path=path)
    known = {name: each for name, each in inspect.signature(reader).parameters.items() if name != "path"}
    for name in options:
        if name not in known:
            raise TraceError(f"format {format} has no option {name!r}; it has: {', '.join(known) or 'none'}", path=path)
    return reader(path, **{name: _option(name, value, known[name].default) for name, value in options.items()})


def _option(name: str, value: Any, default: Any) -> Any:
    """The value of an option in the type of its default; text, as a command line gives it, is converted."""
    if isinstance(default, bool):
        text = str(value).lower()
        if text not in {"true", "false"}:
            raise TraceError(f"option {name} must be true or false, not {value!r}")
        return text == "true"
    if isinstance(default, int | float):
        found = number(str(value))
        if found is None or (isinstance(default, int) and not found.is_integer()):
            kind = "whole number" if isinstance(default, int) else "number"
            raise TraceError(f"option {name} must be a {kind}, not {value!r}")
        return type(default)(found)
    return value
