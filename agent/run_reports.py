"""Publishes what the engine reports: in order, again until the broker has it, acknowledged to the journal after that."""

from __future__ import annotations

import asyncio
import logging

from aiokafka.errors import KafkaError

from agent import contract_messages
from agent.bus_clients import Producer
from agent.engines.base import Delivery, Engine, RunFailed, RunFinished
from meridian.errors import ContractError
from meridian.ids import NewId

_log = logging.getLogger(__name__)

BATCH = 256
FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 2.0


class RunReports:
    """``sender`` names this agent's journal: with the event's number it makes an id that a repetition keeps."""

    def __init__(self, engine: Engine, producer: Producer, domain_id: str, sender: str, new_id: NewId) -> None:
        self._engine = engine
        self._producer = producer
        self._domain_id = domain_id
        self._sender = sender
        self._new_id = new_id
        self._queue: asyncio.Queue[Delivery] = asyncio.Queue(2 * BATCH)
        self._progressed = asyncio.Condition()
        self.traces: dict[str, str] = {}
        self.published_count = 0

    async def run(self) -> None:
        """Publish until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read())
            group.create_task(self._publish())

    async def all_published(self) -> None:
        """Wait until nothing is left to publish."""
        async with self._progressed:
            await self._progressed.wait_for(lambda: not self._engine.unacknowledged())

    async def _read(self) -> None:
        async for delivery in self._engine.events():
            await self._queue.put(delivery)

    async def _publish(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            wait_s = FIRST_WAIT_S
            while batch := await self._send(batch):
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, LONGEST_WAIT_S)
            async with self._progressed:
                self._progressed.notify_all()

    async def _send(self, batch: list[Delivery]) -> list[Delivery]:
        """Send a batch; returns what is to be sent again, in order."""
        sent: list[tuple[Delivery, asyncio.Future[object] | None]] = []
        again: list[Delivery] = []
        for position, delivery in enumerate(batch):
            try:
                sent.append((delivery, await self._hand_over(delivery)))
            except KafkaError as error:
                _log.warning("report of run %s not sent: %s", delivery.event.run_id, error)
                again = batch[position:]
                break
            except ContractError as error:
                _log.error("report of run %r cannot be sent: %s", delivery.event.run_id, error.detail)
                sent.append((delivery, None))
        failed: list[Delivery] = []
        for delivery, future in sent:
            try:
                if future is not None:
                    await future
            except KafkaError as error:
                _log.warning("report of run %s not sent: %s", delivery.event.run_id, error)
                failed.append(delivery)
            else:
                self._done(delivery)
        return [delivery for delivery in (*failed, *again) if delivery.number is not None]

    async def _hand_over(self, delivery: Delivery) -> asyncio.Future[object] | None:
        event = delivery.event
        message = contract_messages.run_event(event, self._domain_id)
        if message is None:
            return None
        event_id = self._new_id("event") if delivery.number is None else f"{self._sender}-{delivery.number}"
        return await self._producer.send(
            message, event_id=event_id, time=event.at, traceparent=self.traces.get(event.run_id, "")
        )

    def _done(self, delivery: Delivery) -> None:
        self.published_count += 1
        if delivery.number is not None:
            self._engine.acknowledge(delivery.number)
        if isinstance(delivery.event, RunFailed | RunFinished):
            self.traces.pop(delivery.event.run_id, None)
