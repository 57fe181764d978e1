"""The fleet as arrays over nodes and domains, and what is free of it while a cycle places units.

`Table` is what does not change with placing: built once per fleet. `View` is the working copy of one cycle.
Nodes are sorted by domain, so a domain is a slice.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meridian.hardware.accelerator_types import is_meant, is_part, suits
from services.scheduler.core.fleet import DEFAULT_ADDRESS, Device, Fleet, Node, NodeState
from services.scheduler.core.ledger import Ledger
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
    where it has none. ``transfer_price`` (D, D) is in micro-units per GiB from a domain (row) to another. ``device_columns`` (N, G) is the model of each device by its place in ``devices_of``, -1 beyond.
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


class View:
    """What is free. `take` gives capacity away, `give` puts it back; ``taken`` lists the nodes they touched, so that
    judgements made before know what to look at again. ``generation`` grows when facts other than capacity changed: then
    nothing that was judged before holds.

    `begin` starts a trial: everything taken and given after it is undone by `rollback`.
    """

    def __init__(self, table: Table, ledger: Ledger | None = None) -> None:
        self.table = table
        self.up: Bools = table.up.copy()
        self.free_cpus = table.cpus.copy()
        self.free_memory_bytes = table.memory_bytes.copy()
        self.free_devices = table.devices.copy()
        self.free_resources = table.resources.copy()
        self.device_milli: Ints = np.where(table.device_columns >= 0, 1000, 0)
        self.taken: list[int] = []
        self.generation = 0
        self.gives = 0
        """How often capacity came back: what had no room before and saw no more of it since has none now."""
        self.labels: dict[str, dict[int, int]] = {}
        self.facts: dict[str, Any] = {}
        self.facts_version = 0
        self._free_lists: dict[int, list[tuple[int, int]]] = {}
        self._positions: dict[int, dict[int, int]] = {}
        self._undo: list[tuple[int, Demand, tuple[int, ...], bool]] | None = None
        self._ports: dict[str, dict[int, int]] = {}
        self._before: tuple[Floats, ...] = ()
        self.ports_held: Mapping[str, Collection[int]] = {}
        """Ports taken on addresses beside those that `occupy` accounts for."""
        if ledger is not None:
            self._read(ledger)
        self.free_device_totals: Ints = self.free_devices.sum(axis=1)
        size = len(table.domain_ids)
        self.domain_free_cpus = sum_by(table.node_domain, self.free_cpus * self.up, size)
        self.domain_free_devices = sum_by(table.node_domain, self.free_device_totals * self.up, size)

    def _read(self, ledger: Ledger) -> None:
        table = self.table
        self._ports = {address: dict.fromkeys(ports, 1) for address, ports in ledger.ports.items() if ports}
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
                for position, (index, _) in enumerate(table.devices_of[row]):
                    self.device_milli[row, position] -= held.devices.get(index, 0)

    def copy(self) -> View:
        """A view that can be changed without changing this one; not while a trial runs."""
        assert self._undo is None
        other = object.__new__(View)
        other.__dict__.update(
            {
                name: value.copy() if isinstance(value, np.ndarray | dict) else value
                for name, value in self.__dict__.items()
            }
        )
        other.taken = list(self.taken)
        other.labels = {label: dict(counts) for label, counts in self.labels.items()}
        other._free_lists = {row: list(pairs) for row, pairs in self._free_lists.items()}
        other._ports = {address: dict(ports) for address, ports in self._ports.items()}
        other.ports_held = {address: set(ports) for address, ports in self.ports_held.items()}
        return other

    def columns(self, demand: Demand) -> Ints:
        """Device models that the demand accepts."""
        return np.array(
            [
                index
                for index, model in enumerate(self.table.models)
                if model.suits(demand) and not (demand.real_accelerators and model.emulated)
            ],
            dtype=np.int64,
        )

    def ranks_that_fit(self, demand: Demand, columns: Ints, rows: Any = slice(None), *, total: bool = False) -> Ints:
        """How many ranks of ``demand`` each node of ``rows`` can take (with ``total``: could take if it were empty).

        A rank's accelerators are all of one model of ``columns``.
        """
        free = (
            Free(self.table.cpus, self.table.memory_bytes, self.table.devices, self.table.resources, None)
            if total
            else Free(self.free_cpus, self.free_memory_bytes, self.free_devices, self.free_resources, self.device_milli)
        )
        return fits(self.table, free, demand, columns, rows)

    def to_be_woken(self) -> Bools | None:
        """Nodes (N) that the fleet says are asleep and that nothing was given to yet; None when none is asleep."""
        table = self.table
        if not np.count_nonzero(table.asleep):
            return None
        idle = (self.free_cpus >= table.cpus) & (self.free_device_totals >= table.device_totals)
        result: Bools = table.asleep & idle & (self.free_memory_bytes >= table.memory_bytes)
        return result

    def port_free(self, row: int, port: int) -> bool:
        """Whether no run was given the port on the node's address."""
        address = self.table.addresses[row]
        return port not in self._ports.get(address, ()) and port not in self.ports_held.get(address, ())

    # -- changing ----------------------------------------------------------------------------------------------------

    def take(self, row: int, demand: Demand, columns: Ints, preferred: Sequence[int] = ()) -> tuple[int, ...]:
        """Give one rank its place on a node where it fits; returns the accelerator indices, lowest first.

        ``preferred`` are device indices to be used before others (a plugin's choice).
        """
        devices = self._choose(row, demand, columns, preferred)
        self.occupy(row, demand, devices)
        return devices

    def occupy(self, row: int, demand: Demand, devices: tuple[int, ...]) -> None:
        """Account for a rank of ``demand`` on these devices of a node."""
        if self._undo is not None and not self._before and (demand.cpus or demand.resources):
            self._before = self._kept_fractions()
        self._move(row, demand, devices, taking=True)
        if self._undo is not None:
            self._undo.append((row, demand, devices, True))

    def give(self, row: int, demand: Demand, devices: tuple[int, ...]) -> None:
        """Put back what a rank held."""
        if self._undo is not None and not self._before and (demand.cpus or demand.resources):
            self._before = self._kept_fractions()
        self._move(row, demand, devices, taking=False)
        self.gives += 1
        if self._undo is not None:
            self._undo.append((row, demand, devices, False))

    def begin(self) -> int:
        """Begin a trial, or mark a place in the one that runs; `rollback` to the returned mark undoes what follows."""
        if self._undo is None:
            self._undo = []
        return len(self._undo)

    def rollback(self, mark: int = 0) -> None:
        """Undo what was taken and given since ``mark``; at 0 the trial is over."""
        assert self._undo is not None
        undo = self._undo
        gives = self.gives
        while len(undo) > mark:
            row, demand, devices, taken = undo.pop()
            self._move(row, demand, devices, taking=not taken)
        self.gives = gives
        if mark == 0:
            self._undo = None
            if self._before:
                for values, before in zip(self._fractions(), self._before, strict=True):
                    values[:] = before
                self._before = ()

    def free_amounts(self) -> tuple[npt.NDArray[Any], ...]:
        """What is free on each node now, for `is_more_free`."""
        return tuple([values.copy() for values in self._amounts()])

    def is_more_free(self, before: tuple[npt.NDArray[Any], ...]) -> bool:
        """Whether more of something is free on a node than there was ``before``."""
        return any(np.count_nonzero(now > then) for now, then in zip(self._amounts(), before, strict=True))

    def _amounts(self) -> tuple[npt.NDArray[Any], ...]:
        """What `free_devices` counts is in ``device_milli``."""
        amounts = self.device_milli, self.free_cpus, self.free_memory_bytes, self.free_resources
        return amounts if amounts[3].size else amounts[:3]

    def _kept_fractions(self) -> tuple[Floats, ...]:
        """What a trial begins with. Sums of fractions are not exact: taking away what was added gives another number."""
        return tuple([values.copy() for values in self._fractions()])

    def _fractions(self) -> tuple[Floats, ...]:
        return self.free_cpus, self.free_resources, self.domain_free_cpus

    def state(self, name: str, value: Any) -> None:
        """Set a fact that domain scores read: they are asked again before the next choice."""
        self.facts[name] = value
        self.facts_version += 1

    def set_up(self, rows: Sequence[int], up: bool) -> None:
        """Nodes take work, or take none any more."""
        for row in rows:
            if bool(self.up[row]) == up:
                continue
            self.up[row] = up
            sign, domain = (1.0 if up else -1.0), self.table.node_domain[row]
            self.domain_free_cpus[domain] += sign * self.free_cpus[row]
            self.domain_free_devices[domain] += sign * self.free_device_totals[row]
            self.gives += up
        self.generation += 1

    def set_asleep(self, rows: Sequence[int], *, asleep: bool) -> None:
        """Nodes fall asleep or wake: the fact ``asleep`` (N), else as the fleet said, is changed and they are looked at
        again. Room does not change. Not while a trial runs."""
        assert self._undo is None
        stated = self.facts.get("asleep")
        values = np.array(self.table.asleep if stated is None else stated, dtype=np.float64)
        values[list(rows)] = float(asleep)
        self.facts["asleep"] = values
        self.taken.extend(rows)

    def touch(self, rows: Iterable[int]) -> None:
        """Something else than what is free changed on nodes, which may let somebody in: who waits looks again."""
        self.taken.extend(rows)
        self.gives += 1

    def touch_address(self, address: str) -> None:
        """A port on the address was taken or given back: who asks for it looks again."""
        self.taken.extend(row for row, name in enumerate(self.table.addresses) if name == address)
        self.gives += 1

    @property
    def mark(self) -> tuple[int, int, int]:
        """This moment, for `touched_since`."""
        return len(self.taken), self.generation, self.facts_version

    def touched_since(self, mark: tuple[int, int, int] | None) -> set[int] | None:
        """The nodes touched since a moment; None when that cannot be said, as more than capacity changed."""
        if mark is None or mark[1:] != (self.generation, self.facts_version):
            return None
        return set(self.taken[mark[0] :])

    def forget_touched(self) -> None:
        """Start the list of touched nodes anew, when it has grown long; judgements made before are void."""
        self.taken.clear()
        self.generation += 1

    def _move(self, row: int, demand: Demand, devices: tuple[int, ...], *, taking: bool) -> None:
        sign = -1 if taking else 1
        up: bool = self.up.item(row)
        domain = self.table.node_domain.item(row)
        if demand.cpus:
            self.free_cpus[row] += sign * demand.cpus
            if up:
                self.domain_free_cpus[domain] += sign * demand.cpus
        if demand.memory_bytes:
            self.free_memory_bytes[row] += sign * demand.memory_bytes
        self.taken.append(row)
        for name, amount in demand.resources:
            # No node has what nobody needs to have (an amount of 0), nor what left the fleet while it was held.
            if name in self.table.resource_names:
                self.free_resources[row, self.table.resource_names.index(name)] += sign * amount
        for label in demand.labels:
            counts = self.labels.setdefault(label, {})
            counts[row] = counts.get(row, 0) - sign
            if not counts[row]:
                del counts[row]
        if demand.service_port:
            self._move_port(row, demand.service_port, taking=taking)
        if devices:
            whole = self._move_devices(row, demand, devices, taking=taking)
            self.free_device_totals[row] += sign * whole
            if up:
                self.domain_free_devices[domain] += sign * whole

    def _move_port(self, row: int, port: int, *, taking: bool) -> None:
        address = self.table.addresses[row]
        ports = self._ports.setdefault(address, {})
        ports[port] = ports.get(port, 0) + (1 if taking else -1)
        if ports[port] <= 0:
            del ports[port]
        self.taken.extend(other for other, name in enumerate(self.table.addresses) if name == address)

    def _move_devices(self, row: int, demand: Demand, devices: tuple[int, ...], *, taking: bool) -> int:
        """Account for devices; returns how many stopped (or began) to be wholly free."""
        free = self._free(row)
        positions = self._positions_of(row)
        pairs = self.table.devices_of[row]
        milli, free_devices = self.device_milli[row], self.free_devices[row]
        more = -demand.device_milli if taking else demand.device_milli
        changed = 0
        for index in devices:
            position = positions.get(index)
            if position is None:
                continue  # the device left the fleet while it was held
            before = milli.item(position)
            milli[position] = after = before + more
            pair = pairs[position]
            if before == 1000 and after < 1000:
                if pair in free:
                    free.remove(pair)
                free_devices[pair[1]] -= 1
                changed += 1
            elif before < 1000 and after >= 1000:
                insort(free, pair)
                free_devices[pair[1]] += 1
                changed += 1
        return changed

    def _choose(self, row: int, demand: Demand, columns: Ints, preferred: Sequence[int]) -> tuple[int, ...]:
        if not demand.accelerators:
            return ()
        if preferred:
            return tuple(preferred)
        if demand.device_milli < 1000:
            return self._choose_shared(row, demand, columns)
        free = self._free(row)
        # The model with the fewest left that suffices: the others stay whole.
        counts = self.free_devices[row]
        model = (
            int(columns[0])
            if len(columns) == 1
            else min((int(c) for c in columns if counts[c] >= demand.accelerators), key=lambda c: (counts[c], c))
        )
        return tuple([index for index, column in free if column == model][: demand.accelerators])

    def _choose_shared(self, row: int, demand: Demand, columns: Ints) -> tuple[int, ...]:
        """The fullest devices with room for the share."""
        milli = self.device_milli[row]
        accepted = set(columns.tolist())
        room = [
            (int(milli[position]), index)
            for position, (index, column) in enumerate(self.table.devices_of[row])
            if column in accepted and milli[position] >= demand.device_milli
        ]
        return tuple(sorted(index for _, index in sorted(room)[: demand.accelerators]))

    def _free(self, row: int) -> list[tuple[int, int]]:
        free = self._free_lists.get(row)
        if free is None:
            free = self._free_lists[row] = list(self.table.devices_of[row])
        return free

    def _positions_of(self, row: int) -> dict[int, int]:
        positions = self._positions.get(row)
        if positions is None:
            pairs = self.table.devices_of[row]
            positions = self._positions[row] = {index: place for place, (index, _) in enumerate(pairs)}
        return positions


@dataclass(frozen=True, slots=True, eq=False)
class Free:
    """Amounts per node: cpus (N), memory (N), whole devices by model (N, M), user-defined resources (N, X), and the free
    part of each device in thousandths (N, G); None where only whole devices are asked about."""

    cpus: Floats
    memory_bytes: npt.NDArray[Any]
    devices: npt.NDArray[Any]
    resources: Floats
    device_milli: npt.NDArray[Any] | None


def fits(table: Table, free: Free, demand: Demand, columns: Ints, rows: Any = slice(None)) -> Ints:
    """How many ranks of a demand fit into what is free on each node of ``rows``."""
    fit = np.full(free.cpus[rows].shape, UNBOUNDED, dtype=np.int64)
    if demand.cpus > 0:
        np.minimum(fit, _times(free.cpus[rows], demand.cpus), out=fit)
    if demand.memory_bytes > 0:
        np.minimum(fit, free.memory_bytes[rows] // demand.memory_bytes, out=fit)
    if demand.accelerators > 0:
        np.minimum(fit, _devices_that_fit(table, free, demand, columns, rows), out=fit)
    for name, amount in demand.resources:
        if amount <= 0:
            continue
        if name not in table.resource_names:
            return np.zeros_like(fit)
        column = free.resources[rows][:, table.resource_names.index(name)]
        np.minimum(fit, _times(column, amount), out=fit)
    if demand.service_port:
        np.minimum(fit, 1, out=fit)
    return np.maximum(fit, 0)


def _times(free: Floats, amount: float) -> Ints:
    """How often a fraction goes into what is free, up to `UNBOUNDED`; what is less than `SLACK` counts as that much."""
    found: Ints = np.minimum((free + SLACK) // max(amount, SLACK), UNBOUNDED).astype(np.int64)
    return found


def _devices_that_fit(table: Table, free: Free, demand: Demand, columns: Ints, rows: Any) -> Ints:
    if demand.device_milli >= 1000:
        devices = free.devices[rows]
        if len(columns) != devices.shape[1]:
            devices = devices[:, columns]
        ranks: Ints = devices // demand.accelerators if demand.accelerators > 1 else devices
        return ranks[:, 0].astype(np.int64) if ranks.shape[1] == 1 else ranks.sum(axis=1).astype(np.int64)
    if free.device_milli is None:
        whole_devices = free.devices[rows][:, columns].sum(axis=1).astype(np.int64)
        parts: Ints = whole_devices * (1000 // demand.device_milli) // demand.accelerators
        return parts
    accepted = np.isin(table.device_columns[rows], columns)
    milli = free.device_milli[rows]
    if demand.accelerators == 1:
        shares: Ints = (np.where(accepted, milli, 0) // demand.device_milli).sum(axis=1)
        return shares
    whole: Ints = (accepted & (milli >= demand.device_milli)).sum(axis=1) // demand.accelerators
    return whole
