"""Units and runs in a real Slurm: what it gives, refuses and keeps waiting; how programs begin and end there."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from agent.engines.base import (
    Checkpoint,
    FailureKind,
    NodeState,
    Progress,
    RunFailed,
    RunFinished,
    RunRefused,
    RunStarted,
    StopRequest,
)
from agent.engines.own_scheduler import Constraints, Refusal, UnitName
from agent.engines.slurm.allocation import Site
from agent.engines.slurm.scheduler import QueueRules
from agent.node import proc
from meridian.clock import SystemClock
from tests.integration.own_scheduler_domain import H100
from tests.integration.slurm.cluster import GPUS, NODES, PATIENCE_S, SlurmCluster
from tests.integration.slurm.domain import SlurmDomain, slurm_domain

ONE = Constraints(1, cpus=1, memory_bytes=2**28, accelerators=1, accelerator_types=("H100",), time_limit_s=600)
SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)"
DEAF = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SLEEP}"
SAVES = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(600)
"""


def unit(name: str, epoch: int = 1) -> UnitName:
    return UnitName(name, 0, epoch)


def alive(domain: SlurmDomain, run_id: str) -> list[int]:
    """Live processes of a run of this domain: others that run the same tests on the machine have runs of the same names."""
    return proc.marked_processes(f"MERIDIAN_WORK_DIR={domain.settings.own_work_dir(run_id)}".encode())


@pytest.mark.timeout(900)
async def test_slurm_chooses_nodes_and_says_why_not(slurm: SlurmCluster, tmp_path: Path) -> None:
    async with slurm_domain(slurm, tmp_path, rules=QueueRules(most_queued=1)) as domain:
        place = domain.scheduler.place
        # Six ranks with two accelerators each fill three nodes of four; no accelerator is given twice.
        six = Constraints(6, cpus=2, memory_bytes=2**29, accelerators=2, accelerator_types=("H100",), time_limit_s=600)
        ranks = await domain.grant(unit("six"), six)
        assert [rank.rank for rank in ranks] == list(range(6))
        devices = [(rank.node_id, index) for rank in ranks for index in rank.accelerator_indices]
        assert sorted(devices) == [(node, index) for node in NODES for index in range(GPUS)]
        assert await place(unit("six"), six) == ranks, "asked for again it is given again"
        # What Slurm never gives, in its own words.
        found = await place(unit("large"), Constraints(1, accelerators=9, accelerator_types=("H100",), time_limit_s=60))
        assert found == Refusal("Slurm: Requested node configuration is not available")
        # The partition's limit of an hour, once Slurm has looked; it calls it by its second name when it has looked once more.
        never, reason = "", ""
        async with asyncio.timeout(PATIENCE_S):
            while never != "Slurm would never begin it as it is asked for":
                found = await place(unit("long"), Constraints(1, cpus=1, time_limit_s=7200))
                assert isinstance(found, Refusal)
                never, _, reason = found.reason.rpartition(": ")
        assert reason in {"PartitionConfig", "PartitionTimeLimit"}
        # What it cannot give now: the reason, and when it expects to.
        async with asyncio.timeout(PATIENCE_S):
            while "expected to begin at 20" not in (found := await place(unit("later"), ONE)).reason:  # type: ignore[union-attr]
                assert isinstance(found, Refusal)
                assert "waits for " in found.reason
                await asyncio.sleep(0.2)
        await domain.scheduler.release(unit("later"))
        await domain.scheduler.release(unit("six"))
        assert len(await domain.grant(unit("after"), ONE)) == 1
        waiting = slurm.call("squeue", "-h", "-t", "PENDING", "-o", "%j")
        assert waiting == "", "nothing is left in the queue"


@pytest.mark.timeout(900)
async def test_a_refused_unit_keeps_its_place_in_the_queue(slurm: SlurmCluster, tmp_path: Path) -> None:
    rules = QueueRules(answer_s=1.0, claim_s=15.0, most_queued=1)
    async with slurm_domain(slurm, tmp_path, rules=rules) as domain:
        all_of_it = Constraints(3, cpus=1, accelerators=GPUS, accelerator_types=("H100",), time_limit_s=600)
        await domain.grant(unit("all"), all_of_it)
        await domain.cluster.look_at_nodes()
        room = domain.scheduler.room()
        assert room.nodes_by_free == {H100: (0, 0, 0, 0, 3)}, "one may wait for what others have"
        found = await domain.scheduler.place(unit("next"), ONE)
        assert isinstance(found, Refusal)
        assert found.reason.endswith("; it keeps its place in the queue")
        assert domain.scheduler.room().nodes_by_free == {H100: (3,)}, "no more than one"
        second = await domain.scheduler.place(unit("second"), ONE)
        assert isinstance(second, Refusal)
        assert "keeps" not in second.reason
        await domain.scheduler.release(unit("all"))
        await asyncio.to_thread(slurm.until, "RUNNING", "squeue", "-h", "-n", "meridian:north:next:0:1", "-o", "%T")
        (rank,) = await domain.grant(unit("next"), ONE)
        assert len(rank.accelerator_indices) == 1
        # One that nobody asks for any more is given back.
        await domain.grant(
            unit("rest"), Constraints(11, cpus=1, accelerators=1, accelerator_types=("H100",), time_limit_s=600)
        )
        assert isinstance(await domain.scheduler.place(unit("forgotten"), ONE), Refusal)
        await domain.scheduler.release(unit("rest"))
        await asyncio.to_thread(
            slurm.until, "CANCELLED", "squeue", "-h", "-t", "all", "-n", "meridian:north:forgotten:0:1", "-o", "%T"
        )


@pytest.mark.timeout(900)
async def test_ranks_run_report_and_end(slurm: SlurmCluster, tmp_path: Path) -> None:
    async with slurm_domain(slurm, tmp_path) as domain:
        saved = tmp_path / "state"
        program = f"""
import os
path = {str(saved)!r} + os.environ["RANK"]
open(path, "w").write("x" * 10)
names = "RANK WORLD_SIZE LOCAL_RANK MERIDIAN_NODE MERIDIAN_ACCELERATORS"
print(" ".join(os.environ[name] for name in names.split()))
print('@meridian {{"progress": {{"step": 3, "total_steps": 9}}}}')
print('@meridian {{"checkpoint": {{"step": 3, "path": "%s"}}}}' % path)
"""
        two = Constraints(2, cpus=1, accelerators=3, accelerator_types=("H100",), time_limit_s=600)
        request = await domain.start_run("two", program, two)
        assert isinstance(await domain.end("two.0.1"), RunFinished)
        kinds = [type(event) for event in domain.events if event.run_id == "two.0.1"]
        assert [kinds.count(kind) for kind in (RunStarted, Checkpoint, RunFinished)] == [1, 2, 1]
        assert kinds.index(RunStarted) < kinds.index(Checkpoint)
        progress = await domain.event(Progress, "two.0.1")
        assert (progress.step, progress.total_steps) == (3, 9)
        assert {event.size_bytes for event in domain.events if isinstance(event, Checkpoint)} == {10}
        assert len({rank.node_id for rank in request.ranks}) == 2
        for rank in request.ranks:
            said = f"{rank.rank} 2 0 {rank.node_id} {','.join(map(str, rank.accelerator_indices))}\n"
            assert domain.log("two.0.1", rank.rank) == said
        await domain.scheduler.release(unit("two"))
        # A failure of the program, with its code and its last words; a run that ended is not begun again.
        await domain.start_run("bad", "import sys; print('no'); sys.exit(3)", ONE)
        failed = await domain.end("bad.0.1")
        assert isinstance(failed, RunFailed)
        assert (failed.kind, failed.exit_code, failed.log_tail) == (FailureKind.PROGRAM, 3, "no\n")
        await asyncio.to_thread(
            slurm.until, "COMPLETED", "squeue", "-h", "-t", "all", "-n", "meridian:north:bad:0:1", "-o", "%T"
        )
        again = await domain.start_run("stale", "pass", ONE, epoch=2)
        assert isinstance(await domain.end("stale.0.2"), RunFinished)
        await domain.engine.launch(again)
        older = await domain.start_run("stale", "print('twice')", ONE, epoch=1)
        assert (await domain.event(RunRefused, older.run_id)).highest_epoch == 2
        assert not domain.settings.log_path(older.run_id, 0).exists()


@pytest.mark.timeout(900)
async def test_how_runs_are_ended(slurm: SlurmCluster, tmp_path: Path) -> None:
    async with slurm_domain(slurm, tmp_path) as domain:
        # 1. A stop gives the program its grace.
        await domain.start_run("stopped", SAVES, ONE)
        await domain.event(RunStarted, "stopped.0.1")
        await asyncio.to_thread(slurm.until, "up", "cat", str(domain.settings.log_path("stopped.0.1", 0)))
        await domain.engine.stop(StopRequest("stopped.0.1", "stopped", 0, 1, grace_s=5, reason="not needed"))
        failed = await domain.end("stopped.0.1")
        assert isinstance(failed, RunFailed)
        assert (failed.kind, failed.reason) == (FailureKind.STOPPED, "not needed")
        assert domain.log("stopped.0.1") == "up\nsaved\n"
        # 2. The site's people cancel it: it was taken away, though the program ends well.
        await domain.start_run("taken", SAVES, ONE)
        await domain.event(RunStarted, "taken.0.1")
        await asyncio.to_thread(slurm.until, "up", "cat", str(domain.settings.log_path("taken.0.1", 0)))
        slurm.call("scancel", "-n", "meridian:north:taken:0:1")
        failed = await domain.end("taken.0.1")
        assert isinstance(failed, RunFailed)
        assert failed.kind is FailureKind.NODE_LOST
        assert "was cancelled in Slurm" in failed.reason
        assert domain.log("taken.0.1") == "up\nsaved\n"
        # 3. The run's own limit.
        ranks = await domain.grant(unit("short"), ONE)
        request = await domain.start_run("limited", SLEEP, ONE)
        assert request.ranks != ranks
        await domain.event(RunStarted, "limited.0.1")
        # 4. A stop for a run whose start never came, and the start after it.
        await domain.engine.stop(StopRequest("short.0.1", "short", 0, 1))
        failed = await domain.event(RunFailed, "short.0.1")
        assert failed.kind is FailureKind.STOPPED
        await domain.start_run("short", "print('no')", ONE)
        await domain.event(RunRefused, "short.0.1")
        # 5. A newer epoch ends the older one first.
        await domain.start_run("limited", "print('second')", ONE, epoch=2)
        first = await domain.end("limited.0.1")
        assert isinstance(first, RunFailed)
        assert isinstance(await domain.end("limited.0.2"), RunFinished)
        assert domain.events.index(first) < domain.events.index(await domain.event(RunStarted, "limited.0.2"))
        assert not alive(domain, "limited.0.1")


@pytest.mark.timeout(900)
async def test_without_contact_the_ranks_end_by_themselves(slurm: SlurmCluster, tmp_path: Path) -> None:
    async with slurm_domain(slurm, tmp_path, silence_s=10) as domain:
        await domain.start_run("alone", SLEEP, ONE)
        await domain.event(RunStarted, "alone.0.1")
        domain.beating = False
        failed = await domain.end("alone.0.1")
        assert isinstance(failed, RunFailed)
        assert failed.kind is FailureKind.LEASE_EXPIRED
        assert not alive(domain, "alone.0.1")


@pytest.mark.timeout(900)
async def test_an_agent_that_died_before_the_order_was_handed_on(slurm: SlurmCluster, tmp_path: Path) -> None:
    rules = QueueRules()
    async with AsyncExitStack() as life:
        first = SlurmDomain(slurm, tmp_path, Site(gres_types={"H100": "h100"}), rules, 20)
        await first.start()
        request = first.order("half", "print('ran')", await first.grant(unit("half"), ONE))
        first.book.begin(request, SystemClock().now())
        await first.crash()
        second = await life.enter_async_context(slurm_domain(slurm, tmp_path))
        failed = await second.event(RunFailed, "half.0.1")
        assert failed.kind is FailureKind.AGENT_RESTARTED
        await second.engine.launch(request)
        async with asyncio.timeout(PATIENCE_S):
            while len([event for event in second.events if isinstance(event, RunFailed)]) < 2:
                await asyncio.sleep(0.05)
        await asyncio.to_thread(
            slurm.until, "CANCELLED", "squeue", "-h", "-t", "all", "-n", "meridian:north:half:0:1", "-o", "%T"
        )
        assert not second.settings.log_path("half.0.1", 0).exists(), "it never ran"


@pytest.mark.timeout(900)
async def test_slurms_controller_starts_anew(slurm: SlurmCluster, tmp_path: Path) -> None:
    async with slurm_domain(slurm, tmp_path) as domain:
        end = tmp_path / "end"
        program = f"import os, time\nwhile not os.path.exists({str(end)!r}): time.sleep(0.1)"
        await domain.start_run("through", program, ONE)
        await domain.event(RunStarted, "through.0.1")
        (before,) = alive(domain, "through.0.1")
        slurm.start_controller()  # not in a thread: the process would end with it
        assert isinstance(await domain.scheduler.place(unit("through"), ONE), tuple)
        assert {node.state for node in domain.engine.nodes()} == {NodeState.RUNNING}
        assert all(node.last_beat_age_s == 0 for node in domain.engine.nodes())
        assert alive(domain, "through.0.1") == [before]
        end.touch()
        assert isinstance(await domain.end("through.0.1"), RunFinished)


@pytest.mark.timeout(900)
async def test_the_time_of_an_allocation_is_over(slurm: SlurmCluster, tmp_path: Path) -> None:
    async with slurm_domain(slurm, tmp_path) as domain:
        await domain.start_run("over", SAVES, Constraints(1, cpus=1, time_limit_s=60))
        await domain.event(RunStarted, "over.0.1")
        async with asyncio.timeout(300):
            while not any(isinstance(event, RunFailed) for event in domain.events):
                await asyncio.sleep(0.5)
        failed = await domain.end("over.0.1")
        assert isinstance(failed, RunFailed)
        assert failed.kind is FailureKind.TIME_LIMIT
        assert "Slurm's time limit of job" in failed.reason
        assert domain.log("over.0.1") == "up\nsaved\n"


@pytest.mark.timeout(900)
async def test_a_node_is_lost(slurm: SlurmCluster, tmp_path: Path) -> None:
    """The last test: the node stays dead. Slurm's daemon and its steps there are gone and the ranks are not, as when the network between
    controller and node is: nobody is told that run or node have ended before the ranks have."""
    async with slurm_domain(slurm, tmp_path, site=Site(partition="main", gres_types={"H100": "h100"})) as domain:
        both = Constraints(2, cpus=1, accelerators=GPUS, accelerator_types=("H100",), time_limit_s=600)
        request = await domain.start_run("lost", DEAF, both)
        await domain.event(RunStarted, "lost.0.1")
        dead = request.ranks[1].node_id
        slurm.node_dies(dead)
        assert len(alive(domain, "lost.0.1")) == 2
        ended = asyncio.create_task(domain.end("lost.0.1"))
        while not ended.done():
            if any(node.node_id == dead and node.state is NodeState.EXITED for node in domain.engine.nodes()):
                assert not alive(domain, "lost.0.1")
            await asyncio.wait([ended], timeout=0.1)
        assert not alive(domain, "lost.0.1")
        failed = await ended
        assert isinstance(failed, RunFailed)
        assert failed.kind is FailureKind.NODE_LOST
        assert failed.reason.startswith("Slurm's job")
        assert failed.reason.endswith("lost a node (NodeDown)")
        await asyncio.to_thread(slurm.until, "down", "sinfo", "-h", "-n", dead, "-o", "%T")
        await domain.cluster.look_at_nodes()
        states = {node.node_id: node.state.value for node in domain.engine.nodes()}
        assert states == {name: "exited" if name == dead else "running" for name in NODES}
