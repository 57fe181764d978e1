"""Preemption, kept nodes and learned run times in the live service, against a real broker and PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import JobFinished, JobPlaced, JobPreempted, JobQueued
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import Assignment, RunCheckpointed, RunFailed, RunFinished, RunStarted
from tests.harness import Environment, RunningService, environment
from tests.integration.scheduler.messages import STOP, graph, report, submission
from tests.integration.scheduler.passing_time import clock_of_now, passes
from tests.integration.scheduler.test_service import live_of, starts, until

PREEMPTIVE = "extends: balanced\nname: preemptive\nselection:\n  preemption: [priority]\n"


def gang(ranks: int, priority: int = 0, **more: Any) -> dict[str, Any]:
    resources = Resources(cpus=1, accelerators=8)
    return {"kind": job_pb2.JOB_KIND_GANG, "ranks": ranks, "resources": resources, "priority": priority, **more}


@asynccontextmanager
async def preemptive(database_url: str) -> AsyncIterator[tuple[Environment, RunningService]]:
    async with environment(database_url) as stack, stack.service("scheduler", clock=clock_of_now()) as service:
        await use(service)
        yield stack, service


async def use(service: RunningService) -> None:
    answer = await service.http.put("/v1/policy", content=PREEMPTIVE.encode())
    assert answer.status_code == 200, answer.text


async def low_then_high(stack: Environment) -> Assignment:
    """A gang of low priority with a checkpoint holds both nodes; one of high priority comes and takes them."""
    bus = stack.bus
    await bus.publish(graph("beijing", 2))
    await bus.publish(submission("low", **gang(2)))
    first: Assignment = await bus.expect(Assignment, starts("low"))
    await bus.publish(
        report(RunStarted, first), report(RunCheckpointed, first, step=40, path="/ckpt/40", size_bytes=10)
    )
    await bus.publish(submission("high", **gang(2, priority=9)))
    await bus.expect(Assignment, lambda event: event.action == STOP and event.run_id == first.run_id)
    return first


async def test_a_gang_gives_way_as_a_whole_and_resumes_from_its_last_checkpoint(database_url: str) -> None:
    async with preemptive(database_url) as (stack, service):
        bus = stack.bus
        first = await low_then_high(stack)
        stop = await bus.expect(Assignment, lambda event: event.action == STOP)
        assert stop.grace_s == 5
        preempted = await bus.expect(JobPreempted)
        assert (preempted.job_id, preempted.run_id) == ("low", first.run_id)
        assert "priority preemption for high.0" in preempted.reason
        queued = await bus.expect(JobQueued, lambda event: event.HasField("unit_index"))
        assert (queued.job_id, queued.reason) == ("low", preempted.reason)
        # Nothing starts on the nodes before the agent says that the run ended.
        await until(service, lambda body: any("kept for it until low.0.1" in item["reason"] for item in body["items"]))
        assert not bus.events(Assignment, starts("high"))
        # The program writes its state when it is told to stop.
        await bus.publish(report(RunCheckpointed, first, step=55, path="/ckpt/55", size_bytes=10))
        await bus.publish(report(RunFailed, first, kind=run_pb2.RUN_FAILURE_KIND_STOPPED))
        high = await bus.expect(Assignment, starts("high"))
        assert {rank.node_id for rank in high.ranks} == {"beijing-1", "beijing-2"}
        found = (await service.http.get("/v1/jobs/high/explanation")).json()
        assert found["units"][0]["placement"]["chosen"]["place"] == "beijing"
        await until(service, lambda body: [item["job_id"] for item in body["items"]] == ["low"])
        assert not bus.events(Assignment, starts("low", 2))

        await bus.publish(report(RunFinished, high))
        second = await bus.expect(Assignment, starts("low", 2))
        assert (second.restore_from, second.restore_step) == ("/ckpt/55", 55)
        await bus.publish(report(RunFinished, second))
        finished = await bus.expect(JobFinished, lambda event: event.job_id == "low")
        assert finished.outcome == job_pb2.JOB_OUTCOME_SUCCEEDED
        units = (await service.http.get("/v1/jobs/low/explanation")).json()["units"]
        assert (units[0]["program_failures"], units[0]["recoveries"], units[0]["epoch"]) == (0, 0, 2)
        assert len(bus.events(JobPlaced)) == 3
        nodes = (await service.http.get("/v1/nodes")).json()["items"]
        assert all(node["accelerators_free"] == node["accelerators"] for node in nodes)


async def test_a_restart_keeps_what_waits_what_is_kept_and_what_is_stopping(database_url: str) -> None:
    async with environment(database_url) as stack:
        bus, clock = stack.bus, clock_of_now()
        async with stack.service("scheduler", clock=clock) as service:
            await use(service)
            first = await low_then_high(stack)
            await bus.publish(submission("later", **gang(2)))
            await until(service, lambda body: body["units"] == 3)
        async with stack.service("scheduler", clock=clock) as service:
            live = live_of(service)
            assert len(live.book.nominated) == 1
            assert {run.state for run in live.book.runs.values()} == {"stopping"}
            reasons = {item["job_id"]: item["reason"] for item in (await service.http.get("/v1/queue")).json()["items"]}
            assert reasons.keys() == {"low", "high", "later"}
            assert "kept for it until low.0.1" in reasons["high"]
            # Nobody confirms: after 15 s the nodes count as free.
            assert not bus.events(Assignment, starts("high"))
            passes(service, 15.0)
            high = await bus.expect(Assignment, starts("high"))
            await bus.publish(report(RunFailed, first, kind=run_pb2.RUN_FAILURE_KIND_STOPPED))
            await bus.publish(report(RunFinished, high))
            low = await bus.expect(Assignment, starts("low", 2))
            assert low.restore_step == 40
            await bus.publish(report(RunFinished, low))
            later = await bus.expect(Assignment, starts("later"))
            await bus.publish(report(RunFinished, later))
            await bus.expect(JobFinished, count=3)
            assert {event.outcome for event in bus.events(JobFinished)} == {job_pb2.JOB_OUTCOME_SUCCEEDED}


async def test_run_times_that_were_learned_outlive_the_process(database_url: str) -> None:
    async with environment(database_url) as stack:
        bus = stack.bus
        async with stack.service("scheduler") as service:
            await bus.publish(graph("beijing", 1))
            await bus.publish(*(submission(f"job-{number}", name="nightly") for number in range(5)))
            await bus.expect(Assignment, count=5)
            await bus.publish(*(report(RunFinished, item) for item in bus.events(Assignment)))
            await bus.expect(JobFinished, count=5)
            learned = live_of(service).book.run_times
            assert learned.observed == 5
        async with stack.service("scheduler") as service:
            assert live_of(service).book.run_times.state() == learned.state()
            async with service.kernel.database.transaction() as connection:
                await connection.exec_driver_sql("DELETE FROM run_times")
        async with stack.service("scheduler") as service:
            # Lost, and learned again from what has finished.
            again = live_of(service).book.run_times
            assert (again.observed, again.until_s) == (5, learned.until_s)


async def test_reservations_of_easy_backfill_rest_on_limits(database_url: str) -> None:
    """Both nodes are promised to the large job when the running one ends by its limit: what is longer does not overtake."""
    async with environment(database_url) as stack, stack.service("scheduler") as service:
        bus = stack.bus
        text = "extends: easy-backfill\nname: easy\n"
        assert (await service.http.put("/v1/policy", content=text.encode())).status_code == 200
        await bus.publish(graph("beijing", 2))
        one: dict[str, Any] = {"resources": Resources(cpus=1, accelerators=8)}
        await bus.publish(submission("running", max_run_time_s=600, **one))
        await bus.expect(Assignment, starts("running"))
        await bus.publish(submission("large", **gang(2, max_run_time_s=100)))
        await until(service, lambda body: body["units"] == 1)
        await bus.publish(submission("long", max_run_time_s=900, **one))
        await until(service, lambda body: body["units"] == 2)
        await bus.publish(submission("short", max_run_time_s=300, **one))
        await bus.expect(Assignment, starts("short"))
        await bus.publish(submission("other", resources=Resources(cpus=1), max_run_time_s=10))
        await bus.expect(Assignment, starts("other"))
        assert not bus.events(Assignment, starts("long"))
        assert not bus.events(Assignment, starts("large"))
        await bus.publish(*(report(RunFinished, item) for item in bus.events(Assignment)))
        await bus.expect(Assignment, starts("large"))


async def test_a_running_job_falls_behind_one_that_waits_though_nothing_happens(database_url: str) -> None:
    """Tiresias: after 16 accelerator-seconds, 2 s on 8 accelerators, the running job stands in the second queue."""
    order = "[{least_attained: {threshold_s: 16}}, age]"
    text = f"extends: balanced\nname: las\nselection:\n  order: {order}\n  preemption: [{{order: {{margin_s: 1}}}}]\n"
    async with environment(database_url) as stack, stack.service("scheduler") as service:
        bus = stack.bus
        answer = await service.http.put("/v1/policy", content=text.encode())
        assert answer.status_code == 200, answer.text
        await bus.publish(graph("beijing", 1))
        await bus.publish(submission("long", **gang(1)))
        first = await bus.expect(Assignment, starts("long"))
        await bus.publish(submission("new", **gang(1)))
        preempted = await bus.expect(JobPreempted)
        assert preempted.job_id == "long"
        assert preempted.preempted_at.ToNanoseconds() - first.assigned_at.ToNanoseconds() >= 2e9
