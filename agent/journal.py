"""An append-only file of records that survives ``kill -9``: what the agent must not forget stands here before it acts.

One record per line: CRC-32 of the body in hexadecimal, a space, the body as JSON. Records are gathered and written with
one ``fdatasync`` for all who wait (group commit), in a thread, so that the loop never waits for the disk. A line cut
short by a crash can only be the last one; it is dropped. A bad line with good ones after it is damage and is refused.
"""

from __future__ import annotations

import asyncio
import json
import os
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from meridian.errors import ConfigurationError, UnavailableError

Record = dict[str, Any]

COMPACT_MIN_RECORDS = 20_000
COMPACT_RATIO = 4


class JournalDamagedError(ConfigurationError):
    """The journal holds a bad record in its middle; starting from it could run something twice."""

    code = "JOURNAL_DAMAGED"
    title = "Journal damaged"


class JournalUnwritableError(UnavailableError):
    """The disk does not take the journal any more; nothing may be started."""

    code = "JOURNAL_UNWRITABLE"
    title = "Journal not writable"


def encode(record: Record) -> bytes:
    """One record as a line."""
    body = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()
    return b"%08x %b\n" % (zlib.crc32(body), body)


def decode(line: bytes) -> Record | None:
    """The record of a line (without its newline), None when the line is not whole."""
    checksum, _, body = line.partition(b" ")
    if len(checksum) != 8 or checksum != b"%08x" % zlib.crc32(body):
        return None
    record = json.loads(body)
    return record if isinstance(record, dict) else None


def read(path: Path) -> tuple[list[Record], int]:
    """All records of a file and the number of bytes they take; what follows them was cut short by a crash.

    :raises JournalDamagedError: when a good record follows a bad one.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    records: list[Record] = []
    good_bytes = 0
    bad_at: int | None = None
    position = 0
    while (newline := data.find(b"\n", position)) >= 0:
        record = decode(data[position:newline])
        if record is None:
            bad_at = position if bad_at is None else bad_at
        elif bad_at is not None:
            raise JournalDamagedError(f"{path}: bad record at byte {bad_at}, good ones after it")
        else:
            records.append(record)
            good_bytes = newline + 1
        position = newline + 1
    return records, good_bytes


class Journal:
    """The open journal. ``snapshot`` gives the records that replace the whole file when it is compacted."""

    def __init__(self, path: Path, snapshot: Callable[[], Iterable[Record]]) -> None:
        self._path = path
        self._snapshot = snapshot
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._descriptor = -1
        self._buffer: list[bytes] = []
        self._appended = 0
        self._durable = 0
        self._records_in_file = 0
        self._records_after_compaction = 0
        self._flushing: asyncio.Task[None] | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._failure: OSError | None = None
        self.sync_count = 0

    def open(self, replay: Callable[[Record], None]) -> None:
        """Replay every record of the file, then rewrite it compacted. Blocking: called before the loop serves anything.

        :raises JournalDamagedError: see ``read``.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        records, _ = read(self._path)
        for record in records:
            replay(record)
        self._rewrite([encode(record) for record in self._snapshot()])

    def append(self, record: Record) -> int:
        """Add a record; returns its number for ``durable``. It is written in the background."""
        self._buffer.append(encode(record))
        self._appended += 1
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush())
        return self._appended

    async def durable(self, number: int | None = None) -> None:
        """Wait until record ``number`` (default: all appended so far) is on the disk.

        :raises JournalUnwritableError: when the disk refused.
        """
        wanted = self._appended if number is None else number
        if self._failure is not None:
            raise JournalUnwritableError(str(self._failure))
        if wanted <= self._durable:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((wanted, future))
        await future

    async def close(self) -> None:
        """Write what is left and release the file."""
        if self._flushing is not None:
            await self._flushing
        self._thread.shutdown()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._buffer and self._failure is None:
                await asyncio.sleep(0)  # others of this turn of the loop share the commit
                lines, self._buffer = self._buffer, []
                number = self._appended
                try:
                    if self._should_compact(len(lines)):
                        await loop.run_in_executor(self._thread, self._rewrite, [encode(r) for r in self._snapshot()])
                    else:
                        await loop.run_in_executor(self._thread, self._write, lines)
                except OSError as error:
                    self._failure = error
                else:
                    self._durable = number
                self._wake()
        finally:
            self._flushing = None

    def _should_compact(self, new_records: int) -> bool:
        size = self._records_in_file + new_records
        return size > COMPACT_MIN_RECORDS and size > COMPACT_RATIO * self._records_after_compaction

    def _wake(self) -> None:
        waiting: list[tuple[int, asyncio.Future[None]]] = []
        for number, future in self._waiters:
            if future.done():
                continue
            if self._failure is not None:
                future.set_exception(JournalUnwritableError(str(self._failure)))
            elif number <= self._durable:
                future.set_result(None)
            else:
                waiting.append((number, future))
        self._waiters = waiting

    def _write(self, lines: list[bytes]) -> None:
        view = memoryview(b"".join(lines))
        while view:
            view = view[os.write(self._descriptor, view) :]
        os.fdatasync(self._descriptor)
        self._records_in_file += len(lines)
        self.sync_count += 1

    def _rewrite(self, lines: list[bytes]) -> None:
        temporary = self._path.with_suffix(".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        view = memoryview(b"".join(lines))
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
        temporary.rename(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor
        self._records_in_file = self._records_after_compaction = len(lines)
        self.sync_count += 1
