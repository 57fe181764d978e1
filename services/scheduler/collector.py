"""The collector of cycles: held off while a question is answered, and kept from what it has looked through once.

A question makes tens of thousands of small objects and gives nearly all of them back as soon as nothing refers to them. The
collector looks through them in between, and now and then through all that the process holds, in vain. Of what is kept, nodes, jobs
and runs, next to nothing refers back to itself: at 100,000 nodes a look through all of it took half a second and more.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Mapping
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
_THOROUGH = 50
_ALLOCATIONS = 50_000


class _Survivors:
    """What a collection of all generations leaves is not looked through by the next ones, but by each ``_THOROUGH``-th: what refers
    to itself and was given up meanwhile waits for that one. All else goes as ever when nothing refers to it."""

    def __init__(self) -> None:
        self._collections = 0

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "stop":
            self._collections += 1
            gc.freeze()
        elif self._collections % _THOROUGH == _THOROUGH - 1:
            gc.unfreeze()


_survivors = _Survivors()


def leave_survivors() -> None:
    """From now on the collector of this process leaves alone what it has looked through once (see `_Survivors`), and looks less
    often: a cycle and an answer keep tens of thousands of objects, after which the default of 700 has it look at all of them."""
    gc.set_threshold(_ALLOCATIONS, *gc.get_threshold()[1:])
    if _survivors not in gc.callbacks:
        gc.callbacks.append(_survivors)


@contextmanager
def held_off() -> Iterator[None]:
    """No collection in this process while anybody is inside."""
    _holders.enter()
    try:
        yield
    finally:
        _holders.leave()
