"""What rank 0 tells Meridian about its work: docs/program-protocol.md, two kinds of line on standard output."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def report_progress(step: int, total_steps: int, metrics: Mapping[str, float]) -> None:
    """`step` updates of `total_steps` are done. JSON has no NaN and no infinity: such metrics are left out."""
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    _report({"progress": {"step": step, "total_steps": total_steps, "metrics": finite}})


def report_checkpoint(step: int, path: Path) -> None:
    """The state after `step` updates is safe on disk at the absolute `path`."""
    _report({"checkpoint": {"step": step, "path": str(path)}})


def _report(message: Mapping[str, Any]) -> None:
    print("@meridian " + json.dumps(message), flush=True)
