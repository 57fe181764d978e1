"""The cost model on published runs: leave-one-family-out, the served parameters, and how they were fitted.

    python -m bench.cost_model FOLDER [--json OUT]            leave-one-family-out and the served parameters
    python -m bench.cost_model FOLDER --fit --write           fit on all families and write what is served
    python -m bench.cost_model FOLDER --rows OUT.csv          the rows, for `meridian evaluate cost-model`
    python -m bench.cost_model FOLDER --rows OUT.csv --later  the rows of tables that were read in last (`cost_model_later_data`)

FOLDER holds the tables of figures (vtrain_ground_truth_*.csv, mosaic_llmfoundry_throughput.csv, ...).

The fit: least squares of ln(predicted / measured) with bounds, a prior around published microbenchmarks, the same weight
for every family, and an offset for each family (its software), so that one slow code base does not bend the parameters.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from scipy.optimize import least_squares

from bench.cost_model_data import all_rows
from bench.cost_model_later_data import later_rows
from bench.cost_model_prior import PROBES, chosen, errors_by_prior
from bench.result import DataSource, Setting, command_line, print_table, write
from bench.result import Row as Figure
from services.forecast.cost_model.calibration import Prior
from services.forecast.cost_model.efficiency import BOUNDS, NAMES, PRIOR, Efficiency, fitted, from_mapping, to_mapping
from services.forecast.cost_model.evaluation.runs import Run, run_of
from services.forecast.cost_model.evaluation.scores import (
    Draw,
    calibrated_as_advised,
    calibrated_draws,
    constant_mfu,
    layout_regrets,
    memory_score,
    predicted_steps,
    time_score,
)

FITTED = Path(__file__).parents[1] / "services/forecast/cost_model/fitted.json"
# A family counts as so many independent runs at most, with errors of this size (of the logarithm).
_FAMILY_WEIGHT, _NOISE = 10, 0.07
# Then each family's own noise, within these bounds, in the second of two rounds.
_NOISE_BOUNDS, _ROUNDS = (0.05, 0.4), 2
_PRIOR_SPREAD, _OFFSET_SPREAD = 0.35, 0.12
_MOST_ROWS = 90
# Families that no fit sees: read in after the served parameters were fixed; and experts, whose steps hold a wait for the
# host that no term describes, which would bend the rates of links and memory.
HELD_OUT = frozenset(
    (
        "dgxc-bf16",
        "dgxc-fp8",
        "tpu-v6e",
        "torchtitan",
        "paddle-a100",
        "bridge-moe",
        "bridge-25.11-dense",
        "bridge-25.11-moe",
    )
)


@dataclass(frozen=True)
class Fit:
    """Parameters, and the offset (ln) of each family in the fit."""

    efficiency: Efficiency
    offsets: dict[str, float]


def family_of(run: Run) -> str:
    """The family that is left out together."""
    return run.group.removesuffix("-large")


def load_runs(folder: Path) -> list[Run]:
    """All runs with a step time; what cannot be used is named on stderr."""
    runs = []
    for number, row in enumerate(all_rows(folder), start=1):
        try:
            run = run_of(row, number)
        except ValueError as error:
            print(f"row {number} ({row['group']}) is left aside: {error}", file=sys.stderr)
            continue
        if run.step_s is not None:
            runs.append(run)
    return runs


def fit(runs: Sequence[Run], seed: int = 0) -> Fit:
    """Fit the parameters to runs of several families."""
    draws = np.random.default_rng(seed)
    families: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if family_of(run) not in HELD_OUT:
            families[family_of(run)].append(run)
    chosen: list[Run] = []
    for members in families.values():
        order = draws.permutation(len(members))[:_MOST_ROWS]
        chosen.extend(members[index] for index in sorted(order.tolist()))
    names = sorted(families)
    belongs = np.array([names.index(family_of(run)) for run in chosen])
    counts = np.bincount(belongs)
    rows = np.sqrt(np.minimum(counts, _FAMILY_WEIGHT) / counts)[belongs]
    weight = rows / _NOISE
    measured = np.log([run.step_s or np.nan for run in chosen])
    start = np.log([to_mapping(PRIOR)[name] for name in NAMES])
    low, high = (np.log([BOUNDS[name][side] for name in NAMES]) for side in (0, 1))

    def residuals(at: np.ndarray) -> np.ndarray:
        parameters, offsets = at[: len(NAMES)], at[len(NAMES) :]
        predicted = np.log(predicted_steps(chosen, efficiency_of(parameters)))
        errors = (predicted + offsets[belongs] - measured) * weight
        return np.concatenate([errors, (parameters - start) / _PRIOR_SPREAD, offsets / _OFFSET_SPREAD])

    def jacobian(at: np.ndarray) -> np.ndarray:
        # Offsets enter linearly: only the parameters need differences.
        base = residuals(at)
        columns = np.zeros((len(base), len(at)))
        for index in range(len(NAMES)):
            step = np.zeros(len(at))
            step[index] = 1e-3 if at[index] + 1e-3 < high[index] else -1e-3
            columns[:, index] = (residuals(at + step) - base) / step[index]
        for index in range(len(names)):
            column = len(NAMES) + index
            columns[: len(chosen), column] = weight * (belongs == index)
            columns[len(chosen) + column, column] = 1 / _OFFSET_SPREAD
        return columns

    wide = np.full(len(names), 1.0)
    at = np.concatenate([start, np.zeros(len(names))])
    for _ in range(_ROUNDS):
        at = least_squares(
            residuals,
            at,
            jacobian,
            bounds=(np.concatenate([low, -wide]), np.concatenate([high, wide])),
            loss="soft_l1",
            max_nfev=12,
            xtol=1e-4,
            ftol=1e-4,
        ).x
        # A family that the model does not explain says less about the parameters: weights by its own noise.
        left = np.log(predicted_steps(chosen, efficiency_of(at[: len(NAMES)]))) - measured + at[len(NAMES) :][belongs]
        noise = np.sqrt(np.bincount(belongs, left**2) / counts)
        weight = rows / np.clip(noise, *_NOISE_BOUNDS)[belongs]
    offsets = dict(zip(names, at[len(NAMES) :].tolist(), strict=True))
    return Fit(efficiency_of(at[: len(NAMES)]), offsets)


def efficiency_of(logarithms: np.ndarray) -> Efficiency:
    """Parameters by their logarithms, in the order of ``NAMES``, brought within their bounds."""
    values = zip(NAMES, np.exp(logarithms).tolist(), strict=True)
    return from_mapping({name: min(max(value, BOUNDS[name][0]), BOUNDS[name][1]) for name, value in values})


def score_rows(
    subject: str, name: str, runs: Sequence[Run], predicted: Sequence[float], *, baseline: bool
) -> list[Figure]:
    """MAPE, bias, share within 10 % and regret of one family."""
    score = time_score(predicted, [run.step_s or np.nan for run in runs])
    rows = [
        Figure(subject, "step_time_mape_ratio", score.mape, name, n=score.count, baseline=baseline),
        Figure(subject, "step_time_bias_ratio", score.bias, name, n=score.count, baseline=baseline),
        Figure(subject, "step_time_within_8_percent_share", score.within_8, name, n=score.count, baseline=baseline),
        Figure(subject, "step_time_within_10_percent_share", score.within_10, name, n=score.count, baseline=baseline),
    ]
    regrets = layout_regrets(runs, predicted)
    if regrets:
        value = float(np.mean(regrets))
        rows.append(Figure(subject, "layout_regret_mean_ratio", value, name, n=len(regrets), baseline=baseline))
    return rows


def drawn_rows(
    subject: str, name: str, runs: Sequence[Run], draws: Sequence[np.ndarray], *, baseline: bool
) -> list[Figure]:
    """MAPE on the runs that did not calibrate: mean and range over the drawings; nothing for small families. Their number is that
    of one drawing: each group of a family has probes of its own, and small groups are left out."""
    scores, count = [], 0
    for predicted in draws:
        scored = [p for p in range(len(runs)) if not np.isnan(predicted[p])]
        if scored:
            count = len(scored)
            scores.append(time_score(predicted[scored], [runs[p].step_s or np.nan for p in scored]).mape)
    if not scores:
        return []
    low, high = min(scores), max(scores)
    return [Figure(subject, "step_time_mape_ratio", float(np.mean(scores)), name, low, high, count, baseline=baseline)]


def memory_rows(runs: Sequence[Run]) -> list[Figure]:
    """Memory of the families that state it; no parameter is fitted to it."""
    rows = []
    for family in sorted({family_of(run) for run in runs}):
        score = memory_score([run for run in runs if family_of(run) == family])
        if score is not None:
            name = f"family={family}"
            rows.append(Figure("cost_model", "memory_mape_ratio", score.mape, name, n=score.count))
            rows.append(Figure("cost_model", "memory_bias_ratio", score.bias, name, n=score.count))
            rows.append(
                Figure("cost_model", "memory_fits_precision_share", score.precision_fits, name, n=score.said_fits)
            )
    return rows


def gain_rows(name: str, runs: Sequence[Run], cold: Sequence[float], draws: Sequence[np.ndarray]) -> list[Figure]:
    """What calibration takes off the MAPE of the runs that did not calibrate: mean and range over the drawings."""
    gains, count = [], 0
    for predicted in draws:
        scored = [p for p in range(len(runs)) if not np.isnan(predicted[p])]
        if scored:
            count = len(scored)
            measured = [runs[p].step_s or np.nan for p in scored]
            before = time_score([cold[p] for p in scored], measured).mape
            gains.append(before - time_score(predicted[scored], measured).mape)
    if not gains:
        return []
    subject, measure = "cost_model_left_out_calibrated_3", "step_time_mape_gain_ratio"
    return [Figure(subject, measure, float(np.mean(gains)), name, min(gains), max(gains), count)]


def advised_rows(name: str, runs: Sequence[Run], after: Draw) -> list[Figure]:
    """After the runs of all of a family that tell most: MAPE of the others, beside constant MFU of the same; nothing for small families."""
    scored = np.flatnonzero(~np.isnan(after.predicted_s)).tolist()
    if not scored:
        return []
    measured = [runs[position].step_s or np.nan for position in scored]
    ways = (
        ("cost_model_left_out_calibrated_3_as_advised", after.predicted_s, False),
        ("constant_mfu_of_advised_3_runs", after.constant_s, True),
    )
    return [
        Figure(
            subject,
            "step_time_mape_ratio",
            time_score(predicted[scored], measured).mape,
            name,
            n=len(scored),
            baseline=baseline,
        )
        for subject, predicted, baseline in ways
    ]


def leave_one_out(runs: Sequence[Run], seed: int, only: str | None) -> list[Figure]:
    """Each family by parameters fitted without it, cold and calibrated by three of its runs, beside constant MFU.

    The widths of the calibration's prior are those that serve the other families best (``cost_model_prior``).
    """
    common = fit(runs, seed).efficiency
    families = sorted({family_of(run) for run in runs})
    held = {family: [run for run in runs if family_of(run) == family] for family in families}
    left_out = {}
    for family in families:
        others = [run for run in runs if family_of(run) != family]
        left_out[family] = common if family in HELD_OUT else fit(others, seed).efficiency
        print(f"{family} fitted without", file=sys.stderr, flush=True)
    errors = {
        family: errors_by_prior(held[family], left_out[family], np.random.default_rng(seed))
        for family in families
        if len(held[family]) > PROBES
    }
    rows = prior_rows("all", chosen(list(errors.values())))
    for family in families:
        if only and family != only:
            continue
        name, members, efficiency = f"family={family}", held[family], left_out[family]
        cold = predicted_steps(members, efficiency)
        rows += score_rows("cost_model_left_out", name, members, cold, baseline=False)
        prior = chosen([each for other, each in errors.items() if other != family])
        rows += prior_rows(name, prior)
        draws = calibrated_draws(members, efficiency, PROBES, np.random.default_rng(seed), prior)
        predicted = [draw.predicted_s for draw in draws]
        rows += drawn_rows("cost_model_left_out_calibrated_3", name, members, predicted, baseline=False)
        rows += gain_rows(name, members, cold, predicted)
        rows += advised_rows(name, members, calibrated_as_advised(members, efficiency, PROBES, prior))
        rows += drawn_rows(
            "constant_mfu_of_same_3_runs", name, members, [draw.constant_s for draw in draws], baseline=True
        )
        rows += score_rows("constant_mfu_of_test_rows", name, members, constant_mfu(members), baseline=True)
    return rows


def prior_rows(name: str, prior: Prior) -> list[Figure]:
    """The widths of a calibration."""
    values = (
        ("amplitude_ln", prior.amplitude),
        ("reach_steps_count", prior.reach),
        ("other_kind_steps_count", prior.kind),
        ("noise_ln", prior.noise),
        ("common_discrepancy_probability", prior.common),
    )
    return [Figure("calibration_prior", measure, value, name) for measure, value in values]


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, dest="out", metavar="OUT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", help="leave out this one only")
    parser.add_argument("--fit", action="store_true", help="fit on all families")
    parser.add_argument("--write", action="store_true", help="write the fitted parameters where they are served from")
    parser.add_argument("--rows", type=Path, metavar="CSV", help="write the rows and stop")
    parser.add_argument("--later", action="store_true", help="with --rows: of the tables that were read in last")
    arguments = parser.parse_args()
    if arguments.rows:
        found = (later_rows if arguments.later else all_rows)(arguments.folder)
        with arguments.rows.open("w", encoding="utf-8", newline="") as stream:
            table = csv.DictWriter(stream, sorted({name for row in found for name in row}))
            table.writeheader()
            table.writerows(found)
        return
    runs = load_runs(arguments.folder)
    if arguments.fit:
        result = fit(runs, arguments.seed)
        served = result.efficiency
        print(json.dumps({"parameters": to_mapping(served), "offsets": result.offsets}, indent=1), file=sys.stderr)
        if arguments.write:
            body = {
                "parameters": {name: float(f"{value:.4g}") for name, value in to_mapping(served).items()},
                "families": {name: f"{offset:+.3f}" for name, offset in result.offsets.items()},
                "command": "python -m bench.cost_model FOLDER --fit --write",
                "seed": arguments.seed,
            }
            FITTED.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    else:
        served = fitted()
    rows = [] if arguments.fit else [*leave_one_out(runs, arguments.seed, arguments.family), *memory_rows(runs)]
    for family in sorted({family_of(run) for run in runs}):
        members = [run for run in runs if family_of(run) == family]
        rows += score_rows(
            "cost_model_served", f"family={family}", members, predicted_steps(members, served), baseline=False
        )
    if arguments.out:
        names = sorted(path for path in arguments.folder.glob("*.csv") if path.name.startswith(_USED))
        sources = [DataSource.of(path) for path in names]
        write(
            arguments.out,
            command_line("bench.cost_model"),
            sources,
            arguments.seed,
            Setting.OFFLINE,
            rows,
        )
    print_table(rows)


_USED = ("vtrain_", "mosaic_", "literature_", "nemo_", "nvidia_dgxc", "tpu_recipes", "flagperf_training")

if __name__ == "__main__":
    main()
