"""Speed of the simulator: simulated jobs per second under each policy, and how it grows.

    MERIDIAN_DATA=... python -m bench.simulator [--jobs 80000] [--quick] [--policy NAME ...] [--load 0.9] [--json OUT]

The trace is Philly's October (repeated until there are so many jobs) on its five domains with 176 accelerators, at the stated
offered load. Without MERIDIAN_DATA a synthetic trace of the same sizes is drawn: log-normal run times, mostly one accelerator.
``full_under_a_minute`` is 1 where the whole trace took less than a minute of processor time. Policies that rest on users' estimates are
left out where the trace has none; those with planners are run only when they are named (docs/simulating.md says what they take). The
growth exponent is the slope of log time over log jobs from an eighth of the trace to all of it; 1 means that the time per job does
not grow.
Baseline: an event loop of the same trace that starts every job at its arrival, with no decision at all (the least one can do).
"""

from __future__ import annotations

import argparse
import heapq
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.result import DataSource, Row, Setting, command_line, print_table, write
from simulation.engine import Simulation
from simulation.made_networks import philly_network
from simulation.model import Network, Trace, TraceJob
from simulation.policies import SETTINGS
from simulation.policies import setting as policy_named
from simulation.traces import load, scaled
from simulation.workloads import repeated

SEED = 11
FILE = Path("philly") / "october_5_clusters.csv"


def synthetic(jobs: int) -> Trace:
    """Jobs like Philly's: five tenants, 1 to 16 accelerators, median 15 minutes, a heavy tail."""
    source = np.random.default_rng(SEED)
    sizes = source.choice([1, 2, 4, 8, 16], jobs, p=[0.7, 0.1, 0.1, 0.08, 0.02])
    times = np.exp(source.normal(math.log(900.0), 2.0, jobs)).clip(30.0, 30 * 86400.0)
    arrivals = np.cumsum(source.exponential(150.0, jobs))
    return Trace(
        "synthetic",
        [
            TraceJob(
                f"job-{n}",
                float(arrivals[n]),
                float(times[n]),
                ranks=2 if sizes[n] == 16 else 1,
                accelerators=min(int(sizes[n]), 8),
                tenant=f"tenant-{n % 5}",
                home_domain=f"tenant-{n % 5}",
            )
            for n in range(jobs)
        ],
    )


def no_decisions(trace: Trace) -> int:
    """Every job runs at once: arrivals and ends through a heap."""
    ends: list[float] = []
    done = 0
    for job in trace.jobs:
        while ends and ends[0] <= job.submit_s:
            heapq.heappop(ends)
            done += 1
        heapq.heappush(ends, job.submit_s + job.duration_s)
    return done + len(ends)


def timed(network: Network, trace: Trace, name: str) -> tuple[float, Simulation]:
    """Processor seconds of one simulation."""
    begun = time.process_time()
    simulation = Simulation(network, trace, policy_named(name))
    simulation.run()
    return time.process_time() - begun, simulation


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.simulator", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=80_000)
    parser.add_argument("--quick", action="store_true", help="4,000 jobs")
    parser.add_argument("--policy", action="append", choices=sorted(SETTINGS), metavar="NAME")
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--json", metavar="OUT")
    options = parser.parse_args(arguments)
    jobs = 4_000 if options.quick else options.jobs
    folder = os.environ.get("MERIDIAN_DATA")
    sources: list[DataSource] = []
    if folder and (Path(folder) / FILE).exists():
        trace = load(Path(folder) / FILE, "philly")
        sources.append(DataSource.of(Path(folder) / FILE))
    else:
        print("MERIDIAN_DATA is not set: a synthetic trace", file=sys.stderr)
        trace = synthetic(min(jobs, 20_000))
    network = philly_network(trace, accelerators=176)
    trace = repeated(scaled(trace, network, options.load), jobs)
    part = Trace(trace.name, trace.jobs[: jobs // 8])
    where = f"{jobs} jobs, load {options.load:g}"
    begun = time.process_time()
    no_decisions(trace)
    least = time.process_time() - begun
    rows = [Row("no decisions", "jobs_per_s", jobs / least, slice=where, baseline=True)]
    declared = any(not math.isnan(job.estimate_s) for job in trace.jobs)
    names = options.policy or [
        name
        for name, item in SETTINGS.items()
        if not item.policy.planner and not name.startswith("isolated-") and (declared or item.knowledge != "declared")
    ]
    for name in names:
        small, _ = timed(network, part, name)
        spent, simulation = timed(network, trace, name)
        figures = simulation.measures.figures()
        slope = math.log(spent / small) / math.log(jobs / len(part.jobs))
        rows += [
            Row(name, "jobs_per_s", jobs / spent, slice=where),
            Row(name, "processor_s", spent, slice=where),
            Row(name, "full_under_a_minute_count", float(spent < 60.0), slice=where),
            Row(name, "growth_exponent", slope, slice=where),
            Row(name, "jobs_finished_count", figures["jobs"], slice=where),
            Row(name, "decision_p99_ms", figures["decision_p99_ms"], slice=where),
        ]
        print(f"{name}: {jobs / spent:,.0f} jobs/s", file=sys.stderr)
    print_table(rows)
    if options.json:
        command = command_line("bench.simulator", arguments)
        write(options.json, command, sources, SEED, Setting.SIMULATED, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
