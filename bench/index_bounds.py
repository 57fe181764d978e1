"""What a few numbers per chip could say at most: `python bench/index_bounds.py [--data DIR] [--sets NAME ...] [--json OUT]`.

Whoever runs K probes on a new chip learns K numbers of it. Here a chip that is left out has K numbers that know all of the truth that is
scored (least absolute deviations over its cells in logarithms), and only what each number means for each column is learned, from the
other chips: the first is how much faster the chip is, the others weigh the directions in which those chips differ most (principal
components beside levels of columns and speeds of chips, by alternating least squares over the cells that there are). Of each group by itself, as
its cells are compared; chips with at most three columns are left aside. It is no bound for a method that also knows facts of the
chip, and a generous one for three probe runs alone. Sets are those of `bench/index.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.index import SETS
from bench.public_data import add_data_option
from bench.result import DataSource, Row, Setting, command_line, print_table, write
from meridian.hardware import Catalogue, standard
from services.telemetry.index.cells import Cell
from services.telemetry.index.matrix import assemble

Array = npt.NDArray[np.float64]
NUMBERS = (1, 2, 3)
MOST_PROBES = 3
# Of the loadings, so that a chip with few cells does not rule them.
_RIDGE = 1e-3
_ROUNDS, _STILL = 500, 1e-7


def loadings(logs: Array, numbers: int) -> tuple[Array, Array]:
    """Of ``logs`` (chips, columns), NaN where nothing was measured: the level of each column and what each of ``numbers`` numbers
    of a chip means for it, (numbers, columns); the first means the same for all."""
    known = np.isfinite(logs)
    filled = np.where(known, logs, 0.0)
    rest = min(numbers, len(logs)) - 1
    ridge = _RIDGE * np.diag([0.0] + [1.0] * rest)
    level = np.array([values[has].mean() for values, has in zip(filled.T, known.T, strict=True)])
    directions = np.random.default_rng(0).normal(size=(rest, logs.shape[1]))
    for _ in range(_ROUNDS):
        parts = np.vstack([np.ones(logs.shape[1]), directions])
        of_chips = np.array(
            [_solved(parts[:, has], (row - level)[has], ridge) for row, has in zip(filled, known, strict=True)]
        )
        # Of each column its level and directions, the speeds taken off.
        sides = np.vstack([np.ones(len(logs)), of_chips[:, 1:].T])
        found = np.array(
            [
                _solved(sides[:, has], (column - of_chips[:, 0])[has], ridge)
                for column, has in zip(filled.T, known.T, strict=True)
            ]
        )
        before, level, directions = level, found[:, 0], found[:, 1:].T
        if np.abs(level - before).max() < _STILL:
            break
    return level, np.vstack([np.ones(logs.shape[1]), directions])


def _solved(parts: Array, values: Array, ridge: Array) -> Array:
    return np.asarray(np.linalg.solve(parts @ parts.T + ridge, parts @ values))


def least_deviations(parts: Array, values: Array) -> Array:
    """The weights (k,) of ``parts`` (k, n) whose sum is nearest to ``values`` (n,) by absolute deviations."""
    count, size = parts.shape[1], len(parts)
    costs = np.concatenate([np.zeros(2 * size), np.ones(2 * count)])
    equal = np.hstack([parts.T, -parts.T, np.eye(count), -np.eye(count)])
    found = linprog(costs, A_eq=equal, b_eq=values, bounds=(0, None), method="highs").x
    return np.asarray(found[:size] - found[size : 2 * size])


def errors_of(cells: Mapping[Cell, float], catalogue: Catalogue, numbers: int) -> dict[str, list[float]]:
    """|predicted / measured - 1| by chip, each left out in turn with all that may be of it."""
    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell[1].group].append(cell)
    found: dict[str, list[float]] = defaultdict(list)
    for members in groups.values():
        chips = sorted({chip for chip, _ in members})
        columns = list(dict.fromkeys(column for _, column in members))
        place = {column: number for number, column in enumerate(columns)}
        logs = np.full((len(chips), len(columns)), np.nan)
        for chip, column in members:
            logs[chips.index(chip), place[column]] = np.log(cells[chip, column])
        for number, chip in enumerate(chips):
            others = logs[[other not in catalogue.possible_ids(chip) for other in chips]]
            told = np.isfinite(logs[number]) & np.isfinite(others).any(axis=0)
            others = others[np.isfinite(others[:, told]).any(axis=1)][:, told]
            if told.sum() <= MOST_PROBES or not len(others):
                continue
            level, parts = loadings(others, numbers)
            truth = logs[number, told] - level
            off = least_deviations(parts, truth) @ parts - truth
            found[chip] += np.abs(np.expm1(off)).tolist()
    return dict(found)


def rows_of(name: str, errors: Mapping[str, Sequence[float]], numbers: int, seed: int) -> list[Row]:
    """Median error and share within 10 %, with 95 % intervals by bootstrap over chips."""
    chips = [np.array(values) for values in errors.values()]
    if not chips:
        return []
    draws = np.random.default_rng(seed)
    drawn = [np.concatenate([chips[at] for at in draws.integers(0, len(chips), len(chips))]) for _ in range(2000)]
    everything = np.concatenate(chips)
    rows = []
    measures: tuple[tuple[str, Callable[[Array], float]], ...] = (
        ("median_error_ratio", lambda sample: float(np.median(sample))),
        ("within_10_percent_ratio", lambda sample: float((sample <= 0.1).mean())),
    )
    for measure, value in measures:
        low, high = np.quantile([value(sample) for sample in drawn], [0.025, 0.975]).tolist()
        subject = f"oracle_{numbers}_numbers"
        rows.append(Row(subject, measure, value(everything), f"set={name}", low, high, len(everything), baseline=True))
    return rows


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_option(parser)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="OUT")
    arguments = parser.parse_args()
    catalogue = standard()
    rows: list[Row] = []
    paths = []
    for name in arguments.sets:
        file, read = SETS[name]
        paths.append(arguments.data / "figures" / file)
        cells = assemble(read(paths[-1]), catalogue).cells()
        for numbers in NUMBERS:
            rows += rows_of(name, errors_of(cells, catalogue, numbers), numbers, arguments.seed)
    print_table(rows)
    if arguments.json is not None:
        sources = [DataSource.of(path, f"figures/{path.name}") for path in dict.fromkeys(paths)]
        write(arguments.json, command_line("bench.index_bounds"), sources, arguments.seed, Setting.OFFLINE, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
