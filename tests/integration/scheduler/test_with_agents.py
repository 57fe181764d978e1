"""Scheduler, graph, telemetry and failover with a real agent and real programs: sizes that change, devices that are shared."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import JobCancelRequested, JobFinished, JobPlaced, JobPreempted
from meridian.contracts.run.v1.run_pb2 import ASSIGNMENT_ACTION_WAKE as WAKE
from meridian.contracts.run.v1.run_pb2 import Assignment, RunFailed, RunProgress, RunStarted
from services.scheduler.api import _waiting
from services.scheduler.core.state import UnitState
from services.scheduler.live import LiveScheduler
from services.scheduler.replay import replay
from tests.harness import PATIENCE_S, ROOT, Environment, RunningService, environment
from tests.integration.agent.agent_process import AgentProcess, agent_running, configuration
from tests.integration.scheduler.messages import submission
from tests.integration.scheduler.test_replay_live import caught_up
from tests.integration.scheduler.test_service import live_of, starts, until

TRAINING = ROOT / "examples" / "train_transformer"
SMALL = ("--layers", "1", "--hidden", "16", "--heads", "2", "--seq", "16", "--batch", "12")
STEP = re.compile(r"^(\d+),", re.MULTILINE)


# Nobody dies here: what is said late was said all the same, the machine had other things to do.
PATIENT = {
    "MERIDIAN_FAILOVER_START_GRACE_S": "0.5",
    "MERIDIAN_FAILOVER_AGENT_GRACE_S": "0.5",
    "MERIDIAN_FAILOVER_SUSPECT_AFTER_S": str(PATIENCE_S),
    "MERIDIAN_FAILOVER_FAILED_AFTER_S": str(2 * PATIENCE_S),
    "MERIDIAN_FAILOVER_UNREACHABLE_AFTER_S": str(2 * PATIENCE_S),
}


@dataclass(slots=True)
class Network:
    """What a test drives."""

    stack: Environment
    scheduler: RunningService
    agent: AgentProcess

    def log(self, run_id: str, rank: int = 0) -> str:
        """What a rank printed until now: nothing before its process was there to write."""
        path = Path(self.agent.settings["data_dir"]) / "logs" / run_id / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    async def use(self, text: str) -> None:
        """Decide by another policy."""
        answer = await self.scheduler.http.put("/v1/policy", content=text.encode())
        assert answer.status_code == 200, answer.text

    async def check_replay(self) -> None:
        """Everything that was decided is decided again."""
        entries, events = await caught_up(self.stack, self.scheduler)
        found = replay(entries, events)
        assert found.differences == []
        assert found.cycles > 0


@asynccontextmanager
async def network(
    database_url: str,
    directory: Path,
    accelerators: int,
    nodes: int = 1,
    last: dict[str, Any] | None = None,
    each: dict[str, Any] | None = None,
) -> AsyncIterator[Network]:
    """One domain with nodes of so many accelerators; ``each`` adds to the declaration of all of them, ``last`` of the last."""
    async with AsyncExitStack() as life:
        stack = await life.enter_async_context(environment(database_url))
        services = {}
        for name in ("telemetry", "graph", "scheduler", "failover"):
            services[name] = await life.enter_async_context(
                stack.service(name, env=PATIENT if name == "failover" else None)
            )
        settings = configuration(directory, stack.bootstrap_servers, lease_s=2 * PATIENCE_S)
        group = {**settings["domain"]["nodes"][0]["accelerators"][0], "count": accelerators}
        settings["domain"]["nodes"] = [
            {"node_id": f"north-{n}", "cpus": 8, "memory_bytes": 2**34, "accelerators": [group], **(each or {})}
            for n in range(1, nodes + 1)
        ]
        settings["domain"]["nodes"][-1] |= last or {}
        agent = await life.enter_async_context(agent_running(settings, directory))
        await until(services["scheduler"], lambda body: len(body["items"]) == nodes, "/v1/nodes")
        yield Network(stack, services["scheduler"], agent)


PROGRAM = """
import os, runpy, sys, time, training

until_stopped = {holds}.get(os.environ["MERIDIAN_RUN_ID"].rsplit(".", 1)[-1])
pause = training.Run._sleep_until

def wait(run, wake_s):
    pause(run, wake_s)
    while until_stopped is not None and run._state.step >= until_stopped and not run._stop.requested:
        time.sleep(0.05)

training.Run._sleep_until = wait
sys.argv = [*{arguments}, str(1.6 / int(os.environ["WORLD_SIZE"]))]
runpy.run_path("train.py", None, "__main__")
"""


def training(name: str, steps: int, holds: dict[str, int] | None = None, **more: Any) -> job_pb2.JobSubmitted:
    """A training whose steps take 0.4 s on four ranks and longer on fewer: it is worth growing. ``holds``: the step at which the run of
    an epoch waits until it is stopped, so that there is something left to do however late the order to stop comes."""
    arguments = ["train.py", "--steps", str(steps), "--checkpoint-every", "10", *SMALL, "--step-time-s"]
    command = ["python", "-c", PROGRAM.format(holds=holds or {}, arguments=arguments)]
    return submission(
        name,
        kind=job_pb2.JOB_KIND_GANG,
        command=command,
        working_dir=str(TRAINING),
        resources=Resources(cpus=0.1, accelerators=1),
        **more,
    )


ELASTIC = "extends: balanced\nname: e\nplanner: elastic-exact\ninterval_s: 1\nrestarts: {least_run_s: 2, restart_cost_s: 0.5}\n"


async def test_a_training_run_shrinks_for_another_grows_again_and_makes_every_step_once(
    database_url: str, tmp_path: Path
) -> None:
    async with network(database_url, tmp_path, accelerators=4) as found:
        bus = found.stack.bus
        await found.use(ELASTIC)
        sizes = {"min_ranks": 1, "ranks": 2, "max_ranks": 4}
        await bus.publish(training("long", 24, {"1": 6, "2": 12}, **sizes))
        first = await bus.expect(RunProgress, lambda event: event.job_id == "long")
        await bus.publish(training("late", 4, **sizes))
        await bus.expect(JobFinished, count=2, timeout_s=3 * PATIENCE_S)
        assert {event.outcome for event in bus.events(JobFinished)} == {job_pb2.JOB_OUTCOME_SUCCEEDED}
        runs = bus.events(Assignment, lambda event: event.job_id == "long" and event.world_size > 0)
        assert [item.world_size for item in runs] == [4, 2, 4]
        steps: list[int] = []
        for item in runs:
            text = found.log(item.run_id)
            assert f"rank 0 of {item.world_size}," in text
            if item.run_id != first.run_id:
                assert f"resuming at step {steps[-1]} from" in text
            steps += [int(number) for number in STEP.findall(text)]
        assert steps == list(range(1, 25))
        unit = (await found.scheduler.http.get("/v1/jobs/long/explanation")).json()["units"][0]
        assert (unit["program_failures"], unit["recoveries"], unit["epoch"]) == (0, 0, 3)
        await found.check_replay()


SHOW = "echo share=$MERIDIAN_DEVICE_SHARE mps=$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE memory=$MERIDIAN_DEVICE_MEMORY_BYTES on=$MERIDIAN_ACCELERATORS; sleep 3600"


async def test_two_jobs_share_one_accelerator_and_the_third_waits_with_a_reason(
    database_url: str, tmp_path: Path
) -> None:
    async with network(database_url, tmp_path, accelerators=1) as found:
        bus = found.stack.bus

        def sharing(name: str, milli: int) -> job_pb2.JobSubmitted:
            resources = Resources(cpus=0.1, accelerators=1, accelerator_milli=milli)
            return submission(name, command=["sh", "-c", SHOW], resources=resources)

        await bus.publish(sharing("a", 600), sharing("b", 400))
        await bus.expect(RunStarted, count=2)
        for name, milli in (("a", 600), ("b", 400)):
            order = await bus.expect(Assignment, starts(name))
            assert [(list(rank.accelerator_indices), rank.accelerator_milli) for rank in order.ranks] == [([0], milli)]
            memory = 85899345920 * milli // 1000
            said = f"share={milli / 1000:g} mps={milli / 10:g} memory={memory} on=0\n"
            async with asyncio.timeout(PATIENCE_S):
                while found.log(order.run_id) != said:
                    await asyncio.sleep(0.05)
        placed = await bus.expect(JobPlaced)
        assert placed.ranks[0].accelerator_milli in {400, 600}
        await bus.publish(sharing("c", 300))
        await until(
            found.scheduler,
            lambda body: [item["reason"].split(":")[0] for item in body["items"]] == ["waiting for capacity"],
        )
        assert not bus.events(JobPlaced, lambda event: event.job_id == "c")
        # What is left by the smaller one is too little by itself for a whole device, enough for the third.
        await bus.publish(submission("whole", command=["true"], resources=Resources(cpus=0.1, accelerators=1)))
        await bus.publish(JobCancelRequested(job_id="b", tenant_id="lab"))
        await bus.expect(RunStarted, lambda event: event.job_id == "c")
        assert (await bus.expect(Assignment, starts("c"))).ranks[0].accelerator_milli == 300
        await until(found.scheduler, lambda body: [item["job_id"] for item in body["items"]] == ["whole"])
        await bus.publish(*(JobCancelRequested(job_id=name, tenant_id="lab") for name in ("a", "c")))
        await bus.expect(RunFailed, lambda event: event.job_id == "c")
        await bus.expect(JobFinished, lambda event: event.job_id == "whole")
        assert not bus.events(JobPreempted)
        await found.check_replay()


async def look_for_reasons(live: LiveScheduler, reasons: set[str]) -> None:
    """All that is given as a reason why something waits, however short it is true; until cancelled."""
    while True:
        waiting = [unit for unit in live.book.units.values() if unit.state is UnitState.QUEUED]
        reasons.update(_waiting(live, unit)["reason"] for unit in waiting)
        await asyncio.sleep(0.005)


async def test_a_job_that_fits_only_on_a_sleeping_node_wakes_it(database_url: str, tmp_path: Path) -> None:
    sleeping = {"labels": {"power_state": "asleep"}, "wake_s": 3.0}
    async with network(database_url, tmp_path, accelerators=1, nodes=2, last=sleeping) as found:
        bus = found.stack.bus
        live = live_of(found.scheduler)
        async with asyncio.timeout(PATIENCE_S):
            while [live.book.fleet.sleeps(node_id) for node_id in ("north-1", "north-2")] != [False, True]:
                await asyncio.sleep(0.05)
        resources = Resources(cpus=0.1, accelerators=1)
        await bus.publish(submission("first", command=["sleep", "3600"], resources=resources))
        started = await bus.expect(RunStarted)
        assert list(started.node_ids) == ["north-1"]
        said = "it fits only where nodes sleep; north-2 is being woken for it"
        reasons: set[str] = set()
        looking = asyncio.create_task(look_for_reasons(live, reasons))
        await bus.publish(submission("second", command=["sh", "-c", "echo on $MERIDIAN_NODE"], resources=resources))
        asked = await bus.expect(Assignment, lambda event: event.action == WAKE)
        assert (asked.domain_id, list(asked.node_ids), asked.job_id) == ("north", ["north-2"], "second")
        await bus.expect(JobFinished, lambda event: event.job_id == "second")
        order = await bus.expect(Assignment, starts("second"))
        assert order.assigned_at.ToSeconds() - asked.assigned_at.ToSeconds() >= 2
        assert found.log(order.run_id) == "on north-2\n"
        looking.cancel()
        assert said in reasons
        explained = (await found.scheduler.http.get("/v1/jobs/second/explanation")).json()
        assert explained["decisions"][0]["explanation"]["woken"] == {"nodes": ["north-2"], "wake_s": 3.0}
        assert len(bus.events(Assignment, lambda event: event.action == WAKE)) == 1
        await found.check_replay()
