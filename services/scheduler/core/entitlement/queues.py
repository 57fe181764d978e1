"""The queues of a tree of quotas as they are declared, and what makes no sense of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.scheduler.core.entitlement.amounts import RUNNING
from services.scheduler.core.errors import PolicyError


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """One queue of the tree, in natural units (devices weighted by index, cpus, bytes, units of named resources).

    ``parent`` is "" at the root, which may have no limits. A resource that a limit leaves out is not limited by it.
    ``weight`` divides what a queue has borrowed when borrowers are ranked. ``max_running`` counts the units of the
    queue and all below it; None means any number.
    """

    name: str
    parent: str = ""
    nominal: Mapping[str, float] = field(default_factory=dict)
    borrowing_limit: Mapping[str, float] = field(default_factory=dict)
    lending_limit: Mapping[str, float] = field(default_factory=dict)
    weight: float = 1.0
    max_running: int | None = None


def top_down(specs: Sequence[QueueSpec]) -> tuple[list[QueueSpec], dict[str, str]]:
    """The specs with every queue after its parent, and the parents by name. PolicyError when they are no tree with one root."""
    parents: dict[str, str] = {}
    for spec in specs:
        if not spec.name:
            raise PolicyError("a queue has no name")
        if spec.name in parents:
            raise PolicyError(f"queue {spec.name!r}: name is given twice")
        parents[spec.name] = spec.parent
    children: dict[str, list[QueueSpec]] = {}
    for spec in specs:
        if spec.parent and spec.parent not in parents:
            raise PolicyError(f"queue {spec.name!r}: parent {spec.parent!r} does not exist")
        children.setdefault(spec.parent, []).append(spec)
    order = list(children.get("", []))
    if len(order) > 1:
        names = ", ".join(repr(spec.name) for spec in order)
        raise PolicyError(f"queue {order[1].name!r}: parent is missing; only one queue may be the root, not {names}")
    for spec in order:
        order += children.get(spec.name, [])
    if len(order) < len(specs):
        reached = {spec.name for spec in order}
        name = next(spec.name for spec in specs if spec.name not in reached)
        seen: dict[str, None] = {}
        while name not in seen:
            seen[name] = None
            name = parents[name]
        cycle = [*list(seen)[list(seen).index(name) :], name]
        raise PolicyError(f"queue {name!r}: parent makes a cycle: {' -> '.join(cycle)}")
    if not order:
        raise PolicyError("there is no queue")
    return order, parents


def check(spec: QueueSpec) -> None:
    """PolicyError names the queue and its limit that makes no sense."""
    parts = {"nominal": spec.nominal, "borrowing_limit": spec.borrowing_limit, "lending_limit": spec.lending_limit}
    for name, part in parts.items():
        if part and name != "nominal" and not spec.parent:
            raise PolicyError(f"queue {spec.name!r}: {name} makes no sense at the root")
        for resource, value in part.items():
            if resource == RUNNING:
                raise PolicyError(f"queue {spec.name!r}: {name}.{resource} is not a resource; use max_{resource}")
            # Written so that NaN fails too.
            if not 0 <= value < math.inf:
                raise PolicyError(
                    f"queue {spec.name!r}: {name}.{resource} must be at least 0 and finite, not {value!r}"
                )
    if not 0 < spec.weight < math.inf:
        raise PolicyError(f"queue {spec.name!r}: weight must be above 0 and finite, not {spec.weight!r}")
    count = spec.max_running
    if count is not None and (not isinstance(count, int) or count < 0):
        raise PolicyError(f"queue {spec.name!r}: max_running must be an integer of at least 0, not {count!r}")
