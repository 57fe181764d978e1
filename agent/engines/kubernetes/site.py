"""What only the operator of a cluster knows, and how units are called in it. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.engines.own_scheduler import DeviceKind, UnitName

PREFIX = "meridian"
DOMAIN_LABEL = f"{PREFIX}/domain"
UNIT_LABEL = f"{PREFIX}/unit"
UNIT_ANNOTATION = f"{PREFIX}/unit"
CONTAINER = "rank"
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")

# Extended resources of the makers' device plugins, by vendor as domains declare it. Sources: their documentation (NVIDIA, AMD, Intel
# and Habana device plugins; Ascend, MLU, DCU, GCU, MUSA, MetaX, Kunlun, Iluvatar ones).
RESOURCES: Mapping[str, str] = {
    "nvidia": "nvidia.com/gpu",
    "amd": "amd.com/gpu",
    "huawei": "huawei.com/Ascend910",
    "cambricon": "cambricon.com/mlu",
    "hygon": "hygon.com/dcu",
    "enflame": "enflame.com/gcu",
    "moore threads": "mthreads.com/gpu",
    "mthreads": "mthreads.com/gpu",
    "metax": "metax-tech.com/gpu",
    "kunlunxin": "kunlunxin.com/xpu",
    "iluvatar": "iluvatar.com/gpu",
    "intel": "gpu.intel.com/xe",
    "habana": "habana.ai/gaudi",
    "google": "google.com/tpu",
}


@dataclass(frozen=True, slots=True)
class Volume:
    """What agent and pods share, below ``path`` in both: a claim, or a folder of the nodes (a mounted file system)."""

    path: str
    claim: str = ""
    host: bool = False


@dataclass(frozen=True, slots=True)
class Site:
    """See the module.

    ``resources`` are names of extended resources by accelerator model, before those by vendor; ``model_labels`` labels of nodes by
    model (nvidia.com/gpu.product); ``counted`` extended resources by the names of user-defined ones; ``topology_keys`` labels of
    nodes by the levels of topologies. ``queue`` is a LocalQueue of Kueue; ``gang`` volcano or coscheduling.
    """

    image: str
    namespace: str = "default"
    resources: Mapping[str, str] = field(default_factory=dict)
    model_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    counted: Mapping[str, str] = field(default_factory=dict)
    topology_keys: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    queue: str = ""
    gang: str = ""
    scheduler_name: str = ""
    priority_class: str = ""
    runtime_class: str = ""
    service_account: str = ""
    pull_secrets: tuple[str, ...] = ()
    run_as_user: int | None = None
    host_network: bool = False
    volume: Volume | None = None
    node_loss_s: int = 30

    def resource_of(self, kind: DeviceKind) -> str:
        """The extended resource of an accelerator; empty: not known."""
        return self.resources.get(kind.model) or RESOURCES.get(kind.vendor.lower(), "")


def job_name(domain_id: str, name: UnitName) -> str:
    """What a unit's Job of one epoch is called: the same again for the same, at most 63 characters with an index behind it."""
    mark = hashlib.sha256(f"{domain_id}\0{name.job_id}\0{name.unit_index}".encode()).hexdigest()[:16]
    readable = re.sub(r"[^a-z0-9-]+", "-", name.job_id.lower()).strip("-")[:16].strip("-")
    return f"m-{readable or 'job'}-{mark}-{name.epoch}"


def label_value(text: str) -> str:
    """A text as the value of a label; one that is none is cut and marked with its digest."""
    if _LABEL.fullmatch(text):
        return text
    mark = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', text)[:40].strip('._-')}-{mark}".lstrip("-")


def labels_of(domain_id: str, name: UnitName) -> dict[str, str]:
    """Labels of all that is made for a unit; those of one epoch have the Job's name too, from Kubernetes."""
    return {
        "app.kubernetes.io/managed-by": PREFIX,
        DOMAIN_LABEL: label_value(domain_id),
        UNIT_LABEL: label_value(f"{name.job_id}.{name.unit_index}"),
    }


def mark_of(label: str) -> str:
    """The label of pods that stands for a unit's own label, which is free text."""
    return f"{PREFIX}/is-{hashlib.sha256(label.encode()).hexdigest()[:24]}"


def unit_annotation(domain_id: str, name: UnitName) -> str:
    """Domain and unit as an annotation."""
    return json.dumps([domain_id, *name], separators=(",", ":"))


def unit_of(annotation: object, domain_id: str) -> UnitName | None:
    """The unit of an annotation; None: it is none of this domain's."""
    try:
        domain, job_id, unit_index, epoch = json.loads(str(annotation))
    except (ValueError, TypeError):
        return None
    fits = isinstance(job_id, str) and type(unit_index) is int and type(epoch) is int
    return UnitName(job_id, unit_index, epoch) if domain == domain_id and fits else None
