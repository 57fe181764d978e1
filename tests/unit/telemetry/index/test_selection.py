"""Large tables: a fit rests on the nearest chips, on every column that is asked for, and says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from meridian.cli.main import main
from meridian.hardware import standard
from meridian.result import read
from services.telemetry.index import evaluation, selection
from services.telemetry.index.evaluation import leave_one_chip_out
from services.telemetry.index.matrix import Column
from services.telemetry.index.selection import nearest_cells
from tests.unit.telemetry.index import world

CHIP = "h100-sxm5-80gb"


def _training() -> dict[tuple[str, Column], float]:
    return {cell: value for cell, value in world.cells().items() if cell[0] != CHIP}


def _wanted(tasks: int) -> list[tuple[str, Column]]:
    return [(CHIP, Column("", task, "fp16", 1)) for task in list(world.TASKS)[:tasks]]


def test_a_table_that_is_not_large_is_taken_whole() -> None:
    training = _training()
    assert nearest_cells(training, _wanted(4), world.chips(), most=len(training)) == training


def test_of_a_large_table_the_nearest_chips_count_in_every_column_that_is_asked_for() -> None:
    chosen = nearest_cells(_training(), _wanted(4), world.chips(), most=12)
    assert len(chosen) == 12
    by_column = {column: {chip for chip, other in chosen if other == column} for _, column in chosen}
    assert set(by_column) == {column for _, column in _wanted(4)}
    assert len(set(map(frozenset, by_column.values()))) == 1, "the same three chips of each"
    (nearest,) = set(map(frozenset, by_column.values()))
    assert "h100-pcie" in nearest
    assert not nearest & {"l4", "v100-sxm2-16gb"}


def test_what_is_left_of_the_limit_are_other_columns() -> None:
    chosen = nearest_cells(_training(), _wanted(1), world.chips(), most=20)
    assert len(chosen) == 20
    assert sum(column == _wanted(1)[0][1] for _, column in chosen) == len(world.CHIPS) - 1
    assert {chip for chip, column in chosen if column != _wanted(1)[0][1]} == {"h100-pcie", "a100-sxm4-80gb"}


def test_a_chip_of_which_little_is_stated_is_no_nearer_for_it() -> None:
    known = world.chips()
    chip = known["v100-sxm2-16gb"]
    few = {name: fact for name, fact in chip.facts.items() if name.startswith("peak") or name == "memory_bandwidth"}
    bare = replace(chip, year=None, facts=few)
    training = {cell: value for cell, value in _training().items() if cell[0] in {"v100-sxm2-16gb", "a100-pcie-40gb"}}
    # Two of the column that is asked for, and one other of the nearer chip.
    for chips in (known, {**known, "v100-sxm2-16gb": bare}):
        (other,) = [cell for cell in nearest_cells(training, _wanted(1), chips, most=3) if cell[1] != _wanted(1)[0][1]]
        assert other[0] == "a100-pcie-40gb"


def test_each_column_has_two_chips_whatever_the_limit() -> None:
    assert len(nearest_cells(_training(), _wanted(4), world.chips(), most=3)) == 8


def test_baselines_see_the_whole_table_and_the_limit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.csv"
    rows = [f"{chip},{column.task},{value!r},{column.precision}" for (chip, column), value in world.cells(0.05).items()]
    path.write_text("chip,task,throughput,precision\n" + "\n".join(rows) + "\n")

    def figures() -> tuple[dict[str, float], str]:
        out = tmp_path / "out.json"
        done = CliRunner().invoke(main, ["evaluate", "index", str(path), "--json", str(out)])
        assert done.exit_code == 0, done.output
        pooled = [row for row in read(out)["rows"] if row["measure"].endswith(("ratio", "count"))]
        return {f"{row['subject']} {row['slice']} {row['measure']}": row["value"] for row in pooled}, done.stderr

    whole, said = figures()
    assert "too large for one fit" not in said
    assert not any(name.startswith("fit_limited") for name in whole)
    monkeypatch.setattr(evaluation, "MOST_CELLS", 24)
    monkeypatch.setattr(selection.nearest_cells, "__defaults__", (24,))
    limited, said = figures()
    assert f"{len(world.CHIPS)} chips are predicted from" in said
    assert limited["fit_limited all chips_count"] == len(world.CHIPS)
    same = [
        name for name in whole if name.startswith(("bandwidth_ratio", "peak_flops", "oracle", "probe_scalar_1_random"))
    ]
    assert same
    assert all(limited[name] == whole[name] for name in same)
    assert limited["index_probes_0 all mape_ratio"] != whole["index_probes_0 all mape_ratio"]


def test_more_columns_than_can_be_told_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MOST_COLUMNS", 3)
    with pytest.raises(evaluation.TooManyColumnsError, match="has 4 columns"):
        leave_one_chip_out(world.matrix(), standard(), (0,), np.random.default_rng(0))
