"""What figures of calibrated families rest on."""

import numpy as np

from bench.cost_model import drawn_rows, gain_rows
from services.forecast.cost_model import fitted
from services.forecast.cost_model.evaluation.runs import run_of
from services.forecast.cost_model.evaluation.scores import calibrated_draws, predicted_steps
from tests.unit.bench.published_row import ROW

TIMED = {**ROW, "step_s": "20"}


def test_runs_that_did_not_calibrate_are_counted_by_group() -> None:
    """Of groups of 6, 5 and 3 runs three each calibrate, the third has none left: 3 + 2 are scored."""
    runs = [
        run_of({**TIMED, "group": group, "gbs": str(64 * number)})
        for group, count in (("a", 6), ("a-large", 5), ("a-small", 3))
        for number in range(1, count + 1)
    ]
    draws = [draw.predicted_s for draw in calibrated_draws(runs, fitted(), 3, np.random.default_rng(0))]
    rows = drawn_rows("subject", "family=a", runs, draws, baseline=False)
    rows += gain_rows("family=a", runs, predicted_steps(runs, fitted()), draws)
    assert [row.n for row in rows] == [5, 5]
