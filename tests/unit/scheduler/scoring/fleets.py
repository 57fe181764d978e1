"""Small fleets for the tests of scores: nodes by domain, and views of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import services.scheduler.core.builtin  # noqa: F401
from services.scheduler.core.fleet import Device, Domain, Fleet, Node
from services.scheduler.core.table import table_of
from services.scheduler.core.view import View

GIB = 2**30


def node(
    node_id: str, domain_id: str = "d", *, cpus: float = 8.0, models: Sequence[str] = ("A100",) * 4, **more: Any
) -> Node:
    devices = tuple(Device(index, "NVIDIA", model) for index, model in enumerate(models))
    return Node(node_id, domain_id, cpus, 64 * GIB, devices, **more)


def view_of(*nodes: Node, facts: Mapping[str, Any] | None = None, **domains: Mapping[str, Any]) -> View:
    """The view of a fleet; keywords give the facts of domains."""
    known = {name: Domain(name, **fields) for name, fields in domains.items()}
    view = View(table_of(Fleet(known, {item.node_id: item for item in nodes})))
    view.facts.update(facts or {})
    return view
