"""What a simpler index would say: one ratio of facts, one number per chip, the mean of the probe runs; and the floor."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from meridian.hardware import Chip
from services.telemetry.index.cells import Cell
from services.telemetry.index.features import Array, peak_flops


def fact_ratio(cells: Mapping[Cell, float], chips: Mapping[str, Chip], wanted: Sequence[Cell], fact: str) -> Array:
    """Log-throughputs of ``wanted`` as the ratio of ``fact`` ("peak" or "bandwidth") to the column's other chips says.

    The level of a column is the mean over the chips of ``cells`` measured there, which favours the baseline over a single
    reference chip.
    """

    def log_fact(cell: Cell) -> float:
        chip_id, column = cell
        chip = chips[chip_id]
        value = peak_flops(chip, column.precision) if fact == "peak" else chip.bandwidth_bytes_per_s
        return float(np.log(value)) if value else float("nan")

    levels: dict[object, list[float]] = {}
    for cell, throughput in cells.items():
        levels.setdefault(cell[1], []).append(float(np.log(throughput)) - log_fact(cell))
    return np.array([statistics.fmean(levels[cell[1]]) + log_fact(cell) for cell in wanted])


def oracle_scalar(cells: Mapping[Cell, float]) -> dict[Cell, float]:
    """Log-throughputs as the best single number per chip would say, fitted to all ``cells`` themselves, by group.

    Least squares in logarithms: level of the column plus number of the chip, alternating until nothing moves.
    """
    keys = list(cells)
    logs = np.log(np.array([cells[key] for key in keys]))
    columns = np.unique([str(key[1]) for key in keys], return_inverse=True)[1]
    chips = np.unique([f"{key[1].group}\0{key[0]}" for key in keys], return_inverse=True)[1]
    level, number = np.zeros(columns.max() + 1), np.zeros(chips.max() + 1)
    for _ in range(1000):
        level = np.bincount(columns, logs - number[chips]) / np.bincount(columns)
        before, number = number, np.bincount(chips, logs - level[columns]) / np.bincount(chips)
        if np.max(np.abs(number - before)) < 1e-10:
            break
    return dict(zip(keys, (level[columns] + number[chips]).tolist(), strict=True))


def probe_scalar(others: Array, measured: Array, probes: Sequence[int]) -> Array:
    """Log-throughputs if the chip were faster than the columns' other chips by what the probes show on average.

    ``others``: (n,) log level of each cell's column, ``measured``: (n,) of which only ``probes`` are looked at.
    """
    chosen = np.asarray(probes)
    answer: Array = others + (measured[chosen] - others[chosen]).mean()
    return answer


def repeat_errors(repeats: Mapping[Cell, Sequence[float]]) -> dict[Cell, list[float]]:
    """Per cell measured more than once: |a / b - 1| of each run against the median of the cell's others."""
    found = {}
    for cell, values in repeats.items():
        if len(values) > 1:
            found[cell] = [
                abs(value / statistics.median([*values[:position], *values[position + 1 :]]) - 1)
                for position, value in enumerate(values)
            ]
    return found
