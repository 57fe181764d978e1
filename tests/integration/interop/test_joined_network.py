"""The third-party cloud in a whole network: a job that is pinned to it is placed there, runs there and finishes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from meridian.contracts.common.v1 import types_pb2
from meridian.contracts.failover.v1 import failover_pb2
from meridian.contracts.graph.v1 import graph_pb2
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.resource.v1 import resource_pb2
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.telemetry.v1 import telemetry_pb2
from tests.harness import Environment, environment
from tests.integration.interop.conftest import StartCloud
from tests.integration.interop.test_third_party_cloud import lines

pytestmark = pytest.mark.timeout(900)

DOMAIN = "partner-cloud"


@asynccontextmanager
async def network(database_url: str) -> AsyncIterator[Environment]:
    """A bus with the services that a cloud meets on it."""
    async with AsyncExitStack() as life:
        stack = await life.enter_async_context(environment(database_url))
        quick = {"MERIDIAN_FAILOVER_START_GRACE_S": "0.5", "MERIDIAN_FAILOVER_AGENT_GRACE_S": "0.5"}
        for name in ("telemetry", "graph", "scheduler", "failover"):
            await life.enter_async_context(stack.service(name, env=quick if name == "failover" else None))
        yield stack


def job(job_id: str, *command: str, accelerators: int = 0, ranks: int = 1) -> job_pb2.JobSubmitted:
    submitted = job_pb2.JobSubmitted(
        job_id=job_id,
        tenant_id="lab",
        spec=job_pb2.JobSpec(
            name=job_id,
            kind=job_pb2.JOB_KIND_GANG if ranks > 1 else job_pb2.JOB_KIND_TASK,
            command=command,
            resources=types_pb2.Resources(cpus=1, memory_bytes=2**26, accelerators=accelerators),
            ranks=ranks,
            max_restarts=2,
            placement=job_pb2.PlacementConstraints(domains=[DOMAIN]),
        ),
    )
    submitted.submitted_at.GetCurrentTime()
    return submitted


@pytest.mark.parametrize("mode", ["protobuf", "structured"])
async def test_a_job_pinned_to_the_cloud_runs_there(
    database_url: str, start_cloud: StartCloud, tmp_path: Path, mode: str
) -> None:
    marks = tmp_path / "marks"
    async with network(database_url) as stack:
        with start_cloud(stack.bootstrap_servers, PARTNER_EVENT_MODE=mode):
            graph = await stack.bus.expect(graph_pb2.GraphUpdated)
            script = f'echo "$MERIDIAN_NODE rank $RANK accelerators $MERIDIAN_ACCELERATORS" >> {marks}'
            await stack.bus.publish(
                job("with-accelerators", "sh", "-c", script, accelerators=2), job("pair", "sh", "-c", script, ranks=2)
            )
            await stack.bus.expect(job_pb2.JobFinished, count=2)
    assert sorted(node.inventory.node_id for node in graph.nodes) == ["partner-1", "partner-2"]
    finished = stack.bus.events(job_pb2.JobFinished)
    assert {(event.job_id, event.outcome) for event in finished} == {
        ("with-accelerators", job_pb2.JOB_OUTCOME_SUCCEEDED),
        ("pair", job_pb2.JOB_OUTCOME_SUCCEEDED),
    }
    placed = {event.job_id: event for event in stack.bus.events(job_pb2.JobPlaced)}
    assert {rank.domain_id for event in placed.values() for rank in event.ranks} == {DOMAIN}
    lines = marks.read_text().splitlines()
    assert "partner-1 rank 0 accelerators 0,1" in lines
    assert sum(" accelerators " in f"{line} " for line in lines) == 3
    issues = [issue for event in stack.bus.events(telemetry_pb2.ObservationRecorded) for issue in event.issues]
    assert issues == [], "every reading of the cloud stands"
    assert stack.bus.dead_letters == []


async def test_a_killed_cloud_is_noticed_and_its_run_is_done_again_when_it_is_back(
    database_url: str, start_cloud: StartCloud, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    # The first attempt never ends by itself; the second does at once.
    script = f'echo "$MERIDIAN_EPOCH" >> {marks}; test "$MERIDIAN_EPOCH" -gt 1 || sleep 600'
    async with network(database_url) as stack:
        with start_cloud(stack.bootstrap_servers) as process:
            await stack.bus.expect(graph_pb2.GraphUpdated)
            await stack.bus.publish(job("lost", "sh", "-c", script))
            await stack.bus.expect(run_pb2.RunStarted)
            await lines(marks, 1)
            process.kill()
            process.wait()
            await stack.bus.expect(failover_pb2.DomainUnreachable)
        with start_cloud(stack.bootstrap_servers):
            plan = await stack.bus.expect(failover_pb2.RecoveryPlanned)
            finished = await stack.bus.expect(job_pb2.JobFinished)
            await stack.bus.expect(failover_pb2.DomainReachable)
    assert (plan.run_id, plan.domain_id) == ("lost.0.1", DOMAIN)
    assert finished.outcome == job_pb2.JOB_OUTCOME_SUCCEEDED
    assert marks.read_text().split() == ["1", "2"]
    runs = [event.run_id for event in stack.bus.events(run_pb2.RunFinished)]
    assert runs == ["lost.0.2"]


async def test_a_cloud_that_sends_nonsense_harms_nobody(database_url: str, start_cloud: StartCloud) -> None:
    nonsense = resource_pb2.ResourceReported(domain_id="liar", agent_id="x", incarnation=1)
    nonsense.inventory.domain_id = "liar"
    nonsense.inventory.nodes.add(node_id="partner-1", cpus=-5)
    nonsense.inventory.nodes.add(node_id="liar-1", cpus=float("nan"))
    async with network(database_url) as stack:
        with start_cloud(stack.bootstrap_servers):
            await stack.bus.expect(graph_pb2.GraphUpdated, lambda event: len(event.nodes) == 2)
            await stack.bus.publish(nonsense)
            await stack.bus.publish_raw("meridian.resource.reports.v1", b"\x00\x01", [("content-type", b"text/plain")])
            await stack.bus.expect_dead_letter()
            recorded = await stack.bus.expect(
                telemetry_pb2.ObservationRecorded, lambda event: event.domain_id == "liar"
            )
            await stack.bus.publish(job("after", "true"))
            finished = await stack.bus.expect(job_pb2.JobFinished)
    assert list(recorded.inventory.nodes) == []
    assert finished.outcome == job_pb2.JOB_OUTCOME_SUCCEEDED
