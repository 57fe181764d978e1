"""The cost model on the public figures. MERIDIAN_DATA names the folder that holds `figures`."""

import numpy as np
import pytest

from bench.cost_model import family_of, load_runs
from bench.cost_model_code_bases import code_base_of
from bench.cost_model_later_data import later_rows
from services.forecast.cost_model import fitted
from services.forecast.cost_model.evaluation.runs import Run, run_of
from services.forecast.cost_model.evaluation.scores import (
    calibrated_draws,
    constant_mfu,
    predicted_steps,
    time_score,
)
from tests.public_data import public_data

pytestmark = [pytest.mark.external, pytest.mark.timeout(300)]

# What the served parameters reach, rounded up; dgxc, tpu-v6e, torchtitan, paddle-a100 and bridge-moe are in no fit.
WORST_MAPE = {
    "vtrain-single": 0.11,
    "vtrain-39b": 0.10,
    "mosaic-a100": 0.06,
    "mosaic-h100": 0.08,
    "megatron-a100": 0.08,
    "megatron-h100": 0.08,
    "dgxc-bf16": 0.02,
    "dgxc-fp8": 0.06,
    "tpu-v6e": 0.04,
    "torchtitan": 0.10,
    "paddle-a100": 0.10,
    "bridge-moe": 0.10,
    "bridge-25.11-dense": 0.08,
    "bridge-25.11-moe": 0.12,
}


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return load_runs(public_data("figures"))


@pytest.mark.parametrize(("family", "worst"), WORST_MAPE.items())
def test_error_of_a_family(runs: list[Run], family: str, worst: float) -> None:
    members = [run for run in runs if family_of(run) == family]
    measured = [run.step_s or 0.0 for run in members]
    assert time_score(predicted_steps(members, fitted()), measured).mape < worst


@pytest.mark.parametrize("family", ["vtrain-single", "vtrain-39b", "megatron-a100", "mosaic-a100"])
def test_better_than_constant_mfu_fitted_to_these_very_rows(runs: list[Run], family: str) -> None:
    members = [run for run in runs if family_of(run) == family]
    measured = [run.step_s or 0.0 for run in members]
    ours, baseline = predicted_steps(members, fitted()), constant_mfu(members)
    assert time_score(ours, measured).mape < time_score(baseline, measured).mape


def test_three_measured_runs_help_on_average_and_hurt_no_family(runs: list[Run]) -> None:
    gains, left = [], []
    for family in sorted({family_of(run) for run in runs}):
        members = [run for run in runs if family_of(run) == family]
        if len(members) < 5:
            continue
        cold = predicted_steps(members, fitted())
        each, after = [], []
        for draw in calibrated_draws(members, fitted(), 3, np.random.default_rng(0)):
            scored = np.flatnonzero(~np.isnan(draw.predicted_s)).tolist()
            measured = [members[position].step_s or 0.0 for position in scored]
            before = time_score([cold[position] for position in scored], measured).mape
            after.append(time_score(draw.predicted_s[scored], measured).mape)
            each.append(before - after[-1])
        gains.append(float(np.mean(each)))
        left.append(float(np.mean(after)))
    assert min(gains) > -0.002
    assert np.mean(gains) > 0.014
    assert np.mean(left) < 0.06


def test_which_code_bases_fuse_the_loss(runs: list[Run]) -> None:
    """Recipes and models whose defaults say so; Megatron-LM leaves it to `--cross-entropy-loss-fusion`, which is off."""
    fused = {family_of(run) for run in runs if run.layout.fused_loss}
    assert fused >= {"mosaic-a100", "mosaic-h100", "bridge-dense", "bridge-25.11-moe", "dgxc-bf16", "tpu-v6e"}
    assert not fused & {"vtrain-single", "vtrain-39b", "megatron-a100", "megatron-h100", "bloom"}


def test_rows_that_were_read_in_last() -> None:
    """Tables that nothing read before: every row can be estimated, each group is of a known code base, and three runs help."""
    later = [run_of(row, number) for number, row in enumerate(later_rows(public_data("figures")), start=1)]
    assert len(later) == 160
    assert len({code_base_of(run.group) for run in later}) == 8
    errors = []
    for draw in calibrated_draws(later, fitted(), 3, np.random.default_rng(0)):
        scored = np.flatnonzero(~np.isnan(draw.predicted_s)).tolist()
        errors.append(time_score(draw.predicted_s[scored], [later[at].step_s or 0.0 for at in scored]).mape)
    cold = time_score(predicted_steps(later, fitted()), [run.step_s or 0.0 for run in later]).mape
    assert float(np.mean(errors)) < 0.09 < cold < 0.23
