"""Units and runs in a real Kubernetes: what it gives, refuses and keeps waiting; how programs begin and end there."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from agent.engines.base import (
    Checkpoint,
    FailureKind,
    NodeState,
    Progress,
    RankExited,
    RunFailed,
    RunFinished,
    RunLimits,
    RunRefused,
    RunStarted,
    StopRequest,
)
from agent.engines.kubernetes.scheduler import PodRules
from agent.engines.own_scheduler import Constraints, Held, Refusal, UnitName
from agent.node import proc
from tests.integration.kubernetes.control_plane import GPU, GPUS, NAMESPACE, NODES, PATIENCE_S, ControlPlane
from tests.integration.kubernetes.domain import KubernetesDomain, kubernetes_domain
from tests.integration.own_scheduler_domain import H100

pytestmark = pytest.mark.slow

ONE = Constraints(1, cpus=1, memory_bytes=2**28, accelerators=1, accelerator_types=("H100",), time_limit_s=600)
SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)"
DEAF = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SLEEP}"


def unit(name: str, epoch: int = 1) -> UnitName:
    return UnitName(name, 0, epoch)


def alive(domain: KubernetesDomain, run_id: str) -> list[int]:
    """Live processes of a run of this domain."""
    return proc.marked_processes(f"MERIDIAN_WORK_DIR={domain.settings.own_work_dir(run_id)}".encode())


@pytest.mark.timeout(600)
async def test_ranks_run_report_and_end(kubernetes: ControlPlane, tmp_path: Path) -> None:
    program = """
import json, os, time
rank = int(os.environ["RANK"])
names = ["WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MERIDIAN_NODE", "MERIDIAN_ACCELERATORS",
         "NVIDIA_VISIBLE_DEVICES", "GREETING", "PWD", "MERIDIAN_CHECKPOINT_DIR"]
print(json.dumps({name: os.environ.get(name) for name in names}))
path = os.path.join(os.environ["MERIDIAN_CHECKPOINT_DIR"], f"{rank}.bin")
open(path, "wb").write(b"x" * 10)
for step in range(1, 4):
    print('@meridian {"progress": {"step": %d, "total_steps": 3, "metrics": {"loss": 0.5}}}' % step, flush=True)
    time.sleep(0.15)
print('@meridian {"checkpoint": {"step": 3, "path": "%s"}}' % path)
print("no end of line", end="")
"""
    async with kubernetes_domain(kubernetes, tmp_path) as domain:
        four = Constraints(4, cpus=1, memory_bytes=2**28, accelerators=2, accelerator_types=("H100",), time_limit_s=600)
        request = await domain.start_run(
            "pair", program, four, env={"GREETING": "it's \"$HOME\" `id` $(id)"}, checkpoint_dir=str(tmp_path / "ckpt"),
            master_port=29500,
        )  # fmt: skip
        started = await domain.event(RunStarted, request.run_id)
        assert set(started.node_ids) == {placement.node_id for placement in request.ranks}
        assert isinstance(await domain.end(request.run_id), RunFinished)
        for placement in request.ranks:
            first, *rest = domain.log(request.run_id, placement.rank).split("\n")
            seen = json.loads(first)
            assert rest == ["no end of line"], "reports are no log text"
            assert seen["WORLD_SIZE"] == "4"
            assert seen["LOCAL_RANK"] == str(placement.local_rank)
            assert seen["MERIDIAN_NODE"] == placement.node_id
            assert seen["MERIDIAN_ACCELERATORS"] == "0,1"
            assert len(seen["NVIDIA_VISIBLE_DEVICES"].split(",")) == 2
            assert seen["MASTER_ADDR"] == "127.0.0.1"
            assert seen["GREETING"] == 'it\'s "$HOME" `id` $(id)'
            assert seen["PWD"] == str(domain.settings.own_work_dir(request.run_id))
        steps = {(e.rank, e.step) for e in domain.events if isinstance(e, Progress)}
        assert 3 in {step for _, step in steps}, "the newest of a run is told"
        saved = [e for e in domain.events if isinstance(e, Checkpoint)]
        assert sorted((e.rank, e.step, e.size_bytes) for e in saved) == [(rank, 3, 10) for rank in range(4)]
        exits = {e.rank: (e.exit_code, e.kind) for e in domain.events if isinstance(e, RankExited)}
        assert exits == dict.fromkeys(range(4), (0, None))
        assert kubernetes.jobs() == {}
        assert not (tmp_path / "records").exists() or not list((tmp_path / "records").iterdir())


@pytest.mark.timeout(600)
async def test_kubernetes_chooses_nodes_and_says_why_not(kubernetes: ControlPlane, tmp_path: Path) -> None:
    async with kubernetes_domain(kubernetes, tmp_path) as domain:
        place = domain.scheduler.place
        # Six ranks with two accelerators each fill three nodes of four; no number is given twice.
        six = Constraints(6, cpus=2, memory_bytes=2**29, accelerators=2, accelerator_types=("H100",), time_limit_s=600)
        assert domain.scheduler.room().nodes_by_free == {H100: (0, 0, 0, 0, 3)}
        ranks = await domain.grant(unit("six"), six)
        assert [rank.rank for rank in ranks] == list(range(6))
        devices = [(rank.node_id, index) for rank in ranks for index in rank.accelerator_indices]
        assert sorted(devices) == [(node, index) for node in NODES for index in range(GPUS)]
        assert await place(unit("six"), six) == ranks, "asked for again it is given again"
        room = domain.scheduler.room()
        assert (room.nodes_by_free, room.total) == ({H100: (3,)}, {H100: 12})
        # What is not to be had now is refused in the scheduler's own words, and nothing of it is left.
        found = await place(unit("seven"), ONE)
        assert isinstance(found, Refusal)
        assert f"0/3 nodes are available: 3 Insufficient {GPU}" in found.reason
        # What is never to be had, in the API server's.
        found = await place(unit("odd"), Constraints(1, resources=(("fpga", 1.0),)))
        assert found == Refusal("Kubernetes does not count fpga here")
        found = await place(unit("a100"), Constraints(1, accelerators=1, accelerator_types=("A100",)))
        assert found == Refusal("the domain declares no accelerators of A100 on nodes that may be used")
        await domain.scheduler.release(unit("six"))
        (rank,) = await domain.grant(
            unit("after"), Constraints(1, accelerators=1, excluded_nodes=frozenset({"k1", "k3"}))
        )
        assert rank.node_id == "k2"
        # A quota of the namespace: the Job is taken, its pods are not; the Job controller's word is the reason.
        quota = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
        body = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "few"},
            "spec": {"hard": {"pods": "1"}},
        }
        kubernetes.call("POST", quota, body)
        try:
            await asyncio.to_thread(
                kubernetes.until, lambda: kubernetes.call("GET", f"{quota}/few")["status"]["used"]["pods"], "it counts"
            )
            async with asyncio.timeout(PATIENCE_S):
                while "exceeded quota: few" not in (found := await place(unit("much"), ONE)).reason:  # type: ignore[union-attr]
                    await asyncio.sleep(0.3)
        finally:
            kubernetes.call("DELETE", f"{quota}/few")
        # A node that is closed is not free.
        kubernetes.patch("/api/v1/nodes/k3", {"spec": {"unschedulable": True}})
        async with asyncio.timeout(PATIENCE_S):
            while domain.scheduler.room().total != {H100: 8}:
                await asyncio.sleep(0.1)
        kubernetes.patch("/api/v1/nodes/k3", {"spec": {"unschedulable": None}})


@pytest.mark.timeout(600)
async def test_what_the_api_server_does_not_take(kubernetes: ControlPlane, tmp_path: Path) -> None:
    async with kubernetes_domain(kubernetes, tmp_path, site={"priority_class": "Not A Name"}) as domain:
        found = await domain.scheduler.place(unit("odd"), ONE)
        assert isinstance(found, Refusal)
        assert found.reason.startswith("Kubernetes: Job.batch ")
        assert "priorityClassName: Invalid value" in found.reason
        assert kubernetes.jobs() == {}


@pytest.mark.timeout(600)
async def test_a_refused_unit_keeps_its_job(kubernetes: ControlPlane, tmp_path: Path) -> None:
    rules = PodRules(answer_s=1.5, claim_s=3.0, most_queued=1)
    async with kubernetes_domain(kubernetes, tmp_path, rules=rules) as domain:
        whole = Constraints(3, accelerators=GPUS, accelerator_types=("H100",))
        await domain.grant(unit("all"), whole)
        found = await domain.scheduler.place(unit("next"), ONE)
        assert isinstance(found, Refusal)
        assert found.reason.endswith("; it keeps its place in the queue")
        turns = domain.scheduler.room().turns
        await domain.scheduler.release(unit("all"))
        async with asyncio.timeout(PATIENCE_S):
            while domain.scheduler.room().turns == turns:
                await asyncio.sleep(0.1)
        job = domain.cluster.job_name(unit("next"))
        before = kubernetes.jobs()[job]["metadata"]["uid"]
        (rank,) = await domain.grant(unit("next"), ONE)
        assert len(rank.accelerator_indices) == 1
        assert kubernetes.jobs()[job]["metadata"]["uid"] == before, "the Job that waited is the one that is given"
        # One that nobody asks for any more is given back.
        await domain.grant(unit("rest"), Constraints(11, accelerators=1, accelerator_types=("H100",)))
        assert isinstance(await domain.scheduler.place(unit("forgotten"), ONE), Refusal)
        await domain.scheduler.release(unit("rest"))
        forgotten = domain.cluster.job_name(unit("forgotten"))
        await asyncio.to_thread(kubernetes.until, lambda: forgotten not in kubernetes.jobs(), "it is given back")


@pytest.mark.timeout(600)
async def test_a_job_of_kueue_waits_for_its_admission(kubernetes: ControlPlane, tmp_path: Path) -> None:
    """Kueue itself is not there: its part, to take back ``suspend`` of a Job with its label, is done here."""
    rules = PodRules(answer_s=1.5, most_queued=1)
    async with kubernetes_domain(kubernetes, tmp_path, site={"queue": "research"}, rules=rules) as domain:
        found = await domain.scheduler.place(unit("asks"), ONE)
        assert isinstance(found, Refusal)
        assert "the Job is suspended and waits to be admitted" in found.reason
        name = domain.cluster.job_name(unit("asks"))
        job = kubernetes.jobs()[name]
        assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
        path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{name}"
        kubernetes.patch(path, {"spec": {"suspend": False}})
        ranks = await domain.grant(unit("asks"), ONE)
        await domain.engine.launch(domain.order("asks", SLEEP, ranks))
        await domain.event(RunStarted, "asks.0.1")
        # It takes the place away again for others: the run is lost, not failed.
        kubernetes.patch(path, {"spec": {"suspend": True}})
        failed = await domain.end("asks.0.1")
        assert isinstance(failed, RunFailed)
        assert failed.kind is FailureKind.NODE_LOST
        assert "suspended" in failed.reason
        assert not alive(domain, "asks.0.1")


@pytest.mark.timeout(600)
async def test_how_programs_end(kubernetes: ControlPlane, tmp_path: Path) -> None:
    async with kubernetes_domain(
        kubernetes, tmp_path, image_patience_s=1.0, job_images=("absent.example/", "python")
    ) as domain:
        two = Constraints(2, cpus=1, memory_bytes=2**28)
        # One that fails takes the other with it; its last words are told.
        bad = "import os, sys, time\nif os.environ['RANK'] == '1': print('no'); sys.exit(7)\ntime.sleep(600)"
        await domain.start_run("bad", bad, two)
        failed = await domain.end("bad.0.1")
        assert isinstance(failed, RunFailed)
        assert (failed.kind, failed.exit_code, failed.rank, failed.log_tail) == (FailureKind.PROGRAM, 7, 1, "no\n")
        assert not alive(domain, "bad.0.1")
        # Memory: the limit of the container is what the tenant asked for.
        greedy = "x = bytearray(600 * 2**20)\nimport time\ntime.sleep(60)"
        await domain.start_run("greedy", greedy, Constraints(1, cpus=1, memory_bytes=2**28))
        failed = await domain.end("greedy.0.1")
        assert isinstance(failed, RunFailed)
        assert failed.kind is FailureKind.OUT_OF_MEMORY
        # Time.
        await domain.start_run("slow", DEAF, Constraints(1, cpus=1), limits=RunLimits(max_run_time_s=1.5))
        failed = await domain.end("slow.0.1")
        assert isinstance(failed, RunFailed)
        assert failed.kind is FailureKind.TIME_LIMIT
        # An image that cannot be pulled, one that the domain does not take, a program that is not there.
        await domain.start_run("noimage", "pass", Constraints(1), env={"MERIDIAN_IMAGE": "absent.example/nothing:1"})
        failed = await domain.end("noimage.0.1")
        assert isinstance(failed, RunFailed)
        assert failed.kind is FailureKind.NOT_STARTABLE
        assert "ImagePullBackOff" in failed.reason
        await domain.start_run("foreign", "pass", Constraints(1), env={"MERIDIAN_IMAGE": "elsewhere/nothing"})
        failed = await domain.end("foreign.0.1")
        assert isinstance(failed, RunFailed)
        assert "the domain does not take the image 'elsewhere/nothing'" in failed.reason
        ranks = await domain.grant(unit("nothing"), Constraints(1))
        await domain.engine.launch(replace(domain.order("nothing", "", ranks), command=("/no/such/program",)))
        failed = await domain.end("nothing.0.1")
        assert isinstance(failed, RunFailed)
        assert failed.exit_code in {126, 127}
        assert "not found" in failed.log_tail or "No such file" in failed.log_tail


@pytest.mark.timeout(600)
async def test_orders_are_carried_out_once(kubernetes: ControlPlane, tmp_path: Path) -> None:
    async with kubernetes_domain(kubernetes, tmp_path) as domain:
        saves = "import signal, sys, time\ndef save(*_):\n    print('saved', flush=True)\n    sys.exit(0)\nsignal.signal(signal.SIGTERM, save)\nprint('up', flush=True)\ntime.sleep(600)"
        request = await domain.start_run("once", saves, ONE)
        await domain.event(RunStarted, request.run_id)
        async with asyncio.timeout(PATIENCE_S):
            while not domain.settings.log_path(request.run_id, 0).exists():
                await asyncio.sleep(0.1)
        before = alive(domain, request.run_id)
        await domain.engine.launch(request)
        assert sum(isinstance(event, RunStarted) for event in domain.events) <= 2
        assert alive(domain, request.run_id) == before
        await domain.engine.stop(StopRequest("once.0.1", "once", 0, 1, grace_s=20))
        failed = await domain.end(request.run_id)
        assert isinstance(failed, RunFailed)
        assert failed.kind is FailureKind.STOPPED
        assert domain.log(request.run_id) == "up\nsaved\n", "it had its grace"
        ends = [event for event in domain.events if isinstance(event, RunFailed)]
        assert len(ends) == 1
        # A stop that comes first, and a start that comes late.
        await domain.engine.stop(StopRequest("late.0.3", "late", 0, 3))
        assert (await domain.end("late.0.3")).kind is FailureKind.STOPPED  # type: ignore[union-attr]
        await domain.engine.launch(domain.order("late", "pass", request.ranks, 2))
        assert (await domain.event(RunRefused, "late.0.2")).highest_epoch == 3
        # One that does not hear SIGTERM, and a newer epoch that ends it.
        await domain.start_run("deaf", DEAF, ONE)
        await domain.event(RunStarted, "deaf.0.1")
        await domain.start_run("deaf", "print('second')", ONE, 2)
        failed = await domain.end("deaf.0.1")
        assert isinstance(failed, RunFailed)
        assert failed.reason == "superseded by epoch 2"
        assert isinstance(await domain.end("deaf.0.2"), RunFinished)
        kinds = [type(event) for event in domain.events if event.job_id == "deaf"]
        assert kinds.index(RunFailed) < kinds.index(RunStarted, kinds.index(RunStarted) + 1), (
            "the older one ended first"
        )


@pytest.mark.timeout(600)
async def test_the_agent_comes_back(kubernetes: ControlPlane, tmp_path: Path) -> None:
    program = f"""
import os, time
n = 0
while not os.path.exists({str(tmp_path / "end")!r}):
    n += 1
    print("line", n)
    print('@meridian {{"checkpoint": {{"step": %d, "path": "/tmp/none"}}}}' % n, flush=True)
    time.sleep(0.2)
"""
    first = KubernetesDomain(kubernetes, tmp_path, {}, PodRules(), {})
    await first.start()
    try:
        request = await first.start_run("stays", program, ONE)
        held = {unit("stays"): Held(ONE, request.ranks)}
        await first.event(Checkpoint, request.run_id)
        await first.grant(unit("unwanted"), ONE)
        before = alive(first, request.run_id)
    finally:
        await first.crash()
    steps = {event.step for event in first.events if isinstance(event, Checkpoint)}
    async with kubernetes_domain(kubernetes, tmp_path, held=held) as domain:
        unwanted = domain.cluster.job_name(unit("unwanted"))
        await asyncio.to_thread(
            kubernetes.until, lambda: unwanted not in kubernetes.jobs(), "what is in no grant is deleted"
        )
        await domain.event(Checkpoint, request.run_id, lambda event: event.step > max(steps) + 3)
        assert alive(domain, request.run_id) == before, "the run did not notice"
        (tmp_path / "end").touch()
        assert isinstance(await domain.end(request.run_id), RunFinished)
        assert not [event for event in domain.events if isinstance(event, RunStarted)], "told before"
        later = [event.step for event in domain.events if isinstance(event, Checkpoint)]
        assert later == sorted(set(later)), "in order, none twice"
        assert set(range(1, later[-1] + 1)) == steps | set(later), "none is lost"
        lines = [int(line.split()[1]) for line in domain.log(request.run_id).splitlines()]
        assert lines == list(range(1, lines[-1] + 1)), "nor a line of the log"


@pytest.mark.timeout(600)
async def test_runs_end_without_the_agent(kubernetes: ControlPlane, tmp_path: Path) -> None:
    async with kubernetes_domain(kubernetes, tmp_path, rules=PodRules(abandon_s=10), agent_silence_s=15.0) as domain:
        await domain.start_run("left", SLEEP, ONE)
        await domain.event(RunStarted, "left.0.1")
        # As long as heartbeats are taken it goes on beyond its first deadline.
        name = domain.cluster.job_name(unit("left"))
        await asyncio.to_thread(
            kubernetes.until, lambda: kubernetes.jobs()[name]["spec"]["activeDeadlineSeconds"] > 24, "it is renewed"
        )
        assert alive(domain, "left.0.1")
        domain.beating = False
        failed = await domain.end("left.0.1")
        assert isinstance(failed, RunFailed)
        assert failed.kind is FailureKind.LEASE_EXPIRED
        assert failed.reason == "Kubernetes ended the Job: no sign of the agent for 15 s"
        assert not alive(domain, "left.0.1")


@pytest.mark.timeout(600)
async def test_nodes_that_are_lost(kubernetes: ControlPlane, tmp_path: Path) -> None:
    async with kubernetes_domain(kubernetes, tmp_path, agent_silence_s=60.0, lost_patience_s=1.0) as domain:
        spread = Constraints(3, cpus=5)
        request = await domain.start_run("spread", DEAF, spread)
        assert {rank.node_id for rank in request.ranks} == set(NODES)
        await domain.event(RunStarted, "spread.0.1")
        # A pod that somebody evicts, as `kubectl drain` does.
        (pod,) = [name for name, found in kubernetes.pods().items() if found["spec"]["nodeName"] == "k1"]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
        kubernetes.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction", eviction)
        failed = await domain.end("spread.0.1")
        assert isinstance(failed, RunFailed)
        assert (failed.kind, failed.node_id) == (FailureKind.NODE_LOST, "k1")
        assert "EvictionByEvictionAPI" in failed.reason
        # A node that dies.
        await domain.start_run("spread", DEAF, spread, 2)
        await domain.event(RunStarted, "spread.0.2")
        await asyncio.to_thread(kubernetes.node_dies, "k2")
        failed = await domain.end("spread.0.2")
        assert isinstance(failed, RunFailed)
        assert (failed.kind, failed.node_id) == (FailureKind.NODE_LOST, "k2")
        assert failed.reason.endswith("ranks on k2 may run on: Kubernetes does not hear the node")
        assert {status.node_id: status.state for status in domain.engine.nodes()}["k2"] is NodeState.EXITED
        kubernetes.start_kubelet("k2")
        await asyncio.to_thread(kubernetes.until, lambda: kubernetes.node_is("k2", "True"), "it is back")


@pytest.mark.timeout(600)
async def test_an_api_server_that_restarts_takes_no_run_with_it(kubernetes: ControlPlane, tmp_path: Path) -> None:
    async with kubernetes_domain(kubernetes, tmp_path, agent_silence_s=60.0) as domain:
        request = await domain.start_run(
            "steady", f"import os, time\nwhile not os.path.exists({str(tmp_path / 'end')!r}): time.sleep(0.1)", ONE
        )
        await domain.event(RunStarted, request.run_id)
        assert domain.cluster.relists == 0
        # What watches saw last is forgotten meanwhile: they are told 410, everything is listed anew, and nothing is missed.
        await asyncio.sleep(2)
        await asyncio.to_thread(kubernetes.forget_the_past)
        await asyncio.to_thread(kubernetes.start_server)
        (tmp_path / "end").touch()
        assert isinstance(await domain.end(request.run_id), RunFinished)
        assert domain.cluster.relists > 0
        for name in ("one", "two"):
            assert isinstance(await domain.end((await domain.start_run(name, "pass", ONE)).run_id), RunFinished)
