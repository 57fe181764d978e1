"""Backfilling on the HPC2N log: published figures for the plain policies, and what predictions are worth.

`python bench/backfill.py` compares all variants; the one here was chosen by it on the first half of the jobs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.backfill import NETWORK, VARIANTS, simulate
from simulation.domains import read_network
from simulation.traces import load, offered_load
from tests.public_data import public_data

CHOSEN = "limit+predicted, shortest"


@pytest.fixture(scope="module")
def found() -> dict[str, np.ndarray[Any, Any]]:
    """Wait and bounded slowdown of the jobs of the second half, by variant."""
    trace, network = load(public_data("swf", "hpc2n.swf"), "swf"), read_network(NETWORK)
    assert len(trace.jobs) == 3145
    assert offered_load(trace, network) == pytest.approx(0.42, abs=0.005)
    wanted = [variant for variant in VARIANTS if variant.name in {"declared", CHOSEN}]
    return {variant.name: simulate(variant, trace, network) for variant in wanted}


@pytest.mark.external
def test_easy_with_declared_times_waits_as_another_simulator_found(found: dict[str, np.ndarray[Any, Any]]) -> None:
    """Another simulator (counts of processors instead of nodes) found a mean wait of 3,559 s and a slowdown of 17."""
    wait_s, slowdown = found["declared"].mean(axis=1)
    assert wait_s == pytest.approx(3559, rel=0.05)
    assert slowdown == pytest.approx(17, rel=0.05)


@pytest.mark.external
def test_predictions_make_backfilling_better_than_declared_times(found: dict[str, np.ndarray[Any, Any]]) -> None:
    half = found["declared"].shape[1] // 2
    ratios = found[CHOSEN][:, half:].mean(axis=1) / found["declared"][:, half:].mean(axis=1)
    assert ratios[0] < 0.95, "mean wait"
    assert ratios[1] < 0.9, "mean bounded slowdown"
