"""The scheduler against a real broker and PostgreSQL: from submission to the end, failures, restarts, many jobs."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

import httpx
import pytest

from meridian.clock import VirtualClock
from meridian.codec import Envelope
from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.failover.v1.failover_pb2 import NodeFailed, RecoveryPlanned
from meridian.contracts.identity.v1 import identity_pb2
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import (
    JobCancelRequested,
    JobFinished,
    JobPlaced,
    JobPreempted,
    JobQueued,
    WorkflowTask,
)
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import Assignment, RunCheckpointed, RunFailed, RunFinished, RunStarted
from meridian.database import migrate
from meridian.embedded.probes import tcp_accepts
from meridian.embedded.process import ProcessSpec
from services.scheduler import store
from services.scheduler.core.fleet import Mark, MarkKind, with_mark
from services.scheduler.errors import LeadershipLostError
from tests.fixtures_embedded import free_port, running
from tests.harness import PATIENCE_S, ROOT, Environment, RunningService, environment
from tests.integration.scheduler.messages import START, STOP, graph, report, submission
from tests.integration.scheduler.passing_time import clock_of_now, live_of, passes

T = TypeVar("T")


@asynccontextmanager
async def scheduler(
    database_url: str, clock: VirtualClock | None = None
) -> AsyncIterator[tuple[Environment, RunningService]]:
    async with environment(database_url) as stack, stack.service("scheduler", clock=clock) as service:
        yield stack, service


def starts(job_id: str, epoch: int = 1):  # type: ignore[no-untyped-def]
    return lambda event: event.job_id == job_id and event.action == START and event.epoch == epoch


async def test_submitted_placed_finished(database_url: str) -> None:
    async with scheduler(database_url) as (stack, service):
        bus = stack.bus
        await bus.publish(graph("beijing", 2))
        await bus.publish(
            submission(
                "job-1",
                resources=Resources(cpus=4, memory_bytes=2**30, accelerators=2),
                env={"SEED": "7"},
                working_dir="/work",
                max_run_time_s=60,
            )
        )
        start = await bus.expect(Assignment, starts("job-1"))
        placed = await bus.expect(JobPlaced)
        queued = await bus.expect(JobQueued)
        assert (queued.units, queued.tenant_id) == (1, "lab")
        assert (placed.run_id, placed.epoch, placed.accelerators) == ("job-1.0.1", 1, 2)
        assert placed.policy_version.startswith("balanced-")
        assert (start.domain_id, start.world_size, dict(start.env)) == ("beijing", 1, {"SEED": "7"})
        assert (list(start.command), start.working_dir) == (["python", "train.py"], "/work")
        assert (start.cpus, start.memory_bytes, start.max_run_time_s) == (4, 2**30, 60)
        assert [list(rank.accelerator_indices) for rank in start.ranks] == [[0, 1]]
        assert start.master_addr == "127.0.0.1"
        assert 20_000 <= start.master_port < 30_000

        await until(service, lambda body: free(body) == [6, 8], "/v1/nodes")
        await bus.publish(report(RunStarted, start), report(RunFinished, start))
        finished = await bus.expect(JobFinished)
        assert finished.outcome == job_pb2.JOB_OUTCOME_SUCCEEDED
        await until(service, lambda body: free(body) == [8, 8], "/v1/nodes")

        found = (await service.http.get("/v1/jobs/job-1/explanation")).json()
        assert found["state"] == "succeeded"
        assert found["units"][0]["run"]["run_id"] == "job-1.0.1"
        assert found["units"][0]["placement"]["chosen"]["place"] == "beijing"
        assert found["decisions"][0]["decision_id"] == placed.decision_id
        assert (await service.http.get("/v1/jobs/job-2/explanation")).status_code == 404


def free(body: dict[str, Any]) -> list[float]:
    """Free accelerators of each node."""
    return [node["accelerators_free"] for node in body["items"]]


async def test_a_lost_node_gives_a_new_epoch_elsewhere(database_url: str) -> None:
    async with scheduler(database_url, clock_of_now()) as (stack, _):
        bus = stack.bus
        await bus.publish(graph("beijing", 4))
        await bus.publish(
            submission("job-1", kind=job_pb2.JOB_KIND_GANG, ranks=2, resources=Resources(cpus=1, accelerators=8))
        )
        first = await bus.expect(Assignment, starts("job-1"))
        held = {rank.node_id for rank in first.ranks}
        assert len(held) == 2
        lost = min(held)
        await bus.publish(
            report(RunStarted, first),
            report(RunCheckpointed, first, step=40, path="/ckpt/40", size_bytes=10),
        )
        await bus.publish(NodeFailed(domain_id="beijing", node_id=lost, run_ids=[first.run_id]))
        await bus.publish(
            RecoveryPlanned(
                domain_id="beijing",
                job_id="job-1",
                run_id=first.run_id,
                epoch=1,
                restore_from="/ckpt/40",
                restore_step=40,
                exclude_node_ids=[lost],
                reason=f"{lost} failed",
            )
        )
        stop = await bus.expect(Assignment, lambda event: event.action == STOP)
        assert (stop.run_id, stop.grace_s) == (first.run_id, 5)
        preempted = await bus.expect(JobPreempted)
        assert (preempted.run_id, preempted.epoch) == (first.run_id, 1)
        # The other rank may still write: nothing of it starts before the agent says that it ended, though others do.
        await bus.publish(submission("other", resources=Resources(cpus=1)))
        await bus.expect(Assignment, starts("other"))
        assert not bus.events(Assignment, starts("job-1", 2))
        await bus.publish(report(RunFailed, first, kind=run_pb2.RUN_FAILURE_KIND_STOPPED))
        second = await bus.expect(Assignment, starts("job-1", 2))
        assert lost not in {rank.node_id for rank in second.ranks}
        assert (second.restore_from, second.restore_step) == ("/ckpt/40", 40)
        assert second.run_id == "job-1.0.2"
        requeued = await bus.expect(JobQueued, lambda event: event.HasField("unit_index"))
        assert requeued.unit_index == 0
        # Late news of the first run change nothing.
        await bus.publish(report(RunFinished, first), report(RunFailed, first, kind=run_pb2.RUN_FAILURE_KIND_PROGRAM))
        await bus.publish(report(RunFinished, second))
        finished = await bus.expect(JobFinished)
        assert (finished.outcome, finished.restarts) == (job_pb2.JOB_OUTCOME_SUCCEEDED, 1)
        assert len(bus.events(JobFinished)) == 1


async def test_cancel_waits_for_what_runs_and_not_for_what_waits(database_url: str) -> None:
    async with scheduler(database_url, clock_of_now()) as (stack, service):
        bus = stack.bus
        await bus.publish(graph("beijing", 1, accelerators=1))
        wish = {"resources": Resources(cpus=1, accelerators=1)}
        await bus.publish(submission("job-1", **wish))
        start = await bus.expect(Assignment, starts("job-1"))
        await bus.publish(submission("job-2", **wish))
        await bus.expect(JobQueued, lambda event: event.job_id == "job-2")
        await until(service, lambda body: body["units"] == 1 and "waiting for capacity" in body["items"][0]["reason"])

        await bus.publish(JobCancelRequested(job_id="job-2", tenant_id="lab", reason="changed my mind"))
        finished = await bus.expect(JobFinished, lambda event: event.job_id == "job-2")
        assert (finished.outcome, finished.reason) == (job_pb2.JOB_OUTCOME_CANCELLED, "changed my mind")

        await bus.publish(JobCancelRequested(job_id="job-1", tenant_id="lab"))
        stop = await bus.expect(Assignment, lambda event: event.action == STOP)
        assert (stop.job_id, stop.epoch) == ("job-1", 1)
        assert not bus.events(JobFinished, lambda event: event.job_id == "job-1")
        await bus.publish(report(RunFailed, start, kind=run_pb2.RUN_FAILURE_KIND_STOPPED))
        finished = await bus.expect(JobFinished, lambda event: event.job_id == "job-1")
        assert finished.outcome == job_pb2.JOB_OUTCOME_CANCELLED


async def until(service: RunningService, holds: Callable[[dict[str, Any]], bool], path: str = "/v1/queue") -> None:
    """Ask until the answer is as expected."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds((await service.http.get(path)).json()):
            await asyncio.sleep(0.02)


async def test_a_program_that_fails_is_tried_again_and_then_fails_the_job(database_url: str) -> None:
    async with scheduler(database_url, clock_of_now()) as (stack, service):
        bus = stack.bus
        await bus.publish(graph("beijing", 1))
        await bus.publish(submission("job-1", max_restarts=1))
        first = await bus.expect(Assignment, starts("job-1"))
        failure = {"kind": run_pb2.RUN_FAILURE_KIND_PROGRAM, "reason": "rank 0 ended with exit code 3"}
        await bus.publish(report(RunFailed, first, **failure))
        await until(
            service,
            lambda body: bool(body["items"]) and body["items"][0]["reason"].startswith("backing off: restart 1 of 1"),
        )
        assert not bus.events(Assignment, starts("job-1", 2))
        passes(service, 1.0)
        second = await bus.expect(Assignment, starts("job-1", 2))
        assert second.assigned_at.ToNanoseconds() - first.assigned_at.ToNanoseconds() == pytest.approx(1e9, abs=1e6)
        await bus.publish(report(RunFailed, second, **failure))
        finished = await bus.expect(JobFinished)
        assert (finished.outcome, finished.restarts) == (job_pb2.JOB_OUTCOME_FAILED, 1)
        assert "exit code 3" in finished.reason
        assert not bus.events(JobPreempted)


async def test_malformed_jobs_are_refused_and_impossible_ones_wait_with_a_reason(database_url: str) -> None:
    async with scheduler(database_url) as (stack, service):
        bus = stack.bus
        await bus.publish(graph("beijing", 1, accelerators=2))
        cycle = [WorkflowTask(name="a", depends_on=["b"]), WorkflowTask(name="b", depends_on=["a"])]
        await bus.publish(submission("job-1", kind=job_pb2.JOB_KIND_WORKFLOW, tasks=cycle))
        refused = await bus.expect(JobFinished)
        assert refused.outcome == job_pb2.JOB_OUTCOME_FAILED
        assert "cycle" in refused.reason

        await bus.publish(submission("job-2", resources=Resources(accelerators=4)))
        await until(
            service, lambda body: bool(body["items"]) and body["items"][0]["reason"].startswith("too large for what is")
        )
        found = (await service.http.get("/v1/jobs/job-2/explanation")).json()
        waiting = found["units"][0]["waiting"]
        assert waiting["position"] == 1
        rejected = {item["filter"]: item for item in waiting["explanation"]["filters"] if item["rejected"]}
        assert rejected["capacity"]["nodes"][0]["reason"] == "2 of 2 accelerators free, 4 wanted"
        # When a node that can hold it joins, it runs.
        await bus.publish(graph("shanghai", 1, accelerators=4))
        start = await bus.expect(Assignment, starts("job-2"))
        assert start.domain_id == "shanghai"


EXPLAINED = "/v1/jobs/job-1/explanation"


async def test_a_workflow_runs_in_the_order_of_its_dependencies(database_url: str) -> None:
    async with scheduler(database_url) as (stack, service):
        bus = stack.bus
        await bus.publish(graph("beijing", 1))
        tasks = [
            WorkflowTask(name="merge", depends_on=["left", "right"], command=["merge"]),
            WorkflowTask(name="left", command=["left"]),
            WorkflowTask(name="right", command=["right"]),
        ]
        await bus.publish(submission("job-1", kind=job_pb2.JOB_KIND_WORKFLOW, tasks=tasks))
        await bus.expect(Assignment, starts("job-1"), count=2)
        first = {item.unit_name: item for item in bus.events(Assignment, starts("job-1"))}
        assert set(first) == {"left", "right"}
        await bus.publish(report(RunFinished, first["left"]))
        await until(service, lambda body: "succeeded" in {unit["state"] for unit in body["units"]}, EXPLAINED)
        await bus.publish(submission("other"))
        await bus.expect(Assignment, starts("other"))
        assert len(bus.events(Assignment, starts("job-1"))) == 2
        await bus.publish(report(RunFinished, first["right"]))
        merge = await bus.expect(Assignment, starts("job-1"), count=3)
        assert (merge.unit_name, merge.unit_index, list(merge.command)) == ("merge", 0, ["merge"])
        await bus.publish(report(RunFinished, merge))
        assert (await bus.expect(JobFinished)).outcome == job_pb2.JOB_OUTCOME_SUCCEEDED


async def test_a_revoked_node_loses_its_run_and_takes_no_other(database_url: str) -> None:
    async with scheduler(database_url) as (stack, service):
        bus = stack.bus
        await bus.publish(graph("beijing", 2))
        await bus.publish(submission("job-1"))
        first = await bus.expect(Assignment, starts("job-1"))
        node_id = first.ranks[0].node_id
        await bus.publish(
            identity_pb2.IdentityRevoked(
                identity_id=f"cid-{node_id}",
                kind=identity_pb2.IDENTITY_KIND_NODE,
                domain_id="beijing",
                node_id=node_id,
                reason="key compromised",
            )
        )
        await bus.expect(JobPreempted, lambda event: "key compromised" in event.reason)
        await bus.publish(report(RunFailed, first, kind=run_pb2.RUN_FAILURE_KIND_STOPPED))
        second = await bus.expect(Assignment, starts("job-1", 2))
        assert second.ranks[0].node_id != node_id
        nodes = {node["node_id"]: node for node in (await service.http.get("/v1/nodes")).json()["items"]}
        assert nodes[node_id]["reason"] == "its identity was revoked"
        assert not nodes[node_id]["schedulable"]


async def test_what_if_stores_nothing(database_url: str) -> None:
    async with scheduler(database_url) as (stack, service):
        await stack.bus.publish(graph("beijing", 2))
        await until(service, lambda body: len(body["items"]) == 2, "/v1/nodes")
        spec = {"kind": "gang", "ranks": 2, "command": ["x"], "resources": {"accelerators": 8}}
        answer = (await service.http.post("/v1/what-if", json=spec)).json()
        assert answer["placeable"]
        assert {rank["node_id"] for rank in answer["items"][0]["ranks"]} == {"beijing-1", "beijing-2"}
        again = (await service.http.post("/v1/what-if", json={**spec, "ranks": 3})).json()
        assert not again["placeable"]
        assert again["items"][0]["reason"].startswith("too large for what is there now: 3 ranks wanted")
        assert (await service.http.get("/v1/queue")).json()["units"] == 0
        for body in ({"kind": "gang"}, {"kind": "no such"}, {"kind": "task", "nonsense": 1}):
            problem = await service.http.post("/v1/what-if", json=body)
            assert (problem.status_code, problem.headers["content-type"]) == (422, "application/problem+json")


@pytest.mark.timeout(12 * PATIENCE_S)
async def test_after_a_kill_nothing_is_lost_and_nothing_assigned_twice(database_url: str) -> None:
    """The process is a child that is killed -9 again and again while jobs are submitted and end."""
    async with environment(database_url) as stack:
        await migrate(database_url, "scheduler", ROOT / "services/scheduler/migrations")
        bus, jobs, kills = stack.bus, 220, 0
        await bus.publish(graph("beijing", 2, cpus=10), graph("shanghai", 2, cpus=10))
        answered: set[str] = set()
        # The relay may send an event again, with the same id, when it was killed before it could note that it had.
        finished = lambda: len({event.job_id for event in bus.events(JobFinished)})  # noqa: E731
        submitted = 0
        deadline = time.monotonic() + 10 * PATIENCE_S
        while finished() < jobs:
            assert time.monotonic() < deadline, f"{finished()} of {jobs} finished, {kills} kills"
            with running(scheduler_process(stack)) as process:
                # A killed member's partitions are given to its successor when its session of 10 s is over.
                begun = finished()
                while finished() < min(begun + 60, jobs) and time.monotonic() < deadline:
                    more = [
                        submission(f"job-{number}") for number in range(submitted, min(submitted + 5, begun + 70, jobs))
                    ]
                    submitted += len(more)
                    ended = [item for item in bus.events(Assignment) if item.run_id not in answered]
                    answered.update(item.run_id for item in ended)
                    await bus.publish(*more, *(report(RunFinished, item) for item in ended))
                    await asyncio.sleep(0.02)
                process.kill()
                process.wait()
                kills += finished() < jobs
        assert kills >= 3, "it was not killed in the middle of the work"
        assert all(event.outcome == job_pb2.JOB_OUTCOME_SUCCEEDED for event in bus.events(JobFinished))
        for kind in (Assignment, JobPlaced, JobFinished):
            ids = {event_id(item) for item in bus.seen if isinstance(item.data, kind)}
            assert len(ids) == jobs, f"{kind.DESCRIPTOR.name}: {len(ids)} events"
        assert {item.epoch for item in bus.events(Assignment)} == {1}
        assert not bus.dead_letters


def event_id(envelope: Envelope) -> tuple[str, str]:
    return envelope.source, envelope.id


def scheduler_process(stack: Environment) -> ProcessSpec:
    port = free_port("scheduler")
    return ProcessSpec(
        name="scheduler",
        argv=(sys.executable, "-m", "meridian.service", "scheduler"),
        env={
            **os.environ,
            "MERIDIAN_DATABASE_URL": stack.database_url,
            "MERIDIAN_KAFKA_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
            "MERIDIAN_SCHEDULER_HTTP_PORT": str(port),
        },
        cwd=ROOT,
        log_path=stack.data_dir / "scheduler.log",
        ready=tcp_accepts("127.0.0.1", port),
        ready_timeout_s=2 * PATIENCE_S,
        stop_timeout_s=PATIENCE_S,
    )


async def test_a_second_scheduler_stands_by_and_takes_over(database_url: str) -> None:
    async with environment(database_url) as stack:
        async with stack.service("scheduler"):
            await stack.bus.publish(graph("beijing", 1), submission("job-1"))
            start = await stack.bus.expect(Assignment, starts("job-1"))
            second = asyncio.create_task(enter(stack.service("scheduler")))
            await asyncio.sleep(1.5)
            assert not second.done(), "two schedulers lead"
        service, leave = await asyncio.wait_for(second, PATIENCE_S)
        nodes = (await service.http.get("/v1/nodes")).json()["items"]
        assert nodes[0]["ranks"] == 1, "the second knows what the first has placed"
        await stack.bus.publish(report(RunFinished, start))
        await stack.bus.expect(JobFinished)
        await leave()


async def test_a_scheduler_that_stands_by_can_be_stopped(database_url: str) -> None:
    async with environment(database_url) as stack, stack.service("scheduler"):
        waiting = replace(scheduler_process(stack), ready=None)
        with running(waiting) as process:
            async with asyncio.timeout(PATIENCE_S):
                while "standing by" not in waiting.log_path.read_text():
                    assert process.poll() is None
                    await asyncio.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0


async def enter(context: AbstractAsyncContextManager[T]) -> tuple[T, Callable[[], Awaitable[None]]]:
    stack = AsyncExitStack()
    return await stack.enter_async_context(context), stack.aclose


async def test_a_deposed_scheduler_ends_and_leaves_events_to_its_successor(database_url: str) -> None:
    async with environment(database_url) as stack:
        with pytest.raises(LeadershipLostError):
            async with stack.service("scheduler") as service:
                await stack.bus.publish(graph("beijing", 1))
                await until(service, lambda body: len(body["items"]) == 1, "/v1/nodes")
                async with service.kernel.database.transaction() as connection:
                    await store.begin_term(connection)
                await stack.bus.publish(submission("job-1"))
                await until_gone(service)
        assert not stack.bus.events(JobQueued)
        async with stack.service("scheduler"):
            await stack.bus.expect(JobPlaced)
        assert not stack.bus.dead_letters


async def until_gone(service: RunningService) -> None:
    """Until nobody listens any more where the service did."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await service.http.get("/health/live")
            except httpx.ConnectError:
                return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)


async def test_memory_follows_the_database_after_a_rollback(database_url: str) -> None:
    async with scheduler(database_url) as (stack, service):
        await stack.bus.publish(graph("beijing", 1))
        await until(service, lambda body: len(body["items"]) == 1, "/v1/nodes")
        live = live_of(service)
        with pytest.raises(RuntimeError, match="on purpose"):
            async with service.kernel.outbox.transaction() as transaction:
                draft = await live.draft(transaction)
                draft.fleet = with_mark(draft.fleet, Mark(MarkKind.NODE_FAILED, "beijing-1"))
                await live.write(transaction, draft)
                raise RuntimeError("on purpose")
        await stack.bus.publish(submission("job-1"))
        await stack.bus.expect(JobPlaced)
        assert not live.book.fleet.marks


@pytest.mark.timeout(15 * PATIENCE_S)
async def test_a_thousand_jobs(
    database_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Decisions are measured by the processor time of this thread: it is the same when the machine has other things to do.
    monkeypatch.setattr("services.scheduler.live.time", SimpleNamespace(perf_counter=time.thread_time))
    async with scheduler(database_url) as (stack, service):
        for number, domain_id in enumerate(("beijing", "shanghai", "shenzhen", "chengdu", "guizhou")):
            await stack.bus.publish(graph(domain_id, 4 if number < 2 else 3))
        await until(service, lambda body: len(body["items"]) == 17, "/v1/nodes")
        begun = time.monotonic()
        await stack.bus.publish(*(submission(f"job-{number}", f"tenant-{number % 5}") for number in range(1000)))
        await stack.bus.expect(Assignment, count=1000, timeout_s=4 * PATIENCE_S)
        took_s = time.monotonic() - begun
        await stack.bus.expect(JobPlaced, count=1000, timeout_s=4 * PATIENCE_S)
        placed = stack.bus.events(JobPlaced)
        assert len({event.job_id for event in placed}) == 1000
        await stack.bus.publish(*(report(RunFinished, item) for item in stack.bus.events(Assignment)))
        await stack.bus.expect(JobFinished, count=1000, timeout_s=4 * PATIENCE_S)
        ended_s = time.monotonic() - begun
        metrics = (await service.http.get("/metrics")).text
        value = lambda name: float(re.findall(rf"^{name} (\S+)$", metrics, re.MULTILINE)[0])  # noqa: E731
        deciding_s = value("meridian_scheduler_deciding_seconds_sum")
        cycles = value("meridian_scheduler_cycle_seconds_count")
        with capsys.disabled():
            print(
                f"\n1000 jobs: assigned in {took_s:.2f} s ({1000 / took_s:.0f}/s), finished after {ended_s:.2f} s; "
                f"{cycles:.0f} cycles, {value('meridian_scheduler_cycle_seconds_sum') / cycles * 1e3:.1f} ms of processor time each, "
                f"deciding {deciding_s * 1e3:.0f} ms in all ({1000 / deciding_s:.0f} decisions/s)"
            )
        assert deciding_s < 1.0
        await until(service, lambda body: all(node["cpus_free"] == node["cpus"] for node in body["items"]), "/v1/nodes")
