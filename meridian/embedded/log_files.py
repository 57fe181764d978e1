"""The log of a process: of bounded size, though whoever writes it opens it once and for all.

Processes write at its end (``O_APPEND``), so its beginning can be taken away beneath them. Where the file system does that in one step
(ext4 and XFS: ``FALLOC_FL_COLLAPSE_RANGE`` of fallocate(2)) no line is lost; elsewhere the file is copied and emptied, and what is
written between the end of the copy and that moment is.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

LIMIT_BYTES = 20 * 1024 * 1024
_COLLAPSE_RANGE = 0x08
_CHUNK_BYTES = 1 << 20


def size_bytes(path: Path) -> int:
    """Size of a file; 0 when it is not there."""
    return path.stat().st_size if path.exists() else 0


def open_log(path: Path) -> FileIO:
    """The log, to be written at its end."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return FileIO(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")


def shorten(path: Path, limit_bytes: int) -> int:
    """Move the beginning of a log that is longer than ``limit_bytes`` to ``<name>.1``, which is replaced, and keep its newest quarter.
    How many bytes went; 0: it is short enough. Blocking.

    :raises OSError: it cannot be read or copied; it is as long as before.
    """
    if size_bytes(path) <= limit_bytes:
        return 0
    former = path.with_suffix(f"{path.suffix}.1")
    fresh = path.with_suffix(f"{path.suffix}.1.new")
    try:
        with path.open("r+b", buffering=0) as log:
            block_bytes = os.fstatvfs(log.fileno()).f_frsize
            gone_bytes = (os.fstat(log.fileno()).st_size - limit_bytes // 4) // block_bytes * block_bytes
            with FileIO(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as copy:
                _copy(log, copy, gone_bytes)
                if not _collapse(log.fileno(), gone_bytes):
                    _copy(log, copy, sys.maxsize)
                    gone_bytes = log.tell()
                    log.truncate(0)
        fresh.replace(former)
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
    return gone_bytes


def _copy(log: BinaryIO | FileIO, copy: FileIO, most_bytes: int) -> None:
    while most_bytes and (chunk := log.read(min(_CHUNK_BYTES, most_bytes))):
        most_bytes -= len(chunk)
        view = memoryview(chunk)
        while view:
            view = view[copy.write(view) :]


def _collapse(descriptor: int, length_bytes: int) -> bool:
    """Take the first bytes of a file away, whoever writes at its end; False: the file system cannot."""
    fallocate = getattr(ctypes.CDLL(None), "fallocate64", None)
    if fallocate is None:
        return False
    return bool(fallocate(descriptor, _COLLAPSE_RANGE, ctypes.c_int64(0), ctypes.c_int64(length_bytes)) == 0)
