"""What the live scheduler decided is decided again from its journal and the event log, node by node."""

from __future__ import annotations

import asyncio
import random
import re
import time
from types import SimpleNamespace
from typing import Any

import pytest

from meridian.codec import Envelope
from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.failover.v1.failover_pb2 import NodeFailed, NodeRecovered, RecoveryPlanned
from meridian.contracts.graph.v1.graph_pb2 import GraphUpdated
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import JobCancelRequested, JobFinished, JobPlaced, JobPreempted
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import Assignment, RunCheckpointed, RunFailed, RunFinished, RunStarted
from services.scheduler import store_journal
from services.scheduler.events import event_name
from services.scheduler.journal import Entry, unpacked
from services.scheduler.replay import replay
from tests.harness import PATIENCE_S, Environment, RunningService, environment
from tests.integration.scheduler.messages import START, STOP, graph, report, submission
from tests.integration.scheduler.test_preemption_live import use
from tests.integration.scheduler.test_service import live_of

JOBS = 200
FAILED = run_pb2.RUN_FAILURE_KIND_PROGRAM
STOPPED = run_pb2.RUN_FAILURE_KIND_STOPPED


class Agents:
    """Answer every assignment: most programs finish, some fail, all write a checkpoint; what is told to stop stops."""

    def __init__(self, stack: Environment, random_source: random.Random) -> None:
        self._bus, self._random = stack.bus, random_source
        self._seen: set[tuple[str, str, int]] = set()

    async def answer(self) -> None:
        messages: list[Any] = []
        for item in self._bus.events(Assignment):
            name = (item.run_id, item.domain_id, item.action)
            if name in self._seen:
                continue
            self._seen.add(name)
            if item.action == STOP:
                messages.append(report(RunFailed, item, kind=STOPPED))
                continue
            assert item.action == START
            messages.append(report(RunStarted, item))
            if self._random.random() < 0.3:
                messages.append(report(RunCheckpointed, item, step=item.epoch, path="/ckpt", size_bytes=2**20))
            if self._random.random() < 0.1:
                messages.append(report(RunFailed, item, kind=FAILED))
            elif self._random.random() < 0.9:
                messages.append(report(RunFinished, item))
        await self._bus.publish(*messages)


def job(number: int, source: random.Random) -> Any:
    kind = source.choice(["task", "gang", "gang", "array"])
    resources = Resources(cpus=source.choice([0.1, 1.0, 3.3]), accelerators=source.choice([0, 1, 2, 4]))
    shape: dict[str, Any] = {"kind": getattr(job_pb2, f"JOB_KIND_{kind.upper()}")}
    if kind == "gang":
        shape.update(ranks=source.randint(2, 6), allow_cross_domain=source.random() < 0.5)
    elif kind == "array":
        shape.update(array_size=source.randint(1, 4))
    return submission(
        f"job-{number}",
        f"tenant-{number % 3}",
        resources=resources,
        priority=source.randint(0, 2),
        max_restarts=20,
        max_run_time_s=source.choice([0, 60, 600]),
        **shape,
    )


async def drive(stack: Environment, service: RunningService, source: random.Random, numbers: range) -> None:
    """Submit jobs while others run, fail and are cancelled and a node dies and comes back."""
    bus, agents = stack.bus, Agents(stack, source)
    for number in numbers:
        if number % 50 == 30:
            await bus.expect(Assignment, lambda item: item.action == START)
        await bus.publish(job(number, source))
        if number % 20 == 7:
            await bus.publish(JobCancelRequested(job_id=f"job-{number - 1}", tenant_id="lab"))
        if number % 50 == 30:
            lost = [item for item in bus.events(Assignment) if item.action == START][-1]
            node_id = lost.ranks[0].node_id
            await bus.publish(NodeFailed(domain_id=lost.domain_id, node_id=node_id, run_ids=[lost.run_id]))
            plan: dict[str, Any] = {"job_id": lost.job_id, "unit_index": lost.unit_index, "epoch": lost.epoch}
            await bus.publish(RecoveryPlanned(domain_id=lost.domain_id, exclude_node_ids=[node_id], **plan))
            await bus.publish(NodeRecovered(domain_id=lost.domain_id, node_id=node_id))
        if number % 4 == 0:
            await agents.answer()
            # What-if questions leave no trace.
            await service.http.post("/v1/what-if", json={"kind": "gang", "ranks": 2, "resources": {"accelerators": 2}})
        if number == JOBS // 3:
            await use(service)
        await asyncio.sleep(0.01)
    for _ in range(20):
        await agents.answer()
        await asyncio.sleep(0.05)


async def recorded(service: RunningService) -> list[Entry]:
    await live_of(service).journal.flush()
    async with service.kernel.database.reading() as connection:
        return [entry for body in await store_journal.journal_chunks(connection) for entry in unpacked(body)]


def begun(entries: list[Entry]) -> list[str]:
    return [run_id for entry in entries if entry.kind == "cycle" for run_id, _ in entry.body["placed"]]


def taken_off(entries: list[Entry]) -> list[str]:
    return [run_id for entry in entries if entry.kind == "cycle" for run_id, _ in entry.body["preempted"]]


def placed(stack: Environment) -> set[str]:
    return {event.run_id for event in stack.bus.events(JobPlaced)}


def preempted(stack: Environment) -> set[str]:
    return {event.run_id for event in stack.bus.events(JobPreempted)}


async def caught_up(stack: Environment, service: RunningService) -> tuple[list[Entry], dict[str, Envelope]]:
    """The journal and the events, once this test has seen what the scheduler has heard and said: relay and consumer are a little
    behind."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            entries = await recorded(service)
            events = {event_name(item): item for item in stack.bus.seen}
            heard = {name for entry in entries if entry.kind == "events" for name in entry.body["events"]}
            said = set(begun(entries)) == placed(stack) and set(taken_off(entries)) <= preempted(stack)
            if said and heard <= events.keys():
                return entries, events
            await asyncio.sleep(0.1)


@pytest.mark.timeout(10 * PATIENCE_S)
async def test_every_decision_is_made_again(
    database_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Recording is measured by the processor time of this thread: it is the same when the machine has other things to do.
    monkeypatch.setattr("services.scheduler.live.time", SimpleNamespace(perf_counter=time.thread_time))
    source = random.Random(11)
    async with environment(database_url) as stack:
        async with stack.service("scheduler") as service:
            await stack.bus.publish(graph("beijing", 3), graph("shanghai", 2, cpus=16))
            await stack.bus.expect(GraphUpdated, count=2)
            await drive(stack, service, source, range(JOBS // 2))
        # A restart in the middle: the next leader begins a book in the same journal.
        async with stack.service("scheduler") as service:
            await drive(stack, service, source, range(JOBS // 2, JOBS))
            async with asyncio.timeout(4 * PATIENCE_S):
                # Who asks all agents again is told of some runs that were said nothing of before: that makes room.
                while len(placed(stack)) < JOBS or not preempted(stack):
                    await Agents(stack, source).answer()
                    await asyncio.sleep(0.1)
            entries, events = await caught_up(stack, service)
            metrics = (await service.http.get("/metrics")).text
        found = replay(entries, events)
        assert found.differences == []
        assert found.books >= 2
        in_journal = begun(entries)
        assert len(set(in_journal)) == len(in_journal), "a run was begun twice"
        assert found.placements == len(in_journal) >= JOBS
        assert found.preemptions == len(taken_off(entries)) > 0
        assert set(taken_off(entries)) <= preempted(stack)
        assert {entry.kind for entry in entries} == {"begin", "events", "tick", "policy", "cycle"}
        assert stack.bus.events(JobFinished)
        recording_s, writing_s, cycle_s = (
            float(re.findall(rf"^meridian_scheduler_{name}_seconds_sum (\S+)$", metrics, re.MULTILINE)[0])
            for name in ("recording", "journal_write", "cycle")
        )
        with capsys.disabled():
            print(
                f"\nreplayed {found.cycles} cycles, {found.placements} placements, {found.preemptions} preemptions, "
                f"{found.events} events; recording took {100 * recording_s / cycle_s:.2f} % of the cycles' processor time, "
                f"writing it out beside them {writing_s:.2f} s"
            )
        assert recording_s < 0.05 * cycle_s

        # A replay that is fed something else notices.
        first = next(entry for entry in entries if entry.kind == "cycle" and entry.body["placed"])
        first.body["placed"][0][1][0][0] = "elsewhere"
        differences = replay(entries, events).differences
        assert [(item.field, item.at_s) for item in differences] == [("placed", first.at_s)]
