"""How much room one class of demands takes from another, at most and by estimate."""

from __future__ import annotations

import math

from services.scheduler.core.state import Demand


def greatest_drop(taken: Demand, other: Demand) -> float:
    """By how many ranks of ``other`` a node may have less room after one rank of ``taken``, at most; infinite when they
    exclude each other in ways that amounts do not tell (ports, anti-affinity).

    On one node ``floor((free - a) / b) >= floor(free / b) - ceil(a / b)`` for each resource, so the least of them falls by
    no more than the greatest ``ceil(a / b)``.
    """
    if taken.service_port and taken.service_port == other.service_port:
        return math.inf
    if taken.labels & other.avoid or taken.avoid & other.labels:
        return math.inf
    if taken == other:
        return 1.0
    amounts = dict(taken.resources)
    pairs = [(taken.cpus, other.cpus), (float(taken.memory_bytes), float(other.memory_bytes))]
    pairs += [(amounts.get(name, 0.0), amount) for name, amount in other.resources]
    drops = [math.ceil(a / b - 1e-9) for a, b in pairs if b > 0]
    if other.accelerators and other.device_milli >= 1000:
        drops.append(-(-taken.accelerators // other.accelerators))
    elif other.accelerators:
        shares = -(-taken.device_milli // other.device_milli)
        drops.append(taken.accelerators * min(shares, 1000 // other.device_milli))
    return float(max(drops, default=0))


def displaced(taken: Demand, other: Demand) -> float:
    """Ranks of a class without devices that a rank of another takes the place of. Classes with devices are bounded by the
    free blocks, which say more."""
    if other.accelerators:
        return 0.0
    parts = [taken.cpus / other.cpus] if other.cpus > 0 else []
    if other.memory_bytes > 0:
        parts.append(taken.memory_bytes / other.memory_bytes)
    return min(parts, default=0.0)
