"""The fleet as arrays over nodes and domains: what does not change with placing, built once per fleet (what is free: view.py).

Nodes are sorted by domain, so a domain is a slice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meridian.hardware.accelerator_types import is_meant, is_part, suits
from services.scheduler.core.fleet import DEFAULT_ADDRESS, Device, Fleet, Node, NodeState
from services.scheduler.core.state import Demand

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

UNBOUNDED = 1_000_000
"""Ranks that fit on a node when a rank asks for nothing."""

SLACK = 1e-6
"""Cpus are fractions: sums of them are not exact."""


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """A column of the device matrices."""

    vendor: str
    model: str
    emulated: bool

    @property
    def is_part(self) -> bool:
        """Whether it is a part that an accelerator was divided into."""
        return is_part(self.model)

    def suits(self, demand: Demand) -> bool:
        """Whether ranks of the demand may have such devices (`accelerator_types.suits`)."""
        return suits(self.vendor, self.model, demand.accelerator_types, demand.accelerators)

    def matches(self, wanted: Sequence[str]) -> bool:
        """Whether one of the wanted types means this model (`accelerator_types.is_meant`)."""
        return is_meant(self.vendor, self.model, wanted)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Arrays: (N) over nodes, (D) over domains, (N, M) over nodes and device models, (D, D) between domains.

    ``rtt_s`` and ``bandwidth_bytes_per_s`` are NaN where unknown; ``price`` and ``carbon`` likewise. ``resources`` (N, X) are
    the user-defined ones of ``resource_names``. ``levels`` gives the group number of each node per level of topology, -1
    where it has none. ``transfer_price`` (D, D) is in micro-units per GiB from a domain (row) to another.
    ``device_columns`` (N, G) is the model of each device by its place in ``devices_of``, -1 beyond.
    """

    nodes: tuple[Node, ...]
    domain_ids: tuple[str, ...]
    node_index: Mapping[str, int]
    node_domain: Ints
    domain_slice: tuple[slice, ...]
    domain_nodes: tuple[tuple[str, ...], ...]
    cpus: Floats
    memory_bytes: Ints
    models: tuple[DeviceModel, ...]
    devices: Ints
    device_totals: Ints
    devices_of: tuple[tuple[tuple[int, int], ...], ...]
    down: tuple[str, ...]
    up: Bools
    degraded: Bools
    addresses: tuple[str, ...]
    security: Ints
    price: Floats
    currency: tuple[str, ...]
    carbon: Floats
    expected_demand: Floats
    rtt_s: Floats
    bandwidth_bytes_per_s: Floats
    domain_cpus: Floats
    domain_devices: Floats
    resource_names: tuple[str, ...]
    resources: Floats
    levels: Mapping[str, Ints]
    device_columns: Ints
    transfer_price: Floats
    burst: Bools
    asleep: Bools
    wake_s: Floats
    idle_watts: Floats

    def domains_of(self, demand: Demand) -> Bools:
        """Domains (D) that a demand names, all where it names none, without those that it excludes."""
        named = [
            (not demand.domains or name in demand.domains) and name not in demand.excluded_domains
            for name in self.domain_ids
        ]
        return np.array(named, dtype=np.bool_)


def table_of(fleet: Fleet) -> Table:
    """The arrays of a fleet. A node whose domain is not known yet stands in a domain of that name without facts."""
    nodes = tuple(sorted(fleet.nodes.values(), key=lambda node: (node.domain_id, node.node_id)))
    domain_ids = tuple(sorted({*fleet.domains, *(node.domain_id for node in nodes)}))
    domain_index = {name: index for index, name in enumerate(domain_ids)}
    node_domain = np.array([domain_index[node.domain_id] for node in nodes], dtype=np.int64)
    bounds = np.searchsorted(node_domain, np.arange(len(domain_ids) + 1))
    usable = [tuple(device for device in node.devices if fleet.usable(device)) for node in nodes]
    models = tuple(dict.fromkeys(_model(device) for devices in usable for device in devices))
    column = {model: index for index, model in enumerate(models)}
    devices_of = tuple(tuple((device.index, column[_model(device)]) for device in devices) for devices in usable)
    counts = np.zeros((len(nodes), len(models)), dtype=np.int64)
    for row, pairs in enumerate(devices_of):
        for _, model in pairs:
            counts[row, model] += 1
    down = tuple(fleet.why_down(node) for node in nodes)
    facts = [fleet.domains.get(name) for name in domain_ids]
    size = len(domain_ids)
    rtt, bandwidth = np.full((size, size), np.nan), np.full((size, size), np.nan)
    transfer_price = np.zeros((size, size))
    for row, domain in enumerate(facts):
        for link in domain.links if domain is not None else ():
            other = domain_index.get(link.to_domain_id)
            if other is None:
                continue
            transfer_price[row, other] = float(link.price_micro_units_per_gib)
            # A link measured from one side only is taken for both.
            for a, b in ((row, other), (other, row)):
                if link.rtt_s > 0 and (a == row or np.isnan(rtt[a, b])):
                    rtt[a, b] = link.rtt_s
                if link.bandwidth_bytes_per_s > 0 and (a == row or np.isnan(bandwidth[a, b])):
                    bandwidth[a, b] = link.bandwidth_bytes_per_s
    np.fill_diagonal(rtt, 0.0)
    slices = tuple(slice(int(bounds[d]), int(bounds[d + 1])) for d in range(size))
    cpus = np.array([node.cpus for node in nodes], dtype=np.float64)
    up = np.array([not reason for reason in down], dtype=np.bool_)
    names = tuple(sorted({name for node in nodes for name in node.resources}))
    resources = np.array([[float(node.resources.get(name, 0.0)) for name in names] for node in nodes], dtype=np.float64)
    columns = np.full((len(nodes), max((len(pairs) for pairs in devices_of), default=0)), -1, dtype=np.int64)
    for row, pairs in enumerate(devices_of):
        columns[row, : len(pairs)] = [model for _, model in pairs]
    return Table(
        nodes=nodes,
        domain_ids=domain_ids,
        node_index={node.node_id: index for index, node in enumerate(nodes)},
        node_domain=node_domain,
        domain_slice=slices,
        domain_nodes=tuple(tuple(node.node_id for node in nodes[part]) for part in slices),
        cpus=cpus,
        memory_bytes=np.array([node.memory_bytes for node in nodes], dtype=np.int64),
        models=models,
        devices=counts,
        device_totals=counts.sum(axis=1),
        devices_of=devices_of,
        down=down,
        up=up,
        degraded=np.array([str(node.state) == "degraded" for node in nodes], dtype=np.bool_),
        addresses=tuple(node.address or DEFAULT_ADDRESS for node in nodes),
        security=np.array([domain.security_level if domain else 0 for domain in facts], dtype=np.int64),
        price=_known([float(domain.price_micro_units) if domain else 0.0 for domain in facts]),
        currency=tuple(domain.currency if domain else "" for domain in facts),
        carbon=_known([domain.carbon_g_per_kwh if domain else 0.0 for domain in facts]),
        expected_demand=np.array([fleet.expected_demand.get(name, np.nan) for name in domain_ids]),
        rtt_s=rtt,
        bandwidth_bytes_per_s=bandwidth,
        domain_cpus=sum_by(node_domain, cpus * up, size),
        domain_devices=sum_by(node_domain, counts.sum(axis=1) * up, size),
        resource_names=names,
        resources=resources.reshape(len(nodes), len(names)),
        levels=_levels(nodes),
        device_columns=columns,
        transfer_price=transfer_price,
        burst=np.array([bool(domain and domain.burst) for domain in facts], dtype=np.bool_),
        asleep=np.array([node.state is NodeState.ASLEEP for node in nodes], dtype=np.bool_),
        wake_s=np.array([node.wake_s for node in nodes], dtype=np.float64),
        idle_watts=np.array([node.idle_watts for node in nodes], dtype=np.float64),
    )


def _levels(nodes: Sequence[Node]) -> dict[str, Ints]:
    """Groups are told apart by domain too: two domains may name their racks alike."""
    levels: dict[str, Ints] = {}
    for level in sorted({name for node in nodes for name in node.topology}):
        number: dict[tuple[str, str], int] = {}
        groups = np.full(len(nodes), -1, dtype=np.int64)
        for row, node in enumerate(nodes):
            if level in node.topology:
                groups[row] = number.setdefault((node.domain_id, node.topology[level]), len(number))
        levels[level] = groups
    return levels


def sum_by(group: Ints, values: npt.NDArray[Any], size: int) -> Floats:
    """Sums of ``values`` per group 0 .. size - 1."""
    return np.bincount(group, weights=values, minlength=size).astype(np.float64)


def _model(device: Device) -> DeviceModel:
    return DeviceModel(device.vendor, device.model, device.emulated)


def _known(values: list[float]) -> Floats:
    out = np.array(values, dtype=np.float64)
    out[out <= 0] = np.nan
    return out
