"""Pages as other versions and makers of the exporters write them, by their documents and sources, with values worked out by hand."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from agent.collectors.exposition import parse_exposition
from agent.collectors.metrics import Metric
from agent.collectors.peaks import catalogue_peak_flops, peak_source
from agent.collectors.sensing import sense
from agent.collectors.table_file import load_table
from agent.collectors.translation import Translator
from agent.collectors.unknown import UnknownKind

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
MIB = 2**20
M = Metric
Figure = float | None | UnknownKind
Wanted = dict[tuple[int | None, str, Metric], Figure]


def _found(text: str, previous: str | None = None) -> Wanted:
    """Values, or the kind of the unknown, by number, part and metric; what nobody tells is left out."""
    sensed = sense(text, NOW, previous=previous, peak_of=peak_source())
    return {
        (item.accelerator_index, item.partition, item.metric): item.kind if item.value is None else item.value
        for item in sensed.readings
        if item.kind is not UnknownKind.NOT_EXPORTED
    }


def _page(labels: str, **values: float) -> str:
    return "".join(f"{family}{{{labels}}} {value!r}\n" for family, value in values.items())


def _npu(**values: float) -> str:
    return _page(
        'id="0",model_name="310P3-Ascend-V1",vdie_id=""', **{f"npu_chip_info_{name}": v for name, v in values.items()}
    )


def test_an_inference_chip_of_ascend_has_its_memory_outside_of_hbm() -> None:
    # An Atlas 300I Pro has no HBM: its figures of it are zero, those of DDR are its memory ("MB").
    found = _found(
        _npu(
            utilization=12,
            power=44.7,
            temperature=57,
            hbm_total_memory=0,
            hbm_used_memory=0,
            total_memory=21527,
            used_memory=1722,
        )
    )
    assert found[0, "", M.GPU_MEMORY_LIMIT] == 21527 * MIB
    assert found[0, "", M.GPU_MEMORY_USAGE] == 1722 * MIB
    assert found[0, "", M.COMPUTE_EFFECTIVE] == pytest.approx(0.12 * 70e12), "a 310P by the name of the exporter"


def test_a_training_chip_of_ascend_has_its_memory_in_hbm_whatever_else_there_is() -> None:
    full = _found(_npu(power=97, hbm_total_memory=65536, hbm_used_memory=3399, total_memory=15079, used_memory=904))
    assert full[0, "", M.GPU_MEMORY_LIMIT] == 65536 * MIB
    assert full[0, "", M.GPU_MEMORY_USAGE] == 3399 * MIB
    empty = _found(_npu(power=97, hbm_total_memory=65536, hbm_used_memory=0, total_memory=15079, used_memory=904))
    assert empty[0, "", M.GPU_MEMORY_USAGE] == 0, "a chip that nobody uses, and not the memory of its processor"
    # Zero of zero is no use of nothing.
    silent = _found(_npu(power=97, hbm_total_memory=0, hbm_used_memory=0, total_memory=0, used_memory=0))
    assert silent[0, "", M.GPU_MEMORY_LIMIT] is UnknownKind.PLACEHOLDER
    assert silent[0, "", M.GPU_MEMORY_USAGE] is UnknownKind.PLACEHOLDER


def _xpum(tile: str = "", **values: float) -> str:
    part = f',sub_dev="{tile}"' if tile else ""
    labels = f'uuid="u",dev_name="Intel(R) Data Center GPU Max 1550",pci_bdf="0000:29:00.0"{part}'
    return _page(labels, **{f"xpum_{name}": value for name, value in values.items()})


def test_xpu_manager_1_tells_of_the_device_and_of_its_tiles() -> None:
    # prometheus_exporter.py sums or averages some figures of the tiles for the device and leaves memory with them.
    found = _found(
        _xpum(engine_ratio=0.5, power_watts=310, energy_joules_total=12345.5, memory_bandwidth_ratio=0.2)
        + _xpum("0", engine_ratio=0.9, power_watts=160, memory_used_bytes=1e10, memory_bandwidth_ratio=0.3)
        + _xpum("1", engine_ratio=0.1, power_watts=150, memory_used_bytes=2e10, memory_bandwidth_ratio=0.1)
        + 'xpum_power_watts{card="2147483649"} 620\n'
    )
    assert found[0, "", M.GPU_UTILIZATION] == 0.5
    assert found[0, "", M.MEMORY_BANDWIDTH_UTILIZATION] == 0.2
    assert found[0, "", M.POWER] == 310
    assert found[0, "", M.ENERGY] == 12345.5
    assert found[0, "", M.GPU_MEMORY_USAGE] == 3e10
    assert {index for index, _, _ in found} == {0}, "a card is no device of its own"
    flex = _found(_xpum(engine_ratio=0.25, memory_used_bytes=1e9, power_watts=75))
    assert (flex[0, "", M.GPU_UTILIZATION], flex[0, "", M.GPU_MEMORY_USAGE], flex[0, "", M.POWER]) == (0.25, 1e9, 75)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # Iluvatar, README of ix-exporter.
        (
            _page('gpu="2",name="Iluvatar BI-V150S",node_name="n",uuid="GPU-6d2e"', ix_temperature=60, ix_power_usage=206),
            {(2, "", M.TEMPERATURE): 60, (2, "", M.POWER): 206},
        ),
        # AMD: the series names the chip, the model the board.
        (
            _page(
                'card_model="102-G30211-0C",card_series="AMD Instinct MI300X OAM",gpu_id="2",gpu_partition_id="0",gpu_uuid="u"',
                gpu_gfx_activity=40, gpu_prof_tensor_active_percent=25,
            ),
            {(2, "", M.GPU_UTILIZATION): 0.4, (2, "", M.COMPUTE_EFFECTIVE): 0.25 * 1307.4e12},
        ),
        # dcgm-exporter 1 (gpu-monitoring-tools): energy in mJ, memory in MiB.
        (
            _page(
                'gpu="0",uuid="GPU-8f64"', dcgm_gpu_utilization=40, dcgm_power_usage=31.737, dcgm_gpu_temp=34,
                dcgm_total_energy_consumption=7824041, dcgm_fb_used=100, dcgm_fb_free=16060, dcgm_mem_copy_utilization=7,
            ),
            {
                (0, "", M.GPU_UTILIZATION): 0.4, (0, "", M.POWER): 31.737, (0, "", M.TEMPERATURE): 34,
                (0, "", M.ENERGY): 7824.041, (0, "", M.GPU_MEMORY_USAGE): 100 * MIB,
                (0, "", M.GPU_MEMORY_LIMIT): 16160 * MIB, (0, "", M.MEMORY_BANDWIDTH_UTILIZATION): 0.07,
            },
        ),
        # nvidia_gpu_prometheus_exporter and the exporters of jobstats.
        (
            _page(
                'minor_number="3",name="GeForce GTX 1080 Ti",uuid="GPU-a"', nvidia_gpu_duty_cycle=37,
                nvidia_gpu_memory_total_bytes=11721506816, nvidia_gpu_memory_used_bytes=10485760,
                nvidia_gpu_power_usage_milliwatts=8943, nvidia_gpu_temperature_celsius=41,
            ),
            {
                (3, "", M.GPU_UTILIZATION): 0.37, (3, "", M.GPU_MEMORY_LIMIT): 11721506816,
                (3, "", M.GPU_MEMORY_USAGE): 10485760, (3, "", M.POWER): 8.943, (3, "", M.TEMPERATURE): 41,
            },
        ),
        # Gaudi: power in mW, energy in mJ (hlml).
        (
            _page(
                'Serial="AN43",UUID="01P0-HL2080A0-15",device="AN43",id="1"', habanalabs_utilization=37,
                habanalabs_memory_total_bytes=103079215104, habanalabs_memory_used_bytes=805306368,
                habanalabs_memory_free_bytes=102273908736, habanalabs_power_mW=98000, habanalabs_temperature_onchip=34,
                habanalabs_energy=5000,
            ),
            {
                (1, "", M.GPU_UTILIZATION): 0.37, (1, "", M.GPU_MEMORY_LIMIT): 103079215104,
                (1, "", M.GPU_MEMORY_USAGE): 805306368, (1, "", M.POWER): 98, (1, "", M.TEMPERATURE): 34,
                (1, "", M.ENERGY): 5,
            },
        ),
    ],
    ids=["iluvatar", "amd", "dcgm-1", "nvml", "gaudi"],
)  # fmt: skip
def test_units_and_devices(text: str, wanted: Wanted) -> None:
    found = _found(text)
    assert found == {key: pytest.approx(value) for key, value in wanted.items()}


def test_node_exporter_before_0_16_is_read_too() -> None:
    def page(idle: float, busy: float, read: float, received: float) -> str:
        return (
            f'node_cpu{{cpu="cpu0",mode="idle"}} {idle}\nnode_cpu{{cpu="cpu0",mode="user"}} {busy}\n'
            f'node_disk_bytes_read{{device="vda"}} {read}\nnode_disk_bytes_written{{device="vda"}} 0\n'
            f'node_network_receive_bytes{{device="eth0"}} {received}\nnode_network_transmit_bytes{{device="eth0"}} 0\n'
            f'node_network_receive_bytes{{device="lo"}} {received}\nnode_network_transmit_bytes{{device="lo"}} 0\n'
            "node_memory_MemTotal 8e9\nnode_memory_MemAvailable 6e9\nnode_boot_time 1.5e9\nnode_load1 0.5\n"
            'node_filesystem_avail{device="/dev/vda1",fstype="ext4",mountpoint="/"} 3e10\n'
        )

    found = _found(page(1012, 103, 1500, 3000), previous=page(1000, 100, 0, 0))
    assert found[None, "", M.CPU_UTILIZATION] == pytest.approx(0.2)
    assert found[None, "", M.MEMORY_LIMIT] == 8e9
    assert found[None, "", M.MEMORY_USAGE] == 2e9
    assert found[None, "", M.STORAGE_FREE] == 3e10
    assert found[None, "", M.STORAGE_IO] == pytest.approx(100)
    assert found[None, "", M.NETWORK_IO] == pytest.approx(200)
    assert found[None, "", M.BOOT_TIME] == 1.5e9
    assert found[None, "", M.CPU_LOAD] == 0.5


def test_a_zero_of_a_divided_amd_chip_is_no_utilisation() -> None:
    # gpu_gfx_activity is of undivided chips; until 1.3 the exporter says zero where the driver has nothing.
    def card(mode: str, **values: float) -> str:
        labels = f'gpu_id="0",gpu_partition_id="0",gpu_compute_partition_type="{mode}",gpu_uuid="u"'
        return _page(labels, gpu_package_power=180, **values)

    assert _found(card("spx", gpu_gfx_activity=0))[0, "", M.GPU_UTILIZATION] == 0
    assert _found(card("cpx", gpu_gfx_activity=0))[0, "", M.GPU_UTILIZATION] is UnknownKind.PLACEHOLDER
    assert _found(card("cpx", gpu_gfx_activity=83))[0, "", M.GPU_UTILIZATION] == pytest.approx(0.83)
    cores = card("dpx", gpu_gfx_activity=0) + "".join(
        _page(
            f'gpu_id="0",gpu_partition_id="0",gpu_compute_partition_type="dpx",gpu_uuid="u",xcc_index="{core}"',
            gpu_gfx_busy_instantaneous=busy,
        )
        for core, busy in enumerate([100, 50, 0, 50])
    )
    assert _found(cores)[0, "", M.GPU_UTILIZATION] == pytest.approx(0.5)


def test_amd_smi_exporter_numbers_gpus_by_the_names_of_its_families() -> None:
    # Microwatts and thousandths of a degree, as in the rules that come with it.
    def gpu(number: int, **values: float) -> str:
        return "".join(
            f'amd_gpu_{name}{{gpu_{name}="{number}",productname="AMD Instinct MI250X"}} {value!r}\n'
            for name, value in values.items()
        )

    page = (
        gpu(0, dev_id=29704, power_avg=92e6, power_cap=560e6, current_temperature=41000, use_percent=37)
        + gpu(1, dev_id=29704, power_avg=2.0**64, current_temperature=0, use_percent=2**32 - 1, memory_use_percent=4)
        + 'amd_num_gpus{num_gpus=""} 2\namd_socket_power{socket_power="0"} 120000\n'
    )
    assert _found(page) == {
        (0, "", M.POWER): 92,
        (0, "", M.TEMPERATURE): 41,
        (0, "", M.GPU_UTILIZATION): 0.37,
        (1, "", M.POWER): UnknownKind.SENTINEL,
        (1, "", M.TEMPERATURE): UnknownKind.PLACEHOLDER,
        (1, "", M.GPU_UTILIZATION): UnknownKind.SENTINEL,
        (1, "", M.MEMORY_BANDWIDTH_UTILIZATION): 0.04,
    }
    assert _found(gpu(3, power=300e6))[3, "", M.POWER] == 300, "the newer name of power_avg"


def test_omnistat_tells_of_cards() -> None:
    def card(number: int, *, energy: float, read: float, power: float = 0) -> str:
        return (
            _page(
                f'card="{number}"', rocm_utilization_percentage=37.5, rocm_vram_total_bytes=68702699520,
                rocm_vram_used_percentage=12, rocm_average_socket_power_watts=power, rocm_energy_joules=energy,
                rocm_xgmi_total_read_kilobytes=read, rocm_xgmi_total_write_kilobytes=500, rocm_ras_umc_uncorrectable_count=number,
            )
            + _page(f'card="{number}",location="edge"', rocm_temperature_celsius=41)
            + _page(f'card="{number}",location="junction"', rocm_temperature_celsius=49)
        )  # fmt: skip

    page = "rocm_num_gpus 2\n" + card(0, energy=9e6, read=3000, power=411) + card(1, energy=8e6, read=3000)
    before = "rocm_num_gpus 2\n" + card(0, energy=8.9e6, read=0, power=400) + card(1, energy=7e6, read=3000)
    found = _found(page, before)
    assert found[0, "", M.GPU_UTILIZATION] == 0.375
    assert found[0, "", M.GPU_MEMORY_LIMIT] == 68702699520
    assert (found[0, "", M.POWER], found[1, "", M.POWER]) == (411, UnknownKind.PLACEHOLDER)
    assert found[0, "", M.ENERGY] == 9e6
    assert found[0, "", M.TEMPERATURE] == 49
    assert found[0, "", M.INTERCONNECT_IO] == pytest.approx(3000 * 1000 / 15)
    assert found[1, "", M.INTERCONNECT_IO] == 0
    assert (found[0, "", M.HEALTH], found[1, "", M.HEALTH]) == (1, 0.5)
    assert (0, "", M.GPU_MEMORY_USAGE) not in found


def test_the_total_that_dcgm_tells_goes_before_a_sum() -> None:
    # Where the driver counts its reserve as used, the sum of all three would count it twice.
    page = _page(
        'gpu="0",UUID="g",modelName="Tesla T4"', DCGM_FI_DEV_FB_FREE=15000, DCGM_FI_DEV_FB_USED=360,
        DCGM_FI_DEV_FB_RESERVED=360, DCGM_FI_DEV_FB_TOTAL=15360,
    )  # fmt: skip
    assert _found(page)[0, "", M.GPU_MEMORY_LIMIT] == 15360 * MIB


H100 = 'gpu="0",UUID="GPU-a",modelName="NVIDIA H100 80GB HBM3",DCGM_FI_SYSTEM_DRIVER_VERSION="580.95"'
OF_DCGM_4_7 = {
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS": 41,
    "DCGM_FI_DEV_BOARD_POWER_WATTS": 412.5,
    "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": 7824041,
    "DCGM_FI_DEV_GPU_UTIL_RATIO": 0.87,
    "DCGM_FI_DEV_MEMORY_UTIL_RATIO": 0.31,
    "DCGM_FI_DEV_XID_ERROR": 0,
    "DCGM_FI_DEV_FB_CAPACITY_BYTES": 85520809984,
    "DCGM_FI_DEV_FB_FREE_BYTES": 44949307392,
    "DCGM_FI_DEV_FB_USED_BYTES": 39959134208,
    "DCGM_FI_DEV_FB_RESERVED_BYTES": 612368384,
    "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND": 1.2e11,
    "DCGM_FI_DEV_ROW_REMAP_FAILED": 0,
}


def test_dcgm_exporter_4_9_has_other_names_and_base_units() -> None:
    # DCGM 4.7: bytes, joules, bytes per second and shares of one; the old names have MiB, mJ, MB/s and percent.
    found = _found(_page(H100, **OF_DCGM_4_7))
    assert found == {
        (0, "", M.GPU_UTILIZATION): 0.87,
        (0, "", M.MEMORY_BANDWIDTH_UTILIZATION): 0.31,
        (0, "", M.GPU_MEMORY_USAGE): 39959134208,
        (0, "", M.GPU_MEMORY_LIMIT): 85520809984,
        (0, "", M.INTERCONNECT_IO): 1.2e11,
        (0, "", M.HEALTH): 1,
        (0, "", M.POWER): 412.5,
        (0, "", M.ENERGY): 7824041,
        (0, "", M.TEMPERATURE): 41,
    }
    profiled = {
        f"DCGM_FI_PROF_{name}_UTIL_RATIO": share
        for name, share in (("GR_ENGINE", 0.85), ("TENSOR", 0.4), ("DRAM", 0.5))
    }
    found = _found(_page(H100, **OF_DCGM_4_7, **profiled))
    assert (found[0, "", M.GPU_UTILIZATION], found[0, "", M.MEMORY_BANDWIDTH_UTILIZATION]) == (0.85, 0.5)
    assert found[0, "", M.COMPUTE_EFFECTIVE] == pytest.approx(0.4 * 989.4e12, rel=1e-3)
    # Profiling that has stopped says zero: the driver's figures say otherwise.
    found = _found(_page(H100, **OF_DCGM_4_7, **dict.fromkeys(profiled, 0)))
    assert (found[0, "", M.GPU_UTILIZATION], found[0, "", M.MEMORY_BANDWIDTH_UTILIZATION]) == (0.87, 0.31)
    assert found[0, "", M.COMPUTE_EFFECTIVE] is UnknownKind.PLACEHOLDER


def test_what_dcgm_exporter_4_9_says_is_judged_as_before() -> None:
    def kind(metric: M, before: dict[str, float] | None = None, **other: float) -> Figure:
        previous = None if before is None else _page(H100, **{**OF_DCGM_4_7, **before})
        return _found(_page(H100, **{**OF_DCGM_4_7, **other}), previous)[0, "", metric]

    assert kind(M.GPU_MEMORY_USAGE, DCGM_FI_DEV_FB_FREE_BYTES=1e9) is UnknownKind.INCONSISTENT
    assert kind(M.POWER, before={}) is UnknownKind.FROZEN
    assert kind(M.POWER, before={"DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": 7820000}) == 412.5
    assert kind(M.HEALTH, before={"DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": 7820000}, DCGM_FI_DEV_XID_ERROR=79) == 0.5
    assert kind(M.HEALTH, DCGM_FI_DEV_ROW_REMAP_FAILED=1) == 0
    # DCGM 4.6 has the names of the shares for what is percent, and that of NVLink for MB/s.
    assert kind(M.GPU_UTILIZATION, DCGM_FI_DEV_GPU_UTIL_RATIO=87) is UnknownKind.WRONG_UNIT
    assert _found(_page(H100, DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL=120000))[0, "", M.INTERCONNECT_IO] == 1.2e11


def test_mlu_exporter_of_2020_counts_slots() -> None:
    page = _page(
        'slot="1",model="MLU270-X5K",boardid="1001"', mlu_board_utilization=12, mlu_mem_total_bytes=2.0**34,
        mlu_mem_used_bytes=2.0**30, mlu_board_power=39, mlu_board_health=1,
    )  # fmt: skip
    assert _found(page) == {
        (1, "", M.GPU_UTILIZATION): 0.12,
        (1, "", M.GPU_MEMORY_LIMIT): 2**34,
        (1, "", M.GPU_MEMORY_USAGE): 2**30,
        (1, "", M.POWER): 39,
        (1, "", M.HEALTH): 1,
    }


@pytest.mark.parametrize(
    ("model", "peak"),
    [("NVIDIA A100", 312e12), ("Ascend910B", None), ("NVIDIA H100", None), ("Ascend 910B3", 304.3e12)],
)
def test_a_name_of_chips_with_different_peaks_has_none(model: str, peak: float | None) -> None:
    assert catalogue_peak_flops(model) == peak


def test_the_queue_by_user_and_state() -> None:
    page = "".join(
        f'slurm_user_state_total{{state="{state}",username="{user}"}} {count}\n'
        for state, user, count in [("PENDING", "a", 3), ("PENDING", "b", 2), ("RUNNING", "b", 9)]
    )
    assert _found(page)[None, "", M.QUEUE_DEPTH] == 5


def test_nvidia_gpu_exporter_numbers_gpus_by_a_label_of_their_names() -> None:
    # Only the fields asked for are told, and the index may not be among them.
    page = "".join(
        f'nvidia_smi_gpu_info{{uuid="{uuid}",index="{index}",name="NVIDIA H200",serial="[N/A]"}} 1\n'
        f'nvidia_smi_utilization_gpu_ratio{{uuid="{uuid}"}} {share}\n'
        for uuid, index, share in [("a", 1, 0.5), ("b", 0, 0.25)]
    )
    assert _found(page) == {(1, "", M.GPU_UTILIZATION): 0.5, (0, "", M.GPU_UTILIZATION): 0.25}


def test_mig_instances_of_nvml_are_parts() -> None:
    instance = 'uuid="a",gpu_instance_id="3"'
    page = (
        _page('uuid="a"', nvidia_smi_index=2, nvidia_smi_mig_mode_current=1, nvidia_smi_power_draw_watts=410)
        + _page(
            instance, nvidia_smi_mig_graphics_activity_ratio=0.5, nvidia_smi_mig_memory_used_bytes=2.0**30,
            nvidia_smi_mig_memory_total_bytes=2.0**34,
        )
        + f'nvidia_smi_mig_info{{{instance},mig_uuid="m",compute_instance_id="0",profile="1g.18gb"}} 1\n'
    )  # fmt: skip
    readings = sense(page, NOW, peak_of=peak_source()).readings
    part = {item.metric: item.value for item in readings if item.partition == "3" and item.value is not None}
    assert part == {M.GPU_UTILIZATION: 0.5, M.GPU_MEMORY_USAGE: 2**30, M.GPU_MEMORY_LIMIT: 2**34}
    assert {item.profile for item in readings if item.partition == "3"} == {"1g.18gb"}
    assert {item.accelerator_index for item in readings if item.accelerator_index is not None} == {2}
    whole = {item.metric: item for item in readings if item.accelerator_index == 2 and not item.partition}
    assert whole[M.POWER].value == 410
    assert whole[M.GPU_UTILIZATION].kind is UnknownKind.PARTITIONED


@pytest.mark.parametrize(
    ("xid", "age_s", "health"), [(48, 100, 0.5), (48, 400, 1), (31, 100, 1), (79, 0, 0.5), (79, -3600, 1)]
)
def test_an_xid_tells_by_its_own_time(xid: int, age_s: float, health: float) -> None:
    page = (
        _page('uuid="a"', nvidia_smi_index=0, nvidia_smi_remapped_rows_failure=0)
        + f'nvidia_smi_xid_last_timestamp_seconds{{uuid="a",xid="{xid}"}} {NOW.timestamp() - age_s}\n'
        + f'nvidia_smi_xid_errors_total{{uuid="a",xid="{xid}"}} 4\n'
    )
    assert _found(page)[0, "", M.HEALTH] == health


@pytest.mark.parametrize(("xid", "count", "health"), [(48, 1, 0.5), (48, 0, 1), (31, 7, UnknownKind.NOT_EXPORTED)])
def test_xids_within_the_window_of_dcgm_exporter(xid: int, count: int, health: Figure) -> None:
    labels = f'gpu="0",UUID="g",window_size_in_ms="300000",xid="{xid}"'
    page = _page(labels, DCGM_EXP_XID_ERRORS_COUNT=count) + _page('gpu="0",UUID="g"', DCGM_FI_DEV_GPU_UTIL=5)
    assert _found(page).get((0, "", M.HEALTH), UnknownKind.NOT_EXPORTED) == health


def _node(speeds: dict[str, float], received: dict[str, float], idle: float) -> str:
    return (
        "".join(f'node_network_speed_bytes{{device="{name}"}} {value!r}\n' for name, value in speeds.items())
        + "".join(
            f'node_network_{way}_bytes_total{{device="{name}"}} {value!r}\n'
            for name, value in received.items()
            for way in ("receive", "transmit")
        )
        + f'node_cpu_seconds_total{{cpu="0",mode="idle"}} {idle}\nnode_memory_MemTotal_bytes 1e11\n'
    )


def test_a_port_without_a_cable_takes_nothing_from_what_the_others_have() -> None:
    # sysfs says -1 for it, which node_exporter makes -125000 bytes a second.
    unplugged = {"eth0": 1.25e9, "eth1": -125000}
    before, after = (_node(unplugged, {"eth0": value, "eth1": 0}, idle) for value, idle in ((0, 10), (1.5e9, 20)))
    assert _found(after, before)[None, "", M.NET_BANDWIDTH_AVAILABLE] == pytest.approx(8 * (1.25e9 - 2e8))
    none = {"eth0": -125000}
    before, after = (_node(none, {"eth0": value}, idle) for value, idle in ((0, 10), (1.5e9, 20)))
    assert _found(after, before)[None, "", M.NET_BANDWIDTH_AVAILABLE] is UnknownKind.SENTINEL


def test_a_page_of_several_machines_is_not_added_up() -> None:
    page = "".join(
        f'node_memory_MemTotal_bytes{{instance="{name}:9100"}} {total}\nnode_load1{{instance="{name}:9100"}} {load}\n'
        for name, total, load in [("a", 1e11, 1), ("b", 2e11, 2)]
    )
    known = [item for item in sense(page, NOW).readings if item.value is not None]
    assert {(item.node_id, item.metric): item.value for item in known} == {
        ("a:9100", M.MEMORY_LIMIT): 1e11,
        ("b:9100", M.MEMORY_LIMIT): 2e11,
        ("a:9100", M.CPU_LOAD): 1,
        ("b:9100", M.CPU_LOAD): 2,
    }
    # An agent has the exporter of one machine: what several say is not known.
    found = Translator(load_table("node-exporter"), "n1").translate(parse_exposition(page).samples, NOW)
    assert {item.kind for item in found} == {UnknownKind.INCONSISTENT}


def test_a_query_over_a_range_and_a_mark_of_byte_order() -> None:
    labels = {"__name__": "DCGM_FI_DEV_GPU_UTIL", "gpu": "0", "UUID": "g"}
    pairs = [[NOW.timestamp() - 30, "4"], [NOW.timestamp() - 2, "7"]]
    answer = {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": labels, "values": pairs}]}}
    for text in (json.dumps(answer), '\ufeffDCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="g"} 7\n'):
        assert _found(text)[0, "", M.GPU_UTILIZATION] == pytest.approx(0.07)


def test_gaudi_without_numbers_is_counted_in_the_order_of_its_names() -> None:
    page = "".join(
        _page(f'UUID="01P0-HL2080A0-{serial}",device="AN{serial}"', habanalabs_power_mW=power)
        for serial, power in [("16", 99000), ("15", 98000)]
    )
    assert _found(page) == {(0, "", M.POWER): 98, (1, "", M.POWER): 99}


def test_profiling_that_has_stopped_says_zero_and_is_not_believed() -> None:
    # dcgm-exporter, issue 662: all of DCP is zero while the GPU works, until somebody asks it again.
    def page(**values: float) -> str:
        return _page('gpu="0",UUID="g",modelName="NVIDIA H100 80GB HBM3"', **values)

    dead = dict.fromkeys(("GR_ENGINE_ACTIVE", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE"), 0)
    prof = {f"DCGM_FI_PROF_{name}": value for name, value in dead.items()}
    found = _found(page(**prof, DCGM_FI_DEV_GPU_UTIL=99, DCGM_FI_DEV_MEM_COPY_UTIL=40))
    assert found == {
        (0, "", M.GPU_UTILIZATION): 0.99,
        (0, "", M.COMPUTE_EFFECTIVE): UnknownKind.PLACEHOLDER,
        (0, "", M.MEMORY_BANDWIDTH_UTILIZATION): 0.4,
    }
    idle = _found(page(**prof, DCGM_FI_DEV_GPU_UTIL=0, DCGM_FI_DEV_MEM_COPY_UTIL=0))
    assert set(idle.values()) == {0}
    assert set(_found(page(**prof)).values()) == {0}, "nobody says otherwise"
    works = page(DCGM_FI_PROF_GR_ENGINE_ACTIVE=0.5, DCGM_FI_PROF_PIPE_TENSOR_ACTIVE=0, DCGM_FI_DEV_GPU_UTIL=99)
    assert _found(works)[0, "", M.GPU_UTILIZATION] == 0.5
    assert _found(works)[0, "", M.COMPUTE_EFFECTIVE] == 0, "work without the matrix units"


def test_a_zero_of_an_undivided_amd_chip_counts_where_its_cores_say_the_same() -> None:
    # device-metrics-exporter, issue 160: an MI308X at 100 % of which the old figure is zero.
    labels = 'gpu_id="0",gpu_partition_id="0",gpu_compute_partition_type="spx",gpu_uuid="u"'

    def page(activity: float, *cores: float) -> str:
        return _page(labels, gpu_gfx_activity=activity) + "".join(
            _page(f'{labels},xcc_index="{core}"', gpu_gfx_busy_instantaneous=busy) for core, busy in enumerate(cores)
        )

    assert _found(page(0, 100, 100))[0, "", M.GPU_UTILIZATION] == 1
    assert _found(page(0, 0, 0))[0, "", M.GPU_UTILIZATION] == 0
    assert _found(page(0))[0, "", M.GPU_UTILIZATION] == 0
    assert _found(page(70, 100, 100))[0, "", M.GPU_UTILIZATION] == pytest.approx(0.7)


def test_all_smi_tells_of_accelerators_of_several_makers() -> None:
    # As its own tests write the page.
    def card(name: str, uuid: str, number: int, **values: float) -> str:
        return _page(
            f'gpu="{name}", uuid="{uuid}", index="{number}"', **{f"all_smi_gpu_{k}": v for k, v in values.items()}
        )

    page = card(
        "NVIDIA H200 141GB HBM3", "GPU-1", 0, utilization=25.5, memory_used_bytes=8589934592, memory_total_bytes=2.0**37,
        temperature_celsius=65, power_consumption_watts=400.5,
    ) + card("RNGD", "F-1", 1, utilization=0, memory_used_bytes=0, memory_total_bytes=0, power_consumption_watts=0)  # fmt: skip
    assert _found(page) == {
        (0, "", M.GPU_UTILIZATION): pytest.approx(0.255),
        (0, "", M.GPU_MEMORY_USAGE): 8589934592,
        (0, "", M.GPU_MEMORY_LIMIT): 2**37,
        (0, "", M.TEMPERATURE): 65,
        (0, "", M.POWER): 400.5,
        (1, "", M.GPU_UTILIZATION): UnknownKind.PLACEHOLDER,
        (1, "", M.GPU_MEMORY_USAGE): UnknownKind.PLACEHOLDER,
        (1, "", M.GPU_MEMORY_LIMIT): UnknownKind.PLACEHOLDER,
        (1, "", M.POWER): UnknownKind.PLACEHOLDER,
    }


def test_all_smi_of_2026_tells_energy_memory_traffic_and_mig_instances() -> None:
    # src/api/metrics/energy.rs, hardware.rs and mig.rs name the device by other labels than gpu.rs.
    def names(prefix: str = "") -> str:
        return f'gpu="NVIDIA H100 80GB HBM3", {prefix}uuid="GPU-1", {prefix}index="0"'

    part = names("gpu_") + ', mig_instance="3", mig_uuid="MIG-x", mig_profile="1g.10gb", gpu_instance_id="7"'
    joules = "all_smi_energy_consumed_joules_total"
    page = (
        _page(names(), all_smi_gpu_utilization=40, all_smi_gpu_power_consumption_watts=300)
        + _page(names("gpu_"), all_smi_gpu_memory_bandwidth_utilization=0.42)
        + f'{joules}{{scope="gpu",gpu_index="0",gpu_uuid="GPU-1"}} 8430000\n{joules}{{scope="cpu"}} 9\n'
    )
    found = _found(page)
    assert (found[0, "", M.ENERGY], found[0, "", M.MEMORY_BANDWIDTH_UTILIZATION]) == (8430000, 0.42)
    parts = {"utilization_gpu": 75, "utilization_memory": 40, "memory_used_bytes": 2.0**30, "memory_total_bytes": 1e10}
    found = _found(page + _page(part, **{f"all_smi_mig_instance_{name}": value for name, value in parts.items()}))
    of_part = {metric: value for (_, number, metric), value in found.items() if number == "3"}
    assert {metric: value for metric, value in of_part.items() if value is not UnknownKind.PARTITIONED} == {
        M.GPU_UTILIZATION: 0.75,
        M.GPU_MEMORY_USAGE: 2**30,
        M.GPU_MEMORY_LIMIT: 1e10,
        M.MEMORY_BANDWIDTH_UTILIZATION: 0.4,
    }
    assert found[0, "", M.POWER] == 300


def test_mlu_exporter_of_2026_measures_by_mpm() -> None:
    # examples/metrics.yaml: percent and MiB per second; a failed repair of memory is a state.
    page = _page(
        'mlu="0",model="MLU370-X8",uuid="u"', mlu_mpm_mlu_utilization=62.5, mlu_mpm_tensor_utilization=30,
        mlu_mpm_mlulink_total_tx_bandwidth=1000, mlu_mpm_mlulink_total_rx_bandwidth=24, mlu_health=1, mlu_repair_failure=1,
    )  # fmt: skip
    found = _found(page)
    assert found[0, "", M.GPU_UTILIZATION] == 0.625
    assert found[0, "", M.INTERCONNECT_IO] == 1024 * MIB
    assert found[0, "", M.HEALTH] == 0
    assert _found(page.replace("mlu_repair_failure", "mlu_other"))[0, "", M.HEALTH] == 1


def test_rebellions_and_furiosa_number_devices_by_their_files() -> None:
    rebellions = "".join(
        f'RBLN_DEVICE_STATUS:{name}{{card="RBLN-CA25",name="rbln{number}",uuid="{uuid}"}} {value}\n'
        for number, uuid, figures in [
            (1, "a", {"DRAM_TOTAL": 15.71875, "DRAM_USED": 0.5, "UTILIZATION": 37, "CARD_POWER": 54, "HEALTH": 0}),
            (0, "b", {"HEALTH": 1, "TEMPERATURE": 54}),
        ]
        for name, value in figures.items()
    )
    assert _found(rebellions) == {
        (1, "", M.GPU_MEMORY_LIMIT): 15.71875 * 2**30,
        (1, "", M.GPU_MEMORY_USAGE): 2**29,
        (1, "", M.GPU_UTILIZATION): pytest.approx(0.37),
        (1, "", M.POWER): 54,
        (1, "", M.HEALTH): 1,
        (0, "", M.HEALTH): 0,
        (0, "", M.TEMPERATURE): 54,
    }
    labels = 'arch="rngd",device="npu3",uuid="09512C86"'
    furiosa = (
        _page(
            f'{labels},core="0-7"', furiosa_npu_alive=1, furiosa_npu_dram_total=51539607552, furiosa_npu_dram_usage=1e9
        )
        + "".join(_page(f'{labels},core="{core}"', furiosa_npu_core_utilization=100 - 50 * core) for core in range(2))
        + _page(f'{labels},core="0-7",label="rms"', furiosa_npu_hw_power=50)
        + _page(f'{labels},core="0-7",label="ambient"', furiosa_npu_hw_temperature=52)
        + _page(f'{labels},core="0-7",label="peak"', furiosa_npu_hw_temperature=67.756)
    )
    assert _found(furiosa) == {
        (3, "", M.HEALTH): 1,
        (3, "", M.GPU_MEMORY_LIMIT): 51539607552,
        (3, "", M.GPU_MEMORY_USAGE): 1e9,
        (3, "", M.GPU_UTILIZATION): pytest.approx(0.75),
        (3, "", M.POWER): 50,
        (3, "", M.TEMPERATURE): 67.756,
    }


def test_an_exporter_of_nvml_in_megabytes_and_watts() -> None:
    # README of gpu-exporter; its cards are named by their files, and PCI order is not that of the UUIDs.
    page = "".join(
        _page(
            f'bus_id="0000000{number}",name="Tesla P4",path="/dev/nvidia{number}",uuid="GPU-{uuid}"', nvidia_gpu_memory_total_mb=7606,
            nvidia_gpu_memory_used_mb=512, nvidia_gpu_power_usage=6 + number, nvidia_gpu_temperature=45 - number,
        )
        for number, uuid in [(0, "9bb5"), (1, "2d90")]
    )  # fmt: skip
    found = _found(page)
    assert found[1, "", M.GPU_MEMORY_LIMIT] == 7606 * MIB
    assert found[1, "", M.GPU_MEMORY_USAGE] == 512 * MIB
    assert (found[0, "", M.POWER], found[1, "", M.POWER]) == (6, 7)
    assert (found[0, "", M.TEMPERATURE], found[1, "", M.TEMPERATURE]) == (45, 44)


def test_a_chip_of_amd_whose_partition_is_not_applicable_is_whole() -> None:
    labels = 'gpu_id="0",serial_number="S",card_model="MI355X",gpu_partition_id="NA",gpu_compute_partition_type="SPX"'
    found = _found(_page(labels, gpu_gfx_activity=0.0, gpu_power_usage=140.0, gpu_umc_activity=0.0))
    assert found[0, "", M.GPU_UTILIZATION] == 0.0
    assert found[0, "", M.POWER] == 140.0
    assert found[0, "", M.MEMORY_BANDWIDTH_UTILIZATION] == 0.0


def test_a_part_below_zero_is_not_lost_in_a_sum() -> None:
    page = _page(
        'gpu="0",UUID="GPU-a",modelName="NVIDIA A100-SXM4-80GB"',
        DCGM_FI_DEV_GPU_UTIL=50.0,
        DCGM_FI_DEV_FB_USED=-5.0,
        DCGM_FI_DEV_FB_FREE=81079.0,
        DCGM_FI_DEV_FB_RESERVED=480.0,
    )
    found = _found(page)
    assert found[0, "", M.GPU_UTILIZATION] == 0.5
    assert found[0, "", M.GPU_MEMORY_USAGE] is UnknownKind.OUT_OF_RANGE
    assert found[0, "", M.GPU_MEMORY_LIMIT] is UnknownKind.OUT_OF_RANGE


def test_a_queue_of_partitions_is_unknown_with_one_below_zero() -> None:
    page = 'slurm_queue_pending{partition="a"} 5\nslurm_queue_pending{partition="b"} -1\n'
    assert _found(page)[None, "", M.QUEUE_DEPTH] is UnknownKind.OUT_OF_RANGE


def _xpumd(family: str, value: float, name: str = "gpu-1", **labels: str) -> str:
    said = "".join(f',{label}="{text}"' for label, text in labels.items())
    return f'{family}{{hw_id="u",hw_name="{name}",pci_bdf="0000:03:00.0",com_intel_subdevice_id=""{said}}} {value!r}\n'


@pytest.mark.parametrize(
    ("states", "health"),
    [
        # frequency.go: a clock that is held down, by a limit of power too, is "throttled" and not "ok".
        ([("ok", "gpu", 1), ("ok", "frequency", 0), ("throttled", "frequency", 1)], 1),
        ([("ok", "gpu", 1), ("ok", "memory", 0), ("degraded", "memory", 1)], 0.5),
        # memory.go: only states that were seen are told, so memory that was bad from the start has no "ok".
        ([("ok", "gpu", 1), ("critical", "memory", 1)], 0.5),
        ([("ok", "gpu", 1), ("replace", "memory", 1)], 0),
        # device.go: a part of the device is wedged, or it waits for its repair.
        ([("ok", "gpu", 0), ("reset_needed", "gpu", 1)], 0),
        ([("ok", "gpu", 1), ("reset_needed", "gpu", 0), ("ok", "memory", 1)], 1),
    ],
)
def test_states_of_an_intel_gpu(states: list[tuple[str, str, int]], health: float) -> None:
    page = _xpumd("hw_gpu_info", 1) + "".join(
        _xpumd("hw_status", value, f"{kind}-1", hw_state=state, hw_type=kind) for state, kind, value in states
    )
    assert _found(page)[0, "", M.HEALTH] == health


def test_power_of_an_intel_gpu_whose_driver_tells_no_domains() -> None:
    # power.go: the place of the sensor is "gpu" then.
    def page(*places: tuple[str, float]) -> str:
        return _xpumd("hw_gpu_info", 1) + "".join(
            _xpumd("hw_power_watts", watts, hw_sensor_location=place)
            + _xpumd("hw_energy_joules_total", 100 * watts, hw_sensor_location=place)
            for place, watts in places
        )

    alone = _found(page(("gpu", 150.5)))
    assert (alone[0, "", M.POWER], alone[0, "", M.ENERGY]) == (150.5, 15050)
    parts = _found(page(("gpu", 90), ("package", 120), ("card", 150.5)))
    assert (parts[0, "", M.POWER], parts[0, "", M.ENERGY]) == (150.5, 15050)


def test_an_ascend_950_tells_its_bandwidth_by_port() -> None:
    # collector_for_network.go of MindCluster 26.1: a line of each port of each die, in MB/s.
    def port(die: int, number: int, sent: float, received: float) -> str:
        labels = f'id="0",model_name="Ascend950PR",vdie_id="v",udie="{die}",port="{number}"'
        return _page(labels, npu_chip_info_bandwidth_tx=sent, npu_chip_info_bandwidth_rx=received)

    found = _found(port(0, 4, 10.5, 1) + port(1, 5, 20, 2) + port(1, 6, 20, 2))
    assert found == {(0, "", M.INTERCONNECT_IO): pytest.approx(55.5e6)}
    assert _found(_npu(bandwidth_tx=10.5, bandwidth_rx=1))[0, "", M.INTERCONNECT_IO] == pytest.approx(11.5e6)


def _metax(dies: int = 1, tenants: int = 1, **changes: float) -> str:
    """default-counters.csv and gpu_monitor.py of MetaX-MACA/mxExporter: of the board, and of each die; once for each tenant."""
    board = {"mx_board_power": 57839.0}
    die = {
        "mx_gpu_usage": 40.0, "mx_chip_hotspot_temp": 45.5, "mx_hbm_bw_util": 20.0, 'mx_memory_total{type="vram"}': 2.0**26,
        'mx_memory_total{type="xtt"}': 2.0**30, 'mx_memory_used{type="vram"}': 874496, 'mx_gpu_state{unavailable_reason=""}': 1,
        'mx_ecc_error_count{type="dram_ue"}': 0, 'mx_ecc_error_count{type="dram_ce"}': 9,
    }  # fmt: skip
    lines = []
    for tenant in range(tenants):
        labels = f'deviceId="3",uuid="GPU-a",exported_pod="p{tenant}",Hostname="h",modelName="MXC500"'
        for number in range(dies):
            of_die = {**die, "mx_gpu_usage": 40.0 + 20 * number, "mx_chip_hotspot_temp": 45.5 + number}
            lines += [(name, f'{labels},die_id="{number}"', value) for name, value in {**of_die, **changes}.items()]
        lines += [(name, labels, value) for name, value in board.items()]
    return "".join(
        f"{name[:-1]},{labels}}} {value!r}\n" if name.endswith("}") else f"{name}{{{labels}}} {value!r}\n"
        for name, labels, value in lines
    )


def test_metax_tells_milliwatts_and_kilobytes() -> None:
    wanted = {
        (3, "", M.GPU_UTILIZATION): 0.4, (3, "", M.GPU_MEMORY_LIMIT): 2**36, (3, "", M.GPU_MEMORY_USAGE): 874496 * 1024,
        (3, "", M.MEMORY_BANDWIDTH_UTILIZATION): 0.2, (3, "", M.HEALTH): 1, (3, "", M.POWER): 57.839, (3, "", M.TEMPERATURE): 45.5,
    }  # fmt: skip
    for tenants in (1, 2):
        assert _found(_metax(tenants=tenants)) == {key: pytest.approx(value) for key, value in wanted.items()}


def test_a_metax_chip_of_two_dies_is_one_accelerator() -> None:
    found = _found(_metax(dies=2, tenants=2))
    assert found[3, "", M.GPU_UTILIZATION] == pytest.approx(0.5)
    assert found[3, "", M.GPU_MEMORY_LIMIT] == 2**37
    assert found[3, "", M.GPU_MEMORY_USAGE] == 2 * 874496 * 1024
    assert found[3, "", M.TEMPERATURE] == 46.5
    assert found[3, "", M.POWER] == 57.839
    # Of a die that tells nothing the other one is not the chip.
    silent = _metax(dies=2).replace('die_id="1"} 60.0', 'die_id="1"} nan')
    assert _found(silent)[3, "", M.GPU_UTILIZATION] is UnknownKind.NOT_A_NUMBER


def test_a_metax_chip_that_is_not_available_has_failed() -> None:
    assert _found(_metax(**{'mx_gpu_state{unavailable_reason="ecc"}': 0}))[3, "", M.HEALTH] == 0
    assert _found(_metax(**{'mx_ecc_error_count{type="dram_ue"}': 2}))[3, "", M.HEALTH] == 0.5


def test_power_of_a_metax_board_that_is_no_milliwatts_is_not_believed() -> None:
    page = _page('deviceId="0",uuid="a"', mx_gpu_usage=4, mx_board_power=310)
    assert _found(page)[0, "", M.POWER] is UnknownKind.OUT_OF_RANGE


def test_shares_of_a_metax_chip_are_parts_and_no_accelerators() -> None:
    share = 'deviceId="3",sgpuId="1",minor="5",uuid="sGPU-9",modelName="MXC500"'
    shares = _page(share, mx_sgpu_usage=30, mx_sgpu_total_memory=2.0**24, mx_sgpu_used_memory=2.0**20)
    found = _found(_metax() + shares)
    assert found[3, "1", M.GPU_UTILIZATION] == pytest.approx(0.3)
    assert (found[3, "1", M.GPU_MEMORY_LIMIT], found[3, "1", M.GPU_MEMORY_USAGE]) == (2**34, 2**30)
    assert found[3, "", M.GPU_UTILIZATION] == pytest.approx(0.4)
    # One that was taken away is no accelerator that is lost.
    translator = Translator(load_table("mx-exporter"), "n1")
    for text in (_metax() + shares, _metax(), _metax(), _metax()):
        readings = translator.translate(parse_exposition(text).samples, NOW)
    assert {item.value for item in readings if item.metric is M.HEALTH} == {1, None}


def test_virtual_gcus_of_enflame_are_parts_that_tell_of_their_chip() -> None:
    # collector/vgcu_*.go: with virtual ones the families of the whole are silent; power and health of the chip stand at each part.
    def part(number: int, **values: float) -> str:
        labels = f'vindex="{number}",minor_number="2",uuid="GCU-U5",busid="0000:40:00.0",name="Enflame S60"'
        return _page(labels, **{f"enflame_vgcu_{name}": value for name, value in values.items()})

    memory = {"memory_total_bytes": 2.0**33, "power_consumption": 96.0}
    page = 'enflame_gcu_count{host="h"} 1\n' + part(0, usage=80, memory_used_bytes=2.0**30, health=2, **memory)
    found = _found(page + part(1, usage=-1, memory_used_bytes=0, health=2, **memory))
    assert found[2, "0", M.GPU_UTILIZATION] == pytest.approx(0.8)
    assert found[2, "1", M.GPU_UTILIZATION] is UnknownKind.SENTINEL
    assert (found[2, "0", M.GPU_MEMORY_USAGE], found[2, "0", M.GPU_MEMORY_LIMIT]) == (2**30, 2**33)
    assert (found[2, "", M.POWER], found[2, "", M.HEALTH]) == (96, 1)
    assert found[2, "0", M.POWER] is UnknownKind.PARTITIONED


def test_errors_of_iluvatar_that_could_not_be_corrected() -> None:
    for status, health in ((0, 1), (1, 0.5)):
        page = _page(
            'gpu="0",uuid="u",name="Iluvatar BI-V150"', ix_ecc_dbe_vol_status=status, ix_xid_errors=4, ix_power_usage=90
        )
        assert _found(page)[0, "", M.HEALTH] == health
