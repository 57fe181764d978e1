"""Idle nodes fall asleep by the policy, wake for work, and fall asleep again: with a real agent, and over a restart."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.graph.v1.graph_pb2 import NODE_STATE_ASLEEP, NODE_STATE_HEALTHY, NodeStateChanged
from meridian.contracts.job.v1.job_pb2 import JobCancelRequested, JobFinished
from meridian.contracts.run.v1.run_pb2 import ASSIGNMENT_ACTION_SLEEP as SLEEP
from meridian.contracts.run.v1.run_pb2 import ASSIGNMENT_ACTION_WAKE as WAKE
from meridian.contracts.run.v1.run_pb2 import Assignment, RunFinished, RunStarted
from services.scheduler.core.fleet import MarkKind
from tests.harness import PATIENCE_S, RunningService, environment
from tests.integration.scheduler.messages import graph, report, submission
from tests.integration.scheduler.passing_time import clock_of_now, passes
from tests.integration.scheduler.test_planner_live import check_replay
from tests.integration.scheduler.test_service import live_of, starts, until
from tests.integration.scheduler.test_with_agents import network

RESTING = "extends: balanced\nname: rest\nidle_nodes: {sleep_after_s: 2, reserve: 1}\n"
ONE: dict[str, Any] = {"resources": Resources(cpus=0.1, accelerators=1)}


def told(bus: Any, action: Any = SLEEP) -> list[str]:
    return [node for event in bus.events(Assignment, lambda event: event.action == action) for node in event.node_ids]


def asleep(service: RunningService) -> set[str]:
    fleet = live_of(service).book.fleet
    return {node_id for node_id in fleet.nodes if fleet.sleeps(node_id)}


async def until_asleep(service: RunningService, count: int) -> set[str]:
    async with asyncio.timeout(PATIENCE_S):
        while len(found := asleep(service)) != count:
            await asyncio.sleep(0.05)
    return found


async def test_idle_nodes_sleep_but_for_the_reserve_and_wake_for_work(database_url: str, tmp_path: Path) -> None:
    async with network(database_url, tmp_path, accelerators=1, nodes=3, each={"wake_s": 1.0}) as found:
        bus = found.stack.bus
        await found.use(RESTING)
        await until_asleep(found.scheduler, 2)
        assert len(told(bus)) == len(set(told(bus))) == 2
        await bus.publish(submission("first", command=["sleep", "3600"], **ONE))
        awake = await bus.expect(RunStarted)
        assert set(awake.node_ids).isdisjoint(told(bus))
        await bus.publish(submission("second", command=["sleep", "1"], **ONE))
        await bus.expect(JobFinished, lambda event: event.job_id == "second")
        [woken] = told(bus, WAKE)
        assert woken in told(bus)[:2]
        assert len(told(bus)) == 2, "one idle node is awake: the reserve"
        await bus.publish(JobCancelRequested(job_id="first", tenant_id="lab"))
        await bus.expect(Assignment, lambda event: event.action == SLEEP and event.job_id == "", count=2)
        assert await until_asleep(found.scheduler, 2)
        assert len(told(bus)) == 3
        metrics = (await found.scheduler.http.get("/metrics")).text
        slept = float(re.findall(r"^meridian_scheduler_asleep_node_seconds_total (\S+)$", metrics, re.MULTILINE)[0])
        assert slept > 0
        await found.check_replay()


async def test_what_was_told_to_sleep_takes_no_work_over_a_restart_until_it_sleeps(database_url: str) -> None:
    async with environment(database_url) as stack:
        bus, clock = stack.bus, clock_of_now()
        fleet = graph("beijing", 1)
        fleet.nodes[0].inventory.wake_s = 1.0
        async with stack.service("scheduler", clock=clock) as service:
            answer = await service.http.put("/v1/policy", content=RESTING.replace("reserve: 1", "reserve: 0").encode())
            assert answer.status_code == 200, answer.text
            await bus.publish(fleet)
            await until(service, lambda body: len(body["items"]) == 1, "/v1/nodes")
            passes(service, 2.0)
            await bus.expect(Assignment, lambda event: event.action == SLEEP)
            assert told(bus) == ["beijing-1"]
            await check_replay(stack, service)
        async with stack.service("scheduler", clock=clock) as service:
            assert list(live_of(service).book.fleet.marks) == [(MarkKind.NODE_RESTING, "beijing-1")]
            await bus.publish(submission("job", **ONE))
            await until(service, lambda body: body["units"] == 1)
            assert not bus.events(Assignment, starts("job"))
            change = NodeStateChanged(domain_id="beijing", node_id="beijing-1", state=NODE_STATE_ASLEEP)
            await bus.publish(change)
            await bus.expect(Assignment, lambda event: event.action == WAKE)
            assert not live_of(service).book.fleet.marks
            await bus.publish(NodeStateChanged(domain_id="beijing", node_id="beijing-1", state=NODE_STATE_HEALTHY))
            order = await bus.expect(Assignment, starts("job"))
            await bus.publish(report(RunStarted, order), report(RunFinished, order))
            await bus.expect(JobFinished)
            passes(service, 2.0)
            await bus.expect(Assignment, lambda event: event.action == SLEEP, count=2)
            await check_replay(stack, service)
