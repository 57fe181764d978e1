"""What shards and deciders of domains decided is decided again from their journals, over kills and changes of who leads."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from meridian.contracts.job.v1.job_pb2 import JobCancelRequested, JobFinished, JobPlaced
from meridian.database import Database, migrate
from meridian.errors import NotFoundError
from meridian.settings import KernelSettings
from services.scheduler import store_journal
from services.scheduler.events import event_name
from services.scheduler.journal import Entry
from services.scheduler.replay import Report
from services.scheduler.replay_command import journal_of, replayed
from services.scheduler.shards.replay import replay
from tests.harness import PATIENCE_S, ROOT, Environment, environment
from tests.integration.scheduler.two_levels import Agents, Parts, graph, submission

JOBS = 60


@pytest.mark.timeout(10 * PATIENCE_S)
async def test_each_shard_and_each_decider_decides_the_same_again_after_kills(database_url: str) -> None:
    async with environment(database_url) as stack:
        parts, bus = Parts(stack, shards=2), stack.bus
        await parts.prepare()
        names = ("beijing", "shanghai", "shenzhen")
        await bus.publish(*(graph(name, 1) for name in names))
        acting = asyncio.create_task(Agents(bus).run())
        with ExitStack() as processes:
            first = [processes.enter_context(parts.decider()), processes.enter_context(parts.shard(0))]
            processes.enter_context(parts.shard(1))
            # They wait until the lock is free.
            processes.enter_context(parts.shard(0, ready=False))
            processes.enter_context(parts.decider(ready=False))
            for begin in range(0, JOBS, 20):
                await bus.publish(*(job(number) for number in range(begin, begin + 20)))
                await bus.publish(JobCancelRequested(job_id=f"job-{begin + 19}", tenant_id=tenant(begin + 19)))
                if begin == 20:
                    await bus.expect(JobFinished, count=10)
                    await until_written(database_url)
                    # What they decided in their last second is not in the journal yet, and is lost to it.
                    for process in first:
                        process.kill()
            async with asyncio.timeout(3 * PATIENCE_S):
                while len({event.job_id for event in bus.events(JobFinished)}) < JOBS:
                    await asyncio.sleep(0.05)
        acting.cancel()
        # Those that were not killed wrote the end of their journals when they were stopped.
        shards, decider = parts.names("scheduler", 2), "scheduler_domain"
        reports = {part: await replayed(settings_of(stack), part) for part in (*shards, decider)}
        for part, report in reports.items():
            assert report.differences == [], part
            assert report.cycles > 0
        assert reports["scheduler_0"].books >= 2
        assert reports[decider].books >= 2
        placed = {event.run_id for event in bus.events(JobPlaced)}
        begun = {run_id for part in shards for run_id in await runs_begun(database_url, part)}
        assert begun <= placed
        assert reports["scheduler_1"].placements == len(await runs_begun(database_url, "scheduler_1")) > 0
        assert reports[decider].placements >= JOBS // 2

        entries = await journal_of(database_url, "scheduler_1")
        assert {"begin", "session", "turn", "answers", "events"} <= {entry.kind for entry in entries}
        notices_something_else(entries, stack)


def job(number: int):  # type: ignore[no-untyped-def]
    """Some want two accelerators, some a gang over domains."""
    if number % 6 == 5:
        return submission(
            f"job-{number}", tenant(number), accelerators=2, kind="JOB_KIND_GANG", ranks=6, allow_cross_domain=True
        )
    return submission(f"job-{number}", tenant(number), accelerators=1 + number % 3)


def tenant(number: int) -> str:
    return f"tenant-{number % 7}"


def settings_of(stack: Environment) -> KernelSettings:
    return KernelSettings(
        kafka_bootstrap_servers=stack.bootstrap_servers, database_url=stack.database_url, data_dir=stack.data_dir
    )


async def until_written(database_url: str) -> None:
    """Until the journals of those that are killed next hold a good part of what they decided."""
    async with asyncio.timeout(PATIENCE_S):
        while len(await runs_begun(database_url, "scheduler_0")) < 2 or await granted(database_url) < JOBS // 4:
            await asyncio.sleep(0.1)


async def granted(database_url: str) -> int:
    """Units that the decider has given nodes to, by its journal."""
    try:
        entries = await journal_of(database_url, "scheduler_domain")
    except NotFoundError:
        return 0
    replies = [reply for entry in entries for reply in entry.body.get("outcome", {}).get("replies", ())]
    return sum(len(placed) for _, _, _, placed, *_ in replies)


async def runs_begun(database_url: str, part: str) -> list[str]:
    """Runs whose beginning is in the journal of a shard."""
    entries = await journal_of(database_url, part)
    return [run_id for entry in entries if entry.kind == "answers" for run_id, _ in entry.body["outcome"]["placed"]]


def notices_something_else(entries: list[Entry], stack: Environment) -> None:
    """A replay that is fed another outcome says where."""
    events = {event_name(item): item for item in stack.bus.seen}
    first = next(item for item in entries if item.kind == "answers" and item.body["outcome"]["placed"])
    first.body["outcome"]["placed"][0][1][0][0] = "elsewhere"
    report: Report = replay(entries, events)
    assert [(item.field, item.at_s) for item in report.differences] == [("placed", first.at_s)]


async def test_what_an_instance_writes_late_comes_before_the_term_of_its_successor(database_url: str) -> None:
    await migrate(database_url, "scheduler", ROOT / "services/scheduler/migrations")
    database = Database(database_url, "scheduler", pool_size=1)
    try:
        async with database.transaction() as connection:
            # It was stopped for a while: when it went on, the next one had begun.
            for term, begins, text in ((1, False, b"0"), (1, True, b"1"), (2, True, b"3"), (1, False, b"2")):
                row = {"term": term, "begins": begins, "first_at_s": 0.0, "last_at_s": 0.0, "entries": 1, "body": text}
                await store_journal.add_journal_chunk(connection, row)
        async with database.reading() as connection:
            assert await store_journal.journal_chunks(connection) == [b"1", b"2", b"3"]
    finally:
        await database.close()


async def test_a_part_without_a_journal_is_named(database_url: str) -> None:
    with pytest.raises(NotFoundError, match="'scheduler_7'"):
        await journal_of(database_url, "scheduler_7")
