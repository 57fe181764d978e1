"""Availability of spot instances over time (Wu et al., NSDI 2024) as the series that a domain follows."""

from __future__ import annotations

import sys
from pathlib import Path

from simulation.traces.errors import TraceError
from simulation.traces.reading import read_json


def series(
    path: Path | str, *, accelerators_per_instance: int = 1, counts: str = "available", instances: int = 1
) -> tuple[tuple[float, int], ...]:
    """Steps (seconds, accelerators available from then on), only where the number changes; the last one stays.

    The file is ``{"metadata": {"gap_seconds": g}, "data": [n, ...]}``, one number of available instances every g seconds (so
    its authors' description). ``counts="preempted"`` reads the numbers as instances missing out of ``instances`` instead.
    """
    if counts not in {"available", "preempted"}:
        raise TraceError(f"option counts is 'available' or 'preempted', not {counts!r}")
    if accelerators_per_instance < 1 or instances < 1:
        raise TraceError("options accelerators_per_instance and instances must be at least 1")
    content, _ = read_json(path)
    try:
        gap, data = content["metadata"]["gap_seconds"], content["data"]
    except (KeyError, TypeError, IndexError):
        raise TraceError("needs metadata.gap_seconds and data", path=path) from None
    if isinstance(gap, bool) or not isinstance(gap, int | float) or gap <= 0:
        raise TraceError(f"metadata.gap_seconds is not a positive number: {gap!r}", path=path)
    if not isinstance(data, list) or not data:
        raise TraceError("data is not a list with numbers", path=path)
    steps: list[tuple[float, int]] = []
    for index, value in enumerate(data):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise TraceError(f"data[{index}] is not a number of instances: {value!r}", path=path)
        if counts == "preempted" and value > instances:
            raise TraceError(f"data[{index}] is more than {instances} instances: {value}", path=path)
        if index * gap > sys.float_info.max:
            raise TraceError(f"metadata.gap_seconds is too long for {len(data)} of them: {gap!r}", path=path)
        available = (value if counts == "available" else instances - value) * accelerators_per_instance
        if not steps or steps[-1][1] != available:
            steps.append((index * float(gap), available))
    return tuple(steps)
