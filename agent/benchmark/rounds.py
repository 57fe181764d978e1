"""Probe runs that the agent makes by itself: now and then, on idle nodes, and gone as soon as work comes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from aiokafka.errors import KafkaError
from google.protobuf.message import Message

from agent.benchmark.idleness import all_idle, device_order, due_node, left_out
from agent.bus_clients import Producer
from agent.engines.base import Engine
from agent.kept_file import keep
from agent.parts import Divided
from agent.settings import AgentSettings
from meridian.clock import Clock
from meridian.contracts.telemetry.v1.telemetry_pb2 import ProbeReported

_log = logging.getLogger(__name__)

_LOOK_S = 1.0
# Work that was placed waits no longer than this for a probe to end.
_GIVE_WAY_S = 0.1


class ProbeRounds:
    """Measures one node after the other, each at most once in the interval, as long as nothing runs.

    When each was measured lies in ``data_dir/probe-rounds.json``, so that a restart does not measure again.
    """

    def __init__(
        self,
        settings: AgentSettings,
        engine: Engine,
        producer: Producer,
        clock: Clock,
        divided: Callable[[], Divided] = dict,
    ) -> None:
        """``divided``: accelerators that have parts now."""
        self._settings = settings
        self._divided = divided
        self._wanted = settings.benchmark
        self._engine = engine
        self._producer = producer
        self._clock = clock
        self._path = settings.data_dir / "probe-rounds.json"
        self._accelerators = {
            node.node_id: sum(group.count for group in node.accelerators) for node in settings.domain.nodes
        }
        self._measured_at_s, self._turns = _read(self._path)

    async def run(self) -> None:
        """Measure until cancelled."""
        idle_since_s: float | None = None
        while True:
            nodes, now_s = self._engine.nodes(), self._clock.monotonic_s()
            if not all_idle(nodes):
                idle_since_s = None
            elif idle_since_s is None:
                idle_since_s = now_s
            if idle_since_s is not None and now_s - idle_since_s >= self._wanted.idle_s:
                at_s = self._clock.now().timestamp()
                passed = left_out(self._engine.asleep(), self._divided())
                node_id = due_node(nodes, passed, self._measured_at_s, at_s, self._wanted.interval_s)
                if node_id is not None:
                    await self._measure(node_id)
            await asyncio.sleep(_LOOK_S)

    async def _measure(self, node_id: str) -> None:
        """Measure a node; a failure counts as measured, so that it is not repeated for ever, one that gave way does not."""
        found = await self._probe(node_id)
        if found is None:
            _log.info("the probe of node %s gave way to work", node_id)
            return
        self._measured_at_s[node_id] = self._clock.now().timestamp()
        self._turns[node_id] = self._turns.get(node_id, 0) + 1
        _write(self._path, self._measured_at_s, self._turns)
        if isinstance(found, str):
            _log.warning("node %s was not measured: %s", node_id, found)
            return
        message = probe_message(self._settings.domain.domain_id, node_id, found, self._wanted.chip)
        try:
            now = self._clock.now()
            await (await self._producer.send(message, event_id=found["run_id"], time=now))
        except KafkaError as error:
            _log.warning("probe of node %s not sent: %s", node_id, error)

    async def _probe(self, node_id: str) -> dict[str, Any] | str | None:
        """The result; the reason why there is none; None when it gave way."""
        wanted = self._wanted
        devices = device_order(self._accelerators.get(node_id, 0), self._turns.get(node_id, 0))
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))} if devices and wanted.device != "cpu" else {}
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "agent.benchmark",
                "--device", wanted.device, "--sizes", wanted.sizes, "--nice", str(wanted.nice),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                env=os.environ | visible, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return f"it cannot be started: {error.strerror or error}"
        answer = asyncio.create_task(_answer_of(process))
        work = asyncio.create_task(self._until_work())
        try:
            await asyncio.wait({answer, work}, timeout=wanted.deadline_s, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return None
            return answer.result() if answer.done() else f"it took longer than {wanted.deadline_s:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            work.cancel()
            answer.cancel()
            await asyncio.gather(work, answer, return_exceptions=True)
            await process.wait()

    async def _until_work(self) -> None:
        while True:
            if not all_idle(self._engine.nodes()):
                return
            await asyncio.sleep(_GIVE_WAY_S)


async def _answer_of(process: asyncio.subprocess.Process) -> dict[str, Any] | str:
    assert process.stdout is not None
    assert process.stderr is not None
    output, complaint = await asyncio.gather(process.stdout.read(), process.stderr.read())
    status = await process.wait()
    if status != 0:
        lines = complaint.decode(errors="replace").strip().splitlines()
        return f"status {status}: {lines[-1][:200] if lines else 'no word'}"
    try:
        found: dict[str, Any] = json.loads(output)
    except ValueError:
        return "its answer is no JSON"
    return found


def probe_message(domain_id: str, node_id: str, found: dict[str, Any], chip: str = "") -> Message:
    """The result of `agent.benchmark.program.body` as an event; ``chip`` stands before the name that the driver tells."""
    message = ProbeReported(
        domain_id=domain_id,
        node_id=node_id,
        run_id=found["run_id"],
        chip=chip or found["chip"],
        program=found["program"],
        software=found["software"],
    )
    for value in found["results"]:
        message.results.add(
            task=value["task"],
            # The contract leaves it empty where it does not apply.
            precision="" if value["precision"] == "unstated" else value["precision"],
            accelerators=1,
            throughput=value["throughput"],
            unit=value["unit"],
        )
    message.measured_at.FromDatetime(datetime.fromisoformat(found["measured_at"]))
    return message


def _read(path: Path) -> tuple[dict[str, float], dict[str, int]]:
    try:
        content = json.loads(path.read_text())
        times = {str(name): float(item["at_s"]) for name, item in content.items()}
        return times, {str(name): int(item["turns"]) for name, item in content.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}, {}


def _write(path: Path, measured_at_s: dict[str, float], turns: dict[str, int]) -> None:
    content = {name: {"at_s": at_s, "turns": turns.get(name, 0)} for name, at_s in measured_at_s.items()}
    keep(path, content)
