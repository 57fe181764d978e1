"""Two levels over the embedded broker with real processes against one level: `python -m bench.two_level --bus`.

A shard of the scheduler and a decider of all domains, each a process with PostgreSQL (fsync on) behind it; the baseline is
the scheduler on one level with the same servers. A step submits jobs at once, each one task of 1 to 8 accelerators; the clock
runs from before the first is sent until `JobPlaced` of the last has arrived here. Then all runs are ended and everything comes
to rest. The network is empty before each step. Times are wall time, on whatever else the machine does.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import numpy as np
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from google.protobuf.message import Message

from bench.result import Row
from bench.servers import ROOT, Servers, servers, service
from meridian.catalogue import catalogue
from meridian.codec import decode, encode
from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.graph.v1 import graph_pb2
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.resource.v1.resource_pb2 import Accelerator, DomainInventory, NodeInventory
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.scheduler.v1 import scheduler_pb2
from meridian.database import migrate

SEED = 11
NODES, DEVICES, CPUS = 50, 8, 64.0
SHAPES: tuple[tuple[int, int], ...] = ((5, 1), (5, 100), (20, 1), (20, 100))
"""Domains and units per step."""
WARMING = 2
"""Steps that do not count: consumers join, classes are told."""
WAIT_S = 60.0
_KINDS: tuple[type[Message], ...] = (
    job_pb2.JobPlaced,
    job_pb2.JobFinished,
    run_pb2.Assignment,
    scheduler_pb2.PlacementRequest,
    scheduler_pb2.PlacementAnswer,
    scheduler_pb2.DomainSummary,
)


class Client:
    """Submits jobs and plays the agents; sees what the network says of them."""

    def __init__(self, where: Servers) -> None:
        self._producer = AIOKafkaProducer(bootstrap_servers=where.bootstrap_servers, acks="all")
        topics = sorted({catalogue().event_of(kind).topic.name for kind in _KINDS})
        self._consumer = AIOKafkaConsumer(
            *topics,
            bootstrap_servers=where.bootstrap_servers,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=100,
        )
        self._changed = asyncio.Condition()
        self.seen: dict[type[Message], dict[str, Message]] = {kind: {} for kind in _KINDS}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect."""
        await self._producer.start()
        await self._consumer.start()
        self._task = asyncio.create_task(self._read())

    async def stop(self) -> None:
        """Disconnect."""
        if self._task is not None:
            self._task.cancel()
        await self._consumer.stop()
        await self._producer.stop()

    async def _read(self) -> None:
        by_name = {kind.DESCRIPTOR.full_name: kind for kind in _KINDS}
        async for record in self._consumer:
            envelope = decode(record.value, record.headers)
            kind = by_name.get(envelope.type.name)
            if kind is not None:
                async with self._changed:
                    self.seen[kind][f"{envelope.source}|{envelope.id}"] = envelope.data
                    self._changed.notify_all()

    async def publish(self, messages: Sequence[Message]) -> None:
        """Send in order."""
        sent = []
        for message in messages:
            record = encode(message, event_id=uuid.uuid4().hex, source="/bench", time=datetime.now(UTC))
            sent.append(await self._producer.send(record.topic, record.value, key=record.key, headers=record.headers))
        await asyncio.gather(*sent)

    async def until(self, kind: type[Message], count: int) -> None:
        """Wait until so many events of a kind were seen; TimeoutError after a minute."""
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(lambda: len(self.seen[kind]) >= count)


def network(domains: int) -> list[Message]:
    """Equal domains with slightly different prices."""
    found: list[Message] = []
    for number in range(domains):
        name = f"domain-{number:03}"
        inventory = DomainInventory(domain_id=name, security_level=1)
        inventory.price_per_accelerator_hour.micro_units = 1_000_000 + 10_000 * (number % 7)
        inventory.price_per_accelerator_hour.currency = "CNY"
        nodes = [
            graph_pb2.GraphNode(
                inventory=NodeInventory(
                    node_id=f"{name}-{index:03}",
                    cpus=CPUS,
                    memory_bytes=2**39,
                    address="127.0.0.1",
                    accelerators=[
                        Accelerator(index=device, vendor="NVIDIA", model="A100", emulated=True)
                        for device in range(DEVICES)
                    ],
                ),
                state=graph_pb2.NODE_STATE_HEALTHY,
            )
            for index in range(NODES)
        ]
        found.append(graph_pb2.GraphUpdated(domain_id=name, version=1, full=True, domain=inventory, nodes=nodes))
    return found


def submissions(step: int, count: int, source: random.Random) -> list[Message]:
    """The jobs of a step."""
    found: list[Message] = []
    for number in range(count):
        size = source.choice((1, 1, 2, 2, 4, 8))
        message = job_pb2.JobSubmitted(
            job_id=f"job-{step}-{number}",
            tenant_id=f"tenant-{number % 10}",
            spec=job_pb2.JobSpec(
                kind=job_pb2.JOB_KIND_TASK, command=["run"], resources=Resources(cpus=size, accelerators=size)
            ),
        )
        message.submitted_at.GetCurrentTime()
        found.append(message)
    return found


async def measure(domains: int, count: int, steps: int, levels: str) -> tuple[list[float], Client]:
    """Seconds of each step, those for warming left out."""
    source = random.Random(SEED)
    async with AsyncExitStack() as stack:
        where = await stack.enter_async_context(servers("scheduler"))
        if levels == "two":
            scripts = ROOT / "services/scheduler/domains/migrations"
            await migrate(where.database_url, "scheduler_domain", scripts)
        client = Client(where)
        await client.start()
        stack.push_async_callback(client.stop)
        await client.publish(network(domains))
        if levels == "two":
            await stack.enter_async_context(service(where, "scheduler_domain"))
            await client.until(scheduler_pb2.DomainSummary, domains)
        await stack.enter_async_context(service(where, "scheduler", MERIDIAN_SCHEDULER_LEVELS=levels))
        times: list[float] = []
        placed = 0
        for step in range(steps + WARMING):
            jobs = submissions(step, count, source)
            begun_s = time.perf_counter()
            await client.publish(jobs)
            await client.until(job_pb2.JobPlaced, placed + count)
            times.append(time.perf_counter() - begun_s)
            await client.until(run_pb2.Assignment, placed + count)
            new = list(client.seen[run_pb2.Assignment].values())[placed:]
            placed += count
            await client.publish([_ended(item) for item in new])
            await client.until(job_pb2.JobFinished, placed)
            await asyncio.sleep(0.3)
        return times[WARMING:], client


def _ended(item: Message) -> Message:
    assert isinstance(item, run_pb2.Assignment)
    return run_pb2.RunFinished(
        run_id=item.run_id,
        job_id=item.job_id,
        unit_index=item.unit_index,
        epoch=item.epoch,
        domain_id=item.domain_id,
    )


def coordination_s(client: Client) -> list[float]:
    """Of each unit that was placed, the steps for warming left out."""
    asked_s: dict[tuple[str, int], float] = {}
    for request in client.seen[scheduler_pb2.PlacementRequest].values():
        assert isinstance(request, scheduler_pb2.PlacementRequest)
        at_s = request.asked_at.ToNanoseconds() / 1e9
        for item in request.wanted:
            key = item.job_id, item.unit_index
            asked_s[key] = min(asked_s.get(key, at_s), at_s)
    answered_s: dict[tuple[str, int], float] = {}
    for answer in client.seen[scheduler_pb2.PlacementAnswer].values():
        assert isinstance(answer, scheduler_pb2.PlacementAnswer)
        for placed in answer.placed:
            answered_s[placed.name.job_id, placed.name.unit_index] = answer.summary.at.ToNanoseconds() / 1e9
    counted = [key for key in answered_s if int(key[0].split("-")[1]) >= WARMING]
    return [answered_s[key] - asked_s[key] for key in counted]


def quantiles(subject: str, what: str, times: Sequence[float], where: str, *, baseline: bool) -> list[Row]:
    """Median and 99th percentile of times in seconds, with the least and the greatest."""
    low, high, size = min(times), max(times), len(times)
    return [
        Row(
            subject,
            f"{what}_p{percent}_s",
            float(np.quantile(times, percent / 100)),
            where,
            low=low,
            high=high,
            n=size,
            baseline=baseline,
        )
        for percent in (50, 99)
    ]


def rows(steps: int, shapes: Sequence[tuple[int, int]] = SHAPES) -> list[Row]:
    """The figures of all shapes."""
    found: list[Row] = []
    for domains, count in shapes:
        where = f"{domains} domains, {domains * NODES} nodes, {count} units, over the bus"
        for levels, baseline in (("two", False), ("one", True)):
            times, client = asyncio.run(measure(domains, count, steps, levels))
            subject = f"{levels} level{'s' if levels == 'two' else ''}"
            found += quantiles(subject, "submission_to_placement", times, where, baseline=baseline)
            if not baseline:
                found += quantiles(subject, "coordination", coordination_s(client), where, baseline=False)
                refused = sum(
                    len(item.refused)
                    for item in client.seen[scheduler_pb2.PlacementAnswer].values()
                    if isinstance(item, scheduler_pb2.PlacementAnswer)
                )
                units = count * (steps + WARMING)
                found.append(Row(subject, "feedback_ratio", refused / units, where, n=units))
    return found
