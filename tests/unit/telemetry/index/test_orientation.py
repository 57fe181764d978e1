"""Times are taken as times, throughputs stay what they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meridian.hardware import standard
from services.telemetry.index.evaluation import leave_one_chip_out
from services.telemetry.index.matrix import Matrix
from services.telemetry.index.orientation import as_throughput, tasks_in_time
from tests.unit.telemetry.index import world


def with_times(matrix: Matrix, task: str) -> Matrix:
    runs = (replace(run, throughput=1 / run.throughput) if run.column.task == task else run for run in matrix.runs)
    return replace(matrix, runs=tuple(runs))


def test_a_task_in_seconds_is_found_and_no_other() -> None:
    mixed = with_times(world.matrix(noise=0.1), "memory")
    assert tasks_in_time(mixed.cells(), world.chips()) == {"memory"}
    assert tasks_in_time(world.cells(noise=0.1), world.chips()) == frozenset()


def test_of_many_chips_a_looser_fall_is_a_time_too() -> None:
    # Chips of many kinds: what their facts say explains half of what they do (MLPerf's minutes fall with -0.34 to -0.99).
    rates = world.cells(noise=0.7)
    times = {cell: 1 / value for cell, value in rates.items()}
    assert tasks_in_time(times, world.chips()) == set(world.TASKS)
    assert tasks_in_time(rates, world.chips()) == frozenset()


def test_a_table_of_few_chips_is_believed() -> None:
    few = world.cells(chip_ids=("v100-sxm2-16gb", "a40", "l4"))
    assert tasks_in_time({cell: 1 / value for cell, value in few.items()}, world.chips()) == frozenset()


def test_a_table_of_times_scores_like_that_of_throughputs() -> None:
    rates = world.matrix(noise=0.03)
    times = replace(rates, runs=tuple(replace(run, throughput=1 / run.throughput) for run in rates.runs))
    assert {round(run.throughput, 9) for run in as_throughput(times, frozenset(world.TASKS)).runs} == {
        round(run.throughput, 9) for run in rates.runs
    }
    found, expected = (
        leave_one_chip_out(matrix, standard(), (0, 1), np.random.default_rng(0), random_draws=1)
        for matrix in (times, rates)
    )
    assert found.times == frozenset(world.TASKS)
    assert expected.times == frozenset()
    assert [score.error for score in found.scores] == pytest.approx(
        [score.error for score in expected.scores], rel=1e-3, abs=1e-6
    )
