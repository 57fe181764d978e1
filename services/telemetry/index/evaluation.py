"""Leave one chip out: what the index and its baselines say about a chip they have not seen, against what was measured.

For each chip: (1) all rows that may be of this chip are taken out, at every precision and scale and under every name;
(2) the model is fitted to the rest, of a large table to the chips nearest by their facts (`selection`), its variances too; (3) the chip's cells are predicted, without probe runs and with
K of them in each group, chosen by what the training chips expect to learn most from, and drawn at random for comparison;
(4) the error is |predicted / measured - 1| of the throughput, which is the error of the ratio to any reference chip
measured on the same column. Cells that were probed are not scored; neither are columns no other chip has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from meridian.hardware import Catalogue, Chip
from services.telemetry.index import features
from services.telemetry.index.baselines import fact_ratio, oracle_scalar, probe_scalar, repeat_errors
from services.telemetry.index.cells import Cell
from services.telemetry.index.features import Array
from services.telemetry.index.matrix import UNSTATED, Matrix, UnknownName
from services.telemetry.index.model import IndexModel
from services.telemetry.index.orientation import as_throughput, tasks_in_time
from services.telemetry.index.precision import UNDECIDED, single_precision
from services.telemetry.index.prediction import Prediction, best_probes
from services.telemetry.index.selection import MOST_CELLS, MOST_COLUMNS, nearest_cells

BAND = 0.9
BAND_DEVIATIONS = 1.6448536269514722
"""Half-width of the band of probability ``BAND`` in standard deviations."""
RANDOM_DRAWS = 20


class Draws(Protocol):
    """Where randomness comes from: ``numpy.random.Generator``."""

    def permutation(self, x: int, /) -> Array:
        """The numbers below ``x`` in random order."""
        ...

    def integers(self, low: int, high: int, size: int, /) -> Array:
        """``size`` whole numbers from ``low`` to below ``high``."""
        ...


@dataclass(frozen=True, slots=True)
class Score:
    """One scored cell of one subject; ``weight`` is below 1 where a cell was scored in several draws."""

    subject: str
    cell: Cell
    error: float
    inside: bool | None = None
    weight: float = 1.0
    baseline: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All scores, and what the figures rest on."""

    scores: tuple[Score, ...]
    chips: tuple[str, ...]
    """Chips that were left out in turn."""
    reference: str
    """The chip with the most columns; ratios in print are relative to it."""
    unusable: tuple[UnknownName, ...]
    """Chips whose facts do not suffice."""
    unmatched: int
    """Cells of columns that no other chip has."""
    probe_counts: tuple[int, ...] = (0,)
    """Numbers of probe runs that were asked for."""
    unstated: int = 0
    """Cells whose precision is not stated."""
    single_precision: float = UNDECIDED
    """Probability that they ran in single precision, from all cells (each fit finds its own, without its chip)."""
    times: frozenset[str] = frozenset()
    """Tasks whose values fall as chips get faster; they were taken as times."""
    limited: int = 0
    """Chips whose fit had some of the cells only, since all were too many."""


class TooManyColumnsError(ValueError):
    """The message names the chip, and how many columns it has."""


def subject_of(probes: int, *, random: bool = False) -> str:
    """The name of the index with ``probes`` probe runs."""
    return f"index_probes_{probes}" + ("_random" if random else "")


def leave_one_chip_out(
    matrix: Matrix, catalogue: Catalogue, probe_counts: Sequence[int], draws: Draws, *, random_draws: int = RANDOM_DRAWS
) -> Evaluation:
    """The evaluation of ``matrix`` with each count of probe runs in ``probe_counts`` (0 is always among them).

    :raises TooManyColumnsError: a chip has more columns than can be predicted together.
    """
    chips, unusable = _usable_chips(matrix, catalogue)
    cells = {cell: value for cell, value in matrix.cells().items() if cell[0] in chips}
    times = tasks_in_time(cells, chips)
    matrix = as_throughput(matrix, times)
    cells = {cell: value for cell, value in matrix.cells().items() if cell[0] in chips}
    scores: list[Score] = []
    left_out = []
    unmatched = limited = 0
    for chip_id in sorted(chips):
        banned = catalogue.possible_ids(chip_id)
        training = {cell: value for cell, value in cells.items() if cell[0] not in banned}
        columns = {column for _, column in training}
        own = [cell for cell in cells if cell[0] == chip_id]
        wanted = [cell for cell in own if cell[1] in columns]
        unmatched += len(own) - len(wanted)
        if not wanted or len({other for other, _ in training}) < 1:
            continue
        if len(wanted) > MOST_COLUMNS:
            raise TooManyColumnsError(
                f"{chip_id} has {len(wanted)} columns (task, precision, n_accel, group) that others have too; the most is "
                f"{MOST_COLUMNS}: evaluate groups or tasks in files of their own"
            )
        left_out.append(chip_id)
        limited += len(training) > MOST_CELLS
        measured = np.log(np.array([cells[cell] for cell in wanted]))
        scores += _scores_of_chip(training, chips, wanted, measured, probe_counts, draws, random_draws)
    oracle = oracle_scalar(cells) if cells else {}
    scored = {score.cell for score in scores}
    scores += [_score("oracle_scalar", cell, oracle[cell], np.log(cells[cell])) for cell in cells if cell in scored]
    for cell, errors in repeat_errors(matrix.repeats()).items():
        scores += [Score("noise_floor", cell, error, None, 1 / len(errors), True) for error in errors]
    counts = tuple(sorted({0, *probe_counts}))
    return Evaluation(
        tuple(scores),
        tuple(left_out),
        _reference(cells),
        unusable,
        unmatched,
        counts,
        sum(1 for _, column in cells if column.precision == UNSTATED),
        single_precision(cells, chips),
        times,
        limited,
    )


def _usable_chips(matrix: Matrix, catalogue: Catalogue) -> tuple[dict[str, Chip], tuple[UnknownName, ...]]:
    chips, unusable = {}, []
    rows: dict[str, int] = {}
    precisions: dict[str, set[str]] = {}
    for run in matrix.runs:
        rows[run.chip_id] = rows.get(run.chip_id, 0) + 1
        precisions.setdefault(run.chip_id, set()).add(run.column.precision)
    for chip_id, count in rows.items():
        chip = catalogue.chip(chip_id)
        if all(features.usable(chip, precision) for precision in precisions[chip_id]):
            chips[chip_id] = chip
        else:
            unusable.append(UnknownName(chip_id, "the catalogue states no peak or no bandwidth of it", (), count))
    return chips, tuple(unusable)


def _scores_of_chip(
    training: Mapping[Cell, float],
    chips: Mapping[str, Chip],
    wanted: Sequence[Cell],
    measured: Array,
    probe_counts: Sequence[int],
    draws: Draws,
    random_draws: int,
) -> Iterator[Score]:
    prediction = IndexModel.fit(nearest_cells(training, wanted, chips), chips).predict(wanted)
    levels: dict[object, list[float]] = {}
    for (_, column), throughput in training.items():
        levels.setdefault(column, []).append(float(np.log(throughput)))
    others = np.array([np.mean(levels[column]) for _, column in wanted])
    yield from _scored(subject_of(0), wanted, prediction, measured, range(len(wanted)), 1.0)
    for name, fact in (("peak_flops_ratio", "peak"), ("bandwidth_ratio", "bandwidth")):
        for cell, value, truth in zip(wanted, fact_ratio(training, chips, wanted, fact), measured, strict=True):
            yield _score(name, cell, value, truth)
    groups = sorted({column.group for _, column in wanted})
    for group in groups:
        member = np.array([index for index, (_, column) in enumerate(wanted) if column.group == group])
        inner = prediction.part([int(index) for index in member])
        for count in probe_counts:
            if not 0 < count < len(member):
                continue
            choices = [(best_probes(inner, count), 1.0, "")]
            choices += [
                ([int(index) for index in draws.permutation(len(member))[:count]], 1 / random_draws, "_random")
                for _ in range(random_draws)
            ]
            for probes, weight, suffix in choices:
                after = inner.given(probes, measured[member][probes])
                rest = [index for index in range(len(member)) if index not in set(probes)]
                group_cells = [wanted[index] for index in member]
                truth = measured[member]
                yield from _scored(subject_of(count) + suffix, group_cells, after, truth, rest, weight)
                scalar = probe_scalar(others[member], truth, probes)
                subject = f"probe_scalar_{count}{suffix}"
                for index in rest:
                    yield _score(subject, group_cells[index], scalar[index], truth[index], weight)


def _scored(
    subject: str,
    cells: Sequence[Cell],
    prediction: Prediction,
    measured: Array,
    which: Sequence[int] | range,
    weight: float,
) -> Iterator[Score]:
    deviation = prediction.deviation
    for index in which:
        off = float(prediction.mean[index] - measured[index])
        inside = abs(off) <= BAND_DEVIATIONS * float(deviation[index])
        yield Score(subject, cells[index], abs(float(np.expm1(off))), inside, weight)


def _score(subject: str, cell: Cell, predicted: float, measured: float, weight: float = 1.0) -> Score:
    return Score(subject, cell, abs(float(np.expm1(predicted - measured))), None, weight, baseline=True)


def _reference(cells: Mapping[Cell, float]) -> str:
    counts: dict[str, int] = {}
    for chip_id, _ in cells:
        counts[chip_id] = counts.get(chip_id, 0) + 1
    return min(counts, key=lambda chip_id: (-counts[chip_id], chip_id)) if counts else ""
