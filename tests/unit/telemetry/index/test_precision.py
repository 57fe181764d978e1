"""A precision that is not stated: weighed by what the table says, never guessed, and said."""

from __future__ import annotations

import numpy as np
import pytest

from meridian.hardware import standard
from services.telemetry.index import features
from services.telemetry.index.cells import Cell, Encoder
from services.telemetry.index.evaluation import leave_one_chip_out
from services.telemetry.index.matrix import UNSTATED, Column, Matrix, Run
from services.telemetry.index.precision import UNDECIDED, single_precision
from services.telemetry.index.report import rows_of
from tests.unit.telemetry.index import world


def ran_in(precision: str, chip_ids: tuple[str, ...] = world.CHIPS, stated: str = UNSTATED) -> dict[Cell, float]:
    """Throughputs of tasks that follow the peak of ``precision``, under the label ``stated``."""
    cells = {}
    for chip_id in chip_ids:
        chip = world.chips()[chip_id]
        peak, bandwidth = features.peak_flops(chip, precision), chip.bandwidth_bytes_per_s
        assert peak
        assert bandwidth
        for task, share in (("a", 0.3), ("b", 0.5), ("c", 0.7)):
            cells[chip_id, Column("", task, stated, 1)] = peak**share * bandwidth ** (1 - share)
    return cells


@pytest.mark.parametrize(("precision", "lowest", "highest"), [("fp32", 0.7, 1.0), ("fp16", 0.0, 0.3)])
def test_tasks_that_follow_a_peak_ran_at_its_precision(precision: str, lowest: float, highest: float) -> None:
    assert lowest < single_precision(ran_in(precision), world.chips()) < highest


def test_two_chips_or_stated_precisions_say_nothing() -> None:
    assert single_precision(ran_in("fp32", world.CHIPS[:2]), world.chips()) == UNDECIDED
    assert single_precision(ran_in("fp32", stated="fp32"), world.chips()) == UNDECIDED


def test_the_peak_of_an_unstated_cell_is_between_both() -> None:
    chips = world.chips()
    chip = chips["v100-sxm2-16gb"]
    assert features.vector(chip, UNSTATED, 0.25)[0] == pytest.approx(0.75 * np.log(125e12) + 0.25 * np.log(15.7e12))
    cells = ran_in("fp16")
    stated = Column("", "a", "fp32", 1)
    low, high = (Encoder.of(list(cells), chips, share) for share in (0.1, 0.9))
    wanted = [("a30", Column("", "a", UNSTATED, 1)), ("a30", stated)]
    moved = (high.encode(wanted).distant + high.mean) - (low.encode(wanted).distant + low.mean)
    assert moved[0, 0] == pytest.approx(0.8 * np.log(82 / 165), abs=0.01)
    assert moved[1, 0] == pytest.approx(0.0, abs=1e-9)


def test_the_evaluation_says_what_it_took_an_unstated_precision_for() -> None:
    def rows(cells: dict[Cell, float]) -> dict[str, float | None]:
        matrix = Matrix(tuple(Run(chip_id, column, value) for (chip_id, column), value in cells.items()))
        draws = np.random.default_rng(0)
        evaluation = leave_one_chip_out(matrix, standard(), (0,), draws, random_draws=1)
        return {
            row.measure: row.value for row in rows_of(evaluation, matrix, draws) if row.subject == "precision_unstated"
        }

    chip_ids = world.CHIPS[:4]
    cells = ran_in("fp32", chip_ids)
    found = rows(cells)
    assert found == {
        "cells_count": 12,
        "single_precision_probability_ratio": single_precision(cells, world.chips()),
    }
    assert rows(ran_in("fp32", chip_ids, stated="fp32")) == {}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("q4_K_M", "fp16"), ("w4a16", "fp16"), ("AWQ", "fp16"), ("gptq-4bit", "fp16"), ("nf4", "fp16"), ("q8_0", "fp16"),
        ("int4", "int4"), ("int8", "int8"), ("w8a8", "int8"), ("mxfp8", "fp8"), ("fp8_e4m3", "fp8"), ("nvfp4", "fp4"),
        ("f16", "fp16"), ("amp", "amp"), ("fp32", "fp32"),
    ],
)  # fmt: skip
def test_kinds_of_arithmetic(name: str, kind: str) -> None:
    assert features.arithmetic(name) == kind


def test_narrow_integers_count_with_the_rate_of_the_chip() -> None:
    chip = standard().chip("a100-sxm4-80gb")
    assert features.peak_flops(chip, "int8") == 624e12
    assert features.peak_flops(chip, "int4") == pytest.approx((1248e12 * 312e12) ** 0.5)
    assert features.peak_flops(chip, "q4_0") == 312e12
    assert features.peak_flops(standard().chip("h100-pcie"), "int4") == pytest.approx((1513e12 * 756e12) ** 0.5)
    assert features.peak_flops(standard().chip("b200-sxm"), "nvfp4") == 4500e12
