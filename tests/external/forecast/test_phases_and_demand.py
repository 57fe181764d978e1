"""Phases and demand on public recordings. MERIDIAN_DATA names the folder that holds `figures`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench import demand_series, phase_curves
from meridian.cli.main import main
from tests.public_data import public_data

pytestmark = [pytest.mark.external, pytest.mark.timeout(300)]

Figures = dict[tuple[str, str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def figures_folder() -> Path:
    return public_data("figures")


def evaluated(what: str, path: Path, out: Path) -> Figures:
    result = CliRunner().invoke(main, ["evaluate", what, str(path), "--json", str(out)])
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())["rows"]
    return {(row["subject"], row["measure"], row["slice"]): row for row in rows}


ACCURACY, F1 = "accuracy_within_2pct_ratio", "macro_f1_within_2pct_ratio"


def test_phases_of_the_family_the_constants_were_chosen_on(figures_folder: Path, tmp_path: Path) -> None:
    found = evaluated("phases", figures_folder / "loss_curves_nanogpt.csv.gz", tmp_path / "out.json")
    assert found["curves", "runs_scored_count", "all"]["value"] == 37
    # Those with validation losses only.
    assert found["curves", "runs_unknown_count", "all"]["value"] == 150
    assert found["schedule_aware", ACCURACY, "all"]["value"] > 0.95
    assert found["schedule_aware", F1, "all"]["value"] > 0.9


def test_phases_of_whole_training_runs_not_chosen_on(figures_folder: Path, tmp_path: Path) -> None:
    assert phase_curves.main([str(figures_folder / "mlperf_llm_run_steps.csv.gz"), str(tmp_path / "c.csv")]) == 0
    found = evaluated("phases", tmp_path / "c.csv", tmp_path / "out.json")
    family = "family=mlperf_v5.1_llama31_8b"
    assert found["schedule_aware", ACCURACY, family]["n"] == 51
    for measure, least in ((ACCURACY, 0.95), (F1, 0.9)):
        told = found["schedule_aware", measure, family]["value"]
        assert told > least
        assert told > found["majority_class", measure, family]["value"]
        assert told > found["fixed_fraction", measure, family]["value"]


def test_the_declared_ramp_is_found(figures_folder: Path, tmp_path: Path) -> None:
    found = evaluated("phases", figures_folder / "loss_curves_llmc_zhejiang.csv.gz", tmp_path / "out.json")
    assert found["truth", "warm_up_until_step_count", "run=llm.c_gpt2_124M"]["value"] == pytest.approx(700, abs=10)
    delay = found["schedule_aware", "warm_up_end_delay_median_share_of_run_ratio", "all"]["value"]
    assert 0 < delay < 0.01


@pytest.mark.parametrize(
    ("name", "least_10m", "least_1h"), [("helios_earth_vc", 0.985, 0.96), ("philly_nodes", 0.985, 0.97)]
)
def test_demand_of_public_clusters(
    figures_folder: Path, tmp_path: Path, name: str, least_10m: float, least_1h: float
) -> None:
    source = figures_folder / f"series_{name}_10min.csv.gz"
    assert demand_series.main([str(source), str(tmp_path / "d.csv")]) == 0
    found = evaluated("demand", tmp_path / "d.csv", tmp_path / "out.json")
    for horizon, least in (("10m", least_10m), ("1h", least_1h)):
        assert found["served", f"accuracy_{horizon}_ratio", "all"]["value"] > least
        assert found["served", f"skill_over_persistence_{horizon}_ratio", "all"]["value"] >= 0
        assert found["served", f"skill_over_persistence_median_series_{horizon}_ratio", "all"]["value"] >= 0
        assert 0.75 < found["served", f"coverage_80_{horizon}_ratio", "all"]["value"] < 0.9
