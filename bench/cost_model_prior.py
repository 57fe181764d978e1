"""The widths of the calibration's prior (`services/forecast/cost_model/calibration.py`), chosen over families of runs.

Each family is calibrated by drawings of three of its runs with every prior of a grid. What counts is the error of its other
runs as a share of that without calibration, the mean over families: the least is taken. (The most cautious of those within one
standard error of it was taken before; on the groups of `bench/outside_rows.csv` and the like, which choose nothing, it left
0.60 of the error where the least leaves 0.54, and a small change of the model moved it from a reach of four steps to two.)
For a family that is left out, only the other families choose.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from services.forecast.cost_model.calibration import Likeness, Prior, believed
from services.forecast.cost_model.efficiency import Efficiency
from services.forecast.cost_model.evaluation.runs import Run
from services.forecast.cost_model.evaluation.scores import (
    DRAWS,
    drawn_probes,
    predicted_steps,
    time_score,
    traits_of_runs,
)

PROBES = 3
# How much less probable a step of wider discrepancies is; between 0.1 and 0.8 it decides little.
_WIDER = 0.3
GRID = tuple(
    Prior(amplitude, reach, noise, common, _WIDER)
    for amplitude, reach, noise, common in itertools.product(
        (0.04, 0.06, 0.08), (2.0, 3.0, 4.0), (0.03, 0.045), (0.05, 0.1, 0.2, 0.4)
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
    before, after = 0.0, np.zeros(len(GRID))
    for _ in range(DRAWS):
        scored: list[int] = []
        changes: list[np.ndarray] = []
        for probes, others in drawn_probes(runs, cold, PROBES, draws):
            near = [traits[position] for position in probes]
            among, away = Likeness.of(near, near), Likeness.of([traits[position] for position in others], near)
            seen = residuals[probes]
            changes.append(np.array([believed(seen, among, away, prior).expected() for prior in GRID]))
            scored += others
        factors = np.exp(np.concatenate(changes, axis=1))
        before += time_score(cold[scored], measured[scored].tolist()).mape
        after += np.abs(cold[scored] * factors / measured[scored] - 1).mean(axis=1)
    return np.asarray(after / before)


def chosen(errors: Sequence[np.ndarray]) -> Prior:
    """The prior for a family that is none of those whose ``errors_by_prior`` are given."""
    return GRID[int(np.argmin(np.mean(errors, axis=0)))]
