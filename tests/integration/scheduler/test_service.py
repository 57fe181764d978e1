"""The scheduler against a real broker and PostgreSQL: from submission to the end, failures, restarts, many jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.failover.v1.failover_pb2 import NodeFailed, NodeRecovered, RecoveryPlanned
from meridian.contracts.graph.v1.graph_pb2 import NODE_STATE_HEALTHY, GraphNode, GraphUpdated
from meridian.contracts.identity.v1 import identity_pb2
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import (
    JobCancelRequested,
    JobFinished,
    JobPlaced,
    JobPreempted,
    JobQueued,
    JobSpec,
    JobSubmitted,
    WorkflowTask,
)
from meridian.contracts.resource.v1.resource_pb2 import Accelerator, DomainInventory, NodeInventory
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import Assignment, RunCheckpointed, RunFailed, RunFinished, RunStarted
from tests.harness import Environment, RunningService, environment

START, STOP = run_pb2.ASSIGNMENT_ACTION_START, run_pb2.ASSIGNMENT_ACTION_STOP


@asynccontextmanager
async def scheduler(database_url: str) -> AsyncIterator[tuple[Environment, RunningService]]:
    async with environment(database_url) as stack, stack.service("scheduler") as service:
        yield stack, service


def graph(domain_id: str, nodes: int, *, accelerators: int = 8, cpus: float = 64.0) -> GraphUpdated:
    return GraphUpdated(
        domain_id=domain_id,
        version=1,
        full=True,
        domain=DomainInventory(domain_id=domain_id, security_level=2),
        nodes=[
            GraphNode(
                inventory=NodeInventory(
                    node_id=f"{domain_id}-{number}",
                    compute_id=f"cid-{domain_id}-{number}",
                    cpus=cpus,
                    memory_bytes=2**38,
                    address="127.0.0.1",
                    accelerators=[
                        Accelerator(index=index, vendor="NVIDIA", model="A100", emulated=True)
                        for index in range(accelerators)
                    ],
                ),
                state=NODE_STATE_HEALTHY,
            )
            for number in range(1, nodes + 1)
        ],
    )


def submission(job_id: str, tenant: str = "lab", **spec: object) -> JobSubmitted:
    now = Timestamp()
    now.GetCurrentTime()
    fields: dict[str, object] = {"kind": job_pb2.JOB_KIND_TASK, "command": ["python", "train.py"], **spec}
    return JobSubmitted(job_id=job_id, tenant_id=tenant, spec=JobSpec(**fields), submitted_at=now)  # type: ignore[arg-type]


def report(message: type, assignment: Assignment, /, **more: object):  # type: ignore[no-untyped-def]
    return message(
        run_id=assignment.run_id,
        job_id=assignment.job_id,
        unit_index=assignment.unit_index,
        epoch=assignment.epoch,
        domain_id=assignment.domain_id,
        **more,
    )


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

        nodes = (await service.http.get("/v1/nodes")).json()["items"]
        assert [node["accelerators_free"] for node in nodes] == [6, 8]
        await bus.publish(report(RunStarted, start), report(RunFinished, start))
        finished = await bus.expect(JobFinished)
        assert finished.outcome == job_pb2.JOB_OUTCOME_SUCCEEDED
        nodes = (await service.http.get("/v1/nodes")).json()["items"]
        assert [node["accelerators_free"] for node in nodes] == [8, 8]

        found = (await service.http.get("/v1/jobs/job-1/explanation")).json()
        assert found["state"] == "succeeded"
        assert found["units"][0]["run"]["run_id"] == "job-1.0.1"
        assert found["units"][0]["placement"]["chosen"]["place"] == "beijing"
        assert found["decisions"][0]["decision_id"] == placed.decision_id
        assert (await service.http.get("/v1/jobs/job-2/explanation")).status_code == 404


async def test_a_lost_node_gives_a_new_epoch_elsewhere(database_url: str) -> None:
    async with scheduler(database_url) as (stack, _):
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
        # The other rank may still write: nothing starts before the agent says that it ended.
        await asyncio.sleep(0.3)
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
