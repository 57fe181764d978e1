"""Runs on emulated machines: orders to node processes, their reports to events, with fencing by the run book."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.engines.base import (
    AdjustRequest,
    Delivery,
    EmulatedMachines,
    FailureKind,
    LaunchRequest,
    NodeState,
    NodeStatus,
    RankPlacement,
    RunFinished,
    RunFolders,
    RunStarted,
    RunState,
)
from agent.engines.launching import launch_message, write_share
from agent.engines.local import environment, leftovers
from agent.engines.local.gang import Cause, Gang, RankEnd, Turn
from agent.engines.local.node_link import NodeLink
from agent.engines.recorded_runs import RecordedRuns, Run, identity
from agent.node import wire
from agent.parts import Part
from agent.run_book import ProcessMark, RunBook, next_incarnation
from meridian.clock import Clock
from meridian.errors import NotFoundError
from meridian.hardware.parts import MAX_PARTS

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalEngineSettings(RunFolders):
    """How the local engine behaves. Times in seconds."""

    domain_id: str
    node_ids: tuple[str, ...]
    shared_dir: Path
    beat_s: float = 0.1
    agent_silence_s: float = 10.0
    restart_after_s: float = 15.0
    start_timeout_s: float = 20.0
    gang_grace_s: float = 1.0
    time_limit_grace_s: float = 5.0
    fence_silence_s: float = 3.0
    log_bytes: int = 16 * 1024 * 1024
    rank_nice: int = 5
    bound_address_space: bool = False
    # By node: the variable that tells a program which accelerators are its own (CUDA_VISIBLE_DEVICES and its like).
    device_variables: Mapping[str, str] = field(default_factory=dict)
    # Nodes whose accelerators are NVIDIA's, and by node the memory of its accelerators by index (0: unknown).
    mps_nodes: frozenset[str] = frozenset()
    device_memory_bytes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # Emulated nodes that sleep at the start, with their waking times.
    sleeping: Mapping[str, float] = field(default_factory=dict)
    can_sleep: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _ActiveRun(Run):
    pressing: bool = False


class LocalEngine(RecordedRuns[_ActiveRun], EmulatedMachines):
    """See ``Engine``; machines are node processes (``agent.node``)."""

    def __init__(self, settings: LocalEngineSettings, book: RunBook, clock: Clock) -> None:
        super().__init__(book, clock, settings.gang_grace_s)
        self._settings = settings
        self._links: dict[str, NodeLink] = {}
        self._asleep = dict(settings.sleeping)
        self._waking: set[str] = set()
        self._parts: Mapping[str, Mapping[int, Part]] = {}

    # --- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._tell_again()
        hit = await asyncio.to_thread(leftovers.end_leftovers, self._book)
        if hit:
            _log.warning("ended %d processes that an earlier agent left", hit)
        for run in list(self._book.begun.values()):
            self._emit(self._failed(run, Cause(FailureKind.AGENT_RESTARTED, "the agent was restarted")))
        for node_id in self._settings.node_ids:
            await self._start_node(node_id)
        async with asyncio.timeout(self._settings.start_timeout_s):
            for link in self._links.values():
                await link.settled.wait()
        self._spawn(self._keep_pinging())

    async def close(self) -> None:
        self._closing = True
        await self._stop_all(Cause(FailureKind.AGENT_RESTARTED, "the agent shuts down"))
        waiting = [run.ended for run in self._runs.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=self._settings.gang_grace_s + 2)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._links.values():
            if not link.gone:
                link.kill()
        for link in self._links.values():
            await link.lost.wait()
        await self._book.durable()

    # --- orders ----------------------------------------------------------------------------------------------------

    async def adjust(self, request: AdjustRequest) -> bool:
        if (request.run_id, request.epoch) not in self._runs:
            return False
        try:
            for placement in request.ranks:
                write_share(self._settings.log_path(request.run_id, placement.rank), placement)
        except OSError as error:
            _log.warning("the ranks of run %s have what they had of their accelerators: %s", request.run_id, error)
            return False
        return True

    async def wake(self, node_ids: Collection[str]) -> frozenset[str]:
        for node_id in sorted(set(node_ids) & self._asleep.keys() - self._waking):
            self._waking.add(node_id)
            self._spawn(self._wake_after(node_id, self._asleep[node_id]))
        return frozenset(self._waking)

    async def _wake_after(self, node_id: str, wake_s: float) -> None:
        await asyncio.sleep(wake_s)
        self._waking.discard(node_id)
        del self._asleep[node_id]
        self.power_changed.set()

    async def put_to_sleep(self, node_ids: Collection[str]) -> frozenset[str]:
        requests = [*(run.gang.request for run in self._runs.values()), *self._waiting.values()]
        needed = {placement.node_id for request in requests for placement in request.ranks}
        for node_id in sorted(set(node_ids) & self._settings.can_sleep.keys() - self._asleep.keys() - needed):
            self._asleep[node_id] = self._settings.can_sleep[node_id]
            self.power_changed.set()
        return frozenset(self._asleep.keys() & set(node_ids))

    def asleep(self) -> frozenset[str]:
        return frozenset(self._asleep)

    def know_parts(self, parts: Mapping[str, Mapping[int, Part]]) -> bool:
        self._parts = parts
        return True

    async def kill_node(self, node_id: str) -> None:
        link = self._links.get(node_id)
        if link is None:
            raise NotFoundError(f"no node {node_id!r} in this domain")
        if not link.gone:
            link.kill()

    # --- views -----------------------------------------------------------------------------------------------------

    def nodes(self) -> tuple[NodeStatus, ...]:
        runs_on: dict[str, list[str]] = {}
        accelerators_on: dict[str, set[int]] = {}
        for run in self._runs.values():
            for node_id in run.gang.live_nodes():
                runs_on.setdefault(node_id, []).append(run.gang.request.run_id)
            for placement in run.gang.request.ranks:
                accelerators_on.setdefault(placement.node_id, set()).update(placement.accelerator_indices)
        return tuple(
            NodeStatus(
                node_id,
                NodeState.EXITED if link.lost.is_set() else NodeState.RUNNING if link.ready else NodeState.STARTING,
                link.incarnation,
                link.silence_s(),
                tuple(runs_on.get(node_id, ())),
                frozenset(accelerators_on.get(node_id, ())),
            )
            for node_id, link in self._links.items()
        )

    # --- starting a run --------------------------------------------------------------------------------------------

    async def _start(self, request: LaunchRequest) -> None:
        cause = self._obstacle(request)
        if cause is None:
            try:
                for placement in request.ranks:
                    if placement.accelerator_indices and placement.accelerator_milli < 1000:
                        write_share(self._settings.log_path(request.run_id, placement.rank), placement)
            except OSError as error:
                cause = Cause(FailureKind.NOT_STARTABLE, str(error))
        if cause is not None:
            self._emit(self._failed(request, cause))
            return
        run = _ActiveRun(Gang(request))
        self._runs[run.key] = run
        for node_id in run.gang.node_ids:
            parts = self._parts.get(node_id)
            self._links[node_id].send(launch_message(self._settings, self._book.agent_mark, request, node_id, parts))

    def _obstacle(self, request: LaunchRequest) -> Cause | None:
        cause = self._why_not_now()
        if cause is not None:
            return cause
        for placement in request.ranks:
            link = self._links.get(placement.node_id)
            if link is None:
                reason = f"no node {placement.node_id!r} in this domain"
                return Cause(FailureKind.NOT_STARTABLE, reason, placement.rank, placement.node_id)
            if placement.node_id in self._asleep:
                reason = f"node {placement.node_id} is asleep"
                return Cause(FailureKind.NODE_LOST, reason, placement.rank, placement.node_id)
            if not link.ready:
                reason = f"node {placement.node_id} is not up"
                return Cause(FailureKind.NODE_LOST, reason, placement.rank, placement.node_id)
            gone = self._parts_gone(placement)
            if gone:
                reason = f"part {gone[0]} of an accelerator of node {placement.node_id} is not there any more"
                return Cause(FailureKind.REFUSED, reason, placement.rank, placement.node_id)
        return None

    def _parts_gone(self, placement: RankPlacement) -> list[int]:
        """Numbers beyond those of whole accelerators that are of no part which is known now."""
        known = self._parts.get(placement.node_id, {})
        whole = max(MAX_PARTS, len(self._settings.device_memory_bytes.get(placement.node_id, ())))
        limited = self._settings.device_variables.get(placement.node_id)
        return [index for index in placement.accelerator_indices if limited and index >= whole and index not in known]

    # --- ending a run ----------------------------------------------------------------------------------------------

    async def _stop_run(self, run: _ActiveRun, cause: Cause, grace_s: float) -> None:
        if run.gang.stop(cause.kind, cause.reason).stop_the_rest:
            self._order_stop(run, grace_s)

    def _order_stop(self, run: _ActiveRun, grace_s: float) -> None:
        for node_id in run.gang.live_nodes():
            self._links[node_id].send({"op": "stop", "run": run.key[0], "epoch": run.key[1], "grace_s": grace_s})
        if not run.pressing:
            run.pressing = True
            asyncio.get_running_loop().call_later(grace_s + 0.5, self._press, run)
        elif grace_s == 0:
            asyncio.get_running_loop().call_later(0.5, self._press, run)

    def _press(self, run: _ActiveRun) -> None:
        """A stop has not been carried out in time: order it again, and fence nodes that do not answer."""
        if run.gang.state is RunState.ENDED:
            return
        for node_id in run.gang.live_nodes():
            link = self._links[node_id]
            if link.silence_s() > self._settings.fence_silence_s:
                _log.warning(
                    "node %s does not answer; killing it to be sure that run %s has ended", node_id, run.key[0]
                )
                link.kill()
            else:
                link.send({"op": "stop", "run": run.key[0], "epoch": run.key[1], "grace_s": 0})
        asyncio.get_running_loop().call_later(0.5, self._press, run)

    def _take_turn(self, run: _ActiveRun, turn: Turn) -> None:
        request = run.gang.request
        if turn.started:
            self._emit(RunStarted(*identity(request), self._clock.now(), run.gang.node_ids))
        if turn.stop_the_rest:
            self._order_stop(run, self._settings.gang_grace_s)
        if turn.ended:
            del self._runs[run.key]
            if run.gang.cause is None:
                self._emit(RunFinished(*identity(request), self._clock.now()))
            else:
                self._emit(self._failed(request, run.gang.cause))
            run.ended.set_result(None)
            if not request.working_dir:
                with contextlib.suppress(OSError):  # it holds what the run left there
                    self._settings.own_work_dir(request.run_id).rmdir()

    # --- what nodes say --------------------------------------------------------------------------------------------

    def _heard(self, link: NodeLink, message: wire.Message) -> None:
        kind = message["ev"]
        run = self._runs.get((message["run"], message["epoch"])) if "run" in message else None
        if run is None:
            return
        gang = run.gang
        if kind == "progress":
            self._stream.put_progress(self._progress(gang.request, message))
        elif kind == "checkpoint":
            self._emit(self._checkpoint(gang.request, message))
        elif kind == "started":
            if message["start_ticks"] is not None:
                self._book.process_started(run.key, ProcessMark(message["pid"], message["start_ticks"]))
            self._take_turn(run, gang.rank_started(message["rank"]))
        elif kind == "start_failed":
            self._take_turn(run, gang.rank_not_started(message["rank"], message["error"]))
        elif kind == "exited":
            end = RankEnd(message["rank"], message["code"], message["signal"], message["why"], message["tail"])
            self.malformed_count += message["malformed_count"]
            self._stream.put(Delivery(None, self._rank_exited(gang, end, message)), None)
            self._take_turn(run, gang.rank_ended(end))

    # --- nodes -----------------------------------------------------------------------------------------------------

    async def _start_node(self, node_id: str) -> None:
        known = self._book.nodes.get(node_id)
        incarnation = next_incarnation(known.incarnation if known else 0, self._clock.now().timestamp())
        link = NodeLink(node_id, incarnation, self._heard, self._lost)
        before = self._links.get(node_id)
        self._links[node_id] = link
        try:
            await link.start(self._node_environment(), self._settings.beat_s, self._settings.agent_silence_s)
        except OSError:
            # There is no process: the node is as it was.
            if before is None:
                del self._links[node_id]
            else:
                self._links[node_id] = before
            raise
        self._book.node_started(node_id, link.incarnation, ProcessMark(*link.process_mark()))

    def _node_environment(self) -> dict[str, str]:
        return {**environment.base_environment(os.environ), environment.AGENT_MARK: self._book.agent_mark}

    def _lost(self, link: NodeLink, reason: str) -> None:
        for run in list(self._runs.values()):
            self._take_turn(run, run.gang.node_lost(link.node_id, reason))
        if not self._closing:
            _log.warning("%s; starting it again in %g s", reason, self._settings.restart_after_s)
            self._spawn(self._repair(link.node_id))

    async def _repair(self, node_id: str) -> None:
        while True:
            await asyncio.sleep(self._settings.restart_after_s)
            try:
                return await self._start_node(node_id)
            except OSError as error:
                _log.error("the process of node %s cannot be started: %s", node_id, error)

    async def _keep_pinging(self) -> None:
        while True:
            for link in self._links.values():
                link.send({"op": "ping"})
            await asyncio.sleep(min(1.0, self._settings.agent_silence_s / 5))
