"""The collector of cycles, held off while a question is answered.

A question makes tens of thousands of small objects and gives nearly all of them back as soon as nothing refers to them. The
collector looks through them in between, and now and then through all that the process holds, in vain.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Holders:
    """How many are inside, of all threads: the last one to leave turns the collector on again, if it was on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count, self._was_on = 0, False

    def enter(self) -> None:
        with self._lock:
            if not self._count:
                self._was_on = gc.isenabled()
                gc.disable()
            self._count += 1

    def leave(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count and self._was_on:
                gc.enable()


_holders = _Holders()


@contextmanager
def held_off() -> Iterator[None]:
    """No collection in this process while anybody is inside."""
    _holders.enter()
    try:
        yield
    finally:
        _holders.leave()
