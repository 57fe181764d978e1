"""A domain that is a Kubernetes in a real network: shard, telemetry, graph, failover, agent and programs."""

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
from meridian.contracts.scheduler.v1.scheduler_pb2 import PlacementAnswer
from tests.harness import Environment, environment
from tests.integration.agent.agent_process import AgentProcess, agent_running, configuration, processes_of
from tests.integration.kubernetes.control_plane import (
    CPUS,
    GPU,
    GPUS,
    MEMORY_BYTES,
    NAMESPACE,
    NODES,
    PATIENCE_S,
    ControlPlane,
)
from tests.integration.scheduler.two_levels import START, Parts, submission

pytestmark = pytest.mark.slow

DOMAIN = "north"
TRAINING = Path(__file__).parents[3] / "examples/train_transformer"


@dataclass(frozen=True)
class Network:
    """What the test drives."""

    stack: Environment
    agent: AgentProcess
    plane: ControlPlane
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


def declared(directory: Path, address: str, plane: ControlPlane, lease_s: float, **scheduling: Any) -> dict[str, Any]:
    """The domain as the agent's file has it; its nodes have other names in Kubernetes, and it has a token, not a kubeconfig."""
    settings = configuration(directory, address, lease_s=lease_s, shared_dir=str(directory / "shared"))
    group = {"vendor": "NVIDIA", "model": "H100", "count": GPUS, "memory_bytes": 85899345920}
    node = {"cpus": CPUS, "memory_bytes": MEMORY_BYTES, "accelerators": [group]}
    nodes = [{**node, "node_id": f"north-{name}", "aliases": {"kubernetes": name}} for name in NODES]
    scheduling = {
        **scheduling,
        "kind": "kubernetes",
        "server": plane.url,
        "ca_path": str(plane.ca_path),
        "token_path": str(plane.token_path),
        "namespace": NAMESPACE,
        "image": "python",
        "model_labels": {"H100": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
        "volume": {"path": str(directory / "shared"), "host": True},
        "node_loss_s": 1,
        "lost_patience_s": 1,
        "poll_s": 0.3,
    }
    settings["domain"] |= {"nodes": nodes, "links": [], "emulated": False, "own_scheduler": scheduling}
    return settings


@asynccontextmanager
async def network(
    database_url: str, directory: Path, plane: ControlPlane, *, lease_s: float = 120, **scheduling: Any
) -> AsyncIterator[Network]:
    async with AsyncExitStack() as life:
        stack = await life.enter_async_context(environment(database_url))
        quick = {"MERIDIAN_FAILOVER_START_GRACE_S": "0.5", "MERIDIAN_FAILOVER_AGENT_GRACE_S": "0.5"}
        for name in ("telemetry", "graph", "failover"):
            await life.enter_async_context(stack.service(name, env=quick if name == "failover" else None))
        parts = Parts(stack)
        await parts.prepare()
        life.enter_context(parts.shard())
        (directory / "shared").mkdir()
        settings = declared(directory, stack.bootstrap_servers, plane, lease_s, **scheduling)
        agent = await life.enter_async_context(agent_running(settings, directory))
        await stack.bus.expect(
            GraphUpdated, lambda event: event.domain_id == DOMAIN and event.domain.own_scheduler, timeout_s=PATIENCE_S
        )
        await stack.bus.expect(PlacementAnswer, lambda event: event.domain_id == DOMAIN, timeout_s=PATIENCE_S)
        yield Network(stack, agent, plane, directory)


def job(name: str, command: list[str], accelerators: int, *, limit_s: float = 300, **more: Any) -> job_pb2.JobSubmitted:
    resources = Resources(cpus=1, accelerators=accelerators, memory_bytes=2**28)
    return submission(name, command=command, resources=resources, max_run_time_s=limit_s, **more)


async def started(stack: Environment, name: str, *, count: int = 1) -> list[Assignment]:
    """The STARTs of a job, once there are so many."""

    def ours(event: Assignment) -> bool:
        return bool(event.job_id == name and event.action == START)

    await stack.bus.expect(Assignment, ours, count=count, timeout_s=PATIENCE_S)
    return stack.bus.events(Assignment, ours)


@pytest.mark.timeout(1200)
async def test_jobs_of_the_network_run_in_kubernetes(
    database_url: str, tmp_path: Path, kubernetes: ControlPlane
) -> None:
    async with network(database_url, tmp_path, kubernetes) as found:
        stack, bus = found.stack, found.stack.bus
        # 1. A gang of two: it is asked for by constraints, Kubernetes names the nodes, both ranks run in one Job.
        show = "import os; print(os.environ['RANK'], os.environ['MERIDIAN_NODE'], len(os.environ['NVIDIA_VISIBLE_DEVICES'].split(',')))"
        await bus.publish(job("pair", ["python", "-S", "-c", show], 3, kind=job_pb2.JOB_KIND_GANG, ranks=2))
        assert await found.job_finished("pair") == job_pb2.JOB_OUTCOME_SUCCEEDED
        (order,) = await started(stack, "pair")
        assert len({rank.node_id for rank in order.ranks}) == 2
        for rank in order.ranks:
            assert found.log(order.run_id, rank.rank) == f"{rank.rank} {rank.node_id} 3\n"
        # 2. What is not to be had comes back with the scheduler's reason, and runs when it is.
        for node in NODES[1:]:
            kubernetes.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
        await bus.publish(job("first", found.waiting_for("room"), GPUS))
        await bus.expect(RunStarted, lambda event: event.job_id == "first", timeout_s=PATIENCE_S)
        for node in NODES[1:]:
            kubernetes.patch(
                f"/api/v1/nodes/{node}",
                {"metadata": {"labels": {"nvidia.com/gpu.product": "other"}}, "spec": {"unschedulable": None}},
            )
        await bus.publish(job("asks", ["python", "-S", "-c", "pass"], 1))
        reason = await found.refused("asks")
        assert "0/3 nodes are available" in reason
        assert f"1 Insufficient {GPU}" in reason
        for node in NODES[1:]:
            kubernetes.patch(
                f"/api/v1/nodes/{node}", {"metadata": {"labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}}
            )
        (tmp_path / "room").touch()
        assert await found.job_finished("first") == job_pb2.JOB_OUTCOME_SUCCEEDED
        assert await found.job_finished("asks") == job_pb2.JOB_OUTCOME_SUCCEEDED
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
        before = processes_of("steady.0.1")
        await found.agent.kill()
        await found.agent.start()
        seen = len(bus.events(RunProgress, lambda event: event.job_id == "steady"))
        await bus.expect(RunProgress, lambda event: event.job_id == "steady", count=seen + 3, timeout_s=PATIENCE_S)
        assert processes_of("steady.0.1") == before
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
        # 5. Nothing is left.
        await asyncio.to_thread(kubernetes.until, lambda: not kubernetes.jobs(), "all Jobs are gone")
        assert not bus.dead_letters


@pytest.mark.timeout(1200)
async def test_a_training_goes_on_elsewhere_when_a_node_dies(
    database_url: str, tmp_path: Path, kubernetes: ControlPlane
) -> None:
    async with network(database_url, tmp_path, kubernetes) as found:
        stack, bus = found.stack, found.stack.bus
        steps = 25
        small = ["--layers", "1", "--hidden", "32", "--heads", "2", "--seq", "16", "--batch", "8"]
        arguments = ["--steps", str(steps), "--checkpoint-every", "5", "--step-time-s", "0.25", *small]
        await bus.publish(
            job(
                "train",
                ["python", "train.py", *arguments],
                3,
                kind=job_pb2.JOB_KIND_GANG,
                ranks=2,
                working_dir=str(TRAINING),
            )
        )
        saved = await bus.expect(RunCheckpointed, lambda event: event.job_id == "train", timeout_s=PATIENCE_S)
        (order,) = await started(stack, "train")
        assert len({rank.node_id for rank in order.ranks}) == 2
        lost = order.ranks[1].node_id.removeprefix("north-")
        await asyncio.to_thread(kubernetes.node_dies, lost)
        failed = await bus.expect(RunFailed, lambda event: event.job_id == "train", timeout_s=PATIENCE_S)
        assert failed.kind == run_pb2.RUN_FAILURE_KIND_NODE_LOST
        assert f"ranks on north-{lost} may run on" in failed.reason
        assert await found.job_finished("train") == job_pb2.JOB_OUTCOME_SUCCEEDED
        second = (await started(stack, "train", count=2))[-1]
        assert second.epoch == 2
        assert order.ranks[1].node_id not in {rank.node_id for rank in second.ranks}
        assert second.restore_step >= saved.step, "it goes on from a checkpoint"
        progress = bus.events(RunProgress, lambda event: event.run_id == second.run_id)
        assert max(event.step for event in progress) == steps
        kubernetes.start_kubelet(lost)
        await asyncio.to_thread(kubernetes.until, lambda: kubernetes.node_is(lost, "True"), f"{lost} is back")
        assert not bus.dead_letters


@pytest.mark.timeout(1200)
async def test_a_run_ends_without_its_agent(database_url: str, tmp_path: Path, kubernetes: ControlPlane) -> None:
    async with network(database_url, tmp_path, kubernetes, lease_s=20) as found:
        stack, bus = found.stack, found.stack.bus
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
