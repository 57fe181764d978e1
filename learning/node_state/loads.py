"""Load series: the share of a cluster that is in use, from recorded clusters where they are at hand, else generated.

A recorded value stands for ten minutes; the generator plays it ``STEPS_PER_VALUE`` times faster (one value per few steps of a
node's life), since within a window of seconds a recorded series alone would stand still. Splits are by series.
"""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
STEPS_PER_VALUE = 4
SERIES_FILE = "series_helios_earth_vc_10min.csv.gz"


@dataclass(frozen=True, slots=True)
class LoadSeries:
    """Share in use per interval, 0-1."""

    name: str
    split: str
    shares: Floats


def recorded(path: Path) -> list[LoadSeries]:
    """Every series of the file: running over all accelerators. In order of name 6 train, 2 validate, 2 test of ten."""
    values: dict[str, list[float]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            total = float(row["total_gpu_num"])
            if total > 0:
                values.setdefault(row["series"], []).append(float(row["running_gpu_num"]) / total)
    splits = ("train",) * 6 + ("validation",) * 2 + ("test",) * 2
    return [
        LoadSeries(name, splits[number % 10], np.clip(np.asarray(values[name]), 0.0, 1.0))
        for number, name in enumerate(sorted(values))
    ]


def made_up(count: int, seed: int, length: int = 2000) -> list[LoadSeries]:
    """A daily wave with autoregressive noise."""
    chance = np.random.default_rng(seed)
    found = []
    for number in range(count):
        noise = np.zeros(length)
        for step in range(1, length):
            noise[step] = 0.97 * noise[step - 1] + chance.normal(0, 0.03)
        wave = 0.15 * np.sin(2 * np.pi * np.arange(length) / 144 + chance.uniform(0, 6))
        split = ("train",) * 6 + ("validation",) * 2 + ("test",) * 2
        found.append(LoadSeries(f"made-{number}", split[number % 10], np.clip(0.6 + wave + noise, 0.05, 1.0)))
    return found


def window(series: LoadSeries, steps: int, chance: np.random.Generator) -> Floats:
    """``steps`` consecutive shares, one per step, from a random place of the series."""
    count = steps // STEPS_PER_VALUE + 2
    start = int(chance.integers(0, len(series.shares) - count))
    places = np.arange(steps) / STEPS_PER_VALUE
    return np.interp(places, np.arange(count), series.shares[start : start + count])
