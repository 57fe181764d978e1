"""What a chip is to the index: logarithms of its facts, one vector per precision, gaps filled and said.

The vector holds no name and no vendor: a chip never seen is judged by its numbers alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from meridian.hardware import Chip

Array = NDArray[np.float64]
NAMES = ("peak", "bandwidth", "vector_fp32", "year", "tdp", "memory", "link")
_PCIE_BYTES_PER_S = ((2020, 31.5e9), (0, 15.75e9))
"""Host interface of cards by year; bridges between cards are optional, so not counted."""
# Where a precision has no peak of its own, the arithmetic that runs instead.
_FALLBACKS: Mapping[str, Sequence[str]] = {
    "fp64": ("fp64", "fp32"),
    "fp32": ("tf32", "fp32", "fp16"),
    "tf32": ("tf32", "fp32", "fp16"),
    "fp16": ("fp16", "fp32"),
    "bf16": ("fp16", "fp32"),
    "fp8": ("fp8", "fp16", "fp32"),
    # Where 4-bit floats were measured, the rate of 8 bits explains them better than their own.
    "fp4": ("fp8", "fp16", "fp32"),
    "int8": ("int8", "fp16", "fp32"),
    "int4": ("int4", "int8", "fp16", "fp32"),
}
_SPELLINGS = (
    # Integer weights that are widened before they are multiplied; on published tables 16 bits explain them best.
    (re.compile(r"i?q[2-8](_.*)?|w[348]a16|awq.*|gptq.*|nf4|bnb[48]|marlin|[48][- ]?bit"), "fp16"),
    (re.compile(r"int8.+|uint8|i8|w8a8"), "int8"),
    (re.compile(r"int4.+|uint4|i4|w4a4"), "int4"),
    (re.compile(r"(mx|nv)?fp4.*|e2m1"), "fp4"),
    (re.compile(r"mxfp8.*|fp8.+|e4m3.*|e5m2.*|f8.*|w8a8[-_]fp8"), "fp8"),
    (re.compile(r"f16|fp16.+"), "fp16"),
    (re.compile(r"bf16.+"), "bf16"),
    (re.compile(r"f32|fp32.+"), "fp32"),
)
NARROW_SHARE = 0.5
"""Weight of the rate of 4-bit integers against that of 16 bits, in logarithms: "int4" may mean either arithmetic."""


def arithmetic(precision: str) -> str:
    """The kind of arithmetic that the name of a precision means ("mxfp8": fp8; "q4_K_M": 16 bits); else the name itself."""
    lowered = precision.lower()
    return next((kind for pattern, kind in _SPELLINGS if pattern.fullmatch(lowered)), lowered)


def peak_flops(chip: Chip, precision: str) -> float | None:
    """Dense peak that work at ``precision`` finds on ``chip``, FLOP/s.

    Single precision counts TF32 where there is such a mode; a precision that is mixed, not known or not stated counts as
    16 bits (``vector`` weighs one that is not stated), and so do integer weights that are widened first ("q4_0", "awq"). With
    4-bit integers it lies between their rate and that of 16 bits (``NARROW_SHARE``).
    """
    kind = arithmetic(precision)
    narrow = _first(chip, _FALLBACKS.get(kind, _FALLBACKS["fp16"]))
    wide = _first(chip, _FALLBACKS["fp16"]) if kind == "int4" else None
    if narrow is None or wide is None:
        return narrow
    return float(narrow**NARROW_SHARE * wide ** (1 - NARROW_SHARE))


def _first(chip: Chip, precisions: Sequence[str]) -> float | None:
    return next((peak for peak in map(chip.peak_flops, precisions) if peak is not None), None)


def vector(chip: Chip, precision: str, single_share: float = 0.0) -> Array:
    """Features in the order of ``NAMES``, natural logarithms but for the year (in units of two); NaN where unknown.

    ``single_share``: weight of the peak in single precision against that at ``precision``, in logarithms.
    """
    peak = _log(peak_flops(chip, precision))
    if single_share:
        peak += single_share * (_log(peak_flops(chip, "fp32")) - peak)
    single = chip.peak_flops("fp32")
    values = (
        peak,
        _log(chip.bandwidth_bytes_per_s),
        _log(single),
        (chip.year - 2020) / 2 if chip.year else math.nan,
        _log(chip.tdp_watts),
        _log(chip.memory_bytes),
        _log(_link(chip)),
    )
    return np.array(values)


def _link(chip: Chip) -> float | None:
    if chip.form != "pcie" or chip.year is None:
        return chip.link_bytes_per_s
    return next(rate for since, rate in _PCIE_BYTES_PER_S if chip.year >= since)


def _log(value: float | None) -> float:
    return math.log(value) if value else math.nan


def usable(chip: Chip, precision: str) -> bool:
    """Whether enough is known: a peak and a bandwidth."""
    return peak_flops(chip, precision) is not None and chip.bandwidth_bytes_per_s is not None
