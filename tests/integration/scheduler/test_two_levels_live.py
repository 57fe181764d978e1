"""Shards and deciders of domains over the bus, as real processes with a real database."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack

import asyncpg
import pytest

from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import JobFinished, JobPlaced
from meridian.contracts.run.v1.run_pb2 import Assignment, RunFinished, RunStarted
from meridian.contracts.scheduler.v1.scheduler_pb2 import DomainSummary, PlacementAnswer, PlacementRequest
from tests.harness import PATIENCE_S, Environment, environment
from tests.integration.scheduler.two_levels import START, Agents, Parts, graph, report, submission


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
            await bus.expect(PlacementRequest, lambda event: bool(event.wanted))
            await bus.expect(PlacementAnswer, lambda event: bool(event.placed))
            await bus.expect(DomainSummary)
            asked = bus.events(PlacementRequest, lambda event: bool(event.wanted))
            assert [(item.domain_id, len(item.wanted)) for item in asked] == [(start.domain_id, 1)]
            assert len(bus.events(PlacementAnswer, lambda event: bool(event.placed))) == 1
            await bus.publish(report(RunStarted, start), report(RunFinished, start))
            finished = await bus.expect(JobFinished)
            assert finished.outcome == job_pb2.JOB_OUTCOME_SUCCEEDED
            given_back = await bus.expect(PlacementRequest, lambda event: bool(event.released))
            assert (given_back.released[0].job_id, given_back.released[0].epoch) == ("job-1", 1)
        assert not bus.dead_letters


JOBS = 200


@pytest.mark.timeout(12 * PATIENCE_S)
async def test_200_jobs_while_a_shard_and_a_decider_are_killed(database_url: str) -> None:
    """Two shards, two deciders, a second process for one of each that stands by and takes over."""
    async with environment(database_url) as stack:
        parts, bus = Parts(stack, shards=2, deciders=2), stack.bus
        await parts.prepare()
        names = ("beijing", "shanghai", "shenzhen", "chengdu")
        await bus.publish(*(graph(name, 2) for name in names))
        agents = Agents(bus)
        acting = asyncio.create_task(agents.run())
        with ExitStack() as processes:
            first = [processes.enter_context(parts.decider(0)), processes.enter_context(parts.shard(0))]
            processes.enter_context(parts.decider(1))
            processes.enter_context(parts.shard(1))
            # Of the same shard and the same decider: they wait until the lock is free.
            processes.enter_context(parts.shard(0, ready=False))
            processes.enter_context(parts.decider(0, ready=False))
            for begin in range(0, JOBS, 50):
                await bus.publish(
                    *(
                        submission(f"job-{number}", f"tenant-{number % 7}", accelerators=1 + number % 3)
                        for number in range(begin, begin + 50)
                    )
                )
                if begin == 50:
                    await bus.expect(JobFinished, count=20, timeout_s=2 * PATIENCE_S)
                    for process in first:
                        process.kill()
            await finished(stack, JOBS)
            audit = await audited(database_url, parts)
        acting.cancel()
        assert not agents.twice
        assert audit == Counter({1: JOBS}), "each unit has one run, of the first epoch"
        assert {item.epoch for item in bus.events(Assignment)} == {1}
        shards = {item.shard for item in bus.events(PlacementRequest)}
        assert shards == {"scheduler_0", "scheduler_1"}
        placed = Counter((item.name.job_id, item.name.epoch) for event in answers(stack) for item in event.placed)
        assert len(placed) == JOBS
        assert not bus.dead_letters


async def finished(stack: Environment, count: int) -> None:
    """Wait until so many jobs have ended well."""
    async with asyncio.timeout(5 * PATIENCE_S):
        while len({event.job_id for event in stack.bus.events(JobFinished)}) < count:
            await asyncio.sleep(0.05)
    assert all(event.outcome == job_pb2.JOB_OUTCOME_SUCCEEDED for event in stack.bus.events(JobFinished))


async def audited(database_url: str, parts: Parts) -> Counter[int]:
    """How many runs have which epoch over all shards; no grant is left at any decider."""
    connection = await asyncpg.connect(database_url.replace("+asyncpg", ""))
    try:
        runs: Counter[int] = Counter()
        seen: set[str] = set()
        for name in parts.names("scheduler", parts.shards):
            for row in await connection.fetch(f"SELECT run_id, epoch FROM {name}.run"):
                assert row["run_id"] not in seen
                seen.add(row["run_id"])
                runs[row["epoch"]] += 1
        async with asyncio.timeout(PATIENCE_S):
            for name in parts.names("scheduler_domain", parts.deciders):
                while await connection.fetchval(f"SELECT count(*) FROM {name}.unit_grant"):
                    await asyncio.sleep(0.05)
        return runs
    finally:
        await connection.close()


def answers(stack: Environment) -> list[PlacementAnswer]:
    """Those of all deciders, each once."""
    found = {item.id: item.data for item in stack.bus.seen if isinstance(item.data, PlacementAnswer)}
    return list(found.values())


async def test_of_two_processes_for_a_shard_one_writes(database_url: str) -> None:
    async with environment(database_url) as stack:
        parts, bus = Parts(stack), stack.bus
        await parts.prepare()
        await bus.publish(graph("beijing", 2))
        with parts.decider(), parts.shard(ready=False), parts.shard(ready=False), parts.decider(ready=False):
            await bus.publish(*(submission(f"job-{number}") for number in range(10)))
            await bus.expect(Assignment, count=10)
            await bus.expect(PlacementRequest)
            await bus.expect(PlacementAnswer)
            assert {(item.term, item.session) for item in bus.events(PlacementRequest)} == {(1, 1)}
            assert {item.domain_term for item in bus.events(PlacementAnswer)} == {1}
            starts = Counter(item.run_id for item in bus.events(Assignment) if item.action == START)
            assert starts == Counter({f"job-{number}.0.1": 1 for number in range(10)})
            connection = await asyncpg.connect(database_url.replace("+asyncpg", ""))
            grants = await connection.fetch("SELECT job_id, epoch, shard FROM scheduler_domain.unit_grant")
            await connection.close()
            assert sorted(tuple(row) for row in grants) == sorted(
                (f"job-{number}", 1, "scheduler") for number in range(10)
            )


async def test_a_deposed_decider_ends_and_leaves_requests_to_its_successor(database_url: str) -> None:
    async with environment(database_url) as stack:
        parts, bus = Parts(stack), stack.bus
        await parts.prepare()
        await bus.publish(graph("beijing", 1))
        with parts.decider() as former, parts.shard():
            await bus.expect(PlacementAnswer)
            connection = await asyncpg.connect(database_url.replace("+asyncpg", ""))
            await connection.execute("UPDATE scheduler_domain.leadership SET term = term + 1")
            await bus.publish(submission("job-1"))
            assert await asyncio.to_thread(former.wait, PATIENCE_S) == 1
            assert await connection.fetchval("SELECT count(*) FROM scheduler_domain.unit_grant") == 0
            await connection.close()
            assert not bus.events(PlacementAnswer, lambda event: bool(event.placed))
            with parts.decider():
                placed = await bus.expect(PlacementAnswer, lambda event: bool(event.placed))
                assert placed.domain_term == 3
                await bus.expect(JobPlaced)
        assert not bus.dead_letters
