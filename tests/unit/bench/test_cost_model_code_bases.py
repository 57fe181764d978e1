"""Code bases that are left out: which group is of which, and what the others say of one, by hand."""

from statistics import fmean

import numpy as np
import pytest

from bench.cost_model_code_bases import Rows, code_base_of, errors_of, figures, left_out_by_fits, shifted
from services.forecast.cost_model import fitted
from services.forecast.cost_model.evaluation.runs import Run, run_of
from services.forecast.cost_model.evaluation.scores import predicted_steps
from tests.unit.bench.published_row import ROW


def _rows(slower: dict[str, float]) -> Rows:
    """Two runs of each group, which take so many times what the served parameters say."""
    runs: list[Run] = []
    for group, factor in slower.items():
        for batch in (64, 128):
            row = {**ROW, "group": group, "gbs": str(batch)}
            (seconds,) = predicted_steps([run_of(row)], fitted())
            runs.append(run_of({**row, "step_s": repr(seconds * factor)}))
    groups = np.array([run.group for run in runs])
    bases = np.array([code_base_of(group) for group in groups.tolist()])
    return Rows(runs, groups, bases, np.ones(len(runs), dtype=bool))


def test_code_bases() -> None:
    assert code_base_of("bigscience-megatron-zero3") == "DeepSpeed"
    assert code_base_of("bigscience-megatron-largest") == "Megatron-LM of 2021"
    assert code_base_of("megatron-core-0.6-a100") == "Megatron-Core"
    with pytest.raises(KeyError, match="unheard-of"):
        code_base_of("unheard-of")


def test_each_code_base_counts_once_in_what_others_are_off() -> None:
    rows = _rows({"mosaic": 1.0, "nemo-a": 1.2, "nemo-b": 1.2, "nanotron": 1.5})
    served = np.array(predicted_steps(rows.runs, fitted()))
    found = shifted(rows, served, fmean) / served
    # Of mosaic the others are NeMo (two groups, one code base) and nanotron.
    assert found[0] == pytest.approx(np.sqrt(1.2 * 1.5))
    assert found[-1] == pytest.approx(np.sqrt(1.2))
    errors = errors_of(rows, served)
    assert errors == pytest.approx({"mosaic": 0.0, "nemo-a": 1 / 6, "nemo-b": 1 / 6, "nanotron": 1 / 3})
    means = {each.slice: each.value for each in figures("served", rows, errors)}
    assert means["mean of groups"] == pytest.approx((1 / 3 + 1 / 3) / 4)
    assert means["mean of code bases"] == pytest.approx((1 / 6 + 1 / 3) / 3)


def test_a_fit_knows_nothing_of_the_code_base_that_is_left_out() -> None:
    """Times of nanotron change what is said of the others, never what is said of nanotron."""
    plain, odd = (_rows({"mosaic": 1.0, "nemo-a": 1.1, "nanotron": factor}) for factor in (1.0, 1.6))
    before, after = (left_out_by_fits(rows, rows.in_fit, 0) for rows in (plain, odd))
    own = plain.code_bases == "nanotron"
    assert after[own] == pytest.approx(before[own], rel=0.02)
    assert (after[~own] > before[~own]).all()
