"""A rank's log file: opened at its first byte, capped, with the last lines at hand for the report of a failure."""

from __future__ import annotations

import os

TAIL_BYTES = 4096


class RankLog:
    """Appends to ``path`` until ``max_bytes`` are written, then says so once and only counts.

    A disk that refuses to take more (full, read-only) counts as the cap reached: a run does not die of its log.
    """

    __slots__ = ("_descriptor", "_max_bytes", "_path", "_tail", "discarded_bytes", "truncated", "written_bytes")

    def __init__(self, path: str, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._descriptor: int | None = None
        self._tail = b""
        self.truncated = False
        self.written_bytes = 0
        self.discarded_bytes = 0

    def write(self, text: bytes) -> None:
        """Append log text."""
        if not text:
            return
        self._tail = (self._tail + text[-TAIL_BYTES:])[-TAIL_BYTES:]
        room = 0 if self.truncated else self._max_bytes - self.written_bytes
        if room > 0:
            self._append(text[:room])
        if len(text) > room:
            self.discarded_bytes += len(text) - max(room, 0)
            if not self.truncated:
                self._append(f"\n[meridian: log truncated after {self._max_bytes} bytes]\n".encode())
                self.truncated = True

    def tail(self) -> str:
        """The last lines, at most ``TAIL_BYTES``; undecodable bytes are replaced."""
        return self._tail.decode(errors="replace")

    def close(self) -> None:
        """Release the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, text: bytes) -> None:
        try:
            if self._descriptor is None:
                os.makedirs(os.path.dirname(self._path), exist_ok=True)  # noqa: PTH103, PTH120 - pathlib doubles the import time
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            view = memoryview(text)
            while view:
                count = os.write(self._descriptor, view)
                self.written_bytes += count
                view = view[count:]
        except OSError:
            self.truncated = True
