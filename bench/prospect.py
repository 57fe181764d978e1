"""How good predicted starts are, and what they cost.

`calibration`: the Philly jobs run under a policy (easy backfilling on predicted run times by default); whenever a job still
waits after the cycle of its arrival its start is predicted, for a sample of them. Compared with when it really started, with
everybody who came after the prediction. Share of starts inside the band, error of the median, share of "later than".

`cost`: processor time of one prediction on a full cluster of 1,000 nodes with 500 running and 1,000 waiting units of 40
classes, by the place in the queue. Run times are log-normal from a seed.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.result import DataSource, Row, Setting, print_table, write
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.fleet import Device, Domain, Fleet, Node, with_domain
from services.scheduler.core.policy import Policy
from services.scheduler.core.prospect import Prospect, ahead_of, order_of, prospects
from services.scheduler.core.queue import PendingUnit
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from simulation.domains import philly_network
from simulation.engine import Simulation
from simulation.experiment import setting_of
from simulation.model import Trace
from simulation.traces import philly
from simulation.traces.shaping import limited

_GIB = 2**30


class Asked(Simulation):
    """A simulation in which every ``every``-th job that has to wait is predicted when it comes."""

    every = 10
    waited = 0

    def watch_starts(self) -> None:
        """Begin to note predictions and starts."""
        self.predicted: dict[UnitKey, tuple[float, int, Prospect]] = {}
        self.started: dict[UnitKey, float] = {}
        self.new: list[UnitKey] = []
        self.cost_s: list[float] = []

    def _arrive(self, job) -> None:  # type: ignore[no-untyped-def]
        super()._arrive(job)
        self.new.append(UnitKey(job.job_id, 0))

    def _decide(self) -> None:
        super()._decide()
        for key in self.new:
            if key not in self.cluster.pending:
                continue
            self.waited += 1
            if self.waited % self.every == 0:
                before = time.process_time()
                found = prospects(self.cluster, self.policy, self.now_s, [key]).get(key)
                self.cost_s.append(time.process_time() - before)
                if found is not None:
                    ahead = ahead_of(order_of(self.cluster, self.now_s), key).units
                    self.predicted[key] = (self.now_s, ahead, found)
        self.new.clear()

    def _start(self, item, running) -> None:  # type: ignore[no-untyped-def]
        super()._start(item, running)
        self.started.setdefault(item.key, self.now_s)


def calibration(trace: Trace, policy: str, accelerators: int, every: int) -> list[Row]:
    """Rows of one run."""
    setting, _ = setting_of(policy)
    run = Asked(philly_network(trace, accelerators), trace, setting)
    run.every = every
    run.watch_starts()
    run.run()
    rows = [
        (at_s, ahead, found, run.started[key])
        for key, (at_s, ahead, found) in run.predicted.items()
        if key in run.started
    ]
    out = [Row(policy, "predictions_count", float(len(rows)), baseline=False)]
    groups: list[tuple[str, Callable[[int], bool]]] = [
        ("all", lambda ahead: True),
        ("at most 10 ahead", lambda ahead: ahead <= 10),
        ("more than 10 ahead", lambda ahead: ahead > 10),
    ]
    for name, belongs in groups:
        chosen = [row for row in rows if belongs(row[1])]
        said = [row for row in chosen if row[2].start_s < math.inf]
        if not said:
            continue
        inside = [found.low_s - 1 <= started <= found.high_s + 1 for _, _, found, started in said]
        late = [started > found.high_s + 1 for _, _, found, started in said]
        bounded = [found.high_s < math.inf for _, _, found, _ in said]
        errors = np.array([abs(started - found.start_s) for _, _, found, started in said])
        waits = np.array([started - at_s for at_s, _, _, started in said])
        plain = np.array([abs(float(np.median(waits)) - wait) for wait in waits])
        count = len(said)
        for measure, value in (
            ("inside_band_ratio", float(np.mean(inside))),
            ("later_than_band_ratio", float(np.mean(late))),
            ("band_with_end_ratio", float(np.mean(bounded))),
            ("not_said_ratio", 1.0 - len(said) / len(chosen)),
            ("error_median_s", float(np.median(errors))),
            ("wait_median_s", float(np.median(waits))),
            ("error_relative_median_ratio", float(np.median(errors / np.maximum(waits, 60.0)))),
        ):
            out.append(Row(policy, measure, value, slice=name, n=count))
        out.append(
            Row(
                "the median wait, known afterwards",
                "error_median_s",
                float(np.median(plain)),
                name,
                n=count,
                baseline=True,
            )
        )
    out.append(Row(policy, "cost_median_ms", 1000 * float(np.median(run.cost_s)), n=len(run.cost_s)))
    return out


def cost(discipline: str, places: tuple[int, ...] = (0, 10, 100, 300, 900)) -> list[Row]:
    """Rows of processor time by the place in the queue."""
    cluster, policy = _full(discipline)
    decide(cluster, policy, 1.0, explain=False)
    order = order_of(cluster, 1.0)
    out = []
    for place in places:
        times = []
        for _ in range(3):
            before = time.process_time()
            prospects(cluster, policy, 1.0, [order[place].key])
            times.append(1000 * (time.process_time() - before))
        out.append(Row(discipline, "cost_median_ms", sorted(times)[1], slice=f"{place} ahead", n=3))
    return out


def _full(discipline: str) -> tuple[Cluster, Policy]:
    rng = random.Random(1)
    fleet = Fleet()
    for name in "abcde":
        devices = tuple(Device(index, "NVIDIA", "A100") for index in range(8))
        nodes = [Node(f"{name}-{number}", name, 64.0, 64 * _GIB, devices) for number in range(200)]
        fleet = with_domain(fleet, Domain(name), nodes, full_of=name)
    policy = Policy(order=("priority", "age"), discipline=discipline)
    cluster = Cluster(table_of(fleet), policy)
    wide = Demand(2, cpus=8.0, accelerators=8)
    classes = [
        Demand(
            rng.choice([1, 1, 2, 4, 8]),
            cpus=1.0,
            accelerators=rng.choice([1, 2, 4, 8]),
            memory_bytes=(n + 1) * _GIB // 8,
        )
        for n in range(40)
    ]
    for number in range(1500):
        expected_s = rng.lognormvariate(9.0, 1.5)
        demand = wide if number < 500 else rng.choice(classes)
        key = UnitKey(f"j{number}", 0)
        known = {"expected_s": expected_s, "low_s": expected_s / 3, "high_s": 3 * expected_s}
        cluster.add(PendingUnit(key, f"t{number % 10}", 0, float(number), demand, **known))  # type: ignore[arg-type]
        if number == 499:
            cluster.apply(decide(cluster, policy, 0.0, explain=False), 0.0)
    return cluster, policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("MERIDIAN_DATA", "../shared/data")))
    parser.add_argument("--policy", default="easy-predicted")
    parser.add_argument("--jobs", type=int, default=1500)
    parser.add_argument("--accelerators", type=int, default=352)
    parser.add_argument("--every", type=int, default=4, help="each so many-th job that waits is predicted")
    parser.add_argument("--json", type=Path, metavar="OUT")
    arguments = parser.parse_args()
    path = arguments.data / "philly/october_5_clusters.csv"
    rows = cost("greedy") + cost("easy")
    sources = []
    if path.exists():
        trace = limited(philly.load(path), arguments.jobs)
        rows += calibration(trace, arguments.policy, arguments.accelerators, arguments.every)
        sources.append(DataSource.of(path))
    else:
        print(f"no calibration: {path} is not there (set MERIDIAN_DATA)", file=sys.stderr)
    print_table(rows)
    if arguments.json:
        write(arguments.json, shlex.join(["python", *sys.argv]), sources, 0, Setting.SIMULATED, rows)
        print(f"written: {arguments.json}")


if __name__ == "__main__":
    main()
