"""Shards and deciders of domains over the bus, as real processes with a real database."""

from __future__ import annotations

from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import JobFinished, JobPlaced
from meridian.contracts.run.v1.run_pb2 import Assignment, RunFinished, RunStarted
from meridian.contracts.scheduler.v1.scheduler_pb2 import DomainSummary, PlacementAnswer, PlacementRequest
from tests.harness import environment
from tests.integration.scheduler.two_levels import Parts, graph, report, submission


async def test_a_job_goes_through_both_levels(database_url: str) -> None:
    async with environment(database_url) as stack:
        parts, bus = Parts(stack), stack.bus
        await parts.prepare()
        await bus.publish(graph("beijing", 2), graph("shanghai", 1))
        with parts.decider(), parts.shard():
            await bus.publish(submission("job-1", accelerators=2))
            start = await bus.expect(Assignment)
            placed = await bus.expect(JobPlaced)
            assert (placed.run_id, placed.epoch, placed.accelerators) == ("job-1.0.1", 1, 2)
            assert [list(rank.accelerator_indices) for rank in start.ranks] == [[0, 1]]
            asked = bus.events(PlacementRequest, lambda event: bool(event.wanted))
            assert [(item.domain_id, len(item.wanted)) for item in asked] == [(start.domain_id, 1)]
            assert len(bus.events(PlacementAnswer, lambda event: bool(event.placed))) == 1
            assert bus.events(DomainSummary)
            await bus.publish(report(RunStarted, start), report(RunFinished, start))
            finished = await bus.expect(JobFinished)
            assert finished.outcome == job_pb2.JOB_OUTCOME_SUCCEEDED
            given_back = await bus.expect(PlacementRequest, lambda event: bool(event.released))
            assert (given_back.released[0].job_id, given_back.released[0].epoch) == ("job-1", 1)
        assert not bus.dead_letters
