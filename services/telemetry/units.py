"""Conversion between units of one dimension (UCUM symbols, as OpenTelemetry writes them)."""

from __future__ import annotations

from collections.abc import Mapping

_DECIMAL = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}


def _bytes(suffix: str = "") -> dict[str, tuple[float, float]]:
    return {f"{prefix}By{suffix}": (factor, 0.0) for prefix, factor in ({"": 1.0} | _DECIMAL | _BINARY).items()}


def _bits(scale: float) -> dict[str, tuple[float, float]]:
    return {f"{prefix}bit/s": (factor * scale, 0.0) for prefix, factor in ({"": 1.0} | _DECIMAL).items()}


def _scaled(pairs: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    return {name: (factor, 0.0) for name, factor in pairs.items()}


# Canonical unit -> accepted unit -> (factor, offset): canonical = value * factor + offset.
CONVERSIONS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "1": _scaled({"1": 1.0, "%": 0.01}),
    "By": _bytes(),
    "By/s": _bytes("/s") | _bits(1 / 8),
    "bit/s": _bits(1.0) | {name: (factor * 8, 0.0) for name, (factor, _) in _bytes("/s").items()},
    "s": _scaled({"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}),
    "W": _scaled({"W": 1.0, "mW": 1e-3, "uW": 1e-6, "kW": 1e3}),
    "J": _scaled({"J": 1.0, "mJ": 1e-3, "uJ": 1e-6, "kJ": 1e3, "W.h": 3.6e3, "kW.h": 3.6e6}),
    "Cel": {"Cel": (1.0, 0.0), "K": (1.0, -273.15)},
    "FLOP/s": _scaled({"FLOP/s": 1.0} | {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items()}),
    "{run}": _scaled({"{run}": 1.0, "{job}": 1.0, "1": 1.0}),
}


def convert(value: float, unit: str, canonical: str) -> float | None:
    """``value`` in the canonical unit; None when ``unit`` does not measure the same thing."""
    found = CONVERSIONS[canonical].get(unit)
    if found is None:
        return None
    factor, offset = found
    return value * factor + offset
