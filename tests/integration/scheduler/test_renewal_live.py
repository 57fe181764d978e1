"""Orders that rest on how long jobs have run decide in the live service as in the simulator, over restarts, and again in a replay."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import JobCancelRequested, JobFinished, JobPreempted
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import Assignment, RunFailed, RunFinished, RunStarted
from services.scheduler.core.state import UnitKey
from tests.harness import PATIENCE_S, Environment, RunningService, environment
from tests.integration.scheduler.messages import STOP, graph, report, submission
from tests.integration.scheduler.passing_time import clock_of_now, passes
from tests.integration.scheduler.test_planner_live import check_replay
from tests.integration.scheduler.test_service import live_of, starts, until

WHOLE: dict[str, Any] = {"resources": Resources(cpus=1, accelerators=8)}
GITTINS = """
extends: balanced
name: gittins
selection:
  order: [service_index, age]
  preemption: [order]
interval_s: 3
"""
LAS = """
extends: balanced
name: las
selection:
  order: [{least_attained: {threshold_s: 16}}, age]
  preemption: [{order: {margin_s: 1}}]
"""


async def use(service: RunningService, text: str) -> None:
    answer = await service.http.put("/v1/policy", content=text.encode())
    assert answer.status_code == 200, answer.text


async def teach(stack: Environment, service: RunningService, jobs: int) -> None:
    """So many jobs end half a second after they have begun."""
    bus = stack.bus
    few = Resources(cpus=0.1)
    await bus.publish(*(submission(f"quick-{number}", resources=few) for number in range(jobs)))
    await bus.expect(Assignment, count=jobs)
    await bus.publish(*(report(RunStarted, item) for item in bus.events(Assignment)))
    async with asyncio.timeout(PATIENCE_S):
        while not all(run.started_at_s for run in live_of(service).book.runs.values()):
            await asyncio.sleep(0.05)
    passes(service, 0.5)
    await bus.publish(*(report(RunFinished, item) for item in bus.events(Assignment)))
    await bus.expect(JobFinished, count=jobs)


async def test_a_job_that_outlived_its_kind_is_taken_off_by_a_new_leader_too(database_url: str) -> None:
    """All jobs so far ended within a second, so one that has run for three is worth less than a new one (Gittins)."""
    async with environment(database_url) as stack:
        bus, clock = stack.bus, clock_of_now()
        async with stack.service("scheduler", clock=clock) as service:
            await use(service, GITTINS)
            await bus.publish(graph("beijing", 1))
            await teach(stack, service, 40)
            await bus.publish(submission("long", **WHOLE))
            first = await bus.expect(Assignment, starts("long"))
            await bus.publish(report(RunStarted, first))
            await bus.publish(submission("new", **WHOLE))
            await until(service, lambda body: body["units"] == 1)
            began = live_of(service).book.cluster.running[UnitKey("long", 0)].service_index
            assert began > 0.5
            assert not bus.events(JobPreempted)
            passes(service, 3.0)
            preempted = await bus.expect(JobPreempted)
            assert preempted.job_id == "long"
            await bus.publish(report(RunFailed, first, kind=run_pb2.RUN_FAILURE_KIND_STOPPED))
            second = await bus.expect(Assignment, starts("new"))
            await bus.publish(report(RunStarted, second), JobCancelRequested(job_id="long", tenant_id="lab"))
            await bus.expect(JobFinished, lambda event: event.job_id == "long")
            await check_replay(stack, service)
        async with stack.service("scheduler", clock=clock) as service:
            # "new" outlives its kind too, which this instance did not see it begin.
            await bus.publish(submission("newer", **WHOLE))
            await until(service, lambda body: body["units"] == 1)
            passes(service, 3.0)
            await bus.expect(JobPreempted, lambda event: event.job_id == "new")
            running = live_of(service).book.cluster.running
            assert UnitKey("new", 0) not in running
            await bus.publish(report(RunFailed, second, kind=run_pb2.RUN_FAILURE_KIND_STOPPED))
            await bus.expect(Assignment, starts("newer"))
            await check_replay(stack, service)


@pytest.mark.parametrize("restarted", [False, True])
async def test_service_without_checkpoints_counts_after_a_preemption(database_url: str, restarted: bool) -> None:
    """Tiresias: what lost its work has had its service all the same, so that one that had none goes before it."""
    async with environment(database_url) as stack:
        bus, clock = stack.bus, clock_of_now()
        async with stack.service("scheduler", clock=clock) as service:
            await use(service, LAS)
            await bus.publish(graph("beijing", 1))
            await bus.publish(submission("old", **WHOLE))
            first = await bus.expect(Assignment, starts("old"))
            await bus.publish(report(RunStarted, first))
            await bus.publish(submission("new", **WHOLE))
            await until(service, lambda body: body["units"] == 1)
            passes(service, 2.5)
            await bus.expect(Assignment, lambda event: event.action == STOP and event.job_id == "old")
            await bus.publish(report(RunFailed, first, kind=run_pb2.RUN_FAILURE_KIND_STOPPED))
            second = await bus.expect(Assignment, starts("new"))
            await bus.publish(submission("newer", **WHOLE))
            await until(service, lambda body: body["units"] == 2)
            if not restarted:
                await finish(stack, second)
                await check_replay(stack, service)
        if restarted:
            async with stack.service("scheduler", clock=clock) as service:
                assert live_of(service).book.units[UnitKey("old", 0)].served_s >= 2.0
                await finish(stack, second)
                await check_replay(stack, service)


async def finish(stack: Environment, second: Assignment) -> None:
    """The unit that runs ends: of the two that wait, the one that had no service starts."""
    await stack.bus.publish(report(RunFinished, second))
    order = await stack.bus.expect(Assignment, starts("newer"))
    assert not stack.bus.events(Assignment, starts("old", 2))
    await stack.bus.publish(report(RunFinished, order))
    await stack.bus.expect(Assignment, starts("old", 2))
    assert job_pb2.JOB_OUTCOME_FAILED not in {event.outcome for event in stack.bus.events(JobFinished)}
