"""Failover is killed (SIGKILL) around the moment of a declaration: no plan is lost, none is made twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from meridian.contracts.failover.v1.failover_pb2 import NodeFailed, RecoveryPlanned
from meridian.database import migrate
from tests.fixtures_embedded import free_port
from tests.harness import PATIENCE_S, ROOT, Environment, environment
from tests.integration.failover.test_service import QUICK, Agent, beating, heard, placed


def start(stack: Environment) -> subprocess.Popen[bytes]:
    variables = {
        **os.environ,
        **QUICK,
        "MERIDIAN_DATABASE_URL": stack.database_url,
        "MERIDIAN_KAFKA_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
        "MERIDIAN_FAILOVER_HTTP_PORT": str(free_port("failover")),
    }
    log = (stack.data_dir / "failover.log").open("ab")
    return subprocess.Popen(
        [sys.executable, "-m", "meridian.service", "failover"], cwd=ROOT, env=variables, stdout=log, stderr=log
    )


def planned(stack: Environment) -> dict[str, str]:
    """Runs by the event that plans them: the relay may repeat what it had sent when it was killed, with the same ids."""
    return {item.id: item.data.run_id for item in stack.bus.seen if isinstance(item.data, RecoveryPlanned)}


# Before the declaration, 2 s after the last beat, and right after it.
@pytest.mark.parametrize("kill_after_s", [1.95, 2.15])
async def test_a_kill_around_the_declaration_loses_no_plan(database_url: str, kill_after_s: float) -> None:
    await migrate(database_url, "failover", Path(ROOT) / "services/failover/migrations")
    async with environment(database_url) as stack:
        north = Agent(stack.bus, "north", ["north-1", "north-2"])
        process = start(stack)
        try:
            async with beating(north):
                await stack.bus.publish(*(placed(f"job-{number}", 1, ("north", "north-1")) for number in range(20)))
                await heard(stack, None, "runs", 20)
                await heard(stack, None, "nodes", 2)
                north.silence("north-1")
                await asyncio.sleep(kill_after_s)
                process.send_signal(signal.SIGKILL)
                process.wait()
                process = start(stack)
                await stack.bus.expect(NodeFailed)
                async with asyncio.timeout(PATIENCE_S):
                    while len(planned(stack)) < 20:
                        await asyncio.sleep(0.05)
                # One that comes now is planned after all the others.
                await stack.bus.publish(placed("job-last", 1, ("north", "north-1")))
                await stack.bus.expect(RecoveryPlanned, lambda event: event.job_id == "job-last")
                expected = [*(f"job-{number}.0.1" for number in range(20)), "job-last.0.1"]
                assert sorted(planned(stack).values()) == sorted(expected)
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
