"""Progress is thinned out and replaced, all else keeps its order. Time stands still until a test lets it pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from agent.engines.base import Checkpoint, Delivery, Progress, RunEvent, RunFinished
from agent.engines.event_stream import PROGRESS_INTERVAL_S, EventStream

AT = datetime(2026, 5, 1, tzinfo=UTC)


def _progress(step: int, run: str = "r") -> Progress:
    return Progress(run, "j", 0, 1, AT, 0, step, None, {})


Pass = Callable[[float], None]


@pytest.fixture(autouse=True)
async def let_pass(monkeypatch: pytest.MonkeyPatch) -> Pass:
    """The loop's time; to be called with the seconds that pass."""
    now = [1000.0]

    def passing(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])
    return passing


async def _drain(stream: EventStream) -> list[RunEvent]:
    """What is there to be taken now."""
    taken: list[RunEvent] = []
    while True:
        taking = asyncio.ensure_future(stream.take())
        await asyncio.sleep(0)
        if not taking.done():
            taking.cancel()
            return taken
        taken.append(taking.result()[0].event)


async def test_a_waiting_progress_is_replaced() -> None:
    stream = EventStream()
    for step in range(1000):
        stream.put_progress(_progress(step))
        stream.put_progress(_progress(step, "other"))
    assert [(event.run_id, event.step) for event in await _drain(stream) if isinstance(event, Progress)] == [
        ("r", 999),
        ("other", 999),
    ]


async def test_progress_is_held_back_and_then_released(let_pass: Pass) -> None:
    stream = EventStream()
    stream.put_progress(_progress(1))
    assert await _drain(stream) == [_progress(1)]
    stream.put_progress(_progress(2))
    stream.put_progress(_progress(3))
    let_pass(0.9 * PROGRESS_INTERVAL_S)
    assert await _drain(stream) == []
    let_pass(0.2 * PROGRESS_INTERVAL_S)
    delivery, _ = await stream.take()
    assert delivery.event == _progress(3)


async def test_the_newest_progress_comes_before_the_end_and_checkpoints_all_come() -> None:
    stream = EventStream()
    stream.put_progress(_progress(1))
    assert await _drain(stream) == [_progress(1)]
    stream.put_progress(_progress(2))
    checkpoints = [Checkpoint("r", "j", 0, 1, AT, 0, step, "/c", None) for step in range(50)]
    for number, checkpoint in enumerate(checkpoints):
        stream.put(Delivery(number, checkpoint), None)
    end = RunFinished("r", "j", 0, 1, AT)
    stream.put(Delivery(50, end), None)
    assert await _drain(stream) == [*checkpoints, _progress(2), end]
