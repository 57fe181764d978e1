"""Backfilling by what users declare, by predictions and by the truth on HPC2N: `python bench/backfill.py [--json OUT]`.

Setting "offline": the HPC2N log (Parallel Workloads Archive, cleaned; the first 3,145 jobs) on its own cluster of 120 nodes
with 2 processors, simulated at its own load and with submissions closer together. All variants are EASY backfilling with one
reservation through the real core; they differ in the run times that it rests on:

- declared, exact: users' estimates; an oracle.
- predicted, high: median and upper end of the band of `RunTimePredictor`, which learns from jobs that ended before.
- limit+predicted: the reservation rests on declared limits, what may overtake on predictions.
- shortest: units that may overtake are asked shortest first (SJBF; Tsafrir, Etsion and Feitelson, TPDS 2007).

The variant with predictions is chosen on jobs of the first half (least product of wait and slowdown against "declared", over
all loads) and compared on those of the second half. The interval of the ratio is a bootstrap over contiguous parts of it.
Bounded slowdown: (wait + run) / max(run, 10 s), at least 1.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.public_data import add_data_option
from bench.result import DataSource, Row, Setting, command_line, print_table, write
from simulation.domains import read_network
from simulation.engine import Simulation
from simulation.model import Network, Trace
from simulation.policies import setting
from simulation.setting import Setting as PolicySetting
from simulation.setting import with_policy
from simulation.traces import load, offered_load, scaled

NETWORK = Path(__file__).parent.parent / "simulation/networks/hpc2n.yaml"
PARTS = 6
DRAWS = 1000


@dataclass(frozen=True, slots=True)
class Variant:
    """What EASY rests on: ``knowledge`` of the simulator, and fields of the policy."""

    name: str
    knowledge: str
    changes: dict[str, Any]

    @property
    def learned(self) -> bool:
        """Whether it rests on predictions."""
        return self.knowledge == "predicted"


VARIANTS = (
    Variant("declared", "declared", {"estimate": "limit"}),
    Variant("declared, shortest", "declared", {"estimate": "limit", "backfill_order": "shortest"}),
    Variant("exact", "exact", {}),
    Variant("exact, shortest", "exact", {"backfill_order": "shortest"}),
    Variant("predicted", "predicted", {}),
    Variant("predicted, shortest", "predicted", {"backfill_order": "shortest"}),
    Variant("high", "predicted", {"estimate": "high"}),
    Variant("high, shortest", "predicted", {"estimate": "high", "backfill_order": "shortest"}),
    Variant("limit+predicted", "predicted", {"estimate": "limit", "backfill_estimate": "expected"}),
    Variant(
        "limit+predicted, shortest",
        "predicted",
        {"estimate": "limit", "backfill_estimate": "expected", "backfill_order": "shortest"},
    ),
)


def simulate(variant: Variant, trace: Trace, network: Network) -> np.ndarray[Any, Any]:
    """Wait (s) and bounded slowdown of every job in order of submission, (2, jobs)."""
    easy = setting("easy")
    chosen = with_policy(PolicySetting(variant.name, easy.policy, variant.knowledge), name="easy", **variant.changes)
    measures = Simulation(network, trace, chosen).run()
    if measures.unfinished:
        raise RuntimeError(f"{variant.name}: {measures.unfinished} jobs did not end")
    found = {job.job_id: (job.wait_s, job.slowdown) for job in measures.jobs}
    return np.array([found[job.job_id] for job in trace.jobs]).T


def ratio_interval(found: np.ndarray[Any, Any], base: np.ndarray[Any, Any], seed: int) -> tuple[float, float]:
    """95 % of the ratio of means (jobs; jobs), drawn over contiguous parts with replacement."""
    parts = np.array_split(np.arange(len(found)), PARTS)
    sums = np.array([[found[part].sum(), base[part].sum()] for part in parts])
    drawn = np.random.default_rng(seed).integers(0, PARTS, (DRAWS, PARTS))
    totals = sums[drawn].sum(axis=1)
    low, high = np.quantile(totals[:, 0] / totals[:, 1], [0.025, 0.975])
    return float(low), float(high)


def rows_of(trace: Trace, network: Network, loads: Sequence[float], names: Sequence[str], seed: int) -> list[Row]:
    """The table over all loads and variants, and the chosen variant against declared run times."""
    variants = [variant for variant in VARIANTS if variant.name in names]
    half = len(trace.jobs) // 2
    found: dict[tuple[float, str], np.ndarray[Any, Any]] = {}
    rows: list[Row] = []
    for at in loads:
        jobs = scaled(trace, network, at) if at else trace
        where = f"load={offered_load(jobs, network):.2f}"
        for variant in variants:
            values = found[at, variant.name] = simulate(variant, jobs, network)
            for name, part in (("first", values[:, :half]), ("second", values[:, half:])):
                for measure, each in zip(("wait_mean_s", "bounded_slowdown_mean_ratio"), part, strict=True):
                    place = f"{where} half={name}"
                    rows.append(
                        Row(
                            variant.name,
                            measure,
                            float(each.mean()),
                            place,
                            n=part.shape[1],
                            baseline=not variant.learned,
                        )
                    )
            print(f"{where} {variant.name}: {values[:, half:].mean(axis=1).round(2)}", file=sys.stderr, flush=True)
    learned = [variant.name for variant in variants if variant.learned]
    if not learned or "declared" not in names:
        return rows

    def cost(name: str) -> float:
        ratios = [found[at, name][:, :half].mean(axis=1) / found[at, "declared"][:, :half].mean(axis=1) for at in loads]
        return float(np.log(ratios).sum())

    best = min(learned, key=cost)
    for at in loads:
        where = f"load={offered_load(scaled(trace, network, at) if at else trace, network):.2f} half=second"
        for number, measure in enumerate(("wait_to_declared_ratio", "bounded_slowdown_to_declared_ratio")):
            ours, base = found[at, best][number, half:], found[at, "declared"][number, half:]
            low, high = ratio_interval(ours, base, seed)
            value = float(ours.mean() / base.mean())
            rows.append(Row(f"chosen: {best}", measure, value, where, low=low, high=high, n=PARTS))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_data_option(parser)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.0, 0.8, 0.9], help="0: the log's own")
    parser.add_argument("--variants", nargs="+", default=[variant.name for variant in VARIANTS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="OUT")
    arguments = parser.parse_args()
    path = arguments.data / "swf/hpc2n.swf"
    if not path.exists():
        parser.error(f"--data: no {path} (set MERIDIAN_DATA)")
    unknown = set(arguments.variants) - {variant.name for variant in VARIANTS}
    if unknown:
        parser.error(f"--variants: {min(unknown)!r} is none of {', '.join(repr(each.name) for each in VARIANTS)}")
    if not all(math.isfinite(at) and at >= 0 for at in arguments.loads):
        parser.error("--loads: numbers of at least 0 are wanted")
    rows = rows_of(load(path, "swf"), read_network(NETWORK), arguments.loads, arguments.variants, arguments.seed)
    print_table(rows)
    if arguments.json:
        command = command_line("bench.backfill")
        write(arguments.json, command, [DataSource.of(path)], arguments.seed, Setting.OFFLINE, rows)
        print(f"written: {arguments.json}")


if __name__ == "__main__":
    main()
