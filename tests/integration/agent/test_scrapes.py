"""Exporters that hang, drip, flood or lie harm no other: each is scraped by itself, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from agent.collectors.base import Reading
from agent.collectors.device import Device
from agent.collectors.exposition import ExpositionLimits
from agent.collectors.metrics import Metric
from agent.collectors.prometheus import PrometheusCollector
from agent.collectors.table_file import load_table
from agent.collectors.unknown import UnknownKind
from agent.scrapes import Scrapes
from meridian.clock import SystemClock
from tests.integration.agent.test_prometheus_collector import _drip, _exporter, _flood, _page

GOOD = b'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1"} 50\n'
LIES = b'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1"} 5000\nDCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-1"} -9\n'
MANY = b"".join(b'DCGM_FI_DEV_GPU_UTIL{gpu="%d",UUID="G"} 1\n' % number for number in range(600))
WIDE = b"DCGM_FI_DEV_GPU_UTIL{" + b",".join(b'l%d="x"' % number for number in range(40)) + b"} 1\n"
LONG = b'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="' + b"x" * 5000 + b'"} 1\n'
LIMITS = ExpositionLimits(max_line_chars=2000, max_labels=20, max_series=500)


def _collector(url: str, node_id: str, **more: float) -> PrometheusCollector:
    deadline_s = more.get("deadline_s", 60.0)
    return PrometheusCollector(
        url, load_table("dcgm-exporter"), node_id, [Device(0)], deadline_s=deadline_s, max_bytes=200_000, limits=LIMITS
    )


@asynccontextmanager
async def _scraping(scrapes: Scrapes) -> AsyncIterator[None]:
    work = asyncio.create_task(scrapes.run())
    try:
        yield
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def _of(scrapes: Scrapes, node_id: str, metric: Metric = Metric.GPU_UTILIZATION) -> Reading | None:
    found = scrapes.newest(datetime.now(UTC))
    return next((item for item in found if item.node_id == node_id and item.metric is metric), None)


async def _until(met: object) -> None:
    async with asyncio.timeout(60):
        while not met():  # type: ignore[operator]
            await asyncio.sleep(0.02)


async def test_none_harms_another() -> None:
    release = threading.Event()

    def hang(_connection: socket.socket) -> None:
        release.wait(600)

    answers = {
        "good": _page(GOOD),
        "hang": hang,
        "drip": _drip,
        "flood": _flood,
        "lies": _page(LIES),
        "many": _page(MANY),
    }
    scrapes = Scrapes(SystemClock())
    with ExitStack() as life:
        for name, answer in answers.items():
            deadline_s = 0.3 if name in {"hang", "drip"} else 60.0
            url = life.enter_context(_exporter(answer))
            scrapes.add(_collector(url, name, deadline_s=deadline_s), 0.1, deadline_s)
        async with _scraping(scrapes):
            await _until(lambda: all(_of(scrapes, name) is not None for name in answers))
            first = _of(scrapes, "good")
            assert first is not None

            def goes_on() -> bool:
                good = _of(scrapes, "good")
                return (
                    good is not None
                    and good.value == 0.5
                    and good.observed_at > first.observed_at + timedelta(seconds=1)
                )

            await _until(goes_on)
            expected = {
                "good": None,
                "hang": UnknownKind.UNAVAILABLE,
                "drip": UnknownKind.UNAVAILABLE,
                "flood": UnknownKind.LIMIT_EXCEEDED,
                "lies": UnknownKind.OUT_OF_RANGE,
                "many": UnknownKind.LIMIT_EXCEEDED,
            }

            def kinds() -> dict[str, UnknownKind | None]:
                found = {name: _of(scrapes, name) for name in answers}
                return {name: reading.kind for name, reading in found.items() if reading is not None}

            # After a standstill of everything here all are unknown until they are scraped again.
            await _until(lambda: kinds() == expected)
            release.set()


@pytest.mark.parametrize(("page", "kind"), [(WIDE, None), (LONG, None), (MANY, UnknownKind.LIMIT_EXCEEDED)])
def test_lines_and_labels_beyond_the_limits_are_dropped_and_a_flood_of_series_refused(
    page: bytes, kind: UnknownKind | None
) -> None:
    with _exporter(_page(page + GOOD)) as url:
        readings = {item.metric: item for item in _collector(url, "n1").collect(datetime.now(UTC))}
    reading = readings[Metric.GPU_UTILIZATION]
    assert reading.kind is kind
    assert reading.value == (None if kind else 0.5)


class _Stuck:
    """A scraper that a socket's deadline cannot end (a name server that hangs), and one that fails."""

    def __init__(self, release: threading.Event, fault: Exception | None = None) -> None:
        self._release = release
        self._fault = fault
        self.calls = 0

    def collect(self, now: datetime) -> list[Reading]:
        self.calls += 1
        if self._fault is not None:
            raise self._fault
        self._release.wait(600)
        return []

    def unavailable(self, reason: str, now: datetime) -> list[Reading]:
        return _collector("http://127.0.0.1:1/metrics", "stuck").unavailable(reason, now)


async def test_a_scrape_that_never_comes_back_is_not_called_again_and_its_readings_become_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent.scrapes.GRACE_S", 0.1)
    release = threading.Event()
    stuck, broken = _Stuck(release), _Stuck(release, RuntimeError("a fault of the parser"))
    scrapes = Scrapes(SystemClock())
    scrapes.add(stuck, 0.05, 0.05)
    with _exporter(_page(GOOD)) as url:
        scrapes.add(_collector(url, "good"), 0.05, 0.3)
        async with _scraping(scrapes):
            await _until(lambda: scrapes.hanging_count == 1 and (_of(scrapes, "good") is not None))
            reading = _of(scrapes, "stuck")
            assert reading is not None
            assert reading.kind is UnknownKind.UNAVAILABLE
            assert stuck.calls == 1
            release.set()
            await _until(lambda: stuck.calls > 1)
    other = Scrapes(SystemClock())
    other.add(broken, 0.05, 0.05)
    async with _scraping(other):
        await _until(lambda: broken.calls > 1)
        reading = _of(other, "stuck")
    assert reading is not None
    assert "cannot be taken" in reading.reason
