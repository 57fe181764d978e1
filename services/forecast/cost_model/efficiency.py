"""The few parameters that formulas cannot tell: shares of stated rates that software reaches, and fixed costs.

They are the same for all chips, models and layouts. ``BOUNDS`` are what physics and published microbenchmarks allow;
``PRIOR`` is where a fit starts and what it is pulled to; ``fitted()`` are the values that `bench/cost_model.py --fit`
found on published runs (data and errors: docs/cost-model.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path

_FILE = Path(__file__).parent / "fitted.json"


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares are 0-1, times in seconds."""

    # Of the rate that the chip's best large matrix product reaches.
    matmul: float = 0.88
    # Inner dimension at which a product reaches half of its rate.
    half_depth: float = 120.0
    # Exponent of the share of units that work in the last wave of tiles.
    wave: float = 0.5
    # Of the bandwidth of the chip's memory, in kernels that only move data.
    memory: float = 0.75
    # Data moved by norms, activations, residuals and dropout, relative to the least that unfused kernels move.
    elementwise: float = 1.0
    # Fused attention, relative to published benchmarks of its kernels (``attention``).
    attention: float = 0.9
    # Gap between two kernels on the chip.
    gap_s: float = 2e-6
    # Time of the host to start one kernel; rules where kernels are shorter. Eager PyTorch: a forward pass of BERT-base on
    # A100 takes 8.0 ms however small the batch (AITemplate's benchmark), 12 layers of about 17 kernels.
    dispatch_s: float = 38e-6
    # Of the stated rates of links within and between nodes.
    # Rings within a node: 230-240 of 300 GB/s on A100 (NCCL tests; FlagPerf 467.9 GB/s both ways).
    link: float = 0.78
    fabric: float = 0.75
    # Start of a collective, and more per doubling of its members.
    collective_s: float = 12e-6
    # Share of a transfer that computation can hide: tensor-parallel, gradients, shards of parameters.
    overlap_tensor: float = 0.4
    overlap_gradients: float = 0.8
    overlap_shards: float = 0.8
    # Host work and loading per step.
    step_s: float = 5e-3
    # Slower by this share per doubling of nodes: all wait for the slowest.
    straggling: float = 0.005


BOUNDS: Mapping[str, tuple[float, float]] = {
    "matmul": (0.7, 1.0),
    "half_depth": (20.0, 600.0),
    "wave": (0.05, 1.0),
    "memory": (0.55, 0.95),
    "elementwise": (0.4, 3.0),
    "attention": (0.5, 1.3),
    "gap_s": (0.5e-6, 1e-5),
    "dispatch_s": (2e-6, 5e-5),
    "link": (0.45, 0.88),
    "fabric": (0.4, 0.95),
    "collective_s": (3e-6, 6e-5),
    "overlap_tensor": (0.02, 0.7),
    "overlap_gradients": (0.05, 0.95),
    "overlap_shards": (0.3, 0.98),
    "step_s": (5e-4, 5e-2),
    "straggling": (2e-4, 0.03),
}
PRIOR = Efficiency()
NAMES = tuple(field.name for field in fields(Efficiency))


def from_mapping(values: Mapping[str, float]) -> Efficiency:
    """Parameters from a mapping; ValueError names one that is missing or out of its bounds."""
    for name in NAMES:
        low, high = BOUNDS[name]
        if name not in values or not low <= values[name] <= high:
            raise ValueError(f"{name}: {values.get(name)!r} is not within {low:g} and {high:g}")
    return Efficiency(**{name: float(values[name]) for name in NAMES})


@cache
def fitted() -> Efficiency:
    """The parameters that are served."""
    if not _FILE.exists():
        return PRIOR
    return from_mapping(json.loads(_FILE.read_text(encoding="utf-8"))["parameters"])


def to_mapping(efficiency: Efficiency) -> dict[str, float]:
    """Parameters by name."""
    return asdict(efficiency)
