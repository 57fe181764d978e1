"""Real pages of exporters and documents of Slurm: what `meridian telemetry parse` says of them, checked by hand."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from agent.collectors.metrics import Metric
from agent.collectors.peaks import peak_source
from agent.collectors.sensing import Sensed, sense
from agent.collectors.unknown import UnknownKind
from tests.public_data import public_data

pytestmark = pytest.mark.external
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
H100 = "nvidia_gpu_exporter__linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01__load.prom"


def _sense(path: str, at: datetime = NOW) -> Sensed:
    return sense(public_data(path).read_text(), at, peak_of=peak_source())


def _known(sensed: Sensed, index: int | None = 0, node: str = "node", partition: str = "") -> dict[Metric, float]:
    place = node, index, partition
    return {
        item.metric: item.value
        for item in sensed.readings
        if (item.node_id, item.accelerator_index, item.partition) == place and item.value is not None
    }


def test_an_h100_under_load() -> None:
    assert _known(_sense(f"exposition/{H100}")) == {
        Metric.GPU_UTILIZATION: 1.0,
        Metric.GPU_MEMORY_USAGE: 20780679168,
        Metric.GPU_MEMORY_LIMIT: 85520809984,
        Metric.MEMORY_BANDWIDTH_UTILIZATION: 0.11,
        Metric.HEALTH: 1.0,
        Metric.POWER: 625.68,
        Metric.TEMPERATURE: 59,
    }


def test_an_idle_l40s() -> None:
    found = _known(_sense("exposition/dcgm_exporter__l40s_idle_excerpt.prom"))
    assert found[Metric.GPU_MEMORY_LIMIT] == (45459 + 608) * 2**20
    assert (found[Metric.POWER], found[Metric.ENERGY]) == (35.686, pytest.approx(5551899.58))
    assert found[Metric.MEMORY_BANDWIDTH_UTILIZATION] == 0.000131
    assert (found[Metric.GPU_UTILIZATION], found[Metric.COMPUTE_EFFECTIVE]) == (0, 0)


def test_the_blank_value_of_dcgms_readme() -> None:
    sensed = _sense("exposition/dcgm_exporter__blank_sentinel_from_README.prom")
    assert _known(sensed) == {}
    assert [(family, kind) for family, _, kind, _ in sensed.set_aside] == [
        ("DCGM_FI_DEV_MEMORY_TEMP", UnknownKind.SENTINEL)
    ]


def test_eight_ascend_chips_that_do_not_answer() -> None:
    old = _sense("exposition/ascend_npu_exporter__prometheus_metrics.prom")
    assert all(not _known(old, index) for index in range(8))
    told = {item.kind for item in old.readings if item.metric in {Metric.POWER, Metric.HEALTH, Metric.GPU_UTILIZATION}}
    assert told == {UnknownKind.STALE}
    then = _sense("exposition/ascend_npu_exporter__prometheus_metrics.prom", datetime.fromtimestamp(1606402, UTC))
    assert [_known(then, index) for index in range(8)] == [{Metric.HEALTH: 1.0}] * 8, "their zeros are placeholders"


def test_cambricon_boards_with_virtual_functions_and_no_prefix() -> None:
    sensed = _sense("exposition/cambricon_mlu__collect_metrics.json")
    first, second = _known(sensed, 0), _known(sensed, 1)
    assert (first[Metric.GPU_UTILIZATION], first[Metric.POWER], first[Metric.HEALTH]) == (0.11, 30, 1)
    assert (second[Metric.GPU_UTILIZATION], second[Metric.POWER], second[Metric.HEALTH]) == (0.12, 31, 0)
    assert (first[Metric.GPU_MEMORY_USAGE], first[Metric.GPU_MEMORY_LIMIT]) == (20971520, 1048576000)
    assert _known(sensed, 3, partition="1")[Metric.GPU_UTILIZATION] == pytest.approx(0.295)


def test_hygon_and_amd() -> None:
    hygon = _sense("exposition/hygon_dcu_exporter__README_sample.prom")
    assert _known(hygon, 1) == {Metric.GPU_MEMORY_LIMIT: 34342961152, Metric.TEMPERATURE: 47}
    amd = _known(_sense("exposition/amd__metrics_mini_sample.prom"))
    assert amd == {Metric.GPU_UTILIZATION: 0, Metric.GPU_MEMORY_LIMIT: 68702e6, Metric.POWER: 41}


def test_slurm() -> None:
    nodes = _sense("slurm/sinfo_out.json")
    first = _known(nodes, None, "cs2.example.company.com")
    assert first[Metric.CAPACITY_FREE] == 60 / 64
    assert first[Metric.MEMORY_LIMIT] == 500000 * 2**20
    assert first[Metric.MEMORY_USAGE] == (500000 - 337330) * 2**20
    assert _known(_sense("slurm/squeue_out.json"), None, "cluster")[Metric.QUEUE_DEPTH] == 1
    assert _known(_sense("slurm/sdiag_2405.json"), None, "cluster")[Metric.QUEUE_DEPTH] == 0
