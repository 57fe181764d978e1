"""The cost model on code that no fit has seen: every published run by code base, each left out in turn, each counted once.

    python -m bench.cost_model_code_bases FOLDER [--json OUT]

FOLDER holds the tables of figures; `bench/outside_rows.csv` is read beside them. Compared are, by the mean error of groups of the code base
that is left out: the served parameters; those fitted to the families of the fit without it; those fitted to all rows of other code
bases, an offset for each group; and the served ones times what other code bases are off on average. Fits to all rows are of
a model that is linear in the logarithms of the parameters around the fit to all code bases; errors are of the model itself.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from scipy.optimize import least_squares

from bench.cost_model import HELD_OUT, efficiency_of, family_of, load_runs
from bench.cost_model_later_data import later_rows
from bench.result import DataSource, Setting, command_line, print_table, write
from bench.result import Row as Figure
from services.forecast.cost_model.calibration import PRIOR as CALIBRATION
from services.forecast.cost_model.calibration import Prior
from services.forecast.cost_model.efficiency import BOUNDS, NAMES, PRIOR, fitted, to_mapping
from services.forecast.cost_model.evaluation.runs import Run, read_runs, run_of
from services.forecast.cost_model.evaluation.scores import calibrated_draws, predicted_steps, time_score

OUTSIDE = Path(__file__).parent / "outside_rows.csv"
# By how a group's name begins, the first that fits. NeMo, Megatron-Bridge, the recipes of dgxc-benchmarking and MLPerf's GPT-3 are one.
CODE_BASES = {
    "vtrain": "Megatron-LM of 2021",
    "megatron-a100": "Megatron-LM of 2021",
    "megascale": "Megatron-LM of 2021",
    "bigscience-megatron-zero3": "DeepSpeed",
    "bigscience-megatron-deepspeed": "Megatron-DeepSpeed",
    "bigscience-megatron": "Megatron-LM of 2021",
    "bigscience-hf": "DeepSpeed",
    "bigscience": "Megatron-DeepSpeed",
    "bloom": "Megatron-DeepSpeed",
    "flagperf-megatron-deepspeed": "Megatron-DeepSpeed",
    "flagperf-deepspeed": "DeepSpeed",
    "deepspeed-zero3": "DeepSpeed",
    "deepseek": "HAI-LLM",
    "megatron": "Megatron-Core",
    "mcore": "Megatron-Core",
    "flagscale": "FlagScale",
    "nemo": "NeMo",
    "mlperf": "NeMo",
    "dgxc": "NeMo",
    "bridge": "NeMo",
    "automodel": "AutoModel",
    "maxtext": "MaxText",
    "tpu": "MaxText",
    "pax": "Pax",
    "palm": "T5X",
    "mosaic": "llm-foundry",
    "torchtitan": "PyTorch FSDP",
    "fms": "PyTorch FSDP",
    "paddle": "PaddlePaddle",
    "internevo": "InternEvo",
    "nanotron": "nanotron",
    "ascend": "AscendSpeed",
    "trainium": "Neuron",
}
# Rows of a group in a fit, and of vTrain on one node.
_MOST_ROWS, _MOST_OF_LARGEST = 60, 160
_LARGEST = "vtrain-single"
_GROUP_WEIGHT, _CODE_BASE_WEIGHT = 10.0, 10.0
_PRIOR_SPREAD, _OFFSET_SPREAD, _NOISE, _NOISE_BOUNDS = 0.35, 0.12, 0.07, (0.05, 0.4)
_ROUNDS, _STEP, _FURTHEST, _WIDEST_OFFSET = 3, 0.02, 0.5, 2.0
PROBES = 3
# Widths of the calibration that are compared: probability of a common discrepancy and of a step of widening.
OTHER_WIDTHS = {
    "served": CALIBRATION,
    "nothing_common": replace(CALIBRATION, common=0.0, wider=0.0),
    "common_0.02": replace(CALIBRATION, common=0.02, wider=0.1),
    "common_0.05": replace(CALIBRATION, common=0.05),
    "common_0.2": replace(CALIBRATION, common=0.2, wider=0.5),
    "common_0.4": replace(CALIBRATION, common=0.4, wider=0.5),
    "reach_2": replace(CALIBRATION, reach=2.0, common=0.2, wider=0.5),
}


def code_base_of(group: str) -> str:
    """The code base of a group; KeyError when none is known."""
    try:
        return next(name for start, name in CODE_BASES.items() if group.startswith(start))
    except StopIteration:
        raise KeyError(f"{group}: of no known code base") from None


@dataclass(frozen=True)
class Rows:
    """Runs, their groups (families), code bases and which are in the fit that is served."""

    runs: list[Run]
    groups: np.ndarray
    code_bases: np.ndarray
    in_fit: np.ndarray

    def of(self, members: np.ndarray) -> list[Run]:
        """Some of the runs."""
        return [self.runs[index] for index in np.flatnonzero(members)]


def load(folder: Path) -> Rows:
    """All rows with a step time."""
    families = load_runs(folder)
    outside = [run for run in read_runs(OUTSIDE)[0] if run.step_s is not None]
    later = [run_of(row, number) for number, row in enumerate(later_rows(folder), start=1)]
    runs = [*families, *outside, *later]
    groups = np.array([family_of(run) for run in runs])
    in_fit = np.array([number < len(families) and group not in HELD_OUT for number, group in enumerate(groups)])
    return Rows(runs, groups, np.array([code_base_of(group) for group in groups]), in_fit)


def thinned(rows: Rows, seed: int) -> Rows:
    """With at most so many rows of a group as a fit takes."""
    draws = np.random.default_rng(seed)
    kept: list[int] = []
    for group in dict.fromkeys(rows.groups.tolist()):
        members = draws.permutation(np.flatnonzero(rows.groups == group))
        kept += sorted(members[: _MOST_OF_LARGEST if group == _LARGEST else _MOST_ROWS].tolist())
    at = np.array(kept)
    return Rows([rows.runs[index] for index in kept], rows.groups[at], rows.code_bases[at], rows.in_fit[at])


_START = np.log([to_mapping(PRIOR)[name] for name in NAMES])
_LOW, _HIGH = (np.log([BOUNDS[name][side] for name in NAMES]) for side in (0, 1))


@dataclass(frozen=True)
class Linear:
    """ln(predicted) of runs around a point, and its slopes (runs x parameters)."""

    at: np.ndarray
    values: np.ndarray
    slopes: np.ndarray

    @classmethod
    def around(cls, runs: Sequence[Run], at: np.ndarray) -> Linear:
        """By differences."""

        def predicted(point: np.ndarray) -> np.ndarray:
            return np.log(predicted_steps(runs, efficiency_of(point)))

        values, slopes = predicted(at), []
        for index in range(len(at)):
            step = np.zeros(len(at))
            step[index] = _STEP if at[index] + _STEP < _HIGH[index] else -_STEP
            slopes.append((predicted(at + step) - values) / step[index])
        return cls(at, values, np.array(slopes).T)


def solved(rows: Rows, members: np.ndarray, linear: Linear) -> np.ndarray:
    """Logarithms of the parameters that explain some of the rows best: each code base weighs once, each group has an offset."""
    groups, group = np.unique(rows.groups[members], return_inverse=True)
    bases, base = np.unique(rows.code_bases[members], return_inverse=True)
    counts = np.bincount(group)
    weights = np.minimum(counts, _GROUP_WEIGHT)
    totals = np.array([weights[[code_base_of(name) == each for name in groups]].sum() for each in bases])
    share = weights[group] / counts[group] * np.minimum(totals, _CODE_BASE_WEIGHT)[base] / totals[base]
    measured = np.log([run.step_s or np.nan for run in rows.of(members)])
    values, slopes = linear.values[members], linear.slopes[members]
    size, number = len(NAMES), len(groups)
    low = np.concatenate([np.maximum(_LOW, linear.at - _FURTHEST), np.full(number, -_WIDEST_OFFSET)])
    high = np.concatenate([np.minimum(_HIGH, linear.at + _FURTHEST), np.full(number, _WIDEST_OFFSET)])
    found = np.concatenate([linear.at, np.zeros(number)])
    noise = np.full(number, _NOISE)
    for _ in range(_ROUNDS):
        weight = np.sqrt(share) / noise[group]
        offsets = np.zeros((len(measured), number))
        offsets[np.arange(len(measured)), group] = weight
        left = np.block(
            [
                [slopes * weight[:, None], offsets],
                [np.eye(size) / _PRIOR_SPREAD, np.zeros((size, number))],
                [np.zeros((number, size)), np.eye(number) / _OFFSET_SPREAD],
            ]
        )
        wanted = (measured - values + slopes @ linear.at) * weight
        right = np.concatenate([wanted, _START / _PRIOR_SPREAD, np.zeros(number)])

        def residuals(at: np.ndarray, left: np.ndarray = left, right: np.ndarray = right) -> np.ndarray:
            return np.asarray(left @ at - right)

        def jacobian(_: np.ndarray, left: np.ndarray = left) -> np.ndarray:
            return left

        start = np.clip(found, low + 1e-9, high - 1e-9)
        found = least_squares(residuals, start, jacobian, bounds=(low, high), loss="soft_l1", max_nfev=60).x
        error = values + slopes @ (found[:size] - linear.at) + found[size:][group] - measured
        noise = np.clip(np.sqrt(np.bincount(group, error**2) / counts), *_NOISE_BOUNDS)
    return np.asarray(found[:size])


def left_out_by_fits(rows: Rows, train: np.ndarray, seed: int) -> np.ndarray:
    """Step times of all rows, each code base by parameters that were fitted to those of ``train`` of the others."""
    few = thinned(rows, seed)
    fit_rows = thinned(Rows(rows.runs, rows.groups, rows.code_bases, train), seed).in_fit
    at = np.log([to_mapping(fitted())[name] for name in NAMES])
    for _ in range(2):
        at = solved(few, fit_rows, Linear.around(few.runs, at))
    linear = Linear.around(few.runs, at)
    found = np.zeros(len(rows.runs))
    for name in np.unique(rows.code_bases):
        without = solved(few, fit_rows & (few.code_bases != name), linear)
        members = rows.code_bases == name
        found[members] = predicted_steps(rows.of(members), efficiency_of(without))
    return found


def shifted(rows: Rows, predicted: np.ndarray, average: Callable[[Sequence[float]], float]) -> np.ndarray:
    """Predictions times what the other code bases are off on ``average``."""
    measured = np.array([run.step_s or np.nan for run in rows.runs])
    off = np.log(measured / predicted)
    of_group = {group: float(off[rows.groups == group].mean()) for group in dict.fromkeys(rows.groups.tolist())}
    bases = np.unique(rows.code_bases).tolist()
    of_base = {
        name: float(np.mean([value for group, value in of_group.items() if code_base_of(group) == name]))
        for name in bases
    }
    factors = {name: np.exp(average([of_base[other] for other in bases if other != name])) for name in bases}
    return np.asarray(predicted * np.array([factors[name] for name in rows.code_bases.tolist()]))


def figures(subject: str, rows: Rows, errors: dict[str, float]) -> list[Figure]:
    """Means over groups and over code bases, and each group."""
    values = np.array(list(errors.values()))
    bases = np.array([code_base_of(group) for group in errors])
    by_base = [float(values[bases == name].mean()) for name in np.unique(bases)]
    measure = "step_time_mape_ratio"
    counts = {group: int((rows.groups == group).sum()) for group in errors}
    return [
        Figure(subject, measure, float(values.mean()), "mean of groups", n=len(values)),
        Figure(subject, measure, float(np.median(values)), "median of groups", n=len(values)),
        Figure(subject, measure, float(np.mean(by_base)), "mean of code bases", n=len(by_base)),
        *(Figure(subject, measure, value, f"group={group}", n=counts[group]) for group, value in errors.items()),
    ]


def errors_of(rows: Rows, predicted: np.ndarray) -> dict[str, float]:
    """MAPE by group."""
    found = {}
    for group in dict.fromkeys(rows.groups.tolist()):
        members = rows.groups == group
        measured = [run.step_s or np.nan for run in rows.of(members)]
        found[group] = time_score(predicted[members], measured).mape
    return found


def calibrated_errors(rows: Rows, seed: int, prior: Prior) -> dict[str, float]:
    """MAPE by group after three of its runs, by served parameters, the mean over drawings; groups of more than three."""
    found = {}
    for group in dict.fromkeys(rows.groups.tolist()):
        runs = rows.of(rows.groups == group)
        if len(runs) <= PROBES:
            continue
        scores = []
        for draw in calibrated_draws(runs, fitted(), PROBES, np.random.default_rng(seed), prior):
            scored = np.flatnonzero(~np.isnan(draw.predicted_s)).tolist()
            if scored:
                scores.append(time_score(draw.predicted_s[scored], [runs[at].step_s or np.nan for at in scored]).mape)
        if scores:
            found[group] = float(np.mean(scores))
    return found


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, dest="out", metavar="OUT")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows = load(arguments.folder)
    served = np.array(predicted_steps(rows.runs, fitted()))
    everything = np.ones(len(rows.runs), dtype=bool)
    ways = {
        "served": served,
        "fitted_to_families_of_the_fit_without_it": left_out_by_fits(rows, rows.in_fit, arguments.seed),
        "fitted_to_all_other_code_bases": left_out_by_fits(rows, everything, arguments.seed),
        "served_times_mean_of_others": shifted(rows, served, lambda values: float(np.mean(values))),
        "served_times_half_median_of_others": shifted(rows, served, lambda values: float(np.median(values)) / 2),
    }
    found: list[Figure] = []
    for name, predicted in ways.items():
        found += figures(f"cold_{name}", rows, errors_of(rows, predicted))
    for name, prior in OTHER_WIDTHS.items():
        found += figures(f"calibrated_3_{name}", rows, calibrated_errors(rows, arguments.seed, prior))
    if arguments.out:
        sources = [DataSource.of(path) for path in [*sorted(arguments.folder.glob("*.csv")), OUTSIDE]]
        command = command_line("bench.cost_model_code_bases")
        write(arguments.out, command, sources, arguments.seed, Setting.OFFLINE, found)
    print_table([each for each in found if not (each.slice or "").startswith("group=")])


if __name__ == "__main__":
    main()
