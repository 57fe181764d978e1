"""Measured step times and convergence of Sia and Pollux (Subramanya et al., SOSP 2023; Qiao et al., OSDI 2021), as measured.

A folder per application holds, per cluster type (``aws``, ``dgx-ext``, ...): ``placements-TYPE.csv`` (step time and the part of
it spent in synchronisation, by placement and batch size of one accelerator), ``scalability-TYPE.csv`` (the same by number of
nodes and replicas), and ``validation-BATCH.csv`` (progress in statistical iterations, iterations done, validation metric and
gradient statistics of each epoch, by total batch size).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulation.traces.errors import TraceError
from simulation.traces.reading import Row, read_text, table

# Accelerator models of the cluster types, and accelerators per node (published configuration of the measurements).
# "dgx" repeats "dgx-ext" with fewer batch sizes.
CHIPS = {"aws": "t4", "azure": "v100", "dgx-ext": "a100", "dgx": "a100-limited", "quad": "rtx6000", "rtx": "rtx2080ti"}
NODE_SIZES = {"t4": 4, "v100": 8, "a100": 8, "a100-limited": 8, "rtx6000": 4, "rtx2080ti": 8}

Placement = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Measurements of one placement, by ascending local batch size: seconds of a step and of its synchronisation."""

    local_batch: NDArray[np.float64]
    step_s: NDArray[np.float64]
    sync_s: NDArray[np.float64]

    def at(self, local_batch: float) -> tuple[float, float] | None:
        """Step and synchronisation time, linear between measured batch sizes; None outside of them."""
        if not self.local_batch[0] <= local_batch <= self.local_batch[-1]:
            return None
        return (
            float(np.interp(local_batch, self.local_batch, self.step_s)),
            float(np.interp(local_batch, self.local_batch, self.sync_s)),
        )


@dataclass(frozen=True, slots=True)
class Convergence:
    """One training run at one total batch size; arrays over its epochs."""

    progress: NDArray[np.float64]
    iteration: NDArray[np.float64]
    metric: NDArray[np.float64]
    grad_sqr: NDArray[np.float64]
    grad_var: NDArray[np.float64]

    @property
    def steps(self) -> float:
        """Iterations until the end of training."""
        return float(self.iteration[-1])


class MeasuredTables:
    """All measurements of a folder: ``placements[application, chip][placement]`` (accelerators by node, ascending),
    ``scalability[application, chip][nodes, replicas]`` and ``convergence[application][batch size]``."""

    def __init__(self) -> None:
        self.placements: dict[tuple[str, str], dict[Placement, StepTimes]] = {}
        self.scalability: dict[tuple[str, str], dict[tuple[int, int], StepTimes]] = {}
        self.convergence: dict[str, dict[int, Convergence]] = {}
        self.sha256 = ""

    def step_times(self, application: str, chip: str, replicas: int) -> StepTimes | None:
        """Measurements of so many replicas on as few nodes as possible: from the placements, else from the scalability
        table; None where nobody measured."""
        size = NODE_SIZES[chip]
        full, rest = divmod(replicas, size)
        placement = tuple(sorted((size,) * full + ((rest,) if rest else ())))
        found = self.placements.get((application, chip), {}).get(placement)
        if found is not None:
            return found
        return self.scalability.get((application, chip), {}).get((len(placement), replicas))

    def rate(self, application: str, chip: str, replicas: int, batch_size: int) -> float:
        """Steps/s of the whole job at a fixed total batch size; 0.0 where it was not measured or does not fit.

        A batch that exceeds the greatest local one measured is accumulated in several passes, of which only the last
        synchronises (as in Pollux, section 3.1).
        """
        times = self.step_times(application, chip, replicas)
        if times is None or batch_size < replicas:
            return 0.0
        local = math.ceil(batch_size / replicas)
        passes = math.ceil(local / float(times.local_batch[-1]))
        found = times.at(math.ceil(local / passes))
        if found is None:
            return 0.0
        step_s, sync_s = found
        return 1.0 / (step_s + (passes - 1) * max(step_s - sync_s, 0.0))

    def rates(self, application: str, chip: str, batch_size: int, greatest: int = 64) -> dict[int, float]:
        """Steps/s by number of replicas, from the least to the greatest measured one (at most ``greatest``); the numbers
        between that nobody measured are interpolated linearly."""
        known = {count: self.rate(application, chip, count, batch_size) for count in range(1, greatest + 1)}
        counts = [count for count, rate in known.items() if rate > 0]
        if not counts:
            return {}
        between = np.arange(counts[0], counts[-1] + 1)
        filled = np.interp(between, counts, [known[count] for count in counts])
        return {int(count): float(rate) for count, rate in zip(between, filled, strict=True)}


def read_tables(folder: Path | str) -> MeasuredTables:
    """Every application folder below ``folder``. Raises `TraceError`: none, or a malformed table."""
    tables = MeasuredTables()
    digest = hashlib.sha256()
    folder = Path(folder)
    for place in sorted(entry for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []:
        for file in sorted(place.glob("*.csv")):
            kind, _, suffix = file.stem.partition("-")
            text, sha256 = read_text(file)
            digest.update(sha256.encode())
            if kind == "validation":
                if not suffix.isdecimal():
                    raise TraceError("the name does not end with a batch size", path=file)
                tables.convergence.setdefault(place.name, {})[int(suffix)] = _convergence(file, text)
            elif kind == "placements" and suffix in CHIPS:
                tables.placements[place.name, CHIPS[suffix]] = _placements(file, text)
            elif kind == "scalability" and suffix in CHIPS:
                tables.scalability[place.name, CHIPS[suffix]] = _scalability(file, text)
    if not tables.convergence:
        raise TraceError("holds no folder with tables of an application", path=folder)
    tables.sha256 = digest.hexdigest()
    return tables


def _times(rows: list[Row]) -> StepTimes:
    measured = sorted((row.number("local_bsz"), row.number("step_time"), row.number("sync_time")) for row in rows)
    array = np.array(measured, dtype=np.float64)
    return StepTimes(array[:, 0], array[:, 1], array[:, 2])


def _placements(path: Path, text: str) -> dict[Placement, StepTimes]:
    groups: dict[Placement, list[Row]] = {}
    for row in table(path, text, ("placement", "local_bsz", "step_time", "sync_time")):
        digits = row.text("placement")
        if not digits.isdecimal() or "0" in digits:
            raise row.error("placement", f"is not one digit from 1 to 9 per node: {digits!r}")
        groups.setdefault(tuple(sorted(int(digit) for digit in digits)), []).append(row)
    return {placement: _times(rows) for placement, rows in groups.items()}


def _scalability(path: Path, text: str) -> dict[tuple[int, int], StepTimes]:
    groups: dict[tuple[int, int], list[Row]] = {}
    for row in table(path, text, ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")):
        groups.setdefault((row.whole("num_nodes", least=1), row.whole("num_replicas", least=1)), []).append(row)
    return {place: _times(rows) for place, rows in groups.items()}


def _convergence(path: Path, text: str) -> Convergence:
    columns = ("progress", "iteration", "metric", "grad_sqr", "grad_var")
    values = np.array([[row.number(name, least=-math.inf) for name in columns] for row in table(path, text, columns)])
    return Convergence(*(np.ascontiguousarray(values[:, index]) for index in range(len(columns))))
