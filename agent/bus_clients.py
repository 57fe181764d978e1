"""Plain aiokafka clients for the agent: producers that wait for their broker, and records in the contracts' encoding."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError, UnsupportedCodecError
from google.protobuf.message import Message

from meridian.codec import Record, encode
from meridian.set_aside import letter
from meridian.unreadable import install

_log = logging.getLogger(__name__)
install()

METADATA_MAX_AGE_MS = 15_000
"""So old may be what is known of a topic's partitions, as in `meridian.bus`."""
AGAIN_S = 0.5
"""After so long what the bus did not take is tried again."""
TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
"""What the bus does not take for its size, however often it is tried."""


async def until_taken(step: Callable[[], Awaitable[object]], what: str) -> None:
    """Try ``step`` until the bus takes it; ``what`` it is of, for the log."""
    while True:
        try:
            await step()
            return
        except KafkaError as error:
            _log.warning("%s: %s", what, error)
            await asyncio.sleep(AGAIN_S)


async def fetched(
    consumer: AIOKafkaConsumer, timeout_s: float, what: str
) -> dict[TopicPartition, list[ConsumerRecord[Any, Any]]] | None:
    """What comes within ``timeout_s``, by partition; None when the bus does not say, which is logged with ``what`` is read, and
    waited for a moment.

    :raises UnsupportedCodecError: a record is compressed in a way that this program cannot undo; no try helps.
    """
    try:
        return dict(await consumer.getmany(timeout_ms=int(timeout_s * 1000)))
    except UnsupportedCodecError:
        raise
    except KafkaError as error:
        _log.warning("%s: fetching failed, is tried again: %r", what, error)
        await asyncio.sleep(AGAIN_S)
        return None


class Producer:
    """Sends events of this agent; ``source`` is the CloudEvents source."""

    def __init__(
        self, bootstrap_servers: str, client_id: str, source: str, *, request_timeout_s: float, linger_ms: int = 0
    ) -> None:
        self._source = source
        self.client = AIOKafkaProducer(
            bootstrap_servers=bootstrap_servers,
            client_id=client_id,
            acks="all",
            linger_ms=linger_ms,
            request_timeout_ms=int(request_timeout_s * 1000),
            max_request_size=8 * 1024 * 1024,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
        )

    async def start(self) -> None:
        """Connect; waits for a broker that is not there yet."""
        await until_taken(self.client.start, "bus")

    async def stop(self) -> None:
        """Disconnect."""
        await self.client.stop()

    async def send(
        self, message: Message, *, event_id: str, time: datetime, traceparent: str = ""
    ) -> asyncio.Future[object]:
        """Hand an event over; the future is done when the broker has it, or fails with a ``KafkaError``.

        :raises KafkaError: the topic's metadata cannot be had.
        :raises ContractError: the message is no event, or its key is empty.
        """
        return await self.send_record(self.record(message, event_id=event_id, time=time, traceparent=traceparent))

    def record(self, message: Message, *, event_id: str, time: datetime, traceparent: str = "") -> Record:
        """An event of this agent as it is sent.

        :raises ContractError: the message is no event, or its key is empty.
        """
        return encode(message, event_id=event_id, source=self._source, time=time, traceparent=traceparent)

    async def set_aside(self, record: ConsumerRecord[Any, Any], *, consumer: str, reason: str) -> None:
        """A record that keeps no contract goes to the dead-letter topic; a broker that does not take it is logged."""
        _log.error("unreadable record at %s/%d@%d: %s", record.topic, record.partition, record.offset, reason)
        position = record.partition, record.offset
        try:
            await self.send_record(
                letter(
                    record.topic,
                    record.key,
                    record.value,
                    record.headers,
                    consumer=consumer,
                    reason=reason,
                    position=position,
                )
            )
        except KafkaError as error:
            _log.warning("dead letter not sent: %s", error)

    async def set_aside_own(self, record: Record, *, consumer: str, reason: str) -> None:
        """What the bus does not take for its size goes to the dead-letter topic, cut.

        :raises KafkaError: the broker does not take that now.
        """
        _log.error("record of %d bytes for %s is set aside: %s", len(record.value), record.topic, reason)
        kept = letter(
            record.topic, record.key, record.value, record.headers, consumer=consumer, reason=reason, fits=False
        )
        await (await self.send_record(kept))

    async def send_record(self, record: Record) -> asyncio.Future[object]:
        """Hand an encoded record over; see ``send``."""
        return await self.client.send(record.topic, record.value, key=record.key, headers=record.headers)  # type: ignore[no-any-return]
