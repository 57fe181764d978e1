"""What rank 0 tells Meridian about its work: docs/program-protocol.md, two kinds of line on standard output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def report_progress(step: int, total_steps: int, metrics: Mapping[str, float]) -> None:
    """`step` updates of `total_steps` are done."""
    _report({"progress": {"step": step, "total_steps": total_steps, "metrics": dict(metrics)}})


def report_checkpoint(step: int, path: Path) -> None:
    """The state after `step` updates is safe on disk at the absolute `path`."""
    _report({"checkpoint": {"step": step, "path": str(path)}})


def _report(message: Mapping[str, Any]) -> None:
    print("@meridian " + json.dumps(message), flush=True)
