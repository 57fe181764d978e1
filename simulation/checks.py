"""Checks of numbers that the physical models share."""

from __future__ import annotations

import math

from meridian.errors import InvalidArgumentError


def at_least_zero(name: str, value: float) -> None:
    """InvalidArgumentError that names what is negative, infinite or no number."""
    if not 0 <= value < math.inf:
        raise InvalidArgumentError(f"{name}: {value} is not a number of 0 or more")
