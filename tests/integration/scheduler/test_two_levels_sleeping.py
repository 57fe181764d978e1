"""Deciders put idle nodes of their domains to sleep and have them woken for work: over restarts of both levels, and with a real agent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.graph.v1.graph_pb2 import NODE_STATE_ASLEEP, NODE_STATE_HEALTHY, NodeStateChanged
from meridian.contracts.job.v1.job_pb2 import JobFinished
from meridian.contracts.run.v1.run_pb2 import ASSIGNMENT_ACTION_SLEEP as SLEEP
from meridian.contracts.run.v1.run_pb2 import ASSIGNMENT_ACTION_WAKE as WAKE
from meridian.contracts.run.v1.run_pb2 import Assignment, RunFinished, RunStarted
from meridian.settings import KernelSettings
from services.scheduler.replay_command import replayed
from tests.harness import PATIENCE_S, Environment, RunningService, environment
from tests.integration.agent.agent_process import agent_running, configuration
from tests.integration.scheduler.test_service import live_of, starts, until
from tests.integration.scheduler.two_levels import ANSWER_LIMIT_S, Parts, graph, report, submission

TWO = {"MERIDIAN_SCHEDULER_LEVELS": "two", "MERIDIAN_SCHEDULER_ANSWER_LIMIT_S": str(ANSWER_LIMIT_S)}
RESTING = "extends: balanced\nname: rest\nidle_nodes: {{sleep_after_s: 2, reserve: {reserve}}}\n"


def deciding(stack: Environment, directory: Path, reserve: int) -> Parts:
    """A decider that puts nodes to sleep."""
    file = directory / "domain-policy.yaml"
    file.write_text(RESTING.format(reserve=reserve), encoding="utf-8")
    return Parts(stack, env={"MERIDIAN_SCHEDULER_DOMAIN_POLICY_FILE": str(file)})


def told(bus: Any, action: Any) -> list[str]:
    return [node for event in bus.events(Assignment, lambda event: event.action == action) for node in event.node_ids]


async def check_replays(stack: Environment) -> None:
    """Both have written the end of their journals: what they decided is decided again."""
    settings = KernelSettings(
        kafka_bootstrap_servers=stack.bootstrap_servers, database_url=stack.database_url, data_dir=stack.data_dir
    )
    for part in ("scheduler", "scheduler_domain"):
        found = await replayed(settings, part)
        assert found.differences == [], part
        assert found.cycles > 0, part


async def until_kept(service: RunningService) -> None:
    """Until the shard has a unit that waits for its nodes to wake."""
    async with asyncio.timeout(PATIENCE_S):
        while not live_of(service).book.nominated:
            await asyncio.sleep(0.05)


async def test_a_node_sleeps_and_wakes_over_restarts_of_both_levels(database_url: str, tmp_path: Path) -> None:
    async with environment(database_url) as stack:
        bus, parts = stack.bus, deciding(stack, tmp_path, reserve=0)
        await parts.prepare()
        fleet = graph("beijing", 1)
        # A unit waits for some times as long for it: longer than processes need to start again.
        fleet.nodes[0].inventory.wake_s = 60.0
        await bus.publish(fleet)
        with parts.decider() as first:
            order = await bus.expect(Assignment, lambda event: event.action == SLEEP)
            assert (order.domain_id, list(order.node_ids)) == ("beijing", ["beijing-1"])
            first.kill()
        with parts.decider() as second:
            async with stack.service("scheduler", TWO) as service:
                refused = await service.http.put("/v1/policy", content=RESTING.format(reserve=0).encode())
                assert refused.status_code == 422, refused.text
                assert "idle_nodes: on two levels the deciders of domains" in refused.json()["detail"]
                await bus.publish(submission("job"))
                await until(service, lambda body: body["units"] == 1)
                # It was told to sleep by the one before, so it is not given away, and not woken before it sleeps.
                assert told(bus, WAKE) == []
                await bus.publish(NodeStateChanged(domain_id="beijing", node_id="beijing-1", state=NODE_STATE_ASLEEP))
                wake = await bus.expect(Assignment, lambda event: event.action == WAKE)
                assert (wake.job_id, wake.tenant_id, list(wake.node_ids)) == ("job", "lab", ["beijing-1"])
                await until_kept(service)
                unit = (await service.http.get("/v1/jobs/job/explanation")).json()["units"][0]
                assert "fits only where nodes sleep" in str(unit)
            second.kill()
        with parts.decider():
            async with stack.service("scheduler", TWO) as service:
                assert [key.job_id for key in live_of(service).book.nominated] == ["job"]
                assert not bus.events(Assignment, starts("job"))
                await bus.publish(NodeStateChanged(domain_id="beijing", node_id="beijing-1", state=NODE_STATE_HEALTHY))
                start = await bus.expect(Assignment, starts("job"))
                assert [rank.node_id for rank in start.ranks] == ["beijing-1"]
                await bus.publish(report(RunStarted, start), report(RunFinished, start))
                await bus.expect(JobFinished)
                await bus.expect(Assignment, lambda event: event.action == SLEEP, count=2)
        assert told(bus, WAKE) == ["beijing-1"]
        await check_replays(stack)
        assert not bus.dead_letters


async def test_an_agent_puts_nodes_to_sleep_and_wakes_one_for_work(database_url: str, tmp_path: Path) -> None:
    async with environment(database_url) as stack:
        bus, parts = stack.bus, deciding(stack, tmp_path, reserve=1)
        await parts.prepare()
        settings = configuration(tmp_path, stack.bootstrap_servers, lease_s=2 * PATIENCE_S)
        group = {**settings["domain"]["nodes"][0]["accelerators"][0], "count": 1}
        settings["domain"]["nodes"] = [
            {"node_id": f"north-{n}", "cpus": 8, "memory_bytes": 2**34, "accelerators": [group], "wake_s": 4.0}
            for n in (1, 2, 3)
        ]
        one: dict[str, Any] = {"resources": Resources(cpus=0.1, accelerators=1)}
        async with (
            stack.service("telemetry"),
            stack.service("graph"),
            stack.service("scheduler", TWO) as service,
            agent_running(settings, tmp_path),
        ):
            with parts.decider():
                async with asyncio.timeout(PATIENCE_S):
                    while sum(live_of(service).book.fleet.sleeps(f"north-{n}") for n in (1, 2, 3)) != 2:
                        await asyncio.sleep(0.1)
                sleeping = told(bus, SLEEP)
                assert len(sleeping) == len(set(sleeping)) == 2
                await bus.publish(submission("first", command=["sleep", "3600"], **one))
                awake = await bus.expect(RunStarted)
                assert set(awake.node_ids).isdisjoint(sleeping)
                assert told(bus, WAKE) == []
                await bus.publish(submission("second", command=["sleep", "1"], **one))
                done = await bus.expect(JobFinished, lambda event: event.job_id == "second")
                assert done.restarts == 0
                [woken] = told(bus, WAKE)
                assert woken in sleeping
        await check_replays(stack)
        assert not bus.dead_letters
