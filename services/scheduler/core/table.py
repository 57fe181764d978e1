"""The fleet as arrays over nodes and domains, and what is free of it while a cycle places units.

`Table` is what does not change with placing: built once per fleet. `View` is the working copy of one cycle.
Nodes are sorted by domain, so a domain is a slice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from services.scheduler.core.fleet import DEFAULT_ADDRESS, Device, Fleet, Node
from services.scheduler.core.ledger import Ledger
from services.scheduler.core.state import Demand

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

UNBOUNDED = 1_000_000
"""Ranks that fit on a node when a rank asks for nothing."""

_SLACK = 1e-6  # cpus are fractions: sums of them are not exact


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """A column of the device matrices."""

    vendor: str
    model: str
    emulated: bool

    def matches(self, wanted: Sequence[str]) -> bool:
        """Whether one of the wanted types names this model: all its words occur in vendor and model ("a100-80gb" in
        "NVIDIA A100-SXM4-80GB"). Empty ``wanted`` accepts any."""
        if not wanted:
            return True
        words = _words(f"{self.vendor} {self.model}")
        return any(_words(name) <= words for name in wanted if _words(name))


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", text.lower()))


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Arrays: (N) over nodes, (D) over domains, (N, M) over nodes and device models, (D, D) between domains.

    ``rtt_s`` and ``bandwidth_bytes_per_s`` are NaN where unknown; ``price`` and ``carbon`` likewise.
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
    for row, domain in enumerate(facts):
        for link in domain.links if domain is not None else ():
            other = domain_index.get(link.to_domain_id)
            if other is None:
                continue
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
    )


def sum_by(group: Ints, values: npt.NDArray[Any], size: int) -> Floats:
    """Sums of ``values`` per group 0 .. size - 1."""
    return np.bincount(group, weights=values, minlength=size).astype(np.float64)


def _model(device: Device) -> DeviceModel:
    return DeviceModel(device.vendor, device.model, device.emulated)


def _known(values: list[float]) -> Floats:
    out = np.array(values, dtype=np.float64)
    out[out <= 0] = np.nan
    return out


class View:
    """What is free now. `take` gives capacity away; ``taken`` lists the nodes it touched, so that judgements made
    earlier in the cycle know what to look at again."""

    def __init__(self, table: Table, ledger: Ledger) -> None:
        self.table = table
        self.free_cpus = table.cpus.copy()
        self.free_memory_bytes = table.memory_bytes.copy()
        self.free_devices = table.devices.copy()
        self.taken: list[int] = []
        self._free_lists: dict[int, list[tuple[int, int]]] = {}
        self._ports = {address: set(ports) for address, ports in ledger.ports.items() if ports}
        for node_id, held in ledger.nodes.items():
            row = table.node_index.get(node_id)
            if row is None:
                continue
            self.free_cpus[row] -= held.cpus
            self.free_memory_bytes[row] -= held.memory_bytes
            if held.devices:
                left = [(index, model) for index, model in table.devices_of[row] if index not in held.devices]
                self._free_lists[row] = left
                self.free_devices[row] = np.bincount([model for _, model in left], minlength=len(table.models))
        self.free_device_totals: Ints = self.free_devices.sum(axis=1)
        size = len(table.domain_ids)
        self.domain_free_cpus = sum_by(table.node_domain, self.free_cpus * table.up, size)
        self.domain_free_devices = sum_by(table.node_domain, self.free_device_totals * table.up, size)

    def columns(self, demand: Demand) -> Ints:
        """Device models that the demand accepts."""
        return np.array(
            [
                index
                for index, model in enumerate(self.table.models)
                if model.matches(demand.accelerator_types) and not (demand.real_accelerators and model.emulated)
            ],
            dtype=np.int64,
        )

    def ranks_that_fit(self, demand: Demand, columns: Ints, rows: Any = slice(None), *, total: bool = False) -> Ints:
        """How many ranks of ``demand`` each node of ``rows`` can take (with ``total``: could take if it were empty).

        A rank's accelerators are all of one model of ``columns``.
        """
        cpus = self.table.cpus if total else self.free_cpus
        memory = self.table.memory_bytes if total else self.free_memory_bytes
        devices = self.table.devices if total else self.free_devices
        fit = np.full(cpus[rows].shape, UNBOUNDED, dtype=np.int64)
        if demand.cpus > 0:
            np.minimum(fit, ((cpus[rows] + _SLACK) // demand.cpus).astype(np.int64), out=fit)
        if demand.memory_bytes > 0:
            np.minimum(fit, memory[rows] // demand.memory_bytes, out=fit)
        if demand.accelerators > 0:
            np.minimum(fit, (devices[rows][:, columns] // demand.accelerators).sum(axis=1), out=fit)
        if demand.service_port:
            np.minimum(fit, 1, out=fit)
        return np.maximum(fit, 0)

    def port_free(self, row: int, port: int) -> bool:
        """Whether no run was given the port on the node's address."""
        return port not in self._ports.get(self.table.addresses[row], ())

    def take(self, row: int, demand: Demand, columns: Ints) -> tuple[int, ...]:
        """Give one rank its place on a node where it fits; returns the accelerator indices, lowest first."""
        self.free_cpus[row] -= demand.cpus
        self.free_memory_bytes[row] -= demand.memory_bytes
        domain = self.table.node_domain[row]
        self.domain_free_cpus[domain] -= demand.cpus
        self.taken.append(row)
        if demand.service_port:
            address = self.table.addresses[row]
            self._ports.setdefault(address, set()).add(demand.service_port)
            self.taken.extend(other for other, name in enumerate(self.table.addresses) if name == address)
        if not demand.accelerators:
            return ()
        free = self._free_lists.get(row)
        if free is None:
            free = self._free_lists[row] = list(self.table.devices_of[row])
        # The model with the fewest left that suffices: the others stay whole.
        counts = self.free_devices[row]
        model = min((int(c) for c in columns if counts[c] >= demand.accelerators), key=lambda c: (counts[c], c))
        chosen = [pair for pair in free if pair[1] == model][: demand.accelerators]
        self._free_lists[row] = [pair for pair in free if pair not in chosen]
        self.free_devices[row, model] -= demand.accelerators
        self.free_device_totals[row] -= demand.accelerators
        self.domain_free_devices[domain] -= demand.accelerators
        return tuple(index for index, _ in chosen)
