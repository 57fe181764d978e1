"""What a device of a ResourceSlice is: an accelerator, something else, or not to be told. Pure.

Dynamic resource allocation lists whatever a driver gives out: processors, network cards, channels of a fabric. Nothing of the API
says which of them compute, so their words are read, the most particular first: (1) the device's attribute ``type``, (2) the name of
the driver, (3) the DeviceClasses that select the driver, by name and ``extendedResourceName``.

Sources: resource.k8s.io/v1; what the drivers of NVIDIA (``gpu.nvidia.com``, ``compute-domain.nvidia.com``), AMD, Intel, Rebellions, Ascend,
Google and of kubernetes-sigs (``dra.net``, ``dra.cpu``) publish.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

_ACCELERATORS = frozenset(
    {
        "gpu", "gpus", "vgpu", "amdgpu", "mig", "npu", "vnpu", "tpu", "hpu", "gcu", "mlu", "dcu", "xpu", "ppu", "ipu", "fpga",
        "gaudi", "neuron", "ascend", "accelerator", "accelerators",
    }
)  # fmt: skip
_OTHERS = frozenset(
    {
        "nic", "nics", "net", "network", "networks", "networking", "netdev", "sriov", "sriovnetwork", "rdma", "infiniband",
        "roce", "ethernet", "channel", "daemon", "imex", "cpu", "cpus", "memory", "hugepages", "storage", "nvme", "disk", "block",
        "usb", "audio", "video", "camera", "serial", "qat", "dsa", "iaa",
    }
)  # fmt: skip
# Their last part is no domain of the Internet.
_SHORT_NAMES = frozenset({"dra.net", "dra.cpu", "dra.memory"})
_WORD = re.compile(r"[a-z]+[0-9]*")
_SELECTED = re.compile(r"""device\.driver\s*==\s*(["'])([^"']+)\1""")


class DeviceKind(Enum):
    """What a device is for."""

    ACCELERATOR = "accelerator"
    OTHER = "other"
    UNKNOWN = "unknown"


def kind_of(driver: str, device_type: str, by_class: Mapping[str, DeviceKind]) -> DeviceKind:
    """What a device of a driver is; ``device_type`` empty: it does not say. ``by_class``: see `kinds_by_class`."""
    name = driver if driver in _SHORT_NAMES else driver.rpartition(".")[0] or driver
    for text in (device_type, name):
        found = _said(text)
        if found is not DeviceKind.UNKNOWN:
            return found
    return by_class.get(driver, DeviceKind.UNKNOWN)


def kinds_by_class(classes: Iterable[Mapping[str, Any]]) -> dict[str, DeviceKind]:
    """What the devices of a driver are by the DeviceClasses that select it; drivers that they contradict each other about are left out."""
    said: dict[str, set[DeviceKind]] = {}
    for item in classes:
        spec, metadata = _map(item.get("spec")), _map(item.get("metadata"))
        name, resource = str(metadata.get("name", "")), str(spec.get("extendedResourceName", ""))
        kind = _said(f"{name.partition('.')[0]} {resource.rpartition('/')[2]}")
        selectors = spec.get("selectors")
        for selector in selectors if isinstance(selectors, list) else ():
            expression = _map(_map(selector).get("cel")).get("expression")
            for _, driver in _SELECTED.findall(expression) if isinstance(expression, str) else ():
                said.setdefault(driver, set()).add(kind)
    found: dict[str, DeviceKind] = {}
    for driver, kinds in said.items():
        known = kinds - {DeviceKind.UNKNOWN}
        if len(known) == 1:
            (found[driver],) = known
    return found


def _said(text: str) -> DeviceKind:
    words = {word.rstrip("0123456789") for word in _WORD.findall(text.lower())}
    if words & _ACCELERATORS:
        return DeviceKind.ACCELERATOR
    return DeviceKind.OTHER if words & _OTHERS else DeviceKind.UNKNOWN


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
