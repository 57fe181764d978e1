"""What a shard spends on reports of steps, most of which are of other shards' runs: passed over by key, against decoded first.

    python -m bench.records_heard [--records 20000] [--rounds 9] [--json OUT]

Records of `RunProgress` with six metrics as agents send them, of 1,000 jobs that fall to shards as tenants do. One shard takes them
in as `Bus.stream` does, with `keys` and without (the baseline), in turn in one process. Figures are processor time per record, median
of the rounds with the lowest and highest; the ratio is of each pair. Reading from the broker and what a report of an own run leads
to are the same in both, and left out.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from aiokafka import ConsumerRecord

from bench.result import Row, Setting, command_line, print_table, write
from meridian.codec import decode, encode
from meridian.contracts.run.v1 import run_pb2
from meridian.glance import Concern
from meridian.sharding import shard_of_tenant

SEED = 5
SHARDS = (1, 2, 4, 16)
JOBS = 1000
METRICS = ("loss", "learning_rate", "tokens_per_s", "step_time_s", "grad_norm", "memory_bytes")
PROGRESS = run_pb2.RunProgress.DESCRIPTOR.full_name

Records = Sequence[ConsumerRecord[Any, Any]]


def records(count: int) -> Records:
    """So many reports, of jobs in turn."""
    source = random.Random(SEED)
    found = []
    for number in range(count):
        job = f"job-{number % JOBS:04}"
        message = run_pb2.RunProgress(
            run_id=f"{job}.0.1", job_id=job, epoch=1, domain_id="domain-1", step=number, total_steps=100_000
        )
        message.at.FromDatetime(datetime(2026, 1, 1, tzinfo=UTC))
        for name in METRICS:
            message.metrics[name] = source.random()
        sent = encode(
            message,
            event_id=f"{number:032}",
            source="/agents/domain-1",
            time=datetime(2026, 1, 1, tzinfo=UTC),
            traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
        found.append(ConsumerRecord(sent.topic, 0, number, 0, 0, sent.key, sent.value, None, 0, 0, sent.headers))
    return found


def heard(batch: Records, keys: Callable[[str], bool], own: Callable[[str], bool]) -> int:
    """How many reports of own jobs are in a batch."""
    concern = Concern({PROGRESS}, keys)
    envelopes = [decode(record.value, record.headers) for record in concern.of(batch)]
    return sum(own(envelope.key) for envelope in envelopes)


def seconds_per_record(batch: Records, keys: Callable[[str], bool], own: Callable[[str], bool]) -> float:
    """Processor time."""
    begun = time.process_time()
    heard(batch, keys, own)
    return (time.process_time() - begun) / len(batch)


def rows(count: int, rounds: int) -> list[Row]:
    """The figures for each number of shards."""
    batch, found = records(count), []
    for shards in SHARDS:
        # Ten jobs of a tenant each.
        jobs = {f"job-{n:04}" for n in range(JOBS) if shard_of_tenant(f"tenant-{n // 10}", shards) == 0}
        own = jobs.__contains__
        pairs = [
            (seconds_per_record(batch, own, own), seconds_per_record(batch, lambda _: True, own)) for _ in range(rounds)
        ]
        where = f"{shards} shards, {len(jobs)} of {JOBS} jobs are this one's"
        for subject, values in (("by key", [new for new, _ in pairs]), ("decoded first", [old for _, old in pairs])):
            row = Row(
                subject,
                "per_record_s",
                statistics.median(values),
                where,
                low=min(values),
                high=max(values),
                n=rounds,
                baseline=subject == "decoded first",
            )
            found.append(row)
        ratios = [new / old for new, old in pairs]
        found.append(
            Row("by key", "time_ratio", statistics.median(ratios), where, low=min(ratios), high=max(ratios), n=rounds)
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.records_heard", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", metavar="OUT")
    options = parser.parse_args(arguments)
    found = rows(options.records, options.rounds)
    print_table(found)
    if options.json:
        command = command_line("bench.records_heard", arguments)
        write(options.json, command, [], SEED, Setting.REAL, found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
