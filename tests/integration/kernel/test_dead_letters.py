"""A dead letter is handed back to the consumer that could not take it, and to that one alone."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import sqlalchemy as sa

from meridian.contracts.job.v1 import job_pb2
from meridian.dead_letters import letters, replay
from meridian.errors import NotFoundError
from meridian.outbox import Transaction
from meridian.service import Kernel
from tests.harness import PATIENCE_S, Environment, environment
from tests.integration.kernel.test_bus import make_kernel, running, seen

TOPIC = "meridian.job.requests.v1"
ROOT = Path(__file__).resolve().parents[3]


def record_jobs(kernel: Kernel, broken: set[str]) -> None:
    """Write down each job; those in ``broken`` cannot be handled for now."""

    async def handle(transaction: Transaction, message: job_pb2.JobSubmitted) -> None:
        if message.job_id in broken:
            raise ValueError("this job cannot be handled")
        await transaction.connection.execute(
            sa.text("INSERT INTO seen (job_id) VALUES (:job)"), {"job": message.job_id}
        )
        transaction.publish(job_pb2.JobQueued(job_id=message.job_id, reason=kernel.name))

    kernel.bus.subscribe("jobs", {job_pb2.JobSubmitted: handle})


async def dead_letters(stack: Environment, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(stack.bus.dead_letters) < count:
            await stack.bus.expect_dead_letter()
            await asyncio.sleep(0.02)


async def command(stack: Environment, *arguments: str) -> tuple[int, list[dict[str, object]], str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "meridian.dead_letters",
        *arguments,
        cwd=ROOT,
        env={
            **os.environ,
            "MERIDIAN_KAFKA_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
            "MERIDIAN_DATABASE_URL": stack.database_url,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 2 * PATIENCE_S)
    return process.returncode or 0, [json.loads(line) for line in out.splitlines()], err.decode()


async def test_only_the_consumer_that_failed_gets_it_again(database_url: str) -> None:
    async with environment(database_url) as stack, AsyncExitStack() as life:
        broken = {"b"}
        fine, failing = await make_kernel(stack, "gateway"), await make_kernel(stack, "scheduler")
        record_jobs(fine, set())
        record_jobs(failing, broken)
        for kernel in (fine, failing):
            await life.enter_async_context(running(kernel))
        await stack.bus.publish(*(job_pb2.JobSubmitted(job_id=name) for name in "abc"))
        await dead_letters(stack, 1)
        await stack.bus.expect(job_pb2.JobQueued, lambda event: event.reason == "scheduler", count=2)
        status, [line], _ = await command(stack, "list")
        assert status == 0
        assert (line["topic"], line["consumer"], line["key"]) == (TOPIC, "scheduler.jobs", "b")
        assert line["type"] == "meridian.job.v1.JobSubmitted"
        assert "cannot be handled" in str(line["reason"])
        broken.clear()
        status, sent, _ = await command(stack, "replay", TOPIC, str(line["offset"]))
        assert (status, sent) == (0, [line])
        await stack.bus.expect(job_pb2.JobQueued, lambda event: (event.reason, event.job_id) == ("scheduler", "b"))
        await stack.bus.publish(job_pb2.JobSubmitted(job_id="d"))
        await stack.bus.expect(job_pb2.JobQueued, lambda event: event.job_id == "d", count=2)
        assert (await seen(failing))[2:] == ["b", "d"]
        assert sorted(await seen(fine)) == ["a", "b", "c", "d"], "who had handled it does not handle it again"


async def test_one_that_fails_again_is_set_aside_again(database_url: str) -> None:
    async with environment(database_url) as stack:
        kernel = await make_kernel(stack, "scheduler")
        record_jobs(kernel, {"b"})
        async with running(kernel):
            await stack.bus.publish(job_pb2.JobSubmitted(job_id="b"))
            await dead_letters(stack, 1)
            [letter] = await letters(stack.bootstrap_servers, [TOPIC])
            await replay(kernel.settings, TOPIC, [letter.offset])
            await dead_letters(stack, 2)
        again = await letters(stack.bootstrap_servers, [TOPIC])
    assert [item.message_id for item in again] == [letter.message_id] * 2
    assert [item.consumer for item in again] == ["scheduler.jobs"] * 2


async def test_nothing_is_done_when_one_is_not_there(database_url: str) -> None:
    async with environment(database_url) as stack:
        kernel = await make_kernel(stack, "scheduler")
        record_jobs(kernel, {"b"})
        async with running(kernel):
            await stack.bus.publish(job_pb2.JobSubmitted(job_id="b"))
            await dead_letters(stack, 1)
        with pytest.raises(NotFoundError, match="7"):
            await replay(kernel.settings, TOPIC, [0, 7])
        assert len(stack.bus.events(job_pb2.JobSubmitted)) == 1
        status, found, error = await command(stack, "replay", "no.such.topic", "0")
    assert (status, found) == (2, [])
    assert "no.such.topic" in error
