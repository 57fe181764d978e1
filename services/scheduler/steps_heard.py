"""Reports of steps on their way to the book: heard from the bus without a database, measured, told when it is time.

There are many (up to ten per second and run), and any may be lost, so they are no part of the inbox. What a decision rests on is
what was told: that is written in the transaction of a cycle and stands in the journal before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from meridian.codec import Envelope
from meridian.contracts.run.v1 import run_pb2
from services.scheduler.core.book import Book
from services.scheduler.core.measured import Load, News
from services.scheduler.core.metering import Metering, Report
from services.scheduler.core.renewal import cell_of
from services.scheduler.core.state import RunState, UnitKey
from services.scheduler.wire import seconds

TELL_EVERY_S = 5.0


def pause_s(book: Book) -> float:
    """How often it is told."""
    return min(TELL_EVERY_S, book.cluster.policy.interval_s or TELL_EVERY_S)


class StepsHeard:
    """What a live scheduler hears of steps beside deciding."""

    def __init__(self) -> None:
        self._metering = Metering()
        self._told_at_s = 0.0
        self._loads: dict[UnitKey, list[float]] = {}

    def begin(self) -> None:
        """The book was built anew."""
        self._metering.begin()
        self._told_at_s = 0.0

    def hear(self, book: Book, envelopes: Sequence[Envelope], now_s: float) -> None:
        """Take reports in; those of runs that are not active say nothing."""
        for envelope in envelopes:
            message = envelope.data
            if not isinstance(message, run_pb2.RunProgress):
                continue
            run = book.runs.get(message.run_id)
            running = book.cluster.running.get(run.key) if run is not None else None
            if run is None or running is None or run.state is not RunState.ACTIVE:
                continue
            at_s = seconds(message.at, now_s)
            report = Report(run.run_id, message.domain_id, message.step, message.total_steps, at_s, now_s)
            self._metering.report(run.key, cell_of(book.cluster, running), report)
            scaling = book.jobs[run.key.job_id].spec.scaling
            if scaling is not None and scaling.metric in message.metrics:
                value = message.metrics[scaling.metric]
                if 0 <= value < math.inf:
                    self._loads.setdefault(run.key, []).append(value)

    def due(self, book: Book, now_s: float, *, deciding: bool) -> bool:
        """Whether there may be something to tell, and it is time: every `TELL_EVERY_S`, or at the policy's interval if that is
        shorter. Loads are told by themselves, all else when a cycle is wanted anyway (``deciding``)."""
        return (deciding or bool(self._loads or book.squeezed)) and now_s >= self._told_at_s + 0.5 * pause_s(book)

    def news(self, book: Book, now_s: float) -> News:
        """What is to be told to the book now. The load of a replica is the mean of what it reported since the last time."""
        self._told_at_s = now_s
        loads = [(key, Load(sum(values) / len(values), now_s)) for key, values in self._loads.items()]
        self._loads.clear()
        return replace(self._metering.news(book.runs), loads=tuple(loads))
