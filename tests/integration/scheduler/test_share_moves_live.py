"""A running job goes to another domain where the plan of a window would be broken without, and only there."""

from __future__ import annotations

import asyncio
from typing import Any

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.graph.v1.graph_pb2 import GraphUpdated
from meridian.contracts.job.v1.job_pb2 import JobFinished, JobPreempted
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import Assignment, RunFailed, RunFinished, RunStarted
from services.scheduler.core.cycle import MOVED
from services.scheduler.replay import replay
from tests.harness import PATIENCE_S, environment
from tests.integration.scheduler.messages import STOP, graph, report, submission
from tests.integration.scheduler.passing_time import clock_of_now, live_of, passes
from tests.integration.scheduler.test_replay_live import caught_up
from tests.integration.scheduler.test_service import starts

ONE: dict[str, Any] = {"resources": Resources(cpus=1, accelerators=1)}
POLICY = """
name: moving
allocation:
  scores: {share_deficit: 1}
shares:
  planned: {beijing: 1, shanghai: 1}
  plan: per_window
  move_every_s: 120
  tolerance: 0.3
"""


async def test_a_job_moves_where_a_plan_would_be_broken_and_stays_where_not(database_url: str) -> None:
    async with environment(database_url) as stack, stack.service("scheduler", clock=clock_of_now()) as service:
        bus, live = stack.bus, live_of(service)
        await bus.publish(graph("beijing", 1), graph("shanghai", 1))
        await bus.expect(GraphUpdated, count=2)
        answer = await service.http.put("/v1/policy", content=POLICY.encode())
        assert answer.status_code == 200, answer.text
        for number in range(8):
            await bus.publish(submission(f"job-{number}", **ONE))
            await bus.publish(report(RunStarted, await bus.expect(Assignment, starts(f"job-{number}"))))
        by_domain: dict[str, list[Assignment]] = {"beijing": [], "shanghai": []}
        for item in bus.events(Assignment):
            by_domain[item.domain_id].append(item)
        assert [len(items) for items in by_domain.values()] == [4, 4]
        # A window begins with four and four: half each is its plan, and nothing has to move.
        passes(service, 7201.0 - live.now_s() % 3600.0)
        await looked(live)
        assert not bus.events(JobPreempted)
        # Three of shanghai end: 4 and 1 are 60 % off, 3 and 2 are 20 %.
        await bus.publish(*(report(RunFinished, item) for item in by_domain["shanghai"][:3]))
        await bus.expect(JobFinished, count=3)
        passes(service, 121.0)
        moved = await bus.expect(JobPreempted)
        assert moved.reason == MOVED
        stop = await bus.expect(Assignment, lambda event: event.action == STOP)
        assert (stop.domain_id, stop.run_id) == ("beijing", moved.run_id)
        await bus.publish(report(RunFailed, stop, kind=run_pb2.RUN_FAILURE_KIND_STOPPED))
        again = await bus.expect(Assignment, starts(moved.job_id, 2))
        assert again.domain_id == "shanghai"
        await bus.publish(report(RunStarted, again))
        passes(service, 121.0)
        await looked(live)
        assert len(bus.events(JobPreempted)) == 1
        entries, events = await caught_up(stack, service)
        found = replay(entries, events)
        assert (found.differences, found.preemptions) == ([], 1)


async def looked(live: Any) -> None:
    """It was looked whether anything must move, at the time that it is now."""
    async with asyncio.timeout(PATIENCE_S):
        while live._moves_looked_at_s < live.now_s():
            await asyncio.sleep(0.02)
