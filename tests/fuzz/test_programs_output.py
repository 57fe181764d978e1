"""Spoiled output of programs and spoiled messages: read with numbers that stand there, or refused with an error of its kind."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from agent import journal
from agent.collectors.unknown import UnknownError
from agent.engines.slurm.allocation import hosts_of, submitted_job
from agent.engines.slurm.words import (
    SEPARATOR,
    given_of,
    indices_of,
    nodes_of,
    queue_of,
    refusal_of,
    tasks_of,
    time_of,
)
from agent.node.rank_output import MAX_STEP, OutputScanner
from agent.node.wire import LineDecoder, WireError
from agent.probing.wire import HEADER_BYTES, Kind, Packet, announced, header, packet
from meridian.resource_model import parse_output
from tests.fuzz.spoiling import SEED, spoiled, spoiled_bytes

QUEUE = (
    SEPARATOR.join(("1", "RUNNING", "2026-11-22T01:42:01", "n[1-2],login", "meridian:north:job-1:0:1", "None")) + "\n",
    SEPARATOR.join(("7", "PENDING", "N/A", "", "wrap", "Resources")) + "\n",
)
NODES = (
    (
        "NodeName=n1 Arch=x86_64 CPUAlloc=6 CPUEfctv=8 CPUTot=8 CPULoad=6.62 Gres=gpu:h100:4 GresUsed=gpu:h100:3(IDX:0-1,3) "
        "RealMemory=16000 AllocMem=600 State=MIXED BootTime=2026-11-21T18:43:51 Reason=disk [root@2026-11-22T01:41:34]\n"
    ),
    (
        "NodeName=n2 CPUAlloc=0 CPUTot=8 Gres=(null) GresUsed=gpu:0 RealMemory=16000 AllocMem=0 State=IDLE*+DRAIN "
        "BootTime=None\n"
    ),
)
JOBS = (
    (
        "JobId=1 JobState=RUNNING NodeList=n[1-2] JOB_GRES=gpu:h100:8 Nodes=n[1-2] CPU_IDs=0-5 Mem=600 "
        "GRES=gpu:h100:4(IDX:0-3) MinCPUsNode=3\n"
    ),
    "Nodes=n1 CPU_IDs=0-5 Mem=0 GRES=gpu:2(IDX:1,3) Nodes=n[2-3] CPU_IDs=0 Mem=0 GRES= x=y",
)
LISTS = ("rack[1-2]n[01-03],login", "n[1-4,7]", "a,b", "", "gpu[001-016]-ib")
GRES = ("gpu:h100:3(IDX:0-1,3)", "gpu:0(IDX:N/A)", "gpu:h100:1(IDX:0),gpu:a100:2(IDX:4-5),nic:1(IDX:7)")
DIGITS = re.compile(r"[0-9]+")


def _numbers(text: str) -> set[int]:
    return {int(found) for found in DIGITS.findall(text)}


def _stands_between(indices: Iterable[int], text: str) -> bool:
    """Every index is a number of the text or lies between two of them, as those of a range do."""
    numbers = _numbers(text)
    return all(index in numbers or min(numbers) <= index <= max(numbers) for index in indices)


def test_a_spoiled_queue_has_jobs_with_numbers_that_it_names() -> None:
    for text in spoiled(QUEUE):
        try:
            jobs, odd = queue_of(text)
        except ValueError:
            continue
        assert jobs.keys() <= _numbers(text), text
        assert set(odd) <= set(text.split("\n")), text
        for job in jobs.values():
            assert job.starts_at is None or str(job.starts_at.year).zfill(4) in text, text


def test_spoiled_nodes_have_amounts_that_stand_there() -> None:
    for text in spoiled(NODES):
        try:
            nodes, odd = nodes_of(text)
        except ValueError:
            continue
        numbers = _numbers(text) | {0}
        assert odd.keys() <= nodes.keys() | set(text.split("\n")), text
        for node in nodes.values():
            amounts = (node.cpus, node.cpus_in_use, node.memory_mib, node.memory_in_use_mib)
            assert numbers.issuperset(amounts), text
            assert _stands_between(node.indices_in_use, text), text
            assert node.booted_at_s >= -62135596800


def test_a_spoiled_job_was_given_what_stands_there() -> None:
    for text in spoiled(JOBS):
        try:
            given = given_of(text)
        except (ValueError, UnknownError):
            continue
        assert all(indices is None or _stands_between(indices, text) for indices in given.values()), text


def test_spoiled_lists_are_expanded_or_refused() -> None:
    for text in spoiled(LISTS):
        try:
            hosts = hosts_of(text)
        except ValueError:
            continue
        letters = set(text) | set("0123456789")
        assert all(host and set(host) <= letters for host in hosts), text


def test_spoiled_indices_are_numbers_of_the_text_or_refused() -> None:
    for text in spoiled(GRES):
        try:
            indices = indices_of(text)
        except ValueError:
            continue
        assert list(indices) == sorted(set(indices))
        assert _stands_between(indices, text), text


def test_spoiled_words_of_slurm_are_read_or_refused() -> None:
    for text in spoiled(
        ("2(x3),1", "12", "12;cluster", "2026-11-22T01:42:01", "sbatch: error: Batch job submission failed: x")
    ):
        assert refusal_of(text) is not None
        submitted = submitted_job(text)
        assert submitted is None or submitted in _numbers(text), text
        found = time_of(text)
        assert found is None or found.tzinfo is UTC
        try:
            tasks = tasks_of(text)
        except ValueError:
            continue
        assert set(tasks) <= _numbers(text), text


def test_a_range_without_end_is_refused_before_it_is_made() -> None:
    for refuse in (lambda: hosts_of("n[0-9999999999]"), lambda: indices_of("gpu:1(IDX:0-9999999999)"), lambda: tasks_of("1(x9999999999)")):  # fmt: skip
        with pytest.raises(ValueError, match="more than"):
            refuse()
    with pytest.raises(ValueError, match="more than"):
        hosts_of("n" + "[0-999]" * 6)


def test_a_number_that_slurm_does_not_write_is_none() -> None:
    for word in ("1_000", "٣", "+8", "-8"):
        nodes, odd = nodes_of(f"NodeName=n1 CPUTot={word}")
        assert nodes["n1"].cpus == 0
        assert word in odd["n1"]
    with pytest.raises(ValueError, match="form"):
        queue_of(SEPARATOR.join(("٣", "RUNNING", "N/A", "", "", "")))


def test_what_a_spoiled_command_prints_begins_with_its_amount() -> None:
    for text in spoiled(("42 unit=seats vendor=acme", "0.5", "3 free words", "1e3\n7\n", "17\tunit=x")):
        try:
            value, attributes = parse_output(text)
        except ValueError:
            continue
        first = next(line for line in text.splitlines() if line.strip()).split()[0]
        assert value == float(first) >= 0, text
        assert all(len(item) <= 256 for item in attributes.values())


LINES = (
    b'@meridian {"progress": {"step": 12, "total_steps": 200, "metrics": {"loss": 3.21}}}\n',
    b'@meridian {"checkpoint": {"step": 100, "path": "/abs/dir/step-000100.npz"}}\n',
    b"step 12 of 200\n",
)


def test_no_byte_of_a_spoiled_output_is_lost_and_its_reports_are_sound() -> None:
    drawn = random.Random(SEED)
    for body in spoiled_bytes(LINES):
        scanner, logged, reports, at = OutputScanner(), b"", [], 0
        while at < len(body):
            to = at + drawn.randint(1, 60)
            text, found = scanner.feed(body[at:to])
            logged, at = logged + text, to
            reports += found
        logged += scanner.finish()
        numbers = {float(item) for item in re.findall(rb"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", body)}
        assert body.count(b"\n") == logged.count(b"\n") + len(reports)
        for report in reports:
            assert 0 <= report.body["step"] <= MAX_STEP
            assert float(report.body["step"]) in numbers, body
            assert all(math.isfinite(value) and value in numbers for value in report.body.get("metrics", {}).values())


def test_a_spoiled_packet_is_the_same_packet_or_none() -> None:
    sound = [Packet(kind, 7, 2**63 + 5, name).packed() for kind in Kind for name in ("beijing", "上海")]
    for body in spoiled_bytes(sound):
        found = packet(body)
        assert found is None or found.packed() == body
        if len(body) >= HEADER_BYTES:
            announced(body[:HEADER_BYTES])
    for body in spoiled_bytes([header(10**6, "beijing")]):
        size = announced(body[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0"))
        assert size is None or (0 <= size[0] < 2**32 and 0 < size[1] <= 200)


def test_spoiled_lines_between_agent_and_node_are_objects_or_end_the_connection() -> None:
    sound = [json.dumps(item).encode() + b"\n" for item in ({"op": "ping"}, {"ev": "beat", "n": [1, 2.5, None]})]
    for body in spoiled_bytes(sound):
        try:
            messages = LineDecoder().feed(body)
        except WireError:
            continue
        assert all(isinstance(message, dict) for message in messages)
    with pytest.raises(WireError):
        LineDecoder().feed(b"[" * 100_000 + b"\n")


def test_a_spoiled_line_of_the_journal_is_no_other_record() -> None:
    records: list[dict[str, Any]] = [
        {"kind": "epoch", "job": "j", "epoch": 3},
        {"kind": "started", "at": datetime(2026, 1, 1, tzinfo=UTC).isoformat()},
    ]
    lines = [journal.encode(record).rstrip(b"\n") for record in records]
    for body in spoiled_bytes(lines):
        record = journal.decode(body)
        assert record is None or record in records
