"""The live service learns rates and ends from the steps that programs report, keeps them over restarts, and decides by them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.job.v1.job_pb2 import JobCancelRequested, JobPreempted
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import Assignment, RunFailed, RunProgress, RunStarted
from services.scheduler.core.measured import Cell
from services.scheduler.core.state import UnitKey
from tests.harness import PATIENCE_S, Environment, Probe, RunningService, environment
from tests.integration.scheduler.messages import graph, report, submission
from tests.integration.scheduler.test_planner_live import RULES, check_replay
from tests.integration.scheduler.test_service import live_of, starts, until
from tests.integration.scheduler.test_with_agents import network

SRPT = """
extends: balanced
name: srpt
selection:
  order: [shortest_remaining, age]
  preemption: [order]
interval_s: 1
"""
SJF = f"""
extends: balanced
name: sjf
planner: gavel
options: {{gavel: {{objective: shortest_job_first}}}}
interval_s: 1
{RULES}
"""
WHOLE: dict[str, Any] = {"resources": Resources(cpus=1, accelerators=8)}
KEY = UnitKey("long", 0)


async def use(service: RunningService, text: str) -> None:
    answer = await service.http.put("/v1/policy", content=text.encode())
    assert answer.status_code == 200, answer.text


async def steps(stack: Environment, run: Assignment, begun_s: float, first: int, total: int) -> None:
    """A program reports five steps, one every half second by its agent's clock."""
    for step in range(5):
        message = report(RunProgress, run, step=first + step, total_steps=total)
        message.at.FromNanoseconds(int((begun_s + 0.5 * step) * 1e9))
        await stack.bus.publish(message)


async def learned(service: RunningService, check: Callable[[], bool]) -> None:
    """Wait until the book knows it: it is told at cycles."""
    async with asyncio.timeout(PATIENCE_S):
        while not check():
            live_of(service)._poked.set()
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("policy", [SRPT, SJF], ids=["srpt", "sjf"])
async def test_a_run_whose_steps_say_that_it_is_long_gives_way(database_url: str, policy: str) -> None:
    """100 000 steps at two per second are more than what is expected of a job of which nothing is known."""
    async with environment(database_url) as stack:
        bus = stack.bus
        async with stack.service("scheduler") as service:
            await use(service, policy)
            await bus.publish(graph("beijing", 1))
            await bus.publish(submission("long", **WHOLE))
            first = await bus.expect(Assignment, starts("long"))
            await bus.publish(report(RunStarted, first))
            await bus.publish(submission("new", **WHOLE))
            await until(service, lambda body: body["units"] == 1)
            assert not bus.events(JobPreempted)
            await steps(stack, first, time.time(), 1, 100_000)
            preempted = await bus.expect(JobPreempted)
            assert preempted.job_id == "long"
            await bus.publish(report(RunFailed, first, kind=run_pb2.RUN_FAILURE_KIND_STOPPED))
            await bus.expect(Assignment, starts("new"))
            known = live_of(service).book.measured.told()
            [(job_id, cell, rate)] = known.rates
            assert (job_id, cell) == ("long", Cell("A100", 1))
            assert rate == pytest.approx(2.0)
            await check_replay(stack, service)
        async with stack.service("scheduler") as service:
            # What was learned outlives the process; without a checkpoint nothing is done any more.
            found = live_of(service).book.measured
            assert found.told().rates == known.rates
            assert found.steps_left(KEY) == 100_000.0
            await bus.publish(JobCancelRequested(job_id="new", tenant_id="lab"))
            new = await bus.expect(Assignment, starts("new"))
            await bus.publish(report(RunFailed, new, kind=run_pb2.RUN_FAILURE_KIND_STOPPED))
            await bus.expect(Assignment, starts("long", 2))
            await check_replay(stack, service)


async def until_seen(bus: Probe, rate: float) -> None:
    """Until reports are seen of which this is the rate: steps between two of them over the time between them."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            told = [(event.at.ToNanoseconds() / 1e9, event.step) for event in bus.events(RunProgress)]
            rates = {
                (step - before) / (at_s - first_s) for first_s, before in told for at_s, step in told if at_s > first_s
            }
            if any(found == pytest.approx(rate, rel=1e-3) for found in rates):
                return
            await asyncio.sleep(0.1)


PROGRAM = (
    "n=0; while [ $n -lt 4000 ]; do n=$((n+1));"
    ' echo "@meridian {\\"progress\\": {\\"step\\": $n, \\"total_steps\\": 4000}}"; sleep 0.1; done'
)


async def test_rates_of_real_programs_are_learned(database_url: str, tmp_path: Path) -> None:
    """A step takes a tenth of a second and a little."""
    async with network(database_url, tmp_path, accelerators=1) as found:
        await found.use(SRPT.replace("order: [shortest_remaining, age]", "order: [shortest_remaining, smallest, age]"))
        bus, begun_s = found.stack.bus, time.time()
        resources = Resources(cpus=0.1, accelerators=1)
        await bus.publish(submission("long", command=["sh", "-c", PROGRAM], resources=resources))
        await bus.expect(RunStarted)
        await bus.publish(submission("later", command=["true"], resources=resources, max_run_time_s=100_000))
        measured = live_of(found.scheduler).book.measured
        await learned(found.scheduler, lambda: measured.knows("long"))
        [(job_id, cell, rate)] = measured.told().rates
        assert (job_id, cell.ranks) == ("long", 1)
        assert rate > 0.0
        await until_seen(bus, rate)
        left = measured.steps_left(KEY)
        assert left is not None
        assert left < 4000
        book = live_of(found.scheduler).book
        end_s = book.cluster.running[KEY].expected_end_s
        assert begun_s - 15.0 <= end_s - left / rate <= time.time() + 15.0
        await bus.publish(JobCancelRequested(job_id="long", tenant_id="lab"))
        await bus.expect(RunStarted, lambda event: event.job_id == "later")
        await found.check_replay()
