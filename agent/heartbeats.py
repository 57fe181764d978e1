"""Heartbeats of the agent and its nodes, several times a second; their acknowledgements keep the lease."""

from __future__ import annotations

import asyncio
import logging
import math

from aiokafka.errors import KafkaError

from agent import contract_messages
from agent.bus_clients import TOO_LARGE, Producer
from agent.engines.base import Engine
from agent.lease import Lease
from agent.settings import AgentSettings
from meridian.clock import Clock

_log = logging.getLogger(__name__)

MAX_UNANSWERED = 10
SAY_AGAIN_S = 60.0
"""So often it is told that heartbeats are too large."""
SUSPECTED_AFTER_S = 1.0
"""A node that is silent for so long is suspected, unless failover is set otherwise (`MERIDIAN_FAILOVER_SUSPECT_AFTER_S`)."""


class Heartbeats:
    """Sends heartbeats, and ends the runs when nobody hears them any more."""

    def __init__(
        self,
        settings: AgentSettings,
        engine: Engine,
        producer: Producer,
        lease: Lease,
        clock: Clock,
        *,
        incarnation: int,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._producer = producer
        self._lease = lease
        self._clock = clock
        self._incarnation = incarnation
        self._sequence = 0
        self._said_at_s = -math.inf
        self._unanswered: set[asyncio.Task[None]] = set()
        self.agent_id = ""
        self.first_heard = asyncio.Event()

    async def run(self) -> None:
        """Beat until cancelled."""
        interval_s = 1 / self._settings.heartbeat_hz
        if 2 * interval_s > SUSPECTED_AFTER_S:
            _log.warning(
                "heartbeat_hz: with %g heartbeats a second failover, as it is set by default, suspects every node whenever one is"
                " late or lost; at least %g are needed, or a longer MERIDIAN_FAILOVER_SUSPECT_AFTER_S",
                self._settings.heartbeat_hz,
                2 / SUSPECTED_AFTER_S,
            )
        next_s = self._clock.monotonic_s()
        while True:
            if len(self._unanswered) < MAX_UNANSWERED:
                task = asyncio.get_running_loop().create_task(self._beat())
                self._unanswered.add(task)
                task.add_done_callback(self._unanswered.discard)
            if self._lease.runs_out(self._clock.monotonic_s()):
                _log.error("no contact to the bus for the lease: ending all runs")
                await self._engine.lease_lost()
            next_s = max(next_s + interval_s, self._clock.monotonic_s())
            await asyncio.sleep(next_s - self._clock.monotonic_s())

    async def _beat(self) -> None:
        self._sequence += 1
        now, sent_at_s = self._clock.now(), self._clock.monotonic_s()
        message = contract_messages.heartbeat(
            settings=self._settings,
            agent_id=self.agent_id,
            incarnation=self._incarnation,
            sequence=self._sequence,
            nodes=self._engine.nodes(),
            now=now,
        )
        try:
            sent = await self._producer.send(message, event_id=f"{self._incarnation}-{self._sequence}", time=now)
            await sent
        except TOO_LARGE:
            self._say_too_large(len(message.nodes))
            return
        except KafkaError as error:
            _log.debug("heartbeat lost: %s", error)
            return
        self.first_heard.set()
        self._engine.in_contact()
        if self._lease.acknowledged(sent_at_s, self._clock.monotonic_s()):
            _log.warning("contact to the bus regained")
            self._engine.lease_regained()

    def _say_too_large(self, nodes: int) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._said_at_s >= SAY_AGAIN_S:
            self._said_at_s = now_s
            _log.error("heartbeats of %d nodes are larger than their topic takes: divide the domain", nodes)
