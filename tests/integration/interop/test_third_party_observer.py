"""A reader in Go, with a Kafka client of its own, understands every partner event from the contracts alone."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from meridian.catalogue import Audience, catalogue
from meridian.codec import JSON, encode
from meridian.contracts.job.v1 import job_pb2
from tests.contract.golden import fill
from tests.fixtures_embedded import data_directory
from tests.harness import PATIENCE_S, environment
from tests.integration.interop.conftest import ROOT

SOURCE = ROOT / "examples" / "third_party_observer"
EVENTS = sorted(name for name, event in catalogue().events.items() if event.topic.audience is Audience.PARTNER)


@pytest.fixture(scope="session")
def observer() -> Iterator[Path]:
    """The built program; skipped where there is no Go."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    with data_directory() as directory:
        program = directory / "observer"
        result = subprocess.run(
            ["go", "build", "-mod=readonly", "-o", str(program), "."],
            cwd=SOURCE,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        if result.returncode != 0:
            pytest.fail(result.stderr[-3000:])
        yield program


@pytest.mark.timeout(900)
async def test_every_event_is_read_as_it_was_meant(database_url: str, observer: Path) -> None:
    sent = {name: fill(catalogue().event(name).message()) for name in EVENTS}
    async with environment(database_url) as stack:
        await stack.bus.publish(*sent.values())
        in_json = job_pb2.JobQueued(job_id="in-json", units=2)
        record = encode(
            in_json, event_id="in-json", source="/test", time=datetime(2026, 1, 1, tzinfo=UTC), content_type=JSON
        )
        await stack.bus.publish_raw(record.topic, b"\xff", [("ce_type", b"no.such.Event")])
        await stack.bus.publish_raw(record.topic, record.value, record.headers, record.key)
        process = await asyncio.create_subprocess_exec(
            str(observer),
            env={"MERIDIAN_CONTRACTS": str(ROOT), "MERIDIAN_KAFKA_BOOTSTRAP_SERVERS": stack.bootstrap_servers},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        lines: list[dict[str, Any]] = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                while len(lines) < len(sent) + 1:
                    lines.append(json.loads(await process.stdout.readline()))
        finally:
            process.terminate()
            _, errors = await process.communicate()
    assert process.returncode == 0
    assert b"no.such.Event" in errors, "what it cannot read it names and passes over"
    read = {line["type"]: line for line in lines if line["key"] != "in-json"}
    assert set(read) == set(EVENTS)
    for name, message in sent.items():
        event = catalogue().event(name)
        assert (read[name]["topic"], read[name]["key"]) == (event.topic.name, event.key_of(message))
        assert json_format.ParseDict(read[name]["data"], event.message()) == message
    [plain] = [line for line in lines if line["key"] == "in-json"]
    assert json_format.ParseDict(plain["data"], job_pb2.JobQueued()) == in_json
