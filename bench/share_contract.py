"""Share contracts kept in simulation, and runs that keep running while the load swings by 20 %.

    python -m bench.share_contract --philly october_5_clusters.csv [--loads 0.8 0.95] [--jobs 3000] [--skip 0] [--copies 4] [--swing 0]
        [--json OUT]

Five domains of 28, 24, 20, 16 and 12 nodes of 8 accelerators. The workload are the first jobs of the Philly trace, overlaid
``--copies`` times (turned by parts of its span) so that it fits the network, at the given offered loads. Everything is first
come, first served, whatever fits; only the score that chooses the domain differs:
  spread          (baseline) the domain with the greatest free share
  share_contract  by the gap between planned and given share in the window so far
  share_deficit   by the projected lack at the end of the window and of the next
  share_deficit+moves  the same, and every ten minutes running units are moved from domains that give too much
  share_deficit+moves again  the same, units that were moved before first
  per_window      share_deficit with a plan per window, issued when it begins
  per_window+moves  the same, and every two minutes units are moved without which a plan would be broken
Plans that are not steered at, told of the same runs (baselines of per_window):
  spread, plan: now             each domain is to give what it holds when the window begins, under `spread`
  spread, plan: last hour       ... what it gave in the window before
  share_deficit, plan: now      the same under `share_deficit`
  share_deficit, plan: last hour

Plans: "capacity" (28:24:20:16:12), "skewed" (30:25:20:15:10; needs more of the first than it has above a load of 0.93) and
"hard" (36:24:18:13:9; cannot be kept above 0.78). Windows are hours of domains, the first two days left out.
  kept_ratio       within 5 %, of the windows that are not proved infeasible
  kept_all_ratio   the same of all windows, infeasible ones counted as broken
  kept_open_ratio  of those that could still be kept when they began, without moving anything that ran
Those go by the plan of each window: the standing one, or the one that was issued. By the standing promise, whatever was issued:
  promise_kept_ratio  windows within 5 %, infeasible ones too
  promise_days_ratio  days of domains within 5 %; promise_day_ratio: their mean deviation
  owed_days           mean of what was promised and not given up to the end of each day, as a part of what is promised in a day

With --swing 0.2 arrivals are 20 % more and 20 % fewer by half days.

Stability: share of jobs that were never interrupted, arrival rate +-20 % by half days, for the default policy and the
preemptive policy "meridian" (one copy of the trace on domains of 7, 5, 4, 4 and 2 nodes).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.result import DataSource, Row, command_line, print_table, write
from bench.result import Setting as ResultSetting
from services.scheduler.core.contracts.plan import PER_WINDOW, STANDING, SharePlan
from services.scheduler.core.policy import Policy
from simulation.contracts import (
    ContractSimulation,
    HeldAt,
    kept_against,
    overlaid,
    promise,
    shares,
    stability,
    swinging,
)
from simulation.engine import Simulation
from simulation.made_networks import uniform
from simulation.model import Network, Trace
from simulation.policies import setting
from simulation.setting import Setting
from simulation.traces import limited, load, scaled

NODES = (28, 24, 20, 16, 12)
PLANS = {"capacity": (28, 24, 20, 16, 12), "skewed": (30, 25, 20, 15, 10), "hard": (36, 24, 18, 13, 9)}
DEFICIT = (("pack", 1.0), ("share_deficit", 1.0))


@dataclass(frozen=True, slots=True)
class Subject:
    """How domains are chosen, for which kind of plan, and what is moved."""

    name: str
    scores: tuple[tuple[str, float], ...] = DEFICIT
    plan: str = STANDING
    baseline: bool = False
    unsteered: bool = False
    """Whether plans that nobody steers at are told of its runs too."""
    more: Mapping[str, Any] = field(default_factory=dict)


SUBJECTS = (
    Subject("spread", (("pack", 1.0), ("spread", 0.001)), baseline=True, unsteered=True),
    Subject("share_contract", (("pack", 1.0), ("share_contract", 1.0))),
    Subject("share_deficit", unsteered=True),
    Subject("share_deficit+moves", more={"move_every_s": 600.0}),
    Subject("share_deficit+moves again", more={"move_every_s": 600.0, "again_first": True}),
    Subject("per_window", plan=PER_WINDOW),
    Subject("per_window+moves", plan=PER_WINDOW, more={"move_every_s": 120.0, "sparse": True}),
)
SKIPPED_S = 2 * 86_400.0

OF_JOBS = frozenset(
    {"uninterrupted_ratio", "interruptions_count", "jct_mean_h", "wait_mean_h", "allocated_share_ratio"}
)
"""Figures over all jobs of a run, not over windows."""

OF_DAYS = frozenset({"promise_days_ratio", "promise_day_ratio", "owed_days"})
"""Figures over days of domains."""


def network(nodes: Sequence[int]) -> Network:
    """A domain with so many nodes for each."""
    domains = uniform(len(nodes), max(nodes), 8).domains
    return Network([replace(item, nodes=item.nodes[:count]) for item, count in zip(domains, nodes, strict=True)])


def contract_rows(
    trace: Trace, loads: Sequence[float], plans: Sequence[str], subjects: Sequence[Subject], swing: float
) -> list[Row]:
    """Figures of each subject at each load, for each plan."""
    fleet, rows = network(NODES), []
    for load_ in loads:
        loaded = scaled(trace, fleet, load_)
        if swing:
            loaded = swinging(loaded, swing, 86_400.0)
        for plan_name in plans:
            shares_ = (tuple((f"domain-{n}", float(part)) for n, part in enumerate(PLANS[plan_name])),)
            where = f"plan={plan_name} load={load_:g}" + (f" swing={swing:g}" if swing else "")
            for subject in subjects:
                rows += subject_rows(subject, fleet, loaded, SharePlan(shares_, plan=subject.plan), where)
    return rows


def subject_rows(subject: Subject, fleet: Network, loaded: Trace, plan: SharePlan, where: str) -> list[Row]:
    """Figures of one run."""
    base = setting("first-fit")
    chosen = replace(base, policy=replace(base.policy, scores=subject.scores))
    run = ContractSimulation(fleet, loaded, chosen, plan, **subject.more)
    held = HeldAt(run)
    measures = run.run()
    figures = measures.figures()
    first_s, last_s = loaded.jobs[0].submit_s + SKIPPED_S, loaded.jobs[-1].submit_s
    report, kept = shares(run.account, first_s, last_s), promise(run.account, first_s, last_s)
    values = {
        "kept_ratio": report.kept,
        "kept_all_ratio": report.kept_of_all,
        "kept_open_ratio": report.kept_where_open,
        "deviation_p50_ratio": report.quantile(0.5),
        "deviation_p90_ratio": report.quantile(0.9),
        "infeasible_ratio": sum(report.left_out.values()) / max(report.windows, 1),
        "promise_kept_ratio": kept.kept,
        "promise_days_ratio": kept.kept_days,
        "promise_day_ratio": float(np.mean(kept.days)) if kept.days else math.nan,
        "owed_days": float(np.mean(kept.owed)) if kept.owed else math.nan,
        "uninterrupted_ratio": stability(measures).share,
        "interruptions_count": figures["interruptions"],
        "jct_mean_h": figures["jct_mean_h"],
        "wait_mean_h": figures["wait_mean_h"],
        "allocated_share_ratio": figures["allocated_share"],
    }
    sizes = dict.fromkeys(values, report.windows) | dict.fromkeys(OF_JOBS, len(measures.jobs))
    sizes |= dict.fromkeys(OF_DAYS, len(kept.days))
    rows = [
        Row(
            subject.name,
            measure,
            value,
            where,
            n=sizes[measure],
            baseline=subject.baseline,
            reason="no window counts" if value is None or math.isnan(value) else None,
        )
        for measure, value in values.items()
    ]
    if subject.unsteered:
        given = {window.number + 1: window.given for window in run.account.windows}
        for name, amounts in (("now", held.levels), ("last hour", given)):
            ratio, count = kept_against(run.account, amounts, first_s, last_s)
            rows.append(
                Row(
                    f"{subject.name}, plan: {name}",
                    "kept_all_ratio",
                    ratio,
                    where,
                    n=count,
                    baseline=subject.baseline,
                    reason=None if count else "no window counts",
                )
            )
    return rows


def stability_rows(trace: Trace) -> list[Row]:
    """Share of jobs that no swing of the load interrupted."""
    fleet = network((7, 5, 4, 4, 2))
    swung = swinging(scaled(trace, fleet, 0.8), 0.2, 86_400.0)
    rows = []
    for name, chosen in (("default policy", Setting("default", Policy())), ("meridian", setting("meridian"))):
        measures = Simulation(fleet, swung, chosen).run()
        found = stability(measures)
        where = "load=0.8, +-20 % by half days"
        rows += [
            Row(name, "uninterrupted_ratio", found.share, where, n=found.ran),
            Row(name, "interruptions_count", float(found.interruptions), where, n=found.ran),
            Row(name, "jct_mean_h", measures.figures()["jct_mean_h"], where, n=found.ran),
        ]
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.share_contract", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--philly", type=Path, required=True)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.8, 0.95])
    parser.add_argument("--plans", nargs="+", choices=sorted(PLANS), default=["capacity", "skewed"])
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--skip", type=int, default=0, help="so many jobs of the trace first")
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--subjects", nargs="+", choices=[item.name for item in SUBJECTS], help="only these")
    parser.add_argument("--swing", type=float, default=0.0, help="arrivals so much more and fewer by half days")
    parser.add_argument("--json", metavar="OUT")
    options = parser.parse_args(arguments)
    whole = load(options.philly, "philly")
    trace = limited(replace(whole, jobs=whole.jobs[options.skip :]), options.jobs)
    subjects = [item for item in SUBJECTS if options.subjects is None or item.name in options.subjects]
    rows = stability_rows(trace) if options.subjects is None else []
    rows += contract_rows(overlaid(trace, options.copies), options.loads, options.plans, subjects, options.swing)
    print_table(rows)
    if options.json:
        source = DataSource.of(options.philly)
        command = command_line("bench.share_contract", arguments)
        write(options.json, command, [source], 0, ResultSetting.SIMULATED, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
