"""What K numbers per chip could say: exact where chips differ in no more than K ways, and no better where they differ in more."""

from __future__ import annotations

import numpy as np
import pytest

from bench.index_bounds import errors_of, least_deviations, loadings, rows_of
from meridian.hardware import standard
from services.telemetry.index.cells import Cell
from services.telemetry.index.matrix import Column

CHIPS = ("k80", "p100-pcie-16gb", "v100-pcie-16gb", "a100-sxm4-80gb", "h100-sxm5-80gb", "t4")


def _cells(ways: int, missing: int = 0) -> dict[Cell, float]:
    """Six chips and nine tasks whose logarithms differ in ``ways`` ways; ``missing`` cells of each but the first chip are not there."""
    draws = np.random.default_rng(3)
    speed, levels = draws.normal(size=6), draws.normal(size=9)
    logs = speed[:, None] + levels
    if ways > 1:
        logs = logs + draws.normal(size=(6, ways - 1)) @ draws.normal(size=(ways - 1, 9))
    return {
        (chip, Column("", f"task {task}", "fp16", 1)): float(np.exp(logs[row, task]))
        for row, chip in enumerate(CHIPS)
        for task in range(9)
        if row == 0 or (task + row) % 9 >= missing
    }


@pytest.mark.parametrize("ways", [1, 2])
def test_as_many_numbers_as_there_are_ways_in_which_chips_differ_say_all(ways: int) -> None:
    errors = errors_of(_cells(ways, missing=1), standard(), ways)
    assert set(errors) == set(CHIPS)
    assert max(max(values) for values in errors.values()) < 0.02
    assert sorted(len(values) for values in errors.values()) == [8] * 5 + [9]


def test_fewer_numbers_do_not() -> None:
    cells = _cells(3)
    one, three = (errors_of(cells, standard(), numbers) for numbers in (1, 3))
    assert np.mean([value for values in one.values() for value in values]) > 0.3
    assert np.mean([value for values in three.values() for value in values]) < 0.05


def test_chips_of_at_most_three_columns_are_left_aside() -> None:
    cells = {cell: value for cell, value in _cells(1).items() if cell[0] != "t4" or cell[1].task < "task 3"}
    assert set(errors_of(cells, standard(), 1)) == set(CHIPS) - {"t4"}


def test_the_first_number_means_the_same_for_all_columns() -> None:
    logs = np.log(np.array([[1.0, 2.0, np.nan], [2.0, 4.0, 6.0], [3.0, 6.0, 9.0]]))
    level, parts = loadings(logs, 1)
    assert parts == pytest.approx(np.ones((1, 3)))
    assert level - level[0] == pytest.approx(np.log([1.0, 2.0, 3.0]), abs=1e-6)


def test_absolute_deviations_pass_over_one_odd_cell() -> None:
    parts = np.array([[1.0, 1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 2.0, 3.0, 4.0]])
    assert least_deviations(parts, np.array([1.0, 3.0, 5.0, 70.0, 9.0])) == pytest.approx([1.0, 2.0])


def test_the_rows_count_cells_and_hold_their_interval() -> None:
    rows = rows_of("made-up", {"a": [0.05, 0.2], "b": [0.01, 0.02, 0.03]}, 2, 0)
    shares = {row.measure: row for row in rows}
    row = shares["within_10_percent_ratio"]
    assert (row.subject, row.value, row.n) == ("oracle_2_numbers", 0.8, 5)
    assert row.low is not None
    assert row.high is not None
    assert row.low <= 0.8 <= row.high
    assert shares["median_error_ratio"].value == 0.03
    assert rows_of("made-up", {}, 1, 0) == []
