"""A cloud in another language joins over Kafka with nothing but the contracts: what it sends, does and refuses."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from meridian.bus import ensure_topics
from meridian.contracts.resource.v1 import resource_pb2
from meridian.contracts.run.v1 import run_pb2
from tests.fixtures_embedded import ProcessSpec, free_port, running, tcp_accepts
from tests.harness import PATIENCE_S, Probe, environment
from tests.integration.interop.conftest import ROOT, StartCloud

pytestmark = pytest.mark.timeout(900)

DOMAIN = "partner-cloud"
PROGRESS = '@meridian {"progress": {"step": 3, "total_steps": 4, "metrics": {"loss": 0.5}}}'


def order(
    job: str, epoch: int, command: Sequence[str], *, nodes: Sequence[str] = ("partner-1",), unit_index: int = 0
) -> run_pb2.Assignment:
    return run_pb2.Assignment(
        domain_id=DOMAIN,
        action=run_pb2.ASSIGNMENT_ACTION_START,
        run_id=f"{job}.{unit_index}.{epoch}",
        job_id=job,
        unit_index=unit_index,
        epoch=epoch,
        tenant_id="lab",
        ranks=[run_pb2.AssignedRank(rank=rank, node_id=node) for rank, node in enumerate(nodes)],
        world_size=len(nodes),
        command=command,
        master_addr="127.0.0.1",
    )


def stop(job: str, epoch: int, *, grace_s: float = 1.0) -> run_pb2.Assignment:
    return run_pb2.Assignment(
        domain_id=DOMAIN,
        action=run_pb2.ASSIGNMENT_ACTION_STOP,
        run_id=f"{job}.0.{epoch}",
        job_id=job,
        epoch=epoch,
        reason="cancelled",
        grace_s=grace_s,
    )


def mark(path: Path, *after: str) -> list[str]:
    """A shell command that leaves one line in a file each time it runs."""
    return ["sh", "-c", "; ".join((f'echo "$MERIDIAN_RUN_ID $RANK/$WORLD_SIZE $MERIDIAN_NODE" >> {path}', *after))]


async def joined(bus: Probe) -> None:
    await bus.expect(resource_pb2.Heartbeat)


@pytest.mark.parametrize("mode", ["protobuf", "structured"])
async def test_its_reports_are_complete(database_url: str, start_cloud: StartCloud, mode: str) -> None:
    async with environment(database_url) as stack:
        with start_cloud(stack.bootstrap_servers, PARTNER_EVENT_MODE=mode):
            report = await stack.bus.expect(resource_pb2.ResourceReported)
            beat = await stack.bus.expect(resource_pb2.Heartbeat, count=11)
    assert report.domain_id == report.inventory.domain_id == DOMAIN
    assert {node.node_id: (node.cpus, len(node.accelerators)) for node in report.inventory.nodes} == {
        "partner-1": (2.0, 2),
        "partner-2": (2.0, 0),
    }
    assert report.inventory.nodes[0].accelerators[1].memory_bytes == 80 * 2**30
    assert report.inventory.price_per_accelerator_hour.micro_units == 1_900_000
    assert {reading.metric for reading in report.readings} == {"system.cpu.load_average.1m", "system.memory.usage"}
    assert all(reading.value > 0 and reading.observed_at.seconds > 0 for reading in report.readings)
    assert beat.sequence == 11
    assert beat.incarnation == report.incarnation > 0
    assert [node.node_id for node in beat.nodes] == ["partner-1", "partner-2"]
    assert {node.state for node in beat.nodes} == {resource_pb2.NODE_PROCESS_STATE_RUNNING}
    first = await stack.bus.expect(resource_pb2.Heartbeat)
    between_s = (beat.sent_at.ToDatetime() - first.sent_at.ToDatetime()).total_seconds() / 10
    assert beat.interval_s == 0.2
    assert between_s > 0.15, "heartbeats come no more than about five times a second"
    envelopes = [item for item in stack.bus.seen if item.source == f"/clouds/{DOMAIN}"]
    assert {item.key for item in envelopes} == {DOMAIN}
    assert len({item.id for item in envelopes}) == len(envelopes)
    assert stack.bus.dead_letters == []


async def test_an_assignment_runs_once_though_it_is_delivered_twice(
    database_url: str, start_cloud: StartCloud, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    async with environment(database_url) as stack:
        with start_cloud(stack.bootstrap_servers):
            await joined(stack.bus)
            first = order("job-a", 1, mark(marks, f"echo '{PROGRESS}'"))
            await stack.bus.publish(first)
            await stack.bus.publish(first)
            await stack.bus.expect(run_pb2.RunFinished)
            await stack.bus.publish(first, order("job-b", 1, mark(marks), nodes=("partner-1", "partner-2")))
            await stack.bus.expect(run_pb2.RunFinished, count=2)
    assert sorted(marks.read_text().splitlines()) == [
        "job-a.0.1 0/1 partner-1",
        "job-b.0.1 0/2 partner-1",
        "job-b.0.1 1/2 partner-2",
    ]
    started = stack.bus.events(run_pb2.RunStarted)
    assert [(event.run_id, list(event.node_ids)) for event in started] == [
        ("job-a.0.1", ["partner-1"]),
        ("job-b.0.1", ["partner-1", "partner-2"]),
    ]
    [progress] = stack.bus.events(run_pb2.RunProgress)
    assert (progress.step, progress.total_steps, dict(progress.metrics)) == (3, 4, {"loss": 0.5})
    assert [event.run_id for event in stack.bus.events(run_pb2.RunFinished)] == ["job-a.0.1", "job-b.0.1"]
    assert stack.bus.events(run_pb2.RunFailed) == []


async def test_a_stale_epoch_is_refused_also_after_a_restart(
    database_url: str, start_cloud: StartCloud, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    async with environment(database_url) as stack:
        with start_cloud(stack.bootstrap_servers):
            await joined(stack.bus)
            await stack.bus.publish(order("job-a", 2, mark(marks)), order("job-a", 1, mark(marks)))
            refused = await stack.bus.expect(run_pb2.RunFailed)
            await stack.bus.expect(run_pb2.RunFinished, lambda event: event.run_id == "job-a.0.2")
            await stack.bus.publish(stop("job-b", 3), order("job-b", 3, mark(marks)))
            await stack.bus.expect(run_pb2.RunFailed, lambda event: event.job_id == "job-b")
        before = stack.bus.events(resource_pb2.Heartbeat)[-1].incarnation
        with start_cloud(stack.bootstrap_servers):
            await stack.bus.expect(resource_pb2.Heartbeat, lambda event: event.incarnation > before)
            await stack.bus.publish(order("job-a", 1, mark(marks)))
            await stack.bus.expect(run_pb2.RunFailed, lambda event: event.job_id == "job-a", count=2)
    assert refused.run_id == "job-a.0.1"
    assert {event.kind for event in stack.bus.events(run_pb2.RunFailed)} == {run_pb2.RUN_FAILURE_KIND_REFUSED}
    assert marks.read_text().splitlines() == ["job-a.0.2 0/1 partner-1"]


async def test_an_order_from_its_absence_is_refused(database_url: str, start_cloud: StartCloud, tmp_path: Path) -> None:
    """While it was away for longer than its lease, others may have been told to run the unit."""
    marks = tmp_path / "marks"
    async with environment(database_url) as stack:
        old, fresh = order("old", 1, mark(marks)), order("fresh", 1, mark(marks))
        old.assigned_at.FromDatetime(datetime.now(UTC) - timedelta(seconds=600))
        fresh.assigned_at.FromDatetime(datetime.now(UTC))
        await stack.bus.publish(old, fresh)
        # A lease that covers the start of a program on a busy machine.
        with start_cloud(stack.bootstrap_servers, PARTNER_LEASE_S="120"):
            refused = await stack.bus.expect(run_pb2.RunFailed)
            await stack.bus.expect(run_pb2.RunFinished)
    assert (refused.run_id, refused.kind) == ("old.0.1", run_pb2.RUN_FAILURE_KIND_REFUSED)
    assert marks.read_text().splitlines() == ["fresh.0.1 0/1 partner-1"]


async def test_a_newer_epoch_ends_the_older_one_and_a_stop_ends_a_run(
    database_url: str, start_cloud: StartCloud, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    async with environment(database_url) as stack:
        with start_cloud(stack.bootstrap_servers):
            await joined(stack.bus)
            await stack.bus.publish(order("job-a", 1, mark(marks, "sleep 600")))
            await stack.bus.expect(run_pb2.RunStarted)
            await stack.bus.expect(resource_pb2.Heartbeat, lambda beat: list(beat.nodes[0].run_ids) == ["job-a.0.1"])
            await lines(marks, 1)
            await stack.bus.publish(order("job-a", 2, mark(marks, "sleep 600"), nodes=("partner-2",)))
            superseded = await stack.bus.expect(run_pb2.RunFailed)
            await stack.bus.expect(run_pb2.RunStarted, count=2)
            await lines(marks, 2)
            await stack.bus.publish(stop("job-a", 2))
            stopped = await stack.bus.expect(run_pb2.RunFailed, count=2)
    assert (superseded.run_id, superseded.kind) == ("job-a.0.1", run_pb2.RUN_FAILURE_KIND_STOPPED)
    assert (stopped.run_id, stopped.kind, stopped.reason) == (
        "job-a.0.2",
        run_pb2.RUN_FAILURE_KIND_STOPPED,
        "cancelled",
    )
    assert marks.read_text().splitlines() == ["job-a.0.1 0/1 partner-1", "job-a.0.2 0/1 partner-2"]


async def test_failures_say_what_happened(database_url: str, start_cloud: StartCloud) -> None:
    async with environment(database_url) as stack:
        with start_cloud(stack.bootstrap_servers):
            await joined(stack.bus)
            limited = order("limited", 1, ["sleep", "600"])
            limited.max_run_time_s = 0.3
            await stack.bus.publish(
                order("program", 1, [sys.executable, "-c", "import sys; sys.exit('out of luck')"]),
                order("missing", 1, ["/no/such/program"]),
                order("stranger", 1, ["true"], nodes=("somewhere-else",)),
                order("empty", 1, []),
                limited,
            )
            await stack.bus.expect(run_pb2.RunFailed, count=5)
    failures = {event.job_id: event for event in stack.bus.events(run_pb2.RunFailed)}
    assert {job: event.kind for job, event in failures.items()} == {
        "program": run_pb2.RUN_FAILURE_KIND_PROGRAM,
        "missing": run_pb2.RUN_FAILURE_KIND_NOT_STARTABLE,
        "stranger": run_pb2.RUN_FAILURE_KIND_NOT_STARTABLE,
        "empty": run_pb2.RUN_FAILURE_KIND_NOT_STARTABLE,
        "limited": run_pb2.RUN_FAILURE_KIND_TIME_LIMIT,
    }
    assert failures["program"].exit_code == 1
    assert "out of luck" in failures["program"].log_tail
    assert failures["program"].node_id == "partner-1"
    assert stack.bus.events(run_pb2.RunFinished) == []


async def test_what_a_killed_cloud_left_is_ended_and_reported(
    database_url: str, start_cloud: StartCloud, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    async with environment(database_url) as stack:
        with start_cloud(stack.bootstrap_servers) as process:
            await joined(stack.bus)
            await stack.bus.publish(order("job-a", 1, ["sh", "-c", f"echo $$ > {marks}; exec sleep 600"]))
            await stack.bus.expect(run_pb2.RunStarted)
            await _written(stack.bus, marks)
            process.send_signal(signal.SIGKILL)
            process.wait()
        rank = Path(f"/proc/{marks.read_text().strip()}")
        assert sleeps(rank), "the rank outlives its killed agent"
        with start_cloud(stack.bootstrap_servers):
            lost = await stack.bus.expect(run_pb2.RunFailed)
            async with asyncio.timeout(PATIENCE_S):
                while sleeps(rank):
                    await asyncio.sleep(0.05)
    assert (lost.run_id, lost.kind) == ("job-a.0.1", run_pb2.RUN_FAILURE_KIND_AGENT_RESTARTED)
    started = {item.id for item in stack.bus.seen if isinstance(item.data, run_pb2.RunStarted)}
    assert len(started) == 1, "sent again at most under the same id"


async def test_a_cloud_without_contact_for_its_lease_ends_its_runs_itself(
    start_cloud: StartCloud, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    port = free_port("broker")
    spec = ProcessSpec(
        name="broker",
        argv=(sys.executable, "-m", "meridian.embedded.broker", "--port", str(port), "--data-dir", f"{tmp_path}/log"),
        cwd=ROOT,
        log_path=tmp_path / "broker.log",
        ready=tcp_accepts("127.0.0.1", port),
    )
    address = f"127.0.0.1:{port}"
    with ExitStack() as life:
        with running(spec):
            await ensure_topics(address)
            life.enter_context(start_cloud(address, PARTNER_LEASE_S="9"))
            async with probe(address) as bus:
                await joined(bus)
                await bus.publish(order("job-a", 1, ["sh", "-c", f"echo $$ > {marks}; exec sleep 600"]))
                await bus.expect(run_pb2.RunStarted)
                await _written(bus, marks)
            rank = Path(f"/proc/{marks.read_text().strip()}")
        async with asyncio.timeout(PATIENCE_S):
            while sleeps(rank):
                await asyncio.sleep(0.05)
        with running(spec):
            async with probe(address) as bus:
                lost = await bus.expect(run_pb2.RunFailed)
            life.close()
    assert (lost.run_id, lost.kind) == ("job-a.0.1", run_pb2.RUN_FAILURE_KIND_LEASE_EXPIRED)


@asynccontextmanager
async def probe(address: str) -> AsyncIterator[Probe]:
    bus = Probe(address)
    await bus.start()
    try:
        yield bus
    finally:
        await bus.stop()


async def _written(bus: Probe, path: Path) -> None:
    """Until a program has written its number, and is the `sleep` that it becomes then."""
    count = len(bus.events(resource_pb2.Heartbeat))
    while (
        not path.exists()
        or not path.read_text().endswith("\n")
        or not sleeps(Path(f"/proc/{path.read_text().strip()}"))
    ):
        count += 1
        await bus.expect(resource_pb2.Heartbeat, count=count)


async def lines(path: Path, count: int) -> None:
    """Until programs, which only have been started when that is told, have written so many lines."""
    async with asyncio.timeout(PATIENCE_S):
        while not path.exists() or path.read_text().count("\n") < count:
            await asyncio.sleep(0.05)


def sleeps(process: Path) -> bool:
    """Whether this process (its directory in /proc) is there and has not ended."""
    try:
        return b"sleep" in (process / "cmdline").read_bytes()
    except OSError:
        return False
