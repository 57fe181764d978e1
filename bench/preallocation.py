"""Capacity held for a tenant's expected demand on the Philly log: `python bench/preallocation.py TRACE [--json OUT]`.

Setting "simulated": the log's jobs (October 2017, five virtual clusters as tenants) on the network philly-5 (176 accelerators, domains
joined, nodes fail), EASY backfilling on predicted run times through the real core. Each of the three tenants with most jobs in turn
is protected:

- as submitted: no protection. priority: its jobs go first in the queue. All others have that priority too, and hold capacity:
- headroom N: N accelerators are always kept free for it (a static reserve).
- persistence, expected, high: what its demand is forecast to be, less what it holds, at most N: that all stays as it is; by the
  forecast service's methods, 1 h ahead; the upper end of their band.
- oracle: its demand now and every job that it will submit within the next hour.

Deadlines are ours (the log has none): submission + run time + half of the run time, at least half an hour. Chosen on the days of --tuned:
for each kind of reserve the setting with the least mean wait of the protected tenant among those in which the others' mean wait is at
most 10 % longer than with priority alone. Reported on those of --reported, the seeds drawing days with replacement; load 0.9 in both.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.result import DataSource, Row, Setting, command_line, print_table, write
from services.scheduler.core.preallocation import FACT
from simulation.domains import read_network
from simulation.engine import Simulation
from simulation.expected_demand import Forecast, Oracle, Persistence
from simulation.experiment import resampled
from simulation.model import Network, Trace
from simulation.policies import setting
from simulation.setting import with_policy
from simulation.traces import days, load, scaled

NETWORK = Path(__file__).parent.parent / "simulation/networks/philly-5.yaml"
HOUR_S = 3600.0
WINDOW_S = 600.0
# By how much the others' mean wait may grow where a setting is chosen.
ALLOWED = 1.10
DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Variant:
    """``kind`` of reserve, the most that is held (0: none), and whether short jobs of others may use it meanwhile."""

    kind: str
    most: float = 0.0
    spare_short: bool = True

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"{self.kind} {self.most:g}{'' if self.spare_short else ' strict'}" if self.most else self.kind


PLAIN, PRIORITY = Variant("as submitted"), Variant("priority")
KINDS = ("headroom", "persistence", "expected", "high", "oracle")
VARIANTS = [Variant(kind, most) for kind in KINDS for most in (8.0, 16.0)]
FIGURES = ("wait_mean_h", "wait_p99_h", "deadline_miss_share", "others_wait_mean_h", "others_wait_p99_h",
           "others_deadline_miss_share", "all_wait_mean_h", "allocated_share")  # fmt: skip


def simulate(variant: Variant, trace: Trace, network: Network, tenant: str, seed: int) -> dict[str, float]:
    """The figures of one run in which ``tenant`` is protected."""
    chosen = setting("easy-predicted")
    changes: dict[str, Any] = {"interval_s": WINDOW_S}
    if variant is not PLAIN:
        changes["order"] = ("priority", "age")
    if variant.most:
        options: dict[str, Any] = {
            "tenants": (tenant,),
            "most": variant.most,
            "horizon_s": HOUR_S,
            "spare_short": variant.spare_short,
            "bound": "high" if variant.kind == "high" else "expected",
            "headroom": variant.most if variant.kind == "headroom" else 0.0,
        }
        changes |= {"limits": ("preallocation",), "options": (("preallocation", tuple(options.items())),)}
    jobs = [
        replace(
            job,
            priority=int(job.tenant == tenant),
            deadline_s=job.submit_s + job.duration_s + max(HOUR_S / 2, job.duration_s / 2),
        )
        for job in trace.jobs
    ]
    simulation = Simulation(network, replace(trace, jobs=jobs), with_policy(chosen, **changes), seed=seed)
    cluster = simulation.cluster
    if variant.kind == "persistence":
        cluster.view.facts[FACT] = Persistence(cluster, (tenant,), WINDOW_S)
    elif variant.kind in ("expected", "high"):
        cluster.view.facts[FACT] = Forecast(cluster, (tenant,), (HOUR_S,), WINDOW_S)
    elif variant.kind == "oracle":
        cluster.view.facts[FACT] = Oracle(cluster, trace, (tenant,), HOUR_S)
    measures = simulation.run()
    own = [job for job in measures.jobs if job.tenant == tenant]
    others = [job for job in measures.jobs if job.tenant != tenant]
    found: dict[str, float] = {}
    for prefix, group in (("", own), ("others_", others)):
        waits = np.array([job.wait_s for job in group]) / HOUR_S
        found[f"{prefix}wait_mean_h"] = float(waits.mean())
        found[f"{prefix}wait_p99_h"] = float(np.quantile(waits, 0.99))
        found[f"{prefix}deadline_miss_share"] = float(np.mean([job.finish_s > job.deadline_s for job in group]))
    found["all_wait_mean_h"] = float(np.mean([job.wait_s for job in measures.jobs])) / HOUR_S
    held = sum(job.ran_s * job.devices for job in measures.jobs)
    span_s = max(job.finish_s for job in measures.jobs) - measures.first_s
    found["allocated_share"] = held / (span_s * network.accelerators)
    return found


def traces(trace: Trace, network: Network, seeds: int) -> list[Trace]:
    """The trace by other days for each seed, each brought to the same load."""
    return [scaled(resampled(trace, seed), network, 0.9) for seed in range(seeds)]


def runs(
    variants: Sequence[Variant], sampled: Sequence[Trace], network: Network, tenants: Sequence[str]
) -> dict[tuple[str, str], np.ndarray[Any, Any]]:
    """Figures [seed, figure] by (variant, tenant)."""
    found = {}
    for variant in variants:
        for tenant in tenants:
            rows = [simulate(variant, trace, network, tenant, seed) for seed, trace in enumerate(sampled)]
            print(f"{variant.name}, {tenant}", file=sys.stderr, flush=True)
            found[variant.name, tenant] = np.array([[row[name] for name in FIGURES] for row in rows])
    return found


def mean_over_tenants(
    found: dict[tuple[str, str], np.ndarray[Any, Any]], variant: Variant, tenants: Sequence[str]
) -> np.ndarray[Any, Any]:
    """Figures [seed, figure], each tenant weighing the same."""
    return np.asarray(np.mean([found[variant.name, tenant] for tenant in tenants], axis=0))


def choose(found: dict[tuple[str, str], np.ndarray[Any, Any]], tenants: Sequence[str]) -> dict[str, Variant]:
    """The setting of each kind, by the rule of the module; a kind that has none is left out."""
    base = mean_over_tenants(found, PRIORITY, tenants).mean(axis=0)
    chosen: dict[str, Variant] = {}
    for kind in KINDS:
        able: list[tuple[float, Variant]] = []
        for variant in VARIANTS:
            if variant.kind == kind and (variant.name, tenants[0]) in found:
                figures = mean_over_tenants(found, variant, tenants).mean(axis=0)
                if figures[3] <= ALLOWED * base[3]:
                    able.append((float(figures[0]), variant))
        if able:
            chosen[kind] = min(able, key=lambda item: item[0])[1]
    return chosen


def interval(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """95 % percentile bootstrap of the mean over the seeds."""
    draws = np.random.default_rng(0).integers(0, len(values), (DRAWS, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), (0.025, 0.975))
    return float(low), float(high)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tuning-seeds", type=int, default=1)
    parser.add_argument("--tuned", type=int, nargs=2, default=(7, 13), metavar="DAY")
    parser.add_argument("--reported", type=int, nargs=2, default=(14, 20), metavar="DAY")
    options = parser.parse_args()
    network = read_network(NETWORK)
    whole = load(options.trace, "philly")
    counts = Counter(job.tenant for job in whole.jobs)
    tenants = sorted(name for name, _ in counts.most_common(3))
    tuned = runs(
        [PRIORITY, *VARIANTS], traces(days(whole, *options.tuned), network, options.tuning_seeds), network, tenants
    )
    chosen = choose(tuned, tenants)
    shown = [PLAIN, PRIORITY, *chosen.values()]
    found = runs(shown, traces(days(whole, *options.reported), network, options.seeds), network, tenants)
    rows: list[Row] = []
    for days_of, figures, listed in (("tuned", tuned, [PRIORITY, *VARIANTS]), ("reported", found, shown)):
        base = mean_over_tenants(figures, PRIORITY, tenants)
        for variant in listed:
            values = mean_over_tenants(figures, variant, tenants)
            baseline = variant in (PLAIN, PRIORITY) or variant.kind == "headroom"
            for place, name in enumerate(FIGURES):
                low, high = interval(values[:, place])
                mean = float(values[:, place].mean())
                rows.append(Row(variant.name, name, mean, f"days={days_of}", low, high, len(values), baseline))
            low, high = interval(values[:, 0] - base[:, 0])
            change = float((values[:, 0] - base[:, 0]).mean())
            rows.append(
                Row(
                    variant.name,
                    "wait_mean_over_priority_h",
                    change,
                    f"days={days_of}",
                    low,
                    high,
                    len(values),
                    baseline,
                )
            )
    for variant in shown:
        for tenant in tenants:
            values = found[variant.name, tenant]
            for place in (0, 1, 2, 3):
                low, high = interval(values[:, place])
                where = f"days=reported tenant={tenant}"
                rows.append(
                    Row(variant.name, FIGURES[place], float(values[:, place].mean()), where, low, high, len(values))
                )
    if options.json:
        command = command_line("bench.preallocation")
        write(options.json, command, [DataSource.of(options.trace), DataSource.of(NETWORK)], 0, Setting.SIMULATED, rows)
    print_table([row for row in rows if row.slice == "days=reported"])


if __name__ == "__main__":
    main()
