"""One file of a partition's log, with a sparse index of where its batches lie.

The file is nothing but record batches, one behind the other. The index (an entry about every 4 KiB: first offset,
position, latest timestamp) is kept in memory; when a segment is complete, or the broker stops cleanly, it is written
beside it, and trusted on the next start if the file still has the size it describes. Otherwise the file is scanned, every
checksum verified, and what follows the first bad or torn batch is cut off.
"""

from __future__ import annotations

import bisect
import json
import logging
import mmap
import os
from array import array
from pathlib import Path
from typing import Any

from meridian.embedded.broker.batches import (
    HEADER_BYTES,
    BatchHeader,
    checksum,
    offset_and_size,
    records,
    whole_batches,
)
from meridian.embedded.broker.producers import ProducerLedger

INDEX_INTERVAL_BYTES = 4096
NO_TIMESTAMP = -1

_logger = logging.getLogger(__name__)


class Segment:
    """Batches from ``base_offset`` on, in the file of that name; ``next_offset`` is one past the last."""

    def __init__(self, directory: Path, base_offset: int) -> None:
        self.base_offset = base_offset
        self.path = directory / f"{base_offset:020d}.log"
        self.next_offset = base_offset
        self.size_bytes = 0
        self.max_timestamp_ms = NO_TIMESTAMP
        self._offsets = array("q")
        self._positions = array("q")
        self._timestamps = array("q")
        self._file: int | None = None

    @property
    def index_path(self) -> Path:
        """Where the index is kept while the file is complete."""
        return self.path.with_suffix(".index")

    @property
    def file(self) -> int:
        """The descriptor, opened when first needed."""
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        return self._file

    def create(self) -> None:
        """Make the empty file: when all before it is removed, its name alone tells a later start where the log goes on."""
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))

    def close(self) -> None:
        """Release the descriptor; the next use opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def remove(self) -> None:
        """Delete the file and its index."""
        self.close()
        self.index_path.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def append(self, batch: bytes | bytearray, header: BatchHeader, base_offset: int) -> None:
        """Write a batch that begins at ``base_offset``; on ``OSError`` (disk full) the file is as before."""
        written = 0
        try:
            while written < len(batch):
                written += os.write(self.file, memoryview(batch)[written:] if written else batch)
        except OSError:
            os.ftruncate(self.file, self.size_bytes)
            raise
        self._note(self.size_bytes, base_offset, base_offset + header.last_offset_delta, header.max_timestamp_ms)
        self.size_bytes += len(batch)

    def _note(self, position: int, base_offset: int, last_offset: int, timestamp_ms: int) -> None:
        if not self._positions or position - self._positions[-1] >= INDEX_INTERVAL_BYTES:
            self._offsets.append(base_offset)
            self._positions.append(position)
            self._timestamps.append(timestamp_ms)
        elif timestamp_ms > self._timestamps[-1]:
            self._timestamps[-1] = timestamp_ms
        self.max_timestamp_ms = max(self.max_timestamp_ms, timestamp_ms)
        self.next_offset = last_offset + 1

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Batches from the one that holds ``offset`` (or the next one) on, at most ``max_bytes`` but always one batch.

        The last batch may be cut off, as the protocol allows. Empty if the segment has nothing at or behind ``offset``.
        """
        position = self._locate(offset)
        if position is None:
            return b""
        data = os.pread(self.file, max(max_bytes, HEADER_BYTES), position)
        size = offset_and_size(data, 0)[1]
        if size > len(data):
            data += os.pread(self.file, size - len(data), position + len(data))
        return data

    def _locate(self, offset: int) -> int | None:
        """Position of the first batch whose last offset is not before ``offset``."""
        if offset >= self.next_offset or not self._offsets:
            return None
        entry = max(bisect.bisect_right(self._offsets, offset) - 1, 0)
        position = self._positions[entry]
        stop = self._positions[entry + 1] if entry + 1 < len(self._positions) else self.size_bytes
        block = memoryview(os.pread(self.file, stop - position, position))
        for within, header in whole_batches(block):
            if header.last_offset >= offset:
                return position + within
        return stop if stop < self.size_bytes else None

    def first_at_or_after(self, timestamp_ms: int, from_offset: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record at or behind ``from_offset`` that is not older than ``timestamp_ms``."""
        if self.max_timestamp_ms < timestamp_ms:
            return None
        for entry, latest in enumerate(self._timestamps):
            if latest < timestamp_ms:
                continue
            position = self._positions[entry]
            stop = self._positions[entry + 1] if entry + 1 < len(self._positions) else self.size_bytes
            block = memoryview(os.pread(self.file, stop - position, position))
            for within, header in whole_batches(block):
                if header.max_timestamp_ms < timestamp_ms or header.last_offset < from_offset:
                    continue
                for record in records(block[within : within + header.size_bytes]):
                    if record.timestamp_ms >= timestamp_ms and record.offset >= from_offset:
                        return record.timestamp_ms, record.offset
        return None

    def save_index(self, producers: ProducerLedger) -> None:
        """Write the index and what is known of producers at the segment's end beside the file."""
        body = {
            "size_bytes": self.size_bytes,
            "next_offset": self.next_offset,
            "max_timestamp_ms": self.max_timestamp_ms,
            "offsets": self._offsets.tolist(),
            "positions": self._positions.tolist(),
            "timestamps": self._timestamps.tolist(),
            "producers": producers.snapshot(),
        }
        temporary = self.index_path.with_suffix(".index.tmp")
        temporary.write_text(json.dumps(body), encoding="utf-8")
        temporary.replace(self.index_path)

    def recover(self, producers: ProducerLedger) -> None:
        """Make the segment known again after a start, by its index if that fits, else by a scan that cuts off a torn tail."""
        actual_bytes = self.path.stat().st_size
        index = self.saved_index()
        if index is not None and index["size_bytes"] == actual_bytes:
            self.size_bytes = actual_bytes
            self.next_offset = index["next_offset"]
            self.max_timestamp_ms = index["max_timestamp_ms"]
            self._offsets = array("q", index["offsets"])
            self._positions = array("q", index["positions"])
            self._timestamps = array("q", index["timestamps"])
            producers.restore(index["producers"])
            return
        self.index_path.unlink(missing_ok=True)
        self._scan(actual_bytes, producers)

    def saved_index(self) -> dict[str, Any] | None:
        """The index beside the file, if there is a readable one."""
        try:
            index: dict[str, Any] = json.loads(self.index_path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return index

    def _scan(self, actual_bytes: int, producers: ProducerLedger) -> None:
        good_bytes = 0
        if actual_bytes:
            with mmap.mmap(self.file, actual_bytes, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
                for position, header in whole_batches(view):
                    stop = position + header.size_bytes
                    with view[position:stop] as batch:
                        if header.magic != 2 or header.base_offset < self.next_offset or checksum(batch) != header.crc:
                            break
                    self._note(position, header.base_offset, header.last_offset, header.max_timestamp_ms)
                    if header.producer_id >= 0:
                        producers.stored(header, header.base_offset)
                    good_bytes = stop
        if good_bytes < actual_bytes:
            _logger.warning(
                "%s: cutting off %d bytes of an unfinished write after offset %d",
                self.path,
                actual_bytes - good_bytes,
                self.next_offset - 1,
            )
            os.ftruncate(self.file, good_bytes)
        self.size_bytes = good_bytes

    @property
    def latest_ms(self) -> int:
        """Time of the newest record; where producers set none, that of the last write."""
        return self.max_timestamp_ms if self.max_timestamp_ms >= 0 else int(self.path.stat().st_mtime * 1000)

    def whole(self) -> bytes:
        """All batches; for compaction, which works on complete segments."""
        return self.path.read_bytes()
