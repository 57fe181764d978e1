"""Record batches of format 2 as the broker sees them: a header of fixed layout, the records behind it opaque.

The broker writes only the base offset and the leader epoch, which lie outside the checksum, so the bytes a producer sent
are the bytes a consumer gets. Records are decoded in two places off the hot path: to answer ListOffsets by timestamp
exactly, and for topics that are compacted by key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from aiokafka.record.util import calc_crc32c

from meridian.embedded.broker.errors import BrokerError, ErrorCode

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_PREFIX_BYTES = 12
"""Base offset and length, which the length itself does not count."""

LEADER_EPOCH = 0
"""A single node leads every partition for ever."""

_CRC_START = 21
_LAST_OFFSET_DELTA = struct.Struct(">i")
_OFFSET_AND_LENGTH = struct.Struct(">qi")
_BASE_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_TRANSACTIONAL, _CONTROL = 0x10, 0x20


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The fixed 61 bytes before the records; times in ms since the epoch."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch, prefix included."""
        return LENGTH_PREFIX_BYTES + self.length

    @property
    def last_offset(self) -> int:
        """Offset of the last record (or of what was the last before compaction)."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; sequences wrap at 2^31."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Record:
    """One decoded record, as far as the broker needs it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def header_at(data: bytes | memoryview, position: int = 0) -> BatchHeader:
    """The header that starts at ``position``; the caller has seen to it that ``HEADER_BYTES`` are there."""
    return BatchHeader(*HEADER.unpack_from(data, position))


def offset_and_size(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Base offset and size in bytes (prefix included) of the batch at ``position``."""
    base_offset, length = _OFFSET_AND_LENGTH.unpack_from(data, position)
    return base_offset, length + LENGTH_PREFIX_BYTES


def checksum(batch: bytes | bytearray | memoryview) -> int:
    """CRC-32C over the batch from its attributes on, as its header should have it."""
    return int(calc_crc32c(memoryview(batch)[_CRC_START:]))


def checked_header(batch: bytes | memoryview, max_bytes: int) -> BatchHeader:
    """The header of the one batch a producer sent for a partition; raises ``BrokerError`` where it may not be stored."""
    if len(batch) < HEADER_BYTES:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"a batch has at least {HEADER_BYTES} bytes, not {len(batch)}")
    header = header_at(batch)
    if header.magic != 2:
        raise BrokerError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"record format {header.magic}, only 2 is stored")
    if header.size_bytes != len(batch):
        raise BrokerError(ErrorCode.INVALID_RECORD, "exactly one record batch for a partition in a request")
    if len(batch) > max_bytes:
        raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE, f"batch of {len(batch)} bytes, at most {max_bytes}")
    if checksum(batch) != header.crc:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, "checksum of the batch does not match")
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise BrokerError(ErrorCode.INVALID_RECORD, "record count and last offset do not agree")
    if header.attributes & (_TRANSACTIONAL | _CONTROL):
        raise BrokerError(ErrorCode.INVALID_RECORD, "transactions are not served")
    return header


def placed(batch: bytes | memoryview, base_offset: int) -> bytearray:
    """A copy of the batch with its place in the log written in."""
    out = bytearray(batch)
    _BASE_OFFSET.pack_into(out, 0, base_offset)
    _EPOCH.pack_into(out, LENGTH_PREFIX_BYTES, LEADER_EPOCH)
    return out


def whole_batches(data: memoryview, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch that lies completely in ``data``; ends at the first that does not."""
    end = len(data)
    while position + HEADER_BYTES <= end:
        header = header_at(data, position)
        if header.length < HEADER_BYTES - LENGTH_PREFIX_BYTES or position + header.size_bytes > end:
            return
        yield position, header
        position += header.size_bytes


def records(batch: bytes | memoryview) -> Iterator[Record]:
    """Decode the records of a batch, decompressing where needed; raises ``BrokerError`` where that fails."""
    from aiokafka.errors import CorruptRecordException, UnsupportedCodecError
    from aiokafka.record.default_records import DefaultRecordBatch

    try:
        for record in DefaultRecordBatch(bytes(batch)):
            headers = tuple((str(name), value) for name, value in record.headers)
            yield Record(record.offset, record.timestamp, record.key, record.value, headers)
    except (CorruptRecordException, UnsupportedCodecError, ValueError, EOFError) as error:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"records cannot be decoded: {error}") from error


def rebuilt(batch: bytes | memoryview, kept: list[Record]) -> bytes:
    """The batch with only the records in ``kept``: offsets, timestamps, codec and producer as before (compaction)."""
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    header = header_at(batch)
    builder = DefaultRecordBatchBuilder(
        2, header.attributes & 0x07, 0, header.producer_id, header.producer_epoch, header.base_sequence, 1 << 31
    )
    for record in kept:
        builder.append(
            record.offset - header.base_offset, record.timestamp_ms, record.key, record.value, list(record.headers)
        )
    out = placed(builder.build(), header.base_offset)
    _LAST_OFFSET_DELTA.pack_into(out, 23, header.last_offset_delta)
    _CRC.pack_into(out, 17, checksum(out))
    return bytes(out)
