"""Every conformance test runs on the embedded broker and, where it can be started, on Apache Kafka."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.kafka import kafka
from tests.conformance.bus_under_test import BusUnderTest, EmbeddedBus, KafkaNode
from tests.fixtures_embedded import free_port


@pytest.fixture(scope="package", params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def bus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BusUnderTest]:
    """A running broker, the same one for all tests of its kind, stopped with the last of them."""
    data_dir: Path = tmp_path_factory.mktemp(request.param)
    if request.param == "kafka" and (reason := kafka.missing()) is not None:
        pytest.skip(f"Apache Kafka cannot run here: {reason}")
    under_test: BusUnderTest = (
        KafkaNode(data_dir, free_port("kafka")) if request.param == "kafka" else EmbeddedBus(data_dir)
    )
    under_test.start()
    try:
        yield under_test
    finally:
        with contextlib.suppress(ProcessLookupError):
            under_test.stop()


@pytest.fixture
def unique() -> str:
    """A name that no other test uses."""
    return f"t-{uuid.uuid4().hex[:12]}"
