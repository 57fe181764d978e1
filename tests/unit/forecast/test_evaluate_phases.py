"""`meridian evaluate phases`: what it prints and writes, and how it refuses."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from meridian.cli.main import main
from services.forecast.phases.scoring import detect, served
from services.forecast.phases.table import read_curves
from services.forecast.tables import InvalidTableError


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["evaluate", "phases", *map(str, arguments)])


def curve(name: str, length: int = 600, corner: int = 100) -> list[str]:
    lines = []
    for step in range(length):
        x, bend = math.log(step + 1), math.log(corner)
        lines.append(f"{name},{step},{12 - min(x, bend) - 0.02 * max(0.0, x - bend):.6f},{length}")
    return lines


def table(path: Path, lines: list[str], header: str = "run,step,train_loss,total_steps") -> Path:
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def figures(path: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    rows = json.loads(path.read_text())["rows"]
    return {(row["subject"], row["measure"], row["slice"]): row for row in rows}


def test_pooled_and_per_run_figures_stand_beside_their_baselines(tmp_path: Path) -> None:
    path = table(tmp_path / "c.csv", curve("a/1") + curve("a/2", corner=50) + curve("b/1", corner=600))
    result = run(path, "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    found = figures(tmp_path / "out.json")
    measure = "accuracy_within_2pct_ratio"
    for where in ("all", "family=a", "family=b", "run=a/1"):
        assert found["majority_class", measure, where]["baseline"]
        assert found["fixed_fraction", measure, where]["baseline"]
        assert 0.8 < found["schedule_aware", measure, where]["value"] <= 1
    assert found["truth", "stable_from_step_count", "run=b/1"]["reason"] == "never stable by the rule"
    assert 100 < found["truth", "stable_from_step_count", "run=a/1"]["value"] < 100 * math.exp(0.3)
    pooled = [found["schedule_aware", measure, f"run={name}"]["value"] for name in ("a/1", "a/2", "b/1")]
    assert found["schedule_aware", measure, "all"]["value"] == pytest.approx(sum(pooled) / 3)
    # No learning rate is told: the service says nothing before the pace has passed its peak, at the corner of the curve.
    assert found["as_served", "told_ratio", "run=b/1"]["value"] < 0.2
    assert 0.7 < found["as_served", "told_ratio", "run=a/1"]["value"] < 0.9
    assert found["as_served", "accuracy_where_told_ratio", "run=a/1"]["value"] > 0.8


def answers(path: Path) -> list[list[float]]:
    (read,) = read_curves(path).curves
    told = [detect(read, schedule_known=True)[0], detect(read, schedule_known=False)[0], served(read)]
    return [[-1.0 if math.isnan(phase) else phase for phase in each] for each in told]


@pytest.mark.parametrize("seed", range(6))
def test_what_is_told_at_a_line_does_not_depend_on_later_lines(seed: int, tmp_path: Path) -> None:
    chance = np.random.default_rng(seed)
    corner, cut = int(chance.integers(20, 300)), int(chance.integers(60, 500))
    # The length is declared from some line on only, before or behind the cut.
    declared_from = int(chance.integers(0, 500))
    broken = chance.integers(1, 500, 10).tolist()
    lines = [line.rsplit(",", 1)[0] for line in curve("a", 500, corner)]
    lines = [f"{line},{500 if place >= declared_from else ''}" for place, line in enumerate(lines)]
    for place in broken:
        lines.insert(place, f"a,{place // 2},nan," if place % 2 else f"a,{place // 2},3.0,")
    whole, part = answers(table(tmp_path / "whole.csv", lines)), answers(table(tmp_path / "part.csv", lines[:cut]))
    for full, seen in zip(whole, part, strict=True):
        assert full[: len(seen)] == seen


def test_what_cannot_be_used_is_counted_and_listed(tmp_path: Path) -> None:
    good = curve("good")
    twice = ["good,599,1.0,600", "good,3,1.0,600", "good,600,nan,", "good,601,,", ",1,2,", "good,x,1,"]
    constant = [f"constant,{step},3.0,600" for step in range(600)]
    empty = [f"empty,{step},,600" for step in range(3)]
    beyond = [f"beyond,{step},{9 - step * 0.01},100" for step in range(200)]
    gap = [line for line in curve("gap") if not 200 < int(line.split(",")[1]) < 400]
    path = table(tmp_path / "c.csv", good + twice + constant + empty + beyond + gap)
    result = run(path, "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    found = figures(tmp_path / "out.json")
    assert found["curves", "lines_left_aside_count", "all"]["value"] == 9
    assert found["curves", "runs_unknown_count", "all"]["value"] == 4
    assert "step is there twice (line 602)" in result.output
    assert "step goes back (line 603)" in result.output
    for name, reason in {
        "constant": "does not fall",
        "empty": "no train_loss at all",
        "beyond": "beyond total_steps",
        "gap": "nothing between steps 200 and 400",
    }.items():
        row = found["schedule_aware", "accuracy_within_2pct_ratio", f"run={name}"]
        assert row["value"] is None
        assert reason in row["reason"]


def test_a_loss_that_cannot_be_summed_is_left_aside(tmp_path: Path) -> None:
    broken = ["good,600,1e200,", "all,0,-1e101,"]
    result = run(table(tmp_path / "c.csv", curve("good") + broken), "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    assert "2 lines left aside: train_loss is larger than 1e+100 (lines 602, 603)" in result.output
    found = figures(tmp_path / "out.json")
    assert found["schedule_aware", "accuracy_within_2pct_ratio", "run=good"]["value"] > 0.8
    assert "no usable sample" in found["schedule_aware", "accuracy_within_2pct_ratio", "run=all"]["reason"]


def test_a_negative_learning_rate_is_none(tmp_path: Path) -> None:
    header = "run,step,train_loss,total_steps,lr,gbs"
    plain = run(table(tmp_path / "a.csv", curve("a/1"), header), "--json", tmp_path / "plain.json")
    lines = [f"{line},-1,-1" for line in curve("a/1")]
    marked = run(table(tmp_path / "b.csv", lines, header), "--json", tmp_path / "marked.json")
    assert (plain.exit_code, marked.exit_code) == (0, 0)
    assert figures(tmp_path / "marked.json") == figures(tmp_path / "plain.json")


@pytest.mark.parametrize(
    ("header", "lines", "said"),
    [
        ("run,step,loss", ["a,1,2"], "the column train_loss is missing (columns: run, step, loss)"),
        ("run,step,step,train_loss", ["a,1,1,2"], "the column step is there twice"),
        ("run,step,train_loss", [], "no line names a run"),
        ("run,step,train_loss,lr,lr", ["a,1,2,3,4"], "the column lr is there twice"),
        (
            "run,step,train_loss",
            ["a,1,2,5"],
            "no line names a run; 1 line left aside: more cells than columns (line 2)",
        ),
    ],
)
def test_a_file_without_what_is_needed_is_refused(tmp_path: Path, header: str, lines: list[str], said: str) -> None:
    result = run(table(tmp_path / "c.csv", lines, header), "--json", tmp_path / "out.json")
    assert result.exit_code != 0
    assert said in (result.output + str(result.exception))
    assert not (tmp_path / "out.json").exists()


def test_a_file_of_unknown_runs_only_still_lists_them(tmp_path: Path) -> None:
    result = run(table(tmp_path / "c.csv", ["a,1,2,9"]), "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    assert figures(tmp_path / "out.json")["curves", "runs_scored_count", "all"]["value"] == 0


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        # The same name for two runs, one after the other: the second would continue the first.
        (curve("a", 400) + curve("a", 900, corner=300), "begins again at step 0 after step 399: two runs of one name"),
        (curve("a", 600) + curve("a", 600, corner=300), "begins again at step 0 after step 599"),
        # Diverged: the last 40 % hold no loss.
        (curve("a", 600) + [f"a,{step},nan," for step in range(600, 1000)], "between steps 599 and 999"),
        ([line.replace(",", ",0.", 1) for line in curve("a", 90)[10:]], "count updates of the weights, not epochs"),
    ],
)
def test_a_run_that_is_none_is_unknown(tmp_path: Path, lines: list[str], said: str) -> None:
    lines = [line.rsplit(",", 1)[0] + "," for line in lines]
    result = run(table(tmp_path / "c.csv", lines), "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    row = figures(tmp_path / "out.json")["schedule_aware", "accuracy_within_2pct_ratio", "run=a"]
    assert row["value"] is None
    assert said in row["reason"]


def test_a_false_start_and_a_restart_from_a_checkpoint_are_left_aside(tmp_path: Path) -> None:
    whole = curve("a", 600)
    lines = whole[:20] + whole[:400] + whole[350:]
    result = run(table(tmp_path / "c.csv", lines), "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    assert "lines left aside: step goes back" in result.output
    found = figures(tmp_path / "out.json")
    plain = run(table(tmp_path / "p.csv", whole), "--json", tmp_path / "plain.json")
    assert plain.exit_code == 0
    for key in (("schedule_aware", "accuracy_exact_ratio", "run=a"), ("truth", "stable_from_step_count", "run=a")):
        assert found[key] == figures(tmp_path / "plain.json")[key]


@pytest.mark.parametrize(("separator", "called"), [(";", "semicolons"), ("\t", "tabs")])
def test_another_separator_is_named(tmp_path: Path, separator: str, called: str) -> None:
    lines = [line.replace(",", separator) for line in curve("a")]
    result = run(table(tmp_path / "c.csv", lines, separator.join(("run", "step", "train_loss", "total_steps"))))
    assert result.exit_code != 0
    assert f"cells are separated by {called}, where commas are needed" in (result.output + str(result.exception))


@pytest.mark.parametrize(("name", "compressed"), [("c.csv.gz", True), ("c.csv", True), ("c.csv.gz", False)])
def test_a_file_is_decompressed_by_what_it_holds(tmp_path: Path, name: str, compressed: bool) -> None:
    text = "\n".join(["run,step,train_loss,total_steps", *curve("a")]).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if compressed else text)
    (read,) = read_curves(tmp_path / name).curves
    assert len(read.step) == 600
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress(text)[:-100])
    with pytest.raises(InvalidTableError, match=r"cut\.csv\.gz: not a table of text"):
        read_curves(cut)


def test_a_learning_rate_that_cannot_be_read_is_counted_and_listed(tmp_path: Path) -> None:
    header = "run,step,train_loss,total_steps,lr,gbs"
    lines = [f"{line},0.1,8" for line in curve("a/1")]
    lines[4], lines[6] = lines[4].replace("0.1,8", "1e-3x,"), lines[6].replace("0.1,8", "nan,many")
    result = run(table(tmp_path / "c.csv", lines, header), "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    assert "2 cells taken for empty: lr is no finite number (lines 6, 8)" in result.output
    assert "1 cell taken for empty: gbs is no finite number (line 8)" in result.output
    assert figures(tmp_path / "out.json")["curves", "cells_taken_for_empty_count", "all"]["value"] == 3
