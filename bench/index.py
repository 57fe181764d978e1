"""The compute index on published tables: `python bench/index.py [--data DIR] [--sets NAME ...] [--json OUT]`.

Each chip is left out with all its rows and predicted from the others (setting "offline"), without probe runs and with 1
and 3 of them, beside the ratio of peaks, the ratio of bandwidths, the mean of the probe runs, one number per chip fitted
to the truth, and the noise floor. Sets:

lambda    lambda_gpu_matrix.csv, first suite: 12 GPUs, 10 tasks, two precisions, 1 to 8 GPUs
lambda-1  the same on one GPU; all four were development for function 3, the tables that were not are named in docs/index.md
mlperf    mlperf_training_systems.csv: throughput is 1 / minutes to train; rounds are groups; rows without a number of
          accelerators are left aside, and rows of two submitters with the same chip and scale are repeats
gavel     gavel_throughputs.csv: K80, P100, V100; placements are groups; single precision, as the source ran it
ascend    ascend910b_vs_reference_pairs.csv: the reference chip is unnamed, so nothing can be said from facts; the ratio of
          a model is predicted from the ratios of the other models of its snapshot (leave one model out)
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.public_data import add_data_option
from bench.result import DataSource, Row, Setting, command_line, print_table, write
from meridian.hardware import standard
from meridian.text_table import TextTable
from services.telemetry.index.evaluation import leave_one_chip_out
from services.telemetry.index.matrix import assemble
from services.telemetry.index.report import rows_of

Line = tuple[int, dict[str, str | None]]


def _read(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    return TextTable(path).rows()


def lambda_rows(path: Path) -> Iterator[Line]:
    """First suite; the number of GPUs is in the name."""
    for line, row in _read(path):
        if row["suite"] == "v1":
            yield line, {"chip": row["name"], **{name: row[name] for name in ("task", "throughput", "precision")}}


def lambda_single_rows(path: Path) -> Iterator[Line]:
    """First suite on one GPU."""
    catalogue = standard()
    for line, cells in lambda_rows(path):
        if (catalogue.resolve(cells["chip"] or "").count or 1) == 1:
            yield line, cells


def mlperf_rows(path: Path) -> Iterator[Line]:
    """Inverse of the minutes to train, with the scaling of reference convergence where the round asks for it."""
    for line, row in _read(path):
        minutes = row["minutes_official_est"] or row["minutes_olympic"]
        if row["n_accel"] in {"", "0"} or not minutes or float(minutes) <= 0:
            continue
        yield (
            line,
            {
                "chip": row["accel_raw"] or row["accelerator"],
                "task": row["benchmark"],
                "throughput": repr(1 / float(minutes)),
                "n_accel": row["n_accel"],
                "group": row["round"],
            },
        )


def gavel_rows(path: Path) -> Iterator[Line]:
    """Steps per second by job type and placement."""
    for line, row in _read(path):
        yield (
            line,
            {
                "chip": row["worker"],
                "task": row["job_type"],
                "throughput": row["steps_per_s"],
                "precision": "fp32",
                "n_accel": row["scale_factor"],
                "group": row["placement"],
            },
        )


SETS: Mapping[str, tuple[str, Callable[[Path], Iterator[Line]]]] = {
    "lambda-1": ("lambda_gpu_matrix.csv", lambda_single_rows),
    "lambda": ("lambda_gpu_matrix.csv", lambda_rows),
    "mlperf": ("mlperf_training_systems.csv", mlperf_rows),
    "gavel": ("gavel_throughputs.csv", gavel_rows),
}


def ascend_scores(path: Path) -> list[Row]:
    """Leave-one-model-out errors of the ratio Ascend 910B / unnamed reference.

    The index here is what it is when no facts are known: a level, and what models of one family and of like size have in
    common (variances 0.01 each, not tuned). Baseline: the geometric mean of the other models.
    """
    snapshots: dict[str, list[dict[str, str]]] = {}
    for _, row in _read(path):
        snapshots.setdefault(row["snapshot"], []).append(row)
    errors: dict[str, list[float]] = {"index_other_models": [], "constant_ratio": []}
    rows = []
    for snapshot, models in sorted(snapshots.items()):
        ratios = np.log([float(row["npu_910b_tok_s_p"]) / float(row["reference_tok_s_p"]) for row in models])
        sizes = np.log([_billions(row["size"]) for row in models])
        family = np.array([row["model"].rstrip("23") for row in models])
        alike = 0.01 * (family[:, None] == family[None]) + 0.01 * np.exp(-0.5 * (sizes[:, None] - sizes[None]) ** 2)
        own: dict[str, list[float]] = {name: [] for name in errors}
        for index in range(len(models)):
            others = [other for other in range(len(models)) if other != index]
            level = ratios[others].mean()
            covariance = alike[np.ix_(others, others)] + 0.01 * np.eye(len(others))
            predicted = level + alike[index, others] @ np.linalg.solve(covariance, ratios[others] - level)
            own["index_other_models"].append(abs(float(np.expm1(predicted - ratios[index]))))
            own["constant_ratio"].append(abs(float(np.expm1(level - ratios[index]))))
        for name, values in own.items():
            errors[name] += values
            rows += _ratio_rows(name, values, f"set=ascend, snapshot={snapshot}")
    pooled = [row for name, values in errors.items() for row in _ratio_rows(name, values, "set=ascend")]
    return [*pooled, *rows]


def _billions(text: str) -> float:
    number = text.upper().rstrip("B").replace("B", ".")
    if "X" in number:
        count, _, each = number.partition("X")
        return float(count) * float(each)
    return float(number)


def _ratio_rows(name: str, errors: Sequence[float], part: str) -> list[Row]:
    values = np.array(errors)
    baseline = name == "constant_ratio"
    return [
        Row(name, "mape_ratio", float(values.mean()), part, None, None, len(values), baseline),
        Row(name, "median_error_ratio", float(np.median(values)), part, None, None, len(values), baseline),
        Row(name, "within_10_percent_ratio", float((values <= 0.1).mean()), part, None, None, len(values), baseline),
    ]


def scored(name: str, path: Path, seed: int) -> list[Row]:
    """Rows of the set ``name``, their slices named after it."""
    catalogue = standard()
    matrix = assemble(SETS[name][1](path), catalogue)
    draws = np.random.default_rng(seed)
    rows = rows_of(leave_one_chip_out(matrix, catalogue, (0, 1, 3), draws), matrix, draws)
    return [replace(row, slice=f"set={name}" if row.slice == "all" else f"set={name}, {row.slice}") for row in rows]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_option(parser)
    parser.add_argument("--sets", nargs="+", choices=[*SETS, "ascend"], default=[*SETS, "ascend"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="OUT")
    arguments = parser.parse_args()
    rows: list[Row] = []
    files = []
    for name in arguments.sets:
        file = "ascend910b_vs_reference_pairs.csv" if name == "ascend" else SETS[name][0]
        path = arguments.data / "figures" / file
        files.append(path)
        rows += ascend_scores(path) if name == "ascend" else scored(name, path, arguments.seed)
    print_table([row for row in rows if "," not in row.slice])
    if arguments.json is not None:
        sources = [DataSource.of(path, f"figures/{path.name}") for path in dict.fromkeys(files)]
        write(arguments.json, command_line("bench.index"), sources, arguments.seed, Setting.OFFLINE, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
