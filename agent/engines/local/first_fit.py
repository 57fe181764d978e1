"""The local engine's own scheduler: first fit over its nodes, in their order, with limits of its own as a partition has them.

A unit's ranks are packed on the first nodes that take them, all or none. It has no queue: what does not fit now is refused
with the reason, and asked for again when there is more room.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from agent.engines.base import RankPlacement
from agent.engines.own_scheduler import (
    Constraints,
    DeviceKind,
    Held,
    OwnScheduler,
    Refusal,
    Room,
    UnitName,
    nodes_by_free,
)
from meridian.hardware.accelerator_types import is_meant

WHOLE = 1000
"""Thousandths of an accelerator."""
_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node as declared: ``devices`` by index, ``labels`` also name its group per level of the topology."""

    node_id: str
    cpus: float
    memory_bytes: int
    devices: tuple[DeviceKind, ...] = ()
    address: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of all that the domain takes: units at once, and how long one may run by its own word; 0: no limit."""

    most_units: int = 0
    most_time_s: float = 0.0


@dataclass(slots=True)
class _Free:
    """What is free on a node."""

    cpus: float
    memory_bytes: int
    devices: list[int]
    resources: dict[str, float]


class FirstFit(OwnScheduler):
    """See the module. ``usable`` names the nodes that are up, ``amounts`` what each node has of user-defined resources,
    ``emulated`` says that the accelerators are declared and not present."""

    def __init__(
        self,
        nodes: Iterable[NodeFacts],
        limits: Limits,
        usable: Callable[[], Collection[str]],
        amounts: Callable[[], Mapping[str, Mapping[str, float]]],
        *,
        emulated: bool = False,
    ) -> None:
        self._nodes = {node.node_id: node for node in nodes}
        self._limits = limits
        self._usable, self._amounts = usable, amounts
        self._emulated = emulated
        self.held: dict[UnitName, Held] = {}

    async def restore(self, held: Mapping[UnitName, Held]) -> None:
        self.held = dict(held)

    async def adopt(self, name: UnitName, held: Held) -> None:
        self.held[name] = held

    async def release(self, name: UnitName) -> None:
        self.held.pop(name, None)

    async def place(self, name: UnitName, constraints: Constraints) -> tuple[RankPlacement, ...] | Refusal:
        known = self.held.get(name)
        if known is not None:
            return known.ranks
        reason = self._over_a_limit(constraints)
        if reason:
            return Refusal(reason)
        free = self._free()
        most = 0
        for node_ids, kind in self._ways(constraints):
            ranks = self._fill(constraints, node_ids, kind, free)
            if len(ranks) == constraints.ranks:
                self.held[name] = Held(constraints, ranks)
                return ranks
            most = max(most, len(ranks))
        return Refusal(self._why(constraints, most))

    def room(self) -> Room:
        free = self._free()
        up = [node for node in self._nodes.values() if node.node_id in free]
        kinds = dict.fromkeys(kind for node in self._nodes.values() for kind in node.devices)
        blocks = {
            kind: [sum(left == WHOLE for _, left in _devices(node, free[node.node_id], kind)) for node in up]
            for kind in kinds
        }
        return Room(
            {kind: sum(node.devices.count(kind) for node in up) for kind in kinds},
            nodes_by_free(blocks),
            sum(item.cpus for item in free.values()),
            sum(node.cpus for node in up),
            sum(item.memory_bytes for item in free.values()),
            {
                name: sum(item.resources.get(name, 0.0) for item in free.values())
                for name in sorted({name for item in free.values() for name in item.resources})
            },
        )

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _over_a_limit(self, constraints: Constraints) -> str:
        limits = self._limits
        if limits.most_time_s and constraints.time_limit_s > limits.most_time_s:
            wanted = f"{constraints.time_limit_s:g} s is asked for"
            if constraints.time_limit_s == float("inf"):
                wanted = "no limit is declared"
            return f"the domain runs nothing longer than {limits.most_time_s:g} s, and {wanted}"
        if limits.most_units and len(self.held) >= limits.most_units:
            return f"the domain takes {limits.most_units} units at once, and has them"
        if constraints.accelerators and constraints.real_accelerators and self._emulated:
            return "the domain's accelerators are emulated, and real ones are asked for"
        return ""

    def _free(self) -> dict[str, _Free]:
        """What is free on the nodes that are up, in their order."""
        usable, amounts = set(self._usable()), self._amounts()
        free = {
            name: _Free(node.cpus, node.memory_bytes, [WHOLE] * len(node.devices), dict(amounts.get(name, {})))
            for name, node in self._nodes.items()
            if name in usable
        }
        for held in self.held.values():
            for rank in held.ranks:
                if rank.node_id in free:
                    _take(free[rank.node_id], held.constraints, rank.accelerator_indices)
        return free

    def _ways(self, constraints: Constraints) -> Iterable[tuple[list[str], DeviceKind | None]]:
        """Nodes and the one model of accelerators with which a unit may be tried."""
        kinds: list[DeviceKind | None] = [None]
        if constraints.accelerators:
            present = dict.fromkeys(kind for node in self._nodes.values() for kind in node.devices)
            kinds = [kind for kind in present if is_meant(kind.vendor, kind.model, constraints.accelerator_types)]
        everywhere = list(self._nodes)
        groups: dict[str, list[str]] = {}
        if constraints.topology:
            for node in self._nodes.values():
                if group := node.labels.get(constraints.topology, ""):
                    groups.setdefault(group, []).append(node.node_id)
        wider = [] if constraints.topology and constraints.topology_required else [everywhere]
        for nodes in [*groups.values(), *wider]:
            for kind in kinds:
                yield nodes, kind

    def _fill(
        self, constraints: Constraints, node_ids: Iterable[str], kind: DeviceKind | None, free: Mapping[str, _Free]
    ) -> tuple[RankPlacement, ...]:
        """As many ranks as fit, at most all of them; ``free`` stays as it is."""
        ranks: list[RankPlacement] = []
        ports = self._ports_in_use(constraints.service_port)
        for node_id in node_ids:
            node, before = self._nodes[node_id], free.get(node_id)
            if before is None or node_id in constraints.excluded_nodes or self._kept_apart(node_id, constraints):
                continue
            left = _Free(before.cpus, before.memory_bytes, list(before.devices), dict(before.resources))
            local = 0
            while len(ranks) < constraints.ranks and not (constraints.service_port and node.address in ports):
                indices = _fitting(node, left, constraints, kind)
                if indices is None:
                    break
                _take(left, constraints, indices)
                ranks.append(RankPlacement(len(ranks), node_id, local, indices, constraints.accelerator_milli))
                local += 1
                if constraints.service_port:
                    ports.add(node.address)
        return tuple(ranks)

    def _ports_in_use(self, port: int) -> set[str]:
        return {
            self._nodes[rank.node_id].address
            for held in self.held.values()
            if port and held.constraints.service_port == port
            for rank in held.ranks
            if rank.node_id in self._nodes
        }

    def _kept_apart(self, node_id: str, constraints: Constraints) -> bool:
        others = [
            held.constraints for held in self.held.values() if any(rank.node_id == node_id for rank in held.ranks)
        ]
        return any(item.labels & constraints.avoid or constraints.labels & item.avoid for item in others)

    def _why(self, constraints: Constraints, most: int) -> str:
        devices = ""
        if constraints.accelerators:
            wanted = " or ".join(constraints.accelerator_types)
            devices = f", each with {constraints.accelerators} accelerators" + (f" of {wanted}" if wanted else "")
        shared = f" in one {constraints.topology}" if constraints.topology and constraints.topology_required else ""
        return f"the domain's own scheduler has room for {most} of {constraints.ranks} ranks now{devices}{shared}"


def _devices(node: NodeFacts, free: _Free, kind: DeviceKind | None) -> list[tuple[int, int]]:
    """Index and free thousandths of a node's accelerators of a model."""
    return [(index, free.devices[index]) for index, item in enumerate(node.devices) if item == kind]


def _fitting(node: NodeFacts, free: _Free, constraints: Constraints, kind: DeviceKind | None) -> tuple[int, ...] | None:
    """The accelerators of one more rank, those with the least left that is enough first; None: it does not fit."""
    if constraints.cpus > free.cpus + _SLACK or constraints.memory_bytes > free.memory_bytes:
        return None
    if any(amount > free.resources.get(name, 0.0) + _SLACK for name, amount in constraints.resources):
        return None
    enough = [(left, index) for index, left in _devices(node, free, kind) if left >= constraints.accelerator_milli]
    if len(enough) < constraints.accelerators:
        return None
    return tuple(sorted(index for _, index in sorted(enough)[: constraints.accelerators]))


def _take(free: _Free, constraints: Constraints, indices: Iterable[int]) -> None:
    free.cpus -= constraints.cpus
    free.memory_bytes -= constraints.memory_bytes
    for index in indices:
        if index < len(free.devices):
            free.devices[index] -= constraints.accelerator_milli
    for name, amount in constraints.resources:
        free.resources[name] = free.resources.get(name, 0.0) - amount
