"""kill -9 of a service wherever it is with its events: each has its effect once, and is told on in order."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from meridian.contracts.job.v1 import job_pb2
from meridian.database import Database, migrate
from tests.harness import PATIENCE_S, ROOT, Environment, environment
from tests.network import seeded

HERE = Path(__file__).parent
JOBS, KEYS, KILLS = 240, ("a", "b", "c"), 4
SEEN = sa.text("SELECT count(*) FROM seen")


@contextmanager
def ledger(stack: Environment) -> Iterator[subprocess.Popen[bytes]]:
    """The service; killed at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "ledger_process.py"), stack.bootstrap_servers, stack.database_url],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


async def test_a_service_that_is_killed_again_and_again_does_everything_once(database_url: str) -> None:
    chance = seeded("killed")
    async with environment(database_url) as stack:
        await migrate(database_url, "ledger", HERE / "migrations")
        database = Database(database_url, "ledger")

        async def until_seen(count: int, process: subprocess.Popen[bytes]) -> None:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    async with database.reading() as connection:
                        if await connection.scalar(SEEN) >= count:
                            return
                    assert process.poll() is None
                    await asyncio.sleep(0.002)

        sent = [(KEYS[number % len(KEYS)], number) for number in range(JOBS)]
        await stack.bus.publish(*(job_pb2.JobSubmitted(job_id=key, tenant_id=str(number)) for key, number in sent))
        for kill in range(1, KILLS + 1):
            with ledger(stack) as process:
                await until_seen(kill * JOBS // (KILLS + 1), process)
                for _ in range(chance.randrange(200)):
                    await asyncio.sleep(0)
        with ledger(stack) as process:
            await until_seen(JOBS, process)
            for last in sent[-len(KEYS) :]:
                await stack.bus.expect(job_pb2.JobQueued, lambda event, last=last: (event.job_id, event.units) == last)
        async with database.reading() as connection:
            written = list((await connection.execute(sa.text("SELECT job_id FROM seen ORDER BY position"))).scalars())
        await database.close()
        told: dict[str, tuple[str, int]] = {}
        for envelope in stack.bus.seen:
            if isinstance(envelope.data, job_pb2.JobQueued):
                # Consumers know what is sent twice by its id.
                told.setdefault(envelope.id, (envelope.data.job_id, envelope.data.units))
    for key in KEYS:
        mine = [number for job_id, number in sent if job_id == key]
        assert [int(job.split("-")[1]) for job in written if job.startswith(key)] == mine
        assert [number for job_id, number in told.values() if job_id == key] == mine
    assert stack.bus.dead_letters == []
