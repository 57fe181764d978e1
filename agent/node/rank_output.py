"""What a rank prints on stdout: log text, and between it protocol lines that report progress and checkpoints.

    @meridian {"progress": {"step": 12, "total_steps": 200, "metrics": {"loss": 3.21}}}
    @meridian {"checkpoint": {"step": 100, "path": "/abs/dir/step-000100.npz"}}

Programs are not to be trusted: a line that is malformed or over-long becomes log text and is counted, nothing more.
"""

from __future__ import annotations

import json
import math
import posixpath
from typing import Any, NoReturn

PREFIX = b"@meridian "
MAX_LINE_BYTES = 64 * 1024
MAX_METRICS = 64
MAX_NAME_CHARACTERS = 128
MAX_STEP = 2**63 - 1


class MalformedReportError(ValueError):
    """A protocol line that breaks the protocol; the message names the field."""


class Report:
    """A valid protocol line: ``kind`` is ``progress`` or ``checkpoint``, ``body`` holds checked fields only."""

    __slots__ = ("body", "kind")

    def __init__(self, kind: str, body: dict[str, Any]) -> None:
        self.kind = kind
        self.body = body


def parse_report(line: bytes) -> Report:
    """Read one protocol line (with its prefix, without the newline).

    :raises MalformedReportError: when the line breaks the protocol.
    """
    if len(line) > MAX_LINE_BYTES:
        raise MalformedReportError("line too long")
    try:
        message = json.loads(line[len(PREFIX) :], parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise MalformedReportError(f"not JSON: {error}") from error
    if not isinstance(message, dict) or len(message) != 1:
        raise MalformedReportError("expected an object with one key")
    ((kind, body),) = message.items()
    if not isinstance(body, dict):
        raise MalformedReportError(f"{kind}: expected an object")
    if kind == "progress":
        return Report(kind, _progress(body))
    if kind == "checkpoint":
        return Report(kind, _checkpoint(body))
    raise MalformedReportError(f"unknown kind {kind!r}")


def _no_constant(name: str) -> NoReturn:
    raise MalformedReportError(f"{name} is not JSON")


def _is_text(words: str) -> bool:
    """JSON can name halves of surrogate pairs; nothing behind the node can carry them."""
    return not any("\ud800" <= character <= "\udfff" for character in words)


def _whole_number(body: dict[str, Any], field: str) -> int:
    value = body.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_STEP:
        raise MalformedReportError(f"{field}: expected a whole number from 0")
    return value


def _progress(body: dict[str, Any]) -> dict[str, Any]:
    metrics = body.get("metrics", {})
    if not isinstance(metrics, dict) or len(metrics) > MAX_METRICS:
        raise MalformedReportError(f"metrics: expected an object with at most {MAX_METRICS} entries")
    checked: dict[str, float] = {}
    for name, value in metrics.items():
        if len(name) > MAX_NAME_CHARACTERS:
            raise MalformedReportError("metrics: a name is too long")
        if not _is_text(name):
            raise MalformedReportError("metrics: a name has half of a character")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise MalformedReportError(f"metrics.{name}: expected a number")
        try:
            number = float(value)
        except OverflowError as error:
            raise MalformedReportError(f"metrics.{name}: too large") from error
        if not math.isfinite(number):
            raise MalformedReportError(f"metrics.{name}: not finite")
        checked[name] = number
    total = _whole_number(body, "total_steps") if body.get("total_steps") is not None else None
    return {"step": _whole_number(body, "step"), "total_steps": total, "metrics": checked}


def _checkpoint(body: dict[str, Any]) -> dict[str, Any]:
    path = body.get("path")
    if not isinstance(path, str) or not posixpath.isabs(path) or "\0" in path or len(path) > 4096 or not _is_text(path):
        raise MalformedReportError("path: expected an absolute path")
    return {"step": _whole_number(body, "step"), "path": path}


class OutputScanner:
    """Divides a byte stream into log text (passed on at once) and reports (complete lines only)."""

    __slots__ = ("_inside_text", "_partial", "malformed_count")

    def __init__(self) -> None:
        self._partial = b""
        self._inside_text = False
        self.malformed_count = 0

    def feed(self, data: bytes) -> tuple[bytes, list[Report]]:
        """Log text and reports found in ``data``. An unfinished line that may still become a report is kept back."""
        buffer = self._partial + data
        self._partial = b""
        if PREFIX not in buffer and (end := buffer.rfind(b"\n")) >= 0:
            rest = buffer[end + 1 :]
            self._inside_text = False
            kept = self._keep_back(rest)
            return (buffer[: end + 1] if kept else buffer), []
        text: list[bytes] = []
        reports: list[Report] = []
        position = 0
        while (newline := buffer.find(b"\n", position)) >= 0:
            line = buffer[position:newline]
            if self._inside_text or not line.startswith(PREFIX):
                text.append(line + b"\n")
            else:
                try:
                    reports.append(parse_report(line))
                except MalformedReportError:
                    self.malformed_count += 1
                    text.append(line + b"\n")
            self._inside_text = False
            position = newline + 1
        rest = buffer[position:]
        if not self._keep_back(rest):
            text.append(rest)
        return b"".join(text), reports

    def finish(self) -> bytes:
        """What was kept back when the stream ended, as log text: a report without its newline is not complete."""
        rest, self._partial = self._partial, b""
        if rest.startswith(PREFIX):
            self.malformed_count += 1
        return rest

    def _keep_back(self, rest: bytes) -> bool:
        """Whether ``rest`` waits for its newline; text does not."""
        if not rest:
            return True
        if self._inside_text:
            return False
        if PREFIX.startswith(rest[: len(PREFIX)]):
            if len(rest) <= MAX_LINE_BYTES:
                self._partial = rest
                return True
            self.malformed_count += 1
        self._inside_text = True
        return False
