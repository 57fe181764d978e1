"""Look at dead letters and hand them back: `python -m meridian.dead_letters list`, `... replay TOPIC OFFSET...`.

A record is set aside because one consumer could not take it; the others have. So it is handed back under its own event
id, which they recognise, after the memory of having seen it has been removed from that one consumer's inbox.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from meridian.catalogue import catalogue
from meridian.codec import HeaderList, decode
from meridian.database import Database
from meridian.errors import ContractError, InvalidArgumentError, MeridianError, NotFoundError
from meridian.set_aside import PREFIX, TRUNCATED
from meridian.settings import SERVICES, KernelSettings, load

_LOST_KEY = b""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record on a dead-letter topic; ``consumer`` is the group that could not take it, and ``topic`` where it was."""

    offset: int
    topic: str
    consumer: str
    reason: str
    position: str
    event_type: str
    message_id: str
    time_ms: int
    key: bytes
    value: bytes
    headers: HeaderList
    truncated: bool = False

    def as_json(self) -> dict[str, object]:
        """What a person wants to see; the value is left out, it may hold anything."""
        return {
            "topic": self.topic,
            "offset": self.offset,
            "consumer": self.consumer,
            "reason": self.reason,
            "type": self.event_type,
            "key": self.key.decode("utf-8", "replace"),
            "event": self.message_id,
            "was_at": self.position,
            "time_ms": self.time_ms,
        }


def read_letter(
    topic: str, offset: int, time_ms: int, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes]]
) -> DeadLetter:
    """A record of ``<topic>.dlq``, told apart into the record that was set aside and what was noted with it."""
    texts = {name: content.decode("utf-8", "replace") for name, content in headers}
    position = f"{topic}/{texts.get('x-dlq-partition', '')}/{texts.get('x-dlq-offset', '')}"
    kept = [(name, content) for name, content in headers if not name.startswith(PREFIX)]
    source, event_id = texts.get("ce_source", ""), texts.get("ce_id", "")
    event_type = texts.get("ce_type", "")
    try:
        # In structured mode the attributes stand in the body.
        envelope = decode(value, kept)
    except ContractError:
        pass
    else:
        source, event_id, event_type = envelope.source, envelope.id, envelope.type.name
    return DeadLetter(
        offset=offset,
        topic=topic,
        consumer=texts.get("x-dlq-consumer", ""),
        reason=texts.get("x-dlq-reason", ""),
        position=position,
        event_type=event_type,
        message_id=f"{source}|{event_id}",
        time_ms=time_ms,
        key=key or _LOST_KEY,
        value=value or b"",
        headers=kept,
        truncated=TRUNCATED in texts,
    )


async def letters(bootstrap_servers: str, topics: Sequence[str]) -> list[DeadLetter]:
    """All dead letters of these topics that are still kept, oldest first per topic."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, enable_auto_commit=False)
    await consumer.start()
    try:
        wanted = {TopicPartition(f"{topic}.dlq", 0): topic for topic in topics}
        consumer.assign(list(wanted))
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(list(wanted))
        found: list[DeadLetter] = []
        while [place for place in wanted if await consumer.position(place) < ends[place]]:
            for place, records in (await consumer.getmany(timeout_ms=500)).items():
                found += [
                    read_letter(wanted[place], item.offset, item.timestamp, item.key, item.value, item.headers)
                    for item in records
                ]
        return sorted(found, key=lambda letter: (letter.topic, letter.offset))
    finally:
        await consumer.stop()


async def replay(settings: KernelSettings, topic: str, offsets: Sequence[int]) -> list[DeadLetter]:
    """Hand dead letters back to the consumers that could not take them; returns what was sent, in order.

    NotFoundError, before anything is done, when one of them is not there (any more), InvalidArgumentError when one is not whole.
    """
    kept = {letter.offset: letter for letter in await letters(settings.kafka_bootstrap_servers, [topic])}
    missing = [offset for offset in offsets if offset not in kept]
    if missing:
        raise NotFoundError(f"{topic}.dlq holds nothing at offset {', '.join(map(str, missing))}")
    chosen = [kept[offset] for offset in sorted(set(offsets))]
    if cut := [letter.offset for letter in chosen if letter.truncated]:
        raise InvalidArgumentError(
            f"{topic}.dlq holds only the beginning of the record at offset {', '.join(map(str, cut))}"
        )
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka_bootstrap_servers, acks="all")
    await producer.start()
    try:
        for letter in chosen:
            await _forget(settings, letter)
            await producer.send_and_wait(topic, letter.value, key=letter.key or None, headers=letter.headers)
    finally:
        await producer.stop()
    return chosen


async def _forget(settings: KernelSettings, letter: DeadLetter) -> None:
    service = letter.consumer.partition(".")[0]
    if service not in SERVICES:
        return  # an agent: it knows by its journal what it has done
    database = Database(settings.database_url, service, pool_size=1)
    try:
        async with database.transaction() as connection:
            statement = sa.text("DELETE FROM inbox WHERE consumer = :consumer AND message_id = :message")
            await connection.execute(statement, {"consumer": letter.consumer, "message": letter.message_id})
    finally:
        await database.close()


def _topics(name: str | None) -> list[str]:
    known = sorted(catalogue().topics)
    if name is None:
        return known
    if name not in known:
        raise InvalidArgumentError(f"there is no topic {name!r}; known are {', '.join(known)}")
    return [name]


def _lines(found: Iterable[DeadLetter]) -> Iterator[str]:
    return (json.dumps(letter.as_json(), ensure_ascii=False) for letter in found)


def main() -> int:
    """Prints one JSON object per dead letter. Exit status 2 when something named is not there."""
    parser = argparse.ArgumentParser(prog="python -m meridian.dead_letters", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="show what was set aside, and why")
    listing.add_argument("topic", nargs="?", help="the topic without .dlq; default: all")
    replaying = commands.add_parser("replay", help="hand records back once the cause is mended")
    replaying.add_argument("topic", help="the topic without .dlq")
    replaying.add_argument("offsets", nargs="+", type=int, metavar="offset", help="offset on the dead-letter topic")
    arguments = parser.parse_args()
    try:
        settings = load(KernelSettings)
        topics = _topics(arguments.topic)
        if arguments.command == "list":
            found = asyncio.run(letters(settings.kafka_bootstrap_servers, topics))
        else:
            found = asyncio.run(replay(settings, topics[0], arguments.offsets))
    except MeridianError as error:
        print(f"error: {error.detail}", file=sys.stderr)
        return 2
    except KafkaError as error:
        print(f"error: the bus does not answer: {error}", file=sys.stderr)
        return 1
    for line in _lines(found):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
