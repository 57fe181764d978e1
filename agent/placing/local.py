"""The local engine's own scheduler for a domain as its file declares it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agent.engines.base import Engine, NodeState
from agent.engines.local.first_fit import FirstFit, Limits, NodeFacts
from agent.engines.own_scheduler import DeviceKind
from agent.settings import Domain, OwnScheduling
from agent.user_resources import Amount

_NEVER_USED_UP = 1e12
"""What a node has of a resource that work does not use up: as much as is ever asked for."""


def first_fit_of(
    domain: Domain,
    settings: OwnScheduling,
    engine: Engine,
    amounts: Callable[[], Mapping[str, Iterable[Amount]]],
) -> FirstFit:
    """First fit over the nodes that are up; ``amounts`` is what they have of user-defined resources."""
    nodes = [
        NodeFacts(
            node.node_id,
            node.cpus,
            node.memory_bytes,
            tuple(DeviceKind(group.vendor, group.model) for group in node.accelerators for _ in range(group.count)),
            node.address,
            node.labels,
        )
        for node in domain.nodes
    ]

    def usable() -> frozenset[str]:
        up = frozenset(node.node_id for node in engine.nodes() if node.state is NodeState.RUNNING)
        return up - engine.asleep()

    def known() -> dict[str, dict[str, float]]:
        return {node_id: dict(map(_amount, found)) for node_id, found in amounts().items()}

    limits = Limits(settings.most_units, settings.most_time_s)
    return FirstFit(nodes, limits, usable, known, emulated=domain.emulated)


def _amount(item: Amount) -> tuple[str, float]:
    value = item.value or 0.0
    return item.resource.name, value if item.resource.consumable or value <= 0 else _NEVER_USED_UP
