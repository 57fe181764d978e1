"""Record batches that cannot be read: one record in their place says so, and the partition goes on behind them.

Kafka carries bytes. A client library decodes names of headers as UTF-8 and trusts lengths; who sends other bytes would otherwise
stop everyone who reads the partition: aiokafka raises in the midst of a fetch, has then forgotten what it read before that batch,
and meets the same batch again. A batch comes from one sender, so what is lost with it is that sender's own. It stays in the topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException, UnsupportedCodecError

from meridian.codec import UNREADABLE

_NO_TIMESTAMP_MS, _CREATE_TIME = -1, 0


class _Watched:
    """The batches of a fetch, checked; ``current`` is the one that was given out last, None where the next one cannot be had."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self.checks = False
        self.current: Any = None

    def has_next(self) -> bool:
        return bool(self._batches.has_next())

    def next_batch(self) -> Any:
        self.current = None
        batch = self._batches.next_batch()
        if self.checks and not batch.validate_crc():
            raise CorruptRecordException("invalid checksum of a batch")
        self.current = batch
        return batch


class ReadableRecords(fetcher.PartitionRecords):  # type: ignore[misc]
    """aiokafka's reader of a fetch, which gives a record with the header `UNREADABLE` for a batch that it cannot read.

    A checksum that does not match is an error as before: the bytes were harmed on their way, and are fetched again.
    """

    next_fetch_offset: int
    _check_crcs: bool

    def __init__(self, tp: TopicPartition, records: Any, *arguments: Any, **named: Any) -> None:
        self._watched = _Watched(records)
        super().__init__(tp, self._watched, *arguments, **named)
        # A batch can be checked only before it is read.
        self._watched.checks, self._check_crcs = self._check_crcs, False

    def _unpack_records(self) -> Iterator[ConsumerRecord[Any, Any]]:
        while True:
            try:
                yield from super()._unpack_records()
            except UnsupportedCodecError:
                raise
            except Exception as error:  # each codec raises errors of its own
                batch = self._watched.current
                if batch is None:
                    raise
                offset = max(self.next_fetch_offset, batch.base_offset)
                self.next_fetch_offset = batch.next_offset
                yield _stand_in(self._tp, offset, batch.next_offset - 1, error)
            else:
                return


def _stand_in(place: TopicPartition, offset: int, last: int, error: Exception) -> ConsumerRecord[Any, Any]:
    reason = f"records {offset} to {last} of a batch cannot be read: {error}".encode("utf-8", "replace")
    return ConsumerRecord(
        place.topic,
        place.partition,
        offset,
        _NO_TIMESTAMP_MS,
        _CREATE_TIME,
        None,
        b"",
        None,
        -1,
        0,
        ((UNREADABLE, reason),),
    )


def install() -> None:
    """Have every consumer of this process read so."""
    fetcher.PartitionRecords = ReadableRecords
