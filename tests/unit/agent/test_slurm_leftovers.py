"""What allocations leave in Slurm and on the shared file system when nobody uses them, or Slurm does not answer."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.engines.base import FailureKind, LaunchRequest, NodeState, RankPlacement, RunFailed
from agent.engines.local.gang import Gang
from agent.engines.own_scheduler import Constraints, UnitName
from agent.engines.run_records import launch_record
from agent.engines.slurm import folder, followed_runs
from agent.engines.slurm.engine import SlurmEngine
from agent.engines.slurm.engine_settings import SlurmEngineSettings
from agent.engines.slurm.followed_runs import CANCEL_AFTER_S
from agent.engines.slurm.following import FollowedRun
from agent.engines.slurm.scheduler import OLD_S, QueueRules, SlurmScheduler, remove_old
from agent.engines.slurm.words import nodes_of
from agent.run_book import RunBook
from meridian.clock import VirtualClock
from tests.unit.agent.paper_slurm import A100, GPUS, PaperSlurm

UNIT = UnitName("job-1", 0, 1)
OTHER = UnitName("job-2", 0, 1)
ASKED = Constraints(ranks=1, accelerators=GPUS)


def _scheduler(slurm: PaperSlurm, stray_s: float = 0.0) -> SlurmScheduler:
    return SlurmScheduler(slurm, QueueRules(answer_s=1e-9, stray_s=stray_s), {"n1": (A100,) * GPUS})


async def test_a_job_whose_cancellation_slurm_did_not_hear_is_cancelled_later(tmp_path: Path) -> None:
    slurm = PaperSlurm(tmp_path, ("n1",))
    scheduler = _scheduler(slurm)
    await scheduler.place(UNIT, ASKED)
    slurm.hears = False
    await scheduler.release(UNIT)
    slurm.hears = True
    assert slurm.job_of("job-1").state == "RUNNING"
    await slurm.look()
    await scheduler.tend()
    assert slurm.queue[1].state == "CANCELLED"
    assert slurm.free["n1"] == set(range(GPUS))


async def test_a_job_of_which_the_number_was_not_heard_is_cancelled(tmp_path: Path) -> None:
    slurm = PaperSlurm(tmp_path, ("n1", "n2"))
    scheduler = _scheduler(slurm)
    await slurm.submit(UNIT, ("--ntasks=1", f"--gres=gpu:{GPUS}"), "{}")
    assert isinstance(await scheduler.place(UNIT, ASKED), tuple), "it was asked for once more"
    await slurm.look()
    await scheduler.tend()
    assert [job.state for job in slurm.queue.values()] == ["CANCELLED", "RUNNING"]


async def test_jobs_that_are_held_or_new_or_of_others_are_left(tmp_path: Path) -> None:
    slurm = PaperSlurm(tmp_path, ("n1", "n2", "n3"))
    scheduler = _scheduler(slurm, stray_s=1e9)
    await scheduler.place(UNIT, ASKED)
    await slurm.submit(OTHER, ("--ntasks=1", f"--gres=gpu:{GPUS}"), "{}")
    slurm.foreign(GPUS)
    await slurm.look()
    await scheduler.tend()
    assert [job.state for job in slurm.queue.values()] == ["RUNNING"] * 3


def test_what_an_allocation_left_that_was_never_ordered_is_removed(tmp_path: Path) -> None:
    for name in ("job-1.0.1/17/held.json", "job-1.0.1/out.17.txt", "job-2.0.1/out.18.txt", "job-3.0.1/out.19.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "job-4.0.1").mkdir()
    (tmp_path / "lease").write_text("agent 1 1")
    old = time.time() - OLD_S - 60
    for path in tmp_path.rglob("*"):
        os.utime(path, (old, old))
    (tmp_path / "job-5.0.1").mkdir()
    remove_old(tmp_path, {"job-2.0.1"}, {19})
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    wanted = ["job-2.0.1", "job-2.0.1/out.18.txt", "job-3.0.1", "job-3.0.1/out.19.txt", "job-5.0.1", "lease"]
    assert left == wanted


async def test_a_run_that_does_not_stop_is_cancelled_until_slurm_hears_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm is silent when the agent cancels a run whose step does not hear the agent either."""
    monkeypatch.setattr(followed_runs, "CANCEL_AGAIN_S", 0.0)
    slurm = PaperSlurm(tmp_path, ("n1",))
    number = await slurm.submit(UNIT, ("--ntasks=1", f"--gres=gpu:{GPUS}"), "{}")
    book = RunBook(tmp_path / "journal", new_agent_mark="mark")
    engine = SlurmEngine(SlurmEngineSettings("north", tmp_path, ("n1",)), slurm, book, VirtualClock())
    request = LaunchRequest("run-1", "job-1", 0, 1, "acme", (RankPlacement(0, "n1"),), 1, ("true",))
    run = FollowedRun(Gang(request), UNIT, number, slurm.place_of(UNIT, number), {"n1": "n1"}, 0.0)
    asked = 0
    hear = slurm.cancel

    async def cancel(job: int) -> None:
        nonlocal asked
        asked += 1
        slurm.hears = asked == 3
        await hear(job)
        if slurm.queue[job].state == "CANCELLED":
            run.ended.set_result(None)

    monkeypatch.setattr(slurm, "cancel", cancel)
    engine._cancel_later(run, -CANCEL_AFTER_S)
    async with asyncio.timeout(60):
        await run.ended
    assert (asked, run.cancelled) == (3, True)


async def test_a_run_whose_order_cannot_be_read_is_told_as_ended_when_its_job_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is back, and the file system is not: the run may go on for as long as Slurm holds its job."""
    monkeypatch.setattr(followed_runs, "LAST_WORDS_S", 0.0)
    monkeypatch.setattr(followed_runs, "READ_EVERY_S", 0.01)
    monkeypatch.setattr(followed_runs, "ENDING_POLL_S", 0.01)
    slurm = PaperSlurm(tmp_path, ("n1",))
    slurm.settings = replace(slurm.settings, poll_s=0.01)
    number = await slurm.submit(UNIT, ("--ntasks=1", f"--gres=gpu:{GPUS}"), "{}")
    slurm.hears = False
    book = RunBook(tmp_path / "journal", new_agent_mark="mark")
    book.open()
    request = LaunchRequest("run-1", "job-1", 0, 1, "acme", (RankPlacement(0, "n1"),), 1, ("true",))
    book.begin(request, datetime(2026, 5, 1, tzinfo=UTC))
    (slurm.place_of(UNIT, number) / folder.LAUNCH).mkdir(parents=True)
    engine = SlurmEngine(SlurmEngineSettings("north", tmp_path, ("n1",)), slurm, book, VirtualClock())
    asked = asyncio.Event()
    hear = slurm.cancel

    async def cancel(job: int) -> None:
        await hear(job)
        asked.set()

    monkeypatch.setattr(slurm, "cancel", cancel)
    await engine.start()
    async with asyncio.timeout(60):
        await asked.wait()
    assert not book.pending
    assert [run.run_id for run in engine.list_runs()] == ["run-1"]
    slurm.end(slurm.queue[number], "CANCELLED")
    async with asyncio.timeout(60):
        delivery = await anext(engine.events())
    assert isinstance(delivery.event, RunFailed)
    assert delivery.event.kind is FailureKind.AGENT_RESTARTED
    assert not engine.list_runs()
    await engine.close()
    await book.close()


async def test_a_node_that_slurm_gave_up_has_not_ended_before_the_agent_that_is_back_looked_at_its_step(
    tmp_path: Path,
) -> None:
    """Who hears that a node has ended places its units again, and the ranks there may live on."""
    slurm = PaperSlurm(tmp_path, ("n1",))
    number = await slurm.submit(UNIT, ("--ntasks=1", f"--gres=gpu:{GPUS}"), "{}")
    place = slurm.place_of(UNIT, number)
    request = LaunchRequest("run-1", "job-1", 0, 1, "acme", (RankPlacement(0, "n1"),), 1, ("true",))
    folder.write_json(place / folder.LAUNCH, {"request": launch_record(request)})
    (place / "n1.beat").write_text("7")
    book = RunBook(tmp_path / "journal", new_agent_mark="mark")
    book.open()
    book.begin(request, datetime(2026, 5, 1, tzinfo=UTC))
    engine = SlurmEngine(SlurmEngineSettings("north", tmp_path, ("n1",)), slurm, book, VirtualClock())
    await engine.start()
    assert [run.run_id for run in engine.list_runs()] == ["run-1"]
    slurm.nodes, _ = nodes_of("NodeName=n1 CPUTot=8 State=DOWN*")
    assert [node.state for node in engine.nodes()] == [NodeState.RUNNING]
    await engine.close()
    await book.close()


def test_a_file_that_two_write_at_once_is_that_of_one_of_them(tmp_path: Path) -> None:
    path = tmp_path / folder.STOP

    def write(number: int) -> None:
        for _ in range(300):
            folder.write_json(path, {"by": number})

    with ThreadPoolExecutor(4) as writers:
        for done in [writers.submit(write, number) for number in range(4)]:
            done.result()
    assert folder.read_json(path) in [{"by": number} for number in range(4)]
    assert [found.name for found in tmp_path.iterdir()] == [folder.STOP]
