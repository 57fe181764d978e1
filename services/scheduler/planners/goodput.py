"""Goodput of elastic training jobs from measurements: examples per second that count, at the best batch size.

Goodput = throughput x statistical efficiency (Qiao et al.: Pollux, OSDI 2021; used by Sia, Jayaram Subramanya et al., SOSP 2023).
Throughput comes from measured step times by placement and batch size per device, efficiency from the gradient noise that was
measured during training with several batch sizes. Everything is interpolated linearly; nothing is fitted. What was not
measured is not guessed: outside the measured range the goodput is 0. Data parallel jobs only: pipelines, whose measured
synchronisation is not part of the step, are refused.

Terms: a replica is one device's copy of the model; ``batch`` the examples of one optimiser step over all replicas;
``local`` the examples that one replica computes at once; it computes ``accumulation`` + 1 of them per step.
Progress is counted in steps of the initial batch size, so that a job's work does not depend on its batch size.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from services.scheduler.core.errors import PolicyError
from services.scheduler.planners.checks import FloatArray, number, numbers, whole_numbers

_ROUNDING = 1e-8
_BATCHES_TRIED = 50


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Measured times of one application on one accelerator type.

    ``curves[nodes, replicas]`` is (local batch sizes ascending, seconds of a step, seconds of it spent synchronising), each (M).
    """

    curves: Mapping[tuple[int, int], tuple[FloatArray, FloatArray, FloatArray]]

    def curve(self, nodes: int, replicas: int) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        """The curve of a shape; between measured shapes interpolated, None outside.

        1. Measured: that. 2. Between the nearest node counts with as many replicas per node. 3. Between the nearest replica
        counts on as many nodes. Interpolated curves cover the batch sizes that both neighbours cover.
        """
        known = self.curves.get((nodes, replicas))
        if known is not None:
            return known
        like = sorted(n for n, r in self.curves if r * nodes == replicas * n)
        pair = _around(like, nodes)
        if pair is not None:
            low, high = ((n, n * replicas // nodes) for n in pair)
            return self._between(low, high, (nodes - pair[0]) / (pair[1] - pair[0]))
        pair = _around(sorted(r for n, r in self.curves if n == nodes), replicas)
        if pair is None:
            return None
        return self._between((nodes, pair[0]), (nodes, pair[1]), (replicas - pair[0]) / (pair[1] - pair[0]))

    def _between(
        self, low: tuple[int, int], high: tuple[int, int], share: float
    ) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        first, second = self.curves[low], self.curves[high]
        local = np.union1d(first[0], second[0])
        local = local[(local >= max(first[0][0], second[0][0])) & (local <= min(first[0][-1], second[0][-1]))]
        if not local.size:
            return None
        step, synchronise = (
            (1.0 - share) * np.interp(local, first[0], first[part]) + share * np.interp(local, second[0], second[part])
            for part in (1, 2)
        )
        return local, step, synchronise


@dataclass(frozen=True, slots=True)
class GradientNoise:
    """Gradient statistics of one application: ``batches`` (B, ascending); the rest (B, E) over epochs of training.

    ``square`` is the squared norm of the true gradient, ``variance`` that of its estimate at the initial batch size.
    ``progress`` is the progress at the end of each epoch; the epochs of all batch sizes end at (nearly) the same progress.
    ``metric`` is the validation metric at the end of each epoch.
    """

    batches: FloatArray
    progress: FloatArray
    metric: FloatArray
    square: FloatArray
    variance: FloatArray

    @property
    def initial_batch(self) -> float:
        """The least batch size measured: the one that the job would be trained with on one device."""
        return float(self.batches[0])

    @property
    def epochs(self) -> int:
        """Epochs that all batch sizes have."""
        return int(self.progress.shape[1])

    def epoch_ends(self) -> FloatArray:
        """Progress (E) at the end of each epoch: the least over batch sizes."""
        return np.asarray(self.progress.min(axis=0), dtype=np.float64)

    def gain(self, batch: ArrayLike, epoch: int) -> FloatArray:
        """Progress per step relative to the initial batch size: (var + sqr) / (var / scale + sqr), scale = batch / initial.

        NaN-free; between measured batch sizes the statistics are interpolated, outside they stay at the last.
        """
        if not 0 <= epoch < self.epochs:
            raise PolicyError(f"epoch: {epoch} is outside [0, {self.epochs - 1}]")
        size = numbers("batch", batch, np.shape(batch), low=0.0)
        square = np.interp(size, self.batches, self.square[:, epoch])
        variance = np.interp(size, self.batches, self.variance[:, epoch])
        scale = np.maximum(size / self.initial_batch, np.finfo(float).tiny)
        below = variance / scale + square
        return np.divide(variance + square, below, out=np.ones_like(below), where=below > 0)

    def efficiency(self, batch: ArrayLike, epoch: int) -> FloatArray:
        """Statistical efficiency in (0, 1] for batch >= initial: gain / scale, 1 at the initial batch size (Pollux, equation 7)."""
        return self.gain(batch, epoch) * self.initial_batch / np.asarray(batch, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class BestBatch:
    """The best way to run on a shape: ``goodput`` examples per second that count (0: it cannot run), and how."""

    goodput: float
    local: int = 0
    accumulation: int = 0
    batch: int = 0
    step_s: float = 0.0


@dataclass(slots=True)
class Application:
    """An elastic training application: step times by accelerator type, gradient noise, restart cost.

    Goodputs are cached by (type, nodes, replicas, epoch, greatest batch).
    """

    name: str
    times: Mapping[str, StepTimes]
    noise: GradientNoise
    restart_s: float
    max_local: Mapping[str, int] = field(default_factory=dict)
    _cache: dict[tuple[str, int, int, int, float], BestBatch] = field(default_factory=dict)

    def best(self, kind: str, nodes: int, replicas: int, epoch: int, max_batch: float | None = None) -> BestBatch:
        """The batch size of the greatest goodput on ``replicas`` devices of type ``kind`` over ``nodes`` nodes.

        1. 50 batch sizes in geometric progression from max(initial, least local x replicas) to the greatest measured
           (or ``max_batch``, what the user allows).
        2. Each split over replicas, and into as few accumulation steps as memory (the greatest local batch measured)
           needs; on one replica above the initial batch at least one, because noise is measured between parts of a step.
        3. Step time = measured step + accumulation x (step - synchronise); goodput = batch x efficiency / step time.
        """
        most = float(self.noise.batches[-1])
        most = most if max_batch is None else min(most, number("max_batch", max_batch, low=0.0))
        key = (kind, nodes, replicas, epoch, most)
        if key not in self._cache:
            self._cache[key] = self._search(*key)
        return self._cache[key]

    def goodput(
        self,
        kinds: list[str],
        nodes: ArrayLike,
        replicas: ArrayLike,
        epoch: int,
        max_batch: float | None = None,
    ) -> FloatArray:
        """Goodput (C) of C configurations, examples per second that count; 0 where it cannot run."""
        shapes = whole_numbers("nodes", nodes, (len(kinds),), low=1, high=2**20)
        counts = whole_numbers("replicas", replicas, (len(kinds),), low=1, high=2**20)
        best = [
            self.best(kind, n, r, epoch, max_batch).goodput
            for kind, n, r in zip(kinds, shapes.tolist(), counts.tolist(), strict=True)
        ]
        return np.array(best, dtype=np.float64)

    def progress_rate(self, kind: str, nodes: int, replicas: int, epoch: int) -> float:
        """Steps of the initial batch size per second, at the best batch size."""
        return self.best(kind, nodes, replicas, epoch).goodput / self.noise.initial_batch

    def fixed_batch(self, kind: str, nodes: int, replicas: int, epoch: int, batch: int) -> BestBatch:
        """As `best`, with the batch size that the user asked for (rigid jobs, Gavel)."""
        asked = np.array([number("batch", batch, low=1.0)])
        found = self._evaluate(kind, nodes, replicas, epoch, asked, float(self.noise.batches[-1]))
        return found if found is not None else BestBatch(0.0)

    def _search(self, kind: str, nodes: int, replicas: int, epoch: int, high: float) -> BestBatch:
        curve = self._curve(kind, nodes, replicas)
        if curve is None:
            return BestBatch(0.0)
        low = max(self.noise.initial_batch, curve[0][0] * replicas)
        if low > high:
            return BestBatch(0.0)
        found = self._evaluate(kind, nodes, replicas, epoch, np.geomspace(low, high, _BATCHES_TRIED), high)
        return found if found is not None else BestBatch(0.0)

    def _curve(self, kind: str, nodes: int, replicas: int) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        return self.times[kind].curve(nodes, replicas) if kind in self.times else None

    def _evaluate(
        self, kind: str, nodes: int, replicas: int, epoch: int, batch: FloatArray, high: float
    ) -> BestBatch | None:
        curve = self._curve(kind, nodes, replicas)
        if curve is None:
            return None
        least, most = curve[0][0], min(curve[0][-1], self.max_local.get(kind, np.inf))
        share = batch / replicas
        parts = np.maximum(np.ceil(share / most - _ROUNDING), 1.0)
        if replicas == 1:
            parts = np.where(share > self.noise.initial_batch + _ROUNDING, np.maximum(parts, 2.0), parts)
        local = np.ceil(share / parts - _ROUNDING)
        # Rounding up must not pass the greatest batch size.
        local = np.minimum(local, np.floor(high / (replicas * parts)))
        whole = replicas * parts * local
        step = np.interp(local, curve[0], curve[1])
        step = step + (parts - 1.0) * (step - np.interp(local, curve[0], curve[2]))
        runs = (local >= least) & (local <= most) & (whole >= self.noise.initial_batch - _ROUNDING)
        gain = self.noise.gain(np.maximum(whole, self.noise.initial_batch), epoch)
        goodput = np.where(runs, gain * self.noise.initial_batch / step, 0.0)
        chosen = int(goodput.argmax())
        if goodput[chosen] <= 0:
            return None
        return BestBatch(
            float(goodput[chosen]), int(local[chosen]), int(parts[chosen]) - 1, int(whole[chosen]), float(step[chosen])
        )


def read_step_times(placements: Iterable[str], scalability: Iterable[str], *, source: str = "placements") -> StepTimes:
    """`StepTimes` from the lines of two CSV tables (columns in any order; header first).

    ``placements``: placement (digits: replicas on each node, "44"), local_bsz, step_time, sync_time. ``scalability``:
    num_nodes, num_replicas instead of placement. Of the placements of one shape the most even one counts (the others are for
    fragmented clusters); scalability counts where no placement of the shape was measured. Repeated rows are averaged.
    Raises `PolicyError` naming table, line and column.
    """
    placed: dict[tuple[int, int], dict[str, list[tuple[float, float, float]]]] = {}
    for line, row in _rows(placements, source):
        word = row.get("placement", "")
        if not word.isdecimal() or "0" in word:
            raise PolicyError(f"{source} line {line}, placement: {word!r} is not a digit per node")
        shape = (len(word), sum(map(int, word)))
        placed.setdefault(shape, {}).setdefault(word, []).append(_times(row, source, line))
    curves: dict[tuple[int, int], tuple[FloatArray, FloatArray, FloatArray]] = {}
    for shape, words in placed.items():
        even = min(words, key=lambda word: (int(max(word)) - int(min(word)), word))
        curves[shape] = _averaged(words[even])
    measured: dict[tuple[int, int], list[tuple[float, float, float]]] = {}
    table = "scalability" if source == "placements" else f"{source} (scalability)"
    for line, row in _rows(scalability, table):
        shape = (int(_value(row, "num_nodes", table, line)), int(_value(row, "num_replicas", table, line)))
        if shape not in curves:
            measured.setdefault(shape, []).append(_times(row, table, line))
    return StepTimes(curves | {shape: _averaged(rows) for shape, rows in measured.items()})


def read_gradient_noise(tables: Mapping[int, Iterable[str]], *, max_epochs: int | None = None) -> GradientNoise:
    """`GradientNoise` from the lines of one CSV table per batch size: progress, metric, grad_sqr, grad_var; a row per epoch.

    Epochs beyond the shortest table (or ``max_epochs``) are left out. Raises `PolicyError` naming table, line and column.
    """
    if not tables:
        raise PolicyError("tables: no batch size")
    columns = ("progress", "metric", "grad_sqr", "grad_var")
    read = {
        size: [
            [_value(row, name, f"validation-{size}", line) for name in columns]
            for line, row in _rows(lines, f"validation-{size}")
        ]
        for size, lines in sorted(tables.items())
    }
    epochs = min(len(rows) for rows in read.values())
    if not epochs:
        raise PolicyError(f"validation-{min(read, key=lambda size: len(read[size]))}: no rows")
    epochs = min(epochs, max_epochs or epochs)
    values: NDArray[np.float64] = np.array([rows[:epochs] for rows in read.values()], dtype=np.float64)
    batches = np.array(list(read), dtype=np.float64)
    return GradientNoise(batches, values[:, :, 0], values[:, :, 1], values[:, :, 2], values[:, :, 3])


def _around(ordered: list[int], value: int) -> tuple[int, int] | None:
    below = [known for known in ordered if known < value]
    above = [known for known in ordered if known > value]
    return (below[-1], above[0]) if below and above else None


def _rows(lines: Iterable[str], source: str) -> Iterable[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(lines)
    for row in reader:
        if None in row or None in row.values():
            raise PolicyError(f"{source} line {reader.line_num}: not as many values as columns")
        yield reader.line_num, row


def _value(row: Mapping[str, str], name: str, source: str, line: int) -> float:
    try:
        return number(f"{source} line {line}, {name}", float(row[name]))
    except KeyError as error:
        raise PolicyError(f"{source} line {line}: no column {name}") from error
    except ValueError as error:
        raise PolicyError(f"{source} line {line}, {name}: {row[name]!r} is not a number") from error


def _times(row: Mapping[str, str], source: str, line: int) -> tuple[float, float, float]:
    local, step, synchronise = (_value(row, name, source, line) for name in ("local_bsz", "step_time", "sync_time"))
    if local <= 0 or step <= 0 or not 0 <= synchronise <= step:
        raise PolicyError(
            f"{source} line {line}: local_bsz {local:g}, step_time {step:g}, sync_time {synchronise:g}: not times of a step"
        )
    return local, step, synchronise


def _averaged(rows: list[tuple[float, float, float]]) -> tuple[FloatArray, FloatArray, FloatArray]:
    values = np.array(rows, dtype=np.float64)
    local, group, count = np.unique(values[:, 0], return_inverse=True, return_counts=True)
    step, synchronise = (np.bincount(group, values[:, part]) / count for part in (1, 2))
    return local, step, synchronise
