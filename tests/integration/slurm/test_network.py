"""A domain that is a Slurm in a real network: shard, telemetry, graph, failover, agent and programs."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import JobCancelRequested
from meridian.contracts.run.v1.run_pb2 import RunCheckpointed, RunStarted
from meridian.contracts.scheduler.v1.scheduler_pb2 import PlacementRequest
from tests.integration.own_scheduler_network import Network, declared, job, network_with
from tests.integration.slurm.cluster import CPUS, GPUS, MEMORY_MIB, NODES, PATIENCE_S, SlurmCluster


def network(
    database_url: str, directory: Path, slurm: SlurmCluster, *, lease_s: float = 120, **scheduling: Any
) -> AbstractAsyncContextManager[Network]:
    """Its nodes have other names in Slurm."""
    node = {"cpus": CPUS, "memory_bytes": MEMORY_MIB * 2**20}
    nodes = [{**node, "node_id": f"north-{name}", "aliases": {"slurm": name}} for name in NODES]
    scheduling = {
        **scheduling,
        "kind": "slurm",
        "partition": "main",
        "gres_types": {"H100": "h100"},
        "configuration": str(slurm.configuration),
        "poll_s": 0.3,
    }
    return network_with(
        database_url, directory, lambda address: declared(directory, address, lease_s, nodes, scheduling)
    )


def jobs_of(slurm: SlurmCluster, name: str) -> dict[int, str]:
    """States of all that Slurm was ever asked for a job's first run."""
    return {number: state for number, (called, state) in slurm.jobs().items() if called == f"meridian:north:{name}:0:1"}


@pytest.mark.timeout(1200)
async def test_jobs_of_the_network_run_in_slurm(database_url: str, tmp_path: Path, slurm: SlurmCluster) -> None:
    async with network(database_url, tmp_path, slurm) as found:
        bus = found.stack.bus
        # 1. A gang of two: it is asked for by constraints, Slurm names the nodes, both ranks run in one job of Slurm's.
        show = "import os; print(os.environ['RANK'], os.environ['MERIDIAN_NODE'], os.environ['CUDA_VISIBLE_DEVICES'])"
        await bus.publish(job("pair", ["python", "-S", "-c", show], 3, kind=job_pb2.JOB_KIND_GANG, ranks=2))
        assert await found.job_finished("pair") == job_pb2.JOB_OUTCOME_SUCCEEDED
        (order,) = await found.started("pair")
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
        # 3. Ends.
        await found.a_program_fails_and_one_is_cancelled()
        # 4. A restart of the agent.
        await found.the_agent_is_killed_and_follows_on()
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
        (waiting,) = jobs_of(slurm, "next")
        (tmp_path / "end").touch()
        assert await found.job_finished("next") == job_pb2.JOB_OUTCOME_SUCCEEDED
        assert jobs_of(slurm, "next") == {waiting: "COMPLETED"}, "the job that waited is the one that ran"
        assert [item.epoch for item in await found.started("next")] == [1]
        assert not bus.dead_letters


@pytest.mark.timeout(1200)
async def test_a_run_ends_without_its_agent(database_url: str, tmp_path: Path, slurm: SlurmCluster) -> None:
    async with network(database_url, tmp_path, slurm, lease_s=14) as found:
        await found.a_run_ends_without_its_agent()
