"""The way of an event from one service's transaction to the bus and into the next service: what it takes and how long.

Real parts: PostgreSQL (fsync on) and the embedded broker as processes, two kernels with their outboxes, relays and inboxes in
this process. A transaction of the first service writes one row and publishes 1, 10 or 100 events; the second handles them with one
statement a batch.

1. alone: one transaction at a time, until the second service has committed its last event. Round trips to PostgreSQL per
   transaction are counted by a proxy; times and processor seconds are taken without it.
2. together: as many transactions at once as four tasks commit: events per second, round trips and processor seconds per event.

    python -m bench.events [--transactions 100] [--events 1 10 100] [--json OUT]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import sqlalchemy as sa

from bench.result import Row, Setting, command_line, print_table, write
from bench.round_trips import RoundTrips, counted
from bench.servers import ROOT, Servers, cpu_s, servers
from meridian.codec import Envelope
from meridian.contracts.job.v1 import job_pb2
from meridian.database import Database, migrate
from meridian.outbox import Transaction
from meridian.service import Kernel, create_kernel, run_service
from meridian.settings import KernelSettings

WRITERS = 4
PATIENCE_S = 60.0
_COUNT = sa.text("UPDATE counted SET events = events + :events")


@dataclass(slots=True)
class Way:
    """Two services, and how many events the second has committed."""

    first: Kernel
    second: Kernel
    arrived: int = 0
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        """The second service's part."""
        await transaction.connection.execute(_COUNT, {"events": len(envelopes)})

        def note() -> None:
            self.arrived += len(envelopes)
            self.moved.set()

        transaction.on_commit(note)

    async def send(self, events: int, key: str) -> None:
        """The first service's part: one transaction."""
        async with self.first.outbox.transaction() as transaction:
            await transaction.connection.execute(_COUNT, {"events": events})
            for number in range(events):
                transaction.publish(job_pb2.JobQueued(job_id=key, units=number))

    async def until(self, count: int) -> None:
        """Wait until so many have arrived."""
        async with asyncio.timeout(PATIENCE_S):
            while self.arrived < count:
                self.moved.clear()
                await self.moved.wait()


@asynccontextmanager
async def services(where: Servers, name: str) -> AsyncIterator[Way]:
    """Both services, warm: statements are prepared and groups are joined."""
    settings = KernelSettings(
        kafka_bootstrap_servers=where.bootstrap_servers, database_url=where.database_url, log_level="WARNING"
    )
    schemas = f"{name}_first", f"{name}_second"
    for schema in schemas:
        await _create(where.database_url, schema, ROOT / "services" / "failover" / "migrations")
    first, second = (create_kernel(schema, settings) for schema in schemas)
    way = Way(first, second)
    way.second.bus.subscribe_batch("jobs", (job_pb2.JobQueued,), way.handle)
    stop = asyncio.Event()
    running = [asyncio.create_task(run_service(kernel, stop)) for kernel in (way.first, way.second)]
    try:
        while not (way.first.ready and way.second.ready):
            await asyncio.sleep(0.05)
            for task in running:
                if task.done():
                    task.result()
        for number in range(20):
            await way.send(1, f"{name}-warm-{number}")
            await way.until(way.arrived + 1)
        yield way
    finally:
        stop.set()
        await asyncio.gather(*running, return_exceptions=True)


async def _create(database_url: str, schema: str, scripts: Path) -> None:
    await migrate(database_url, schema, scripts)
    database = Database(database_url, schema)
    async with database.transaction() as connection:
        await connection.execute(sa.text("CREATE TABLE counted (events bigint NOT NULL)"))
        await connection.execute(sa.text("INSERT INTO counted VALUES (0)"))
    await database.close()


async def alone(way: Way, transactions: int, events: int) -> list[float]:
    """Milliseconds of each transaction's way."""
    took = []
    for number in range(transactions):
        began_s = time.perf_counter()
        already = way.arrived
        await way.send(events, f"alone-{number}")
        await way.until(already + events)
        took.append(1000 * (time.perf_counter() - began_s))
    return took


async def together(way: Way, transactions: int, events: int) -> float:
    """Seconds until all have arrived."""
    left = iter(range(transactions))
    already, began_s = way.arrived, time.perf_counter()

    async def work(key: str) -> None:
        for _ in left:
            await way.send(events, key)

    await asyncio.gather(*(work(f"together-{number}") for number in range(WRITERS)))
    await way.until(already + transactions * events)
    return time.perf_counter() - began_s


async def measure_trips(where: Servers, transactions: int, sizes: Sequence[int]) -> list[Row]:
    """Round trips to PostgreSQL."""
    rows = []
    async with counted(where.database_url) as trips, services(replace(where, database_url=trips.url), "trips") as way:
        for events in sizes:
            for subject, work in (("alone", alone), ("together", together)):
                before = _reading(trips)
                await work(way, transactions, events)
                count, connections = (now - then for now, then in zip(_reading(trips), before, strict=True))
                at = f"events={events}"
                rows.append(Row(subject, "round_trips_per_transaction", count / transactions, at, n=transactions))
                rows.append(Row(subject, "round_trips_per_event", count / transactions / events, at, n=transactions))
                rows.append(Row(subject, "connections_made", connections, at, n=transactions))
    return rows


def _reading(trips: RoundTrips) -> tuple[int, int]:
    return trips.count, trips.connections


async def measure_times(where: Servers, transactions: int, sizes: Sequence[int]) -> list[Row]:
    """Latency, events per second and processor seconds."""
    rows = []
    async with services(where, "times") as way:
        for events in sizes:
            at, total = f"events={events}", transactions * events
            took = sorted(await alone(way, transactions, events))
            low, high = took[0], took[-1]
            rows.append(Row("alone", "latency_p50_ms", statistics.median(took), at, low, high, transactions))
            rows.append(Row("alone", "latency_p99_ms", took[int(0.99 * (len(took) - 1))], at, low, high, transactions))
            before = time.process_time(), cpu_s(where.database)
            seconds = await together(way, transactions, events)
            own_s, database_s = time.process_time() - before[0], cpu_s(where.database) - before[1]
            rows.append(Row("together", "events_per_s", total / seconds, at, n=total))
            rows.append(Row("together, both services", "cpu_per_event_ms", 1000 * own_s / total, at, n=total))
            rows.append(Row("together, postgresql", "cpu_per_event_ms", 1000 * database_s / total, at, n=total))
    return rows


async def measure(options: argparse.Namespace) -> list[Row]:
    """All rows."""
    async with servers() as where:
        return [
            *await measure_trips(where, options.transactions, options.events),
            *await measure_times(where, options.transactions, options.events),
        ]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.events", description="What the way of an event takes.")
    parser.add_argument("--transactions", type=int, default=100, help="per measurement")
    parser.add_argument("--events", type=int, nargs="*", default=[1, 10, 100], help="per transaction")
    parser.add_argument("--json", metavar="OUT", type=Path)
    options = parser.parse_args()
    rows = asyncio.run(measure(options))
    print_table(rows)
    if options.json:
        write(options.json, command_line("bench.events"), [], 0, Setting.REAL, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
