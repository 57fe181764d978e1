"""Leaving chips out: nothing leaks, baselines as computed by hand, every figure in its row."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from meridian.cli.main import main
from meridian.hardware import standard
from meridian.result import read
from services.telemetry.index import evaluation
from services.telemetry.index.baselines import fact_ratio, oracle_scalar, probe_scalar, repeat_errors
from services.telemetry.index.evaluation import leave_one_chip_out
from services.telemetry.index.matrix import Column, Matrix, Run
from services.telemetry.index.report import rows_of
from tests.unit.telemetry.index import world

COLUMN = Column("", "t", "fp16", 1)


def run(matrix: Matrix, probes: tuple[int, ...] = (0, 1, 3)) -> evaluation.Evaluation:
    return leave_one_chip_out(matrix, standard(), probes, np.random.default_rng(0), random_draws=2)


def mean_error(found: evaluation.Evaluation, subject: str) -> float:
    return float(np.mean([score.error for score in found.scores if score.subject == subject]))


def test_the_index_beats_its_baselines_where_sensitivities_differ() -> None:
    found = run(world.matrix(noise=0.03))
    assert set(found.chips) == set(world.CHIPS)
    index = mean_error(found, "index_probes_0")
    assert index < 0.15
    for baseline in ("peak_flops_ratio", "bandwidth_ratio", "oracle_scalar"):
        assert index < mean_error(found, baseline), baseline


def test_probes_tell_what_the_facts_do_not() -> None:
    draws = np.random.default_rng(3)
    own = {chip_id: math.exp(0.3 * draws.standard_normal()) for chip_id in world.CHIPS}
    runs = tuple(replace(each, throughput=each.throughput * own[each.chip_id]) for each in world.matrix(0.02).runs)
    found = run(Matrix(runs))
    assert mean_error(found, "index_probes_1") < 0.5 * mean_error(found, "index_probes_0")
    assert mean_error(found, "index_probes_1") < mean_error(found, "probe_scalar_1")


def test_what_a_chip_measured_does_not_tell_about_itself() -> None:
    honest = world.matrix()
    lying = Matrix(
        tuple(replace(each, throughput=each.throughput * 50) if each.chip_id == "l4" else each for each in honest.runs)
    )
    for matrix in (honest, lying):
        found = run(matrix, (0,))
        predicted = [
            math.log(score.error + 1)
            for score in found.scores
            if score.subject == "index_probes_0" and score.cell[0] == "l4"
        ]
        assert len(predicted) == len(world.TASKS)
    # The prediction is the same, so the error is what the lie makes of it: |p / 50 m - 1| with p / m near 1.
    assert all(math.expm1(value) == pytest.approx(0.98, abs=0.01) for value in predicted)


def test_rows_that_may_be_of_the_same_chip_go_with_it() -> None:
    runs = [
        Run("a100-any", COLUMN, 100.0), Run("a100-sxm4-80gb", COLUMN, 300.0), Run("v100-sxm2-16gb", COLUMN, 50.0),
        Run("h100-pcie", COLUMN, 150.0),
    ]  # fmt: skip
    with_family = run(Matrix(tuple(runs)), (0,))
    without_family = run(Matrix(tuple(runs[1:])), (0,))

    def errors(found: evaluation.Evaluation) -> list[float]:
        return [s.error for s in found.scores if s.subject == "index_probes_0" and s.cell[0] == "a100-sxm4-80gb"]

    assert errors(with_family) == pytest.approx(errors(without_family))


def test_a_column_of_one_chip_is_not_scored_and_counted() -> None:
    alone = Run("t4", Column("", "only here", "fp16", 1), 3.0)
    found = run(Matrix((*world.matrix().runs, alone)), (0,))
    assert found.unmatched == 1
    assert alone.column not in {score.cell[1] for score in found.scores}


def test_groups_are_not_compared() -> None:
    runs = [Run("t4", replace(COLUMN, group="a"), 1.0), Run("l4", replace(COLUMN, group="b"), 2.0)]
    found = run(Matrix(tuple(runs)), (0,))
    assert found.scores == ()
    assert found.unmatched == 2


def test_chips_without_facts_are_reported() -> None:
    runs = (*world.matrix().runs, Run("mlu270", world.matrix().runs[0].column, 9.0))
    found = run(Matrix(runs), (0,))
    assert [(each.name, each.rows) for each in found.unusable] == [("mlu270", 1)]


def test_the_reference_is_the_chip_with_most_columns() -> None:
    extra = Run("l40s", Column("", "more", "fp16", 1), 1.0)
    assert run(Matrix((*world.matrix().runs, extra)), (0,)).reference == "l40s"


def test_fact_ratios_by_hand() -> None:
    chips = {name: standard().chip(name) for name in ("t4", "a10", "l4")}
    training = {("t4", COLUMN): 10.0, ("a10", COLUMN): 40.0}
    # T4 has 65 TFLOP/s and 320 GB/s, A10 125 and 600, L4 121 and 300; the level is the geometric mean of both chips.
    peak = math.sqrt(10.0 * 121 / 65 * 40.0 * 121 / 125)
    bandwidth = math.sqrt(10.0 * 300 / 320 * 40.0 * 300 / 600)
    assert math.exp(fact_ratio(training, chips, [("l4", COLUMN)], "peak")[0]) == pytest.approx(peak)
    assert math.exp(fact_ratio(training, chips, [("l4", COLUMN)], "bandwidth")[0]) == pytest.approx(bandwidth)


def test_the_oracle_is_exact_where_one_number_per_chip_is() -> None:
    columns = [replace(COLUMN, task=name) for name in "abc"]
    cells = {
        (chip, column): number * level
        for chip, number in {"t4": 1.0, "a10": 2.0, "l4": 5.0}.items()
        for column, level in zip(columns, (3.0, 7.0, 11.0), strict=True)
    }
    del cells["l4", columns[0]]
    found = oracle_scalar(cells)
    assert {cell: math.exp(value) for cell, value in found.items()} == pytest.approx(cells)


def test_the_mean_of_probes() -> None:
    others, measured = np.log([1.0, 1.0, 10.0]), np.log([2.0, 8.0, 99.0])
    assert np.exp(probe_scalar(others, measured, [0, 1])) == pytest.approx([4.0, 4.0, 40.0])


def test_the_noise_floor_is_each_run_against_the_others() -> None:
    errors = repeat_errors({("t4", COLUMN): [10.0, 12.0, 10.0], ("l4", COLUMN): [5.0]})
    assert errors == {("t4", COLUMN): pytest.approx([1 / 11, 0.2, 1 / 11])}


def test_every_figure_has_its_row() -> None:
    matrix = world.matrix(noise=0.03)
    matrix = Matrix((*matrix.runs, *(replace(each, throughput=each.throughput * 1.02) for each in matrix.runs[:4])))
    draws = np.random.default_rng(0)
    rows = rows_of(run(matrix), matrix, draws)
    by_key = {(row.subject, row.measure, row.slice): row for row in rows}
    assert len(by_key) == len(rows)
    index = ["index_probes_0", "index_probes_1", "index_probes_3"]
    baselines = ["peak_flops_ratio", "bandwidth_ratio", "oracle_scalar"]
    for subject in [*index, *baselines]:
        for part in ("all", *(f"chip={name}" for name in world.CHIPS), *(f"task={name}" for name in world.TASKS)):
            for measure in ("mape_ratio", "median_error_ratio", "within_10_percent_ratio"):
                row = by_key[subject, measure, part]
                assert row.baseline == (subject in baselines)
                assert (row.value is None) == (row.reason is not None)
                assert row.value is not None or (subject.startswith("index_probes_") and part.startswith("task="))
    assert by_key["index_probes_0", "mape_ratio", "all"].n == len(world.CHIPS) * len(world.TASKS)
    assert by_key["index_probes_3", "mape_ratio", "all"].n == len(world.CHIPS) * (len(world.TASKS) - 3)
    assert ("index_probes_0", "band_90_coverage_ratio", "all") in by_key
    assert by_key["noise_floor", "mape_ratio", "all"].value == pytest.approx((0.02 + 1 - 1 / 1.02) / 2, rel=1e-3)
    pooled = by_key["index_probes_0", "mape_ratio", "all"]
    assert pooled.low is not None
    assert pooled.high is not None
    assert pooled.low <= pooled.value <= pooled.high
    assert by_key["reference_chip", "cells_count", "chip=a10"].value == len(world.TASKS)


def test_what_cannot_be_computed_says_why() -> None:
    matrix = world.matrix(chip_ids=world.CHIPS[:3])
    by_key = {
        (row.subject, row.measure, row.slice): row
        for row in rows_of(run(matrix, (0, 9)), matrix, np.random.default_rng(0))
    }
    probed = by_key["index_probes_9", "mape_ratio", "all"]
    assert (probed.value, probed.n) == (None, 0)
    assert probed.reason == "all of its cells were probed, or there are not more than that"
    floor = by_key["noise_floor", "mape_ratio", "all"]
    assert (floor.value, floor.baseline, floor.reason) == (None, True, "no cell was measured twice")


def write_matrix(path: Path, matrix: Matrix, more: str = "") -> Path:
    lines = [f"{each.chip_id},{each.column.task},{each.throughput!r},{each.column.precision}" for each in matrix.runs]
    path.write_text("chip,task,throughput,precision\n" + "\n".join(lines) + "\n" + more)
    return path


def test_the_command_prints_and_writes_the_form(tmp_path: Path) -> None:
    chip_ids = world.CHIPS[:6]
    path = write_matrix(
        tmp_path / "m.csv", world.matrix(0.03, chip_ids=chip_ids), "Mystery 9,compute,4,fp16\nT4,compute,zero,\n"
    )
    specs = tmp_path / "specs.csv"
    specs.write_text("id,name,year,fp16_tflops,mem_gb,mem_gbps\nmystery9,Mystery 9,2024,200,48,1500\n")
    out = tmp_path / "out.json"
    arguments = ["evaluate", "index", str(path), "--probes", "2", "--seed", "7", "--json", str(out)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert "chip 'Mystery 9' (1 rows) is left aside" in done.stderr
    assert "line 27 is left aside: throughput 'zero'" in done.stderr
    assert re.search("index_probes_2 .*chip=a10 ", done.stdout), "as many runs as were asked for, by chip too"
    body = read(out)
    assert body["seed"] == 7
    assert body["setting"] == "offline"
    assert {row["subject"] for row in body["rows"]} >= {
        "index_probes_0",
        "index_probes_1",
        "index_probes_2",
        "chip_unknown",
    }
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert json.loads(out.read_text())["rows"] == body["rows"], "the same seed gives the same figures"
    with_specs = CliRunner().invoke(main, [*arguments, "--chips", str(specs)])
    assert "Mystery 9" not in with_specs.stderr
    assert "chip=mystery9" in out.read_text()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("chip,task\nT4,a\n", "no column throughput"),
        ("Chip,task, throughput\nT4,a,1\n", "no column chip, throughput; there are 'Chip', 'task', ' throughput'"),
        ("chip;task;throughput\nT4;a;1\n", "there are 'chip;task;throughput'"),
        ("chip,task,throughput,throughput\nT4,a,1,2\nL4,a,1,2\n", "column throughput is there more than once"),
        ("chip,task,throughput\nT4,a,1\n", "no task is measured on two chips"),
        ("chip,task,throughput\nT4,a,1\nL4,a,fast\n", "line 3 is left aside: throughput 'fast'"),
        ("chip,task,throughput\nT4,a,1\nMystery 9,a,2\n", "chip 'Mystery 9' (1 rows) is left aside"),
    ],
)
def test_the_command_refuses_what_says_nothing(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text(text)
    done = CliRunner().invoke(main, ["evaluate", "index", str(path)])
    assert done.exit_code == 2
    assert complaint in done.output
