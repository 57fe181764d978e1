"""Two levels with a domain that schedules for itself: real shard, decider, agents and programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.graph.v1.graph_pb2 import GraphUpdated
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import JobFinished, JobPlaced, JobSubmitted, PlacementConstraints
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import Assignment, RunFailed, RunFinished, RunStarted
from meridian.contracts.scheduler.v1.scheduler_pb2 import DomainSummary, PlacementAnswer, PlacementRequest
from tests.harness import ROOT, Environment, environment
from tests.integration.agent.agent_process import AgentProcess, agent_running, configuration
from tests.integration.scheduler.two_levels import START, Parts, submission

OWN, ORDINARY = "north", "south"
PATIENCE_S = 180.0
MICRO_PER_HOUR = {OWN: 1_000_000, ORDINARY: 50_000_000}
"""By price every job prefers the domain that schedules for itself."""


@dataclass(frozen=True)
class Network:
    """What the test drives."""

    stack: Environment
    own: AgentProcess
    directory: Path

    def answers(self) -> list[PlacementAnswer]:
        """Those of the agent."""
        found = {item.id: item for item in self.stack.bus.seen if item.source == f"/agents/{OWN}"}
        return [item.data for item in found.values() if isinstance(item.data, PlacementAnswer)]

    def waiting_for(self, name: str) -> list[str]:
        """A program that ends well when a file is there."""
        path = str(self.directory / name)
        return ["python", "-S", "-c", f"import os, time\nwhile not os.path.exists({path!r}): time.sleep(0.05)"]


def declared(directory: Path, address: str, name: str, **more: Any) -> dict[str, Any]:
    """A domain of two nodes with four accelerators each."""
    directory.mkdir()
    settings = configuration(directory, address)
    domain = settings["domain"]
    nodes = [{**node, "node_id": f"{name}-{number}"} for number, node in enumerate(domain["nodes"], 1)]
    price = {"price_micro_per_accelerator_hour": MICRO_PER_HOUR[name]}
    settings["domain"] = {**domain, "domain_id": name, "nodes": nodes, "links": [], **price, **more}
    return settings


@asynccontextmanager
async def network(database_url: str, directory: Path) -> AsyncIterator[Network]:
    async with AsyncExitStack() as life:
        stack = await life.enter_async_context(environment(database_url))
        # What is said late was said all the same: nobody is given up here because the machine has other things to do.
        patient = {
            "MERIDIAN_FAILOVER_START_GRACE_S": "0.5",
            "MERIDIAN_FAILOVER_AGENT_GRACE_S": "0.5",
            "MERIDIAN_FAILOVER_SUSPECT_AFTER_S": "60",
            "MERIDIAN_FAILOVER_FAILED_AFTER_S": "120",
            "MERIDIAN_FAILOVER_UNREACHABLE_AFTER_S": "120",
        }
        for name in ("telemetry", "graph", "failover"):
            await life.enter_async_context(stack.service(name, env=patient if name == "failover" else None))
        policy = ROOT / "services/scheduler/policies/cheapest.yaml"
        parts = Parts(
            stack,
            env={
                "MERIDIAN_SCHEDULER_POLICY_FILE": str(policy),
                "MERIDIAN_SCHEDULER_ANSWER_LIMIT_S": str(PATIENCE_S),
            },
        )
        await parts.prepare()
        address = stack.bootstrap_servers
        life.enter_context(parts.decider())
        life.enter_context(parts.shard())
        ordinary = declared(directory / ORDINARY, address, ORDINARY)
        own = declared(directory / OWN, address, OWN, own_scheduler={"most_time_s": 3600})
        await life.enter_async_context(agent_running(ordinary, directory / ORDINARY))
        agent = await life.enter_async_context(agent_running(own, directory / OWN))
        await stack.bus.expect(
            GraphUpdated, lambda event: event.domain_id == OWN and event.domain.own_scheduler, timeout_s=PATIENCE_S
        )
        await stack.bus.expect(PlacementAnswer, lambda event: event.domain_id == OWN, timeout_s=PATIENCE_S)
        await stack.bus.expect(PlacementAnswer, lambda event: event.domain_id == ORDINARY, timeout_s=PATIENCE_S)
        yield Network(stack, agent, directory)


def job(name: str, command: list[str], accelerators: int, *, limit_s: float = 1800.0, domain: str = "") -> JobSubmitted:
    placement = PlacementConstraints(domains=[domain] if domain else [])
    return submission(
        name,
        command=command,
        resources=Resources(cpus=1, accelerators=accelerators),
        max_run_time_s=limit_s,
        placement=placement,
    )


def starts(stack: Environment, job_id: str) -> list[Assignment]:
    return stack.bus.events(Assignment, lambda event: event.job_id == job_id and event.action == START)


async def started(stack: Environment, job_id: str) -> list[Assignment]:
    """The same, once there is one: who sees a job placed or finished need not have seen its order, they are different topics."""
    await stack.bus.expect(
        Assignment, lambda event: event.job_id == job_id and event.action == START, timeout_s=PATIENCE_S
    )
    return starts(stack, job_id)


def used_twice(stack: Environment) -> list[str]:
    """Devices on which a run began before another one there had ended, by the times that the agents gave."""
    devices = {
        item.run_id: {(rank.node_id, index) for rank in item.ranks for index in rank.accelerator_indices}
        for item in stack.bus.events(Assignment)
        if item.action == START
    }
    ends: list[RunFinished | RunFailed] = [*stack.bus.events(RunFinished), *stack.bus.events(RunFailed)]
    times = [(event.at.ToNanoseconds(), 0, event.run_id) for event in ends]
    times += [(event.at.ToNanoseconds(), 1, event.run_id) for event in stack.bus.events(RunStarted)]
    holders: dict[tuple[str, int], str] = {}
    found = []
    for _, begins, run_id in sorted(times):
        for device in devices[run_id]:
            if begins and holders.setdefault(device, run_id) != run_id:
                found.append(f"{device}: {run_id} beside {holders[device]}")
            elif not begins and holders.get(device) == run_id:
                del holders[device]
    return found


@pytest.mark.timeout(1200)
async def test_a_domain_that_schedules_for_itself_takes_refuses_and_keeps(database_url: str, tmp_path: Path) -> None:
    async with network(database_url, tmp_path) as found:
        stack, bus = found.stack, found.stack.bus
        # 1. One for each domain; the domain's own scheduler names its nodes.
        await bus.publish(
            job("here", ["python", "-c", "pass"], 2), job("there", ["python", "-c", "pass"], 2, domain=ORDINARY)
        )
        await bus.expect(JobFinished, count=2, timeout_s=PATIENCE_S)
        (here,), (there,) = await started(stack, "here"), await started(stack, "there")
        assert (here.domain_id, there.domain_id) == (OWN, ORDINARY)
        await bus.expect(PlacementAnswer, lambda event: any(item.name.job_id == "here" for item in event.placed))
        (given,) = [item for answer in found.answers() for item in answer.placed if item.name.job_id == "here"]
        assert [(rank.node_id, list(rank.accelerator_indices)) for rank in given.ranks] == [("north-1", [0, 1])]
        assert list(here.ranks) == list(given.ranks)
        await bus.expect(PlacementRequest, lambda event: event.domain_id == OWN and bool(event.wanted))
        asked = bus.events(PlacementRequest, lambda event: event.domain_id == OWN and bool(event.wanted))
        assert all(item.own_scheduler and item.wanted[0].demand.accelerators == 2 for item in asked)
        # 2. What the domain does not run comes back once, with the reason, and goes elsewhere.
        await bus.publish(job("long", ["python", "-c", "pass"], 1, limit_s=7200))
        placed = await bus.expect(JobPlaced, lambda event: event.job_id == "long", timeout_s=PATIENCE_S)
        assert placed.epoch == 1
        assert [item.domain_id for item in await started(stack, "long")] == [ORDINARY]
        await bus.expect(PlacementAnswer, lambda event: event.domain_id == OWN and bool(event.refused))
        refused = [item for answer in found.answers() for item in answer.refused]
        assert [(item.name.job_id, item.reason) for item in refused] == [
            ("long", "the domain runs nothing longer than 3600 s, and 7200 s is asked for")
        ]
        # 3. The domain is full when its agent is killed; it comes back with all that it gave away.
        holds = [f"hold-{number}" for number in range(4)]
        await bus.publish(*(job(name, found.waiting_for("end"), 2, domain=OWN) for name in holds))
        await bus.expect(RunStarted, lambda event: event.job_id in holds, count=4, timeout_s=PATIENCE_S)
        await bus.publish(job("more", found.waiting_for("end"), 3, domain=OWN))
        term = max(item.domain_term for item in found.answers())
        await found.own.kill()
        await found.own.start()
        first = await bus.expect(
            DomainSummary, lambda event: event.domain_id == OWN and event.term > term, timeout_s=PATIENCE_S
        )
        assert (first.running, sum(size * count for size, count in enumerate(first.devices[0].nodes_by_free))) == (4, 0)
        # 4. Its runs were lost with it; all of them and the one that waited run on what is free then.
        (tmp_path / "end").touch()
        await finished(stack, 8)
        await all_orders_seen(stack)
        assert used_twice(stack) == []
        assert await grants_left(database_url) == 0
        assert not bus.dead_letters
        decided = bus.events(PlacementAnswer, lambda event: event.domain_id == OWN)
        assert {item.domain_term for item in decided} == {item.domain_term for item in found.answers()}
        # 5. An order for nodes that the domain did not give is refused, and nothing begins.
        stranger = Assignment()
        stranger.CopyFrom(here)
        stranger.run_id, stranger.job_id = "stranger.0.1", "stranger"
        stranger.assigned_at.GetCurrentTime()
        await bus.publish(stranger)
        failed = await bus.expect(RunFailed, lambda event: event.job_id == "stranger", timeout_s=PATIENCE_S)
        assert failed.kind == run_pb2.RUN_FAILURE_KIND_REFUSED
        assert failed.reason == "the domain's own scheduler has not given nodes to this run"


async def finished(stack: Environment, count: int) -> None:
    """Wait until so many jobs have ended well."""
    async with asyncio.timeout(2 * PATIENCE_S):
        while len({event.job_id for event in stack.bus.events(JobFinished)}) < count:
            await asyncio.sleep(0.05)
    assert {event.outcome for event in stack.bus.events(JobFinished)} == {job_pb2.JOB_OUTCOME_SUCCEEDED}


async def all_orders_seen(stack: Environment) -> None:
    """Wait until the order of every run that began has been seen: they are on another topic."""
    async with asyncio.timeout(PATIENCE_S):
        while not {event.run_id for event in stack.bus.events(RunStarted)} <= {
            event.run_id for event in stack.bus.events(Assignment)
        }:
            await asyncio.sleep(0.05)


async def grants_left(database_url: str) -> int:
    """Grants of the domain that schedules for itself at Meridian's decider: none was ever there."""
    connection = await asyncpg.connect(database_url.replace("+asyncpg", ""))
    try:
        return int(
            await connection.fetchval("SELECT count(*) FROM scheduler_domain.unit_grant WHERE domain_id = $1", OWN)
        )
    finally:
        await connection.close()
