"""Throughputs of real chips in a made-up world where each task has its sensitivities."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from meridian.hardware import Chip, standard
from services.telemetry.index.cells import Cell
from services.telemetry.index.matrix import Column, Matrix, Run

CHIPS = (
    "v100-sxm2-16gb", "quadro-rtx-8000", "a10", "a30", "a40", "a100-pcie-40gb", "a100-sxm4-80gb", "rtx-3090", "rtx-4090",
    "rtx-a6000", "rtx-6000-ada", "l4", "l40s", "h100-pcie", "h100-sxm5-80gb",
)  # fmt: skip
# Task -> share of the peak in its speed; the rest is bandwidth.
TASKS: Mapping[str, float] = {"compute": 0.9, "balanced": 0.5, "memory": 0.1, "mostly_memory": 0.3}


def chips() -> dict[str, Chip]:
    return {chip_id: standard().chip(chip_id) for chip_id in CHIPS}


def throughput(chip_id: str, share: float) -> float:
    chip = standard().chip(chip_id)
    peak, bandwidth = chip.peak_flops("fp16"), chip.bandwidth_bytes_per_s
    assert peak
    assert bandwidth
    return float((peak / 1e12) ** share * (bandwidth / 1e9) ** (1 - share))


def cells(noise: float = 0.0, seed: int = 0, chip_ids: tuple[str, ...] = CHIPS) -> dict[Cell, float]:
    """(chip, column) -> throughput, with log-normal noise."""
    draws = np.random.default_rng(seed)
    return {
        (chip_id, Column("", task, "fp16", 1)): throughput(chip_id, share) * math.exp(noise * draws.standard_normal())
        for chip_id in chip_ids
        for task, share in TASKS.items()
    }


def matrix(noise: float = 0.0, seed: int = 0, chip_ids: tuple[str, ...] = CHIPS) -> Matrix:
    return Matrix(
        tuple(Run(chip_id, column, value) for (chip_id, column), value in cells(noise, seed, chip_ids).items())
    )
