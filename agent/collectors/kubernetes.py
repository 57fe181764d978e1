"""Kubernetes as readings: ResourceSlices, ResourceClaims and DeviceClasses (JSON of ``resource.k8s.io``), and kube-state-metrics.

A pool of a driver on a node is the slices of its newest generation, and only when all of them are there (KEP-4381: a pool is
updated in several objects). Of its devices accelerators count (`dra_devices`); drivers of which that is not known are named. What is a
part of what, numbers and free shares: `dra_pools`. Capacities are nominal. Whether a device is free comes from the claims in the
same document: without claims it is not known. In kube-state-metrics a pod that has ended keeps its requests, so only pods that run
or wait on their node count.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from agent.collectors.base import Reading, Source
from agent.collectors.dra_devices import DeviceKind, kind_of, kinds_by_class
from agent.collectors.dra_pools import PoolDevice, devices_of, free_shares, numbers_of, text_of
from agent.collectors.exposition import Sample
from agent.collectors.metrics import HEALTH_DEGRADED, HEALTH_FAILED, HEALTH_OK, Metric
from agent.collectors.quantities import quantity
from agent.collectors.unknown import UnknownKind

# Extended resources as kube-state-metrics writes them: nvidia.com/gpu is nvidia_com_gpu. Beside their count some plugins have
# memory (MiB) and cores (per cent) of the same accelerators: hygon.com/dcumem, huawei.com/Ascend910B-memory.
_ACCELERATOR = re.compile(
    r"(?!\w*(?:mem|memory|cores?)$)\w+_com_(gpu|gpu_shared|vgpu|npu|mlu\w*|dcu\w*|gcu|xpu|tpu|ascend\w*|mig_\w+|[sdtqc]px_nps[0-9])"
    r"|gpu_intel_com_(i915|xe)|habana_ai_gaudi|iluvatar_ai_v?gpu|furiosa_ai_(npu|rngd|warboy)|rebellions_ai_\w+",
    re.ASCII | re.IGNORECASE,
)
# Resources of which one is not a whole accelerator.
_MIG = re.compile(r"_mig_([1-9])g_")
_SIZED = re.compile(r"_(?:gpu_shared|vgpu|[dtqc]px_nps[0-9])$", re.IGNORECASE)
SAME_SHARE = 1e-9
MOST_NAMED = 5
"""Of so many drivers the reason of an unknown reading has the names."""
_LIVE_PHASES = frozenset({"Pending", "Running", "Unknown"})
Key = tuple[str, str, str]
"""Driver, pool, device."""


def is_kubernetes(content: object) -> bool:
    """Whether a JSON document is a ResourceSlice, a ResourceClaim, a DeviceClass or a list with some."""
    return any(item.get("kind") in {"ResourceSlice", "ResourceClaim", "DeviceClass"} for item in _items(content))


def readings_of(content: object, now: datetime) -> list[Reading]:
    """Readings of the accelerators that the slices list, by node and by their numbers there."""
    items = list(_items(content))
    claims = [item for item in items if item.get("kind") == "ResourceClaim"]
    taken = _allocated(claims)
    by_class = kinds_by_class(item for item in items if item.get("kind") == "DeviceClass")
    readings: list[Reading] = []
    numbers: dict[str, set[int]] = {}
    strange: dict[str, Counter[str]] = {}
    for node, driver, pool, devices, counters, problem in _pools(
        [item for item in items if item.get("kind") == "ResourceSlice"]
    ):
        # Before v1 the description stood one level deeper.
        listed = [(str(device.get("name", "")), _map(device.get("basic")) or device) for device in devices]
        kinds = [kind_of(driver, text_of(basic, "type"), by_class) for _, basic in listed]
        named = [item for item, kind in zip(listed, kinds, strict=True) if kind is DeviceKind.ACCELERATOR]
        unknown = kinds.count(DeviceKind.UNKNOWN)
        if unknown:
            strange.setdefault(node, Counter())[driver] += unknown
        held = {name: results for name, _ in named if (results := taken.get((driver, pool, name)))}
        pooled = devices_of(named, counters)
        free = free_shares(pooled, held, counters) if claims else None
        of_node = numbers.setdefault(node, set())
        by_whole = numbers_of(pooled, of_node)
        of_node |= set(by_whole.values())
        for device in pooled:
            share = None if free is None else free[device.name]
            readings += _device(node, by_whole[device.whole], device, share, bool(claims), problem, now)
    readings += [_strange(node, drivers, now) for node, drivers in strange.items()]
    return readings


def _strange(node: str, drivers: Mapping[str, int], now: datetime) -> Reading:
    """A node's devices of which it is not known whether they are accelerators, by driver."""
    some = ", ".join(f"{driver[:80]} ({count})" for driver, count in list(drivers.items())[:MOST_NAMED])
    more = f" and {len(drivers) - MOST_NAMED} drivers more" if len(drivers) > MOST_NAMED else ""
    reason = f"neither type, driver nor DeviceClass says whether these devices are accelerators: {some}{more}"
    return Reading(
        node, Metric.CAPACITY_FREE, None, Source.DIRECTLY_MEASURED, now, reason=reason, kind=UnknownKind.UNKNOWN_DEVICE
    )


def _items(content: object) -> Iterator[Mapping[str, Any]]:
    if not isinstance(content, Mapping):
        return
    listed = content.get("items")
    kind = str(content.get("kind", "List"))
    if isinstance(listed, list) and kind.endswith("List"):
        inner = kind.removesuffix("List")
        for item in listed:
            if isinstance(item, Mapping):
                # Items of a typed list do not repeat their kind.
                yield {"kind": inner, **item} if inner else item
    else:
        yield content


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _pools(
    slices: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, str, str, list[Mapping[str, Any]], list[Mapping[str, Any]], str]]:
    """Node, driver, pool name, devices, shared counters, and why they are not to be believed (empty: they are)."""
    pools: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for item in slices:
        spec = _map(item.get("spec"))
        pool = _map(spec.get("pool"))
        node, driver, name = spec.get("nodeName"), spec.get("driver"), pool.get("name")
        # Since 1.33 the devices of one pool may stand at nodes of their own.
        by_device = not node and spec.get("perDeviceNodeSelection") is True
        if all(isinstance(text, str) and text for text in ("by device" if by_device else node, driver, name)):
            pools.setdefault(("" if by_device else str(node), str(driver), str(name)), []).append(spec)
    for (node, driver, name), specs in sorted(pools.items()):
        newest = max(_count(_map(spec["pool"]).get("generation")) for spec in specs)
        current = [spec for spec in specs if _count(_map(spec["pool"]).get("generation")) == newest]
        wanted = _count(_map(current[0]["pool"]).get("resourceSliceCount"))
        devices = [device for spec in current for device in _maps(spec.get("devices"))]
        names = [device.get("name") for device in devices]
        problem = ""
        if len(current) != wanted:
            problem = f"pool {name}: {len(current)} of {wanted} slices of generation {newest}"
        elif len(set(map(str, names))) != len(names):
            problem = f"pool {name}: two devices have the same name"
        counters = [entry for spec in current for entry in _maps(spec.get("sharedCounters"))]
        if node:
            yield node, driver, name, devices, counters, problem
            continue
        at_nodes: dict[str, list[Mapping[str, Any]]] = {}
        for device in devices:
            at = device.get("nodeName") or _map(device.get("basic")).get("nodeName")
            if isinstance(at, str) and at:
                at_nodes.setdefault(at, []).append(device)
        for at, found in sorted(at_nodes.items()):
            yield at, driver, name, found, counters, problem


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _allocated(claims: Iterable[Mapping[str, Any]]) -> dict[Key, list[Mapping[str, Any]]]:
    found: dict[Key, list[Mapping[str, Any]]] = {}
    for claim in claims:
        allocation = _map(_map(claim.get("status")).get("allocation"))
        for result in _maps(_map(allocation.get("devices")).get("results")):
            if not result.get("adminAccess"):
                key = str(result.get("driver")), str(result.get("pool")), str(result.get("device"))
                found.setdefault(key, []).append(result)
    return found


def _device(
    node: str, index: int, device: PoolDevice, free: float | None, with_claims: bool, problem: str, now: datetime
) -> Iterator[Reading]:
    basic = device.content
    profile = (text_of(basic, "profile") or text_of(basic, "partitionProfile")) if device.is_part else ""

    def reading(metric: Metric, value: float | None, source: Source, kind: UnknownKind, reason: str) -> Reading:
        if problem:
            value, kind, reason = None, UnknownKind.INCONSISTENT, problem
        return Reading(
            node, metric, value, source, now, accelerator_index=index, device=device.whole,
            partition=device.name if device.is_part else "", profile=profile,
            reason="" if value is not None else reason, kind=None if value is not None else kind,
        )  # fmt: skip

    memory = _map(basic.get("capacity")).get("memory")
    if isinstance(memory, Mapping):
        memory = memory.get("value")
    size = None if memory is None else quantity(memory)
    kind = UnknownKind.NOT_EXPORTED if memory is None else UnknownKind.NOT_A_NUMBER
    reason = "not exported" if memory is None else f"no quantity: {str(memory)[:40]!r}"
    if size is not None and not 2.0**28 <= size <= 1e13:
        size, kind, reason = None, UnknownKind.OUT_OF_RANGE, f"out of range: {size:g}"
    yield reading(Metric.GPU_MEMORY_LIMIT, size, Source.NOMINAL, kind, reason)
    unknown = "no claims are given, so it is not known who holds the device"
    if with_claims:
        unknown = "the claims and counters do not say how much of the device is taken"
    yield reading(Metric.CAPACITY_FREE, free, Source.DIRECTLY_MEASURED, UnknownKind.NO_REFERENCE, unknown)
    effects = {str(taint.get("effect")) for taint in _maps(basic.get("taints"))}
    if "NoExecute" in effects:
        yield reading(Metric.HEALTH, HEALTH_FAILED, Source.DIRECTLY_MEASURED, UnknownKind.NOT_EXPORTED, "")
    elif "NoSchedule" in effects:
        yield reading(Metric.HEALTH, HEALTH_DEGRADED, Source.DIRECTLY_MEASURED, UnknownKind.NOT_EXPORTED, "")
    else:
        # A device without a taint may be well or not looked at.
        yield reading(Metric.HEALTH, None, Source.DIRECTLY_MEASURED, UnknownKind.NOT_EXPORTED, "not exported")


# --- kube-state-metrics -------------------------------------------------------------------------------------------------


def is_kube_state(families: Iterable[str]) -> bool:
    """Whether kube-state-metrics speaks."""
    return any(
        family.startswith(("kube_node_status_", "kube_pod_status_", "kube_pod_container_resource_"))
        for family in families
    )


def kube_state_readings(samples: Sequence[Sample], cluster: str, now: datetime) -> list[Reading]:
    """Free share and health of each node, and the pods that wait (of ``cluster``)."""
    readings: list[Reading] = []
    phases = _phases(samples)
    allocatable = _amounts(samples, "kube_node_status_allocatable")
    requested = _requested(samples, phases)
    has_requests = any(sample.family == "kube_pod_container_resource_requests" for sample in samples)
    for node in sorted({node for node, _ in allocatable} | set(_nodes(samples))):
        total = {resource: amount for (name, resource), amount in allocatable.items() if name == node and amount}
        used = {resource: amount for (name, resource), amount in requested.items() if name == node}
        readings.append(_free_share(node, total, used, known=has_requests and bool(phases), now=now))
        readings.append(_readiness(node, samples, now))
    if phases:
        pending = sum(1 for phase in phases.values() if phase == "Pending")
        readings.append(Reading(cluster, Metric.QUEUE_DEPTH, float(pending), Source.AGGREGATION, now))
    return readings


def _nodes(samples: Iterable[Sample]) -> Iterator[str]:
    for sample in samples:
        if sample.family == "kube_node_status_condition" and sample.labels.get("node"):
            yield sample.labels["node"]


def _pod(sample: Sample) -> tuple[str, str, str]:
    return sample.labels.get("namespace", ""), sample.labels.get("pod", ""), sample.labels.get("uid", "")


def _phases(samples: Iterable[Sample]) -> dict[tuple[str, str, str], str]:
    return {
        _pod(sample): sample.labels.get("phase", "")
        for sample in samples
        if sample.family == "kube_pod_status_phase" and sample.value == 1
    }


def _amounts(samples: Iterable[Sample], family: str) -> dict[tuple[str, str], float]:
    return {
        (sample.labels.get("node", ""), sample.labels.get("resource", "")): sample.value
        for sample in samples
        if sample.family == family
        and sample.labels.get("node")
        and _ACCELERATOR.fullmatch(sample.labels.get("resource", ""))
        and math.isfinite(sample.value)
        and sample.value >= 0
    }


def _requested(samples: Iterable[Sample], phases: Mapping[tuple[str, str, str], str]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for sample in samples:
        if sample.family != "kube_pod_container_resource_requests" or phases.get(_pod(sample)) not in _LIVE_PHASES:
            continue
        for key, amount in _amounts([sample], sample.family).items():
            found[key] = found.get(key, 0.0) + amount
    return found


def _free_share(
    node: str, total: Mapping[str, float], used: Mapping[str, float], *, known: bool, now: datetime
) -> Reading:
    value: float | None = None
    kind, reason = UnknownKind.NOT_EXPORTED, ""
    by_size: dict[str, list[float]] = {}
    for resource, amount in total.items():
        size, units = _size(resource)
        sums = by_size.setdefault(size, [0.0, 0.0])
        sums[0] += units * amount
        sums[1] += units * used.get(resource, 0.0)
    too_many = next((name for name in sorted(used) if used[name] > total.get(name, 0.0)), None)
    free = [1 - taken / there for there, taken in by_size.values()]
    if not total:
        reason = "the node lists no accelerator"
    elif not known:
        kind, reason = UnknownKind.NO_REFERENCE, "no requests and phases of pods are given"
    elif too_many is not None:
        kind, reason = (
            UnknownKind.INCONSISTENT,
            f"{used[too_many]:g} of {total.get(too_many, 0.0):g} accelerators requested ({too_many})",
        )
    elif max(free) - min(free) > SAME_SHARE:
        some = ", ".join(sorted(total)[:MOST_NAMED])
        kind, reason = UnknownKind.NO_REFERENCE, f"these are of different sizes, and not taken alike: {some}"
    else:
        value = free[0]
    return Reading(
        node,
        Metric.CAPACITY_FREE,
        value,
        Source.AGGREGATION,
        now,
        reason=reason,
        kind=None if value is not None else kind,
    )


def _size(resource: str) -> tuple[str, float]:
    """What one of a resource is measured in, and how many of that it is: MIG instances count their compute slices."""
    slices = _MIG.search(resource)
    if slices is not None:
        return "slices", float(slices[1])
    parts = _SIZED.search(resource)
    return ("accelerators", 1.0) if parts is None else (resource, 1.0)


def _readiness(node: str, samples: Iterable[Sample], now: datetime) -> Reading:
    states = {
        sample.labels.get("status", "")
        for sample in samples
        if sample.family == "kube_node_status_condition"
        and sample.labels.get("node") == node
        and sample.labels.get("condition") == "Ready"
        and sample.value == 1
    }
    if states == {"true"}:
        # A cordoned node takes no work, as one that Slurm drains.
        closed = any(
            sample.family == "kube_node_spec_unschedulable" and sample.labels.get("node") == node and sample.value == 1
            for sample in samples
        )
        return Reading(node, Metric.HEALTH, HEALTH_DEGRADED if closed else HEALTH_OK, Source.DIRECTLY_MEASURED, now)
    if states == {"false"}:
        return Reading(node, Metric.HEALTH, HEALTH_FAILED, Source.DIRECTLY_MEASURED, now)
    kind = UnknownKind.NOT_EXPORTED if not states else UnknownKind.UNKNOWN_STATE
    reason = "not exported" if not states else "the control plane does not hear the node"
    return Reading(node, Metric.HEALTH, None, Source.DIRECTLY_MEASURED, now, reason=reason, kind=kind)
