"""Raw values that stand for none in every exporter, and figures that a page tells of parts of what is asked for."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from agent.collectors.base import Source
from agent.collectors.metrics import Metric
from agent.collectors.peaks import catalogue_peak_flops, peak_source
from agent.collectors.sensing import Sensed, sense
from agent.collectors.unknown import UnknownKind

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
M = Metric
ALL_BITS = ["2147483647", "4294967295", "9223372036854775807", "18446744073709551615", "1.8446744073709552e+19"]
# One page of each vendor; each family carries the value.
PAGES = {
    "dcgm": 'DCGM_FI_DEV_{}{{gpu="0",UUID="g"}} {}\n',
    "mlu": 'mlu_{}{{mlu="0",uuid="u"}} {}\n',
    "dcu": 'dcu_{}{{minor_number="0",device_id="d"}} {}\n',
    "xpumd": 'hw_{}{{pci_bdf="0000:29:00.0"}} {}\nhw_gpu_info{{pci_bdf="0000:29:00.0"}} 1\n',
    "smi": 'nvidia_smi_{}{{uuid="u"}} {}\n',
    "amd": 'gpu_{}{{gpu_id="0",gpu_uuid="u"}} {}\n',
}
FAMILIES = {
    "dcgm": ["TOTAL_ENERGY_CONSUMPTION", "FB_USED", "NVLINK_BANDWIDTH_TOTAL"],
    "mlu": ["memory_used", "memory_total"],
    "dcu": ["usedmemory_bytes", "memorycap_bytes", "ue_count"],
    "xpumd": ["memory_usage_bytes", "memory_size_bytes", "energy_joules_total"],
    "smi": ["memory_used_bytes", "memory_total_bytes", "power_draw_watts"],
    "amd": ["energy_consumed", "used_vram", "total_vram"],
}


def _sensed(text: str, previous: str | None = None) -> Sensed:
    return sense(text, NOW, previous=previous, peak_of=peak_source())


@pytest.mark.parametrize("value", ALL_BITS)
@pytest.mark.parametrize("vendor", PAGES)
def test_all_bits_of_an_integer_are_no_value_of_any_vendor(vendor: str, value: str) -> None:
    for family in FAMILIES[vendor]:
        found = _sensed(PAGES[vendor].format(family, value))
        assert [item for item in found.readings if item.value is not None] == [], family
        assert UnknownKind.SENTINEL in {item.kind for item in found.readings}
        assert {kind for _, _, kind, _ in found.set_aside} == {UnknownKind.SENTINEL}


def test_a_number_below_all_bits_is_a_value() -> None:
    used = 2**32 - 4096
    page = PAGES["dcu"].format("usedmemory_bytes", used)
    assert {item.value for item in _sensed(page).readings if item.metric is M.GPU_MEMORY_USAGE} == {used}


@pytest.mark.parametrize(
    ("vendor", "family"), [("mlu", "temperature"), ("dcu", "temp"), ("amd", "junction_temperature")]
)
def test_a_temperature_of_minus_one_is_none(vendor: str, family: str) -> None:
    found = {item.metric: item for item in _sensed(PAGES[vendor].format(family, -1)).readings}
    assert found[M.TEMPERATURE].kind is UnknownKind.SENTINEL
    cold = {item.metric: item for item in _sensed(PAGES[vendor].format(family, -1.5)).readings}
    assert cold[M.TEMPERATURE].value == -1.5


@pytest.mark.parametrize("before", ["-1", "NaN", "4294967295"])
def test_a_rate_does_not_begin_at_what_is_no_value(before: str) -> None:
    def page(read: str, written: str) -> str:
        return (
            f'mlu_mlulink_cntr_read_byte_total{{mlu="0",uuid="u",link="0"}} {read}\n'
            f'mlu_mlulink_cntr_write_byte_total{{mlu="0",uuid="u",link="0"}} {written}\n'
            'mlu_utilization{mlu="0",uuid="u"} 5\n'
        )

    found = {item.metric: item for item in _sensed(page("5e12", "6e12"), previous=page(before, "5.9e12")).readings}
    assert found[M.INTERCONNECT_IO].kind is UnknownKind.NEEDS_SECOND_SAMPLE
    known = {item.metric: item for item in _sensed(page("5e12", "6e12"), previous=page("4.9e12", "5.9e12")).readings}
    assert known[M.INTERCONNECT_IO].value == pytest.approx(2e11 / 15)


def test_a_line_of_one_link_is_not_what_the_chip_sends() -> None:
    page = "".join(
        f'DCGM_FI_PROF_NVLINK_{way}_BYTES{{gpu="0",UUID="g",nvlink="{link}"}} 1e9\n'
        for link in range(3)
        for way in ("TX", "RX")
    )
    found = {item.metric: item for item in _sensed(page + 'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="g"} 5\n').readings}
    assert found[M.INTERCONNECT_IO].kind is UnknownKind.NOT_EXPORTED


def _mig(instances: dict[str, tuple[str, str]], model: str = "NVIDIA H100 80GB HBM3") -> str:
    return f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",UUID="GPU-a",modelName="{model}"}} 300\n' + "".join(
        f'DCGM_FI_PROF_{family}{{gpu="0",UUID="GPU-a",modelName="{model}",GPU_I_ID="{name}",GPU_I_PROFILE="{profile}"}} {active}\n'
        for name, (profile, active) in instances.items()
        for family in ("PIPE_TENSOR_ACTIVE", "GR_ENGINE_ACTIVE")
    )


def _effective(text: str) -> dict[str, float | None]:
    return {item.partition: item.value for item in _sensed(text).readings if item.metric is M.COMPUTE_EFFECTIVE}


def test_a_mig_instance_computes_its_share_of_the_chip_and_the_chip_the_sum() -> None:
    text = _mig({"1": ("3g.40gb", "0.5"), "9": ("1g.10gb", "0.25"), "10": ("1c.2g.20gb", "0.1")})
    seventh = 989.4e12 / 7
    found = _effective(text)
    assert found["1"] == pytest.approx(3 * seventh * 0.5)
    assert found["9"] == pytest.approx(seventh * 0.25)
    assert found["10"] == pytest.approx(seventh * 0.1), "a compute instance of one slice"
    assert found[""] == pytest.approx(seventh * (1.5 + 0.25 + 0.1))
    (whole,) = (item for item in _sensed(text).readings if item.metric is M.COMPUTE_EFFECTIVE and not item.partition)
    assert whole.source is Source.ESTIMATION
    assert whole.accelerator_index == 0


@pytest.mark.parametrize(
    ("instances", "model"),
    [
        ({"1": ("3g.40gb", "0.5"), "9": ("1g.10gb", "9223372036854775794")}, "NVIDIA H100 80GB HBM3"),
        ({"1": ("3g.40gb", "0.5"), "9": ("", "0.5")}, "NVIDIA H100 80GB HBM3"),
        ({"1": ("3g.40gb", "0.5")}, "A chip nobody knows"),
    ],
    ids=["one does not say", "one of no known size", "no peak"],
)
def test_a_divided_chip_has_no_sum_without_all_of_its_instances(
    instances: dict[str, tuple[str, str]], model: str
) -> None:
    assert _effective(_mig(instances, model))[""] is None


def test_what_the_chip_itself_tells_goes_before_the_sum() -> None:
    text = _mig({"1": ("3g.40gb", "0.5")})
    own = 'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",UUID="GPU-a",modelName="NVIDIA H100 80GB HBM3"} 0.2\n'
    assert _effective(text + own)[""] == pytest.approx(0.2 * 989.4e12)


def test_a_declared_peak_is_that_of_the_whole() -> None:
    text = _mig({"1": ("3g.40gb", "0.5")})
    readings = sense(text, NOW, peak_of=peak_source([700e12])).readings
    found = {item.partition: item.value for item in readings if item.metric is M.COMPUTE_EFFECTIVE}
    assert found == {"": pytest.approx(150e12), "1": pytest.approx(150e12)}


@pytest.mark.parametrize(
    ("name", "peak"),
    [("NVIDIA H200", 989.4e12), ("NVIDIA H200 NVL", 835.5e12), ("NVIDIA H800", 989.4e12), ("NVIDIA H800 PCIe", 756e12)],
)
def test_what_nvml_names_without_a_form_is_the_sxm_board(name: str, peak: float) -> None:
    assert catalogue_peak_flops(name) == peak


def _kube(there: dict[str, int], taken: dict[str, int]) -> float | UnknownKind | None:
    pod = 'namespace="d",pod="p",uid="p"'
    text = f'kube_pod_status_phase{{{pod},phase="Running"}} 1\n'
    for resource, amount in there.items():
        text += f'kube_node_status_allocatable{{node="n",resource="{resource}"}} {amount}\n'
    for resource, amount in taken.items():
        text += f'kube_pod_container_resource_requests{{{pod},node="n",resource="{resource}"}} {amount}\n'
    (found,) = (
        item for item in _sensed(text).readings if item.metric is M.CAPACITY_FREE and item.node_id == "n"
    )  # fmt: skip
    return found.kind if found.value is None else found.value


def test_resources_of_a_node_of_different_sizes_are_not_added_up() -> None:
    whole, small, large = "nvidia_com_gpu", "nvidia_com_mig_1g_10gb", "nvidia_com_mig_3g_40gb"
    # Slices of instances compare: 2 + 3 of 4 + 6 are taken.
    assert _kube({small: 4, large: 2}, {small: 2, large: 1}) == pytest.approx(0.5)
    assert _kube({small: 4, large: 2}, {large: 2}) == pytest.approx(0.4)
    assert _kube({whole: 6, small: 14}, {small: 7}) is UnknownKind.NO_REFERENCE
    assert _kube({whole: 6, small: 14}, {whole: 3, small: 7}) == pytest.approx(0.5), "half of each is half of all"
    assert _kube({whole: 6, small: 14}, {whole: 0}) == 1
    assert _kube({whole: 0, small: 14}, {small: 7}) == pytest.approx(0.5), "a node whose chips are all divided"
    assert _kube({whole: 4, "nvidia_com_gpu_shared": 16}, {"nvidia_com_gpu_shared": 8}) is UnknownKind.NO_REFERENCE
    assert _kube({whole: 4, small: 7}, {small: 8}) is UnknownKind.INCONSISTENT
    assert _kube({whole: 4}, {small: 1}) is UnknownKind.INCONSISTENT
