"""Trains the network on some clusters and holds it against boosting and the service's own forecasts on others.

    python -m learning.demand.compare JOBS.csv --test CLUSTER --test CLUSTER [--seeds 5] [--json OUT] [--export MODEL.onnx]

JOBS.csv is a list of jobs as `meridian evaluate demand` reads it. Clusters that are not named by --test are trained on, with
generated lists; the last fifth of each list is for validation. Seeds are those of the training; the replays are the
same. Intervals (95 %) are bootstrapped over days of the test.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

from learning.demand.network import WIDTH, DemandNetwork, exported, forecast, trained
from learning.demand.samples import (
    DAY,
    HORIZONS,
    INPUTS,
    STRUCTURE,
    WINDOW_S,
    Samples,
    generated,
    joined,
    replayed,
    samples_of,
)
from meridian.result import DataSource, Row, Setting, command_line, print_table, write
from services.forecast.job_list import read_jobs, without

_LABELS = ("10m", "1h")
_DRAWS = 500
Array = npt.NDArray[np.float64]


def data(path: Path, tested: frozenset[str], seed: int, lists: int) -> tuple[Samples, Samples, dict[str, Samples]]:
    """Training, validation, and tests by share of jobs with steps."""
    table = read_jobs(path)
    own = without(table.jobs, tested)
    held_out = without(table.jobs, frozenset(own.domain_names))
    train, validation = [], []
    shown = [(own, 0.0), (own, 1.0)] + [(generated(1000 * seed + n), float(n % 2)) for n in range(lists)]
    for jobs, share in shown:
        found = replayed(jobs, share, seed)
        whole = samples_of(found, 4 * DAY)
        late = whole.day >= int(found.value.shape[1] // DAY * 0.8)
        train.append(_some(whole, ~late))
        validation.append(_some(whole, late))
    tests = {}
    for share in (0.0, 1.0):
        found = replayed(held_out, share, seed)
        tests[f"steps={share:g}"] = samples_of(found, found.value.shape[1] // 5)
    return joined(train), joined(validation), tests


def _some(samples: Samples, which: npt.NDArray[np.bool_]) -> Samples:
    parts = {name: getattr(samples, name)[which] for name in Samples.__slots__ if name != "made"}
    return Samples(**parts, made={name: part[which] for name, part in samples.made.items()})


def boosted(train: Samples, seed: int) -> list[HistGradientBoostingRegressor]:
    """Trees on absolute errors, per horizon, on what is left after the structure, with the same inputs."""
    models = []
    for place in range(len(HORIZONS)):
        model = HistGradientBoostingRegressor(
            loss="absolute_error", max_iter=150, learning_rate=0.05, min_samples_leaf=100, random_state=seed
        )
        base = train.inputs[:, STRUCTURE + place]
        models.append(model.fit(train.inputs, train.goal[:, place] - base, sample_weight=train.scale))
    return models


def boosted_forecast(models: list[HistGradientBoostingRegressor], samples: Samples) -> Array:
    """Accelerators in demand, [sample, horizon]."""
    change = np.stack(
        [model.predict(samples.inputs) + samples.inputs[:, STRUCTURE + place] for place, model in enumerate(models)],
        axis=-1,
    )
    result: Array = np.maximum(0.0, samples.level[:, None] + samples.scale[:, None] * change)
    return result


def rows_of(made: dict[str, dict[str, list[Array]]], tests: dict[str, list[Samples]], seed: int) -> list[Row]:
    """Accuracy, skill over persistence, its gap to what is served (``both``), and error in windows of change, for each way."""
    rows = []
    for where, samples in tests.items():
        day = np.concatenate([part.day for part in samples])
        value = np.concatenate([part.value for part in samples])
        last = np.concatenate([part.last for part in samples])[:, None]
        base = np.abs(value - last)
        changed = base > 0.1 * np.maximum(last, 1e-12)
        served = np.abs(np.concatenate(made[where]["both"]) - value)
        for name, parts in made[where].items():
            missed = np.abs(np.concatenate(parts) - value)
            for place, label in enumerate(_LABELS):
                moved = changed[:, place]
                # How much more skill than what is served, on the same days.
                gap = served[:, place] - missed[:, place]
                for measure, top, bottom, rest in (
                    ("skill_gap_to_served", gap, base[:, place], False),
                    ("accuracy", missed[:, place], value[:, place], True),
                    ("skill_over_persistence", missed[:, place], base[:, place], True),
                    ("wape_changed_to_persistence", missed[moved, place], base[moved, place], False),
                ):
                    days = day[moved] if measure.startswith("wape") else day
                    ratio, low, high = _ratio(days, top, bottom, np.random.default_rng(seed), rest=rest)
                    baseline = name != "network"
                    # Each training is tested on the same targets.
                    targets = len(top) // len(samples)
                    rows.append(
                        Row(name, f"{measure}_{label}_ratio", ratio, where, low, high, n=targets, baseline=baseline)
                    )
    return rows


def _ratio(
    days: npt.NDArray[np.intp], top: Array, bottom: Array, draws: np.random.Generator, *, rest: bool
) -> tuple[float, float, float]:
    tops, bottoms = np.bincount(days, top), np.bincount(days, bottom)
    seen = np.flatnonzero(bottoms > 0)
    picked = seen[draws.integers(0, len(seen), (_DRAWS, len(seen)))]
    ratios = tops[picked].sum(axis=1) / bottoms[picked].sum(axis=1)
    low, high = np.quantile(1 - ratios if rest else ratios, [0.025, 0.975])
    whole = float(top.sum() / bottom.sum())
    return (1 - whole if rest else whole), float(low), float(high)


def write_card(path: Path, network: DemandNetwork, facts: dict[str, object]) -> None:
    """The card beside the file ``path``."""
    card = {
        "name": "demand/1",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "inputs": INPUTS,
        "horizons_s": [horizon * WINDOW_S for horizon in HORIZONS],
        "width": WIDTH,
        "parameters": sum(part.numel() for part in network.parameters()),
        "torch": torch.__version__.partition("+")[0],
        **facts,
    }
    path.with_suffix(".card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m learning.demand.compare", description=__doc__)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("--test", action="append", required=True, help="a cluster that is tested on")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lists", type=int, default=6, help="generated lists")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--export", type=Path, help="also write the network of the last seed, with its card")
    options = parser.parse_args()
    torch.set_num_threads(1)
    made: dict[str, dict[str, list[Array]]] = {}
    tests: dict[str, list[Samples]] = {}
    network = DemandNetwork()
    train, validation, found = data(options.jobs, frozenset(options.test), options.seed, options.lists)
    for seed in range(options.seed, options.seed + options.seeds):
        network = trained(train, validation, seed, options.epochs)
        trees = boosted(train, seed)
        for where, samples in found.items():
            tests.setdefault(where, []).append(samples)
            ways = {
                "network": forecast(network, samples),
                "boosting": boosted_forecast(trees, samples),
                "level_stays": np.repeat(samples.level[:, None], len(HORIZONS), axis=1),
                "persistence": np.repeat(samples.last[:, None], len(HORIZONS), axis=1),
                **samples.made,
            }
            for name, part in ways.items():
                made.setdefault(where, {}).setdefault(name, []).append(part)
    rows = rows_of(made, tests, options.seed)
    print_table(rows)
    command = command_line("learning.demand.compare")
    if options.json:
        write(options.json, command, [DataSource.of(options.jobs)], options.seed, Setting.OFFLINE, rows)
    if options.export:
        exported(network, options.export)
        figures = [
            {"subject": row.subject, "measure": row.measure, "slice": row.slice, "value": row.value} for row in rows
        ]
        facts = {"command": command, "data": options.jobs.name, "tested_on": options.test, "figures": figures}
        write_card(options.export, network, {"seed": options.seed + options.seeds - 1, **facts})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
