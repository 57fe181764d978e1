"""Incidents that public trackers tell of, as pages of exporters: none of them may become a number, and each has its kind.

Written by hand in the exporters' formats. The first column names the incident.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from agent.collectors.base import Reading
from agent.collectors.device import Device
from agent.collectors.exposition import parse_exposition
from agent.collectors.metrics import Metric
from agent.collectors.sensing import sense
from agent.collectors.table_file import load_table
from agent.collectors.translation import Translator
from agent.collectors.unknown import UnknownKind

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
Found = dict[tuple[Metric, str], Reading]
U = UnknownKind


def _sensed(text: str, previous: str | None = None, at: datetime = NOW) -> Found:
    """Readings by metric and device: its index, with the partition behind a slash; empty for the node."""
    found: Found = {}
    for reading in sense(text, at, previous=previous).readings:
        index = "" if reading.accelerator_index is None else str(reading.accelerator_index)
        key = reading.metric, f"{index}/{reading.partition}".rstrip("/")
        assert key not in found, "one reading of each metric and device"
        found[key] = reading
    return found


def _dcgm(gpu: str = "0", more: str = "", **values: str) -> str:
    return "".join(
        f'DCGM_FI_{name}{{gpu="{gpu}",UUID="GPU-{gpu}",modelName="NVIDIA A100-SXM4-80GB"{more}}} {value}\n'
        for name, value in values.items()
    )


def _mlu(prefix: str = "mlu_", **values: str) -> str:
    return "".join(
        f'{prefix}{name}{{mlu="0",sn="1",uuid="u",model="MLU590"}} {value}\n' for name, value in values.items()
    )


def _npu(stamp_ms: int | None = None, **values: str) -> str:
    tail = "" if stamp_ms is None else f" {stamp_ms}"
    return "".join(f'npu_chip_info_{name}{{id="0",vdie_id="V"}} {value}{tail}\n' for name, value in values.items())


def _amd(part: str, gpu: str, mode: str = "cpx", **values: str) -> str:
    labels = f'gpu_id="{gpu}",gpu_partition_id="{part}",gpu_compute_partition_type="{mode}",serial_number="S"'
    return "".join(f"{name}{{{labels}}} {value}\n" for name, value in values.items())


SMI = 'nvidia_smi_index{uuid="a"} 0\n'


@pytest.mark.parametrize(
    ("text", "metric", "kind"),
    [
        # DCGM's blank values: of 64-bit integers, of floating point numbers, of 32-bit integers.
        (_dcgm(DEV_GPU_TEMP="9223372036854775794"), Metric.TEMPERATURE, U.SENTINEL),
        (_dcgm(DEV_GPU_TEMP="9223372036854775792"), Metric.TEMPERATURE, U.SENTINEL),
        (_dcgm(DEV_POWER_USAGE="140737488355328"), Metric.POWER, U.SENTINEL),
        (_dcgm(DEV_GPU_UTIL="2147483632"), Metric.GPU_UTILIZATION, U.SENTINEL),
        (_dcgm(DEV_POWER_USAGE="NaN"), Metric.POWER, U.NOT_A_NUMBER),
        (_dcgm(DEV_POWER_USAGE="+Inf"), Metric.POWER, U.NOT_A_NUMBER),
        (_npu(power="4294967295"), Metric.POWER, U.SENTINEL),
        (_npu(hbm_total_memory="-1"), Metric.GPU_MEMORY_LIMIT, U.SENTINEL),
        ('enflame_gcu_usage{minor_number="0",uuid="e"} -1\n', Metric.GPU_UTILIZATION, U.SENTINEL),
        (_amd("0", "0", "spx", gpu_gfx_activity="65535"), Metric.GPU_UTILIZATION, U.SENTINEL),
        # Names of ratios that carry 0 to 100, and the other way round.
        (SMI + 'nvidia_smi_utilization_gpu_ratio{uuid="a"} 42\n', Metric.GPU_UTILIZATION, U.WRONG_UNIT),
        (_dcgm(PROF_DRAM_ACTIVE="37"), Metric.MEMORY_BANDWIDTH_UTILIZATION, U.WRONG_UNIT),
        ('hw_gpu_utilization_ratio{pci_bdf="0000:05:00.0",hw_gpu_task="all"} 85\n', Metric.GPU_UTILIZATION, U.WRONG_UNIT),
        (_dcgm(DEV_GPU_UTIL="101"), Metric.GPU_UTILIZATION, U.OUT_OF_RANGE),
        (_mlu(utilization="-3"), Metric.GPU_UTILIZATION, U.OUT_OF_RANGE),
        # MiB in families of bytes, bytes in families of MiB, milliwatts in families of watts.
        (SMI + 'nvidia_smi_memory_total_bytes{uuid="a"} 81559\n', Metric.GPU_MEMORY_LIMIT, U.WRONG_UNIT),
        (SMI + 'nvidia_smi_memory_used_bytes{uuid="a"} 6739\n', Metric.GPU_MEMORY_USAGE, U.WRONG_UNIT),
        (_mlu(memory_total="49152"), Metric.GPU_MEMORY_LIMIT, U.WRONG_UNIT),
        (_dcgm(DEV_FB_USED="85899345920"), Metric.GPU_MEMORY_USAGE, U.WRONG_UNIT),
        (_npu(hbm_total_memory="68719476736"), Metric.GPU_MEMORY_LIMIT, U.WRONG_UNIT),
        (_mlu(power_usage="245000"), Metric.POWER, U.WRONG_UNIT),
        # Zeros that stand for nothing: no chip that answers draws no power or has no memory.
        (_npu(power="0"), Metric.POWER, U.PLACEHOLDER),
        (_npu(hbm_total_memory="0"), Metric.GPU_MEMORY_LIMIT, U.PLACEHOLDER),
        (_npu(power="0", temperature="0", hbm_total_memory="0", utilization="0"), Metric.GPU_UTILIZATION, U.PLACEHOLDER),
        (_npu(power="0", hbm_total_memory="0", hbm_used_memory="0"), Metric.GPU_MEMORY_USAGE, U.PLACEHOLDER),
        # Explicit timestamps of the past and of the future.
        (_npu(NOW_MS - 600_000, utilization="50"), Metric.GPU_UTILIZATION, U.STALE),
        (_npu(NOW_MS, power="300") + _npu(NOW_MS + 600_000, utilization="50"), Metric.GPU_UTILIZATION, U.FROM_FUTURE),
        (_npu(NOW_MS + 600_000, utilization="50"), Metric.GPU_UTILIZATION, U.CLOCK_SKEW),
        # The same series twice with two values, and one device read with two values.
        (_dcgm(DEV_POWER_USAGE="300") + _dcgm(DEV_POWER_USAGE="301"), Metric.POWER, U.DUPLICATE),
        (_dcgm(more=',pod="a"', DEV_GPU_UTIL="10") + _dcgm(more=',pod="b"', DEV_GPU_UTIL="90"), Metric.GPU_UTILIZATION, U.DUPLICATE),
        # Used and free that do not make the total; more used than there is.
        (_mlu(memory_used="20000000000", memory_free="1000000000", memory_total="51539607552"), Metric.GPU_MEMORY_USAGE, U.INCONSISTENT),
        (_npu(hbm_used_memory="70000", hbm_total_memory="65536"), Metric.GPU_MEMORY_USAGE, U.INCONSISTENT),
        # A state that the table does not know; Enflame's 0 is "I do not know", its healthy is 2.
        (_npu(health_status="7"), Metric.HEALTH, U.UNKNOWN_STATE),
        ('enflame_gcu_health{minor_number="0",uuid="e"} 0\n', Metric.HEALTH, U.UNKNOWN_STATE),
        # A share named like an amount: Enflame's power_usage is no watts.
        ('enflame_gcu_power_usage{minor_number="0",uuid="e"} 41\nenflame_gcu_usage{minor_number="0",uuid="e"} 5\n', Metric.POWER, U.NOT_EXPORTED),
        # Digits, underscores and third columns that lenient parsers take for numbers.
        (_dcgm(DEV_GPU_UTIL="40", DEV_POWER_USAGE="3_00"), Metric.POWER, U.NOT_EXPORTED),
        (_dcgm(DEV_GPU_UTIL="40", DEV_POWER_USAGE="300 1 2"), Metric.POWER, U.NOT_EXPORTED),
        (_dcgm(DEV_GPU_UTIL="40", DEV_POWER_USAGE="٣٠٠"), Metric.POWER, U.NOT_EXPORTED),
        # A rate of one scrape.
        ('xpum_engine_ratio{pci_bdf="b"} 0.5\nhw_gpu_io_bytes_total{pci_bdf="b"} 5\n', Metric.INTERCONNECT_IO, U.NEEDS_SECOND_SAMPLE),
        # Who holds a device is not for an exporter to say.
        (_dcgm(DEV_GPU_UTIL="0"), Metric.CAPACITY_FREE, U.NOT_EXPORTED),
    ],
)  # fmt: skip
def test_a_trap_is_unknown_with_its_kind(text: str, metric: Metric, kind: UnknownKind) -> None:
    reading = _sensed(text)[metric, "0"]
    assert (reading.value, reading.kind) == (None, kind)
    assert reading.reason


def test_the_ratio_that_was_once_above_one_is_not_believed_later_either() -> None:
    translator = Translator(load_table("nvidia-gpu-exporter"), "n1")
    for at, text in enumerate(("42", "0.5")):
        page = parse_exposition(SMI + f'nvidia_smi_utilization_gpu_ratio{{uuid="a"}} {text}\n')
        found = {item.metric: item for item in translator.translate(page.samples, NOW + timedelta(seconds=15 * at))}
        assert found[Metric.GPU_UTILIZATION].kind is U.WRONG_UNIT


def test_old_values_that_are_served_on_are_not_believed() -> None:
    page = _dcgm(DEV_GPU_UTIL="90", DEV_TOTAL_ENERGY_CONSUMPTION="1000", DEV_POWER_USAGE="300")
    found = _sensed(page, previous=page)
    assert {found[metric, "0"].kind for metric in (Metric.GPU_UTILIZATION, Metric.POWER, Metric.ENERGY)} == {U.FROZEN}
    moved = _sensed(page.replace("} 1000", "} 4501000"), previous=page)
    assert moved[Metric.GPU_UTILIZATION, "0"].value == pytest.approx(0.9)
    idle = page.replace("} 90", "} 0")
    assert _sensed(idle, previous=idle)[Metric.POWER, "0"].value == 300


def test_an_exporter_without_a_counter_is_found_out_when_nothing_moves_under_load() -> None:
    def kinds(util: str) -> list[UnknownKind | None]:
        translator = Translator(load_table("mlu-exporter"), "n1")
        page = parse_exposition(_mlu(utilization=util, power_usage="233", temperature="52", memory_used="20971520000"))
        found = [translator.translate(page.samples, NOW + timedelta(seconds=15 * at)) for at in range(10)]
        return [next(item.kind for item in readings if item.metric is Metric.POWER) for readings in found]

    assert kinds("40") == [None] * 8 + [U.FROZEN] * 2, "120 s of 15 s scrapes"
    assert kinds("0") == kinds("100") == [None] * 10, "an idle chip may rest, a full one may be steady"


def test_energy_that_an_exporter_sums_of_old_power_is_no_sign_of_life() -> None:
    translator = Translator(load_table("all-smi"), "n1")
    kinds = []
    for at in range(10):
        card = 'gpu="NVIDIA L40S",uuid="u",index="0"'
        page = "".join(
            f"all_smi_gpu_{name}{{{card}}} {value}\n"
            for name, value in (("utilization", 40), ("power_consumption_watts", 233), ("temperature_celsius", 52))
        )
        page += f'all_smi_energy_consumed_joules_total{{scope="gpu",gpu_uuid="u",gpu_index="0"}} {1000 + 3495 * at}\n'
        found = translator.translate(parse_exposition(page).samples, NOW + timedelta(seconds=15 * at))
        kinds.append(next(item.kind for item in found if item.metric is Metric.POWER))
    assert kinds == [None] * 8 + [U.FROZEN] * 2


def test_a_device_that_fell_off_the_bus_is_missed() -> None:
    both = _dcgm("0", DEV_GPU_UTIL="1") + _dcgm("1", DEV_GPU_UTIL="2")
    found = _sensed(_dcgm("0", DEV_GPU_UTIL="1"), previous=both)
    assert found[Metric.GPU_UTILIZATION, "1"].kind is U.VANISHED
    assert found[Metric.HEALTH, "1"].value is None
    assert found[Metric.GPU_UTILIZATION, "0"].value == pytest.approx(0.01)


def test_an_xid_is_an_event_and_no_state() -> None:
    """The gauge keeps the last XID after the device has recovered: only its change lowers health, and not for ever."""
    table = load_table("dcgm-exporter")
    translator = Translator(table, "n1", [Device(0)])

    def health(xid: str, after_s: float) -> float | None:
        page = parse_exposition(_dcgm(DEV_XID_ERRORS=xid, DEV_ROW_REMAP_FAILURE="0", DEV_GPU_UTIL="0"))
        readings = translator.translate(page.samples, NOW + timedelta(seconds=after_s))
        return next(item.value for item in readings if item.metric is Metric.HEALTH)

    assert health("79", 0) is None, "it may be of just now or of long ago"
    assert health("79", 15) is None
    assert health("79", 400) == 1, "a code that only stands there says nothing"
    assert health("48", 430) == 0.5
    assert health("48", 445) == 0.5
    assert health("43", 460) == 0.5, "a program's fault changes nothing"
    assert health("43", 800) == 1
    assert health("0", 815) == 1, "a gauge that is reset is no event"


def test_partitions_of_an_amd_chip_have_no_figures_but_the_primary_one() -> None:
    values = {"gpu_gfx_activity": "80", "gpu_package_power": "600", "gpu_total_vram": "24576", "gpu_used_vram": "1024"}
    text = _amd("0", "0", **values) + _amd("1", "1", **{**values, "gpu_gfx_activity": "0", "gpu_package_power": "0"})
    found = _sensed(text)
    assert found[Metric.POWER, "0"].value == 600
    assert found[Metric.GPU_UTILIZATION, "0"].value == pytest.approx(0.8)
    assert found[Metric.POWER, "1"].kind is U.PARTITIONED
    assert found[Metric.GPU_UTILIZATION, "1"].kind is U.PARTITIONED
    assert found[Metric.GPU_MEMORY_LIMIT, "1"].value == 24576 * 2**20


def test_health_is_the_worst_that_is_told() -> None:
    assert _sensed(_npu(health_status="1", error_code="0"))[Metric.HEALTH, "0"].value == 1
    assert _sensed(_npu(health_status="1", error_code="2162164737"))[Metric.HEALTH, "0"].value == 0.5
    assert _sensed(_npu(health_status="0", error_code="2162164737"))[Metric.HEALTH, "0"].value == 0
    assert _sensed(_npu(health_status="1", error_code="-1"))[Metric.HEALTH, "0"].kind is U.SENTINEL
    smi = 'nvidia_smi_remapped_rows_failure{uuid="a"} 0\nnvidia_smi_gpu_recovery_action{uuid="a"} 2\n'
    assert _sensed(SMI + smi)[Metric.HEALTH, "0"].value == 0


def test_a_prefix_is_only_a_prefix() -> None:
    text = _amd("0", "0", "spx", gpu_gfx_activity="80", gpu_package_power="600")
    for page in (text, text.replace("gpu_gfx", "amd_gpu_gfx").replace("gpu_package", "amd_gpu_package")):
        assert _sensed(page)[Metric.POWER, "0"].value == 600
    for prefix in ("mlu_", "cambricon_", ""):
        found = _sensed(_mlu(prefix, utilization="40", power_usage="200", memory_used="20000000000"))
        assert found[Metric.POWER, "0"].value == 200, prefix
        assert found[Metric.GPU_UTILIZATION, "0"].value == pytest.approx(0.4)


def test_mig_instances_are_parts_and_not_copies_of_the_card() -> None:
    text = "".join(
        _dcgm(more=f',GPU_I_ID="{part}",GPU_I_PROFILE="1g.10gb"', PROF_GR_ENGINE_ACTIVE=share, DEV_POWER_USAGE="250")
        for part, share in (("7", "0.25"), ("8", "0.75"))
    )
    found = _sensed(text)
    assert found[Metric.GPU_UTILIZATION, "0/7"].value == 0.25
    assert found[Metric.GPU_UTILIZATION, "0/8"].value == 0.75
    assert found[Metric.POWER, "0/7"].kind is U.PARTITIONED
    smi = SMI + 'nvidia_smi_mig_mode_current{uuid="a"} 1\nnvidia_smi_power_draw_watts{uuid="a"} 250\n'
    assert _sensed(smi)[Metric.GPU_UTILIZATION, "0"].kind is U.PARTITIONED
    assert _sensed(smi)[Metric.POWER, "0"].value == 250


def test_the_card_in_every_tenants_line_counts_once() -> None:
    """vNPU pods: each line repeats the utilisation of the whole card."""
    lines = [f'npu_chip_info_utilization{{id="0",vdie_id="V",pod_name="p{pod}"}} 60\n' for pod in range(3)]
    lines += [f'npu_chip_info_hbm_used_memory{{id="0",vdie_id="V",pod_name="p{pod}"}} 4096\n' for pod in range(3)]
    lines += ['npu_chip_info_hbm_total_memory{id="0",vdie_id="V"} 65536\n']
    found = _sensed("".join(lines))
    assert found[Metric.GPU_UTILIZATION, "0"].value == pytest.approx(0.6)
    assert found[Metric.GPU_MEMORY_USAGE, "0"].value == 4096 * 2**20


def test_several_vendors_in_one_page() -> None:
    text = _dcgm(DEV_POWER_USAGE="300") + _npu(power="310") + "node_load1 3\n" + "strange_family 7\n"
    sensed = sense(text, NOW)
    assert {exporter for exporter, _ in sensed.sources} == {"dcgm-exporter", "npu-exporter", "node-exporter"}
    watts = {(item.device, item.value) for item in sensed.readings if item.metric is Metric.POWER}
    assert watts == {("GPU-0", 300), ("V", 310)}
    assert sensed.unread == ("strange_family",)


def test_a_clock_that_runs_behind_is_told_from_old_samples_by_its_running() -> None:
    hour_ms = 3_600_000
    before = _npu(NOW_MS - hour_ms - 15_000, utilization="50")
    running = _sensed(_npu(NOW_MS - hour_ms, utilization="50"), previous=before)
    assert running[Metric.GPU_UTILIZATION, "0"].kind is U.CLOCK_SKEW
    resting = _sensed(before, previous=before)
    assert resting[Metric.GPU_UTILIZATION, "0"].kind is U.STALE


def test_units_of_every_vendor() -> None:
    cases: Mapping[str, tuple[Metric, float]] = {
        _dcgm(DEV_FB_USED="1000", DEV_FB_FREE="79000", DEV_FB_RESERVED="1920"): (Metric.GPU_MEMORY_LIMIT, 81920 * 2**20),
        _dcgm(DEV_TOTAL_ENERGY_CONSUMPTION="5551899580"): (Metric.ENERGY, 5551899.58),
        _dcgm(PROF_NVLINK_TX_BYTES="1e9", PROF_NVLINK_RX_BYTES="2e9"): (Metric.INTERCONNECT_IO, 3e9),
        _amd("0", "0", "spx", gpu_energy_consumed="1234567890"): (Metric.ENERGY, 1234.56789),
        _amd("0", "0", "spx", gpu_used_vram="4096", gpu_total_vram="196592"): (Metric.GPU_MEMORY_LIMIT, 196592 * 2**20),
        _npu(bandwidth_rx="100", bandwidth_tx="50"): (Metric.INTERCONNECT_IO, 150e6),
        'mtgpu_power_usage_milliwatts{index="0",uuid="m"} 245000\n': (Metric.POWER, 245),
        'enflame_gcu_power_consumption{minor_number="0",uuid="e"} 245\n': (Metric.POWER, 245),
        'enflame_gcu_health{minor_number="0",uuid="e"} 2\n': (Metric.HEALTH, 1),
        'mx_bway_power{deviceId="0",uuid="x",wayId="0"} 200\nmx_bway_power{deviceId="0",uuid="x",wayId="1"} 90\n': (
            Metric.POWER, 290,
        ),
        'dcu_memorycap_bytes{device_id="T",minor_number="0"} 3.4342961152e+10\n': (Metric.GPU_MEMORY_LIMIT, 34342961152),
        'ix_mem_total{gpu="0",uuid="i"} 32768\n': (Metric.GPU_MEMORY_LIMIT, 32768 * 2**20),
        'hw_memory_usage_bytes{pci_bdf="b",hw_memory_location="device"} 8589934592\nhw_gpu_info{pci_bdf="b"} 1\n': (
            Metric.GPU_MEMORY_USAGE, 8589934592,
        ),
        'hw_energy_joules_total{pci_bdf="b",hw_sensor_location="package"} 5\nhw_gpu_info{pci_bdf="b"} 1\n': (Metric.ENERGY, 5),
    }  # fmt: skip
    for text, (metric, value) in cases.items():
        assert _sensed(text)[metric, "0"].value == pytest.approx(value), text


def test_effective_compute_is_the_busy_share_of_the_matrix_units_times_the_peak() -> None:
    sensed = sense(
        _dcgm(PROF_PIPE_TENSOR_ACTIVE="0.5"),
        NOW,
        peak_of=lambda _device, model: {"NVIDIA A100-SXM4-80GB": 312e12}[model],
    )
    (reading,) = [item for item in sensed.readings if item.metric is Metric.COMPUTE_EFFECTIVE]
    assert (reading.value, reading.source) == (156e12, "estimation")


def test_a_page_that_is_cut_off_in_its_last_number_tells_no_wrong_one() -> None:
    page = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="G"} 50\nDCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="G"} 512.3\n'
    for cut, power in ((page, 512.3), (page[:-5], None)):
        sensed = sense(cut, NOW)
        found = {item.metric: item.value for item in sensed.readings if item.accelerator_index == 0}
        assert (found[Metric.GPU_UTILIZATION], found[Metric.POWER]) == (0.5, power)


def test_a_last_line_that_may_be_cut_off_is_not_believed() -> None:
    text = _dcgm(DEV_GPU_UTIL="40", DEV_POWER_USAGE="310")[:-2]
    assert [sample.value for sample in parse_exposition(text, last_line_may_be_cut=True).samples] == [40]
    assert [sample.value for sample in parse_exposition(text).samples] == [40, 31], "a file is as long as it is"
