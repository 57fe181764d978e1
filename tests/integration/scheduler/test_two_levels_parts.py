"""Inference of one shard and training of another on one accelerator: their domain moves its parts, over restarts of both levels."""

from __future__ import annotations

import asyncio
from typing import Any

from meridian.contracts.job.v1.job_pb2 import JobCancelRequested, JobFinished, JobPreempted
from meridian.contracts.run.v1.run_pb2 import ASSIGNMENT_ACTION_ADJUST as ADJUST
from meridian.contracts.run.v1.run_pb2 import Assignment
from services.scheduler.core.state import UnitKey
from tests.harness import PATIENCE_S, environment
from tests.integration.scheduler.test_replicas_live import Replicas
from tests.integration.scheduler.test_service import live_of, starts
from tests.integration.scheduler.test_shares_live import QUICK, train, web
from tests.integration.scheduler.test_two_levels_measured import FIRST, TENANTS, check_replays
from tests.integration.scheduler.two_levels import Parts, graph


def of(tenant: str, submitted: Any) -> Any:
    """The same submission by another tenant."""
    submitted.tenant_id = tenant
    return submitted


async def test_a_replica_grows_at_the_cost_of_another_shards_training_and_gives_it_back(database_url: str) -> None:
    async with environment(database_url) as stack:
        parts, bus, replicas = Parts(stack, shards=2), stack.bus, Replicas(stack)

        def told() -> dict[str, int]:
            orders = bus.events(Assignment, lambda event: event.action == ADJUST)
            return {event.job_id: event.ranks[0].accelerator_milli for event in orders}

        await parts.prepare()
        await bus.publish(graph("beijing", 1, accelerators=1))
        with parts.shard(1):
            with parts.decider() as decider:
                async with stack.service("scheduler", FIRST) as service:
                    answer = await service.http.put("/v1/policy", content=QUICK.encode())
                    assert answer.status_code == 200, answer.text
                    await bus.publish(of(TENANTS[0], web()))
                    await bus.expect(Assignment, starts("web"))
                    await bus.publish(of(TENANTS[1], train()))
                    await bus.expect(Assignment, starts("train"))
                    # Half of it for each run: the replica has 20 where 10 is wanted, whatever its part. It gets the most that it may have.
                    replicas.load = 40.0
                    async with asyncio.timeout(PATIENCE_S):
                        while told() != {"web": 800, "train": 200}:
                            await replicas.tick()
                            await asyncio.sleep(0.2)
                    found = (await service.http.get("/v1/jobs/web/explanation")).json()["decisions"]
                    shares = [item["explanation"] for item in found if item["kind"] == "share"]
                    assert shares[0]["accelerator_milli"] == 800
                decider.kill()
            with parts.decider():
                async with stack.service("scheduler", FIRST) as service:
                    running = live_of(service).book.cluster.running
                    assert running[UnitKey("web", 0)].unit.demand.device_milli == 800
                    await bus.publish(JobCancelRequested(job_id="web", tenant_id=TENANTS[0]))
                    async with asyncio.timeout(PATIENCE_S):
                        while told()["train"] != 700:
                            await replicas.tick()
                            await asyncio.sleep(0.2)
                    await bus.expect(JobFinished, lambda event: event.job_id == "web")
        assert not bus.events(JobPreempted)
        await check_replays(stack)
        assert not bus.dead_letters
