"""The log files of runs: read in pieces, removed when old."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from meridian.errors import NotFoundError

_SAFE_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Text of a log from byte ``offset`` to byte ``next_offset`` of ``size_bytes``."""

    offset: int
    next_offset: int
    size_bytes: int
    text: str


class RunLogs:
    """Logs below ``directory``: ``<run id>/rank-<n>.log``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, run_id: str, rank: int, offset: int, limit_bytes: int, *, may_be_empty: bool = False) -> LogPiece:
        """A piece of a log; empty when the rank has printed nothing (more). A character is never cut in two.

        :raises NotFoundError: there is no such log, unless it ``may_be_empty``: files begin with the first byte.
        """
        if not _SAFE_RUN.fullmatch(run_id):
            raise NotFoundError(f"no log of run {run_id!r}")
        path = self._directory / run_id / f"rank-{rank}.log"
        try:
            with path.open("rb") as file:
                size_bytes = file.seek(0, 2)
                file.seek(min(offset, size_bytes))
                data = file.read(limit_bytes)
        except FileNotFoundError:
            if may_be_empty:
                return LogPiece(0, 0, 0, "")
            raise NotFoundError(f"run {run_id} has no log of rank {rank}") from None
        start = min(offset, size_bytes)
        if start + len(data) < size_bytes:
            data = _whole_characters(data)
        return LogPiece(start, start + len(data), size_bytes, data.decode(errors="replace"))

    def remove_older_than(self, age_s: float, keep: Collection[str] = ()) -> int:
        """Remove logs that nobody wrote to for ``age_s``, but of the runs to ``keep``; returns how many runs' logs."""
        removed = 0
        oldest = time.time() - age_s
        for folder in self._directory.glob("*"):
            if folder.name in keep:
                continue
            times = [_changed_at(path) for path in (folder, *folder.glob("*"))]
            newest = max((time_s for time_s in times if time_s is not None), default=oldest)
            if newest < oldest:
                shutil.rmtree(folder, ignore_errors=True)
                removed += 1
        return removed


def _changed_at(path: Path) -> float | None:
    """When a file, or a link itself, was changed; None when it is gone meanwhile."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return None


def _whole_characters(data: bytes) -> bytes:
    """``data`` without a UTF-8 character that its end cuts."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            needs = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return data[:-back] if back < needs and len(data) > back else data
    return data
