"""An agent measures its idle nodes by itself: the results stand in the index, and a probe gives way to work."""

from __future__ import annotations

import asyncio
from pathlib import Path

from meridian.contracts.run.v1.run_pb2 import RunFinished
from meridian.contracts.telemetry.v1.telemetry_pb2 import ProbeReported
from tests.fixtures_embedded import free_port
from tests.harness import PATIENCE_S, environment
from tests.integration.agent.agent_process import (
    AgentProcess,
    agent_running,
    broker_at,
    configuration,
    order,
    probe_at,
    short_directory,
)


async def test_results_of_idle_nodes_enter_the_fit_once(database_url: str) -> None:
    wanted = {"enabled": True, "idle_s": 0, "sizes": "tiny", "device": "cpu", "chip": "NVIDIA L40S"}
    async with environment(database_url) as stack, stack.service("telemetry") as telemetry:
        with short_directory() as directory:
            settings = configuration(directory, stack.bootstrap_servers, benchmark=wanted)
            async with agent_running(settings, directory):
                await stack.bus.expect(ProbeReported, count=2)
            events = stack.bus.events(ProbeReported)
            assert sorted(event.node_id for event in events) == ["north-1", "north-2"]
            params = {"chip": "NVIDIA L40S", "task": "gemm", "precision": "fp32"}
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    (entry,) = (await telemetry.http.get("/v1/index", params=params)).json()["items"]
                    found = [
                        item for item in entry["evidence"] if (item["task"], item["precision"]) == ("gemm", "fp32")
                    ]
                    if len(found) == 2:
                        break
                    await asyncio.sleep(0.05)
            sent = {event.results[0].throughput for event in events}
            assert {item["throughput"] for item in found} == sent
            assert {(item["source"], item["origin"]) for item in found} == {("agent of domain north", "probe")}
            assert entry["basis"] == "this chip measured on this task and precision"
            # A restart within the interval measures nothing again: the record of the agent is as it was.
            record = (directory / "agent" / "probe-rounds.json").read_text()
            async with agent_running(settings, directory) as agent:
                assert probes_of(agent) == []
            assert (directory / "agent" / "probe-rounds.json").read_text() == record


def probes_of(agent: AgentProcess) -> list[int]:
    """Processes in which the agent measures."""
    assert agent.process is not None
    children = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"agent.benchmark" in command_of(pid)]


def command_of(pid: str) -> bytes:
    """The command line of a process; nothing of one that has gone meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


async def until_probes(agent: AgentProcess, running: bool) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while bool(probes_of(agent)) is not running:
            await asyncio.sleep(0.01)


async def test_a_probe_gives_way_to_work(tmp_path: Path) -> None:
    with short_directory() as directory, broker_at(free_port("broker"), directory) as address:
        async with probe_at(address) as bus:
            wanted = {"enabled": True, "idle_s": 0, "sizes": "full", "device": "cpu"}
            settings = configuration(directory, address, benchmark=wanted)
            async with agent_running(settings, directory) as agent:
                await until_probes(agent, running=True)
                go = tmp_path / "go"
                waiting = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
                await bus.publish(order(waiting))
                await until_probes(agent, running=False)
                go.touch()
                await bus.expect(RunFinished)
                # It did not count: the node is measured as soon as nothing runs.
                await until_probes(agent, running=True)
            assert bus.events(ProbeReported) == []
