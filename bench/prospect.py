"""How good predicted starts are, and what they and what-if questions cost.

`calibration`: the Philly jobs, brought to several loads, run under a policy (easy backfilling on predicted run times by
default). Whoever waits after the cycle of its arrival is predicted, at most one in ten minutes: so that a burst of equal jobs
counts once and not a thousand times. Compared with when it really started, with everybody who came after the prediction.
What was learned from the first part of the trace on is used; reported is the second part. Beside the band with its track
record (track_record.py) stand the same band without it, and one that looks at no queue: the quantiles of the last 200 waits
that were over. Share of starts inside, pinball loss of both ends, width, error of the start.

`cost`: processor time of one prediction on a full cluster, by the place in the
queue; of one what-if question with predicted start, by nodes: of the first on a state, and of another on the same state, which
finds the courses of the first (kept_courses.py). 1,000 nodes: 500 running and 1,000 waiting units of 40 classes, others in
proportion. Run times are log-normal from a seed. Medians of `--rounds` questions.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from bench.public_data import add_data_option
from bench.result import DataSource, Row, Setting, command_line, print_table, write
from services.scheduler.collector import leave_survivors
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.fleet import Device, Domain, Fleet, Node, with_domain
from services.scheduler.core.futures.kept_courses import KeptCourses
from services.scheduler.core.futures.prospect import Prospect, ahead_of, order_of, prospects
from services.scheduler.core.futures.track_record import TrackRecord
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, JobKind, JobSpec, UnitKey
from services.scheduler.core.table import Floats, table_of
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.times import rfc3339
from services.scheduler.what_if import answer
from simulation.engine import Simulation
from simulation.experiment import setting_of
from simulation.made_networks import philly_network
from simulation.model import Trace
from simulation.traces import philly
from simulation.traces.shaping import limited, scaled

_GIB = 2**30
_FORMER = 200
_LATEST_S = 90 * 86_400.0
"""What has no end within what was looked at is taken to end here."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prediction of ``at_s``: as it came from the futures, and as the track record moved it; units ahead."""

    at_s: float
    ahead: int
    raw: Prospect
    said: Prospect


class Asked(Simulation):
    """A simulation in which jobs that have to wait are predicted when they come, at most one in ``every_s``."""

    every_s = 600.0
    coverage = 0.8
    draws_seed = 0

    def watch_starts(self) -> None:
        """Begin to note predictions and starts."""
        self.questions: dict[UnitKey, Question] = {}
        self.started: dict[UnitKey, float] = {}
        self.new: list[UnitKey] = []
        self.cost_s: list[float] = []
        self.record = TrackRecord(self.coverage)
        self.last_s = -math.inf

    def _arrive(self, job) -> None:  # type: ignore[no-untyped-def]
        super()._arrive(job)
        self.new.append(UnitKey(job.job_id, 0))

    def _decide(self) -> None:
        super()._decide()
        self.record.advance(self.now_s)
        for key in self.new:
            if key not in self.cluster.pending or self.now_s < self.last_s + self.every_s:
                continue
            self.last_s = self.now_s
            before = time.process_time()
            raw = prospects(self.cluster, self.policy, self.now_s, [key], seed=self.draws_seed)[key]
            self.cost_s.append(time.process_time() - before)
            ahead = ahead_of(order_of(self.cluster, self.now_s), key).units
            self.questions[key] = Question(self.now_s, ahead, raw, self.record.asked(raw, self.now_s))
        self.new.clear()

    def _start(self, item, running) -> None:  # type: ignore[no-untyped-def]
        super()._start(item, running)
        if item.key not in self.started:
            self.started[item.key] = self.now_s
            self.record.started(item.key, self.now_s)


def calibration(trace: Trace, policy: str, accelerators: int, load: float, coverage: float, seed: int = 0) -> list[Row]:
    """Rows of one run; ``seed`` is that of the run times that futures draw."""
    setting, _ = setting_of(policy)
    network = philly_network(trace, accelerators)
    run = Asked(network, scaled(trace, network, load), setting)
    run.coverage, run.draws_seed = coverage, seed
    run.watch_starts()
    run.run()
    known = [(item, run.started[key]) for key, item in run.questions.items() if key in run.started]
    jobs = run.trace.jobs
    middle_s = (jobs[0].submit_s + jobs[-1].submit_s) / 2
    second = [(item, started) for item, started in known if item.at_s >= middle_s]
    name = f"{policy}, load {load:g}, band {coverage:g}"
    out = [
        Row(policy, "predictions_count", float(len(second)), name, n=len(known)),
        Row(policy, "wait_median_s", float(np.median([started - item.at_s for item, started in second])), name),
        Row(policy, "cost_median_ms", 1000 * float(np.median(run.cost_s)), name, n=len(run.cost_s)),
    ]
    bands = {
        "with its track record": [(item.said.low_s, item.said.start_s, item.said.high_s) for item, _ in second],
        "from the futures alone": [(item.raw.low_s, item.raw.start_s, item.raw.high_s) for item, _ in second],
        "of former waits": [_of_waits(known, item.at_s, coverage) for item, _ in second],
    }
    at_s = np.array([item.at_s for item, _ in second])
    waits = np.array([started for _, started in second]) - at_s
    for label, rows in bands.items():
        low, start, high = np.array(rows).T - at_s
        out += [
            Row(label, measure, value, name, n=len(second), baseline=label != "with its track record")
            for measure, value in _figures(waits, low, start, np.minimum(high, _LATEST_S), coverage).items()
        ]
    return out


def _of_waits(known: list[tuple[Question, float]], now_s: float, coverage: float) -> tuple[float, float, float]:
    """Low, start and high for one who knows nothing but the last 200 waits that were over."""
    over = sorted((started, started - item.at_s) for item, started in known if started <= now_s)[-_FORMER:]
    waits = np.array([wait for _, wait in over] or [0.0])
    low, middle, high = np.quantile(waits, [(1 - coverage) / 2, 0.5, (1 + coverage) / 2]).tolist()
    return now_s + low, now_s + middle, now_s + high


def _figures(waits: Floats, low: Floats, start: Floats, high: Floats, coverage: float) -> dict[str, float]:
    miss = (1 - coverage) / 2
    loss = sum(
        np.maximum(level * (waits - end), (level - 1) * (waits - end)) for level, end in ((miss, low), (1 - miss, high))
    )
    return {
        "inside_ratio": float(np.mean((waits >= low - 1) & (waits <= high + 1))),
        "earlier_ratio": float(np.mean(waits < low - 1)),
        "later_ratio": float(np.mean(waits > high + 1)),
        "pinball_mean_s": float(np.mean(loss)),
        "width_by_wait_median_ratio": float(np.median((high - low) / np.maximum(waits, 60.0))),
        "error_median_s": float(np.median(np.abs(start - waits))),
    }


def cost(discipline: str, rounds: int, places: tuple[int, ...] = (0, 10, 100, 300, 900)) -> list[Row]:
    """Rows of processor time by the place in the queue."""
    cluster, policy = _full(discipline, 1000)
    order = order_of(cluster, 1.0)
    return [
        Row(
            discipline,
            "cost_median_ms",
            _median_ms(partial(prospects, cluster, policy, 1.0, [order[place].key]), rounds),
            slice=f"{place} ahead",
            n=rounds,
        )
        for place in places
    ]


def what_if_cost(discipline: str, nodes: int, rounds: int) -> list[Row]:
    """Rows of processor time of one question, from the kept cluster to the answer with its predicted start."""
    cluster, policy = _full(discipline, nodes)
    cluster.apply(decide(cluster, policy, 1.0), 1.0)
    gang = JobSpec(JobKind.GANG, Demand(1, cpus=1.0, accelerators=8), ranks=4, max_run_time_s=600.0)
    task = JobSpec(JobKind.TASK, Demand(1, cpus=1.0, accelerators=1), max_run_time_s=600.0)
    asked = {
        "gang behind all": gang,
        "gang before all": replace(gang, priority=1),
        "task behind all": task,
        "task before all": replace(task, priority=1),
    }

    def ask(spec: JobSpec, kept: KeptCourses | None) -> object:
        return answer(cluster, policy, spec, "t1", 2.0, times=rfc3339, kept=KeptCourses() if kept is None else kept)

    out = []
    for name, spec in asked.items():
        kept = KeptCourses()
        # A question about another job in the same place has been answered.
        ask(replace(spec, demand=replace(spec.demand, cpus=2.0)), kept)
        out += [
            Row(
                discipline,
                "what_if_median_ms",
                _median_ms(work, rounds),
                slice=f"{nodes} nodes, {name}, {which}",
                n=rounds,
            )
            for which, work in (("first", partial(ask, spec, None)), ("another", partial(ask, spec, kept)))
        ]
    return out


def _median_ms(work: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        before = time.process_time()
        work()
        times.append(1000 * (time.process_time() - before))
    return sorted(times)[rounds // 2]


def _full(discipline: str, nodes: int) -> tuple[Cluster, Policy]:
    """Every node held, and a cycle was decided on what waits."""
    rng = random.Random(1)
    fleet = Fleet()
    for name in "abcde":
        devices = tuple(Device(index, "NVIDIA", "A100") for index in range(8))
        members = [Node(f"{name}-{number}", name, 64.0, 64 * _GIB, devices) for number in range(nodes // 5)]
        fleet = with_domain(fleet, Domain(name), members, full_of=name)
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
    running, waiting = nodes // 2, nodes
    for number in range(running + waiting):
        expected_s = rng.lognormvariate(9.0, 1.5)
        demand = wide if number < running else rng.choice(classes)
        key = UnitKey(f"j{number}", 0)
        known = {"expected_s": expected_s, "low_s": expected_s / 3, "high_s": 3 * expected_s}
        queued_at_s = float(number - running - waiting)
        cluster.add(PendingUnit(key, f"t{number % 10}", 0, queued_at_s, demand, **known))  # type: ignore[arg-type]
        if number == running - 1:
            cluster.apply(decide(cluster, policy, 0.0, explain=False), 0.0)
    cluster.apply(decide(cluster, policy, 1.0, explain=False), 1.0)
    return cluster, policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_data_option(parser)
    parser.add_argument("--policy", default="easy-predicted")
    parser.add_argument("--jobs", type=int, default=23_531, help="so many of the first of the log (default: all)")
    parser.add_argument("--accelerators", type=int, default=352)
    parser.add_argument("--loads", type=float, nargs="*", default=[0.6, 0.8, 0.95])
    parser.add_argument("--coverage", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0, help="of the run times that futures draw")
    parser.add_argument("--nodes", type=int, nargs="*", default=[250, 500, 1000])
    parser.add_argument("--rounds", type=int, default=7, help="questions of each kind whose median is the cost")
    parser.add_argument("--no-cost", action="store_true", help="calibration only")
    parser.add_argument("--json", type=Path, metavar="OUT")
    arguments = parser.parse_args()
    path = arguments.data / "philly/october_5_clusters.csv"
    rows = []
    if not arguments.no_cost:
        leave_survivors()  # as the service does
        for discipline in ("greedy", "easy", "conservative"):
            rows += cost(discipline, arguments.rounds)
            for nodes in arguments.nodes:
                rows += what_if_cost(discipline, nodes, arguments.rounds)
    sources = []
    if path.exists():
        trace = limited(philly.load(path), arguments.jobs)
        for load in arguments.loads:
            rows += calibration(
                trace, arguments.policy, arguments.accelerators, load, arguments.coverage, arguments.seed
            )
        sources.append(DataSource.of(path))
    else:
        print(f"no calibration: {path} is not there (set MERIDIAN_DATA)", file=sys.stderr)
    print_table(rows)
    if arguments.json:
        write(arguments.json, command_line("bench.prospect"), sources, arguments.seed, Setting.SIMULATED, rows)
        print(f"written: {arguments.json}")


if __name__ == "__main__":
    main()
