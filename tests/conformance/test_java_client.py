"""The official Java client finds what it needs on either bus. Skipped, visibly, without Java or the client's jar."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from deploy.kafka import kafka
from tests.conformance.bus_under_test import BusUnderTest
from tests.conformance.clients import consumer_of, take

PROGRAM = Path(__file__).parent / "java" / "RoundTrip.java"


@pytest.mark.kafka
async def test_round_trip(bus: BusUnderTest, unique: str) -> None:
    if (reason := kafka.missing()) is not None:
        pytest.skip(f"the Java client cannot run here: {reason}")
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    command = ["java", quiet, "-cp", f"{kafka.JARS}/*", str(PROGRAM), bus.bootstrap_servers, unique, "500"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == ["members 1", "read 500", "committed 500", "end 500", "retention 600000"]
    async with consumer_of(bus, unique) as consumer:
        records = await take(consumer, 500)
    assert {record.value for record in records} == {f"java-{number}".encode() for number in range(500)}
