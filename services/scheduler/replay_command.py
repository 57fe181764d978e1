"""Make decisions again that were made live: `python -m services.scheduler.replay_command [PART]`.

PART is the schema whose journal is read: scheduler (default), a shard (scheduler_0), or a decider of domains
(scheduler_domain, scheduler_domain_1). Nothing is changed. The events of the journal must still be in the log of the bus.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Collection
from dataclasses import asdict

import sqlalchemy as sa
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError
from google.protobuf.message import Message

from meridian.catalogue import catalogue
from meridian.codec import Envelope, decode
from meridian.database import Database
from meridian.errors import ContractError, MeridianError, NotFoundError
from meridian.settings import KernelSettings, load
from services.scheduler import store_journal
from services.scheduler.domains import replay as of_decider
from services.scheduler.events import SUBSCRIPTIONS, event_name
from services.scheduler.journal import Entry, unpacked
from services.scheduler.plans.catalogue import register_all
from services.scheduler.plugins import load_plugins
from services.scheduler.replay import Report
from services.scheduler.shards import replay as of_shard

DECIDER = "scheduler_domain"


async def journal_of(database_url: str, part: str) -> list[Entry]:
    """The journal of a scheduler, a shard or a decider; NotFoundError when there is none."""
    database = Database(database_url, part, pool_size=1)
    try:
        async with database.reading() as connection:
            bodies = await store_journal.journal_chunks(connection)
    except sa.exc.ProgrammingError:
        raise NotFoundError(f"there is no schema {part!r} with a journal") from None
    finally:
        await database.close()
    if not bodies:
        raise NotFoundError(f"the journal of {part!r} is empty")
    return [entry for body in bodies for entry in unpacked(body)]


async def events_named(bootstrap_servers: str, names: Collection[str]) -> dict[str, Envelope]:
    """Those of the named events that are still in the log of the bus."""
    found: dict[str, Envelope] = {}
    if not names:
        return found
    topics = sorted({_topic_of(kind) for kinds in SUBSCRIPTIONS.values() for kind in kinds})
    consumer = AIOKafkaConsumer(
        *topics, bootstrap_servers=bootstrap_servers, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        places = sorted(consumer.assignment())
        ends = await consumer.end_offsets(places)
        while len(found) < len(names) and [place for place in places if await consumer.position(place) < ends[place]]:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    try:
                        envelope = decode(record.value, record.headers)
                    except ContractError:
                        continue
                    if event_name(envelope) in names:
                        found[event_name(envelope)] = envelope
    finally:
        await consumer.stop()
    return found


def _topic_of(kind: type[Message]) -> str:
    return catalogue().events[kind.DESCRIPTOR.full_name].topic.name


async def replayed(settings: KernelSettings, part: str) -> Report:
    """Everything that the journal of a part has, decided again."""
    entries = await journal_of(settings.database_url, part)
    names = {name for entry in entries if entry.kind in {"events", "fleet"} for name in entry.body["events"]}
    events = await events_named(settings.kafka_bootstrap_servers, names)
    replay = of_decider.replay if part.startswith(DECIDER) else of_shard.replay
    return replay(entries, events)


def main() -> int:
    """Prints what was replayed and each difference as a JSON object a line. Exit status 1 when something differs, 2 when it
    cannot be replayed."""
    parser = argparse.ArgumentParser(prog="python -m services.scheduler.replay_command", description=__doc__)
    parser.add_argument("part", nargs="?", default="scheduler", help="the schema with the journal")
    arguments = parser.parse_args()
    load_plugins()
    register_all()
    try:
        report = asyncio.run(replayed(load(KernelSettings), arguments.part))
    except MeridianError as error:
        print(f"error: {error.detail}", file=sys.stderr)
        return 2
    except (OSError, KafkaError) as error:
        print(f"error: the database or the bus does not answer: {error}", file=sys.stderr)
        return 2
    counted = {name: value for name, value in asdict(report).items() if name != "differences"}
    print(json.dumps({**counted, "differences": len(report.differences)}))
    for item in report.differences:
        print(json.dumps(asdict(item), ensure_ascii=False))
    return 1 if report.differences else 0


if __name__ == "__main__":
    sys.exit(main())
