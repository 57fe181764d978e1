"""Publishes what the engine reports: each unit's reports in order, again until the broker has them, acknowledged to the journal after
that."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from operator import itemgetter

from aiokafka.errors import KafkaError
from google.protobuf.message import Message

from agent import contract_messages
from agent.bus_clients import TOO_LARGE, Producer
from agent.engines.base import Delivery, Engine, RunFailed, RunFinished
from meridian.codec import Record
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
        self.set_aside_count = 0

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
        """Send a batch; returns what is to be sent again, in order. A report goes when those of its unit before it were taken: what
        is handed over together may expire in part."""
        left: list[tuple[int, Delivery]] = []
        for turn in _turns(batch):
            stuck = {_unit(delivery) for _, delivery in left}
            left += [item for item in turn if _unit(item[1]) in stuck]
            left += await self._send_turn([item for item in turn if _unit(item[1]) not in stuck])
        return [delivery for _, delivery in sorted(left, key=itemgetter(0)) if delivery.number is not None]

    async def _send_turn(self, turn: list[tuple[int, Delivery]]) -> list[tuple[int, Delivery]]:
        """Send reports of different units together; returns those that were not taken."""
        sent: list[tuple[tuple[int, Delivery], asyncio.Future[object] | None]] = []
        left: list[tuple[int, Delivery]] = []
        for number, item in enumerate(turn):
            event = item[1].event
            try:
                sent.append((item, await self._hand_over(item[1])))
            except TOO_LARGE as error:
                sent.append((item, _failed(error)))
            except KafkaError as error:
                _log.warning("report of run %s not sent: %s", event.run_id, error)
                left = turn[number:]
                break
            except ContractError as error:
                _log.error("report of run %r cannot be sent: %s", event.run_id, error.detail)
                sent.append((item, None))
        for item, future in sent:
            try:
                if future is not None:
                    await self._taken(item[1], future)
            except KafkaError as error:
                _log.warning("report of run %s not sent: %s", item[1].event.run_id, error)
                left.append(item)
            else:
                self._done(item[1])
        return left

    async def _taken(self, delivery: Delivery, future: asyncio.Future[object]) -> None:
        """Wait until the bus has a report; one that its topic does not take for its size is cut, or set aside."""
        try:
            await future
        except TOO_LARGE as error:
            message = contract_messages.run_event(delivery.event, self._domain_id)
            assert message is not None
            if contract_messages.cut_to_size(message):
                _log.error("report of run %s is cut: %s", delivery.event.run_id, error)
                await (await self._producer.send_record(self._record(delivery, message)))
                return
            await self._producer.set_aside_own(
                self._record(delivery, message),
                consumer=f"agent.{self._domain_id}",
                reason="a report of a run is larger than its topic takes",
            )
            self.set_aside_count += 1

    async def _hand_over(self, delivery: Delivery) -> asyncio.Future[object] | None:
        message = contract_messages.run_event(delivery.event, self._domain_id)
        return None if message is None else await self._producer.send_record(self._record(delivery, message))

    def _record(self, delivery: Delivery, message: Message) -> Record:
        event = delivery.event
        event_id = self._new_id("event") if delivery.number is None else f"{self._sender}-{delivery.number}"
        traceparent = self.traces.get(event.run_id, "")
        return self._producer.record(message, event_id=event_id, time=event.at, traceparent=traceparent)

    def _done(self, delivery: Delivery) -> None:
        self.published_count += 1
        if delivery.number is not None:
            self._engine.acknowledge(delivery.number)
        if isinstance(delivery.event, RunFailed | RunFinished):
            self.traces.pop(delivery.event.run_id, None)


def _failed(error: KafkaError) -> asyncio.Future[object]:
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


def _unit(delivery: Delivery) -> tuple[str, int]:
    return delivery.event.job_id, delivery.event.unit_index


def _turns(batch: list[Delivery]) -> list[list[tuple[int, Delivery]]]:
    """The first report of each unit, the second of each, and so on, each with its place in the batch."""
    turns: list[list[tuple[int, Delivery]]] = []
    begun: Counter[tuple[str, int]] = Counter()
    for item in enumerate(batch):
        unit = _unit(item[1])
        if begun[unit] == len(turns):
            turns.append([])
        turns[begun[unit]].append(item)
        begun[unit] += 1
    return turns
