"""A small file of JSON records that only the latest of each key matters of: the memory of the group coordinator.

Each record is framed by its length and its CRC-32C; a torn tail is cut off on opening. When the file has grown to a
multiple of what is live, it is written anew from a snapshot and renamed into place.
"""

from __future__ import annotations

import json
import logging
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from aiokafka.record.util import calc_crc32c

_FRAME = struct.Struct(">II")
MIN_REWRITE_BYTES = 1 << 20
GROWTH_FACTOR = 4

_logger = logging.getLogger(__name__)
Entry = dict[str, Any]


class Journal:
    """An append-only file of entries; ``append`` returns when they are handed to the operating system."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1
        self._size_bytes = 0
        self._live_bytes = 0
        self.dirty = False

    def open(self) -> Iterator[Entry]:
        """Open or create the file and yield every entry, oldest first."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._descriptor(self.path)
        content = self.path.read_bytes()
        position = 0
        while position + _FRAME.size <= len(content):
            length, crc = _FRAME.unpack_from(content, position)
            body = content[position + _FRAME.size : position + _FRAME.size + length]
            # Zeros, which a file may end in when the machine died, would be an entry without content, checksum and all.
            if not length or len(body) < length or calc_crc32c(body) != crc:
                break
            yield json.loads(body)
            position += _FRAME.size + length
        if position < len(content):
            _logger.warning("%s: cutting off %d bytes of an unfinished write", self.path, len(content) - position)
            os.ftruncate(self._file, position)
        self._size_bytes = self._live_bytes = position

    @staticmethod
    def _descriptor(path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, entries: Iterable[Entry]) -> None:
        """Add entries in one write; raises ``OSError`` (disk full) with the file as before."""
        data = b"".join(_framed(entry) for entry in entries)
        try:
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError:
            os.ftruncate(self._file, self._size_bytes)
            raise
        self._size_bytes += len(data)
        self.dirty = True

    @property
    def overgrown(self) -> bool:
        """Whether a rewrite is worth its while."""
        return self._size_bytes > max(MIN_REWRITE_BYTES, GROWTH_FACTOR * self._live_bytes)

    @property
    def is_large(self) -> bool:
        """Whether a rewrite may be worth its while when it is not known what of the file is live: after opening."""
        return self._size_bytes > MIN_REWRITE_BYTES

    def rewrite(self, live: Iterable[Entry]) -> None:
        """Replace the content by the entries that still matter, durably."""
        temporary = self.path.with_suffix(".tmp")
        temporary.unlink(missing_ok=True)
        data = b"".join(_framed(entry) for entry in live)
        with temporary.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(self.path)
        os.close(self._file)
        self._file = self._descriptor(self.path)
        self._size_bytes = self._live_bytes = len(data)
        self.dirty = False

    def unsynced_copies(self) -> list[int]:
        """A duplicated descriptor to sync and close, if there is anything to sync; taken as synced from now on."""
        if not self.dirty:
            return []
        self.dirty = False
        return [os.dup(self._file)]

    def close(self) -> None:
        """Sync and close."""
        if self._file >= 0:
            os.fdatasync(self._file)
            os.close(self._file)
            self._file = -1


def _framed(entry: Entry) -> bytes:
    body = json.dumps(entry, separators=(",", ":")).encode()
    return _FRAME.pack(len(body), calc_crc32c(body)) + body
