"""Keeps the solver's own words out of standard output, where a program's answer goes.

HiGHS (1.12) prints a line to the descriptor, whatever its options say, when it must repair an integer solution of the presolved
program; this is seen with programs of tens of variables and badly scaled rows.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_STDOUT = 1


class _Silence:
    """Standard output leads nowhere while any thread is inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: int | None = None
        self._c = ctypes.CDLL(None)

    def enter(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside > 1:
                return
            try:
                self._before = os.dup(_STDOUT)
            except OSError:  # there is no standard output
                return
            self._flush()
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, _STDOUT)
            os.close(nowhere)

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside or self._before is None:
                return
            self._flush()
            os.dup2(self._before, _STDOUT)
            os.close(self._before)
            self._before = None

    def _flush(self) -> None:
        # What C code prints waits in a buffer of the process.
        self._c.fflush(None)


_silence = _Silence()


@contextmanager
def no_solver_output() -> Iterator[None]:
    """Nothing that is written to the descriptor of standard output inside is seen. Several threads may be inside."""
    _silence.enter()
    try:
        yield
    finally:
        _silence.leave()
