"""Run-time prediction on recorded jobs: the second half in time of each log, against what users and simple rules say."""

from __future__ import annotations

import pytest

from bench.run_time_prediction import METHODS, Log, halves, read_chronus, read_philly, read_swf, replay, score
from tests.public_data import public_data

pytestmark = pytest.mark.external

MEDIAN, MEAN = "weighted experts, median", "weighted experts, mean"


def figures(log: Log, *names: str) -> dict[str, dict[str, float]]:
    """Measures of the methods on the second half of the log, by method."""
    return {
        name: {
            row.measure: row.value or 0.0
            for row in score(log, name, False, replay(log.jobs, METHODS[name][0]()), halves(log, "second"))
        }
        for name in names
    }


def test_hpc2n_is_predicted_better_than_by_its_users() -> None:
    log = read_swf(public_data("swf/hpc2n.swf"))
    assert len(log.jobs) == 3145  # of 3,170 lines 25 never ran
    by = figures(log, "user estimate", "last two of the user", "quantile of the group", MEDIAN, MEAN)
    assert by[MEDIAN]["mae_s"] < 0.65 * by["user estimate"]["mae_s"]
    assert by[MEDIAN]["mae_s"] < by["last two of the user"]["mae_s"]
    assert by[MEAN]["pairs_in_order_share"] > by["user estimate"]["pairs_in_order_share"]
    assert by[MEDIAN]["band_coverage_share"] == pytest.approx(0.8, abs=0.05)
    assert by[MEDIAN]["pinball_s"] < by["quantile of the group"]["pinball_s"]


def test_philly_without_users_and_estimates() -> None:
    log = read_philly(public_data("philly/october_5_clusters.csv"))
    by = figures(log, "global mean", "last two of the user", "QSSF group mean", MEDIAN)
    for rule in ("global mean", "last two of the user", "QSSF group mean"):
        assert by[MEDIAN]["mae_s"] < 0.7 * by[rule]["mae_s"]
        assert by[MEDIAN]["accuracy_ratio"] > by[rule]["accuracy_ratio"]
    assert by[MEDIAN]["band_coverage_share"] == pytest.approx(0.8, abs=0.05)


def test_run_times_that_nothing_known_predicts_still_get_honest_bands() -> None:
    log = read_chronus(public_data("chronus/MIX1.csv"))
    by = figures(log, "quantile of the group", MEDIAN)
    assert by[MEDIAN]["pairs_in_order_share"] == pytest.approx(0.5, abs=0.06)
    assert by[MEDIAN]["mae_s"] < 1.05 * by["quantile of the group"]["mae_s"]
    assert by[MEDIAN]["band_coverage_share"] == pytest.approx(0.8, abs=0.05)
