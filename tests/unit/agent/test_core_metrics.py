"""Each of the twelve core metrics has a collector that gives it a number, and telemetry takes it as it is."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent.collectors.availability import AvailabilityCollector, Look
from agent.collectors.base import Reading
from agent.collectors.declared import AllocationCollector
from agent.collectors.host import HostSample, host_values
from agent.collectors.metrics import CORE, UNITS, Metric
from agent.collectors.sensing import sense
from agent.contract_messages import reading as message_of
from meridian.contracts.resource.v1 import resource_pb2 as pb
from services.telemetry.metric_catalogue import METRICS
from services.telemetry.reading_check import Limits, ReadingCheck
from tests.fuzz.pages import DOCUMENTS, PAGES

NOW = datetime.fromtimestamp(1777636800, UTC)
ROOT = Path(__file__).parents[3]
MORE = (
    # Exporters whose peaks and rates need a known chip or an earlier scrape.
    'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",UUID="GPU-aa",modelName="NVIDIA A100-SXM4-80GB"} 0.5\n',
)


def _collected(folder: Path) -> list[Reading]:
    readings: list[Reading] = []
    for text in (*PAGES, *DOCUMENTS, *MORE):
        readings += sense(text, NOW, peak_of=lambda _device, _model: 3.12e14).readings
    readings += AllocationCollector({"n1": 1}, lambda: {"n1": set()}).collect(NOW)
    machines = AvailabilityCollector(["n1"], lambda: Look({"n1"}, set()), folder / "a.json")
    machines.collect(NOW - timedelta(seconds=10))
    return [*readings, *machines.collect(NOW)]


def _of_host() -> set[Metric]:
    early = HostSample(1.0, 10.0, 5, 10, 100, 1000, 1000, 1e9, 0.5, 1.0)
    late = HostSample(2.0, 20.0, 5, 10, 100, 2000, 2000, 1e9, 0.5, 1.0)
    return {metric for metric, value in host_values(early, late, 10.0).items() if value.value is not None}


def test_each_of_the_twelve_is_given_a_number_by_a_collector(tmp_path: Path) -> None:
    given = {item.metric for item in _collected(tmp_path) if item.value is not None} | _of_host()
    assert {metric for metrics in CORE.values() for metric in metrics} <= given


def test_telemetry_takes_availability_of_nodes_and_of_the_domain(tmp_path: Path) -> None:
    readings = [item for item in _collected(tmp_path) if item.metric is Metric.AVAILABILITY]
    messages = [message_of(item) for item in readings if item.value is not None]
    check = ReadingCheck({"n1": frozenset()}, {}, NOW.timestamp(), Limits(5.0, 3, 600.0))
    check.run(messages)
    assert not check.issues
    assert [(item.node_id, item.value) for item in check.standing] == [("n1", 1.0), ("", 1.0)]
    assert {item.statistic for item in check.standing} == {pb.READING_STATISTIC_MEAN}


def test_agents_and_telemetry_mean_the_same_by_a_metric_and_the_documents_name_it() -> None:
    assert {metric.value: unit for metric, unit in UNITS.items()} == {name: spec.unit for name, spec in METRICS.items()}
    assert {metric.value: number for number, metrics in CORE.items() for metric in metrics} == {
        name: spec.core for name, spec in METRICS.items() if spec.core
    }
    rows = re.findall(r"^\| (\d+) \|.*$", (ROOT / "docs/telemetry.md").read_text(), re.MULTILINE)
    assert [int(number) for number in rows] == list(range(1, 13))
    table = (ROOT / "docs/telemetry.md").read_text()
    assert all(f"`{metric}`" in table for metrics in CORE.values() for metric in metrics)
