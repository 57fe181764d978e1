"""How the widths of the calibration are chosen: by hand, and on runs with a bias."""

import numpy as np
import pytest

from bench.cost_model_prior import GRID, chosen, errors_by_prior
from services.forecast.cost_model import fitted
from services.forecast.cost_model.calibration import Prior
from services.forecast.cost_model.evaluation.runs import Run, run_of
from services.forecast.cost_model.evaluation.scores import predicted_steps
from tests.unit.bench.published_row import ROW

TIMID, BOLD = Prior(0.06, 3.0, 0.045, 0.05, 0.3, 4.0), Prior(0.08, 8.0, 0.03, 0.2, 0.3, 1.0)


def _errors(**values: float) -> np.ndarray:
    """Errors of a family: 1 for all priors but those named."""
    found = np.ones(len(GRID))
    for name, value in values.items():
        found[GRID.index({"timid": TIMID, "bold": BOLD}[name])] = value
    return found


def test_the_prior_that_leaves_the_other_families_the_least_error_on_average() -> None:
    assert chosen([_errors(bold=0.5, timid=0.8), _errors(bold=0.7, timid=0.6)]) == BOLD
    assert chosen([_errors(bold=0.5, timid=0.8), _errors(bold=1.1, timid=0.7)]) == TIMID


def test_a_family_that_is_slower_throughout_gains_by_calibration() -> None:
    plain = [run_of({**ROW, "gbs": str(64 * n)}) for n in range(1, 7)]
    slower = [1.2 * seconds for seconds in predicted_steps(plain, fitted())]
    runs: list[Run] = [run_of({**ROW, "gbs": str(64 * n), "step_s": str(slower[n - 1])}) for n in range(1, 7)]
    errors = dict(zip(GRID, errors_by_prior(runs, fitted(), np.random.default_rng(0)).tolist(), strict=True))
    # The runs are alike: three of them tell all that noise lets them.
    assert errors[BOLD] < 0.05
    assert errors[BOLD] < errors[TIMID] < 1
    scattered = [
        run_of({**ROW, "gbs": str(64 * n), "step_s": str(slower[n - 1] * (0.5 if n % 2 else 2) / 1.2)})
        for n in range(1, 7)
    ]
    assert min(errors_by_prior(scattered, fitted(), np.random.default_rng(0))) > 0.5
    with pytest.raises(ValueError):
        errors_by_prior(runs[:3], fitted(), np.random.default_rng(0))
