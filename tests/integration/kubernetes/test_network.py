"""A domain that is a Kubernetes in a real network: shard, telemetry, graph, failover, agent and programs."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import RunCheckpointed, RunFailed, RunProgress, RunStarted
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
from tests.integration.own_scheduler_network import Network, declared, job, network_with

pytestmark = pytest.mark.slow

TRAINING = Path(__file__).parents[3] / "examples/train_transformer"


def network(
    database_url: str, directory: Path, plane: ControlPlane, *, lease_s: float = 120, **scheduling: Any
) -> AbstractAsyncContextManager[Network]:
    """Its nodes have other names in Kubernetes, and the agent has a token, not a kubeconfig."""
    node = {"cpus": CPUS, "memory_bytes": MEMORY_BYTES}
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
    (directory / "shared").mkdir()
    return network_with(
        database_url, directory, lambda address: declared(directory, address, lease_s, nodes, scheduling)
    )


@pytest.mark.timeout(1200)
async def test_jobs_of_the_network_run_in_kubernetes(
    database_url: str, tmp_path: Path, kubernetes: ControlPlane
) -> None:
    async with network(database_url, tmp_path, kubernetes) as found:
        bus = found.stack.bus
        # 1. A gang of two: it is asked for by constraints, Kubernetes names the nodes, both ranks run in one Job.
        show = "import os; print(os.environ['RANK'], os.environ['MERIDIAN_NODE'], len(os.environ['NVIDIA_VISIBLE_DEVICES'].split(',')))"
        await bus.publish(job("pair", ["python", "-S", "-c", show], 3, kind=job_pb2.JOB_KIND_GANG, ranks=2))
        assert await found.job_finished("pair") == job_pb2.JOB_OUTCOME_SUCCEEDED
        (order,) = await found.started("pair")
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
        # 3. Ends.
        await found.a_program_fails_and_one_is_cancelled()
        # 4. A restart of the agent.
        await found.the_agent_is_killed_and_follows_on()
        # 5. Nothing is left.
        await asyncio.to_thread(kubernetes.until, lambda: not kubernetes.jobs(), "all Jobs are gone")
        assert not bus.dead_letters


@pytest.mark.timeout(1200)
async def test_a_training_goes_on_elsewhere_when_a_node_dies(
    database_url: str, tmp_path: Path, kubernetes: ControlPlane
) -> None:
    async with network(database_url, tmp_path, kubernetes) as found:
        bus = found.stack.bus
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
        (order,) = await found.started("train")
        assert len({rank.node_id for rank in order.ranks}) == 2
        lost = order.ranks[1].node_id.removeprefix("north-")
        await asyncio.to_thread(kubernetes.node_dies, lost)
        failed = await bus.expect(RunFailed, lambda event: event.job_id == "train", timeout_s=PATIENCE_S)
        assert failed.kind == run_pb2.RUN_FAILURE_KIND_NODE_LOST
        assert f"ranks on north-{lost} may run on" in failed.reason
        assert await found.job_finished("train") == job_pb2.JOB_OUTCOME_SUCCEEDED
        second = (await found.started("train", count=2))[-1]
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
        await found.a_run_ends_without_its_agent()
