"""Quantities as Kubernetes writes them (``80Gi``, ``500m``, ``1e3``). Pure."""

from __future__ import annotations

import math
import re

_QUANTITY = re.compile(r"([+-]?[0-9]{1,18}(?:\.[0-9]{1,9})?)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]{1,2})?")
_FACTORS = {
    "": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip


def quantity(value: object) -> float | None:
    """A Kubernetes quantity (``80Gi``, ``500m``, ``1e3``) as a number; None: it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value) if math.isfinite(value) else None
        except OverflowError:
            return None
    if not isinstance(value, str):
        return None
    found = _QUANTITY.fullmatch(value)
    if found is None or not value.isascii():
        return None
    unit = found[2] or ""
    factor = _FACTORS.get(unit)
    return float(found[1] + unit) if factor is None else float(found[1]) * factor
