"""Published runs that no parameter and no choice of the cost model rests on (docs/cost-model.md)."""

import csv
from pathlib import Path

import numpy as np

from services.forecast.cost_model import fitted
from services.forecast.cost_model.evaluation.runs import read_runs
from services.forecast.cost_model.evaluation.scores import memory_score, predicted_steps, ran_and_fits, time_score

ROWS = Path(__file__).parents[3] / "bench/outside_rows.csv"


def test_every_row_can_be_used_and_names_its_source() -> None:
    runs, rejected = read_runs(ROWS)
    assert rejected == []
    assert len(runs) == 196
    with ROWS.open(encoding="utf-8", newline="") as stream:
        assert all(row["source"] and row["group"] for row in csv.DictReader(stream))


# Those that were collected first stand first.
FIRST = 103


def test_runs_that_nobody_had_looked_at_are_predicted_as_well_as_it_says() -> None:
    """14.5 % off when they were collected, the later ones 22.9; not figures to tune on, but a change should not make them worse
    unseen. Told which stages and gradients they have, the later ones were 24.4 off; with attention as it is on Blackwell 23.3."""
    runs, _ = read_runs(ROWS)
    for some, most in ((runs[:FIRST], 0.145), (runs[FIRST:], 0.24)):
        measured = [run.step_s or np.nan for run in some]
        assert time_score(predicted_steps(some, fitted()), measured).mape < most


def test_memory_of_runs_that_nobody_had_looked_at() -> None:
    """They ran, so they fit: all but those on TPUs, whose compiler plans the memory. 12.9 % off where memory was published."""
    runs, _ = read_runs(ROWS)
    later = [run for run in runs[FIRST:] if run.machine.vendor != "google"]
    assert all(ran_and_fits(later))
    score = memory_score(later)
    assert score is not None
    assert score.count == 24
    assert score.mape is not None
    assert score.mape < 0.14
