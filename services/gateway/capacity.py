"""Can this job ever run? Refuses at submission what no node, or no permitted domain, could hold even when empty.

The check counts SLOTS: how many ranks an empty node takes is the least of its cpus, memory, suitable accelerators and fixed
amounts of user-defined resources divided by what a rank needs; the accelerators of a rank are all of one model. Present load and
failures play no part: they pass. So do amounts that commands tell, and resources that nobody has yet: they may come.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meridian.errors import FieldError
from meridian.hardware.accelerator_types import is_meant, is_part, suits
from meridian.hardware.parts import part_model
from services.gateway.jobfile import JobFile, PlacementSection, ResourcesSection


@dataclass(frozen=True, slots=True)
class AcceleratorCapacity:
    """One kind of accelerator of a node."""

    model: str
    emulated: bool
    count: int
    vendor: str = ""


def kinds_of(accelerators: Iterable[Mapping[str, Any]]) -> tuple[AcceleratorCapacity, ...]:
    """The devices that a node gives to work, of the accelerators of its inventory."""
    counts = Counter((model, item["emulated"], item["vendor"]) for item in accelerators for model in _models_of(item))
    return tuple(AcceleratorCapacity(model, emulated, n, vendor) for (model, emulated, vendor), n in counts.items())


def _models_of(accelerator: Mapping[str, Any]) -> list[str]:
    """The models of the devices that an accelerator of an inventory gives to work: its own, or those of its parts."""
    if not accelerator.get("partitioned"):
        return [accelerator["model"]]
    return [part_model(accelerator["model"], part["profile"]) for part in accelerator["parts"] if part["index"]]


@dataclass(frozen=True, slots=True)
class AmountCapacity:
    """What a node has of a user-defined resource. ``amount`` infinite: not used up, may change, or unknown. ``shared``: it is the
    node's part of one amount for its domain."""

    amount: float
    shared: bool = False


def amounts_of(user_resources: Iterable[Mapping[str, Any]]) -> dict[str, AmountCapacity]:
    """The user-defined resources of a node by name, of those of its inventory."""
    found = {}
    for item in user_resources:
        fixed = item["consumable"] and not item["dynamic"] and item.get("value") is not None
        found[item["name"]] = AmountCapacity(item["value"] if fixed else math.inf, item["shareable"])
    return found


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """What a node has when nothing runs on it."""

    node_id: str
    cpus: float
    memory_bytes: int
    accelerators: tuple[AcceleratorCapacity, ...] = ()
    resources: Mapping[str, AmountCapacity] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DomainCapacity:
    """A domain and its nodes."""

    domain_id: str
    security_level: int
    nodes: tuple[NodeCapacity, ...]


def impossibilities(job: JobFile, domains: Mapping[str, DomainCapacity]) -> list[FieldError]:
    """Why the job could never be placed, by JSON pointer; empty when it could, or when no node is known at all."""
    if not any(domain.nodes for domain in domains.values()):
        return []
    placement = job.placement
    found = [
        FieldError(f"/placement/domains/{index}", f"there is no domain {name!r}")
        for index, name in enumerate(placement.domains)
        if name not in domains
    ]
    found += [
        FieldError(f"/placement/exclude_domains/{index}", f"there is no domain {name!r}")
        for index, name in enumerate(placement.exclude_domains)
        if name not in domains
    ]
    if found:
        return found
    allowed = [
        domain
        for name, domain in domains.items()
        if (not placement.domains or name in placement.domains) and name not in placement.exclude_domains
    ]
    if not allowed:
        return [FieldError("/placement/exclude_domains", "every domain is excluded")]
    secure = [domain for domain in allowed if domain.security_level >= placement.min_security_level]
    if not secure:
        best = max(domain.security_level for domain in allowed)
        return [FieldError("/placement/min_security_level", f"no permitted domain has a level above {best}")]
    told = {name for domain in domains.values() for node in domain.nodes for name in node.resources}
    for demand in _demands(job):
        found += _unmet(demand, placement, secure, told)
    return found


@dataclass(frozen=True, slots=True)
class _Demand:
    """Ranks of one shape that must fit at the same time."""

    resources: ResourcesSection
    resources_pointer: str
    ranks: int
    ranks_pointer: str
    cross_domain: bool


def _demands(job: JobFile) -> Iterator[_Demand]:
    if job.workflow is None:
        if job.gang is not None:
            yield _Demand(job.resources, "/resources", job.gang.ranks, "/gang/ranks", job.gang.allow_cross_domain)
        elif job.service is not None:
            yield _Demand(job.resources, "/resources", job.service.replicas, "/service/replicas", cross_domain=True)
        else:
            yield _Demand(job.resources, "/resources", 1, "/resources", cross_domain=True)
        return
    for index, task in enumerate(job.workflow.tasks):
        own = task.resources is not None
        pointer = f"/workflow/tasks/{index}"
        yield _Demand(
            task.resources or job.resources,
            f"{pointer}/resources" if own else "/resources",
            task.ranks,
            f"{pointer}/ranks",
            cross_domain=False,
        )


def _suitable(node: NodeCapacity, resources: ResourcesSection, *, real_only: bool) -> list[int]:
    """Suitable accelerators of a node, of each kind: those of a rank are all of one."""
    return [
        kind.count
        for kind in node.accelerators
        if suits(kind.vendor, kind.model, resources.accelerator_types, resources.accelerators)
        and not (real_only and kind.emulated)
    ]


_NONE = AmountCapacity(0.0)


def _slots(node: NodeCapacity, resources: ResourcesSection, told: Collection[str], *, real_only: bool) -> int:
    slots = min(math.floor(node.cpus / resources.cpus + 1e-9), node.memory_bytes // resources.memory_bytes)
    for name, amount in resources.user_resources.items():
        most = node.resources.get(name, _NONE).amount
        if name in told and most < math.inf:
            slots = min(slots, math.floor(most / amount + 1e-9))
    if resources.accelerators:
        sharing = 1000 // resources.accelerator_milli
        counts = _suitable(node, resources, real_only=real_only)
        slots = min(slots, sum(count * sharing // resources.accelerators for count in counts))
    return slots


def _scarce(demand: _Demand, domains: Sequence[DomainCapacity], told: Collection[str]) -> Iterator[FieldError]:
    """User-defined resources of which no node has enough for one rank."""
    for name, wanted in demand.resources.user_resources.items():
        held = [(node.resources.get(name, _NONE), domain) for domain in domains for node in domain.nodes]
        most, domain = max(held, key=lambda pair: pair[0].amount, default=(_NONE, None))
        if name not in told or wanted <= most.amount + 1e-6:
            continue
        detail = f"no permitted node has more than {most.amount:g} {name}"
        if most.shared and domain is not None:
            whole = sum(node.resources.get(name, _NONE).amount for node in domain.nodes)
            detail += f": the {whole:g} of domain {domain.domain_id} are parted among its nodes"
        yield FieldError(f"{demand.resources_pointer}/user_resources/{name}", detail)


def _unmet(
    demand: _Demand, placement: PlacementSection, domains: Sequence[DomainCapacity], told: Collection[str]
) -> list[FieldError]:
    resources, pointer = demand.resources, demand.resources_pointer
    real_only = placement.require_real_accelerators
    nodes = [node for domain in domains for node in domain.nodes]
    types = resources.accelerator_types
    named = [kind for node in nodes for kind in node.accelerators if is_meant(kind.vendor, kind.model, types)]
    if types and not named:
        return [
            FieldError(f"{pointer}/accelerator_types/{index}", f"no permitted domain has accelerators of type {name!r}")
            for index, name in enumerate(types)
        ]
    found = []
    most_cpus = max((node.cpus for node in nodes), default=0.0)
    if resources.cpus > most_cpus:
        found.append(FieldError(f"{pointer}/cpus", f"no permitted node has more than {most_cpus:g} cpus"))
    most_memory = max((node.memory_bytes for node in nodes), default=0)
    if resources.memory_bytes > most_memory:
        found.append(FieldError(f"{pointer}/memory_bytes", f"no permitted node has more than {most_memory} bytes"))
    most = max((count for node in nodes for count in _suitable(node, resources, real_only=real_only)), default=0)
    if resources.accelerators > most:
        kind = "real " if real_only else ""
        parts = "; a rank is given one part at most" if types and any(is_part(kind.model) for kind in named) else ""
        mixed = any(len(_suitable(node, resources, real_only=real_only)) > 1 for node in nodes)
        alike = " of one model" if mixed else ""
        detail = f"no permitted node has more than {most} suitable {kind}accelerators{alike}{parts}"
        found.append(FieldError(f"{pointer}/accelerators", detail))
    found += _scarce(demand, domains, told)
    if found:
        return found
    per_domain = [
        sum(_slots(node, resources, told, real_only=real_only) for node in domain.nodes) for domain in domains
    ]
    room = sum(per_domain) if demand.cross_domain else max(per_domain)
    if room == 0:
        more = " and user-defined resources" if resources.user_resources else ""
        return [
            FieldError(pointer, f"no permitted node has the cpus, memory and accelerators{more} of one rank together")
        ]
    if demand.ranks > room:
        where = "all permitted domains together have" if demand.cross_domain else "the largest permitted domain has"
        return [FieldError(demand.ranks_pointer, f"{where} room for {room} such ranks, not {demand.ranks}")]
    return []
