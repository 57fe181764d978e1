"""Parts of the broker on their own: record batches made as a producer makes them, and time that only moves when told to."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from meridian.embedded.broker.batches import offset_and_size, records
from meridian.embedded.broker.log import PartitionLog
from meridian.embedded.broker.topic_config import TopicConfig


def batch(
    *pairs: tuple[str | None, str | None],
    timestamp_ms: int = 1000,
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """A record batch of (key, value) pairs; ``producer`` is (id, epoch, first sequence)."""
    builder = DefaultRecordBatchBuilder(2, codec, 0, *producer, 1 << 24)
    for index, (key, value) in enumerate(pairs):
        encoded_key = None if key is None else key.encode()
        builder.append(index, timestamp_ms + index, encoded_key, None if value is None else value.encode(), [])
    return bytes(builder.build())


def contents(log: PartitionLog, max_bytes: int = 300) -> list[tuple[int, str | None, str | None]]:
    """All (offset, key, value) of a log, read the way a consumer does."""
    found: list[tuple[int, str | None, str | None]] = []
    offset = log.start_offset
    while data := log.read(offset, max_bytes):
        position = 0
        while position + 12 <= len(data):
            _, size = offset_and_size(data, position)
            if position + size > len(data):
                break
            for record in records(data[position : position + size]):
                if record.offset >= offset:
                    key, value = record.key, record.value
                    found.append(
                        (
                            record.offset,
                            None if key is None else key.decode(),
                            None if value is None else value.decode(),
                        )
                    )
            last_delta = int.from_bytes(data[position + 23 : position + 27], "big")
            offset_after = int.from_bytes(data[position : position + 8], "big") + last_delta + 1
            position += size
        offset = offset_after
    return found


@contextlib.contextmanager
def files_limited_to(size_bytes: int) -> Iterator[None]:
    """Let writes of this process fail beyond that size of a file, half-way through, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[Callable[..., PartitionLog]]:
    """Open the log of one partition, again and again in the same folder, with settings given by name."""
    logs: list[PartitionLog] = []

    def open_again(**settings: str) -> PartitionLog:
        config = TopicConfig.checked({name.replace("_", "."): value for name, value in settings.items()})
        log = PartitionLog(tmp_path / "0", config)
        log.open()
        logs.append(log)
        return log

    yield open_again
    for log in logs:
        log.abandon()


@dataclass(order=True)
class Call:
    """A call that is to come."""

    at_s: float
    number: int
    callback: Callable[..., object] = field(compare=False)
    arguments: tuple[Any, ...] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class VirtualTimers:
    """Timers whose clock stands still until ``advance``; the futures belong to a loop that never runs."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._calls: list[Call] = []
        self._numbers = itertools.count()
        self._loop = asyncio.new_event_loop()

    def call_later(self, delay: float, callback: Callable[..., object], /, *args: Any) -> Call:
        call = Call(self.now_s + delay, next(self._numbers), callback, args)
        heapq.heappush(self._calls, call)
        return call

    def create_future(self) -> asyncio.Future[Any]:
        return self._loop.create_future()

    def advance(self, duration_s: float) -> None:
        """Let time pass, making the calls that fall due in order."""
        end_s = self.now_s + duration_s
        while self._calls and self._calls[0].at_s <= end_s:
            call = heapq.heappop(self._calls)
            self.now_s = call.at_s
            if not call.cancelled:
                call.callback(*call.arguments)
        self.now_s = end_s

    def close(self) -> None:
        self._loop.close()


@pytest.fixture
def timers() -> Iterator[VirtualTimers]:
    """Virtual time."""
    virtual = VirtualTimers()
    yield virtual
    virtual.close()
