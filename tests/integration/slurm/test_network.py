"""A domain that is a Slurm in a real network: shard, telemetry, graph, failover, agent and programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.graph.v1.graph_pb2 import GraphUpdated
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import JobCancelRequested, JobFinished
from meridian.contracts.resource.v1.resource_pb2 import Heartbeat
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import (
    Assignment,
    RunCheckpointed,
    RunFailed,
    RunFinished,
    RunProgress,
    RunStarted,
)
from meridian.contracts.scheduler.v1.scheduler_pb2 import PlacementAnswer, PlacementRequest
from tests.harness import Environment, environment
from tests.integration.agent.agent_process import AgentProcess, agent_running, configuration, processes_of
from tests.integration.scheduler.two_levels import START, Parts, submission
from tests.integration.slurm.cluster import CPUS, GPUS, MEMORY_MIB, NODES, PATIENCE_S, SlurmCluster

DOMAIN = "north"


@dataclass(frozen=True)
class Network:
    """What the test drives."""

    stack: Environment
    agent: AgentProcess
    slurm: SlurmCluster
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

    def jobs_of(self, name: str) -> dict[int, str]:
        """States of all that Slurm was ever asked for a job's first run."""
        return {
            number: state
            for number, (called, state) in self.slurm.jobs().items()
            if called == f"meridian:{DOMAIN}:{name}:0:1"
        }

    async def refused(self, name: str) -> str:
        """The reason for which the domain refused a job."""
        answer = await self.stack.bus.expect(
            PlacementAnswer, lambda event: any(item.name.job_id == name for item in event.refused), timeout_s=PATIENCE_S
        )
        return next(item.reason for item in answer.refused if item.name.job_id == name)


def declared(directory: Path, address: str, slurm: SlurmCluster, lease_s: float, **scheduling: Any) -> dict[str, Any]:
    """The domain as the agent's file has it; its nodes have other names in Slurm."""
    settings = configuration(directory, address, lease_s=lease_s, shared_dir=str(directory / "shared"))
    group = {"vendor": "NVIDIA", "model": "H100", "count": GPUS, "memory_bytes": 85899345920}
    node = {"cpus": CPUS, "memory_bytes": MEMORY_MIB * 2**20, "accelerators": [group]}
    nodes = [{**node, "node_id": f"north-{name}", "aliases": {"slurm": name}} for name in NODES]
    scheduling = {
        **scheduling,
        "kind": "slurm",
        "partition": "main",
        "gres_types": {"H100": "h100"},
        "configuration": str(slurm.configuration),
        "poll_s": 0.3,
    }
    settings["domain"] |= {"nodes": nodes, "links": [], "emulated": False, "own_scheduler": scheduling}
    return settings


@asynccontextmanager
async def network(
    database_url: str, directory: Path, slurm: SlurmCluster, *, lease_s: float = 120, **scheduling: Any
) -> AsyncIterator[Network]:
    async with AsyncExitStack() as life:
        stack = await life.enter_async_context(environment(database_url))
        quick = {"MERIDIAN_FAILOVER_START_GRACE_S": "0.5", "MERIDIAN_FAILOVER_AGENT_GRACE_S": "0.5"}
        for name in ("telemetry", "graph", "failover"):
            await life.enter_async_context(stack.service(name, env=quick if name == "failover" else None))
        parts = Parts(stack)
        await parts.prepare()
        life.enter_context(parts.shard())
        settings = declared(directory, stack.bootstrap_servers, slurm, lease_s, **scheduling)
        agent = await life.enter_async_context(agent_running(settings, directory))
        await stack.bus.expect(
            GraphUpdated, lambda event: event.domain_id == DOMAIN and event.domain.own_scheduler, timeout_s=PATIENCE_S
        )
        await stack.bus.expect(PlacementAnswer, lambda event: event.domain_id == DOMAIN, timeout_s=PATIENCE_S)
        yield Network(stack, agent, slurm, directory)


def job(name: str, command: list[str], accelerators: int, *, limit_s: float = 300, **more: Any) -> job_pb2.JobSubmitted:
    resources = Resources(cpus=1, accelerators=accelerators, memory_bytes=2**28)
    return submission(name, command=command, resources=resources, max_run_time_s=limit_s, **more)


def starts(stack: Environment, name: str) -> list[Assignment]:
    return stack.bus.events(Assignment, lambda event: event.job_id == name and event.action == START)


async def started(stack: Environment, name: str, *, count: int = 1) -> list[Assignment]:
    """The same, once there are so many: who sees a job's end need not have seen its orders, they are on different topics."""
    await stack.bus.expect(
        Assignment, lambda event: event.job_id == name and event.action == START, count=count, timeout_s=PATIENCE_S
    )
    return starts(stack, name)


@pytest.mark.timeout(1200)
async def test_jobs_of_the_network_run_in_slurm(database_url: str, tmp_path: Path, slurm: SlurmCluster) -> None:
    async with network(database_url, tmp_path, slurm) as found:
        stack, bus = found.stack, found.stack.bus
        # 1. A gang of two: it is asked for by constraints, Slurm names the nodes, both ranks run in one job of Slurm's.
        show = "import os; print(os.environ['RANK'], os.environ['MERIDIAN_NODE'], os.environ['CUDA_VISIBLE_DEVICES'])"
        await bus.publish(job("pair", ["python", "-S", "-c", show], 3, kind=job_pb2.JOB_KIND_GANG, ranks=2))
        assert await found.job_finished("pair") == job_pb2.JOB_OUTCOME_SUCCEEDED
        (order,) = await started(stack, "pair")
        assert len({rank.node_id for rank in order.ranks}) == 2
        for rank in order.ranks:
            devices = ",".join(map(str, rank.accelerator_indices))
            assert found.log(order.run_id, rank.rank) == f"{rank.rank} {rank.node_id} {devices}\n"
        own = {path.name for path in Path(found.agent.settings["data_dir"]).iterdir()}
        assert {"journal", "grants"} <= own, "what must not be lost is on the agent's own disk"
        assert not {"logs", "work", "slurm", "checkpoints"} & own, "and nothing that the nodes must see"
        await bus.expect(PlacementRequest, lambda event: any(item.job_id == "pair" for item in event.wanted))
        asked = bus.events(PlacementRequest, lambda event: any(item.job_id == "pair" for item in event.wanted))
        assert all(event.own_scheduler for event in asked)
        assert ("meridian:north:pair:0:1", "COMPLETED") in slurm.jobs().values()
        # 2. What Slurm will not run comes back with Slurm's reason.
        await bus.publish(job("long", ["true"], 1, limit_s=7200))
        assert "Slurm would never begin it" in await found.refused("long")
        await bus.publish(JobCancelRequested(job_id="long", tenant_id="lab"))
        # 3. A program that fails, and one that is cancelled.
        await bus.publish(job("bad", ["python", "-S", "-c", "import sys; print('no'); sys.exit(7)"], 1))
        failed = await bus.expect(RunFailed, lambda event: event.job_id == "bad", timeout_s=PATIENCE_S)
        assert (failed.kind, failed.exit_code, failed.log_tail) == (run_pb2.RUN_FAILURE_KIND_PROGRAM, 7, "no\n")
        await bus.publish(job("unwanted", found.waiting_for("never"), 1))
        await bus.expect(RunStarted, lambda event: event.job_id == "unwanted", timeout_s=PATIENCE_S)
        await bus.publish(JobCancelRequested(job_id="unwanted", tenant_id="lab"))
        assert await found.job_finished("unwanted") == job_pb2.JOB_OUTCOME_CANCELLED
        await bus.expect(RunFailed, lambda event: event.job_id == "unwanted", timeout_s=PATIENCE_S)
        assert not processes_of("unwanted.0.1")
        # 4. The agent is killed while a run goes on: the run does not notice, and is followed on by the next one.
        await bus.publish(job("steady", found.waiting_for("end", begun="begun"), 2))
        await bus.expect(RunProgress, lambda event: event.job_id == "steady", timeout_s=PATIENCE_S)
        (before,) = processes_of("steady.0.1")
        await found.agent.kill()
        await found.agent.start()
        seen = len(bus.events(RunProgress, lambda event: event.job_id == "steady"))
        await bus.expect(RunProgress, lambda event: event.job_id == "steady", count=seen + 3, timeout_s=PATIENCE_S)
        assert processes_of("steady.0.1") == [before]
        await bus.expect(
            Heartbeat, lambda event: any("steady.0.1" in node.run_ids for node in event.nodes), timeout_s=PATIENCE_S
        )
        (tmp_path / "end").touch()
        assert await found.job_finished("steady") == job_pb2.JOB_OUTCOME_SUCCEEDED
        assert (tmp_path / "begun").read_text() == "begun\n"
        assert [item.epoch for item in await started(stack, "steady")] == [1]
        await bus.expect(RunFinished, lambda event: event.job_id == "steady")
        ends = {item.id for item in bus.seen if isinstance(item.data, RunFinished) and item.data.job_id == "steady"}
        assert len(ends) == 1
        assert not bus.events(RunFailed, lambda event: event.job_id == "steady")
        # 5. All that was given is free again.
        await asyncio.to_thread(slurm.until, f"{len(NODES)}|idle", "sinfo", "-h", "-p", "main", "-o", "%D|%T")
        assert not bus.dead_letters
        assert not bus.events(RunCheckpointed)


@pytest.mark.timeout(1200)
async def test_a_unit_that_is_refused_for_now_keeps_its_place_in_slurms_queue(
    database_url: str, tmp_path: Path, slurm: SlurmCluster
) -> None:
    async with network(database_url, tmp_path, slurm, most_queued=1) as found:
        bus = found.stack.bus
        whole = {"kind": job_pb2.JOB_KIND_GANG, "ranks": len(NODES)}
        await bus.publish(job("all", found.waiting_for("end"), GPUS, **whole))
        await bus.expect(RunStarted, lambda event: event.job_id == "all", timeout_s=PATIENCE_S)
        await bus.publish(job("next", ["python", "-S", "-c", "pass"], GPUS))
        assert (await found.refused("next")).endswith("; it keeps its place in the queue")
        (waiting,) = found.jobs_of("next")
        (tmp_path / "end").touch()
        assert await found.job_finished("next") == job_pb2.JOB_OUTCOME_SUCCEEDED
        assert found.jobs_of("next") == {waiting: "COMPLETED"}, "the job that waited is the one that ran"
        assert [item.epoch for item in await started(found.stack, "next")] == [1]
        assert not bus.dead_letters


@pytest.mark.timeout(1200)
async def test_a_run_ends_without_its_agent(database_url: str, tmp_path: Path, slurm: SlurmCluster) -> None:
    async with network(database_url, tmp_path, slurm, lease_s=14) as found:
        stack, bus = found.stack, found.stack.bus
        # The agent is killed and stays away for longer than its lease: the ranks end by themselves, and run elsewhere in time.
        await bus.publish(job("left", found.waiting_for("late"), 1))
        await bus.expect(RunStarted, lambda event: event.job_id == "left", timeout_s=PATIENCE_S)
        await found.agent.kill()
        async with asyncio.timeout(PATIENCE_S):
            while processes_of("left.0.1"):
                await asyncio.sleep(0.1)
        (tmp_path / "late").touch()
        await found.agent.start()
        failed = await bus.expect(RunFailed, lambda event: event.job_id == "left", timeout_s=PATIENCE_S)
        assert failed.kind == run_pb2.RUN_FAILURE_KIND_LEASE_EXPIRED
        assert await found.job_finished("left") == job_pb2.JOB_OUTCOME_SUCCEEDED
        assert [item.epoch for item in await started(stack, "left", count=2)] == [1, 2]
        assert not bus.dead_letters
