"""Inference and training on one accelerator: the part of each follows the load of the replica, while both run on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import JobCancelRequested, JobFinished, JobPreempted, ReplicaScaling
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import ASSIGNMENT_ACTION_ADJUST as ADJUST
from meridian.contracts.run.v1.run_pb2 import Assignment, RunFailed, RunStarted
from services.scheduler.core.state import UnitKey
from tests.harness import PATIENCE_S, environment
from tests.integration.scheduler.messages import graph, report, submission
from tests.integration.scheduler.test_planner_live import check_replay
from tests.integration.scheduler.test_replicas_live import Replicas
from tests.integration.scheduler.test_service import live_of, starts
from tests.integration.scheduler.test_with_agents import Network, network

QUICK = "extends: balanced\nname: quick\ninterval_s: 1\n"
SERVE = """
import json, os, pathlib, time
step = 0
while True:
    step += 1
    need = float(pathlib.Path("need").read_text())
    share = float(pathlib.Path(os.environ["MERIDIAN_DEVICE_SHARE_FILE"]).read_text())
    print("@meridian " + json.dumps({"progress": {"step": step, "metrics": {"load": need / share}}}), flush=True)
    time.sleep(0.3)
"""
TRAIN = "while true; do cat $MERIDIAN_DEVICE_SHARE_FILE; sleep 0.1; done"


def web(**more: Any) -> Any:
    scaling = ReplicaScaling(min_replicas=1, max_replicas=1, target=10, down_after_s=3, cooldown_s=4)
    resources = Resources(cpus=0.1, accelerators=1, accelerator_milli=300, max_accelerator_milli=800)
    fields: dict[str, Any] = {"resources": resources, "replicas": 1, "scaling": scaling, **more}
    return submission("web", kind=job_pb2.JOB_KIND_SERVICE, **fields)


def train(**more: Any) -> Any:
    resources = Resources(cpus=0.1, accelerators=1, accelerator_milli=700, min_accelerator_milli=200)
    return submission("train", resources=resources, **more)


async def until_share(file: Path, share: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while file.read_text() != share:
            await asyncio.sleep(0.05)


async def until_part(found: Network, order: Assignment, part: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while found.log(order.run_id).split()[-1:] != [part]:
            await asyncio.sleep(0.05)


async def test_training_gives_to_a_replica_under_load_and_gets_it_back(database_url: str, tmp_path: Path) -> None:
    async with network(database_url, tmp_path, accelerators=1) as found:
        bus = found.stack.bus
        await found.use(QUICK)
        need = tmp_path / "need"
        need.write_text("3\n")
        await bus.publish(web(command=["python", "-c", SERVE], working_dir=str(tmp_path)))
        await bus.publish(train(command=["sh", "-c", TRAIN]))
        await bus.expect(RunStarted, count=2)
        order = await bus.expect(Assignment, starts("train"))
        await until_part(found, order, "0.7")
        need.write_text("6\n")
        await until_part(found, order, "0.4")
        shown = Path(found.agent.settings["data_dir"]) / "logs" / "web.0.1" / "rank-0.share"
        await until_share(shown, "0.6\n")
        need.write_text("3\n")
        await until_part(found, order, "0.7")
        await until_share(shown, "0.3\n")
        assert len(bus.events(RunStarted)) == 2
        assert not bus.events(JobPreempted)
        decisions = (await found.scheduler.http.get("/v1/jobs/train/explanation")).json()["decisions"]
        found_parts = [item["explanation"] for item in decisions if item["kind"] == "share"]
        moved = [(item["before"], item["accelerator_milli"]) for item in found_parts]
        # A telling may hold reports from before the load rose: it may shrink in two steps. Newest first.
        assert moved[0] == (400, 700)
        assert moved[-1][0] == 700
        assert min(after for _, after in moved) == 400
        await bus.publish(*(JobCancelRequested(job_id=name, tenant_id="lab") for name in ("web", "train")))
        await bus.expect(JobFinished, count=2)
        await found.check_replay()


async def test_parts_outlive_the_scheduler_and_come_back_when_the_replica_ends(database_url: str) -> None:
    async with environment(database_url) as stack:
        bus, replicas = stack.bus, Replicas(stack)
        async with stack.service("scheduler") as scheduler:
            answer = await scheduler.http.put("/v1/policy", content=QUICK.encode())
            assert answer.status_code == 200, answer.text
            await bus.publish(graph("beijing", 1, accelerators=1))
            await bus.publish(web())
            first = await bus.expect(Assignment, starts("web"))
            await replicas.tick()
            await bus.publish(train())
            second = await bus.expect(Assignment, starts("train"))
            await bus.publish(report(RunStarted, second))
            # Half of it for each run: the replica has 20, whatever its part. It gets the most that it may have.
            replicas.load = 40.0

            def parts() -> dict[str, int]:
                orders = bus.events(Assignment, lambda event: event.action == ADJUST)
                return {event.job_id: event.ranks[0].accelerator_milli for event in orders}

            async with asyncio.timeout(PATIENCE_S):
                while parts() != {"web": 800, "train": 200}:
                    await replicas.tick()
                    await asyncio.sleep(0.2)
            await check_replay(stack, scheduler)
        async with stack.service("scheduler") as scheduler:
            running = live_of(scheduler).book.cluster.running
            assert running[UnitKey("train", 0)].unit.demand.device_milli == 200
            await bus.publish(JobCancelRequested(job_id="web", tenant_id="lab"))
            await bus.publish(report(RunFailed, first, kind=run_pb2.RUN_FAILURE_KIND_STOPPED))
            back = await bus.expect(
                Assignment,
                lambda event: event.action == ADJUST and event.ranks[0].accelerator_milli == 700,
            )
            assert (back.job_id, back.run_id) == ("train", second.run_id)
            await check_replay(stack, scheduler)
