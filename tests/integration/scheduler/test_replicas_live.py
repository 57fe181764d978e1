"""Services follow the load that their replicas report: by the contracts alone, and with a real agent and real programs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import JobCancelRequested, JobFinished, JobPreempted, JobQueued, ReplicaScaling
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import Assignment, RunFailed, RunProgress, RunStarted
from services.scheduler.core.state import UnitState
from tests.harness import PATIENCE_S, RunningService, environment
from tests.integration.scheduler.messages import START, STOP, graph, report, submission
from tests.integration.scheduler.test_planner_live import check_replay
from tests.integration.scheduler.test_service import live_of
from tests.integration.scheduler.test_with_agents import network


def service(name: str, down_after_s: float, most: int = 4, **more: Any) -> Any:
    """One to ``most`` replicas with a load of 10 each."""
    scaling = ReplicaScaling(min_replicas=1, max_replicas=most, target=10, down_after_s=down_after_s, cooldown_s=0.5)
    fields: dict[str, Any] = {"resources": Resources(cpus=0.1), "replicas": 1, "scaling": scaling, **more}
    return submission(name, kind=job_pb2.JOB_KIND_SERVICE, **fields)


def active(service: RunningService) -> set[int]:
    """Replicas of "web" that are wanted."""
    units = live_of(service).book.units.values()
    return {unit.key.unit_index for unit in units if unit.key.job_id == "web" and unit.state is not UnitState.BLOCKED}


async def until_active(service: RunningService, wanted: set[int]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while active(service) != wanted:
            await asyncio.sleep(0.05)


class Replicas:
    """What agents and replicas say: each run starts, reports the load, and stops when it is told to."""

    def __init__(self, stack: Any) -> None:
        self.bus = stack.bus
        self.load = 0.0
        self.step = 0
        self.running: dict[str, Assignment] = {}
        self._seen: set[tuple[str, int]] = set()

    async def tick(self) -> None:
        messages: list[Any] = []
        for order in self.bus.events(Assignment):
            if (order.run_id, order.action) in self._seen:
                continue
            self._seen.add((order.run_id, order.action))
            if order.action == START:
                self.running[order.run_id] = order
                messages.append(report(RunStarted, order))
            elif order.action == STOP and order.run_id in self.running:
                messages.append(
                    report(RunFailed, self.running.pop(order.run_id), kind=run_pb2.RUN_FAILURE_KIND_STOPPED)
                )
        self.step += 1
        share = self.load / max(len(self.running), 1)
        messages += [report(RunProgress, run, step=self.step, metrics={"load": share}) for run in self.running.values()]
        await self.bus.publish(*messages)

    async def until(self, service: RunningService, wanted: set[int]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while active(service) != wanted or len(self.running) != len(wanted):
                await self.tick()
                await asyncio.sleep(0.2)


async def test_replicas_come_and_go_over_a_restart_and_all_is_decided_again(database_url: str) -> None:
    async with environment(database_url) as stack:
        bus, replicas = stack.bus, Replicas(stack)
        async with stack.service("scheduler") as scheduler:
            answer = await scheduler.http.put("/v1/policy", content=b"extends: balanced\nname: quick\ninterval_s: 1\n")
            assert answer.status_code == 200, answer.text
            await bus.publish(graph("beijing", 1))
            await bus.publish(service("web", 2.0))
            first = await bus.expect(Assignment, lambda event: event.action == START)
            assert (first.unit_index, first.service_port > 0) == (0, True)
            queued = await bus.expect(JobQueued)
            assert queued.units == 1
            replicas.load = 35.0
            await replicas.until(scheduler, {0, 1, 2, 3})
            await bus.expect(JobQueued, lambda event: event.HasField("unit_index"), count=3)
            more = [event for event in bus.events(JobQueued) if event.HasField("unit_index")]
            assert [event.unit_index for event in more] == [1, 2, 3]
            assert "4 instead of 1 replicas: load is 35 per replica" in more[0].reason
            units = (await scheduler.http.get("/v1/jobs/web/explanation")).json()["units"]
            assert len(units) == 4
            await check_replay(stack, scheduler)
        async with stack.service("scheduler") as scheduler:
            assert active(scheduler) == {0, 1, 2, 3}
            replicas.load = 12.0
            await replicas.until(scheduler, {0, 1})
            await bus.expect(JobPreempted, count=2)
            assert [event.unit_index for event in bus.events(JobPreempted)] == [3, 2]
            waiting = (await scheduler.http.get("/v1/jobs/web/explanation")).json()["units"][3]["waiting"]
            assert "2 instead of 4 replicas" in waiting["reason"]
            replicas.load = 28.0
            await replicas.until(scheduler, {0, 1, 2})
            await check_replay(stack, scheduler)
            await bus.publish(JobCancelRequested(job_id="web", tenant_id="lab"))
            async with asyncio.timeout(PATIENCE_S):
                while not bus.events(JobFinished):
                    await replicas.tick()
                    await asyncio.sleep(0.1)
            assert not replicas.running


PROGRAM = (
    "n=0; while true; do n=$((n+1));"
    ' echo "@meridian {\\"progress\\": {\\"step\\": $n, \\"metrics\\": {\\"load\\": $(cat load)}}}"; sleep 0.3; done'
)


async def test_real_replicas_follow_what_they_report(database_url: str, tmp_path: Path) -> None:
    async with network(database_url, tmp_path, accelerators=1) as found:
        bus = found.stack.bus
        await found.use("extends: balanced\nname: quick\ninterval_s: 1\n")
        load = tmp_path / "load"
        load.write_text("18.5\n")
        # Two at the most: the second reports the load of the first until it is told another.
        command = ["sh", "-c", PROGRAM]
        await bus.publish(service("web", 3.0, 2, command=command, working_dir=str(tmp_path), max_restarts=0))
        await bus.expect(RunStarted)
        await until_active(found.scheduler, {0, 1})
        load.write_text("9.5\n")
        await bus.expect(RunStarted, lambda event: event.unit_index == 1)
        load.write_text("2\n")
        await until_active(found.scheduler, {0})
        gone = await bus.expect(RunFailed, lambda event: event.unit_index == 1)
        assert gone.kind == run_pb2.RUN_FAILURE_KIND_STOPPED
        await bus.publish(JobCancelRequested(job_id="web", tenant_id="lab"))
        await bus.expect(JobFinished)
        starts = [(event.unit_index, event.epoch) for event in bus.events(Assignment) if event.action == START]
        assert starts == [(0, 1), (1, 1)]
        await found.check_replay()
