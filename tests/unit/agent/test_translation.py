"""Exporters' samples become canonical readings; every trap ends as unknown with a reason, never as a healthy zero."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from agent.collectors.base import Reading
from agent.collectors.device import Device
from agent.collectors.exporter_table import shipped_tables
from agent.collectors.exposition import parse_exposition
from agent.collectors.metrics import UNITS, Metric
from agent.collectors.table_file import load_table, parse_table
from agent.collectors.translation import Translator
from agent.collectors.unknown import UnknownKind
from meridian.errors import ConfigurationError

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def _translate(
    translator: Translator, exporter: str, text: str, seconds: float = 0
) -> dict[tuple[Metric, int | None], Reading]:
    samples = parse_exposition(text, load_table(exporter).families.__contains__).samples
    readings = translator.translate(samples, NOW + timedelta(seconds=seconds))
    found = {(reading.metric, reading.accelerator_index): reading for reading in readings}
    assert len(found) == len(readings), "one reading per metric and device"
    return found


def _dcgm(**values: str) -> str:
    return "".join(f'DCGM_FI_{name}{{gpu="0",UUID="GPU-1"}} {value}\n' for name, value in values.items())


def test_dcgm_units() -> None:
    text = _dcgm(
        DEV_GPU_UTIL="55",
        DEV_FB_USED="1000",
        DEV_FB_FREE="79000",
        DEV_FB_RESERVED="1920",
        DEV_POWER_USAGE="310.5",
        DEV_TOTAL_ENERGY_CONSUMPTION="5551899580",
        DEV_ROW_REMAP_FAILURE="0",
        PROF_DRAM_ACTIVE="0.25",
    )
    found = _translate(Translator(load_table("dcgm-exporter"), "n1"), "dcgm-exporter", text)
    values = {metric: reading.value for (metric, _), reading in found.items()}
    assert values[Metric.GPU_UTILIZATION] == pytest.approx(0.55)
    assert values[Metric.GPU_MEMORY_USAGE] == 1000 * 2**20
    assert values[Metric.GPU_MEMORY_LIMIT] == 81920 * 2**20
    assert values[Metric.POWER] == 310.5
    assert values[Metric.ENERGY] == pytest.approx(5_551_899.58)
    assert values[Metric.MEMORY_BANDWIDTH_UTILIZATION] == 0.25
    assert values[Metric.HEALTH] == 1
    assert values[Metric.INTERCONNECT_IO] is None
    assert found[Metric.INTERCONNECT_IO, 0].reason == "not exported"
    assert found[Metric.POWER, 0].device == "GPU-1"


@pytest.mark.parametrize("blank", ["9223372036854775794", "9223372036854775792", "140737488355328", "NaN", "+Inf"])
def test_a_blank_is_unknown_and_the_next_alternative_is_taken(blank: str) -> None:
    text = _dcgm(PROF_GR_ENGINE_ACTIVE=blank, DEV_GPU_UTIL="40", DEV_GPU_TEMP=blank)
    found = _translate(Translator(load_table("dcgm-exporter"), "n1"), "dcgm-exporter", text)
    assert found[Metric.GPU_UTILIZATION, 0].value == pytest.approx(0.4)
    assert found[Metric.TEMPERATURE, 0].value is None
    assert found[Metric.TEMPERATURE, 0].reason in {"DCGM has no value (blank)", "not a number"}


@pytest.mark.parametrize("value", ["101", "-1"])
def test_what_cannot_be_is_unknown(value: str) -> None:
    found = _translate(Translator(load_table("dcgm-exporter"), "n1"), "dcgm-exporter", _dcgm(DEV_GPU_UTIL=value))
    assert found[Metric.GPU_UTILIZATION, 0].value is None
    assert "out of range" in found[Metric.GPU_UTILIZATION, 0].reason


def test_a_value_repeated_for_each_tenant_counts_once() -> None:
    text = 'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-1",pod="a"} 300\nDCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-1",pod="b"} 300\n'
    found = _translate(Translator(load_table("dcgm-exporter"), "n1"), "dcgm-exporter", text)
    assert found[Metric.POWER, 0].value == 300


def test_frozen_values_are_not_believed() -> None:
    translator = Translator(load_table("dcgm-exporter"), "n1")
    busy = _dcgm(DEV_GPU_UTIL="90", DEV_TOTAL_ENERGY_CONSUMPTION="1000")
    # Within two collections of the exporter (30 s each) its counters may rest.
    for scrape in range(8):
        assert _translate(translator, "dcgm-exporter", busy, scrape * 10)[Metric.GPU_UTILIZATION, 0].value == 0.9
    frozen = _translate(translator, "dcgm-exporter", busy, 80)
    assert all(reading.value is None and reading.kind is UnknownKind.FROZEN for reading in frozen.values())
    moving = _dcgm(DEV_GPU_UTIL="90", DEV_TOTAL_ENERGY_CONSUMPTION="1001")
    assert _translate(translator, "dcgm-exporter", moving, 90)[Metric.GPU_UTILIZATION, 0].value == 0.9


def test_an_idle_device_is_not_frozen() -> None:
    translator = Translator(load_table("dcgm-exporter"), "n1")
    idle = _dcgm(DEV_GPU_UTIL="0", DEV_TOTAL_ENERGY_CONSUMPTION="1000")
    for scrape in range(10):
        assert _translate(translator, "dcgm-exporter", idle, scrape * 10)[Metric.GPU_UTILIZATION, 0].value == 0


def test_a_device_that_fell_off_the_bus_is_unknown_and_then_failed() -> None:
    translator = Translator(load_table("dcgm-exporter"), "n1", expected=[Device(0), Device(1)])
    text = _dcgm(DEV_GPU_UTIL="10")
    for scrape in (1, 2):
        found = _translate(translator, "dcgm-exporter", text, scrape)
        assert found[Metric.HEALTH, 1].value is None
        assert found[Metric.GPU_UTILIZATION, 1].reason == f"device absent from {scrape} scrapes"
    found = _translate(translator, "dcgm-exporter", text, 3)
    assert found[Metric.HEALTH, 1].value == 0
    assert found[Metric.POWER, 1].value is None
    assert found[Metric.GPU_UTILIZATION, 0].value == pytest.approx(0.1)


def test_a_silent_exporter_makes_all_unknown_but_nothing_lost() -> None:
    translator = Translator(load_table("dcgm-exporter"), "n1", expected=[Device(0)])
    for _ in range(5):
        readings = translator.unavailable(UnknownKind.UNAVAILABLE, "dcgm-exporter: refused", NOW)
        assert {reading.reason for reading in readings} == {"dcgm-exporter: refused"}
        assert len(readings) == len(load_table("dcgm-exporter").metrics)


def test_a_stale_timestamp_is_not_believed() -> None:
    old_ms = int((NOW - timedelta(minutes=10)).timestamp() * 1000)
    text = f'npu_chip_info_utilization{{id="3",vdie_id="V"}} 50 {old_ms}\n'
    found = _translate(Translator(load_table("npu-exporter"), "n1"), "npu-exporter", text)
    assert "stale" in found[Metric.GPU_UTILIZATION, 3].reason
    ahead_ms = int((NOW + timedelta(minutes=10)).timestamp() * 1000)
    text = f'npu_chip_info_utilization{{id="3",vdie_id="V"}} 50 {ahead_ms}\n'
    text += f'npu_chip_info_power{{id="3",vdie_id="V"}} 300 {int(NOW.timestamp() * 1000)}\n'
    found = _translate(Translator(load_table("npu-exporter"), "n1"), "npu-exporter", text)
    assert "future" in found[Metric.GPU_UTILIZATION, 3].reason
    assert found[Metric.POWER, 3].value == 300


def test_an_unknown_state_is_unknown() -> None:
    text = 'npu_chip_info_health_status{id="0"} 7\n'
    found = _translate(Translator(load_table("npu-exporter"), "n1"), "npu-exporter", text)
    assert found[Metric.HEALTH, 0].reason == "unknown state 7"


def _node(at_s: float, idle_s: float, read_bytes: float) -> str:
    """Two processors that were idle for ``idle_s`` of ``at_s``."""
    return f"""
node_cpu_seconds_total{{cpu="0",mode="idle"}} {idle_s}
node_cpu_seconds_total{{cpu="0",mode="user"}} {at_s - idle_s}
node_cpu_seconds_total{{cpu="1",mode="idle"}} {idle_s - 1}
node_cpu_seconds_total{{cpu="1",mode="iowait"}} 1
node_cpu_seconds_total{{cpu="1",mode="user"}} {at_s - idle_s}
node_disk_read_bytes_total{{device="sda"}} {read_bytes}
node_disk_read_bytes_total{{device="dm-0"}} {read_bytes}
node_disk_written_bytes_total{{device="sda"}} 50
node_memory_MemTotal_bytes 1000
node_memory_MemAvailable_bytes 400
"""


def test_node_exporter_traffic_is_counted_once_at_the_network_cards() -> None:
    def page(carried: float) -> str:
        names = ("eth0", "eth1", "bond0", "bond0.7", "br0", "lxc12ab", "cilium_host", "vnet3", "lo")
        lines = [
            f'node_network_{way}_bytes_total{{device="{name}"}} {carried}\n'
            for name in names
            for way in ("receive", "transmit")
        ]
        return "".join(lines) + "".join(f'node_network_speed_bytes{{device="{name}"}} 1.25e+08\n' for name in names)

    translator = Translator(load_table("node-exporter"), "n1")
    _translate(translator, "node-exporter", page(0))
    found = _translate(translator, "node-exporter", page(1000), 10)
    assert found[Metric.NETWORK_IO, None].value == pytest.approx(2 * 2 * 100)
    assert found[Metric.NET_BANDWIDTH_AVAILABLE, None].value == pytest.approx(8 * (2 * 1.25e8 - 400))


def test_node_exporter_rates_need_two_scrapes_and_survive_a_restart() -> None:
    translator = Translator(load_table("node-exporter"), "n1")
    first = _translate(translator, "node-exporter", _node(200, 100, 1000))
    assert first[Metric.CPU_UTILIZATION, None].reason == "a rate needs two samples"
    assert first[Metric.MEMORY_USAGE, None].value == 600
    second = _translate(translator, "node-exporter", _node(210, 107.5, 3000), 10)
    assert second[Metric.CPU_UTILIZATION, None].value == pytest.approx(0.25)
    assert second[Metric.STORAGE_IO, None].value == pytest.approx(200)
    third = _translate(translator, "node-exporter", _node(2, 1, 0), 20)
    assert third[Metric.STORAGE_IO, None].reason == "a counter went back"


def test_a_node_whose_time_stands_still_is_not_busy_but_frozen() -> None:
    translator = Translator(load_table("node-exporter"), "n1")
    page = _node(200, 100, 1000)
    _translate(translator, "node-exporter", page)
    found = _translate(translator, "node-exporter", page, 10)
    assert {reading.kind for reading in found.values()} == {UnknownKind.FROZEN}
    assert _translate(translator, "node-exporter", _node(210, 110, 1000), 20)[Metric.CPU_UTILIZATION, None].value == 0


def test_an_index_may_be_a_metric_of_its_own() -> None:
    text = """
nvidia_smi_index{uuid="b"} 1
nvidia_smi_index{uuid="a"} 0
nvidia_smi_power_draw_watts{uuid="a"} 100
nvidia_smi_power_draw_watts{uuid="b"} 200
nvidia_smi_power_draw_watts{uuid="c"} 300
"""
    translator = Translator(load_table("nvidia-gpu-exporter"), "n1", expected=[Device(0), Device(1, "b")])
    found = _translate(translator, "nvidia-gpu-exporter", text)
    assert found[Metric.POWER, 0].value == 100
    assert found[Metric.POWER, 1].value == 200
    assert found[Metric.POWER, None].device == "c", "a device without an index is known by its name only"


def test_a_bad_line_costs_only_itself() -> None:
    text = (
        _dcgm(DEV_GPU_UTIL="10") + 'DCGM_FI_DEV_POWER_USAGE{gpu="0" 3\n' + _dcgm(DEV_GPU_TEMP="40") + "garbage\x00 {\n"
    )
    exposition = parse_exposition(text)
    assert [sample.value for sample in exposition.samples] == [10, 40]
    assert [number for number, _ in exposition.bad_lines] == [2, 4]


@pytest.mark.parametrize("name", shipped_tables())
def test_shipped_tables_are_sound(name: str) -> None:
    table = load_table(name)
    assert table.exporter == name
    assert set(table.metrics) <= set(UNITS)
    assert table.vendor
    assert table.detect


def test_a_wrong_table_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no exporter table"):
        load_table("/no/such/table.yaml")
    with pytest.raises(ValueError, match="unknown keys"):
        parse_table({"exporter": "x", "metrics": {"hw.power": [{"family": "p", "scales": 3}]}})
    with pytest.raises(ValueError, match="no canonical metric"):
        parse_table({"exporter": "x", "metrics": {"hw.magic": [{"family": "p"}]}})
