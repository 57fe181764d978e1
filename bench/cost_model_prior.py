"""The widths of the calibration's prior (`services/forecast/cost_model/calibration.py`), chosen over families of runs.

Each family is calibrated by drawings of three of its runs with every prior of a grid. What counts is the error of its other
runs as a share of that without calibration, the mean over families: the least is taken. (The most cautious of those within one
standard error of it was taken before; on the groups of `bench/outside_rows.csv` and the like, which choose nothing, it left
0.60 of the error where the least leaves 0.54, and a small change of the model moved it from a reach of four steps to two.)
For a family that is left out, only the other families choose. Which three runs are measured a prior says too (`probes`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from services.forecast.cost_model.calibration import Likeness, Prior, believed
from services.forecast.cost_model.efficiency import Efficiency
from services.forecast.cost_model.evaluation.runs import Run
from services.forecast.cost_model.evaluation.scores import (
    DRAWS,
    drawn_available,
    groups_to_calibrate,
    predicted_steps,
    probes_of,
    telling_of,
    time_score,
    traits_of_runs,
)

PROBES = 3
# How much less probable a step of wider discrepancies is; between 0.1 and 0.8 it decides little.
_WIDER = 0.3
# Priors that differ in the probability of a common discrepancy alone follow one another: they measure the same runs.
GRID = tuple(
    Prior(amplitude, reach, noise, common, _WIDER, kind)
    for amplitude, reach, noise, kind, common in itertools.product(
        (0.06, 0.08), (3.0, 4.0, 6.0, 8.0), (0.03, 0.045), (1.0, 2.0, 4.0), (0.05, 0.1, 0.2)
    )
)


def errors_by_prior(runs: Sequence[Run], efficiency: Efficiency, draws: np.random.Generator) -> np.ndarray:
    """Error of calibrated over that of plain predictions of one family, by prior of ``GRID``: the mean over drawings.

    The family needs more than ``PROBES`` runs in one group; ValueError otherwise.
    """
    cold = np.asarray(predicted_steps(runs, efficiency))
    measured = np.asarray([run.step_s or np.nan for run in runs])
    residuals = np.log(measured / cold)
    traits = traits_of_runs(runs, efficiency)
    groups = groups_to_calibrate(runs, PROBES)
    available = [drawn_available(groups, PROBES, draws) for _ in range(DRAWS)]
    found: list[float] = []
    for _, alike in itertools.groupby(GRID, key=lambda prior: replace(prior, common=0.0)):
        priors = list(alike)
        telling = telling_of(groups, traits, priors[0])
        before, after = 0.0, np.zeros(len(priors))
        for possible in available:
            scored: list[int] = []
            changes: list[np.ndarray] = []
            for probes, others in probes_of(groups, telling, possible, PROBES):
                near = [traits[position] for position in probes]
                among, away = Likeness.of(near, near), Likeness.of([traits[position] for position in others], near)
                changes.append(
                    np.array([believed(residuals[probes], among, away, prior).expected() for prior in priors])
                )
                scored += others
            factors = np.exp(np.concatenate(changes, axis=1))
            before += time_score(cold[scored], measured[scored].tolist()).mape
            after += np.abs(cold[scored] * factors / measured[scored] - 1).mean(axis=1)
        found += (after / before).tolist()
    return np.array(found)


def chosen(errors: Sequence[np.ndarray]) -> Prior:
    """The prior for a family that is none of those whose ``errors_by_prior`` are given."""
    return GRID[int(np.argmin(np.mean(errors, axis=0)))]
