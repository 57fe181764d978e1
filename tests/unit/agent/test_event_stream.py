"""Progress is thinned out and replaced, all else keeps its order."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from agent.engines.base import Checkpoint, Delivery, Progress, RunEvent, RunFinished
from agent.engines.event_stream import EventStream

AT = datetime(2026, 5, 1, tzinfo=UTC)


def _progress(step: int, run: str = "r") -> Progress:
    return Progress(run, "j", 0, 1, AT, 0, step, None, {})


async def _drain(stream: EventStream) -> list[RunEvent]:
    taken: list[RunEvent] = []
    try:
        while True:
            async with asyncio.timeout(0.01):
                delivery, _ = await stream.take()
            taken.append(delivery.event)
    except TimeoutError:
        return taken


async def test_a_waiting_progress_is_replaced() -> None:
    stream = EventStream()
    for step in range(1000):
        stream.put_progress(_progress(step))
        stream.put_progress(_progress(step, "other"))
    assert [(event.run_id, event.step) for event in await _drain(stream) if isinstance(event, Progress)] == [
        ("r", 999),
        ("other", 999),
    ]


async def test_progress_is_held_back_and_then_released() -> None:
    stream = EventStream()
    stream.put_progress(_progress(1))
    assert await _drain(stream) == [_progress(1)]
    stream.put_progress(_progress(2))
    stream.put_progress(_progress(3))
    assert await _drain(stream) == []
    async with asyncio.timeout(1):
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
