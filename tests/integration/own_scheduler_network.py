"""A domain with a scheduler of its own in a real network: shard, telemetry, graph, failover, agent and programs; and what each such
domain must do there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.graph.v1.graph_pb2 import GraphUpdated
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import JobCancelRequested, JobFinished
from meridian.contracts.resource.v1.resource_pb2 import Heartbeat
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import Assignment, RunFailed, RunFinished, RunProgress, RunStarted
from meridian.contracts.scheduler.v1.scheduler_pb2 import PlacementAnswer
from tests.harness import Environment, environment
from tests.integration.agent.agent_process import AgentProcess, agent_running, configuration, processes_of
from tests.integration.scheduler.two_levels import START, Parts, submission

DOMAIN = "north"
PATIENCE_S = 120.0


def job(name: str, command: list[str], accelerators: int, *, limit_s: float = 300, **more: Any) -> job_pb2.JobSubmitted:
    resources = Resources(cpus=1, accelerators=accelerators, memory_bytes=2**28)
    return submission(name, command=command, resources=resources, max_run_time_s=limit_s, **more)


@dataclass(frozen=True)
class Network:
    """What the test drives."""

    stack: Environment
    agent: AgentProcess
    directory: Path

    def waiting_for(self, name: str, begun: str = "") -> list[str]:
        """A program that notes that it has begun, and ends well when a file is there."""
        end, start = str(self.directory / name), str(self.directory / begun)
        note = f"open({start!r}, 'a').write('begun\\n')\n" if begun else ""
        step = 'n += 1; print(\'@meridian {"progress": {"step": %d}}\' % n, flush=True); time.sleep(0.1)'
        return ["python", "-S", "-c", f"import os, time\n{note}n = 0\nwhile not os.path.exists({end!r}): {step}"]

    def log(self, run_id: str, rank: int = 0) -> str:
        """What a rank printed; it is there when the run's end has been told."""
        return (Path(self.agent.settings["shared_dir"]) / "logs" / run_id / f"rank-{rank}.log").read_text()

    async def job_finished(self, name: str) -> int:
        """The outcome of a job."""
        return (
            await self.stack.bus.expect(JobFinished, lambda event: event.job_id == name, timeout_s=PATIENCE_S)
        ).outcome

    async def refused(self, name: str) -> str:
        """The reason for which the domain refused a job."""
        answer = await self.stack.bus.expect(
            PlacementAnswer, lambda event: any(item.name.job_id == name for item in event.refused), timeout_s=PATIENCE_S
        )
        return next(item.reason for item in answer.refused if item.name.job_id == name)

    async def started(self, name: str, *, count: int = 1) -> list[Assignment]:
        """The STARTs of a job, once there are so many: who sees a job's end need not have seen its orders, they are on
        different topics."""

        def ours(event: Assignment) -> bool:
            return bool(event.job_id == name and event.action == START)

        await self.stack.bus.expect(Assignment, ours, count=count, timeout_s=PATIENCE_S)
        return self.stack.bus.events(Assignment, ours)

    async def a_program_fails_and_one_is_cancelled(self) -> None:
        """Both ends are told as what they are, and no process stays."""
        bus = self.stack.bus
        await bus.publish(job("bad", ["python", "-S", "-c", "import sys; print('no'); sys.exit(7)"], 1))
        failed = await bus.expect(RunFailed, lambda event: event.job_id == "bad", timeout_s=PATIENCE_S)
        assert (failed.kind, failed.exit_code, failed.log_tail) == (run_pb2.RUN_FAILURE_KIND_PROGRAM, 7, "no\n")
        await bus.publish(job("unwanted", self.waiting_for("never"), 1))
        await bus.expect(RunStarted, lambda event: event.job_id == "unwanted", timeout_s=PATIENCE_S)
        await bus.publish(JobCancelRequested(job_id="unwanted", tenant_id="lab"))
        assert await self.job_finished("unwanted") == job_pb2.JOB_OUTCOME_CANCELLED
        await bus.expect(RunFailed, lambda event: event.job_id == "unwanted", timeout_s=PATIENCE_S)
        assert not processes_of("unwanted.0.1")

    async def the_agent_is_killed_and_follows_on(self) -> None:
        """A run does not notice that its agent is killed; the next agent follows it to its one end."""
        bus = self.stack.bus
        await bus.publish(job("steady", self.waiting_for("end", begun="begun"), 2))
        await bus.expect(RunProgress, lambda event: event.job_id == "steady", timeout_s=PATIENCE_S)
        before = processes_of("steady.0.1")
        assert before
        await self.agent.kill()
        await self.agent.start()
        seen = len(bus.events(RunProgress, lambda event: event.job_id == "steady"))
        await bus.expect(RunProgress, lambda event: event.job_id == "steady", count=seen + 3, timeout_s=PATIENCE_S)
        assert processes_of("steady.0.1") == before
        await bus.expect(
            Heartbeat, lambda event: any("steady.0.1" in node.run_ids for node in event.nodes), timeout_s=PATIENCE_S
        )
        (self.directory / "end").touch()
        assert await self.job_finished("steady") == job_pb2.JOB_OUTCOME_SUCCEEDED
        assert (self.directory / "begun").read_text() == "begun\n"
        assert [item.epoch for item in await self.started("steady")] == [1]
        await bus.expect(RunFinished, lambda event: event.job_id == "steady")
        ends = {item.id for item in bus.seen if isinstance(item.data, RunFinished) and item.data.job_id == "steady"}
        assert len(ends) == 1
        assert not bus.events(RunFailed, lambda event: event.job_id == "steady")

    async def a_run_ends_without_its_agent(self) -> None:
        """The agent is killed and stays away for longer than its lease: the ranks end by themselves, and run again in time."""
        bus = self.stack.bus
        await bus.publish(job("left", self.waiting_for("late"), 1))
        await bus.expect(RunStarted, lambda event: event.job_id == "left", timeout_s=PATIENCE_S)
        await self.agent.kill()
        async with asyncio.timeout(PATIENCE_S):
            while processes_of("left.0.1"):
                await asyncio.sleep(0.1)
        (self.directory / "late").touch()
        await self.agent.start()
        failed = await bus.expect(RunFailed, lambda event: event.job_id == "left", timeout_s=PATIENCE_S)
        assert failed.kind == run_pb2.RUN_FAILURE_KIND_LEASE_EXPIRED
        assert await self.job_finished("left") == job_pb2.JOB_OUTCOME_SUCCEEDED
        assert [item.epoch for item in await self.started("left", count=2)] == [1, 2]
        assert not bus.dead_letters


def declared(
    directory: Path, address: str, lease_s: float, nodes: list[dict[str, Any]], scheduling: dict[str, Any]
) -> dict[str, Any]:
    """The domain as the agent's file has it: nodes with their size and their name there, each with four H100."""
    settings = configuration(directory, address, lease_s=lease_s, shared_dir=str(directory / "shared"))
    group = {"vendor": "NVIDIA", "model": "H100", "count": 4, "memory_bytes": 85899345920}
    settings["domain"] |= {
        "nodes": [{**node, "accelerators": [group]} for node in nodes],
        "links": [],
        "emulated": False,
        "own_scheduler": scheduling,
    }
    return settings


@asynccontextmanager
async def network_with(
    database_url: str, directory: Path, settings_for: Callable[[str], dict[str, Any]]
) -> AsyncIterator[Network]:
    """The network, once the domain answers. ``settings_for`` gives the agent's file for the address of the bus."""
    async with AsyncExitStack() as life:
        stack = await life.enter_async_context(environment(database_url))
        quick = {"MERIDIAN_FAILOVER_START_GRACE_S": "0.5", "MERIDIAN_FAILOVER_AGENT_GRACE_S": "0.5"}
        for name in ("telemetry", "graph", "failover"):
            await life.enter_async_context(stack.service(name, env=quick if name == "failover" else None))
        parts = Parts(stack)
        await parts.prepare()
        life.enter_context(parts.shard())
        agent = await life.enter_async_context(agent_running(settings_for(stack.bootstrap_servers), directory))
        await stack.bus.expect(
            GraphUpdated, lambda event: event.domain_id == DOMAIN and event.domain.own_scheduler, timeout_s=PATIENCE_S
        )
        await stack.bus.expect(PlacementAnswer, lambda event: event.domain_id == DOMAIN, timeout_s=PATIENCE_S)
        yield Network(stack, agent, directory)
