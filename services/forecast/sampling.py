"""Closes the windows of demand and forecasts from them.

1. When a window and the time for late events have passed, its time-weighted means are made by one statement. The row of
   the sampling is locked meanwhile, so that of several instances one closes each window.
2. The history is kept in memory and read again when another instance has closed windows in between.
3. All series are forecast at once in a thread. What changed, or has not been said for some windows, is published.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from meridian.contracts.forecast.v1 import forecast_pb2 as pb
from meridian.database import is_passing
from meridian.outbox import Transaction
from meridian.service import Kernel
from services.forecast.backtest import standard_methods
from services.forecast.history import History, Window
from services.forecast.ledger import Amount, Subject, SubjectKind
from services.forecast.methods import Method
from services.forecast.metrics import ForecastMetrics
from services.forecast.rolling import Current, Rolling
from services.forecast.settings import ForecastSettings
from services.forecast.store import Store

log = logging.getLogger(__name__)

_KINDS = {
    SubjectKind.DOMAIN: pb.FORECAST_SUBJECT_KIND_DOMAIN,
    SubjectKind.TENANT: pb.FORECAST_SUBJECT_KIND_TENANT,
}
_KEEP_JOBS = timedelta(days=2)


@dataclass(frozen=True, slots=True)
class Point:
    """A forecast at one horizon. ``low`` and ``high`` are None without a band, ``skill`` where nothing can be compared."""

    horizon_s: float
    method: str
    expected: float
    low: float | None
    high: float | None
    skill: float | None
    wape: float | None
    past_errors: int


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)


def points_of(current: Current, methods: Sequence[Method], horizons_s: Sequence[float], row: int) -> list[Point]:
    """The points of one series."""
    return [
        Point(
            horizon_s=horizon_s,
            method=methods[current.method[place, row]].name,
            expected=round(float(current.expected[place, row]), 6),
            low=_or_none(float(current.low[place, row])),
            high=_or_none(float(current.high[place, row])),
            skill=_or_none(float(current.skill[place, row])),
            wape=_or_none(float(current.wape[place, row])),
            past_errors=int(current.errors[place, row]),
        )
        for place, horizon_s in enumerate(horizons_s)
    ]


def window_start(at: datetime, window_s: float) -> datetime:
    """The start of the window that ``at`` lies in; windows are counted from the epoch."""
    return datetime.fromtimestamp(math.floor(at.timestamp() / window_s) * window_s, UTC)


class Sampling:
    """The loop over windows."""

    def __init__(self, kernel: Kernel, settings: ForecastSettings, metrics: ForecastMetrics) -> None:
        self._kernel = kernel
        self._settings = settings
        self._metrics = metrics
        self._horizons = [max(1, round(horizon_s / settings.window_s)) for horizon_s in settings.horizons_s]
        self._methods = standard_methods(settings.window_s, settings.seasons_s, settings.history_windows)
        self._history = History(self._begin, settings.history_windows)
        # Until when the history in memory reaches.
        self._seen_until: datetime | None = None

    def _begin(self) -> Rolling:
        return Rolling(self._methods, self._horizons)

    async def run(self) -> None:
        """Close windows as they pass, until cancelled; passing errors are waited out."""
        while True:
            try:
                closed = await self.close_next()
            except Exception as error:  # only what passes is waited out
                if not is_passing(error):
                    raise
                log.warning("sampling was interrupted", extra={"error": repr(error)})
                await asyncio.sleep(1.0)
                continue
            if not closed:
                await asyncio.sleep(min(1.0, self._settings.window_s / 4))

    async def close_next(self) -> bool:
        """Close the next window if it is due, and forecast when no other is; False when none was."""
        window = timedelta(seconds=self._settings.window_s)
        now = self._kernel.clock.now()
        due = now - timedelta(seconds=self._settings.lateness_s)
        async with self._kernel.outbox.transaction() as transaction:
            store = Store(transaction.connection)
            start = await store.begin_sampling(self._settings.window_s, window_start(now, self._settings.window_s))
            end = start + window
            if end > due:
                return False
            await store.close_window(start, end)
            seen_until = self._seen_until
            self._seen_until = None
            await self._extend_history(store, seen_until, start, end)
            if end + window > due and self._history.subjects:
                await self._forecast(transaction, end)
        # Known to be committed.
        self._seen_until = end
        self._metrics.windows.inc()
        return True

    async def _extend_history(self, store: Store, seen_until: datetime | None, start: datetime, end: datetime) -> None:
        oldest = end - timedelta(seconds=self._settings.window_s * self._settings.history_windows)
        gone = await store.forget_windows(oldest)
        await store.forget_jobs(end - _KEEP_JOBS)
        rows = await store.load_windows(start if seen_until == start else oldest)
        by_window: dict[datetime, dict[Subject, float]] = {}
        for row in rows:
            subject = Subject(SubjectKind(row.subject_kind), row.subject_id)
            by_window.setdefault(row.window_start, {})[subject] = row.accelerators
        window = timedelta(seconds=self._settings.window_s)
        at = min(by_window, default=end)
        columns: list[Window] = []
        while at < end:
            columns.append(by_window.get(at, {}))
            at += window
        # Numbers of many series: not on the loop that answers requests.
        if seen_until == start:
            for column in columns:
                await asyncio.to_thread(self._history.append, column)
        else:
            await asyncio.to_thread(self._history.replay, columns)
        self._history.drop(gone)

    async def _forecast(self, transaction: Transaction, end: datetime) -> None:
        started = time.monotonic()
        current = self._history.rolling.current()
        horizons_s = [horizon * self._settings.window_s for horizon in self._horizons]
        self._metrics.seconds.observe(time.monotonic() - started)
        store = Store(transaction.connection)
        levels = await store.load_levels()
        earlier = await store.load_forecasts()
        repeat = timedelta(seconds=self._settings.window_s * self._settings.repeat_windows)
        bodies: dict[Subject, dict[str, Any]] = {}
        published: list[Subject] = []
        for row, subject in enumerate(self._history.subjects):
            points = points_of(current, self._methods, horizons_s, row)
            windows = self._history.windows_of(row)
            body = {
                "current": levels.get(subject, Amount()).accelerators,
                "current_cpus": levels.get(subject, Amount()).cpus,
                "window_s": self._settings.window_s,
                "points": [asdict(point) for point in points],
            }
            last = earlier.get(subject)
            if last is None or end - last.published_at >= repeat or _differ(last.body, body):
                transaction.publish(_message(subject, end, body, points, windows))
                published.append(subject)
            bodies[subject] = {**body, "history_windows": windows}
        await store.keep_forecasts(bodies, end, published)
        transaction.on_commit(lambda: self._count(current, len(published)))

    def _count(self, current: Current, published: int) -> None:
        self._metrics.published.inc(published)
        self._metrics.series.set(len(self._history.subjects))
        self._metrics.serving.clear()
        for place, count in enumerate(self._horizons):
            horizon = f"{count * self._settings.window_s:g}"
            for method, times in zip(*np.unique(current.method[place], return_counts=True), strict=True):
                self._metrics.serving.labels(horizon, self._methods[method].name).set(int(times))
            known = current.skill[place][~np.isnan(current.skill[place])]
            self._metrics.skill.labels(horizon).set(float(np.median(known)) if known.size else 0.0)


def _differ(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a reader would act on the difference: the level, the expectation, the band or the method changed."""
    if before.get("current") != after["current"] or before.get("window_s") != after["window_s"]:
        return True
    names = ("horizon_s", "method", "expected", "low", "high")
    earlier = [[point.get(name) for name in names] for point in before.get("points", [])]
    return earlier != [[point[name] for name in names] for point in after["points"]]


def _message(
    subject: Subject, made_at: datetime, body: Mapping[str, Any], points: Sequence[Point], windows: int
) -> pb.DemandForecast:
    message = pb.DemandForecast(
        subject_kind=_KINDS[subject.kind],
        subject_id=subject.id,
        method="+".join(dict.fromkeys(point.method for point in points)),
        current=body["current"],
        history_windows=windows,
        window_s=body["window_s"],
        points=[
            pb.ForecastPoint(
                horizon_s=point.horizon_s,
                expected=point.expected,
                low=math.nan if point.low is None else point.low,
                high=math.nan if point.high is None else point.high,
                has_band=point.low is not None,
                skill=point.skill,
            )
            for point in points
        ],
    )
    message.made_at.FromDatetime(made_at)
    return message
