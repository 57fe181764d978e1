"""Events on their way from an engine to whoever publishes them: lasting ones in order, progress thinned out.

Progress of a run is passed on at most once per ``PROGRESS_INTERVAL_S``; while nobody takes it, a newer one replaces it.
"""

from __future__ import annotations

import asyncio
from collections import deque

from agent.engines.base import Delivery, Progress, RunEvent, RunFailed, RunFinished

PROGRESS_INTERVAL_S = 0.1

RunKey = tuple[str, int]


class _Slot:
    __slots__ = ("delivery", "record_number")

    def __init__(self, delivery: Delivery, record_number: int | None) -> None:
        self.delivery = delivery
        self.record_number = record_number


class EventStream:
    """A queue for one reader."""

    def __init__(self) -> None:
        self._slots: deque[_Slot] = deque()
        self._filled = asyncio.Event()
        self._waiting_progress: dict[RunKey, _Slot] = {}
        self._held: dict[RunKey, Progress] = {}
        self._timers: dict[RunKey, asyncio.TimerHandle] = {}
        self._progress_at: dict[RunKey, float] = {}
        self._failure: BaseException | None = None

    def put(self, delivery: Delivery, record_number: int | None) -> None:
        """Add an event; ``record_number`` is the journal record that must be durable before it is passed on."""
        key = (delivery.event.run_id, delivery.event.epoch)
        if isinstance(delivery.event, RunFinished | RunFailed):
            self._flush_progress(key)
        self._add(_Slot(delivery, record_number))

    def put_progress(self, event: Progress) -> None:
        """Add the newest progress of a run."""
        key = (event.run_id, event.epoch)
        waiting = self._waiting_progress.get(key)
        if waiting is not None:
            waiting.delivery = Delivery(None, event)
            return
        loop = asyncio.get_running_loop()
        due_at = self._progress_at.get(key, float("-inf")) + PROGRESS_INTERVAL_S
        if loop.time() >= due_at:
            self._add_progress(key, event)
            return
        self._held[key] = event
        if key not in self._timers:
            self._timers[key] = loop.call_at(due_at, self._release, key)

    async def take(self) -> tuple[Delivery, int | None]:
        """The next event and the journal record it depends on; after the last one before `fail`, its error."""
        while not self._slots:
            if self._failure is not None:
                raise self._failure
            self._filled.clear()
            await self._filled.wait()
        slot = self._slots.popleft()
        event: RunEvent = slot.delivery.event
        if isinstance(event, Progress):
            del self._waiting_progress[event.run_id, event.epoch]
        return slot.delivery, slot.record_number

    def fail(self, error: BaseException) -> None:
        """Nothing may follow what was put so far: the reader gets the first error there was."""
        self._failure = self._failure or error
        self._filled.set()

    def _add(self, slot: _Slot) -> None:
        self._slots.append(slot)
        self._filled.set()

    def _add_progress(self, key: RunKey, event: Progress) -> None:
        slot = _Slot(Delivery(None, event), None)
        self._waiting_progress[key] = slot
        self._progress_at[key] = asyncio.get_running_loop().time()
        self._add(slot)

    def _release(self, key: RunKey) -> None:
        del self._timers[key]
        event = self._held.pop(key, None)
        if event is not None:
            self.put_progress(event)

    def _flush_progress(self, key: RunKey) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        event = self._held.pop(key, None)
        if event is not None and key not in self._waiting_progress:
            self._add_progress(key, event)
        self._progress_at.pop(key, None)
