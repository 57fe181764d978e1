"""Which node is measured next. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from agent.engines.base import NodeState, NodeStatus
from agent.parts import Divided


def all_idle(nodes: Sequence[NodeStatus]) -> bool:
    """Nothing runs on any of them: nodes that are processes of one machine share its processors."""
    return not any(node.run_ids or node.accelerators_in_use for node in nodes)


def due_node(
    nodes: Sequence[NodeStatus],
    left_out: Collection[str],
    measured_at_s: Mapping[str, float],
    now_s: float,
    interval_s: float,
) -> str | None:
    """The node to measure, None while something runs or nothing is due.

    Due is a node that is up, is not ``left_out`` and was not measured for ``interval_s``; the one that waits longest goes first, of
    equals the first by name. Times in seconds since 1970.
    """
    if not all_idle(nodes):
        return None
    due = [
        (measured_at_s.get(node.node_id, 0.0), node.node_id)
        for node in nodes
        if node.state is NodeState.RUNNING
        and node.node_id not in left_out
        and now_s - measured_at_s.get(node.node_id, 0.0) >= interval_s
    ]
    return min(due)[1] if due else None


def left_out(asleep: Collection[str], divided: Divided) -> frozenset[str]:
    """Nodes that are not measured: those that sleep, and those with a divided accelerator. A program that is told a number sees a
    part there, and its speed would be taken for that of the chip."""
    return frozenset(asleep) | {node_id for node_id, _ in divided}


def device_order(count: int, turn: int) -> tuple[int, ...]:
    """The accelerators of a node with that of this ``turn`` first: each is measured in its turn, the others are its peers."""
    return tuple((turn + offset) % count for offset in range(count))
