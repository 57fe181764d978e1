"""Scrapes many exporters so that none harms another: each has its own task, thread, deadline and interval.

A report takes the newest readings of each. An exporter whose scrape has not come back (a name server that hangs is beyond a
socket's deadline) keeps its own thread busy and nothing else; its readings become unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from agent.collectors.base import Reading
from meridian.clock import Clock

_log = logging.getLogger(__name__)

# A scrape that takes longer than its deadline by this much hangs.
GRACE_S = 2.0
MAX_THREADS = 512


class Scraper(Protocol):
    """What is scraped: a collector that can say what is unknown while it is not heard."""

    def collect(self, now: datetime) -> list[Reading]:
        """Readings as of ``now``; may block up to its deadline."""

    def unavailable(self, reason: str, now: datetime) -> list[Reading]:
        """All it would read, as unknown."""


@dataclass(slots=True)
class _Target:
    scraper: Scraper
    interval_s: float
    deadline_s: float
    readings: list[Reading] = field(default_factory=list)
    taken_s: float | None = None
    hangs: bool = False


class Scrapes:
    """The scrapers of an agent with their newest readings."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._targets: list[_Target] = []
        self._threads: ThreadPoolExecutor | None = None

    def add(self, scraper: Scraper, interval_s: float, deadline_s: float) -> None:
        """Scrape this one too, from the next ``run`` on."""
        self._targets.append(_Target(scraper, interval_s, deadline_s))

    @property
    def hanging_count(self) -> int:
        """Scrapers whose last scrape has not come back in time."""
        return sum(1 for target in self._targets if target.hangs)

    async def run(self) -> None:
        """Scrape until cancelled."""
        count = min(max(len(self._targets), 1), MAX_THREADS)
        # Not closed with waiting: a thread that hangs must not keep the agent from ending.
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="scrape")
        try:
            async with asyncio.TaskGroup() as group:
                for place, target in enumerate(self._targets):
                    # Spread over the interval, so that not all answer at once.
                    group.create_task(self._follow(target, target.interval_s * place / max(len(self._targets), 1)))
                await asyncio.Event().wait()
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def newest(self, now: datetime) -> list[Reading]:
        """The newest readings of all; those of a scraper that was not heard for long are unknown."""
        now_s = self._clock.monotonic_s()
        found: list[Reading] = []
        for target in self._targets:
            if target.taken_s is None:
                continue
            silent_s = now_s - target.taken_s
            if silent_s > 2 * target.interval_s + target.deadline_s + GRACE_S:
                found += target.scraper.unavailable(f"not scraped for {silent_s:.0f} s", now)
            else:
                found += target.readings
        return found

    async def _follow(self, target: _Target, delay_s: float) -> None:
        await asyncio.sleep(min(delay_s, 1.0) if target.taken_s is None else delay_s)
        while True:
            began_s = self._clock.monotonic_s()
            await self._scrape(target)
            took_s = self._clock.monotonic_s() - began_s
            await asyncio.sleep(max(target.interval_s - took_s, 0.05))

    async def _scrape(self, target: _Target) -> None:
        loop = asyncio.get_running_loop()
        now = self._clock.now()
        work = loop.run_in_executor(self._threads, _call, target.scraper.collect, now)
        done, _ = await asyncio.wait({work}, timeout=target.deadline_s + GRACE_S)
        if not done:
            target.hangs = True
            reason = f"no answer within {target.deadline_s:g} s"
            self._keep(target, target.scraper.unavailable(reason, now))
            # The thread is still in there: another call would find it working.
            await asyncio.wait({work})
        target.hangs = False
        try:
            readings = work.result()
        except Exception as error:  # noqa: BLE001 - the boundary between exporters: a fault that one brings out is its own
            _log.exception("a scrape failed")
            readings = target.scraper.unavailable(f"its answer cannot be taken: {type(error).__name__}", now)
        self._keep(target, readings)

    def _keep(self, target: _Target, readings: Sequence[Reading]) -> None:
        target.readings = list(readings)
        target.taken_s = self._clock.monotonic_s()


def _call(collect: Callable[[datetime], list[Reading]], now: datetime) -> list[Reading]:
    return collect(now)
