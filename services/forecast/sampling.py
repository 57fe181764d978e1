"""Closes the windows of demand and forecasts from them.

1. When a window and the time for late events have passed, its time-weighted means are made by one statement. The row of
   the sampling is locked meanwhile, so that of several instances one closes each window.
2. The history is kept in memory and read again when another instance has closed windows in between.
3. What the jobs let expect is read anew after each window (`expectation`); with the history it makes the forecasts of all
   series (`rolling`), in a thread. What changed, or has not been said for some windows, is published.
4. Jobs are forecast by their structure alone, the largest ones; likewise horizons too long for the history, and domains that
   have just joined, which do not wait for a window to close.
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
from sqlalchemy.ext.asyncio import AsyncConnection

from meridian.contracts.forecast.v1 import forecast_pb2 as pb
from meridian.database import is_passing
from meridian.outbox import Transaction
from meridian.service import Kernel
from services.forecast import ledger
from services.forecast.backtest import standard_methods
from services.forecast.expectation import Expectation, Expected
from services.forecast.history import History, Window
from services.forecast.ledger import Amount, Subject, SubjectKind
from services.forecast.methods import Method
from services.forecast.metrics import ForecastMetrics
from services.forecast.predictions import predicted
from services.forecast.rolling import Current, Rolling, Structural
from services.forecast.settings import ForecastSettings
from services.forecast.store import Store
from services.forecast.work_store import KEEP, AskingJob, WorkStore

log = logging.getLogger(__name__)

_KINDS = {
    SubjectKind.DOMAIN: pb.FORECAST_SUBJECT_KIND_DOMAIN,
    SubjectKind.TENANT: pb.FORECAST_SUBJECT_KIND_TENANT,
    SubjectKind.CHIP: pb.FORECAST_SUBJECT_KIND_CHIP,
    SubjectKind.JOB: pb.FORECAST_SUBJECT_KIND_JOB,
}
STRUCTURE = "structure"
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
    # How much of it is what the jobs let expect; the rest is what the history says.
    structure_share: float = 0.0


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)


def points_of(current: Current, methods: Sequence[Method], horizons_s: Sequence[float], row: int) -> list[Point]:
    """The points of one series."""
    found = []
    for place, horizon_s in enumerate(horizons_s):
        share = float(current.share[place, row])
        name = methods[current.method[place, row]].name
        found.append(
            Point(
                horizon_s=horizon_s,
                method=STRUCTURE if share == 1 else f"{name}+{STRUCTURE}" if share else name,
                expected=round(float(current.expected[place, row]), 6),
                low=_or_none(float(current.low[place, row])),
                high=_or_none(float(current.high[place, row])),
                skill=_or_none(float(current.skill[place, row])),
                wape=_or_none(float(current.wape[place, row])),
                past_errors=int(current.errors[place, row]),
                structure_share=share,
            )
        )
    return found


def structural_points(expected: Expected, horizons_s: Sequence[float], places: Sequence[int], row: int) -> list[Point]:
    """The points of one subject that the structure alone makes, at some of its horizons."""
    return [
        Point(
            horizon_s=horizons_s[place],
            method=STRUCTURE,
            expected=round(float(expected.middle[place, row]), 6),
            low=round(float(expected.low[place, row]), 6),
            high=round(float(expected.high[place, row]), 6),
            skill=None,
            wape=None,
            past_errors=0,
            structure_share=1.0,
        )
        for place in places
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
        self._horizons_s = [horizon * settings.window_s for horizon in self._horizons]
        # Those of the structure: the history's, then those of its own.
        self._all_horizons_s = [*self._horizons_s, *settings.structure_horizons_s]
        self._expectation = Expectation(predicted)
        self._learned_until = (0, 0)
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
                await self._welcome(transaction, now)
                return False
            await store.close_window(start, end)
            seen_until = self._seen_until
            self._seen_until = None
            newest = end + window > due
            expected = await self._extend_history(transaction.connection, seen_until, start, end, newest=newest)
            if expected is not None and self._history.subjects:
                await self._forecast(transaction, end, *expected)
        # Known to be committed.
        self._seen_until = end
        self._metrics.windows.inc()
        return True

    async def _welcome(self, transaction: Transaction, now: datetime) -> None:
        """Forecast domains that have joined and have no forecast yet, by the structure alone."""
        work = WorkStore(transaction.connection)
        joined = [Subject(SubjectKind.DOMAIN, domain_id) for domain_id in await work.joined_domains()]
        if not joined:
            return
        await work.begin_levels(joined)
        asking = await work.load_asking()
        expected = await self._expect(transaction.connection, asking, joined, now)
        store = Store(transaction.connection)
        levels = await store.load_levels()
        bodies: dict[Subject, dict[str, Any]] = {}
        for row, subject in enumerate(joined):
            points = structural_points(expected, self._all_horizons_s, range(len(self._all_horizons_s)), row)
            body = self._body(levels.get(subject, Amount()), points)
            bodies[subject] = {**body, "history_windows": 0}
            transaction.publish(_message(subject, now, body, points, 0))
        await store.keep_forecasts(bodies, now, joined)
        transaction.on_commit(lambda: self._metrics.published.inc(len(joined)))

    def _body(self, level: Amount, points: Sequence[Point]) -> dict[str, Any]:
        return {
            "current": level.accelerators,
            "current_cpus": level.cpus,
            "window_s": self._settings.window_s,
            "points": [asdict(point) for point in points],
        }

    async def _expect(
        self, connection: AsyncConnection, asking: Sequence[AskingJob], subjects: Sequence[Subject], at: datetime
    ) -> Expected:
        """What the jobs let expect of ``subjects`` after ``at``."""
        work = WorkStore(connection)
        learned = await work.load_since(self._learned_until)
        self._learned_until = learned.until
        capacity = {
            domain_id: amount.accelerators
            for domain_id, amount in (await Store(connection).capacity_of_domains()).items()
        }
        self._expectation.forget(item.job.job_id for item in asking)
        at_s = at.timestamp()

        def compute() -> Expected:
            self._expectation.learn(learned, at_s)
            return self._expectation.expect(
                asking, subjects, capacity, self._all_horizons_s, self._settings.window_s, at_s
            )

        return await asyncio.to_thread(compute)

    async def _extend_history(
        self, connection: AsyncConnection, seen_until: datetime | None, start: datetime, end: datetime, *, newest: bool
    ) -> tuple[list[AskingJob], Expected, list[Subject]] | None:
        """Take the window that ends at ``end`` into the history.

        Of the ``newest`` one also what the jobs let expect, which is returned with the jobs among its subjects.
        """
        store, work = Store(connection), WorkStore(connection)
        oldest = end - timedelta(seconds=self._settings.window_s * self._settings.history_windows)
        gone = await store.forget_windows(oldest)
        await store.forget_jobs(end - _KEEP_JOBS)
        await work.forget(end - KEEP)
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
        if seen_until != start:
            await asyncio.to_thread(self._history.replay, columns[:-1])
            columns = columns[-1:]
        self._history.drop(gone)
        if not columns:
            return None
        if not newest:
            await asyncio.to_thread(self._history.append, columns[-1])
            return None
        asking = await work.load_asking()
        series = self._history.subjects_after(columns[-1])
        largest = _largest(asking, self._settings.forecast_jobs)
        expected = await self._expect(connection, asking, [*series, *largest], end)
        count, places = len(series), len(self._horizons)
        levels = await store.load_levels()
        level = np.array([levels.get(subject, Amount()).accelerators for subject in series])
        structure = Structural(expected.middle[:places, :count], expected.spread[:places, :count], level)
        await asyncio.to_thread(self._history.append, columns[-1], structure)
        return asking, expected, largest

    async def _forecast(
        self,
        transaction: Transaction,
        end: datetime,
        asking: Sequence[AskingJob],
        expected: Expected,
        largest: Sequence[Subject],
    ) -> None:
        started = time.monotonic()
        current = self._history.rolling.current()
        self._metrics.seconds.observe(time.monotonic() - started)
        store = Store(transaction.connection)
        levels = await store.load_levels()
        earlier = await store.load_forecasts()
        repeat = timedelta(seconds=self._settings.window_s * self._settings.repeat_windows)
        bodies: dict[Subject, dict[str, Any]] = {}
        published: list[Subject] = []
        held = {item.job.job_id: _asked(item) for item in asking}
        tenants = {item.job.job_id: item.job.tenant_id for item in asking}
        beyond = range(len(self._horizons), len(self._all_horizons_s))
        series = self._history.subjects
        for row, subject in enumerate([*series, *largest]):
            if row < len(series):
                points = points_of(current, self._methods, self._horizons_s, row)
                points += structural_points(expected, self._all_horizons_s, beyond, row)
                level, windows = levels.get(subject, Amount()), self._history.windows_of(row)
            else:
                points = structural_points(expected, self._all_horizons_s, range(len(self._all_horizons_s)), row)
                level, windows = held[subject.id], 0
            body = self._body(level, points)
            last = earlier.get(subject)
            if last is None or end - last.published_at >= repeat or _differ(last.body, body):
                tenant_id = tenants[subject.id] if subject.kind is SubjectKind.JOB else ""
                transaction.publish(_message(subject, end, body, points, windows, tenant_id))
                published.append(subject)
            bodies[subject] = {**body, "history_windows": windows}
        await store.keep_forecasts(bodies, end, published)
        await WorkStore(transaction.connection).forget_jobs_but(largest)
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


def _asked(item: AskingJob) -> Amount:
    return ledger.demand(item.job).get(Subject(SubjectKind.TENANT, item.job.tenant_id), Amount())


def _largest(asking: Sequence[AskingJob], count: int) -> list[Subject]:
    """The jobs that hold or ask for most accelerators now."""
    amounts = {item.job.job_id: _asked(item).accelerators for item in asking}
    order = sorted(
        (job_id for job_id, amount in amounts.items() if amount > 0), key=lambda each: (-amounts[each], each)
    )
    return [Subject(SubjectKind.JOB, job_id) for job_id in order[:count]]


def _differ(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a reader would act on the difference: the level, the expectation, the band or the method changed."""
    if before.get("current") != after["current"] or before.get("window_s") != after["window_s"]:
        return True
    names = ("horizon_s", "method", "expected", "low", "high")
    earlier = [[point.get(name) for name in names] for point in before.get("points", [])]
    return earlier != [[point[name] for name in names] for point in after["points"]]


def _message(
    subject: Subject,
    made_at: datetime,
    body: Mapping[str, Any],
    points: Sequence[Point],
    windows: int,
    tenant_id: str = "",
) -> pb.DemandForecast:
    message = pb.DemandForecast(
        subject_kind=_KINDS[subject.kind],
        subject_id=subject.id,
        method="+".join(dict.fromkeys(point.method for point in points)),
        current=body["current"],
        history_windows=windows,
        window_s=body["window_s"],
        tenant_id=tenant_id,
        points=[
            pb.ForecastPoint(
                horizon_s=point.horizon_s,
                expected=point.expected,
                low=math.nan if point.low is None else point.low,
                high=math.nan if point.high is None else point.high,
                has_band=point.low is not None,
                skill=point.skill,
                structure_share=point.structure_share,
            )
            for point in points
        ],
    )
    message.made_at.FromDatetime(made_at)
    return message
