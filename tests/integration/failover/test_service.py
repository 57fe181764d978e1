"""Failover against a real broker and PostgreSQL: declarations, plans, the races between them, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from prometheus_client import CollectorRegistry

from meridian.contracts.failover.v1.failover_pb2 import (
    DomainForgotten,
    DomainReachable,
    DomainUnreachable,
    NodeFailed,
    NodeForgotten,
    NodeRecovered,
    NodeSuspected,
    RecoveryPlanned,
)
from meridian.contracts.job.v1.job_pb2 import JobFinished, JobPlaced, PlacedRank
from meridian.contracts.resource.v1 import resource_pb2
from meridian.contracts.resource.v1.resource_pb2 import Heartbeat, NodeBeat
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import RunCheckpointed, RunFailed, RunFinished, RunStarted
from services.failover.beliefs import Evidence, NodeState
from services.failover.declarations import Declarations, TimeBase
from services.failover.metrics import FailoverMetrics
from services.failover.recovery import Unit
from services.failover.run_store import RunStore
from services.failover.store import MOST_OF_SUSPICIONS, Store
from services.failover.transitions import (
    DomainAppeared,
    NodeAppeared,
    NodeBecameSuspect,
    NodeDied,
    NodeReturned,
    Transition,
)
from tests.harness import PATIENCE_S, Environment, Probe, environment

QUICK = {
    "MERIDIAN_FAILOVER_START_GRACE_S": "0.5",
    "MERIDIAN_FAILOVER_AGENT_GRACE_S": "0.5",
}


@dataclass
class Agent:
    """An agent that sends heartbeats at 10 Hz; tests silence its nodes or itself.

    Its lease is long, so that nothing is planned because this process or the broker stands still for some seconds.
    """

    bus: Probe
    domain_id: str
    nodes: list[str]
    lease_s: float = 300.0
    incarnation: int = 1
    sequence: int = 0
    silent_since: dict[str, float] = field(default_factory=dict)
    silent_for: dict[str, float] = field(default_factory=dict)
    exited: set[str] = field(default_factory=set)
    incarnations: dict[str, int] = field(default_factory=dict)
    muted: bool = False
    beat_at: float = 0.0

    async def beat(self) -> None:
        self.sequence += 1
        self.beat_at = now = time.monotonic()
        message = Heartbeat(
            domain_id=self.domain_id,
            agent_id=f"agent-{self.domain_id}",
            incarnation=self.incarnation,
            sequence=self.sequence,
            interval_s=0.1,
            lease_s=self.lease_s,
            nodes=[
                NodeBeat(
                    node_id=node,
                    incarnation=self.incarnations.get(node, 1),
                    age_s=self.silent_for.get(node, now - self.silent_since.get(node, now)),
                    state=resource_pb2.NODE_PROCESS_STATE_EXITED
                    if node in self.exited
                    else resource_pb2.NODE_PROCESS_STATE_RUNNING,
                )
                for node in self.nodes
            ],
        )
        message.sent_at.GetCurrentTime()
        await self.bus.publish(message)

    def silence(self, node: str) -> None:
        """The node is not heard from now on."""
        self.silent_since[node] = time.monotonic()

    def say_silent(self, node: str, seconds: float) -> None:
        """Tell of the node that it has not been heard for so long, whatever the time."""
        self.silent_for[node] = seconds

    async def run(self) -> None:
        while True:
            if not self.muted:
                await self.beat()
            await asyncio.sleep(0.1)


@asynccontextmanager
async def beating(*agents: Agent) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(agent.run()) for agent in agents]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.fixture
async def stack(database_url: str) -> AsyncIterator[Environment]:
    async with environment(database_url) as stack:
        yield stack


def placed(job: str, epoch: int, *places: tuple[str, str]) -> JobPlaced:
    message = JobPlaced(
        job_id=job,
        tenant_id="t",
        run_id=f"{job}.0.{epoch}",
        epoch=epoch,
        ranks=[PlacedRank(rank=rank, domain_id=domain, node_id=node) for rank, (domain, node) in enumerate(places)],
    )
    message.placed_at.GetCurrentTime()
    return message


def checkpoint(job: str, epoch: int, step: int) -> RunCheckpointed:
    message = RunCheckpointed(
        run_id=f"{job}.0.{epoch}", job_id=job, epoch=epoch, domain_id="north", step=step, path=f"/ckpt/{job}/{step}"
    )
    message.at.GetCurrentTime()
    return message


async def heard(stack: Environment, service, sql: str, count: int = 1) -> None:
    """Wait until the service's tables hold what was published."""
    connection = await asyncpg.connect(stack.database_url.replace("+asyncpg", ""))
    try:
        async with asyncio.timeout(PATIENCE_S):
            while await connection.fetchval(f"SELECT count(*) FROM failover.{sql}") < count:
                await asyncio.sleep(0.02)
    finally:
        await connection.close()


async def test_silent_node_fails_and_its_run_is_planned_from_the_newest_checkpoint(stack: Environment) -> None:
    north = Agent(stack.bus, "north", ["north-1", "north-2"])
    async with stack.service("failover", QUICK) as service, beating(north):
        await stack.bus.publish(
            placed("job-a", 1, ("north", "north-1")),
            placed("job-b", 1, ("north", "north-2")),
            checkpoint("job-a", 1, 300),
            checkpoint("job-a", 1, 200),
        )
        await heard(stack, service, "runs", 2)
        await heard(stack, service, "checkpoints WHERE step = 300")
        await heard(stack, service, "nodes", 2)
        # Suspected after one second, failed after two.
        north.say_silent("north-1", 1.2)
        await stack.bus.expect(NodeSuspected)
        north.say_silent("north-1", 2.1)
        failed = await stack.bus.expect(NodeFailed)
        plan = await stack.bus.expect(RecoveryPlanned)
        assert failed.node_id == "north-1"
        assert list(failed.run_ids) == ["job-a.0.1"]
        assert (plan.run_id, plan.restore_from, plan.restore_step) == ("job-a.0.1", "/ckpt/job-a/300", 300)
        assert list(plan.exclude_node_ids) == ["north-1"]
        assert plan.incident_id == failed.incident_id
        assert stack.bus.events(NodeSuspected)[0].incident_id == failed.incident_id

        await stack.bus.publish(
            placed("job-a", 2, ("north", "north-2")),
            RunStarted(run_id="job-a.0.2", job_id="job-a", epoch=2, domain_id="north"),
        )
        await heard(stack, service, "recoveries WHERE resumed_at IS NOT NULL AND replaced_by = 'job-a.0.2'")
        north.silent_for.clear()
        north.incarnations["north-1"] = 2
        recovered = await stack.bus.expect(NodeRecovered)
        assert (recovered.node_id, recovered.incarnation) == ("north-1", 2)
        await heard(stack, service, "incidents WHERE state = 'closed'")
        incident = (await service.http.get(f"/v1/incidents/{failed.incident_id}")).json()
        assert incident["kind"] == "node_failed"
        assert [entry["event"] for entry in incident["timeline"]] == [
            "suspected",
            "failed",
            "recovery_planned",
            "resumed",
            "recovered",
        ]
        assert incident["time_to_recover_s"] > 0
        assert incident["recoveries"][0]["replaced_by"] == "job-a.0.2"
        page = (await service.http.get("/v1/nodes")).json()
        assert page["active"] is True
        assert {node["node_id"]: node["state"] for node in page["nodes"]} == {"north-1": "alive", "north-2": "alive"}
        assert len(stack.bus.events(RecoveryPlanned)) == 1
        metrics = (await service.http.get("/metrics")).text
        assert 'meridian_failover_recoveries_planned_total{cause="node_failed"} 1.0' in metrics
        assert not stack.bus.dead_letters


async def test_suspicions_of_a_node_that_flaps_are_one_incident_that_counts_them(stack: Environment) -> None:
    """Three suspicions within the window are one incident, one after it is another, and a failure ends the first kind."""
    begin = datetime.now(UTC)
    async with stack.service("failover", QUICK) as service:

        async def declare(at_s: float, *transitions: Transition) -> None:
            async with service.kernel.outbox.transaction() as transaction:
                times = TimeBase(begin + timedelta(seconds=at_s), at_s)
                metrics = FailoverMetrics(CollectorRegistry())
                declared = Declarations(transaction, times, service.kernel.new_id, metrics, flap_window_s=60.0)
                await declared.carry_out(transitions)

        async def incidents() -> list[dict[str, Any]]:
            page = (await service.http.get("/v1/incidents", params={"domain_id": "north"})).json()["incidents"]
            return [item for item in page if item["node_id"] == "n"]

        suspected = NodeBecameSuspect("north", "n", 0.0, 1.2)
        returned = NodeReturned("north", "n", 1, NodeState.SUSPECTED)
        await declare(0.0, DomainAppeared("north", 300.0), NodeAppeared("north", "n", 1))
        for at_s in (10.0, 40.0, 100.0):
            await declare(at_s, suspected)
            await declare(at_s + 1.0, returned)
        [flapping] = await incidents()
        assert (flapping["suspicions"], flapping["state"], flapping["kind"]) == (3, "closed", "node_suspected")
        assert [entry["event"] for entry in flapping["timeline"]] == ["suspected", "recovered"] * 3
        await stack.bus.expect(NodeRecovered, count=3)
        assert [event.incident_id for event in stack.bus.events(NodeSuspected)] == [flapping["incident_id"]] * 3
        assert [event.incident_id for event in stack.bus.events(NodeRecovered)] == [flapping["incident_id"]] * 3
        assert (
            stack.bus.events(NodeSuspected)[2].reason
            == "no beat from the node for 1.2 s; suspicion 3 of a node that flaps"
        )
        assert stack.bus.events(NodeRecovered)[2].reason == "the suspicion was not confirmed, nor were 2 before it"

        await declare(161.5, suspected)
        await declare(161.6, NodeDied("north", "n", 1, 160.0, Evidence.SILENT, False, (161.6,), frozenset()))
        await declare(170.0, NodeReturned("north", "n", 2, NodeState.FAILED))
        await declare(171.0, suspected)
        assert [(item["kind"], item["state"], item["suspicions"]) for item in await incidents()] == [
            ("node_suspected", "open", 1),
            ("node_failed", "closed", 1),
            ("node_suspected", "closed", 3),
        ]
        for number in range(MOST_OF_SUSPICIONS):
            await declare(172.0 + number, returned)
            await declare(172.5 + number, suspected)
        newest = (await incidents())[0]
        assert newest["suspicions"] == 1 + MOST_OF_SUSPICIONS
        assert len(newest["timeline"]) == MOST_OF_SUSPICIONS
        assert [entry["detail"] for entry in newest["timeline"][:2]] == [
            "no beat from the node for 1.2 s",
            "the suspicion was not confirmed",
        ]
        assert newest["timeline"][-1]["detail"].endswith(f"suspicion {1 + MOST_OF_SUSPICIONS} of a node that flaps")


async def test_exited_process_is_failed_whatever_its_silence(stack: Environment) -> None:
    north = Agent(stack.bus, "north", ["north-1"])
    deaf = {"MERIDIAN_FAILOVER_SUSPECT_AFTER_S": "3600", "MERIDIAN_FAILOVER_FAILED_AFTER_S": "7200"}
    async with stack.service("failover", QUICK | deaf) as service, beating(north):
        await heard(stack, service, "nodes")
        north.silence("north-1")
        north.exited.add("north-1")
        failed = await stack.bus.expect(NodeFailed)
        assert "exited" in failed.reason
        assert not stack.bus.events(NodeSuspected)


async def test_a_node_that_was_forgotten_is_a_new_one_when_it_comes_again(stack: Environment) -> None:
    north = Agent(stack.bus, "north", ["north-1", "north-2"])
    settings = QUICK | {"MERIDIAN_FAILOVER_FORGET_NODE_AFTER_S": "0.5"}
    async with stack.service("failover", settings) as service, beating(north):
        await heard(stack, service, "nodes", 2)
        north.nodes.remove("north-1")
        failed = await stack.bus.expect(NodeFailed)
        forgotten = await stack.bus.expect(NodeForgotten)
        assert (forgotten.domain_id, forgotten.node_id) == ("north", "north-1")
        assert forgotten.incident_id == failed.incident_id
        await heard(stack, service, "incidents WHERE state = 'closed'")
        incident = (await service.http.get(f"/v1/incidents/{failed.incident_id}")).json()
        assert [entry["event"] for entry in incident["timeline"]][-2:] == ["failed", "forgotten"]
        page = (await service.http.get("/v1/nodes")).json()
        assert [node["node_id"] for node in page["nodes"]] == ["north-2"]
        north.nodes.append("north-1")
        await heard(stack, service, "nodes WHERE node_id = 'north-1' AND state = 'alive' AND incident_id IS NULL")
        assert not stack.bus.events(NodeRecovered)


async def test_a_domain_that_was_forgotten_is_a_new_one_when_it_comes_again(stack: Environment) -> None:
    north = Agent(stack.bus, "north", ["north-1", "north-2"], lease_s=4.0)
    south = Agent(stack.bus, "south", ["south-1"])
    settings = QUICK | {"MERIDIAN_FAILOVER_FORGET_DOMAIN_AFTER_S": "2"}
    async with stack.service("failover", settings) as service, beating(north, south):
        await heard(stack, service, "nodes", 3)
        north.exited.add("north-1")
        failed = await stack.bus.expect(NodeFailed, lambda event: event.node_id == "north-1")
        north.muted = True
        away = await stack.bus.expect(DomainUnreachable, lambda event: event.domain_id == "north")
        node = await stack.bus.expect(NodeForgotten, lambda event: event.node_id == "north-1")
        assert (node.domain_id, node.incident_id) == ("north", failed.incident_id)
        forgotten = await stack.bus.expect(DomainForgotten, lambda event: event.domain_id == "north")
        assert forgotten.incident_id == away.incident_id
        await heard(stack, service, "incidents WHERE domain_id = 'north' AND state = 'closed'", 2)
        incident = (await service.http.get(f"/v1/incidents/{away.incident_id}")).json()
        assert [entry["event"] for entry in incident["timeline"]] == ["unreachable", "lease_ran_out", "forgotten"]
        page = (await service.http.get("/v1/domains")).json()
        assert "north" not in {item["domain_id"] for item in page["domains"]}
        north.exited.clear()
        north.muted = False
        await heard(stack, service, "nodes WHERE domain_id = 'north' AND state = 'alive' AND incident_id IS NULL", 2)
        await heard(stack, service, "domains WHERE domain_id = 'north' AND state = 'reachable'")


async def test_a_lease_that_grew_is_waited_for_after_a_restart_too(stack: Environment) -> None:
    """The runs of a domain that is silent go on until the lease ends that its agent named last."""
    north, south = Agent(stack.bus, "north", ["north-1"], lease_s=1.0), Agent(stack.bus, "south", ["south-1"])
    async with stack.service("failover", QUICK) as service, beating(north, south):
        await heard(stack, service, "domains WHERE domain_id = 'north' AND lease_s = 1")
        north.lease_s = 300.0
        await heard(stack, service, "domains WHERE domain_id = 'north' AND lease_s = 300")
        await heard(stack, service, "domains WHERE domain_id = 'south' AND lease_s = 300")


async def test_a_failed_node_that_another_agent_names_takes_work_again(stack: Environment) -> None:
    """A machine was handed over: the second domain's agent names it after the first one's did for the last time, or before."""
    names = ["handed over", "shared for a while", "other"]
    north, south = Agent(stack.bus, "north", list(names)), Agent(stack.bus, "south", ["south-1"])
    # Each agent counts by itself.
    north.incarnations["shared for a while"] = 5
    async with stack.service("failover", QUICK) as service, beating(north, south):
        await heard(stack, service, "nodes", 4)
        north.nodes.remove("handed over")
        failed = await stack.bus.expect(NodeFailed, lambda event: event.node_id == "handed over")
        south.nodes.append("handed over")
        recovered = await stack.bus.expect(NodeRecovered, lambda event: event.node_id == "handed over")
        assert (recovered.domain_id, recovered.incident_id) == ("north", failed.incident_id)

        south.nodes.append("shared for a while")
        await heard(stack, service, "nodes WHERE node_id = 'shared for a while' AND domain_id = 'south'")
        await stack.bus.publish(placed("job-a", 1, ("north", "shared for a while")))
        await heard(stack, service, "runs")
        north.nodes.remove("shared for a while")
        failed = await stack.bus.expect(NodeFailed, lambda event: event.node_id == "shared for a while")
        assert list(failed.run_ids) == ["job-a.0.1"]
        await stack.bus.expect(RecoveryPlanned)
        recovered = await stack.bus.expect(NodeRecovered, lambda event: event.node_id == "shared for a while")
        assert (recovered.domain_id, recovered.incident_id) == ("north", failed.incident_id)
        await heard(stack, service, "incidents WHERE state = 'closed'", 2)
        await heard(stack, service, "nodes WHERE domain_id = 'south' AND state = 'alive' AND incident_id IS NULL", 3)
    async with stack.service("failover", QUICK) as service, beating(north, south):
        south.nodes.remove("handed over")
        await stack.bus.expect(NodeFailed, lambda event: event.domain_id == "south")
        page = (await service.http.get("/v1/nodes")).json()
        states = {node["node_id"]: (node["state"], node["incarnation"]) for node in page["nodes"]}
        assert states["shared for a while"] == ("alive", 1), (
            "its beats are heard by whoever knows it from the database too"
        )


async def test_a_node_that_two_agents_name_is_what_the_later_one_says(stack: Environment) -> None:
    north, south = Agent(stack.bus, "north", ["left", "died"]), Agent(stack.bus, "south", ["south-1"])

    def of(name: str, domain_id: str) -> Callable[[NodeFailed], bool]:
        return lambda event: (event.node_id, event.domain_id) == (name, domain_id)

    async with stack.service("failover", QUICK) as service, beating(north, south):
        await heard(stack, service, "nodes", 3)
        south.nodes += ["left", "died"]
        await heard(stack, service, "nodes WHERE domain_id = 'south'", 3)
        async with service.kernel.outbox.transaction() as transaction:
            times, metrics = TimeBase(datetime.now(UTC), 0.0), FailoverMetrics(CollectorRegistry())
            declared = Declarations(transaction, times, service.kernel.new_id, metrics, flap_window_s=600.0)
            await declared.carry_out([NodeBecameSuspect("north", "left", 0.0, 1e6)])
        async with service.kernel.database.reading() as connection:
            incidents = await Store(connection).list_incidents(state=None, domain_id="north", before=None, limit=100)
            assert not [row for row in incidents if "1000000.0 s" in row.reason], "silence there says nothing"
        north.silent_for["left"] = 1000.0
        await stack.bus.expect(NodeFailed, of("left", "north"))
        await stack.bus.expect(NodeRecovered, lambda event: event.node_id == "left")
        await heard(stack, service, "nodes WHERE node_id = 'left' AND state = 'alive' AND incident_id IS NULL")

        south.exited.add("died")
        await stack.bus.expect(NodeFailed, of("died", "south"))
        north.exited.add("died")
        await stack.bus.expect(NodeFailed, of("died", "north"))
        async with service.kernel.database.reading() as connection:
            assert [row.state for row in await Store(connection).load_nodes() if row.node_id == "died"] == ["failed"]
        south.exited.clear()
        south.incarnations["died"] = 2
        await heard(stack, service, "nodes WHERE node_id = 'died' AND state = 'alive' AND domain_id = 'south'")


async def test_a_node_that_comes_back_after_its_row_was_removed_is_kept_again(stack: Environment) -> None:
    north = Agent(stack.bus, "north", ["north-1"])
    deaf = {"MERIDIAN_FAILOVER_SUSPECT_AFTER_S": "3600", "MERIDIAN_FAILOVER_FAILED_AFTER_S": "7200"}
    async with stack.service("failover", QUICK | deaf) as service, beating(north):
        await heard(stack, service, "nodes")
        north.exited.add("north-1")
        await stack.bus.expect(NodeFailed)
        async with service.kernel.database.transaction() as connection:
            await Store(connection).forget_older_than(datetime.now(UTC) + timedelta(days=40), timedelta(days=30))
            assert await Store(connection).load_nodes(), "what is declared of it would not be known after a restart"
            await Store(connection).remove_node("north-1", "north")
        north.exited.clear()
        north.incarnations["north-1"] = 2
        await stack.bus.expect(NodeRecovered)
        await heard(stack, service, "nodes WHERE state = 'alive' AND incarnation = 2")


async def test_silent_domain_is_unreachable_and_planned_only_after_the_lease(stack: Environment) -> None:
    north, south = Agent(stack.bus, "north", ["north-1"], lease_s=1.0), Agent(stack.bus, "south", ["south-1"])
    quick = {**QUICK, "MERIDIAN_FAILOVER_UNREACHABLE_AFTER_S": "1", "MERIDIAN_FAILOVER_LEASE_MARGIN_S": "1"}
    async with stack.service("failover", quick) as service, beating(north, south):
        await stack.bus.publish(placed("job-a", 1, ("north", "north-1")))
        await heard(stack, service, "runs")
        await heard(stack, service, "nodes", 2)
        north.muted = True
        lost = await stack.bus.expect(DomainUnreachable)
        assert lost.domain_id == "north"
        plan = await stack.bus.expect(RecoveryPlanned)
        assert plan.incident_id == lost.incident_id
        assert time.monotonic() - north.beat_at >= 2.0, "its lease and the margin have passed since it was last heard"
        assert (plan.run_id, list(plan.exclude_node_ids)) == ("job-a.0.1", ["north-1"])
        # A placement that was on its way when the domain was lost.
        await stack.bus.publish(placed("job-late", 1, ("north", "north-1")))
        late = await stack.bus.expect(RecoveryPlanned, lambda event: event.job_id == "job-late")
        assert late.incident_id == lost.incident_id
        north.muted = False
        await stack.bus.expect(DomainReachable)
        assert not stack.bus.events(NodeFailed)
        domains = (await service.http.get("/v1/domains")).json()["domains"]
        assert {item["domain_id"]: item["state"] for item in domains} == {"north": "reachable", "south": "reachable"}


async def test_runs_reported_as_lost_are_planned_at_once_and_once(stack: Environment) -> None:
    async with stack.service("failover", QUICK) as service:
        kinds = run_pb2.RunFailureKind
        await stack.bus.publish(placed("job-a", 1, ("north", "north-1")), checkpoint("job-a", 1, 50))
        await heard(stack, service, "checkpoints")
        for job, kind in [
            ("job-a", kinds.RUN_FAILURE_KIND_NODE_LOST),
            ("job-a", kinds.RUN_FAILURE_KIND_NODE_LOST),
            ("job-p", kinds.RUN_FAILURE_KIND_PROGRAM),
            # A part of an accelerator that an order named is gone: the node is well.
            ("job-g", kinds.RUN_FAILURE_KIND_REFUSED),
            ("job-r", kinds.RUN_FAILURE_KIND_AGENT_RESTARTED),
            ("job-l", kinds.RUN_FAILURE_KIND_LEASE_EXPIRED),
        ]:
            failure = RunFailed(run_id=f"{job}.0.1", job_id=job, epoch=1, domain_id="north", kind=kind)
            failure.node_id = {"job-a": "north-1", "job-g": "north-2"}.get(job, "")
            await stack.bus.publish(failure)
        await stack.bus.expect(RecoveryPlanned, count=3)
        plans = {plan.job_id: plan for plan in stack.bus.events(RecoveryPlanned)}
        assert set(plans) == {"job-a", "job-r", "job-l"}
        assert (plans["job-a"].restore_step, list(plans["job-a"].exclude_node_ids)) == (50, ["north-1"])
        await stack.bus.publish(JobFinished(job_id="job-r"), placed("job-a", 2, ("north", "north-2")))
        await stack.bus.publish(RunStarted(run_id="job-a.0.2", job_id="job-a", epoch=2, domain_id="north"))
        await heard(stack, service, "incidents WHERE state = 'closed'", 2)
        page = (await service.http.get("/v1/incidents", params={"state": "open"})).json()
        assert [item["recoveries"][0]["job_id"] for item in page["incidents"]] == ["job-l"]
        assert len(stack.bus.events(RecoveryPlanned)) == 3


async def test_a_reported_loss_and_the_death_found_later_are_one_incident(stack: Environment) -> None:
    north = Agent(stack.bus, "north", ["north-1", "north-2"])
    async with stack.service("failover", QUICK) as service, beating(north):
        await heard(stack, service, "nodes", 2)
        await stack.bus.publish(placed("job-a", 1, ("north", "north-1")))
        await heard(stack, service, "runs")
        kind = run_pb2.RunFailureKind.RUN_FAILURE_KIND_NODE_LOST
        failure = RunFailed(
            run_id="job-a.0.1", job_id="job-a", epoch=1, domain_id="north", kind=kind, node_id="north-1"
        )
        await stack.bus.publish(failure)
        plan = await stack.bus.expect(RecoveryPlanned)
        # Resumed elsewhere, so the report is settled, before the detector is sure that the node is gone.
        await stack.bus.publish(placed("job-a", 2, ("north", "north-2")))
        await stack.bus.publish(RunStarted(run_id="job-a.0.2", job_id="job-a", epoch=2, domain_id="north"))
        await heard(stack, service, "incidents WHERE state = 'closed'")
        north.exited.add("north-1")
        failed = await stack.bus.expect(NodeFailed)
        assert failed.incident_id == plan.incident_id
        page = (await service.http.get("/v1/incidents", params={"state": "open"})).json()
        assert [(item["kind"], item["node_id"]) for item in page["incidents"]] == [("node_failed", "north-1")]
        assert len(stack.bus.events(RecoveryPlanned)) == 1


async def test_a_run_placed_on_a_node_after_its_failure_is_planned(stack: Environment) -> None:
    north = Agent(stack.bus, "north", ["north-1"])
    async with stack.service("failover", QUICK) as service, beating(north):
        await heard(stack, service, "nodes")
        north.exited.add("north-1")
        failed = await stack.bus.expect(NodeFailed)
        await stack.bus.publish(placed("job-late", 1, ("north", "north-1")))
        plan = await stack.bus.expect(RecoveryPlanned)
        assert (plan.run_id, plan.incident_id) == ("job-late.0.1", failed.incident_id)


async def test_finished_and_superseded_runs_are_not_planned(stack: Environment) -> None:
    north = Agent(stack.bus, "north", ["north-1", "north-2"])
    async with stack.service("failover", QUICK) as service, beating(north):
        await stack.bus.publish(
            # Ends before its placement is heard of: the topics have no common order.
            RunFinished(run_id="job-done.0.1", job_id="job-done", epoch=1, domain_id="north"),
        )
        await heard(stack, service, "run_domains")
        await stack.bus.publish(
            placed("job-done", 1, ("north", "north-1")),
            placed("job-moved", 1, ("north", "north-1")),
            placed("job-moved", 2, ("north", "north-2")),
            placed("job-over", 1, ("north", "north-1")),
            JobFinished(job_id="job-over"),
            placed("job-here", 1, ("north", "north-1")),
        )
        await heard(stack, service, "runs", 5)
        await heard(stack, service, "nodes", 2)
        north.exited.add("north-1")
        failed = await stack.bus.expect(NodeFailed)
        assert list(failed.run_ids) == ["job-here.0.1"]
        await stack.bus.expect(RecoveryPlanned)
        assert [plan.run_id for plan in stack.bus.events(RecoveryPlanned)] == ["job-here.0.1"]


async def test_a_program_that_failed_with_its_node_is_planned_as_the_nodes_loss(stack: Environment) -> None:
    north = Agent(stack.bus, "north", ["north-1", "north-2"])
    async with stack.service("failover", QUICK) as service, beating(north):
        await stack.bus.publish(placed("gang", 1, ("north", "north-1"), ("north", "north-2")))
        await heard(stack, service, "runs")
        await heard(stack, service, "nodes", 2)
        north.silence("north-1")
        failure = RunFailed(run_id="gang.0.1", job_id="gang", epoch=1, domain_id="north", node_id="north-2", rank=1)
        failure.kind = run_pb2.RUN_FAILURE_KIND_PROGRAM
        failure.at.GetCurrentTime()
        await stack.bus.publish(failure)
        plan = await stack.bus.expect(RecoveryPlanned)
        assert (plan.run_id, list(plan.exclude_node_ids)) == ("gang.0.1", ["north-1"])


async def test_a_node_that_died_while_failover_was_down_is_found_by_the_next(stack: Environment) -> None:
    north = Agent(stack.bus, "north", ["north-1", "north-2"])
    async with beating(north):
        async with stack.service("failover", QUICK) as service:
            await stack.bus.publish(placed("job-a", 1, ("north", "north-1")), placed("job-b", 1, ("north", "north-2")))
            await heard(stack, service, "runs", 2)
            north.exited.add("north-2")
            await stack.bus.expect(NodeFailed)
        north.nodes.remove("north-1")
        async with stack.service("failover", QUICK) as service:
            failed = await stack.bus.expect(NodeFailed, lambda event: event.node_id == "north-1")
            assert list(failed.run_ids) == ["job-a.0.1"]
            plan = await stack.bus.expect(RecoveryPlanned, lambda event: event.job_id == "job-a")
            assert plan.incident_id == failed.incident_id
            north.exited.clear()
            north.incarnations["north-2"] = 2
            recovered = await stack.bus.expect(NodeRecovered)
            first = await stack.bus.expect(NodeFailed)
            assert (recovered.node_id, recovered.incident_id) == ("north-2", first.incident_id)
            assert len(stack.bus.events(NodeFailed)) == 2


async def test_the_second_instance_stands_by_and_takes_over(stack: Environment) -> None:
    north = Agent(stack.bus, "north", ["north-1"])
    async with beating(north), contextlib.AsyncExitStack() as first_life:
        first = await first_life.enter_async_context(stack.service("failover", QUICK))
        await heard(stack, first, "nodes")
        async with stack.service("failover", QUICK) as second:
            assert (await first.http.get("/v1/nodes")).json()["active"] is True
            assert (await second.http.get("/v1/nodes")).json()["active"] is False
            await first_life.aclose()
            north.exited.add("north-1")
            failed = await stack.bus.expect(NodeFailed)
            assert failed.node_id == "north-1"
            assert (await second.http.get("/v1/nodes")).json()["active"] is True
            assert len(stack.bus.events(NodeFailed)) == 1


async def test_the_checkpoint_of_a_unit_that_runs_is_kept_however_old_it_is(stack: Environment) -> None:
    north = Agent(stack.bus, "north", ["north-1", "north-2"])
    long_ago = datetime.now(UTC) - timedelta(days=40)
    written = []
    for job in ("runs", "ended"):
        message = checkpoint(job, 1, 100)
        message.at.FromDatetime(long_ago)
        written.append(message)
    async with stack.service("failover", QUICK) as service, beating(north):
        await heard(stack, service, "nodes", 2)
        await stack.bus.publish(placed("runs", 1, ("north", "north-1")), placed("ended", 1, ("north", "north-2")))
        await stack.bus.publish(*written, JobFinished(job_id="ended"))
        await heard(stack, service, "runs WHERE ended_at IS NOT NULL")
        await heard(stack, service, "checkpoints", 2)
        async with service.kernel.database.transaction() as connection:
            await Store(connection).forget_older_than(datetime.now(UTC), timedelta(days=30))
        await heard(stack, service, "checkpoints")
        north.exited.update(("north-1", "north-2"))
        plan = await stack.bus.expect(RecoveryPlanned)
        assert (plan.job_id, plan.restore_step) == ("runs", 100)
        async with service.kernel.database.reading() as connection:
            assert set(await RunStore(connection).newest_checkpoints([Unit("runs", 0), Unit("ended", 0)])) == {
                Unit("runs", 0)
            }


async def test_problem_details(stack: Environment) -> None:
    async with stack.service("failover", QUICK) as service:
        missing = await service.http.get("/v1/incidents/inc-none")
        assert (missing.status_code, missing.json()["code"]) == (404, "NOT_FOUND")
        wrong = await service.http.get("/v1/incidents", params={"limit": 0})
        assert wrong.status_code == 422
        assert wrong.json()["errors"][0]["pointer"] == "query:limit"
