"""Unlike accelerators: our planners against Gavel's programs and Sia's, on their traces, in the real core.

    python -m bench.heterogeneous [--quick | --live] [--budget 330] [--workers N] [--json OUT]

Gavel: jobs of measured scale factors from its traces on 36 V100, 36 P100 and 36 K80 (networks/gavel-hetero.yaml), rounds of 360 s
for all. The first 120 jobs of a trace, their steps a fifth of the published (so that a run takes seconds), submissions drawn
together to the load. Load is demand over capacity, both in V100 time: a chip counts by the mean rate of the trace's jobs on it. All
know the throughputs; ``completion`` knows the steps left, as gavel-sjf, -ftf and -makespan do, ``completion-blind`` does not, as
gavel-las and -throughput. Restarts cost every policy the same (7 s, 30 s from 2 accelerators on). The one parameter of ours was
chosen on the traces b436b2, 103959 and e13805; reported are others: three at three loads, three more at one (first
trials, before there was a parameter, ran on 0e4a51 and 6c71a0 too).

Sia: its eight workloads of 160 jobs on 64 accelerators, rounds of 60 s, restarts as its authors measured, paid at the first start
too (services/scheduler/planners/README.md). Nobody knows how much work is left; goodputs are the measured ones for all, which is more
than the published system knows. ``sia`` is the integer program; ``sia (exact plan)`` the same objective by the dynamic program, which
gives the same plans in less time; ``sia, any size`` is allowed to begin with more than one device, as ours is. Ours was chosen on workloads
1 and 3: the slice "others" leaves them out. (rho of elastic jobs is over their time on one T4 and says little.)

With ``--live`` what the live scheduler decides by, on Gavel's held-out traces: the shipped default ``balanced``, where jobs declare
rates and steps; ``balanced, no steps``, where they declare rates alone; ``balanced, in turn``, without its planner for unlike rates.

Runs that do not fit the budget are left out and said so.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

import simulation
from bench.public_data import add_data_option
from bench.result import DataSource, Row, command_line, write
from bench.result import Setting as Kind
from services.scheduler.core.policy import Policy
from services.scheduler.planners.goodput import Application
from services.scheduler.policy.file import shipped
from simulation import adaptive
from simulation.domains import read_network
from simulation.engine import Simulation
from simulation.measures import Measures
from simulation.model import Network, Trace
from simulation.policies import setting
from simulation.policies_planned import SIA_ROUND_S, planned
from simulation.setting import Setting
from simulation.traces import gavel

JOBS, QUICK_JOBS = 120, 60
SHORTER = 0.2
LOADS = (0.8, 1.0, 1.3)
TRACES = ("2869ce", "ee9e8c", "11cb48")
MORE_TRACES = ("ed69ec", "0e4a51", "6c71a0")
GAVEL = (
    "gavel-sjf",
    "gavel-las",
    "gavel-throughput",
    "gavel-makespan",
    "gavel-ftf",
    "completion",
    "completion-blind",
)
KNOWING = ("gavel-sjf", "gavel-makespan", "gavel-ftf")
"""Baselines that know the steps left: ours without them is not compared with these."""
LIVE = ("balanced", "balanced, no steps", "balanced, in turn")
BLIND = ("completion-blind", LIVE[1])
CHOSEN_ON = (1, 3)
SIA = ("elastic-exact", "sia (exact plan)", "sia, any size", "greedy-elastic")


@dataclass(frozen=True, slots=True)
class Task:
    """One run: ``family`` is gavel or sia, ``trace`` the name of the trace or number of the workload."""

    family: str
    policy: str
    trace: str
    load: float
    jobs: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one run."""

    task: Task
    mean_h: float
    p99_h: float
    makespan_h: float
    rho_mean: float
    rho_p99: float
    restarts: int
    decision_ms: float
    finished: int


def gavel_workload(path: Path, jobs: int, load: float, network: Network) -> Trace:
    """The first ``jobs`` jobs with measured scale factors, a fifth as long, at this load; see the module."""
    trace = gavel.load(path, unmeasured="skip")
    measured = trace.throughputs
    assert measured is not None
    chosen = [replace(job, work=job.work * SHORTER, duration_s=job.duration_s * SHORTER) for job in trace.jobs[:jobs]]
    demand = {job.job_id: job.devices * job.duration_s for job in chosen}
    capacity = 0.0
    for node in network.nodes:
        relative = [
            demand[job.job_id]
            * measured.rate(job.profile, job.ranks, node.model)
            / measured.rate(job.profile, job.ranks, "v100")
            for job in chosen
        ]
        capacity += node.accelerators * sum(relative) / sum(demand.values())
    first, last = chosen[0].submit_s, chosen[-1].submit_s
    factor = sum(demand.values()) / (capacity * load) / max(last - first, 1e-9)
    return replace(trace, jobs=[replace(job, submit_s=(job.submit_s - first) * factor) for job in chosen])


def chosen_setting(name: str) -> Setting:
    """A setting by its name, those of this program included."""
    if name in LIVE:
        return Setting(name, live_policy(name), baseline=_baseline(name))
    own = {"sia (exact plan)": {"growth": 2}, "sia, any size": {"growth": 0}}
    if name not in own:
        return setting(name)
    return Setting(name, planned("sia-exact", "elastic-exact", SIA_ROUND_S, power=0.5, keep=0, **own[name]))


def live_policy(name: str) -> Policy:
    """The shipped default under one of the names `LIVE`."""
    default = shipped("balanced")
    if name == LIVE[2]:
        return replace(default, name=name, unlike_planner="", options=())
    planner = default.options_of("completion") | ({"known": 0} if name in BLIND else {})
    return replace(default, name=name, options=(("completion", tuple(planner.items())),))


@cache
def _applications(folder: Path) -> tuple[dict[str, Application], str]:
    return adaptive.read_applications(folder)


def run(task: Task, data: Path) -> Outcome:
    """One run."""
    if task.family == "gavel":
        network = read_network(Path(simulation.__file__).parent / "networks" / "gavel-hetero.yaml")
        trace = gavel_workload(gavel_file(data, task.trace), task.jobs, task.load, network)
    else:
        network = adaptive.network()
        trace = adaptive.load(sia_file(data, task.trace), _applications(data / "sia" / "traces"))
        trace = replace(trace, jobs=trace.jobs[: task.jobs])
    measures = Simulation(network, trace, chosen_setting(task.policy), charge_first_start=task.family == "sia").run()
    return outcome(task, measures)


def outcome(task: Task, measures: Measures) -> Outcome:
    """The figures of a run; its makespan counts from the first submission."""
    times = np.array([job.jct_s for job in measures.jobs]) / 3600.0
    rho = np.array([job.rho for job in measures.jobs])
    return Outcome(
        task,
        float(times.mean()),
        float(np.percentile(times, 99)),
        (max(job.finish_s for job in measures.jobs) - measures.first_s) / 3600.0,
        float(np.nanmean(rho)),
        float(np.nanpercentile(rho, 99)),
        measures.preempted_runs,
        float(np.mean(measures.decision_s) * 1e3),
        len(measures.jobs),
    )


def gavel_file(data: Path, name: str) -> Path:
    """A trace of Gavel."""
    return data / "gavel" / "seed=0" / f"{name}.trace"


def sia_file(data: Path, number: str) -> Path:
    """A workload of Sia."""
    return data / "sia" / "workloads" / "philly" / f"workload-{number}.csv"


def tasks(*, quick: bool, live: bool = False) -> list[Task]:
    """All runs, those that matter most first: all policies of one trace and load together."""
    if live:
        names = (*LIVE, "gavel-las", "gavel-sjf", "completion", "completion-blind")
        return [Task("gavel", name, trace, load, JOBS) for load in LOADS for trace in TRACES for name in names]
    if quick:
        found = [Task("gavel", name, "2869ce", 1.0, QUICK_JOBS) for name in ("gavel-sjf", "gavel-las", "completion")]
        return found + [Task("sia", name, "2", 0.0, 60) for name in SIA]
    elastic = [Task("sia", name, str(number), 0.0, 160) for number in range(1, 9) for name in SIA]
    unlike = [Task("gavel", name, trace, load, JOBS) for load in LOADS for trace in TRACES for name in GAVEL]
    more = [Task("gavel", name, trace, 1.0, JOBS) for trace in MORE_TRACES for name in (*GAVEL[:2], "completion")]
    first = [task for task in unlike if task.load == LOADS[1]]
    unlike = [*first, *(task for task in unlike if task.load != LOADS[1])]
    return [*elastic, *unlike, Task("sia", "sia", "2", 0.0, 160), *more]


def carry_out(todo: Sequence[Task], data: Path, budget_s: float, workers: int) -> tuple[list[Outcome], list[Task]]:
    """Outcomes in the order of the tasks, and the tasks for which no time was left."""
    began = time.monotonic()
    found: list[Outcome] = []
    left = list(todo)
    if workers <= 1:
        while left and time.monotonic() - began < budget_s:
            found.append(run(left.pop(0), data))
        return found, left
    with ProcessPoolExecutor(workers) as pool:
        while left and time.monotonic() - began < budget_s:
            batch, left = left[: 4 * workers], left[4 * workers :]
            found += pool.map(run, batch, [data] * len(batch))
    return found, left


def rows_of(found: Iterable[Outcome], left: Iterable[Task]) -> list[Row]:
    """The figures in the form of results."""
    rows: list[Row] = []
    for item in found:
        task = item.task
        where = _slice(task)
        more = {"slice": where, "n": item.finished, "baseline": _baseline(task.policy)}
        rows += [
            Row(task.policy, "jct_mean_h", item.mean_h, **more),  # type: ignore[arg-type]
            Row(task.policy, "jct_p99_h", item.p99_h, **more),  # type: ignore[arg-type]
            Row(task.policy, "makespan_h", item.makespan_h, **more),  # type: ignore[arg-type]
            Row(task.policy, "finish_time_fairness_mean_ratio", item.rho_mean, **more),  # type: ignore[arg-type]
            Row(task.policy, "finish_time_fairness_p99_ratio", item.rho_p99, **more),  # type: ignore[arg-type]
            Row(task.policy, "restarts_count", float(item.restarts), **more),  # type: ignore[arg-type]
            Row(task.policy, "decision_mean_ms", item.decision_ms, **more),  # type: ignore[arg-type]
        ]
    rows += [
        Row(task.policy, "jct_mean_h", None, slice=_slice(task), baseline=_baseline(task.policy), reason="no time left")
        for task in left
    ]
    return rows


def summary(found: Sequence[Outcome]) -> list[Row]:
    """Ours against the best baseline of each slice (ratio of mean JCT, below 1: ours is shorter), and means over workloads."""
    rows: list[Row] = []
    by_slice: dict[str, dict[str, float]] = {}
    for item in found:
        by_slice.setdefault(_slice(item.task), {})[item.task.policy] = item.mean_h
    for where, means in by_slice.items():
        for name, value in means.items():
            if _baseline(name):
                continue
            others = {
                other: other_h
                for other, other_h in means.items()
                if _baseline(other) and not (name in BLIND and other in KNOWING)
            }
            if others:
                best = min(others, key=lambda other: others[other])
                rows.append(Row(f"{name} against {best}", "jct_mean_ratio", value / others[best], slice=where))
    for name in dict.fromkeys(item.task.policy for item in found if item.task.family == "sia"):
        for where, leave in (("all workloads", ()), ("others", CHOSEN_ON)):
            means_h = [
                item.mean_h
                for item in found
                if item.task.family == "sia" and item.task.policy == name and int(item.task.trace) not in leave
            ]
            if len(means_h) > 1:
                rows.append(
                    Row(
                        name,
                        "jct_mean_h",
                        float(np.mean(means_h)),
                        slice=f"sia {where}",
                        low=min(means_h),
                        high=max(means_h),
                        n=len(means_h),
                        baseline=_baseline(name),
                    )
                )
    return rows


def show(found: Sequence[Outcome], more: Sequence[Row]) -> None:
    """Both tables for people."""
    for family in ("gavel", "sia"):
        mine = sorted((item for item in found if item.task.family == family), key=lambda item: _slice(item.task))
        if not mine:
            continue
        print(
            f"\n{family}: mean and p99 JCT, makespan (h), finish-time fairness rho (mean, p99), restarts, decision (ms)"
        )
        for item in mine:
            mark = "*" if _baseline(item.task.policy) else " "
            print(
                f"{_slice(item.task):24s} {item.task.policy + mark:18s} {item.mean_h:8.3f} {item.p99_h:8.2f} "
                f"{item.makespan_h:8.1f} {item.rho_mean:7.3f} {item.rho_p99:7.2f} {item.restarts:6d} {item.decision_ms:7.1f}"
            )
    print("\n* baseline. Ours against the best of them, and means over workloads:")
    for row in more:
        print(
            f"{row.slice:24s} {row.subject:40s} {row.measure:16s} {row.value:7.3f}"
            + (f"  n={row.n}" if row.n > 1 else "")
        )


def _slice(task: Task) -> str:
    return f"gavel {task.trace} load {task.load:g}" if task.family == "gavel" else f"sia workload-{task.trace}"


def _baseline(policy: str) -> bool:
    return policy not in {"completion", "completion-blind", "elastic-exact", *LIVE[:2]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_data_option(parser)
    parser.add_argument("--quick", action="store_true", help="one trace and one workload, few jobs")
    parser.add_argument("--live", action="store_true", help="the live scheduler's default policy on Gavel's traces")
    parser.add_argument("--budget", type=float, default=330.0, metavar="S", help="begin no run after so many seconds")
    parser.add_argument("--workers", type=int, default=min(os.cpu_count() or 1, 4), help="processes")
    parser.add_argument("--json", type=Path, metavar="OUT")
    arguments = parser.parse_args()
    todo = tasks(quick=arguments.quick, live=arguments.live)
    files = {
        gavel_file(arguments.data, task.trace) if task.family == "gavel" else sia_file(arguments.data, task.trace)
        for task in todo
    }
    missing = sorted(path for path in files if not path.exists())
    if missing:
        parser.error(f"--data: {missing[0]} is not there (set MERIDIAN_DATA)")
    found, left = carry_out(todo, arguments.data, arguments.budget, arguments.workers)
    more = summary(found)
    show(found, more)
    for task in left:
        print(f"left out, no time: {_slice(task)} {task.policy}")
    if arguments.json:
        sources = [DataSource.of(path) for path in sorted(files)]
        rows = [*rows_of(found, left), *more]
        write(arguments.json, command_line("bench.heterogeneous"), sources, 0, Kind.SIMULATED, rows)
        print(f"written: {arguments.json}")


if __name__ == "__main__":
    main()
