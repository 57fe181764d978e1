"""Numbers, parts and free shares of the devices of a pool, as drivers of dynamic resource allocation publish them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from agent.collectors.dra_pools import devices_of, free_shares, numbers_of
from agent.collectors.metrics import Metric
from agent.collectors.sensing import sense

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
Listed = tuple[str, dict[str, Any]]


def _gpu(name: str, **attributes: Any) -> Listed:
    kinds = {str: "string", int: "int", bool: "bool"}
    return name, {"attributes": {key: {kinds[type(value)]: value} for key, value in attributes.items()}}


def _numbers(*listed: Listed, taken: tuple[int, ...] = ()) -> dict[str, int]:
    return numbers_of(devices_of(listed), taken)


def test_the_order_in_which_a_driver_lists_its_devices_says_nothing() -> None:
    # As the driver of NVIDIA published a node of eight H100: gpu-7 first.
    names = ["gpu-7", *(f"gpu-{number}" for number in range(7))]
    assert _numbers(*(_gpu(name, uuid=f"GPU-{name}") for name in names)) == {
        f"GPU-{name}": int(name[4:]) for name in names
    }


@pytest.mark.parametrize(
    ("listed", "numbers"),
    [
        # One fell out: the others keep theirs.
        ([_gpu("gpu-2"), _gpu("gpu-0")], {"gpu-0": 0, "gpu-2": 2}),
        # The attribute goes before the name (example driver, older drivers of NVIDIA).
        ([_gpu("gpu-1", index=0), _gpu("gpu-0", index=1)], {"gpu-1": 0, "gpu-0": 1}),
        # AMD: card and render node, eight apart on an MI300X for its partitions; they are in the order of the numbers.
        ([_gpu(f"gpu-{card}-{128 + card}") for card in (48, 0, 8)], {"gpu-0-128": 0, "gpu-8-136": 1, "gpu-48-176": 2}),
        # A name that is an address in another domain of PCI than the first.
        ([_gpu("pci-0009-01-00-0"), _gpu("pci-0008-01-00-0")], {"pci-0008-01-00-0": 0, "pci-0009-01-00-0": 1}),
        # AMD that is divided on demand: number, mode of compute, mode of memory.
        ([_gpu("gpu-3-spx-nps1"), _gpu("gpu-1-spx-nps1")], {"gpu-1-spx-nps1": 1, "gpu-3-spx-nps1": 3}),
        # Names that are addresses have no number of their own.
        ([_gpu("0000-b1-00-0"), _gpu("0000-0f-00-0")], {"0000-0f-00-0": 0, "0000-b1-00-0": 1}),
        ([_gpu("card-550e8400"), _gpu("card-12ab")], {"card-12ab": 0, "card-550e8400": 1}),
        # Two of one number, or one without: by their names, 10 after 9.
        ([_gpu("gpu-10", index=0), _gpu("gpu-9", index=0)], {"gpu-9": 0, "gpu-10": 1}),
        ([_gpu("gpu-3"), _gpu("a")], {"a": 0, "gpu-3": 1}),
        ([_gpu("gpu-4096"), _gpu("gpu-0", index=True)], {"gpu-0": 0, "gpu-4096": 1}),
    ],
)
def test_numbers(listed: list[Listed], numbers: dict[str, int]) -> None:
    assert _numbers(*listed) == numbers
    assert _numbers(*reversed(listed)) == numbers


def test_a_second_pool_of_a_node_takes_the_numbers_that_are_left() -> None:
    assert _numbers(_gpu("gpu-0"), _gpu("gpu-1"), taken=(0, 2)) == {"gpu-0": 1, "gpu-1": 3}
    assert _numbers(_gpu("gpu-4"), taken=(0, 1)) == {"gpu-4": 4}


def test_an_instance_is_numbered_by_its_parent() -> None:
    part = _gpu("gpu-3-mig-1g10gb-19-0", parentUUID="GPU-d", profile="1g.10gb")
    assert _numbers(part, _gpu("gpu-3", uuid="GPU-d"), _gpu("gpu-1", uuid="GPU-b")) == {"GPU-b": 1, "GPU-d": 3}
    assert _numbers(part) == {"GPU-d": 3}
    assert _numbers(_gpu("x", parentUUID="GPU-d", parentIndex=5)) == {"GPU-d": 5}


def _consumer(name: str, memory: str, counter_set: str = "gpu-0-counters") -> Listed:
    counters = [{"counterSet": counter_set, "counters": {"memory": {"value": memory}}}]
    return name, {"capacity": {"memory": {"value": memory}}, "consumesCounters": counters}


COUNTERS = [{"name": "gpu-0-counters", "counters": {"memory": {"value": "40Gi"}}}]
SPLIT = [_consumer("gpu-0", "40Gi"), _consumer("gpu-0-partition-0", "20Gi"), _consumer("gpu-0-partition-1", "20Gi")]


@pytest.mark.parametrize(
    ("held", "free"),
    [
        ([], [1, 1, 1]),
        (["gpu-0"], [0, 0, 0]),
        (["gpu-0-partition-1"], [0, 1, 0]),
        (["gpu-0-partition-0", "gpu-0-partition-1"], [0, 0, 0]),
    ],
)
def test_devices_of_shared_counters_shut_each_other_out(held: list[str], free: list[float]) -> None:
    devices = devices_of(SPLIT)
    assert [(device.whole, device.is_part) for device in devices] == [
        ("gpu-0", False),
        ("gpu-0", True),
        ("gpu-0", True),
    ]
    found = free_shares(devices, {name: [{}] for name in held}, COUNTERS)
    assert [found[name] for name, _ in SPLIT] == free


def _mode(gpu: int, mode: str, memory: str) -> Listed:
    """AMD's driver on a GPU that it divides on demand: whoever has it in one mode has all of its mutex."""
    name, content = _consumer(f"gpu-{gpu}-{mode}", memory, f"gpu-{gpu}-mutex")
    content["consumesCounters"][0]["counters"] = {"partition-mode": {"value": "1"}}
    return name, content | {"allowMultipleAllocations": True}


def test_modes_of_one_device_that_exclude_each_other_are_one_accelerator() -> None:
    sizes = {"cpx-nps4": "24Gi", "dpx-nps2": "96Gi", "spx-nps1": "192Gi"}
    listed = [_mode(gpu, mode, memory) for gpu in (1, 0) for mode, memory in sizes.items()]
    mutexes = [{"name": f"gpu-{gpu}-mutex", "counters": {"partition-mode": {"value": "1"}}} for gpu in (0, 1)]
    devices = devices_of(listed, mutexes)
    assert {device.name: (device.whole, device.is_part) for device in devices} == {
        f"gpu-{gpu}-{mode}": (f"gpu-{gpu}-spx-nps1", mode != "spx-nps1") for gpu in (0, 1) for mode in sizes
    }
    assert numbers_of(devices) == {"gpu-0-spx-nps1": 0, "gpu-1-spx-nps1": 1}
    claims = {"gpu-0-cpx-nps4": [{"consumedCapacity": {"memory": "6Gi"}}]}
    free = free_shares(devices, claims, mutexes)
    assert [free[f"gpu-0-{mode}"] for mode in sizes] == [0.75, 0, 0]
    assert [free[f"gpu-1-{mode}"] for mode in sizes] == [1, 1, 1]
    # An instance as large as its device is a part of it.
    whole = [_consumer("gpu-0-mig-7g", "40Gi"), _consumer("gpu-0", "40Gi")]
    assert [(device.whole, device.is_part) for device in devices_of(whole, COUNTERS)] == [
        ("gpu-0", True),
        ("gpu-0", False),
    ]
    # Two that may be held together stay two.
    halves = [_consumer("a", "20Gi"), _consumer("b", "20Gi")]
    assert [device.whole for device in devices_of(halves, COUNTERS)] == ["a", "b"]


def test_overlapping_placements_of_which_the_whole_is_not_listed() -> None:
    placements = [_consumer("mig-a", "30Gi"), _consumer("mig-b", "20Gi"), _consumer("mig-c", "10Gi")]
    only = devices_of([placements[1], ("mig-d", _consumer("mig-d", "20Gi")[1])])
    assert {device.is_part for device in only} == {False}, "equals are no parts of each other"
    devices = devices_of(placements)
    found = free_shares(devices, {"mig-c": [{}]}, COUNTERS)
    assert (found["mig-b"], found["mig-c"]) == (1, 0), "20 of the 30 that are left"
    unknown = free_shares(devices_of(SPLIT), {}, [])
    assert set(unknown.values()) == {None}, "how much there is, is not told"


@pytest.mark.parametrize(
    ("consumed", "free"),
    [([{"memory": "10Gi"}], 0.75), ([{"memory": "10Gi"}, {"memory": "30Gi"}], 0), ([{"memory": "10Gi"}, {}], None), ([{"memory": "x"}], None)],
)  # fmt: skip
def test_a_device_that_takes_several_claims_is_free_by_what_they_leave(
    consumed: list[dict[str, str]], free: float | None
) -> None:
    device = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "40Gi"}}}
    results = [{"shareID": str(number), "consumedCapacity": share} for number, share in enumerate(consumed)]
    assert free_shares(devices_of([("gpu-0", device)]), {"gpu-0": results}, []) == {"gpu-0": free}


def test_a_document_of_a_split_device_has_one_accelerator() -> None:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 2}
    spec = {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool}
    items = [
        {"kind": "ResourceSlice", "spec": {**spec, "sharedCounters": COUNTERS}},
        {"kind": "ResourceSlice", "spec": {**spec, "devices": [{"name": name, **content} for name, content in SPLIT]}},
        {"kind": "ResourceClaim", "status": {"allocation": {"devices": {"results": [
            {"driver": "gpu.example.com", "pool": "p", "device": "gpu-0-partition-0"}]}}}},
    ]  # fmt: skip
    readings = sense(json.dumps({"kind": "List", "items": items}), NOW).readings
    free = {(item.accelerator_index, item.partition): item.value for item in readings if item.metric is Metric.CAPACITY_FREE and item.accelerator_index is not None}  # fmt: skip
    assert free == {(0, ""): 0, (0, "gpu-0-partition-0"): 0, (0, "gpu-0-partition-1"): 1}


def _amd_part(card: int, address: str, kind: str = "amdgpu-partition") -> Listed:
    """AMD's driver on a card that was divided beforehand: nothing whole is listed, and no counters."""
    name = f"gpu-{card}-{128 + card}" if kind != "vfio" else f"gpu-vfio-{card}"
    return _gpu(name, type=kind, partitionProfile="cpx_nps4", **{"resource.kubernetes.io/pciBusID": address})


def test_partitions_without_counters_are_parts_of_what_is_at_their_address() -> None:
    addresses = ["0000:85:00.0", "0000:05:00.0"]
    listed = [_amd_part(8 * place + part, address) for place, address in enumerate(addresses) for part in range(8)]
    for ordered in (listed, listed[::-1]):
        devices = devices_of(ordered)
        assert {device.whole for device in devices} == set(addresses)
        assert all(device.is_part for device in devices)
        assert numbers_of(devices) == {"0000:85:00.0": 0, "0000:05:00.0": 1}, "in the order of the cards' numbers"
    free = free_shares(devices_of(listed), {"gpu-3-131": [{}]}, [])
    assert (free["gpu-3-131"], free["gpu-4-132"]) == (0, 1)
    # One of them that is left is a partition still.
    assert [device.is_part for device in devices_of(listed[:1])] == [True]


def test_a_device_for_passthrough_is_the_one_at_its_address() -> None:
    pair = [_amd_part(0, "0000:05:00.0", "amdgpu"), _amd_part(0, "0000:05:00.0", "vfio")]
    devices = devices_of(pair)
    assert {(device.name, device.whole, device.is_part) for device in devices} == {
        ("gpu-0-128", "gpu-0-128", False),
        ("gpu-vfio-0", "gpu-0-128", True),
    }
    assert free_shares(devices, {"gpu-vfio-0": [{}]}, []) == {"gpu-0-128": 0, "gpu-vfio-0": 0}
    assert [device.is_part for device in devices_of(pair[1:])] == [False], "a card that is passed through only"
    # Two whole devices that say the same address are not told to be one.
    same = [_amd_part(card, "0000:05:00.0", "amdgpu") for card in (0, 1)]
    assert [device.is_part for device in devices_of(same)] == [False, False]


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_devices_of_one_pool_at_nodes_of_their_own_are_those_nodes(version: str) -> None:
    def device(name: str, node: str | None) -> dict[str, Any]:
        content: dict[str, Any] = {"attributes": {"type": {"string": "gpu"}}, "capacity": {"memory": {"value": "80Gi"}}}
        if node is not None:
            content["nodeName"] = node
        return {"name": name, **content} if version == "v1" else {"name": name, "basic": content}

    def piece(*devices: dict[str, Any], count: int = 1) -> dict[str, Any]:
        pool = {"name": "rack-1", "generation": 1, "resourceSliceCount": count}
        spec = {"driver": "gpu.example.com", "perDeviceNodeSelection": True, "pool": pool, "devices": list(devices)}
        return {"apiVersion": f"resource.k8s.io/{version}", "kind": "ResourceSlice", "spec": spec}

    listed = [device("gpu-0", "w1"), device("gpu-1", "w2"), device("gpu-2", "w1"), device("gpu-3", None)]
    found = sense(json.dumps({"kind": "List", "items": [piece(*listed)]}), NOW).readings
    limits = {
        (item.node_id, item.accelerator_index): item.value for item in found if item.metric is Metric.GPU_MEMORY_LIMIT
    }
    # One that says no node is no node's.
    assert limits == {("w1", 0): 80 * 2**30, ("w1", 2): 80 * 2**30, ("w2", 1): 80 * 2**30}
    halves = {"kind": "List", "items": [piece(*listed[:2], count=3), piece(*listed[2:], count=3)]}
    assert {item.value for item in sense(json.dumps(halves), NOW).readings} == {None}, "a slice is missing"
