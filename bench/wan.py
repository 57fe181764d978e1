"""What nearness to data saves: WAN money and completion time of our policy against locality-blind pooling.

    MERIDIAN_DATA=... python -m bench.wan [--jobs N] [--loads 0.8 0.9] [--seeds 5] [--quick] [--json OUT]

Philly's October on five domains (simulation/networks/philly-5.yaml without failures, transfer prices of the public AWS matrix), each job's
input in its home domain, sizes log-normal (median 50 GB, sigma 1.5; simulation/workloads.py) from each seed. A job that starts
elsewhere has its input moved first, over links shared fairly, and holds its accelerators meanwhile. Blind pooling is the same
ordering without any look at data (baseline), the emptiest domain first, and first fit. Ratios are against blind pooling with the
same ordering, seed by seed; low and high are their least and greatest.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from dataclasses import replace
from pathlib import Path

from bench.result import DataSource, Row, Setting, command_line, print_table, write
from simulation.domains import read_network
from simulation.engine import Simulation
from simulation.policies import setting as policy_named
from simulation.traces import load, scaled
from simulation.workloads import with_data

NETWORK = Path(__file__).parents[1] / "simulation" / "networks" / "philly-5.yaml"
FILE = Path("philly") / "october_5_clusters.csv"
BLIND = "meridian"
OURS = "meridian-local"
OTHERS = ("least-loaded", "first-fit")
MEASURES = ("wan_money", "wan_gb", "jct_mean_h", "jct_p99_h", "fairness_jain")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.wan", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, help="only the last N jobs, brought to the load")
    parser.add_argument("--loads", type=float, nargs="+")
    parser.add_argument("--seeds", type=int)
    parser.add_argument(
        "--quick", action="store_true", help="3,000 jobs, two seeds, one load, where nothing else is said"
    )
    parser.add_argument("--json", metavar="OUT")
    options = parser.parse_args()
    for name in ("jobs", "seeds"):
        if (number := getattr(options, name)) is not None and number < 1:
            parser.error(f"--{name}: must be at least 1, not {number}")
    folder = os.environ.get("MERIDIAN_DATA")
    if not folder or not (Path(folder) / FILE).exists():
        print("bench.wan needs MERIDIAN_DATA with philly/october_5_clusters.csv: skipped", file=sys.stderr)
        return 0
    jobs = options.jobs or (3_000 if options.quick else None)
    loads = options.loads or ([0.9] if options.quick else [0.8, 0.9])
    seeds = options.seeds or (2 if options.quick else 5)
    network = read_network(NETWORK)
    for domain in network.domains:
        domain.mtbf_node_s = math.nan
    whole = load(Path(folder) / FILE, "philly")
    if jobs:
        whole = replace(whole, jobs=whole.jobs[-jobs:])
    rows: list[Row] = []
    for load_ in loads:
        shaped = scaled(whole, network, load_)
        found: dict[str, list[dict[str, float | None]]] = {name: [] for name in (BLIND, OURS, *OTHERS)}
        for seed in range(seeds):
            trace = with_data(shaped, network, seed=seed)
            for name, results in found.items():
                results.append(Simulation(network, trace, policy_named(name)).run().figures())
                print(f"load {load_:g}, seed {seed}: {name}", file=sys.stderr)
        where = f"load={load_:g}"
        for name, results in found.items():
            for measure in MEASURES:
                values = [value for item in results if (value := item[measure]) is not None]
                text = "wan_cost_usd" if measure == "wan_money" else measure
                rows.append(
                    Row(
                        name,
                        text if not text.endswith("jain") else "fairness_jain_index",
                        statistics.fmean(values),
                        slice=where,
                        low=min(values),
                        high=max(values),
                        n=len(values),
                        baseline=name != OURS,
                    )
                )
        for measure, text in (("wan_money", "wan_cost_saved_ratio"), ("jct_mean_h", "jct_mean_reduction_ratio")):
            saved = [
                1 - (a[measure] or 0.0) / (b[measure] or 1.0) for a, b in zip(found[OURS], found[BLIND], strict=True)
            ]
            rows.append(
                Row(OURS, text, statistics.fmean(saved), slice=where, low=min(saved), high=max(saved), n=len(saved))
            )
    print_table(rows)
    if options.json:
        write(
            options.json,
            command_line("bench.wan"),
            [DataSource.of(Path(folder) / FILE), DataSource.of(NETWORK)],
            0,
            Setting.SIMULATED,
            rows,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
