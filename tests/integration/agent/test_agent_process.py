"""The whole agent as a process, on the embedded broker: reports, heartbeats, orders, crashes, outages, its HTTP side."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import httpx
import pytest

from meridian.contracts.resource.v1.resource_pb2 import (
    NODE_PROCESS_STATE_EXITED,
    NODE_PROCESS_STATE_RUNNING,
    Heartbeat,
    ResourceReported,
)
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import RunCheckpointed, RunFailed, RunFinished, RunProgress, RunStarted
from tests.fixtures_embedded import free_port
from tests.harness import PATIENCE_S, Probe, environment
from tests.integration.agent.agent_process import (
    DOMAIN,
    TOKEN,
    AgentProcess,
    agent_running,
    broker_at,
    configuration,
    order,
    probe_at,
    processes_of,
    short_directory,
    stop_order,
)

SLEEP = "import time; print('up'); time.sleep(600)"
AUTHORITY = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def directory() -> object:
    with short_directory() as path:
        yield path


@pytest.fixture
async def network(directory: Path) -> AsyncIterator[tuple[str, Probe]]:
    with broker_at(free_port("broker"), directory) as address:
        async with probe_at(address) as probe:
            yield address, probe


async def test_a_run_from_order_to_end(network: tuple[str, Probe], directory: Path) -> None:
    address, probe = network
    program = """
import json, os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
if os.environ["RANK"] == "0":
    path = os.environ["MERIDIAN_CHECKPOINT_DIR"] + "/step-7.npz"
    open(path, "w").write("12345")
    print("@meridian " + json.dumps({"progress": {"step": 7, "total_steps": 9, "metrics": {"loss": 0.5}}}))
    print("@meridian " + json.dumps({"checkpoint": {"step": 7, "path": path}}))
"""
    async with agent_running(configuration(directory, address), directory) as agent:
        print(f"agent ready after {agent.start_s:.2f} s")
        await probe.publish(order(program, nodes=("north-1", "north-2")))
        await probe.expect(RunFinished)
        started = await probe.expect(RunStarted)
        progress = await probe.expect(RunProgress)
        checkpoint = await probe.expect(RunCheckpointed)
        assert list(started.node_ids) == ["north-1", "north-2"]
        assert (started.run_id, started.job_id, started.epoch, started.domain_id) == ("job-1.0.1", "job-1", 1, DOMAIN)
        assert (progress.step, progress.total_steps, dict(progress.metrics)) == (7, 9, {"loss": 0.5})
        assert (checkpoint.step, checkpoint.size_bytes) == (7, 5)
        assert checkpoint.path == f"{directory}/agent/checkpoints/job-1/0/step-7.npz"
        async with agent.http(headers=AUTHORITY) as http:
            log = (await http.get("/logs/job-1.0.1", params={"rank": 1})).json()
            assert (log["text"], log["next_offset"], log["complete"]) == ("rank 1 of 2\n", 12, True)
            rest = (await http.get("/logs/job-1.0.1", params={"rank": 1, "offset": 7})).json()
            assert rest["text"] == "of 2\n"
            assert (await http.get("/logs/job-9")).status_code == 404
            assert (await http.get("/logs/job-1.0.1", params={"offset": "x"})).status_code == 422
            assert (await http.get("/logs/job-1.0.1", headers={"Authorization": "Bearer wrong"})).status_code == 401
            metrics = (await http.get("/metrics")).text
            assert 'meridian_agent_nodes{state="running"} 2.0' in metrics
            assert "meridian_agent_orders_total 1.0" in metrics
            assert (await http.get("/health/live")).status_code == 200
        assert await agent.stop() == 0


async def test_inventory_readings_and_heartbeats(network: tuple[str, Probe], directory: Path) -> None:
    address, probe = network
    async with agent_running(configuration(directory, address), directory) as agent:
        first = await probe.expect(ResourceReported)
        assert [node.node_id for node in first.inventory.nodes] == ["north-1", "north-2"]
        assert len(first.inventory.nodes[0].accelerators) == 4
        assert first.inventory.nodes[0].accelerators[3].index == 3
        assert first.inventory.nodes[0].accelerators[3].emulated
        assert first.inventory.agent_url == agent.url
        assert first.inventory.links[0].to_domain_id == "south"
        assert all(reading.HasField("value") or reading.reason for reading in first.readings)
        await probe.publish(order(SLEEP))
        await probe.expect(RunStarted)

        def shows_use(report: ResourceReported) -> bool:
            return any(
                item.metric == "cpn.compute.capacity_free"
                and (item.node_id, item.accelerator_index, item.value) == ("north-1", 0, 0)
                for item in report.readings
            )

        await probe.expect(ResourceReported, shows_use)
        began = len(probe.events(Heartbeat))
        await probe.expect(Heartbeat, count=began + 11)
        beats = probe.events(Heartbeat)[began:]
        assert [beat.sequence for beat in beats] == list(range(beats[0].sequence, beats[0].sequence + len(beats)))
        # Five in a second, as they say; how far apart they are in truth is the machine's affair, see the unit tests.
        assert {beat.interval_s for beat in beats} == {0.2}

        def shows_the_run(beat: Heartbeat) -> bool:
            return all(node.state == NODE_PROCESS_STATE_RUNNING and node.age_s < 0.5 for node in beat.nodes) and [
                list(node.run_ids) for node in beat.nodes
            ] == [["job-1.0.1"], []]

        beat = await probe.expect(Heartbeat, shows_the_run)
        assert [node.node_id for node in beat.nodes] == ["north-1", "north-2"]
        assert beat.lease_s == 120


async def test_a_killed_machine_is_on_the_bus_by_its_end(network: tuple[str, Probe], directory: Path) -> None:
    address, probe = network
    # Neither a silence nor a lease nor a report of everything can tell of it here; and it stays away until a heartbeat says so.
    patient = configuration(directory, address, lease_s=3600.0, report_interval_s=3600.0, restart_after_s=8.0)
    async with agent_running(patient, directory) as agent:
        await probe.publish(order(SLEEP, nodes=("north-1", "north-2")))
        await probe.expect(RunStarted)
        before = (await probe.expect(Heartbeat, lambda beat: len(beat.nodes) == 2)).nodes
        async with agent.http() as http:
            assert (await http.post("/nodes/north-2/kill")).status_code == 401
            assert (await http.post("/nodes/north-9/kill", headers=AUTHORITY)).status_code == 404
            killed_at = time.monotonic()
            assert (await http.post("/nodes/north-2/kill", headers=AUTHORITY)).status_code == 202
        failed = await probe.expect(RunFailed)
        took_s = time.monotonic() - killed_at
        await probe.expect(Heartbeat, lambda beat: beat.nodes[1].state == NODE_PROCESS_STATE_EXITED)
        print(f"loss of the node on the bus after {took_s * 1000:.0f} ms")
        assert (failed.kind, failed.node_id) == (run_pb2.RUN_FAILURE_KIND_NODE_LOST, "north-2")
        assert processes_of("job-1.0.1") == []
        again = await probe.expect(
            Heartbeat,
            lambda beat: (
                beat.nodes[1].incarnation > before[1].incarnation and beat.nodes[1].state == NODE_PROCESS_STATE_RUNNING
            ),
        )
        assert again.nodes[0].incarnation == before[0].incarnation


async def test_a_killed_agent_goes_on_where_it_was(network: tuple[str, Probe], directory: Path) -> None:
    address, probe = network
    settings = configuration(directory, address)
    async with agent_running(settings, directory) as agent:
        await probe.publish(order(SLEEP))
        await probe.expect(RunStarted)
        await agent.kill()
        await probe.publish(
            order("print('meanwhile')", job_id="job-2"), order(SLEEP, job_id="job-3"), stop_order(job_id="job-3")
        )
        await agent.start()
        print(f"agent back after {agent.start_s:.2f} s")
        failed = await probe.expect(RunFailed, lambda event: event.job_id == "job-1")
        assert failed.kind == run_pb2.RUN_FAILURE_KIND_AGENT_RESTARTED
        assert processes_of("job-1.0.1") == []
        await probe.expect(RunFinished, lambda event: event.job_id == "job-2")
        stopped = await probe.expect(RunFailed, lambda event: event.job_id == "job-3")
        assert stopped.kind == run_pb2.RUN_FAILURE_KIND_STOPPED
        assert not probe.events(RunStarted, lambda event: event.job_id == "job-3"), (
            "it was stopped before it came to it"
        )
        await probe.publish(order("print('twice')"))
        await probe.publish(order("print('next')", epoch=2))
        await probe.expect(RunFinished, lambda event: event.run_id == "job-1.0.2")
        starts = probe.events(RunStarted, lambda event: event.run_id == "job-1.0.1")
        assert len({start.at.ToNanoseconds() for start in starts}) == 1, "told again at most, never started again"
        first = probe.events(ResourceReported)[0].incarnation
        await probe.expect(ResourceReported, lambda report: report.incarnation > first)
        incarnations = [report.incarnation for report in probe.events(ResourceReported)]
        assert incarnations == sorted(incarnations)
        assert len(set(incarnations)) == 2


async def test_old_orders_foreign_orders_and_nonsense(network: tuple[str, Probe], directory: Path) -> None:
    address, probe = network
    old = order(SLEEP, job_id="job-old")
    await probe.publish(order("print('before the first start')", job_id="job-before"))
    async with agent_running(configuration(directory, address), directory):
        old.assigned_at.FromDatetime(datetime.now(UTC) - timedelta(minutes=5))
        foreign = order(SLEEP, job_id="job-foreign")
        foreign.domain_id = "south"
        bad = order("pass", job_id="job-bad", working_dir="relative/path")
        topic = "meridian.run.assignments.v1"
        await probe.publish_raw(topic, b"\xff\xff", [("ce_id", b"1")], key=DOMAIN.encode())
        await probe.publish(old, foreign, bad, order("print('good')"))
        await probe.expect(RunFinished)
        refused = await probe.expect(RunFailed, lambda event: event.job_id == "job-old")
        assert refused.kind == run_pb2.RUN_FAILURE_KIND_REFUSED
        unfit = await probe.expect(RunFailed, lambda event: event.job_id == "job-bad")
        assert unfit.kind == run_pb2.RUN_FAILURE_KIND_NOT_STARTABLE
        assert "/working_dir" in unfit.reason
        letter = await probe.expect_dead_letter()
        assert dict(letter.headers)["x-dlq-consumer"] == b"agent.north"
        assert {event.job_id for event in probe.events(RunStarted)} == {"job-1"}


# Of this lease eight seconds are left to the agent without the bus, and to its nodes without the agent.
LEASE_S = 10


async def ended_by_themselves(run_id: str) -> float:
    """Wait until nothing of a run lives; how long that took (s)."""
    began = time.monotonic()
    async with asyncio.timeout(PATIENCE_S):
        while processes_of(run_id):
            await asyncio.sleep(0.05)
    return time.monotonic() - began


async def until_one_runs(probe: Probe) -> None:
    """Order the unit anew until a run of it finishes: an order that comes before the lease is held again is refused."""
    async with asyncio.timeout(PATIENCE_S):
        for epoch in count(2):
            await probe.publish(order("pass", epoch=epoch))
            run_id = f"job-1.0.{epoch}"
            while not (finished := probe.events(RunFinished, lambda event, run_id=run_id: event.run_id == run_id)):
                if probe.events(RunFailed, lambda event, run_id=run_id: event.run_id == run_id):
                    break
                await asyncio.sleep(0.05)
            if finished:
                return


async def test_without_the_bus_the_runs_end_at_the_lease_and_the_news_is_kept(directory: Path) -> None:
    port = free_port("broker")
    settings = configuration(directory, f"127.0.0.1:{port}", lease_s=LEASE_S)
    async with contextlib.AsyncExitStack() as cleanup:
        with broker_at(port, directory) as address:
            async with probe_at(address) as probe:
                agent = await cleanup.enter_async_context(agent_running(settings, directory))
                await probe.publish(order(SLEEP))
                await probe.expect(RunStarted)
        ended_s = await ended_by_themselves("job-1.0.1")
        print(f"runs ended {ended_s:.1f} s after the bus was gone, lease {LEASE_S} s")
        with broker_at(port, directory) as address:
            async with probe_at(address) as probe:
                failed = await probe.expect(RunFailed)
                assert failed.kind == run_pb2.RUN_FAILURE_KIND_LEASE_EXPIRED
                await until_one_runs(probe)
                await agent.stop()


async def test_a_hung_agent_loses_its_runs(network: tuple[str, Probe], directory: Path) -> None:
    address, probe = network
    async with agent_running(configuration(directory, address, lease_s=LEASE_S), directory) as agent:
        await probe.publish(order(SLEEP))
        await probe.expect(RunStarted)
        assert agent.process is not None
        os.kill(agent.process.pid, signal.SIGSTOP)
        ended_s = await ended_by_themselves("job-1.0.1")
        print(f"its nodes ended them after {ended_s:.1f} s, lease {LEASE_S} s")
        os.kill(agent.process.pid, signal.SIGCONT)
        failed = await probe.expect(RunFailed)
        assert failed.kind in {run_pb2.RUN_FAILURE_KIND_NODE_LOST, run_pb2.RUN_FAILURE_KIND_LEASE_EXPIRED}


async def test_a_stopped_agent_reports_its_runs_and_leaves_nothing(network: tuple[str, Probe], directory: Path) -> None:
    address, probe = network
    async with agent_running(configuration(directory, address), directory) as agent:
        await probe.publish(order(SLEEP))
        await probe.expect(RunStarted)
        nodes = agent.node_pids()
        assert len(nodes) == 2
        assert await agent.stop() == 0
        failed = await probe.expect(RunFailed)
        assert failed.kind == run_pb2.RUN_FAILURE_KIND_AGENT_RESTARTED
        assert processes_of("job-1.0.1") == []
        assert not any(Path(f"/proc/{pid}").exists() for pid in nodes)


async def test_registration_with_the_identity_service(database_url: str, directory: Path) -> None:
    bootstrap = directory / "bootstrap.json"
    bootstrap.write_text(json.dumps({"join_tokens": [TOKEN], "clients": []}))
    async with environment(database_url) as stack:
        settings = configuration(directory, stack.bootstrap_servers)
        async with stack.service("identity", env={"MERIDIAN_IDENTITY_BOOTSTRAP_FILE": str(bootstrap)}) as identity:
            settings["identity_url"] = identity.base_url
            async with agent_running(settings, directory) as agent:
                report = await stack.bus.expect(ResourceReported)
                nodes = report.inventory.nodes
                assert all(len(node.compute_id) == 26 for node in nodes)
                assert all(len(item.compute_id) == 26 for node in nodes for item in node.accelerators)
                beat = await stack.bus.expect(Heartbeat)
                assert beat.agent_id == report.agent_id != f"agent-{DOMAIN}"
                assert (directory / "agent/identity/agent.key").stat().st_mode & 0o777 == 0o600
                await agent.stop()
        # The identity service is away now: what was certified is enough.
        async with agent_running(settings, directory):
            again = await stack.bus.expect(ResourceReported, lambda event: event.incarnation > report.incarnation)
            assert again.agent_id == report.agent_id
            assert [node.compute_id for node in again.inventory.nodes] == [node.compute_id for node in nodes]


async def test_an_agent_waits_for_its_identity(network: tuple[str, Probe], directory: Path) -> None:
    address, probe = network
    settings = configuration(directory, address, identity_url=f"http://127.0.0.1:{free_port('identity')}")
    async with (
        agent_running(settings, directory, until_ready=False) as agent,
        agent.http() as http,
    ):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    answer = await http.get("/health/ready")
                    if "identity" in answer.text:
                        break
                await asyncio.sleep(0.05)
        assert answer.status_code == 503
        assert (await http.get("/health/live")).status_code == 200
        assert not probe.events(ResourceReported)
        assert await agent.stop() == 0


async def test_a_wrong_configuration_is_refused_with_its_field(directory: Path) -> None:
    settings = configuration(directory, "127.0.0.1:1")
    settings["domain"]["nodes"][1]["node_id"] = "../evil"
    settings["lease"] = 3
    agent = AgentProcess(settings, directory)
    await agent.start(until_ready=False)
    assert agent.process is not None
    assert await agent.process.wait() == 2
    said = agent.log_path.read_text()
    assert "domain.nodes.1.node_id" in said
    assert "lease: Extra inputs" in said
