"""Which devices of Kubernetes' dynamic resource allocation are accelerators; drivers and attributes as their projects publish them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from agent.collectors.base import Reading
from agent.collectors.dra_devices import DeviceKind, kind_of, kinds_by_class
from agent.collectors.metrics import Metric
from agent.collectors.sensing import sense
from agent.collectors.unknown import UnknownKind

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def _slice(driver: str, *devices: tuple[str, str], **capacity: str) -> dict[str, Any]:
    """A slice of one pool; devices are names with their type (empty: none)."""
    listed = [
        {
            "name": name,
            "attributes": {"type": {"string": kind}} if kind else {"id": {"int": 0}},
            "capacity": {key: {"value": value} for key, value in capacity.items()},
        }
        for name, kind in devices
    ]
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    return {"kind": "ResourceSlice", "spec": {"driver": driver, "nodeName": "n1", "pool": pool, "devices": listed}}


def _class(name: str, expression: str, resource: str = "") -> dict[str, Any]:
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": expression}}]}
    return {"kind": "DeviceClass", "metadata": {"name": name}, "spec": spec | ({"extendedResourceName": resource} if resource else {})}  # fmt: skip


def _sensed(*items: dict[str, Any]) -> tuple[Reading, ...]:
    return sense(json.dumps({"kind": "List", "items": list(items)}), NOW).readings


def _accelerators(readings: tuple[Reading, ...]) -> dict[int | None, str]:
    return {item.accelerator_index: item.device for item in readings if item.accelerator_index is not None}


@pytest.mark.parametrize(
    ("driver", "kind", "expected"),
    [
        ("gpu.nvidia.com", "gpu", DeviceKind.ACCELERATOR),
        ("gpu.nvidia.com", "mig", DeviceKind.ACCELERATOR),
        ("gpu.nvidia.com", "vfio", DeviceKind.ACCELERATOR),
        ("compute-domain.nvidia.com", "channel", DeviceKind.OTHER),
        ("compute-domain.nvidia.com", "daemon", DeviceKind.OTHER),
        ("gpu.amd.com", "amdgpu", DeviceKind.ACCELERATOR),
        ("gpu.amd.com", "amdgpu-partition", DeviceKind.ACCELERATOR),
        ("gpu.intel.com", "", DeviceKind.ACCELERATOR),
        ("gaudi.intel.com", "", DeviceKind.ACCELERATOR),
        ("qat.intel.com", "", DeviceKind.OTHER),
        ("npu.rebellions.ai", "", DeviceKind.ACCELERATOR),
        ("tpu.google.com", "", DeviceKind.ACCELERATOR),
        ("hami-core-gpu.project-hami.io", "", DeviceKind.ACCELERATOR),
        ("fpga.example.com", "", DeviceKind.ACCELERATOR),
        ("cards.example.com", "fpga", DeviceKind.ACCELERATOR),
        ("gpu.example.com", "nic", DeviceKind.OTHER),
        ("dra.net", "", DeviceKind.OTHER),
        ("dra.cpu", "", DeviceKind.OTHER),
        ("sriovnetwork.k8snetworkplumbingwg.io", "", DeviceKind.OTHER),
        ("boards.vendor.net", "", DeviceKind.UNKNOWN),
        ("resource-driver.example.com", "", DeviceKind.UNKNOWN),
        ("boards.nvidia.com", "vfio", DeviceKind.UNKNOWN),
    ],
)
def test_what_a_device_is_by_its_type_and_its_driver(driver: str, kind: str, expected: DeviceKind) -> None:
    assert kind_of(driver, kind, {}) is expected


def test_network_cards_and_channels_are_no_accelerators_and_take_none_of_their_numbers() -> None:
    readings = _sensed(
        _slice("compute-domain.nvidia.com", ("channel-0", "channel"), ("daemon-0", "daemon")),
        _slice("dra.net", ("pci-0000-a3-00-0", "")),
        _slice("gpu.nvidia.com", ("gpu-0", "gpu"), ("gpu-1", "gpu"), memory="80Gi"),
    )
    assert _accelerators(readings) == {0: "gpu-0", 1: "gpu-1"}
    assert {item.device for item in readings} == {"", "gpu-0", "gpu-1"}


def test_drivers_that_nobody_knows_are_named_at_their_node() -> None:
    readings = _sensed(
        _slice("boards.example.com", ("board-0", "thing"), ("board-1", "")),
        _slice("gpu.nvidia.com", ("gpu-0", "gpu"), memory="80Gi"),
        _slice("apples.example.com", ("apple-0", "")),
    )
    assert _accelerators(readings) == {0: "gpu-0"}
    (told,) = [item for item in readings if item.kind is UnknownKind.UNKNOWN_DEVICE]
    assert (told.node_id, told.accelerator_index, told.metric, told.value) == ("n1", None, Metric.CAPACITY_FREE, None)
    assert "boards.example.com (2)" in told.reason
    assert "apples.example.com (1)" in told.reason


def test_a_device_class_says_what_the_devices_of_its_driver_are() -> None:
    boards = _slice("boards.example.com", ("board-0", ""), memory="16Gi")
    by_name = _class("npu.example.com", 'device.driver == "boards.example.com"')
    by_resource = _class("boards", "device.driver=='boards.example.com' && true", "example.com/gpu")
    cards = _class("fast-nic", 'device.driver == "boards.example.com"')
    for known in (by_name, by_resource):
        assert _accelerators(_sensed(boards, known)) == {0: "board-0"}
    assert not _accelerators(_sensed(boards, cards))
    assert not [item for item in _sensed(boards, cards) if item.kind is UnknownKind.UNKNOWN_DEVICE]
    contradicting = _sensed(boards, by_name, cards)
    assert not _accelerators(contradicting)
    assert [item.kind for item in contradicting].count(UnknownKind.UNKNOWN_DEVICE) == 1


@pytest.mark.parametrize(
    "spec", [None, [], {"selectors": "x"}, {"selectors": [None, {"cel": 3}, {"cel": {"expression": 5}}]}]
)
def test_a_class_of_another_form_says_nothing(spec: object) -> None:
    assert kinds_by_class([{"kind": "DeviceClass", "metadata": "gpu", "spec": spec}]) == {}
