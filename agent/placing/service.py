"""Reads what shards of the scheduler ask of this domain, has it answered, and says the answers; a part of the agent.

The position among the requests stands in the journal with what the requests changed; some are handled side by side, and it is
that before which all were. An answer is sent again until the broker has it, under an id that the repetition keeps; what everybody
is told of the domain may be lost, newer words follow.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from agent.bus_clients import AGAIN_S, METADATA_MAX_AGE_MS, TOO_LARGE, Producer, fetched, until_taken
from agent.engines.own_scheduler import OwnScheduler
from agent.partitions import AllPartitions
from agent.placing.answering import Answering
from agent.placing.grant_book import GrantBook
from agent.placing.side_by_side import SideBySide
from agent.placing.soundness import why_unsound
from agent.settings import AgentSettings
from meridian.catalogue import catalogue
from meridian.clock import Clock
from meridian.codec import decode
from meridian.contracts.run.v1.run_pb2 import Assignment
from meridian.contracts.scheduler.v1.scheduler_pb2 import PlacementRequest
from meridian.errors import ContractError

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""So often the room is looked at though nobody asks: nodes come and go."""
OFFER_AGAIN_S = 60.0
"""So often what was refused may be asked for again though nothing has changed that the room shows."""
_WHAT = "requests of shards"


class Placing:
    """See the module. ``sender`` names the agent's journal in the ids of answers; ``at_once`` requests are handled side by side."""

    def __init__(
        self,
        settings: AgentSettings,
        scheduler: OwnScheduler,
        producer: Producer,
        clock: Clock,
        *,
        incarnation: int,
        sender: str,
        at_once: int = 1,
    ) -> None:
        domain = settings.domain
        self._domain_id = domain.domain_id
        self._scheduler = scheduler
        self._producer, self._clock, self._sender = producer, clock, sender
        self._incarnation = incarnation
        self.book = GrantBook(settings.data_dir / "grants")
        self.answering = Answering(domain.domain_id, incarnation, self.book, scheduler, emulated=domain.emulated)
        self._topic = catalogue().event_of(PlacementRequest()).topic
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=settings.kafka_bootstrap_servers,
            client_id=f"agent-{self._domain_id}-placing",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
        )
        self._partitions = AllPartitions(self._topic.name, self._consumer, producer)
        self._told = 0
        self._at_once = at_once
        self._handled = asyncio.Event()

    def why_refused(self, order: Assignment) -> str:
        """Why a START is not carried out; empty: it may be."""
        return self.answering.why_refused(order)

    async def start(self) -> None:
        """Take up what was given away and the position; waits for the broker."""
        self.book.open()
        await self.answering.restore()
        await until_taken(self._consumer.start, _WHAT)
        await until_taken(self._take_position, _WHAT)

    async def stop(self) -> None:
        """Leave the bus."""
        await self._consumer.stop()
        await self.book.close()

    async def run(self) -> None:
        """Answer until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._scheduler.run())
            # What was given away before the agent started is told before anything else changes it.
            await self._say()
            group.create_task(self._say_what_is_new())
            group.create_task(self._take_requests(SideBySide(group, self._at_once)))

    async def _take_requests(self, work: SideBySide) -> None:
        while True:
            found = await fetched(self._consumer, LOOK_EVERY_S, _WHAT)
            if found is None:
                continue
            for partition, records in found.items():
                for record in records:
                    asked = await self._read(record)
                    if asked is not None:
                        request, event = asked
                        place = partition.partition, record.offset
                        self.answering.received(*place)
                        await work.add(self.answering.concerns(request), partial(self._handle, request, event, *place))
            try:
                await self._write_down(await self._partitions.take_added())
            except KafkaError as error:
                _log.warning("%s: partitions are not known: %r", _WHAT, error)

    async def _handle(self, request: PlacementRequest, event: str, partition: int, offset: int) -> None:
        await self.answering.handle(request, event, partition, offset)
        self._handled.set()

    async def _say_what_is_new(self) -> None:
        loop = asyncio.get_running_loop()
        offered_s = loop.time()
        while True:
            self._handled.clear()
            if loop.time() > offered_s + OFFER_AGAIN_S:
                offered_s = loop.time()
                self.answering.offer_again()
            await self._say()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._handled.wait()

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def _say(self) -> None:
        """Send the answers that stand in the journal, and what everybody is told when it is new."""
        changed = self.answering.look()
        await self.book.durable()
        while self.book.unanswered:
            number = min(self.book.unanswered)
            try:
                sent = await self._producer.send(
                    self.book.unanswered[number],
                    event_id=f"{self._sender}-answer-{number}",
                    time=self._clock.now(),
                )
                await sent
            except TOO_LARGE as error:
                _log.error("an answer to a shard is larger than its topic takes, and cut: %s", error)
                if self.answering.too_large(number):
                    await self.book.durable()
                    continue
            except KafkaError as error:
                _log.warning("answer to a shard not sent: %s", error)
                await asyncio.sleep(AGAIN_S)
                continue
            self.book.write([self.book.answered(number)])
        if changed:
            await self._tell_everybody()

    async def _tell_everybody(self) -> None:
        message = self.answering.summary()
        message.at.FromDatetime(self._clock.now())
        self._told += 1
        event_id = f"{self._sender}-summary-{self._incarnation}-{self._told}"
        try:
            await (await self._producer.send(message, event_id=event_id, time=self._clock.now()))
        except KafkaError as error:
            _log.warning("summary not sent: %s", error)

    async def _take_position(self) -> None:
        known = await self._partitions.known()
        positions = self.book.positions
        kept = {item: positions[item.partition] + 1 for item in known if item.partition in positions}
        new = await self._partitions.starts(known, kept)
        self._partitions.read_from(kept | new)
        await self._write_down(new)

    async def _write_down(self, starts: Mapping[TopicPartition, int]) -> None:
        """Where partitions begin of which the journal has no position."""
        if starts:
            self.book.write([self.book.position(item.partition, offset - 1) for item, offset in starts.items()])
            await self.book.durable()

    async def _read(self, record: ConsumerRecord[Any, Any]) -> tuple[PlacementRequest, str] | None:
        """A request to this domain and the name of its event."""
        if record.key is not None and record.key != self._domain_id.encode():
            return None
        try:
            envelope = decode(record.value, record.headers)
        except ContractError as error:
            await self._producer.set_aside(record, consumer=f"agent.{self._domain_id}", reason=error.detail)
            return None
        request = envelope.data
        if not isinstance(request, PlacementRequest) or request.domain_id != self._domain_id:
            return None
        wrong = why_unsound(request)
        if wrong:
            await self._producer.set_aside(record, consumer=f"agent.{self._domain_id}", reason=wrong)
            return None
        return request, f"{envelope.source} {envelope.id}"
