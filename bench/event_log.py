"""Audit a set of jobs against the event log itself: every job finished, none lost, none run twice."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from meridian.catalogue import catalogue
from meridian.codec import Envelope, decode
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.run.v1 import run_pb2

_KINDS = (
    job_pb2.JobSubmitted,
    job_pb2.JobQueued,
    job_pb2.JobPlaced,
    job_pb2.JobFinished,
    run_pb2.RunStarted,
    run_pb2.RunFinished,
    run_pb2.RunFailed,
    run_pb2.Assignment,
)


@dataclass(slots=True)
class Audit:
    """What the event log says about the jobs. ``problems`` is empty when all is as it should be."""

    jobs: int
    succeeded: int = 0
    runs_started: int = 0
    repeated_runs: int = 0
    repeated_because: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    first_submitted_s: float = 0.0
    last_finished_s: float = 0.0

    @property
    def elapsed_s(self) -> float:
        """From the first submission to the last end, by the times of the events."""
        return self.last_finished_s - self.first_submitted_s


async def read_event_log(bootstrap_servers: str) -> list[Envelope]:
    """Every event about jobs and runs that the bus holds; events sent twice (same id) appear once."""
    topics = {catalogue().event_of(kind).topic.name for kind in _KINDS}
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers)
    await consumer.start()
    try:
        partitions = [
            TopicPartition(topic, number) for topic in topics for number in await _partitions(consumer, topic)
        ]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        seen: dict[tuple[str, str], Envelope] = {}
        while [item for item in partitions if await consumer.position(item) < ends[item]]:
            batches = await consumer.getmany(timeout_ms=500, max_records=5000)
            for records in batches.values():
                for record in records:
                    envelope = decode(record.value, record.headers)
                    seen.setdefault((envelope.source, envelope.id), envelope)
    finally:
        await consumer.stop()
    return list(seen.values())


async def _partitions(consumer: AIOKafkaConsumer, topic: str) -> Sequence[int]:
    await consumer._client.force_metadata_update()  # noqa: SLF001 - the public call answers from the cache
    found = consumer.partitions_for_topic(topic)
    return sorted(found or range(catalogue().topics[topic].partitions))


def audit(job_ids: Collection[str], events: Sequence[Envelope]) -> Audit:
    """Hold jobs of one unit each against the event log.

    A job is right when it was submitted once, every started run has an end, exactly one run finished, and it finished
    once, with success. A second started run is counted as repeated; it is a problem unless the first one failed.
    """
    wanted = set(job_ids)
    result = Audit(jobs=len(wanted))
    by_kind: defaultdict[str, Counter[str]] = defaultdict(Counter)
    told: set[tuple[str, str]] = set()
    outcomes: dict[str, int] = {}
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    submitted_s: list[float] = []
    finished_s: list[float] = []
    for event in events:
        data: Any = event.data
        if getattr(data, "job_id", "") not in wanted:
            continue
        run_id = getattr(data, "run_id", "")
        if run_id and (event.type.name, run_id) in told:
            continue  # an agent tells the state of a run again when its order comes again
        told.add((event.type.name, run_id))
        by_kind[event.type.name][data.job_id] += 1
        if isinstance(data, job_pb2.JobFinished):
            outcomes[data.job_id] = data.outcome
            finished_s.append(event.time.timestamp())
        elif isinstance(data, run_pb2.RunFailed | job_pb2.JobPreempted):
            reasons[data.job_id].append(f"{data.job_id}: {type(data).__name__}: {data.reason}")
        elif isinstance(data, job_pb2.JobSubmitted):
            submitted_s.append(event.time.timestamp())

    def count(kind: Any, job: str) -> int:
        return by_kind[kind.DESCRIPTOR.full_name][job]

    for job in sorted(wanted):
        started, failed = count(run_pb2.RunStarted, job), count(run_pb2.RunFailed, job)
        expected = {
            "submitted": (count(job_pb2.JobSubmitted, job), 1),
            "finished runs": (count(run_pb2.RunFinished, job), 1),
            "ends": (count(job_pb2.JobFinished, job), 1),
        }
        result.problems += [
            f"{job}: {name} {got}, not {right}" for name, (got, right) in expected.items() if got != right
        ]
        if started > 1:
            result.repeated_runs += 1
            result.repeated_because += reasons[job]
        if started > 1 + failed:
            result.problems.append(f"{job}: {started} runs started but only {failed} failed")
        if outcomes.get(job) != job_pb2.JOB_OUTCOME_SUCCEEDED:
            result.problems.append(f"{job}: outcome {outcomes.get(job)}")
        else:
            result.succeeded += 1
        result.runs_started += started
    result.first_submitted_s = min(submitted_s, default=0.0)
    result.last_finished_s = max(finished_s, default=0.0)
    return result


def read_and_audit(bootstrap_servers: str, job_ids: Collection[str]) -> Audit:
    """`audit` on what the bus holds now."""
    return audit(job_ids, asyncio.run(read_event_log(bootstrap_servers)))
