"""How many readings a second telemetry takes, what a node costs, and how soon a report is in the graph.

    python -m bench.telemetry [--seconds 15] [--rounds 5] [--passes 3] [--json OUT]

Real processes and sockets on this machine: PostgreSQL (fsync on), the embedded broker, telemetry and graph as processes of
their own; this client shares the machine. A node has 2 accelerators and 18 readings. The throughput is taken with 200 and
1,000 nodes in five domains and 5,000 in twenty-five.

Subjects:
  report to graph   from the sending of a report to the arrival of the ``GraphUpdated`` that shows what is new in it (a
                    label of a node: structure is told at once, metrics alone at most every 5 s), when each domain
                    reports every 5 s
  telemetry         a backlog of ``rounds`` reports of each domain, from the first record sent until every reading is
                    stored; processor time of the service, and of PostgreSQL, until the observations are sent too;
                    readings per second of processor time: what one core takes when nothing else runs on it
  decode only       an aiokafka consumer in this process that decodes the same records and writes nothing (baseline)

The growth exponent is the slope of processor time against nodes, both logarithmic: 1 is the same cost for every node,
2 a cost per node that grows with the network.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import httpx
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from bench.result import Row, Setting, command_line, print_table, write
from bench.servers import Servers, ServiceProcess, cpu_s, servers, service
from meridian.catalogue import catalogue
from meridian.codec import Record, decode, encode
from meridian.contracts.graph.v1.graph_pb2 import GraphUpdated
from meridian.contracts.resource.v1 import resource_pb2 as pb

DOMAINS = 5
ACCELERATORS = 2
DELAY_NODES = (20, 200)
# Domains and nodes of each: 200, 1,000 and 5,000 nodes. A domain of more nodes is one of several reports.
THROUGHPUT = ((5, 40), (5, 200), (25, 200))
INTERVAL_S = 5.0
# Times of a backlog's readings: each report newer than the last, none too old when its turn comes (a minute), none ahead.
APART_S = 0.5
MOST_READINGS = 100_000
PATIENCE_S = 60.0
LABEL = "bench-round"
UPDATES_TOPIC = catalogue().event_of(GraphUpdated).topic

CHIP_METRICS = (
    ("hw.gpu.utilization", "1", 0.5), ("hw.gpu.memory.usage", "By", 40e9), ("hw.gpu.memory.limit", "By", 80e9),
    ("cpn.compute.capacity_free", "1", 0.5), ("hw.power", "W", 300.0), ("hw.temperature", "Cel", 50.0),
)  # fmt: skip
NODE_METRICS = (
    ("system.cpu.utilization", "1", 0.3), ("system.cpu.load_average.1m", "1", 3.0), ("system.memory.usage", "By", 9e9),
    ("system.memory.limit", "By", 64e9), ("system.network.io", "By/s", 1e8), ("cpn.health", "1", 1.0),
)  # fmt: skip
READINGS_PER_NODE = ACCELERATORS * len(CHIP_METRICS) + len(NODE_METRICS)
STEADY = {"hw.gpu.memory.limit", "system.memory.limit", "cpn.health"}


def report(domain_id: str, nodes: int, number: int, observed_s: float) -> pb.ResourceReported:
    """Report ``number`` of a domain; its readings are of ``observed_s`` (seconds since 1970) and differ from the last."""
    inventory = pb.DomainInventory(domain_id=domain_id, name=domain_id, region="bench", emulated=True)
    message = pb.ResourceReported(domain_id=domain_id, agent_id=f"agent-{domain_id}", incarnation=1)
    factor = 1 + 0.05 * (number % 5)
    for position in range(nodes):
        node_id = f"{domain_id}-{position}"
        node = inventory.nodes.add(node_id=node_id, cpus=64, memory_bytes=64 * 10**9)
        if position == 0:
            node.labels[LABEL] = str(number)
        for index in range(ACCELERATORS):
            node.accelerators.add(index=index, vendor="nvidia", model="A100", memory_bytes=80 * 10**9, emulated=True)
        places = [(None, NODE_METRICS), *((index, CHIP_METRICS) for index in range(ACCELERATORS))]
        for place, metrics in places:
            for metric, unit, value in metrics:
                reading = message.readings.add(
                    node_id=node_id,
                    accelerator_index=place,
                    metric=metric,
                    value=value if metric in STEADY else value * factor,
                    unit=unit,
                    source=pb.READING_SOURCE_DIRECTLY_MEASURED,
                    statistic=pb.READING_STATISTIC_CURRENT,
                )
                reading.observed_at.FromNanoseconds(int(observed_s * 1e9))
    message.inventory.CopyFrom(inventory)
    message.reported_at.FromNanoseconds(int(observed_s * 1e9))
    return message


def record_of(message: pb.ResourceReported) -> Record:
    """The record as an agent sends it."""
    return encode(message, event_id=uuid.uuid4().hex, source="/bench", time=datetime.now(UTC))


@asynccontextmanager
async def producing(bootstrap_servers: str) -> AsyncIterator[AIOKafkaProducer]:
    """A producer that waits for the broker's word."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, acks="all", max_request_size=2 * 1024 * 1024)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def send(producer: AIOKafkaProducer, records: Sequence[Record]) -> dict[TopicPartition, int]:
    """Send records in order and wait for the broker; the first offset in each partition."""
    futures = [
        await producer.send(record.topic, record.value, key=record.key, headers=record.headers) for record in records
    ]
    starts: dict[TopicPartition, int] = {}
    for written in await asyncio.gather(*futures):
        place = TopicPartition(written.topic, written.partition)
        starts[place] = min(written.offset, starts.get(place, written.offset))
    return starts


# --- report to graph -------------------------------------------------------------------------------------------------


class Updates:
    """Notes when which round of a domain was first seen in the graph."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._consumer = AIOKafkaConsumer(
            UPDATES_TOPIC.name, bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest", fetch_max_wait_ms=100
        )
        self.seen_s: dict[tuple[str, str], float] = {}

    async def follow(self) -> None:
        """Read until cancelled."""
        await self._consumer.start()
        try:
            async for record in self._consumer:
                arrived_s = time.monotonic()
                event = decode(record.value, record.headers).data
                if not isinstance(event, GraphUpdated):
                    continue
                for node in event.nodes:
                    if LABEL in node.inventory.labels:
                        self.seen_s.setdefault((event.domain_id, node.inventory.labels[LABEL]), arrived_s)
        finally:
            await self._consumer.stop()


async def until(met: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not met():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"waited {PATIENCE_S:g} s for {what}")
        await asyncio.sleep(0.02)


async def delays_ms(producer: AIOKafkaProducer, updates: Updates, nodes: int, seconds: float) -> list[float]:
    """Delay of every report that five domains of ``nodes`` nodes send in ``seconds``, each every 5 s, in turns."""
    domains = [f"d{nodes}-{number}" for number in range(DOMAINS)]
    first = [report(domain_id, nodes, 0, time.time()) for domain_id in domains]
    await send(producer, [record_of(message) for message in first])
    await until(lambda: all((domain_id, "0") in updates.seen_s for domain_id in domains), "the first image")
    sent_s: dict[tuple[str, str], float] = {}
    started_s = time.monotonic()
    for turn in range(max(DOMAINS, round(seconds * DOMAINS / INTERVAL_S))):
        due_s = started_s + turn * INTERVAL_S / DOMAINS
        domain_id, number = domains[turn % DOMAINS], 1 + turn // DOMAINS
        record = record_of(report(domain_id, nodes, number, time.time()))
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        sent_s[domain_id, str(number)] = time.monotonic()
        await send(producer, [record])
    await until(lambda: sent_s.keys() <= updates.seen_s.keys(), "the last report in the graph")
    return [1000 * (updates.seen_s[key] - at_s) for key, at_s in sent_s.items()]


async def measure_delays(where: Servers, seconds: float) -> list[Row]:
    """Rows of `report to graph`."""
    rows = []
    updates = Updates(where.bootstrap_servers)
    async with (
        service(where, "telemetry") as telemetry,
        service(where, "graph") as graph,
        producing(where.bootstrap_servers) as producer,
    ):
        following = asyncio.create_task(updates.follow())
        try:
            for nodes in DELAY_NODES:
                before_s, began_s = cpu_s(telemetry.process) + cpu_s(graph.process), time.monotonic()
                found = sorted(await delays_ms(producer, updates, nodes, seconds))
                spent_s = cpu_s(telemetry.process) + cpu_s(graph.process) - before_s
                at = f"{DOMAINS} domains x {nodes} nodes"
                middle = statistics.median(found)
                rows += [
                    Row("report to graph", "delay_p50_ms", middle, at, low=found[0], high=found[-1], n=len(found)),
                    Row("report to graph", "delay_p95_ms", found[math.ceil(0.95 * len(found)) - 1], at, n=len(found)),
                    Row("telemetry + graph", "cpu_share_ratio", spent_s / (time.monotonic() - began_s), at),
                ]
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    return rows


# --- throughput ------------------------------------------------------------------------------------------------------


async def counted(client: httpx.AsyncClient) -> dict[str, float]:
    """What the service has counted: readings stored, reports set aside, observations sent."""
    text = (await client.get("/metrics")).text
    found: dict[str, float] = {"readings": 0.0, "issues": 0.0, "sent": 0.0}
    names = {
        "meridian_telemetry_readings_total": "readings",
        "meridian_telemetry_issues_total": "issues",
        "meridian_outbox_published_total": "sent",
    }
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in names:
                found[names[sample.name]] += sample.value
    return found


@dataclass(frozen=True, slots=True)
class Drain:
    """One backlog taken. Times in seconds."""

    node_reports: int
    readings: int
    wall_s: float
    service_cpu_s: float
    database_cpu_s: float
    decode_wall_s: float
    decode_cpu_s: float


async def decode_only(bootstrap_servers: str, starts: dict[TopicPartition, int], readings: int) -> tuple[float, float]:
    """Read records from the given offsets on and decode them. Wall and processor time in seconds."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign(list(starts))
        decoded, began_s, began_cpu_s = 0, time.perf_counter(), time.process_time()
        for partition, offset in starts.items():
            consumer.seek(partition, offset)
        while decoded < readings:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    message = decode(record.value, record.headers).data
                    assert isinstance(message, pb.ResourceReported)
                    decoded += len(message.readings)
        return time.perf_counter() - began_s, time.process_time() - began_cpu_s
    finally:
        await consumer.stop()


async def drain(
    where: Servers, telemetry: ServiceProcess, client: httpx.AsyncClient, producer: AIOKafkaProducer, domains: list[str],
    nodes: int, rounds: int,
) -> Drain:  # fmt: skip
    """Send a backlog of new domains of ``nodes`` nodes and wait for it; then only decode the same records."""
    now_s = time.time()
    reports = [
        report(domain_id, nodes, number, now_s + APART_S * number)
        for number in range(rounds + 1)
        for domain_id in domains
    ]
    records = [record_of(message) for message in reports]
    per_round = len(domains) * nodes * READINGS_PER_NODE
    first = await counted(client)

    async def taken(readings: int, sent: int) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            now = await counted(client)
            if now["issues"] > first["issues"]:
                raise RuntimeError("telemetry set readings of the benchmark aside")
            if now["readings"] - first["readings"] >= readings and now["sent"] - first["sent"] >= sent:
                return
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"telemetry did not take {readings} readings in {PATIENCE_S:g} s: {now}")
            # Each answer is work of the service that no agent asks for.
            await asyncio.sleep(0.1)

    await send(producer, records[: len(domains)])  # inventory and series are known from here on
    await taken(per_round, len(domains))
    service_s, database_s, began_s = cpu_s(telemetry.process), cpu_s(where.database), time.perf_counter()
    starts = await send(producer, records[len(domains) :])
    await taken(per_round * (rounds + 1), 0)
    wall_s = time.perf_counter() - began_s
    await taken(per_round * (rounds + 1), len(records))
    service_s, database_s = cpu_s(telemetry.process) - service_s, cpu_s(where.database) - database_s
    decode_wall_s, decode_cpu_s = await decode_only(where.bootstrap_servers, starts, per_round * rounds)
    return Drain(
        len(domains) * nodes * rounds, per_round * rounds, wall_s, service_s, database_s, decode_wall_s, decode_cpu_s
    )


async def measure_throughput(where: Servers, rounds: int, passes: int) -> list[Row]:
    """Rows of `telemetry`, `postgresql` and `decode only`."""
    found: dict[tuple[int, int], list[Drain]] = {size: [] for size in THROUGHPUT}
    async with (
        service(where, "telemetry") as telemetry,
        producing(where.bootstrap_servers) as producer,
        httpx.AsyncClient(base_url=telemetry.base_url, timeout=30) as client,
    ):
        for number in range(passes):
            for (count, nodes), drains in found.items():
                domains = [f"t{count}x{nodes}-{number}-{domain}" for domain in range(count)]
                fitting = MOST_READINGS // (count * nodes * READINGS_PER_NODE)
                taken_rounds = min(rounds, max(fitting, 1))
                drains.append(await drain(where, telemetry, client, producer, domains, nodes, taken_rounds))
    rows = []
    for (count, nodes), drains in found.items():
        figures: list[tuple[str, str, Callable[[Drain], float], bool]] = [
            ("telemetry", "readings_per_s", lambda item: item.readings / item.wall_s, False),
            ("decode only", "readings_per_s", lambda item: item.readings / item.decode_wall_s, True),
            ("telemetry", "readings_per_core_s", lambda item: item.readings / item.service_cpu_s, False),
            (
                "telemetry + postgresql",
                "readings_per_core_s",
                lambda item: item.readings / (item.service_cpu_s + item.database_cpu_s),
                False,
            ),
            ("decode only", "readings_per_core_s", lambda item: item.readings / item.decode_cpu_s, True),
            ("telemetry", "slowdown_ratio", lambda item: item.wall_s / item.decode_wall_s, False),
            ("telemetry", "cpu_per_node_report_ms", lambda item: 1000 * item.service_cpu_s / item.node_reports, False),
            (
                "postgresql",
                "cpu_per_node_report_ms",
                lambda item: 1000 * item.database_cpu_s / item.node_reports,
                False,
            ),
            ("decode only", "cpu_per_node_report_ms", lambda item: 1000 * item.decode_cpu_s / item.node_reports, True),
        ]
        for subject, measure_name, figure, baseline in figures:
            at = f"{count} domains x {nodes} nodes"
            rows.append(row_of(subject, measure_name, at, [figure(item) for item in drains], baseline=baseline))
    costs: list[tuple[str, Callable[[Drain], float], bool]] = [
        ("telemetry", lambda item: item.service_cpu_s, False),
        ("postgresql", lambda item: item.database_cpu_s, False),
        ("decode only", lambda item: item.decode_cpu_s, True),
    ]
    sizes = [count * nodes for count, nodes in found]
    for subject, cost, baseline in costs:
        exponents = [
            # Backlogs differ in length: the cost of one report of a node, times the number of nodes.
            1
            + growth_exponent(sizes, [cost(drains[number]) / drains[number].node_reports for drains in found.values()])
            for number in range(passes)
        ]
        rows.append(row_of(subject, "cpu_growth_exponent", "over nodes", exponents, baseline=baseline))
    return rows


def row_of(subject: str, measure_name: str, at: str, values: Sequence[float], *, baseline: bool) -> Row:
    """The median over the passes, with the least and the greatest."""
    low, high = min(values), max(values)
    return Row(subject, measure_name, statistics.median(values), at, low, high, n=len(values), baseline=baseline)


def growth_exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The k of costs that grow like size to the power of k: least squares of the logarithms; sizes and costs > 0."""
    floor = 1e-9
    return statistics.linear_regression(
        [math.log(size) for size in sizes], [math.log(max(cost, floor)) for cost in costs]
    ).slope


async def measure(seconds: float, rounds: int, passes: int) -> list[Row]:
    """All rows. The delays come first: later observations would be a backlog of the graph."""
    async with servers("telemetry", "graph") as where:
        return [*await measure_delays(where, seconds), *await measure_throughput(where, rounds, passes)]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.telemetry", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="reporting time per size of the delay measurement")
    parser.add_argument("--rounds", type=int, default=5, choices=range(1, 9), metavar="1..8", help="reports per domain")
    parser.add_argument("--passes", type=int, default=3, help="backlogs per size")
    parser.add_argument("--json", metavar="OUT")
    options = parser.parse_args()
    rows = asyncio.run(measure(options.seconds, options.rounds, options.passes))
    print_table(rows)
    if options.json:
        write(options.json, command_line("bench.telemetry"), [], 0, Setting.REAL, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
