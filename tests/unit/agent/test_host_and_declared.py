"""Host readings from two samples; declared accelerators that never pretend to be measured."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from agent.collectors import host
from agent.collectors.base import Source
from agent.collectors.declared import AllocationCollector, DeclaredAccelerator, DeclaredCollector
from agent.collectors.host import HostCollector, HostSample, host_values, in_hardware, sample_host
from agent.collectors.metrics import Metric
from agent.collectors.unknown import UnknownKind

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
SAMPLE = HostSample(100, 400, 600, 1000, 5000, 10_000, 20_000, 1e9, 0.5, 1.7e9)


def test_rates_are_of_the_time_between_two_samples() -> None:
    later = replace(SAMPLE, cpu_busy_s=105, cpu_total_s=420, disk_bytes=30_000, network_bytes=1_020_000)
    values = host_values(SAMPLE, later, 10)
    assert values[Metric.CPU_UTILIZATION].value == pytest.approx(0.25)
    assert values[Metric.STORAGE_IO].value == pytest.approx(2000)
    assert values[Metric.NETWORK_IO].value == pytest.approx(100_000)
    assert values[Metric.NET_BANDWIDTH_AVAILABLE].value == pytest.approx(1e9 - 800_000)
    assert values[Metric.NET_BANDWIDTH_AVAILABLE].source is Source.ESTIMATION


def test_what_is_not_known_is_not_zero() -> None:
    first = host_values(None, SAMPLE, 0)
    assert first[Metric.CPU_UTILIZATION].value is None
    assert first[Metric.STORAGE_IO].value is None
    back = host_values(SAMPLE, replace(SAMPLE, disk_bytes=0, link_bits_per_s=0), 10)
    assert (back[Metric.STORAGE_IO].value, back[Metric.STORAGE_IO].reason) == (None, "a counter went back")
    assert back[Metric.NET_BANDWIDTH_AVAILABLE].value is None


def test_bytes_that_pass_through_several_layers_are_counted_at_the_hardware(tmp_path: Path) -> None:
    for name in ("eth0/device", "docker0", "veth12", "bond0", "ib0/device", "eth0.7"):
        (tmp_path / name).mkdir(parents=True)
    assert in_hardware(["eth0", "docker0", "veth12", "bond0", "ib0", "eth0.7"], tmp_path) == {"eth0", "ib0"}
    # Inside of a container there is the end of a pair only.
    assert in_hardware(["veth12"], tmp_path) == {"veth12"}
    assert in_hardware(["en0"], tmp_path / "none") == {"en0"}


class _Link(NamedTuple):
    isup: bool
    speed: int


class _Counted(NamedTuple):
    bytes_sent: int = 0
    bytes_recv: int = 0
    read_bytes: int = 0
    write_bytes: int = 0


def test_a_bridge_a_volume_and_a_link_that_was_down_add_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("net/eth0/device", "net/eth1/device", "net/docker0", "block/sda/device", "block/dm-0"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr("agent.collectors.host.INTERFACES", tmp_path / "net")
    monkeypatch.setattr("agent.collectors.host.DISKS", tmp_path / "block")
    links = {"lo": _Link(True, 0), "eth0": _Link(True, 1000), "eth1": _Link(False, 0), "docker0": _Link(True, 10_000)}
    monkeypatch.setattr("psutil.net_if_stats", lambda: links)
    carried = {name: _Counted(bytes_sent=700, bytes_recv=300) for name in links}
    monkeypatch.setattr("psutil.net_io_counters", lambda pernic: carried)
    disks = {name: _Counted(read_bytes=40, write_bytes=60) for name in ("sda", "sda1", "dm-0")}
    monkeypatch.setattr("psutil.disk_io_counters", lambda perdisk: disks)
    before = sample_host(tmp_path)
    assert (before.network_bytes, before.disk_bytes, before.link_bits_per_s) == (2000, 100, 1e9)
    links["eth1"] = _Link(True, 1000)
    after = sample_host(tmp_path)
    assert (after.network_bytes, after.link_bits_per_s) == (2000, 2e9)


def test_this_machine_can_be_read(tmp_path: Path) -> None:
    collector = HostCollector(("n1", "n2"), tmp_path, lambda: 0.0)
    collector.collect(NOW)
    readings = {(r.node_id, r.metric): r for r in collector.collect(NOW + timedelta(seconds=1))}
    assert len(readings) == 18
    assert (readings["n1", Metric.MEMORY_LIMIT].value or 0) > 2**28
    assert 0 < (readings["n2", Metric.MEMORY_USAGE].value or 0) < (readings["n2", Metric.MEMORY_LIMIT].value or 0)
    assert (readings["n1", Metric.STORAGE_FREE].value or 0) > 0


def test_declared_accelerators_say_that_they_are() -> None:
    in_use: dict[str, Set[int]] = {"n1": {0}}

    def allocation() -> Mapping[str, Set[int]]:
        return in_use

    items = tuple(
        DeclaredAccelerator(node, index, "NVIDIA", "H100", 80 * 10**9, 9.9e14, 70, 700)
        for node, index in (("n1", 0), ("n1", 1), ("n2", 0))
    )
    readings = {
        (r.node_id, r.accelerator_index, r.metric): r for r in DeclaredCollector(items, allocation).collect(NOW)
    }
    assert all(reading.emulated for reading in readings.values())
    assert readings["n1", 0, Metric.CAPACITY_FREE].value == 0
    assert readings["n1", 1, Metric.CAPACITY_FREE].value == 1
    assert readings["n1", 0, Metric.POWER].value == 700
    assert readings["n1", 1, Metric.POWER].value == 70
    assert readings["n1", 0, Metric.GPU_UTILIZATION].source is Source.ESTIMATION
    assert readings["n1", 0, Metric.GPU_MEMORY_LIMIT].source is Source.NOMINAL
    assert readings["n2", 0, Metric.CAPACITY_FREE].reason == "the node is down"
    assert readings["n2", 0, Metric.HEALTH].value is None
    assert readings["n2", 0, Metric.GPU_MEMORY_LIMIT].value == 80 * 10**9


def test_accelerators_of_a_node_that_sleeps_draw_what_they_draw_asleep() -> None:
    items = tuple(
        DeclaredAccelerator(node, 0, "NVIDIA", "A100", idle_watts=60, peak_watts=400, sleep_watts=4)
        for node in ("n1", "n2")
    )
    collector = DeclaredCollector(items, lambda: {"n1": frozenset(), "n2": frozenset()}, lambda: {"n2"})
    watts = {item.node_id: item.value for item in collector.collect(NOW) if item.metric is Metric.POWER}
    assert watts == {"n1": 60, "n2": 4}


def test_free_is_what_the_agent_has_not_given_away() -> None:
    readings = AllocationCollector({"n1": 2, "n2": 1}, lambda: {"n1": frozenset({1})}).collect(NOW)
    assert [(item.node_id, item.accelerator_index, item.value) for item in readings] == [
        ("n1", 0, 1), ("n1", 1, 0), ("n2", 0, None),
    ]  # fmt: skip
    assert not any(item.emulated for item in readings)


@pytest.mark.parametrize("clock_went", [timedelta(hours=1), timedelta(hours=-1), timedelta()])
def test_a_clock_that_is_set_changes_no_rate(
    clock_went: timedelta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [replace(SAMPLE, disk_bytes=10**12), SAMPLE]
    monkeypatch.setattr(host, "sample_host", lambda _: samples.pop())
    moments_s = iter((100.0, 110.0))
    collector = HostCollector(("n1",), tmp_path, lambda: next(moments_s))
    collector.collect(NOW)
    found = {item.metric: item.value for item in collector.collect(NOW + clock_went)}
    assert found[Metric.STORAGE_IO] == pytest.approx((10**12 - SAMPLE.disk_bytes) / 10)


def test_a_file_system_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    found = {item.metric: item for item in HostCollector(("n1",), tmp_path / "gone", lambda: 0.0).collect(NOW)}
    assert found[Metric.STORAGE_FREE].kind is UnknownKind.UNAVAILABLE
    assert "gone" in found[Metric.STORAGE_FREE].reason
    assert found[Metric.MEMORY_LIMIT].value
