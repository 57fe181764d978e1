"""Accelerators that are divided: from a page of their exporter to the inventory and to what a program sees."""

from __future__ import annotations

from collections.abc import Mapping, Set
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.collectors.base import Reading, Source
from agent.collectors.declared import AllocationCollector
from agent.collectors.device import Device
from agent.collectors.exposition import parse_exposition
from agent.collectors.metrics import Metric
from agent.collectors.table_file import load_table
from agent.collectors.translation import LOST_AFTER, Translator
from agent.collectors.unknown import UnknownKind
from agent.contract_messages import inventory
from agent.engines.base import LaunchRequest, RankPlacement
from agent.engines.local.environment import rank_environment
from agent.parts import Part, PartBook, observed
from agent.settings import AgentSettings

NOW = datetime(2026, 11, 22, tzinfo=UTC)
GIB = 2**30
WHOLE = """DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-aa",modelName="NVIDIA H100 80GB HBM3"} 310.5
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-aa",modelName="NVIDIA H100 80GB HBM3"} 61
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-bb",modelName="NVIDIA H100 80GB HBM3"} 12
"""
SMALL = """DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-aa",GPU_I_ID="7",GPU_I_PROFILE="1g.10gb"} 0.5
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-aa",GPU_I_ID="7",GPU_I_PROFILE="1g.10gb"} 1024
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-aa",GPU_I_ID="7",GPU_I_PROFILE="1g.10gb"} 9216
"""
LARGE = """DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-aa",GPU_I_ID="2",GPU_I_PROFILE="3g.40gb"} 0.9
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-aa",GPU_I_ID="2",GPU_I_PROFILE="3g.40gb"} 10240
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-aa",GPU_I_ID="2",GPU_I_PROFILE="3g.40gb"} 30720
"""
PARTS = (
    Part("2", "3g.40gb", 34, 40 * GIB, "MIG-GPU-aa/2/0"),
    Part("7", "1g.10gb", 39, 10 * GIB, "MIG-GPU-aa/7/0"),
)


def _translator() -> Translator:
    return Translator(load_table("dcgm-exporter"), "n1")


def _readings(translator: Translator, page: str) -> list[Reading]:
    return translator.translate(parse_exposition(page).samples, NOW)


def _settings(folder: Path) -> AgentSettings:
    node = {
        "node_id": "n1",
        "cpus": 8,
        "memory_bytes": 64 * GIB,
        "accelerators": [
            {"vendor": "nvidia", "model": "H100-SXM5-80GB", "count": 2, "memory_bytes": 80 * GIB, "peak_flops": 7e14}
        ],
    }
    return AgentSettings.model_validate(
        {
            "domain": {"domain_id": "d", "name": "D", "region": "r", "owner": "o", "nodes": [node]},
            "kafka_bootstrap_servers": "127.0.0.1:1",
            "data_dir": str(folder),
            "http_port": 1,
        }
    )


def test_instances_that_dcgm_tells_are_parts_with_their_share() -> None:
    assert observed({}, _readings(_translator(), WHOLE + SMALL + LARGE)) == {("n1", 0): PARTS}


def test_of_a_part_the_peak_is_missing_and_not_the_chip() -> None:
    text = SMALL + 'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",UUID="GPU-aa",GPU_I_ID="7",GPU_I_PROFILE="1g.10gb",modelName="NVIDIA H100 80GB HBM3"} 0.5\n'  # fmt: skip
    (told,) = [
        item for item in _readings(_translator(), text) if item.metric is Metric.COMPUTE_EFFECTIVE and item.partition
    ]
    assert told.value is None
    assert told.kind is UnknownKind.NO_REFERENCE
    assert told.reason.startswith("the peak of a part is not known")


def test_an_accelerator_is_whole_again_once_its_exporter_tells_no_parts_of_it(tmp_path: Path) -> None:
    translator, book = _translator(), PartBook(tmp_path / "parts.json")
    assert book.observe(_readings(translator, WHOLE + SMALL + LARGE))
    assert not book.observe(_readings(translator, WHOLE + SMALL + LARGE))
    whole = WHOLE + 'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-aa"} 3\n'
    for _ in range(LOST_AFTER):
        readings = [item for item in _readings(translator, whole) if item.kind is not UnknownKind.VANISHED]
    assert book.observe(readings)
    assert book.divided == {}
    # The exporter does not tell of parts that are gone, whatever happens to it later.
    silent = translator.unavailable(UnknownKind.UNAVAILABLE, "no answer", NOW)
    assert not any(item.partition for item in silent)


def test_while_no_exporter_speaks_of_an_accelerator_it_stays_divided(tmp_path: Path) -> None:
    translator, path = _translator(), tmp_path / "parts.json"
    book = PartBook(path)
    book.observe(_readings(translator, WHOLE + SMALL + LARGE))
    book.observe(translator.unavailable(UnknownKind.UNAVAILABLE, "no answer", NOW))
    assert book.divided == {("n1", 0): PARTS}
    anew = PartBook(path)
    assert anew.divided == {("n1", 0): PARTS}
    anew.observe([])
    # An agent that starts while the exporter is silent hears nothing measured; nominal figures come from elsewhere.
    anew.observe(Translator(load_table("dcgm-exporter"), "n1", [Device(0, "GPU-aa")]).unavailable(UnknownKind.UNAVAILABLE, "x", NOW))  # fmt: skip
    anew.observe([Reading("n1", Metric.GPU_MEMORY_LIMIT, 80.0 * GIB, Source.NOMINAL, NOW, accelerator_index=0)])
    assert anew.divided == {("n1", 0): PARTS}
    assert anew.by_node() == {"n1": {part.index: part for part in PARTS}}


def test_a_number_that_a_whole_accelerator_has_is_no_part_s(tmp_path: Path) -> None:
    path = tmp_path / "parts.json"
    PartBook(path).observe(_readings(_translator(), WHOLE + SMALL + LARGE))
    # 36 accelerators: 34 is one of them, 39 is not.
    for book in (PartBook(path, {"n1": 36}), PartBook(tmp_path / "new.json", {"n1": 36})):
        book.observe(_readings(_translator(), WHOLE + SMALL + LARGE))
        assert [part.index for part in book.divided["n1", 0]] == [0, 39]
        assert book.by_node() == {"n1": {39: PARTS[1]}}
    rank = RankPlacement(0, "n1", 0, (34,))
    request = LaunchRequest("run", "job", 0, 1, "tenant", (rank,), 1, ("true",))
    found = rank_environment(request, rank, "CUDA_VISIBLE_DEVICES", parts=book.by_node()["n1"])
    assert found["CUDA_VISIBLE_DEVICES"] == "34"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[",
        '[{"node_id": "n"}]',
        '[{"node_id": "n", "index": 0, "parts": [{"x": 1}]}]',
        '[{"node_id": "n", "index": Infinity, "parts": []}]',
        '[{"node_id": "n", "index": 0, "parts": [{"id": "7", "profile": "", "index": "x", "memory_bytes": 0, "name": ""}]}]',
    ],
)
def test_a_damaged_book_is_an_empty_one(content: str, tmp_path: Path) -> None:
    path = tmp_path / "parts.json"
    path.write_text(content)
    assert PartBook(path).divided == {}


def test_a_chip_of_which_only_its_mode_is_known_is_divided_into_unknown_parts() -> None:
    page = 'nvidia_smi_index{uuid="GPU-aa"} 0\nnvidia_smi_mig_mode_current{uuid="GPU-aa"} 1\nnvidia_smi_power_draw_watts{uuid="GPU-aa"} 250\n'
    translator = Translator(load_table("nvidia-gpu-exporter"), "n1")
    assert observed({}, _readings(translator, page)) == {("n1", 0): ()}


MIG_MODE = 'DCGM_FI_DEV_MIG_MODE{gpu="0",UUID="GPU-aa"} '


def test_a_chip_in_mig_mode_without_instances_is_not_whole() -> None:
    """DCGM tells of such a chip as of a whole one (dcgm-exporter, devices "f"), and of the mode where the counter is configured
    (dcgm_fields.h: 1 is enabled); no program can use it (NVIDIA, "MIG User Guide", creating GPU instances)."""
    for page, power_w in ((WHOLE, 310.5), ('DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-aa"} 70\n', 70.0)):
        assert observed({}, _readings(_translator(), page)) == {}
        assert observed({}, _readings(_translator(), page + MIG_MODE + "0\n")) == {}
        readings = _readings(_translator(), page + MIG_MODE + "1\n")
        assert observed({}, readings) == {("n1", 0): ()}
        of_chip = {item.metric: item for item in readings if item.accelerator_index == 0}
        assert of_chip[Metric.POWER].value == power_w
        assert of_chip[Metric.GPU_UTILIZATION].kind is UnknownKind.PARTITIONED
        assert of_chip[Metric.GPU_UTILIZATION].reason
    collector = AllocationCollector({"n1": 1}, lambda: {"n1": set()}, lambda: observed({}, readings))
    (free,) = collector.collect(NOW)
    assert (free.value, free.kind) == (None, UnknownKind.PARTITIONED)
    assert free.reason


def test_the_mode_adds_nothing_where_instances_are_told() -> None:
    modes = "".join(
        MIG_MODE.replace("}", f',GPU_I_ID="{part}",GPU_I_PROFILE="{profile}"}}') + "1\n"
        for part, profile in (("2", "3g.40gb"), ("7", "1g.10gb"))
    )
    for page in (SMALL + LARGE + modes, SMALL + LARGE + WHOLE + MIG_MODE + "1\n"):
        assert observed({}, _readings(_translator(), page)) == {("n1", 0): PARTS}
    told = _readings(_translator(), SMALL + LARGE + modes)
    without = _readings(_translator(), SMALL + LARGE)
    assert [(item.partition, item.metric, item.reason) for item in told] == [
        (item.partition, item.metric, item.reason) for item in without
    ]


@pytest.mark.parametrize("value", ["9223372036854775792", "2147483632", "2", "NaN"])
def test_a_mode_that_is_not_known_says_nothing(value: str) -> None:
    assert observed({("n1", 0): PARTS}, _readings(_translator(), WHOLE + MIG_MODE + value + "\n")) == {}


def test_tiles_are_told_beside_a_device_that_stays_whole() -> None:
    page = 'hw_gpu_info{pci_bdf="0000:05:00.0"} 1\nhw_gpu_utilization_ratio{pci_bdf="0000:05:00.0",hw_gpu_task="all",com_intel_subdevice_id="0"} 0.6\n'
    translator = Translator(load_table("xpumd"), "n1")
    assert observed({}, _readings(translator, page)) == {}


def test_the_inventory_lists_the_accelerator_once_with_its_parts(tmp_path: Path) -> None:
    message = inventory(_settings(tmp_path), {("n1", 0): "cpn-a"}, "", divided={("n1", 0): PARTS})
    first, second = message.nodes[0].accelerators
    assert (first.index, first.compute_id, first.memory_bytes, first.partitioned) == (0, "cpn-a", 80 * GIB, True)
    assert [(part.id, part.index, part.memory_bytes, round(part.peak_flops)) for part in first.parts] == [
        ("2", 34, 40 * GIB, round(3e14)),
        ("7", 39, 10 * GIB, round(1e14)),
    ]
    assert not second.partitioned
    assert not second.parts


def test_the_free_share_of_a_divided_accelerator_is_that_of_its_free_parts() -> None:
    def free(
        held: Mapping[str, Set[int]], parts: tuple[Part, ...]
    ) -> dict[str, tuple[float | None, UnknownKind | None]]:
        collector = AllocationCollector({"n1": 1}, lambda: held, lambda: {("n1", 0): parts})
        return {item.partition: (item.value, item.kind) for item in collector.collect(NOW)}

    assert free({"n1": {34}}, PARTS) == {"": (pytest.approx(0.2), None), "2": (0.0, None), "7": (1.0, None)}
    assert free({"n1": set()}, ()) == {"": (None, UnknownKind.PARTITIONED)}
    assert free({}, PARTS) == {"": (None, UnknownKind.UNAVAILABLE)}


def test_a_program_sees_its_part_by_the_maker_s_name() -> None:
    rank = RankPlacement(0, "n1", 0, (39,), 500)
    request = LaunchRequest("run", "job", 0, 1, "tenant", (rank,), 1, ("true",))
    known = {part.index: part for part in PARTS}
    found = rank_environment(request, rank, "CUDA_VISIBLE_DEVICES", memory_bytes=(80 * GIB, 80 * GIB), parts=known)
    assert found["CUDA_VISIBLE_DEVICES"] == "MIG-GPU-aa/7/0"
    assert found["MERIDIAN_ACCELERATORS"] == "39"
    assert found["MERIDIAN_DEVICE_MEMORY_BYTES"] == str(5 * GIB)


def _page_of_instances(minute: int, instances: tuple[str, ...], power: str = "310.5") -> str:
    """Where MIG is on, dcgm-exporter has lines of the instances only; what is of the chip stands at each of them."""
    whole = {
        "DCGM_FI_DEV_POWER_USAGE": power,
        "DCGM_FI_DEV_GPU_TEMP": "61",
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": str(10**9 + minute * 10**7),
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": "0",
        "DCGM_FI_DEV_XID_ERRORS": "0" if minute < 2 else "48",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "0.5",
    }
    return "".join(
        f'{family}{{gpu="0",UUID="GPU-aa",GPU_I_ID="{instance}",GPU_I_PROFILE="1g.10gb"}} {value}\n'
        for instance in instances
        for family, value in whole.items()
    )


def test_a_chip_of_which_only_instances_are_told_is_not_lost() -> None:
    translator = Translator(load_table("dcgm-exporter"), "n1", [Device(0)])
    for minute in range(LOST_AFTER + 1):
        page = _page_of_instances(minute, ("7", "8"))
        readings = translator.translate(parse_exposition(page).samples, NOW + timedelta(minutes=minute))
        whole = {item.metric: item for item in readings if item.accelerator_index == 0 and not item.partition}
        assert len(whole) == len({item.metric for item in readings}), "each metric once"
        assert UnknownKind.VANISHED not in {item.kind for item in readings}
        assert whole[Metric.POWER].value == 310.5
        assert whole[Metric.TEMPERATURE].value == 61
        assert whole[Metric.ENERGY].value == 1e6 + minute * 1e4
        assert whole[Metric.GPU_UTILIZATION].value is None
        # The error of the chip stands at each instance.
        assert whole[Metric.HEALTH].value == (1 if minute < 2 else 0.5)
        assert {item.value for item in readings if item.partition and item.metric is Metric.POWER} == {None}
        assert set(observed({}, readings)) == {("n1", 0)}
    gone = [translator.translate((), NOW + timedelta(minutes=9 + each)) for each in range(LOST_AFTER)][-1]
    assert {item.value for item in gone if item.metric is Metric.HEALTH and not item.partition} == {0}


def test_instances_that_disagree_about_their_chip_make_it_unknown() -> None:
    page = _page_of_instances(0, ("7",)) + _page_of_instances(0, ("8",), power="290")
    whole = {item.metric: item for item in _readings(_translator(), page) if not item.partition}
    assert whole[Metric.POWER].kind is UnknownKind.DUPLICATE
    assert whole[Metric.TEMPERATURE].value == 61


def test_what_the_chip_tells_of_itself_goes_before_what_stands_at_its_instances() -> None:
    page = WHOLE + _page_of_instances(0, ("7",), power="1")
    whole = {
        item.metric: item.value
        for item in _readings(_translator(), page)
        if item.accelerator_index == 0 and not item.partition
    }
    assert whole[Metric.POWER] == 310.5
