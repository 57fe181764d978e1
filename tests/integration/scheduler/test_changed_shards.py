"""The number of shards is changed, and what was done stays done: real processes, a real database, the log of the bus."""

from __future__ import annotations

import os
import sys

import asyncpg
import pytest

from meridian.contracts.job.v1.job_pb2 import JobFinished, JobPlaced, JobQueued
from meridian.contracts.run.v1.run_pb2 import Assignment, RunFinished, RunStarted
from meridian.embedded.process import ProcessSpec
from meridian.errors import ConfigurationError
from meridian.sharding import shard_of_tenant
from services.scheduler.shards.handing_over import hand_over
from tests.fixtures_embedded import running
from tests.harness import PATIENCE_S, ROOT, Environment, environment
from tests.integration.scheduler.two_levels import START, Parts, graph, report, submission

SCRIPTS = ROOT / "services/scheduler/migrations"
ONE, TWO, THREE = ("scheduler",), ("scheduler_0", "scheduler_1"), ("scheduler_0", "scheduler_1", "scheduler_2")
TENANTS = ("lab", "acme", "vision", "ocean", "steel")


@pytest.fixture
def by_shard() -> dict[int, str]:
    """A tenant of each of two shards."""
    return {shard_of_tenant(name, 2): name for name in TENANTS}


async def prepared(stack: Environment, parts: Parts) -> int:
    """As `prepare` does: the schemas, then what belongs to other shards now."""
    await parts.prepare()
    return await hand_over(stack.database_url, parts.names("scheduler", parts.shards), SCRIPTS)


async def rows(stack: Environment, query: str) -> list[tuple[object, ...]]:
    connection = await asyncpg.connect(stack.database_url.replace("+asyncpg", ""))
    try:
        return [tuple(row) for row in await connection.fetch(query)]
    finally:
        await connection.close()


async def done(stack: Environment, job_id: str) -> None:
    """Wait for the job's START, report its run from begin to end, and wait until its job has ended."""
    start = await stack.bus.expect(Assignment, lambda event: event.job_id == job_id and event.action == START)
    await stack.bus.publish(report(RunStarted, start), report(RunFinished, start))
    await stack.bus.expect(JobFinished, lambda event: event.job_id == job_id)


@pytest.mark.timeout(12 * PATIENCE_S)
async def test_jobs_that_ended_do_not_run_again(database_url: str, by_shard: dict[int, str]) -> None:
    """One shard, two, one again: jobs of both tenants; one waits all the time, and one is submitted while none runs."""
    async with environment(database_url) as stack:
        bus = stack.bus
        await bus.publish(graph("beijing", 1))
        one, two = Parts(stack), Parts(stack, shards=2)
        assert await prepared(stack, one) == 0
        with one.decider(), one.shard():
            await bus.publish(*(submission(f"old-{number}", name) for number, name in by_shard.items()))
            for number in by_shard:
                await done(stack, f"old-{number}")
            await bus.publish(submission("waits", by_shard[1], accelerators=8))
            await bus.publish(submission("large", by_shard[1], accelerators=64))
            await done(stack, "waits")
        await bus.publish(submission("between", by_shard[0]))
        assert await prepared(stack, two) == 4
        assert await prepared(stack, two) == 0
        with two.decider(), two.shard(0), two.shard(1):
            await done(stack, "between")
            await bus.publish(*(submission(f"new-{number}", name) for number, name in by_shard.items()))
            for number in by_shard:
                await done(stack, f"new-{number}")
        assert await prepared(stack, one) == 7
        with one.decider(), one.shard():
            await bus.publish(submission("last", by_shard[1]))
            await done(stack, "last")
            await bus.publish(graph("shanghai", 1, accelerators=64))
            await done(stack, "large")
        placed = [event.run_id for event in bus.events(JobPlaced)]
        expected = ["between", "large", "last", "new-0", "new-1", "old-0", "old-1", "waits"]
        assert sorted(placed) == [f"{name}.0.1" for name in expected]
        assert len(bus.events(JobFinished)) == len(expected)
        assert not bus.dead_letters


async def test_a_job_that_runs_keeps_the_number_of_shards(database_url: str, by_shard: dict[int, str]) -> None:
    async with environment(database_url) as stack:
        one, two = Parts(stack), Parts(stack, shards=2)
        await stack.bus.publish(graph("beijing", 1))
        await prepared(stack, one)
        with one.decider(), one.shard():
            await stack.bus.publish(submission("runs", by_shard[1]), submission("ends", by_shard[1]))
            await stack.bus.expect(Assignment, lambda event: event.job_id == "runs")
            await done(stack, "ends")
            with pytest.raises(ConfigurationError, match="scheduler still runs; stop all schedulers"):
                await prepared(stack, two)
        with pytest.raises(
            ConfigurationError, match="1 jobs of scheduler that would go to another shard run, runs for one"
        ):
            await prepared(stack, two)
        assert await rows(stack, "SELECT job_id FROM scheduler.job ORDER BY job_id") == [("ends",), ("runs",)]
        assert await rows(stack, "SELECT job_id FROM scheduler_1.job") == []
        # Whoever starts a shard all the same is told.
        assert "jobs of scheduler belong to another; run `python -m meridian.service prepare`" in refused(stack, two)
        with one.decider(), one.shard():
            await done(stack, "runs")
        assert await prepared(stack, two) == 2


@pytest.mark.timeout(12 * PATIENCE_S)
async def test_what_runs_holds_its_devices_while_levels_change(database_url: str) -> None:
    """One level, two, one, two: a run is adopted by the decider, and what it held is free after it ended on one level."""
    async with environment(database_url) as stack:
        bus = stack.bus
        await bus.publish(graph("beijing", 1))
        two, one = Parts(stack), Parts(stack, env={"MERIDIAN_SCHEDULER_LEVELS": "one"})
        await prepared(stack, two)
        with one.shard():
            await bus.publish(submission("first", accelerators=8))
            first = await bus.expect(Assignment, lambda event: event.job_id == "first")
            await bus.publish(report(RunStarted, first))
        with two.decider(), two.shard():
            await bus.publish(submission("second", accelerators=8))
            await bus.expect(JobQueued, lambda event: event.job_id == "second")
            # Where the decider did not know of the first run, the second would be placed beside it now.
            await bus.publish(submission("small", accelerators=0))
            await done(stack, "small")
            assert not bus.events(JobPlaced, lambda event: event.job_id == "second")
            await bus.publish(report(RunFinished, first))
            second = await bus.expect(Assignment, lambda event: event.job_id == "second")
            await bus.publish(report(RunStarted, second))
        with one.shard():
            await bus.publish(report(RunFinished, second))
            await bus.expect(JobFinished, lambda event: event.job_id == "second")
        with two.decider(), two.shard():
            await bus.publish(submission("third", accelerators=8))
            await done(stack, "third")
        placed = [event.run_id for event in bus.events(JobPlaced)]
        assert placed == ["first.0.1", "small.0.1", "second.0.1", "third.0.1"]
        assert not bus.dead_letters


def refused(stack: Environment, parts: Parts) -> str:
    """What a shard says that does not start."""
    log = stack.data_dir / "refused.log"
    spec = ProcessSpec(
        name="shard",
        argv=(sys.executable, "-m", "meridian.service", "scheduler"),
        env={
            **os.environ,
            "MERIDIAN_DATABASE_URL": stack.database_url,
            "MERIDIAN_KAFKA_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
            "MERIDIAN_SCHEDULER_LEVELS": "two",
            "MERIDIAN_SCHEDULER_SHARDS": str(parts.shards),
        },
        cwd=ROOT,
        log_path=log,
    )
    with running(spec) as process:
        assert process.wait(2 * PATIENCE_S) == 2
    return log.read_text()


async def test_what_belongs_to_tenants_and_the_network_goes_along(database_url: str) -> None:
    """Objectives of tenants to their shard, the newer of two; policy and what was learned to all; what was unsent is sent."""
    async with environment(database_url) as stack:
        parts = {names: Parts(stack, shards=len(names)) for names in (ONE, TWO, THREE)}
        assert await prepared(stack, parts[ONE]) == 0
        first, second = sorted({shard_of_tenant(name, 2): name for name in TENANTS}.items())
        tenants = {first[1]: "scheduler_0", second[1]: "scheduler_1"}
        await rows(stack, "INSERT INTO scheduler.run_times (state) VALUES ('learned')")
        await rows(stack, "INSERT INTO scheduler.outbox (topic, headers) VALUES ('a', '[]'), ('b', '[]')")
        await rows(stack, POLICY.format(schema="scheduler", version="v1", at=100))
        for name in tenants:
            await rows(stack, OBJECTIVES.format(schema="scheduler", tenant=name, cost=0.5, at=100))
        assert await prepared(stack, parts[TWO]) == 0
        for name, schema in tenants.items():
            assert await rows(stack, f"SELECT tenant_id, weights->>'cost' FROM {schema}.tenant_objectives") == [
                (name, "0.5")
            ]
        for schema in TWO:
            assert await rows(stack, f"SELECT version, body FROM {schema}.policy_change") == [("v1", "{}")]
            assert await rows(stack, f"SELECT state FROM {schema}.run_times") == [(b"learned",)]
        assert await rows(stack, "SELECT topic FROM scheduler_0.outbox ORDER BY seq") == [("a",), ("b",)]
        former = await rows(stack, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'scheduler\\_before%'")
        assert len(former) == 1
        # A shard more: what it has not it gets from the others, who keep theirs.
        await rows(stack, POLICY.format(schema="scheduler_1", version="v2", at=200))
        await prepared(stack, parts[THREE])
        assert await rows(stack, "SELECT version FROM scheduler_2.policy_change") == [("v2",)]
        assert await rows(stack, "SELECT version FROM scheduler_0.policy_change") == [("v1",)]
        # And back: the newest of those that are no more, and a tenant's newer objectives.
        await prepared(stack, parts[ONE])
        assert await rows(stack, "SELECT version FROM scheduler.policy_change") == [("v2",)]
        assert {row[0] for row in await rows(stack, "SELECT tenant_id FROM scheduler.tenant_objectives")} == set(
            tenants
        )


POLICY = (
    "INSERT INTO {schema}.policy_change (version, origin, body, changed_at_s) VALUES ('{version}', 'api', '{{}}', {at})"
)
OBJECTIVES = (
    "INSERT INTO {schema}.tenant_objectives (tenant_id, weights, changed_by, changed_at_s) "
    "VALUES ('{tenant}', '{{\"cost\": {cost}}}', 'ann', {at})"
)
