"""What is free of the fleet while units are placed: given to ranks, put back, tried and undone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from services.scheduler.core.fitting import Free, fits
from services.scheduler.core.ledger import Ledger
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Bools, Floats, Ints, Table, sum_by


@dataclass(slots=True, eq=False)
class _Trial:
    """What there was when a trial began: free per domain (D); per node that it touched since the amounts of `View._by_node`. ``others``
    are its moves of what is no amount, as (row, demand, whether taken)."""

    domain_free_cpus: Floats
    domain_free_devices: Floats
    nodes: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    others: list[tuple[int, Demand, bool]] = field(default_factory=list)


class View:
    """What is free. `take` gives capacity away, `give` puts it back; ``taken`` lists the nodes they touched, ``taken_in`` the
    same by domain, so that judgements made before know what to look at again. ``generation`` grows when facts other than capacity changed: then
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
        self.taken_in: list[list[int]] = [[] for _ in table.domain_ids]
        self.generation = 0
        self.gives = 0
        """How often capacity came back: what had no room before and saw no more of it since has none now."""
        self.labels: dict[str, dict[int, int]] = {}
        self.facts: dict[str, Any] = {}
        self.facts_version = 0
        self._positions: dict[int, dict[int, int]] = {}
        self._trial: _Trial | None = None
        self._ports: dict[str, dict[int, int]] = {}
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
                left = [model for index, model in table.devices_of[row] if index not in held.devices]
                self.free_devices[row] = np.bincount(left, minlength=len(table.models))
                for position, (index, _) in enumerate(table.devices_of[row]):
                    self.device_milli[row, position] -= held.devices.get(index, 0)

    def copy(self) -> View:
        """A view that can be changed without changing this one; not while a trial runs."""
        assert self._trial is None
        other = object.__new__(View)
        other.__dict__.update(
            {
                name: value.copy() if isinstance(value, np.ndarray | dict) else value
                for name, value in self.__dict__.items()
            }
        )
        other.taken, other.taken_in = list(self.taken), [list(rows) for rows in self.taken_in]
        other.labels = {label: dict(counts) for label, counts in self.labels.items()}
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
        self._move(row, demand, devices, taking=True)

    def give(self, row: int, demand: Demand, devices: tuple[int, ...]) -> None:
        """Put back what a rank held."""
        self._move(row, demand, devices, taking=False)
        self.gives += 1

    def begin(self) -> None:
        """Begin a trial, which `rollback` ends."""
        assert self._trial is None
        self._trial = _Trial(self.domain_free_cpus.copy(), self.domain_free_devices.copy())

    def rollback(self) -> None:
        """End the trial: all that was taken and given since it began is undone. Sums of fractions are not exact, so what was there is
        put back, not counted back."""
        trial, self._trial = self._trial, None
        assert trial is not None
        self.domain_free_cpus[:], self.domain_free_devices[:] = trial.domain_free_cpus, trial.domain_free_devices
        for row, before in trial.nodes.items():
            for values, value in zip(self._by_node(), before, strict=True):
                values[row] = value
        for row, demand, taking in reversed(trial.others):
            self._move_others(row, demand, taking=not taking)
        self.note(trial.nodes)

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

    def _by_node(self) -> tuple[npt.NDArray[Any], ...]:
        return (
            self.free_cpus,
            self.free_memory_bytes,
            self.free_device_totals,
            self.free_devices,
            self.device_milli,
            self.free_resources,
        )

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
        assert self._trial is None
        stated = self.facts.get("asleep")
        values = np.array(self.table.asleep if stated is None else stated, dtype=np.float64)
        values[list(rows)] = float(asleep)
        self.facts["asleep"] = values
        self.note(rows)

    def touch(self, rows: Iterable[int]) -> None:
        """Something else than what is free changed on nodes, which may let somebody in: who waits looks again."""
        self.note(rows)
        self.gives += 1

    def note(self, rows: Iterable[int]) -> None:
        """Nodes are to be looked at again."""
        domain_of = self.table.node_domain
        for row in rows:
            self.taken.append(row)
            self.taken_in[domain_of.item(row)].append(row)

    def touch_address(self, address: str) -> None:
        """A port on the address was taken or given back: who asks for it looks again."""
        self.note(self._on_address(address))
        self.gives += 1

    def _on_address(self, address: str) -> list[int]:
        return [row for row, name in enumerate(self.table.addresses) if name == address]

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
        for rows in self.taken_in:
            rows.clear()
        self.generation += 1

    def _move(self, row: int, demand: Demand, devices: tuple[int, ...], *, taking: bool) -> None:
        trial = self._trial
        if trial is not None and row not in trial.nodes:
            trial.nodes[row] = tuple([values[row].copy() for values in self._by_node()])
        sign = -1 if taking else 1
        up: bool = self.up.item(row)
        domain = self.table.node_domain.item(row)
        self.taken.append(row)
        self.taken_in[domain].append(row)
        if demand.cpus:
            cpus = sign * demand.cpus
            self.free_cpus[row] += cpus
            if up:
                self.domain_free_cpus[domain] += cpus
        if demand.memory_bytes:
            self.free_memory_bytes[row] += sign * demand.memory_bytes
        for name, amount in demand.resources:
            # No node has what nobody needs to have (an amount of 0), nor what left the fleet while it was held.
            if name in self.table.resource_names:
                self.free_resources[row, self.table.resource_names.index(name)] += sign * amount
        if demand.labels or demand.service_port:
            self._move_others(row, demand, taking=taking)
            if trial is not None:
                trial.others.append((row, demand, taking))
        if devices:
            whole = sign * self._move_devices(row, sign * demand.device_milli, devices)
            self.free_device_totals[row] += whole
            if up:
                self.domain_free_devices[domain] += whole

    def _move_others(self, row: int, demand: Demand, *, taking: bool) -> None:
        """What is not an amount: labels and ports."""
        for label in demand.labels:
            counts = self.labels.setdefault(label, {})
            counts[row] = counts.get(row, 0) + (1 if taking else -1)
            if not counts[row]:
                del counts[row]
        if demand.service_port:
            self._move_port(row, demand.service_port, taking=taking)

    def _move_port(self, row: int, port: int, *, taking: bool) -> None:
        address = self.table.addresses[row]
        ports = self._ports.setdefault(address, {})
        ports[port] = ports.get(port, 0) + (1 if taking else -1)
        if ports[port] <= 0:
            del ports[port]
        self.note(self._on_address(address))

    def _move_devices(self, row: int, more: int, devices: tuple[int, ...]) -> int:
        """So many thousandths of devices come free (less than 0: are taken); returns how many of them began (stopped) to be
        wholly free."""
        positions, pairs = self._positions_of(row), self.table.devices_of[row]
        milli = self.device_milli[row]
        changed: list[int] = []
        for index in devices:
            position = positions.get(index)
            if position is None:
                continue  # the device left the fleet while it was held
            before = milli.item(position)
            milli[position] = after = before + more
            if (before >= 1000) is not (after >= 1000):
                changed.append(pairs[position][1])
        for column in set(changed):
            count = changed.count(column)
            self.free_devices[row, column] += count if more > 0 else -count
        return len(changed)

    def _choose(self, row: int, demand: Demand, columns: Ints, preferred: Sequence[int]) -> tuple[int, ...]:
        if not demand.accelerators:
            return ()
        if preferred:
            return tuple(preferred)
        if demand.device_milli < 1000:
            return self._choose_shared(row, demand, columns)
        if len(columns) == 1:
            model = columns.item(0)
        else:
            # The model with the fewest left that suffices: the others stay whole.
            counts = self.free_devices[row].tolist()
            model = min((counts[c], c) for c in columns.tolist() if counts[c] >= demand.accelerators)[1]
        left = zip(self.table.devices_of[row], self.device_milli[row].tolist(), strict=False)
        free = [index for (index, column), milli in left if milli >= 1000 and column == model]
        return tuple(free[: demand.accelerators])

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

    def _positions_of(self, row: int) -> dict[int, int]:
        positions = self._positions.get(row)
        if positions is None:
            pairs = self.table.devices_of[row]
            positions = self._positions[row] = {index: place for place, (index, _) in enumerate(pairs)}
        return positions
