"""Periodic work waits out what passes and fails on what does not."""

from __future__ import annotations

import asyncio

import pytest

from meridian.periodic import every


async def test_a_step_that_cannot_run_now_is_tried_again() -> None:
    calls: list[int] = []
    done = asyncio.Event()

    async def step() -> None:
        calls.append(len(calls))
        if len(calls) == 2:
            raise ConnectionResetError("the database restarts")
        if len(calls) == 4:
            done.set()

    task = asyncio.create_task(every(0.0, step)())  # type: ignore[arg-type]
    await asyncio.wait_for(done.wait(), 60)
    task.cancel()
    assert calls[:4] == [0, 1, 2, 3]


async def test_any_other_error_ends_it() -> None:
    async def step() -> None:
        raise KeyError("a mistake")

    with pytest.raises(KeyError):
        await asyncio.wait_for(every(0.0, step)(), 60)
