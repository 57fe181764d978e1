"""Filters: which nodes may take a rank of a demand at all.

A filter plugin is a class with ``name``, ``dynamic`` (it reads what is free, so it is asked again after each placing),
``passes(view, demand, rows)`` giving a boolean per node of ``rows`` (an index array or slice), and ``why(view, demand,
row)`` that says for one rejected node what is missing. With ``per_rank`` True it promises that how many ranks a demand asks for changes
nothing in what it says: such demands are then looked at together (counting.py). `register` adds one; a policy names those that apply.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Bools
from services.scheduler.core.view import View


class Filter(Protocol):
    """See the module."""

    name: str
    dynamic: bool

    def passes(self, view: View, demand: Demand, rows: Any) -> Bools:
        """True for each node that may take a rank."""
        ...

    def why(self, view: View, demand: Demand, row: int) -> str:
        """Why the node was rejected."""
        ...


def _by_domain(view: View, allowed: Bools, rows: Any) -> Bools:
    result: Bools = allowed[view.table.node_domain[rows]]
    return result


class UpFilter:
    """Nodes that take work: not failed, suspected, unreachable, asleep or revoked."""

    name = "up"
    dynamic = False
    per_rank = True

    def passes(self, view: View, demand: Demand, rows: Any) -> Bools:
        result: Bools = view.up[rows]
        return result

    def why(self, view: View, demand: Demand, row: int) -> str:
        return view.table.down[row]


class ExcludedNodeFilter:
    """Nodes that the unit is to avoid after a failure."""

    name = "excluded_node"
    dynamic = False
    per_rank = True

    def applies(self, demand: Demand) -> bool:
        """Only after a failure."""
        return bool(demand.excluded_nodes)

    def passes(self, view: View, demand: Demand, rows: Any) -> Bools:
        allowed = np.ones(len(view.table.nodes), dtype=np.bool_)
        for node_id in demand.excluded_nodes:
            row = view.table.node_index.get(node_id)
            if row is not None:
                allowed[row] = False
        result: Bools = allowed[rows]
        return result

    def why(self, view: View, demand: Demand, row: int) -> str:
        return "the unit's former run failed there"


class DomainFilter:
    """Domains that the job allows and does not exclude."""

    name = "domain"
    dynamic = False
    per_rank = True

    def passes(self, view: View, demand: Demand, rows: Any) -> Bools:
        return _by_domain(view, view.table.domains_of(demand), rows)

    def why(self, view: View, demand: Demand, row: int) -> str:
        name = view.table.nodes[row].domain_id
        return f"the job excludes {name}" if name in demand.excluded_domains else f"the job does not name {name}"


class SecurityFilter:
    """Domains of at least the security level asked for."""

    name = "security"
    dynamic = False
    per_rank = True

    def passes(self, view: View, demand: Demand, rows: Any) -> Bools:
        return _by_domain(view, view.table.security >= demand.min_security_level, rows)

    def why(self, view: View, demand: Demand, row: int) -> str:
        level = int(view.table.security[view.table.node_domain[row]])
        return f"security level {level} is below {demand.min_security_level}"


class AcceleratorFilter:
    """Nodes that have accelerators of an accepted type, busy or not."""

    name = "accelerator"
    dynamic = False
    per_rank = True

    def passes(self, view: View, demand: Demand, rows: Any) -> Bools:
        counts = view.table.devices[rows]
        if not demand.accelerators:
            return np.ones(len(counts), dtype=np.bool_)
        columns = [index for index, model in enumerate(view.table.models) if model.suits(demand)]
        result: Bools = counts[:, columns].sum(axis=1) > 0
        return result

    def why(self, view: View, demand: Demand, row: int) -> str:
        models = [view.table.models[c] for c in np.flatnonzero(view.table.devices[row])]
        has = f"it has {', '.join(item.model for item in models)}" if models else "it has no accelerators"
        wanted = f", wanted is {' or '.join(demand.accelerator_types)}" if demand.accelerator_types else ""
        named = any(item.matches(demand.accelerator_types) for item in models)
        return has + wanted + (", and a rank is given one part at most" if named else "")


class RealAcceleratorFilter:
    """Nodes with accelerators that are present, where the job does not accept declared ones."""

    name = "real_accelerator"
    dynamic = False
    per_rank = True

    def passes(self, view: View, demand: Demand, rows: Any) -> Bools:
        counts = view.table.devices[rows]
        if not (demand.accelerators and demand.real_accelerators):
            return np.ones(len(counts), dtype=np.bool_)
        columns = [index for index, model in enumerate(view.table.models) if not model.emulated]
        result: Bools = counts[:, columns].sum(axis=1) > 0
        return result

    def why(self, view: View, demand: Demand, row: int) -> str:
        return "its accelerators are only declared"


class PortFilter:
    """Addresses on which the service's fixed port is not taken by another run."""

    name = "port"
    dynamic = True
    per_rank = True

    def applies(self, demand: Demand) -> bool:
        """Only services ask for a port."""
        return demand.service_port != 0

    def passes(self, view: View, demand: Demand, rows: Any) -> Bools:
        indices = np.arange(len(view.table.nodes))[rows]
        return np.array([view.port_free(int(row), demand.service_port) for row in indices], dtype=np.bool_)

    def why(self, view: View, demand: Demand, row: int) -> str:
        return f"port {demand.service_port} is taken on {view.table.addresses[row]}"


class CapacityFilter:
    """Nodes with room for at least one rank now."""

    name = "capacity"
    dynamic = True
    per_rank = True

    def passes(self, view: View, demand: Demand, rows: Any) -> Bools:
        result: Bools = view.ranks_that_fit(demand, view.columns(demand), rows) > 0
        return result

    def why(self, view: View, demand: Demand, row: int) -> str:
        columns = view.columns(demand)
        lacks = []
        if view.free_cpus[row] + 1e-6 < demand.cpus:
            lacks.append(f"{view.free_cpus[row]:g} of {view.table.cpus[row]:g} cpus free, {demand.cpus:g} wanted")
        if view.free_memory_bytes[row] < demand.memory_bytes:
            free, total = int(view.free_memory_bytes[row]), int(view.table.memory_bytes[row])
            lacks.append(f"{free} of {total} bytes of memory free, {demand.memory_bytes} wanted")
        free_devices = view.free_devices[row, columns]
        if demand.accelerators and demand.device_milli < 1000:
            accepted = np.isin(view.table.device_columns[row], columns)
            most = int(np.where(accepted, view.device_milli[row], 0).max(initial=0))
            if most < demand.device_milli:
                lacks.append(f"{most / 1000:g} of an accelerator free, {demand.device_milli / 1000:g} wanted")
        elif demand.accelerators and int(free_devices.max(initial=0)) < demand.accelerators:
            total = int(view.table.devices[row, columns].sum())
            lacks.append(f"{int(free_devices.sum())} of {total} accelerators free, {demand.accelerators} wanted")
        names = view.table.resource_names
        for name, amount in demand.resources:
            left = float(view.free_resources[row, names.index(name)]) if name in names else 0.0
            if left + 1e-6 < amount:
                lacks.append(f"{left:g} {name} free, {amount:g} wanted")
        return "; ".join(lacks) or "no room"


class AntiAffinityFilter:
    """Nodes without units that bear a label which the unit avoids."""

    name = "anti_affinity"
    dynamic = True
    per_rank = True

    def applies(self, demand: Demand) -> bool:
        """Only for units that avoid something."""
        return bool(demand.avoid)

    def passes(self, view: View, demand: Demand, rows: Any) -> Bools:
        allowed = np.ones(len(view.table.nodes), dtype=np.bool_)
        for label in demand.avoid:
            allowed[list(view.labels.get(label, ()))] = False
        result: Bools = allowed[rows]
        return result

    def why(self, view: View, demand: Demand, row: int) -> str:
        present = sorted(label for label in demand.avoid if row in view.labels.get(label, ()))
        return f"a unit labelled {', '.join(present)} runs there"


FILTERS: dict[str, Filter] = {}


def register(plugin: Filter) -> None:
    """Make a filter known by its name; PolicyError when the name is taken."""
    if plugin.name in FILTERS:
        raise PolicyError(f"a filter {plugin.name!r} exists already")
    FILTERS[plugin.name] = plugin


def filters(names: Iterable[str]) -> tuple[Filter, ...]:
    """The filters of these names; PolicyError when one does not exist."""
    try:
        return tuple(FILTERS[name] for name in names)
    except KeyError as error:
        raise PolicyError(f"there is no filter {error.args[0]!r}; known are {', '.join(sorted(FILTERS))}") from None


for _plugin in (
    UpFilter(),
    ExcludedNodeFilter(),
    DomainFilter(),
    SecurityFilter(),
    AcceleratorFilter(),
    RealAcceleratorFilter(),
    PortFilter(),
    AntiAffinityFilter(),
    CapacityFilter(),
):
    register(_plugin)
