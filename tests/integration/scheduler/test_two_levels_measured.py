"""What programs report is learned on two levels too: ends by their steps, replicas by their load; over restarts and in a replay."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Any

import pytest

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import JobCancelRequested, JobFinished, JobPlaced, ReplicaScaling
from meridian.contracts.run.v1.run_pb2 import Assignment, RunProgress, RunStarted
from meridian.settings import KernelSettings
from meridian.sharding import shard_of_tenant
from services.scheduler.core.measured import Cell
from services.scheduler.core.state import UnitKey
from services.scheduler.replay_command import replayed
from tests.harness import PATIENCE_S, Environment, RunningService, environment
from tests.integration.scheduler.test_replicas_live import Replicas
from tests.integration.scheduler.test_service import live_of, starts
from tests.integration.scheduler.two_levels import ANSWER_LIMIT_S, Parts, graph, report, submission

TENANTS = {shard_of_tenant(name, 2): name for name in ("lab", "works", "school", "mill")}
FIRST = {
    "MERIDIAN_SCHEDULER_LEVELS": "two",
    "MERIDIAN_SCHEDULER_SHARDS": "2",
    "MERIDIAN_SCHEDULER_SHARD": "0",
    "MERIDIAN_SCHEDULER_ANSWER_LIMIT_S": str(ANSWER_LIMIT_S),
}
LONG, LATER = UnitKey("long", 0), UnitKey("later", 0)
PARTS = ("scheduler_0", "scheduler_1", "scheduler_domain")


async def check_replays(stack: Environment) -> None:
    """All parts have written the end of their journals: what they decided is decided again."""
    settings = KernelSettings(
        kafka_bootstrap_servers=stack.bootstrap_servers, database_url=stack.database_url, data_dir=stack.data_dir
    )
    for part in PARTS:
        found = await replayed(settings, part)
        assert found.differences == [], part
        assert found.cycles > 0, part


async def steps(stack: Environment, run: Assignment, begun_s: float, first: int, total: int) -> None:
    """A program reports five steps, one every half second by its agent's clock."""
    for step in range(5):
        message = report(RunProgress, run, step=first + step, total_steps=total)
        message.at.FromNanoseconds(int((begun_s + 0.5 * step) * 1e9))
        await stack.bus.publish(message)


async def until_end(service: RunningService, end_s: float) -> None:
    """Until the shard thinks that the long unit ends then, and somebody waits who makes it look."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            running = live_of(service).book.cluster.running.get(LONG)
            if running is not None and running.expected_end_s == pytest.approx(end_s, abs=600.0):
                return
            live_of(service)._poked.set()
            await asyncio.sleep(0.1)


async def predicted_s(service: RunningService) -> float:
    """When the waiting unit is thought to start, in seconds since 1970."""
    answer = await service.http.get("/v1/jobs/later/explanation")
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["units"][0]["waiting"]["prediction"]["start"]
    return datetime.fromisoformat(found).timestamp()


async def test_a_shard_learns_rates_and_foresees_ends_by_them(database_url: str) -> None:
    async with environment(database_url) as stack:
        parts, bus = Parts(stack, shards=2), stack.bus
        await parts.prepare()
        await bus.publish(graph("beijing", 1))
        with parts.decider(), parts.shard(1):
            async with stack.service("scheduler", FIRST) as service:
                await bus.publish(submission("long", TENANTS[0], accelerators=8))
                order = await bus.expect(Assignment, starts("long"))
                await bus.publish(report(RunStarted, order))
                await bus.publish(submission("later", TENANTS[0], accelerators=8))
                begun_s = time.time()
                # By hand: 2 steps per second and 80,000 to make are 40,000 s; an hour was thought.
                await steps(stack, order, begun_s, 1, 80_000)
                await until_end(service, begun_s + 40_000.0)
                known = live_of(service).book.measured.told()
                [(job_id, cell, rate)] = known.rates
                assert (job_id, cell) == ("long", Cell("A100", 1))
                assert rate == pytest.approx(2.0)
                # Not after the hour that was thought: its band is wide, its middle is what the steps say.
                assert await predicted_s(service) > begun_s + 20_000.0
            async with stack.service("scheduler", FIRST) as service:
                # What was learned outlives the process; the first report tells it the end again.
                assert live_of(service).book.measured.told().rates == known.rates
                await steps(stack, order, begun_s + 10.0, 21, 80_000)
                await until_end(service, begun_s + 40_000.0)
                assert await predicted_s(service) > begun_s + 20_000.0
                await bus.publish(JobCancelRequested(job_id="later", tenant_id=TENANTS[0]))
                await bus.expect(JobFinished, lambda event: event.job_id == "later")
                # The other shard does not know the run, and has something of its own.
                await bus.publish(submission("theirs", TENANTS[1], accelerators=0))
                await bus.expect(JobPlaced, lambda event: event.job_id == "theirs")
        await check_replays(stack)
        assert not bus.dead_letters


def web(tenant: str) -> Any:
    """One to four replicas with a load of 10 each."""
    scaling = ReplicaScaling(min_replicas=1, max_replicas=4, target=10, down_after_s=2.0, cooldown_s=0.5)
    few = Resources(cpus=0.1, accelerators=1)
    return submission(
        "web", tenant, kind=job_pb2.JOB_KIND_SERVICE, replicas=1, resources=few, scaling=scaling, command=["serve"]
    )


async def test_replicas_follow_their_load_over_restarts_of_shard_and_decider(database_url: str) -> None:
    async with environment(database_url) as stack:
        parts, bus, replicas = Parts(stack, shards=2), stack.bus, Replicas(stack)
        await parts.prepare()
        await bus.publish(graph("beijing", 1, accelerators=2), graph("shanghai", 1, accelerators=2))
        with parts.shard(1):
            with parts.decider() as decider:
                async with stack.service("scheduler", FIRST) as service:
                    answer = await service.http.put(
                        "/v1/policy", content=b"extends: balanced\nname: quick\ninterval_s: 1\n"
                    )
                    assert answer.status_code == 200, answer.text
                    await bus.publish(web(TENANTS[0]))
                    await bus.expect(Assignment, starts("web"))
                    replicas.load = 35.0
                    await replicas.until(service, {0, 1, 2, 3})
                    held = {
                        (order.domain_id, *order.ranks[0].accelerator_indices) for order in replicas.running.values()
                    }
                    assert len(held) == 4, "each of them has an accelerator of its own, of two domains"
                decider.kill()
            with parts.decider():
                async with stack.service("scheduler", FIRST) as service:
                    replicas.load = 12.0
                    await replicas.until(service, {0, 1})
                    # What they held was given back: there is room for it.
                    replicas.load = 35.0
                    await replicas.until(service, {0, 1, 2, 3})
                    await bus.publish(JobCancelRequested(job_id="web", tenant_id=TENANTS[0]))
                    async with asyncio.timeout(PATIENCE_S):
                        while not bus.events(JobFinished, lambda event: event.job_id == "web"):
                            await replicas.tick()
                            await asyncio.sleep(0.1)
                    assert not replicas.running
        await check_replays(stack)
        assert not bus.dead_letters
