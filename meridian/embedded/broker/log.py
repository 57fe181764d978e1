"""The log of one partition: segments in order, appended at the end, read anywhere, shortened at the front."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from meridian.embedded.broker.batches import BatchHeader, checked_header, placed, records
from meridian.embedded.broker.errors import BrokerError, ErrorCode
from meridian.embedded.broker.producers import ProducerLedger
from meridian.embedded.broker.segment import Segment
from meridian.embedded.broker.topic_config import UNLIMITED, TopicConfig

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
"""What ListOffsets may ask for instead of a time."""

_START_FILE = "log-start-offset"
_logger = logging.getLogger(__name__)


class PartitionLog:
    """Records ``start_offset`` .. ``end_offset`` - 1 of one partition, in files under ``directory``.

    ``append`` returns when the bytes are handed to the operating system, so they survive the death of this process;
    ``sync`` makes them survive that of the machine. Not safe for threads, except where said.
    """

    def __init__(self, directory: Path, config: TopicConfig) -> None:
        self.directory = directory
        self.config = config
        self.producers = ProducerLedger()
        self.start_offset = 0
        self.segments: list[Segment] = []
        self.compacted_up_to = 0
        """Segments that begin before this offset have been through compaction since the start of the broker."""
        self._unsynced: set[Segment] = set()
        self._appended: dict[int, Callable[[], None]] = {}
        self._next_subscription = 0

    @property
    def end_offset(self) -> int:
        """Offset of the next record; on a single node also the high watermark."""
        return self.segments[-1].next_offset

    @property
    def size_bytes(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def dirty(self) -> bool:
        """Whether anything was appended since the last ``sync``."""
        return bool(self._unsynced)

    def open(self) -> None:
        """Create the log or recover it: saved indexes where they fit, a scan with checksums where not."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for leftover in self.directory.glob("*.tmp"):
            leftover.unlink()
        for base_offset in sorted(int(path.stem) for path in self.directory.glob("*.log")):
            segment = Segment(self.directory, base_offset)
            if self.segments and base_offset < self.segments[-1].next_offset:
                segment.remove()  # merged into the one before by a compaction that did not finish its tidying
                continue
            segment.recover(self.producers)
            self.segments.append(segment)
        if not self.segments:
            self.segments.append(Segment(self.directory, self._saved_start()))
        active = self.segments[-1]
        active.index_path.unlink(missing_ok=True)
        self.start_offset = max(self._saved_start(), self.segments[0].base_offset)

    def close(self) -> None:
        """Make everything durable and write the index of the active segment, so that the next start need not scan."""
        self.sync()
        if self.segments[-1].size_bytes:
            self.segments[-1].save_index(self.producers)
        for segment in self.segments:
            segment.close()

    def abandon(self) -> None:
        """Release the files without saving anything (the topic is deleted) and wake whoever waits."""
        self._unsynced.clear()
        for segment in self.segments:
            segment.close()
        self.wake()

    def append(self, batch: bytes | memoryview) -> int:
        """Store one record batch and return its first offset; a repeat of an idempotent producer is stored once.

        Raises ``BrokerError`` where the batch is refused or the disk fails; the log is then as before.
        """
        header = checked_header(batch, self.config.max_message_bytes)
        if self.config.compacted and any(record.key is None for record in records(batch)):
            raise BrokerError(ErrorCode.INVALID_RECORD, "a compacted topic takes only records that have a key")
        if header.producer_id >= 0:
            earlier = self.producers.repeated(header)
            if earlier is not None:
                return earlier
        return self._store(batch, header)

    def _store(self, batch: bytes | memoryview, header: BatchHeader) -> int:
        active = self.segments[-1]
        try:
            if active.size_bytes and active.size_bytes + len(batch) > self.config.segment_bytes:
                active = self.roll()
            base_offset = active.next_offset
            active.append(placed(batch, base_offset), header, base_offset)
        except OSError as error:
            _logger.error("%s: %s", active.path, error)  # noqa: TRY400 - the client gets the error, the log its cause
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        if header.producer_id >= 0:
            self.producers.stored(header, base_offset)
        self._unsynced.add(active)
        self.wake()
        return base_offset

    def roll(self) -> Segment:
        """Complete the active segment, if it has records, and begin the next one."""
        active = self.segments[-1]
        if not active.size_bytes:
            return active
        active.save_index(self.producers)
        fresh = Segment(self.directory, active.next_offset)
        fresh.create()
        self.segments.append(fresh)
        return fresh

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Batches from ``offset`` on; empty at the end of the log; raises ``BrokerError`` OFFSET_OUT_OF_RANGE."""
        if offset == self.end_offset:
            return b""
        if not self.start_offset <= offset < self.end_offset:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not in {self.start_offset}..{self.end_offset}"
            )
        for segment in self._segments_from(offset):
            data = segment.read(offset, max_bytes)
            if data:
                return data
        return b""

    def _segments_from(self, offset: int) -> Iterable[Segment]:
        if offset >= self.segments[-1].base_offset:
            return self.segments[-1:]
        return [segment for segment in self.segments if segment.next_offset > offset]

    def find(self, timestamp_ms: int) -> tuple[int, int]:
        """(timestamp, offset) that ListOffsets answers for a time or for EARLIEST, LATEST, MAX_TIMESTAMP; (-1, -1) if none."""
        if timestamp_ms == EARLIEST:
            return -1, self.start_offset
        if timestamp_ms == LATEST:
            return -1, self.end_offset
        if timestamp_ms == MAX_TIMESTAMP:
            timestamp_ms = max(segment.max_timestamp_ms for segment in self.segments)
            if timestamp_ms < 0:
                return -1, -1
        for segment in self.segments:
            found = segment.first_at_or_after(timestamp_ms, self.start_offset)
            if found is not None:
                return found
        return -1, -1

    def sync(self) -> None:
        """Force what was appended onto the disk (blocks)."""
        for descriptor in self.unsynced_copies():
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)

    def unsynced_copies(self) -> list[int]:
        """Duplicated descriptors of what must be synced, now taken as synced: the caller syncs and closes them, in any thread."""
        copies = [os.dup(segment.file) for segment in self._unsynced]
        self._unsynced.clear()
        return copies

    def expire(self, now_ms: int) -> int:
        """Remove whole segments that are too old or beyond the size limit; returns how many. No-op without "delete"."""
        if not self.config.deletes:
            return 0
        retention_ms, retention_bytes = self.config.retention_ms, self.config.retention_bytes
        removed = 0
        while len(self.segments) > 1 or self.segments[0].size_bytes:
            oldest = self.segments[0]
            too_old = retention_ms != UNLIMITED and oldest.latest_ms < now_ms - retention_ms
            too_much = retention_bytes != UNLIMITED and self.size_bytes - oldest.size_bytes >= retention_bytes
            if not too_old and not too_much:
                break
            if len(self.segments) == 1:
                self.roll()
            self._drop_first()
            removed += 1
        return removed

    def delete_before(self, offset: int) -> int:
        """Forget records before ``offset`` (LATEST: all) and return the new start; raises ``BrokerError`` if out of range."""
        wanted = self.end_offset if offset == LATEST else offset
        if wanted > self.end_offset or wanted < 0:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not in the log")
        if wanted > self.start_offset:
            temporary = self._start_path.with_suffix(".tmp")
            temporary.write_text(str(wanted), encoding="ascii")
            temporary.replace(self._start_path)
            self.start_offset = wanted
            while len(self.segments) > 1 and self.segments[0].next_offset <= wanted:
                self._drop_first()
        return self.start_offset

    def _drop_first(self) -> None:
        gone = self.segments.pop(0)
        self._unsynced.discard(gone)
        gone.remove()
        self.start_offset = max(self.start_offset, self.segments[0].base_offset)
        self.producers.forget_before(self.start_offset)

    def replace(self, merged: list[Segment], compacted: Segment) -> None:
        """Put a compacted segment, whose file is already in place, where the ``merged`` complete segments were.

        Where the first of them was removed meanwhile (its records were deleted), its place is gone: so is ``compacted``.
        """
        if self.segments[: len(merged)] != merged:
            compacted.remove()
            return
        for segment in merged:
            self._unsynced.discard(segment)
            segment.close()
        for segment in merged[1:]:
            segment.remove()
        self.segments[: len(merged)] = [compacted]
        self.compacted_up_to = self.segments[1].base_offset

    def subscribe(self, on_append: Callable[[], None]) -> int:
        """Have ``on_append`` called after every append; returns what ``unsubscribe`` takes."""
        self._next_subscription += 1
        self._appended[self._next_subscription] = on_append
        return self._next_subscription

    def unsubscribe(self, subscription: int) -> None:
        """End a subscription."""
        self._appended.pop(subscription, None)

    def wake(self) -> None:
        """Call all subscribers."""
        if self._appended:
            for on_append in tuple(self._appended.values()):
                on_append()

    @property
    def _start_path(self) -> Path:
        return self.directory / _START_FILE

    def _saved_start(self) -> int:
        try:
            return int(self._start_path.read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0
