"""Pages as other versions and makers of the exporters write them, by their documents and sources, with values worked out by hand."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from agent.collectors.metrics import Metric
from agent.collectors.peaks import peak_source
from agent.collectors.sensing import sense
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
