"""The bus: FastStream over Kafka with the delivery rules of Meridian.

FastStream acknowledges first by default (at most once). Here every subscription is a batch with NACK_ON_ERROR, and:

1. A batch is decoded, but for events that do not concern the subscription (glance.py). What does not keep its contract
   goes to ``<topic>.dlq`` with the reason.
2. In one transaction the new events are claimed in the inbox, handled in order, and what the handlers publish goes to
   the outbox. Offsets are committed after it.
3. A passing error (database or bus away) repeats the batch until it works; the partition waits.
4. Any other error: the batch is rolled back and its events are handled one by one, each in a transaction of its own.
   One that fails three times goes to the dead-letter topic, in the transaction that claims it; the rest goes on.

`Liveness` watches progress, because a consumer can be alive and never come back to its group (aiokafka issue 1154).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, UnsupportedCodecError, for_code
from faststream import AckPolicy
from faststream.kafka import KafkaBroker
from google.protobuf.message import Message

from meridian.catalogue import TopicSpec, catalogue
from meridian.clock import Clock
from meridian.codec import Envelope, Record, decode
from meridian.database import is_passing
from meridian.errors import ContractError
from meridian.glance import Concern
from meridian.inbox import claim
from meridian.observability import BusMetrics, logged_as, traced
from meridian.outbox import Outbox, Transaction
from meridian.set_aside import DEFAULT_ROOM_BYTES, letter
from meridian.unreadable import install

log = logging.getLogger(__name__)
install()

Handler = Callable[[Transaction, Any], Awaitable[None]]
BatchHandler = Callable[[Transaction, Sequence[Envelope]], Awaitable[None]]
StreamHandler = Callable[[Sequence[Envelope]], Awaitable[None]]

ATTEMPTS = 3
_POISON_RETENTION_MS = 30 * 24 * 3600 * 1000


@dataclass(slots=True)
class Progress:
    """How far a subscription has come, for the liveness check."""

    consumer: str
    subscriber: Any
    moved_at: float
    positions: dict[TopicPartition, int]


async def ensure_topics(
    bootstrap_servers: str, specs: Sequence[TopicSpec] | None = None, *, replication: int = 1
) -> None:
    """Create the topics of the contracts and their dead-letter topics where they are missing, with so many copies."""
    specs = list(catalogue().topics.values()) if specs is None else specs
    wanted = [NewTopic(spec.name, spec.partitions, replication, topic_configs=spec.configs()) for spec in specs]
    wanted += [
        NewTopic(spec.dead_letter, 1, replication, topic_configs=spec.dead_letter_configs(_POISON_RETENTION_MS))
        for spec in specs
    ]
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await admin.start()
    try:
        existing = set(await admin.list_topics())
        missing = [topic for topic in wanted if topic.name not in existing]
        if not missing:
            return
        response = await admin.create_topics(missing)
        for topic, code, *_ in response.topic_errors:
            error = for_code(code)
            if code and error is not TopicAlreadyExistsError:
                raise error(f"topic {topic} could not be created")
    finally:
        await admin.close()


def _message_id(envelope: Envelope) -> str:
    # CloudEvents 1.0, section 3.1: source and id together are unique.
    return f"{envelope.source}|{envelope.id}"


def _dead_letter(record: ConsumerRecord[Any, Any], consumer: str, reason: str) -> Record:
    position = record.partition, record.offset
    return letter(
        record.topic, record.key, record.value, record.headers, consumer=consumer, reason=reason, position=position
    )


class Bus:
    """One service's subscriptions and its producer."""

    def __init__(
        self,
        service: str,
        bootstrap_servers: str,
        outbox: Outbox,
        metrics: BusMetrics,
        clock: Clock,
        *,
        batch_records: int = 500,
        instance: str = "",
    ) -> None:
        self.service = service
        self.outbox = outbox
        self._bootstrap_servers = bootstrap_servers
        self._metrics = metrics
        self._clock = clock
        self._batch_records = batch_records
        self._instance = instance
        self._broker = KafkaBroker(
            bootstrap_servers,
            client_id=f"meridian-{service}",
            apply_types=False,
            ack_policy=AckPolicy.NACK_ON_ERROR,
            logger=None,
            metadata_max_age_ms=15_000,
        )
        self.producer: AIOKafkaProducer | None = None
        self.progress: list[Progress] = []
        self._stopping = asyncio.Event()

    # -- subscriptions -------------------------------------------------------------------------------------------

    def subscribe(self, purpose: str, handlers: Mapping[type[Message], Handler]) -> None:
        """Handle each event of the given types once, in order per key, with its effect in one transaction.

        ``purpose`` names the consumer group ``<service>.<purpose>``; use one purpose per set of topics. A handler gets
        ``(transaction, message)``. Other events on the same topics are passed over. New groups start at the beginning.
        """
        by_name = {catalogue().event_of(kind).name: handler for kind, handler in handlers.items()}

        async def handle(transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
            for envelope in envelopes:
                with traced(envelope.traceparent):
                    await by_name[envelope.type.name](transaction, envelope.data)

        self.subscribe_batch(purpose, tuple(handlers), handle)

    def subscribe_batch(
        self,
        purpose: str,
        kinds: Sequence[type[Message]],
        handler: BatchHandler,
        *,
        keys: Callable[[str], bool] | None = None,
    ) -> None:
        """Like `subscribe`, but the handler gets all new events of a batch at once (for set-wise SQL). ``keys`` says which record
        keys it wants; others are passed over undecoded, and are for whoever wants them to judge."""
        consumer = f"{self.service}.{purpose}"
        events = {catalogue().event_of(kind).name for kind in kinds}
        concern = Concern(events, keys)
        topics = sorted({catalogue().event_of(kind).topic.name for kind in kinds})

        async def consume(records: Sequence[ConsumerRecord[Any, Any]]) -> None:
            with logged_as(self.service):
                if wanted := concern.of(records):
                    await self._consume(consumer, events, handler, wanted)

        self._add(consumer, topics, consume, group=True, offset_reset="earliest")

    def stream(
        self,
        purpose: str,
        kinds: Sequence[type[Message]],
        handler: StreamHandler,
        *,
        replay: bool = False,
        group: bool = True,
        keys: Callable[[str], bool] | None = None,
    ) -> None:
        """Handle events without database and inbox, for what may be lost or repeated (heartbeats, live views).

        With ``group=False`` every process gets every event (no consumer group), from now on, or with ``replay`` from
        the beginning of what is kept. ``keys`` as in `subscribe_batch`.
        """
        consumer = f"{self.service}.{purpose}"
        events = {catalogue().event_of(kind).name for kind in kinds}
        concern = Concern(events, keys)
        topics = sorted({catalogue().event_of(kind).topic.name for kind in kinds})

        async def consume(records: Sequence[ConsumerRecord[Any, Any]]) -> None:
            with logged_as(self.service):
                envelopes = []
                for record in concern.of(records):
                    try:
                        envelope = decode(record.value, record.headers)
                    except ContractError as error:
                        self._metrics.consumed.labels(consumer, "ignored").inc()
                        log.warning("event passed over", extra={"consumer": consumer, "reason": error.detail})
                        continue
                    if envelope.type.name in events:
                        envelopes.append(envelope)
                if envelopes:
                    started = time.monotonic()
                    await handler(envelopes)
                    self._metrics.handling.labels(consumer).observe(time.monotonic() - started)
                    self._metrics.consumed.labels(consumer, "handled").inc(len(envelopes))

        self._add(consumer, topics, consume, group=group, offset_reset="earliest" if replay else "latest")

    def _add(self, consumer: str, topics: Sequence[str], consume: Any, *, group: bool, offset_reset: Any) -> None:
        async def as_records(message: Any) -> Any:
            return message.raw_message

        async def parse(records: Sequence[ConsumerRecord[Any, Any]], original: Any) -> Any:
            # FastStream would decode every header as UTF-8, which other senders need not write; `decode` judges them.
            ends = tuple(replace(record, headers=()) for record in (records[0], records[-1]))
            message = await original(ends)
            message.raw_message = records
            return message

        subscriber = self._broker.subscriber(
            *topics,
            batch=True,
            group_id=consumer if group else None,
            # A static member (KIP-345): its successor takes over its partitions at once, not after the session timeout.
            group_instance_id=f"{consumer}-{self._instance}" if group and self._instance else None,
            auto_offset_reset=offset_reset,
            max_records=self._batch_records,
            fetch_max_wait_ms=500,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_500,
            parser=parse,
            decoder=as_records,
            no_reply=True,
            ack_policy=AckPolicy.NACK_ON_ERROR if group else AckPolicy.MANUAL,
        )
        subscriber.get_msg = self._poll(subscriber)  # type: ignore[method-assign, assignment]
        subscriber(consume)
        self.progress.append(Progress(consumer, subscriber, time.monotonic(), {}))

    def _poll(self, subscriber: Any) -> Callable[[AIOKafkaConsumer], Awaitable[tuple[ConsumerRecord[Any, Any], ...]]]:
        """How a batch is fetched. FastStream's own way sleeps as long as it waited after an empty poll, and five
        seconds after an error: too long for heartbeats and for a bus that is back after a second."""

        async def poll(consumer: AIOKafkaConsumer) -> tuple[ConsumerRecord[Any, Any], ...]:
            while subscriber.running:
                try:
                    batches = await consumer.getmany(timeout_ms=1000, max_records=self._batch_records)
                except UnsupportedCodecError:
                    raise
                except KafkaError as error:
                    log.warning("fetching failed, is tried again", extra={"error": repr(error)})
                    await asyncio.sleep(0.2)
                    continue
                if batches:
                    return tuple(chain.from_iterable(batches.values()))
            return ()

        return poll

    # -- consumption ---------------------------------------------------------------------------------------------

    async def _consume(
        self,
        consumer: str,
        events: set[str],
        handler: BatchHandler,
        records: Sequence[ConsumerRecord[Any, Any]],
    ) -> None:
        delay_s = 0.1
        while True:
            try:
                started = time.monotonic()
                await self._handle_or_isolate(consumer, events, handler, records)
                self._metrics.handling.labels(consumer).observe(time.monotonic() - started)
                return
            except Exception as error:  # the process boundary of consumption: only passing errors are waited out
                if not (is_passing(error) or isinstance(error, KafkaError)):
                    raise
                if self._stopping.is_set():
                    # Not handled, so not committed: whoever comes next is given it again.
                    raise
                self._metrics.retries.labels(consumer).inc()
                log.warning("batch is tried again", extra={"consumer": consumer, "error": repr(error)})
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay_s):
                        await self._stopping.wait()
                delay_s = min(delay_s * 2, 5.0)

    async def _handle_or_isolate(
        self, consumer: str, events: set[str], handler: BatchHandler, records: Sequence[ConsumerRecord[Any, Any]]
    ) -> None:
        try:
            await self._handle(consumer, events, handler, records)
        except Exception as error:
            if is_passing(error):
                raise
            log.exception("a batch failed, its events are handled one by one", extra={"consumer": consumer})
            for record in records:
                await self._handle_alone(consumer, events, handler, record)

    async def _handle_alone(
        self, consumer: str, events: set[str], handler: BatchHandler, record: ConsumerRecord[Any, Any]
    ) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._handle(consumer, events, handler, [record])
                return
            except Exception as error:
                if is_passing(error):
                    raise
                log.warning(
                    "event failed",
                    extra={"consumer": consumer, "attempt": attempt, "topic": record.topic, "offset": record.offset},
                )
                if attempt < ATTEMPTS:
                    await asyncio.sleep(0.05 * 2**attempt)
                    continue
                await self._bury(consumer, record, f"{type(error).__name__}: {error}")

    async def _bury(self, consumer: str, record: ConsumerRecord[Any, Any], reason: str) -> None:
        async with self.outbox.transaction() as transaction:
            try:
                await claim(transaction.connection, consumer, [_message_id(decode(record.value, record.headers))])
            except ContractError:
                await claim(transaction.connection, consumer, [f"{record.topic}/{record.partition}/{record.offset}"])
            transaction.forward(_dead_letter(record, consumer, reason))
        self._metrics.consumed.labels(consumer, "dead_letter").inc()
        log.error("event went to the dead-letter topic", extra={"consumer": consumer, "reason": reason})

    async def _handle(
        self, consumer: str, events: set[str], handler: BatchHandler, records: Sequence[ConsumerRecord[Any, Any]]
    ) -> None:
        envelopes: dict[str, Envelope] = {}
        broken: dict[str, Record] = {}
        for record in records:
            try:
                envelope = decode(record.value, record.headers)
            except ContractError as error:
                position = f"{record.topic}/{record.partition}/{record.offset}"
                broken[position] = _dead_letter(record, consumer, error.detail)
                continue
            if envelope.type.name in events:
                envelopes.setdefault(_message_id(envelope), envelope)
        if not envelopes and not broken:
            return
        async with self.outbox.transaction() as transaction:
            new = await claim(transaction.connection, consumer, [*envelopes, *broken])
            for position, dead in broken.items():
                if position in new:
                    transaction.forward(dead)
            fresh = [envelope for message_id, envelope in envelopes.items() if message_id in new]
            if fresh:
                await handler(transaction, fresh)
        self._count(consumer, fresh, duplicates=len(envelopes) - len(fresh), dead=sum(key in new for key in broken))

    def _count(self, consumer: str, fresh: Sequence[Envelope], *, duplicates: int, dead: int) -> None:
        now = self._clock.now()
        self._metrics.consumed.labels(consumer, "handled").inc(len(fresh))
        if duplicates:
            self._metrics.consumed.labels(consumer, "duplicate").inc(duplicates)
        if dead:
            self._metrics.consumed.labels(consumer, "dead_letter").inc(dead)
            log.error("records went to the dead-letter topic", extra={"consumer": consumer, "records": dead})
        for envelope in fresh:
            self._metrics.age.labels(consumer).observe(max(0.0, (now - envelope.time).total_seconds()))

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect the producer and start consuming."""
        self.producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap_servers,
            client_id=f"meridian-{self.service}",
            acks="all",
            linger_ms=1,
            request_timeout_ms=30_000,
            metadata_max_age_ms=15_000,
            max_request_size=max(
                DEFAULT_ROOM_BYTES, *(topic.max_message_bytes for topic in catalogue().topics.values())
            ),
        )
        await self.producer.start()
        if self.progress:
            await self._broker.start()

    async def stop(self) -> None:
        """Finish the batches in progress, leave the groups, close the connections. A batch that fails is left to others."""
        self._stopping.set()
        if self.progress:
            await self._broker.stop()
        if self.producer is not None:
            await self.producer.stop()


class Liveness:
    """Whether every subscription moves: positions grow, or there is nothing to read.

    `check` is called every few seconds. A subscription has stalled when it has had records to read, or no partition and
    no membership in its group, for ``stall_after_s`` without any movement.
    """

    def __init__(self, bus: Bus, metrics: BusMetrics, stall_after_s: float) -> None:
        self._bus = bus
        self._metrics = metrics
        self._stall_after_s = stall_after_s

    async def check(self) -> None:
        """Look at every subscription once; also refreshes the lag metric."""
        for progress in self._bus.progress:
            consumer = progress.subscriber.consumer
            if consumer is None:
                continue
            moved, lag = await self._look(consumer, progress)
            self._metrics.lag.labels(progress.consumer).set(lag)
            if moved:
                progress.moved_at = time.monotonic()

    async def _look(self, consumer: Any, progress: Progress) -> tuple[bool, int]:
        assigned = consumer.assignment()
        if not assigned:
            # A member without partitions is fine when the group has more members than partitions.
            coordinator = getattr(consumer, "_coordinator", None)
            return bool(getattr(coordinator, "generation", -1) > 0), 0
        try:
            async with asyncio.timeout(5.0):
                ends = await consumer.end_offsets(list(assigned))
                positions = {partition: await consumer.position(partition) for partition in assigned}
        except (KafkaError, TimeoutError) as error:
            log.warning("progress is unknown", extra={"consumer": progress.consumer, "error": repr(error)})
            return False, 0
        lag = sum(max(0, ends[partition] - positions[partition]) for partition in assigned)
        moved = lag == 0 or positions != progress.positions
        progress.positions = positions
        return moved, lag

    def stalled(self) -> list[str]:
        """Names of the subscriptions that have not moved for too long."""
        now = time.monotonic()
        return [item.consumer for item in self._bus.progress if now - item.moved_at > self._stall_after_s]
