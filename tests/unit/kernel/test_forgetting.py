"""The removal of what is not needed any more waits out a database that is away."""

from __future__ import annotations

import asyncio

import pytest

from meridian.service import _forgetting, create_kernel
from meridian.settings import KernelSettings
from tests.fixtures_embedded import held_port
from tests.harness import PATIENCE_S


async def test_a_database_that_is_away_does_not_end_the_service(caplog: pytest.LogCaptureFixture) -> None:
    with held_port() as held:
        port = held.getsockname()[1]
        kernel = create_kernel("ledger", KernelSettings(database_url=f"postgresql+asyncpg://m:m@127.0.0.1:{port}/m"))
        task = asyncio.ensure_future(_forgetting(kernel)())
        async with asyncio.timeout(PATIENCE_S):
            while not task.done() and not any("put off" in record.message for record in caplog.records):
                await asyncio.sleep(0.01)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await kernel.database.close()
