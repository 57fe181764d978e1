"""The embedded broker and Apache Kafka side by side: throughput and latency with the clients that the services use.

    python -m bench.bus [--rounds 5] [--messages 20000] [--json OUT]

Both run as processes on this machine, with one partition, acks from the one replica there is, and no sync to disk before an
acknowledgement (the default of either). Rounds alternate between the two, so that what else the machine does hits both;
a first round of each, in which the Java machine warms up, is not counted. Printed are the median over the rounds and the
lowest and highest round. The Python client is most of the cost at the rates of aiokafka; librdkafka (confluent-kafka)
shows more of the brokers themselves.

1. produce: all messages sent with aiokafka, lingering 5 ms, until the last acknowledgement.
2. consume: all of them read again from the start.
3. end to end: sent and read at the same time, until the last is read.
4. latency: one message at a time, from `send` until the consumer has it, no lingering.
5. librdkafka: produce and consume as above.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import confluent_kafka
import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bench.result import Row, Setting, command_line, print_table, write
from deploy.kafka import kafka

EMBEDDED, KAFKA = "embedded broker", "Apache Kafka"
READY_PATIENCE_S = 30.0

Figures = dict[str, float]


class Bus(Protocol):
    """A broker that can be started and stopped."""

    @property
    def bootstrap_servers(self) -> str: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


class EmbeddedProcess:
    """The embedded broker as a process of its own."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._process: subprocess.Popen[str] | None = None
        self._port = kafka.free_port()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "meridian.embedded.broker", "--port", str(self._port)]
        self._process = subprocess.Popen(
            [*command, "--data-dir", str(self._data_dir)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)


async def new_topic(bus: Bus) -> str:
    """A topic of one partition that is ready."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AIOKafkaAdminClient(bootstrap_servers=bus.bootstrap_servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, 1, 1)])
        deadline = time.monotonic() + READY_PATIENCE_S
        while True:
            described = (await admin.describe_topics([name]))[0]
            if not described["error_code"] and all(part["leader"] >= 0 for part in described["partitions"]):
                return name
            if time.monotonic() > deadline:
                raise TimeoutError(f"topic {name} has no leader")
            await asyncio.sleep(0.05)
    finally:
        await admin.close()


async def produced_per_s(bus: Bus, topic: str, messages: Sequence[bytes]) -> float:
    """Messages per second, from the first send to the last acknowledgement."""
    producer = AIOKafkaProducer(bootstrap_servers=bus.bootstrap_servers, acks="all", linger_ms=5)
    await producer.start()
    try:
        await producer.send_and_wait(topic, b"warm")
        started = time.perf_counter()
        await asyncio.gather(*[await producer.send(topic, message) for message in messages])
        return len(messages) / (time.perf_counter() - started)
    finally:
        await producer.stop()


async def consumer_at_end(bus: Bus, topic: str, *, from_start: bool = False) -> AIOKafkaConsumer:
    """A started consumer of the one partition, outside any group."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bus.bootstrap_servers)
    await consumer.start()
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    await (consumer.seek_to_beginning(partition) if from_start else consumer.seek_to_end(partition))
    await consumer.position(partition)
    return consumer


async def read(consumer: AIOKafkaConsumer, count: int) -> None:
    """Read ``count`` messages."""
    seen = 0
    while seen < count:
        batches = await consumer.getmany(timeout_ms=1000)
        seen += sum(len(records) for records in batches.values())


async def consumed_per_s(bus: Bus, topic: str, count: int) -> float:
    """Messages per second when ``count`` messages are read from the start."""
    consumer = await consumer_at_end(bus, topic, from_start=True)
    try:
        started = time.perf_counter()
        await read(consumer, count)
        return count / (time.perf_counter() - started)
    finally:
        await consumer.stop()


async def end_to_end_per_s(bus: Bus, topic: str, messages: Sequence[bytes]) -> float:
    """Messages per second from the first send until the last is read."""
    consumer = await consumer_at_end(bus, topic)
    producer = AIOKafkaProducer(bootstrap_servers=bus.bootstrap_servers, acks="all", linger_ms=5)
    await producer.start()
    try:
        started = time.perf_counter()
        reading = asyncio.create_task(read(consumer, len(messages)))
        for message in messages:
            await producer.send(topic, message)
        await reading
        return len(messages) / (time.perf_counter() - started)
    finally:
        await producer.stop()
        await consumer.stop()


async def latencies_ms(bus: Bus, topic: str, message: bytes, samples: int) -> list[float]:
    """Sorted times from `send` of one message until a waiting consumer has it."""
    consumer = await consumer_at_end(bus, topic)
    producer = AIOKafkaProducer(bootstrap_servers=bus.bootstrap_servers, acks="all", linger_ms=0)
    await producer.start()
    taken_ms = []
    try:
        for _ in range(samples + 20):
            started = time.perf_counter()
            await producer.send(topic, message)
            await consumer.getone()
            taken_ms.append((time.perf_counter() - started) * 1000)
            await asyncio.sleep(0.001)
    finally:
        await producer.stop()
        await consumer.stop()
    return sorted(taken_ms[20:])


def librdkafka_per_s(bus: Bus, topic: str, messages: Sequence[bytes]) -> tuple[float, float]:
    """(produced, consumed) messages per second with confluent-kafka."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bus.bootstrap_servers,
            "acks": "all",
            "linger.ms": 5,
            "queue.buffering.max.messages": len(messages) + 1,
        }
    )
    producer.produce(topic, b"warm")
    producer.flush()
    started = time.perf_counter()
    for message in messages:
        producer.produce(topic, message)
    producer.flush()
    produced = len(messages) / (time.perf_counter() - started)

    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bus.bootstrap_servers, "group.id": topic, "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    try:
        consumer.consume(1, READY_PATIENCE_S)  # the connection is made; the warming message is read
        started = time.perf_counter()
        seen = 0
        while seen < len(messages):
            seen += len(consumer.consume(1000, 0.5))
        return produced, seen / (time.perf_counter() - started)
    finally:
        consumer.close()


async def one_round(bus: Bus, messages: Sequence[bytes], samples: int) -> Figures:
    """All measurements once, each on a topic of its own where the others would disturb it."""
    topic, second, third = [await new_topic(bus) for _ in range(3)]
    figures = {
        "produce_messages_per_s": await produced_per_s(bus, topic, messages),
        "consume_messages_per_s": await consumed_per_s(bus, topic, len(messages)),
        "end_to_end_messages_per_s": await end_to_end_per_s(bus, second, messages),
    }
    taken_ms = await latencies_ms(bus, third, messages[0], samples)
    figures["latency_p50_ms"] = taken_ms[len(taken_ms) // 2]
    figures["latency_p99_ms"] = taken_ms[int(len(taken_ms) * 0.99)]
    produced, consumed = await asyncio.to_thread(librdkafka_per_s, bus, await new_topic(bus), list(messages) * 5)
    figures["librdkafka_produce_messages_per_s"] = produced
    figures["librdkafka_consume_messages_per_s"] = consumed
    return figures


def rows_of(rounds: dict[str, list[Figures]], slice_name: str, reason: str | None) -> list[Row]:
    """Median, lowest and highest of each figure; the ratio of the medians of each round; why there is no baseline."""
    rows = []
    for measure in rounds[EMBEDDED][0]:
        for subject, figures in rounds.items():
            values = [figure[measure] for figure in figures]
            rows.append(_row(subject, measure, values, slice_name, baseline=subject == KAFKA))
        if KAFKA in rounds:
            pairs = zip(rounds[EMBEDDED], rounds[KAFKA], strict=True)
            ratios = [ours[measure] / theirs[measure] for ours, theirs in pairs]
            rows.append(_row(f"{EMBEDDED} / {KAFKA}", f"{measure}_ratio", ratios, slice_name))
        else:
            rows.append(Row(KAFKA, measure, None, slice_name, n=0, baseline=True, reason=reason))
    return rows


def _row(subject: str, measure: str, values: Sequence[float], slice_name: str, *, baseline: bool = False) -> Row:
    return Row(
        subject,
        measure,
        statistics.median(values),
        slice_name,
        min(values),
        max(values),
        len(values),
        baseline=baseline,
    )


async def measure(buses: dict[str, Bus], messages: Sequence[bytes], rounds: int, samples: int) -> dict[str, Any]:
    """Alternate between the buses; the first round of each only warms up."""
    measured: dict[str, list[Figures]] = {subject: [] for subject in buses}
    for number in range(rounds + 1):
        for subject, bus in buses.items():
            figures = await one_round(bus, messages, samples)
            if number:
                measured[subject].append(figures)
    return measured


def main() -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.bus", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=20_000, help="per measurement and round")
    parser.add_argument("--message-bytes", type=int, default=300)
    parser.add_argument("--samples", type=int, default=500, help="of latency, per round")
    parser.add_argument("--seed", type=int, default=0, help="of the messages' content")
    parser.add_argument("--json", type=Path, help="write the result form here")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the brokers are stopped in that case as well
    generator = random.Random(options.seed)
    messages = [generator.randbytes(options.message_bytes) for _ in range(options.messages)]
    reason = kafka.missing()
    with tempfile.TemporaryDirectory(prefix="bench-bus-") as folder:
        buses: dict[str, Bus] = {EMBEDDED: EmbeddedProcess(Path(folder) / "embedded")}
        if reason is None:
            buses[KAFKA] = kafka.KafkaNode(Path(folder) / "kafka")
        try:
            for bus in buses.values():
                bus.start()
            measured = uvloop.run(measure(buses, messages, options.rounds, options.samples))
        finally:
            for bus in buses.values():
                bus.stop()
    rows = rows_of(measured, f"message={options.message_bytes}B", reason)
    print_table(rows)
    if options.json is not None:
        command = command_line("bench.bus")
        write(options.json, command.strip(), [], options.seed, Setting.REAL, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
