"""Published runs with long sequences, whose protocol was fixed before any error was computed (docs/cost-model.md)."""

import csv
import math
from pathlib import Path

import numpy as np

from services.forecast.cost_model import band_of, fitted
from services.forecast.cost_model.evaluation.runs import read_runs
from services.forecast.cost_model.evaluation.scores import memory_score, predicted_steps, time_score

ROWS = Path(__file__).parents[3] / "bench/long_rows.csv"


def test_every_row_can_be_used_and_names_its_source() -> None:
    runs, rejected = read_runs(ROWS)
    assert rejected == []
    assert len(runs) == 43
    with ROWS.open(encoding="utf-8", newline="") as stream:
        assert all(row["source"] and row["group"] for row in csv.DictReader(stream))


def test_long_sequences_are_predicted_as_well_as_it_says() -> None:
    runs, _ = read_runs(ROWS)
    measured = [run.step_s or np.nan for run in runs]
    assert time_score(predicted_steps(runs, fitted()), measured).mape < 0.12
    memory = memory_score(runs)
    assert memory is not None
    assert memory.mape is not None
    assert memory.mape < 0.07


def test_the_band_of_an_estimate_holds_four_of_five_runs() -> None:
    runs, _ = read_runs(ROWS)
    held = 0
    for run in runs:
        band = band_of(run.shape, run.layout, run.machine)
        expected = predicted_steps([run], fitted())[0]
        assert math.isclose(math.sqrt(band.low_s * band.high_s), expected)
        held += band.low_s <= (run.step_s or np.nan) <= band.high_s
    assert 0.8 <= held / len(runs) <= 0.96
