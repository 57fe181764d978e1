"""What quotas count, and how much a unit counts against them.

All amounts are integers (`quantity`): bytes of memory, thousandths of everything else, so that refunds are exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from meridian.errors import InvalidArgumentError

ACCELERATORS = "accelerators"
CPUS = "cpus"
MEMORY_BYTES = "memory_bytes"
RUNNING = "running"
"""Stands in a verdict's ``resource`` when the count of units is what blocks."""

Quantities = Mapping[str, int]


def quantity(resource: str, value: float) -> int:
    """A natural amount as the integer that quotas count: bytes for memory, else thousandths, to the nearest.

    InvalidArgumentError when it is negative, infinite or NaN.
    """
    if not 0 <= value < math.inf:
        raise InvalidArgumentError(f"{resource} must be a number of at least 0, not {value!r}")
    return round(value) if resource == MEMORY_BYTES else round(value * 1000)


def natural(resource: str, amount: int) -> float:
    """The inverse of `quantity`, for people."""
    return float(amount) if resource == MEMORY_BYTES else amount / 1000


def request(
    accelerators: Mapping[str, float],
    cpus: float = 0.0,
    memory_bytes: float = 0,
    resources: Mapping[str, float] | None = None,
    weights: Mapping[str, float] | None = None,
) -> dict[str, int]:
    """What a unit counts against quotas: ``accelerators`` are devices by model, each times its index in ``weights`` (1
    where none is given), ``resources`` the named ones. InvalidArgumentError names a bad amount or weight."""
    weights = weights or {}
    total = 0
    for model, devices in accelerators.items():
        weight = weights.get(model, 1.0)
        if not 0 <= weight < math.inf:
            raise InvalidArgumentError(f"the weight of accelerator {model!r} must be at least 0, not {weight!r}")
        total += quantity(ACCELERATORS, devices * weight)
    amounts = {ACCELERATORS: total, CPUS: quantity(CPUS, cpus), MEMORY_BYTES: quantity(MEMORY_BYTES, memory_bytes)}
    for name, value in (resources or {}).items():
        amounts[name] = amounts.get(name, 0) + quantity(name, value)
    return amounts
