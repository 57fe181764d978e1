"""Two-level scheduling with a process per domain against one level in one process: time from submission to placement.

    python -m bench.two_level [--steps 30] [--domains N ...] [--units N ...] [--bus] [--json OUT]

With ``--bus`` the real services over the embedded broker instead: bench/two_level_bus.py.

Real processes, one per domain, joined by pipes (bench/two_level_pipes.py). Before the first step three quarters of the
accelerators are in use by local work of 1 to 8 accelerators, and every domain is asked once about all classes of units
(``first_sight_s``: what a domain does once per class and start). A step is what a cycle sees:
1. Some runs end, and every domain tells its summary anew (not timed: domains do so by themselves).
2. Some domains then take local work that the network has not heard of, so its summaries are old.
3. Units of 60 classes (bench/scheduler.py) are submitted at once; the clock runs until the last domain has answered for
   the last of them, feedback included. Every unit of a step is given that time: what it would wait at most.

Slices give domains, nodes (50 per domain, 8 accelerators each) and units per step. ``one level`` (baseline) decides the same
steps on one cluster with all nodes, its local work known. ``agreement_ratio`` is measured apart, with fresh summaries and no
local work: share of units that both ways send to the same domain. Times are wall time, on whatever else the machine does;
``processor_p50_s`` is the processor time of all processes of a step.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

import numpy as np

from bench import two_level_bus
from bench.result import Row, Setting, command_line, print_table, write
from bench.scheduler import CPUS, DEVICES, MEMORY_BYTES, mixed
from bench.two_level_pipes import RemoteDomain
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.fleet import Device, Domain, Fleet, Node
from services.scheduler.core.pending import Pending
from services.scheduler.core.plugins import plugins_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.two_level import (
    MOST_ROUNDS,
    Assignment,
    Coordinated,
    InterDomain,
    IntraDomain,
    LocalDomain,
    coordinate,
)
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit

SEED = 11
NODES = 50
SHAPES = ((5, 1), (5, 100), (20, 1), (20, 100), (100, 1), (100, 100), (20, 1000), (100, 1000))
"""Domains and units per step."""
FILL = 0.85
"""Runs end at random above this share of accelerators in use."""
LOCAL_SHARE = 0.2
"""Share of the domains that take local work which the network does not know of, in each step."""
LOCAL = Demand(1, cpus=1.0, accelerators=2)
PREFILL = 0.75
POLICY = Policy(order=("priority", "age"))


def network(domains: int, nodes: int = NODES) -> Fleet:
    """Equal domains with slightly different prices."""
    facts, rows = {}, {}
    devices = tuple(Device(index, "NVIDIA", "A100") for index in range(DEVICES))
    for number in range(domains):
        name = f"domain-{number:03}"
        facts[name] = Domain(name, price_micro_units=1_000_000 + 10_000 * (number % 7), currency="CNY")
        for index in range(nodes):
            node_id = f"{name}-{index:03}"
            rows[node_id] = Node(node_id, name, CPUS, MEMORY_BYTES, devices)
    return Fleet(facts, rows)


def local_domain(fleet: Fleet, name: str) -> LocalDomain:
    """One domain with a cluster of its own."""
    nodes = {key: node for key, node in fleet.nodes.items() if node.domain_id == name}
    return LocalDomain(Cluster(table_of(Fleet({name: fleet.domains[name]}, nodes)), POLICY))


@dataclass
class Book:
    """What runs where, to end some of it; shared by both ways of scheduling only in its seed."""

    source: random.Random
    accelerators: int
    held: int = 0
    runs: dict[UnitKey, tuple[frozenset[str], int]] = field(default_factory=dict)

    def began(self, unit: PendingUnit, ranks: Sequence[PlacedRank]) -> None:
        """A unit runs."""
        size = int(unit.devices)
        self.runs[unit.key] = frozenset(rank.domain_id for rank in ranks), size
        self.held += size

    def ending(self) -> list[tuple[UnitKey, frozenset[str]]]:
        """Runs that end now."""
        keys = list(self.runs)
        self.source.shuffle(keys)
        ended = []
        while keys and self.held > FILL * self.accelerators:
            key = keys.pop()
            domains, size = self.runs.pop(key)
            self.held -= size
            ended.append((key, domains))
        return ended


@dataclass
class Figures:
    """What the steps of one slice took."""

    seconds: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)
    units: list[int] = field(default_factory=list)
    placed: int = 0
    waited: int = 0
    feedback: int = 0
    rounds: list[int] = field(default_factory=list)
    first_sight_s: float = 0.0


def workload(step: int, count: int, nodes: int) -> list[PendingUnit]:
    """The units of one step."""
    start = step * count
    drawn = mixed(nodes, count + start)[start:] if start < 50_000 else mixed(nodes, count)
    return [replace(unit, key=UnitKey(f"job-{step}", n)) for n, unit in enumerate(drawn)]


def local_work(step: int, names: Sequence[str]) -> list[Assignment]:
    """What domains take by themselves in this step."""
    source = random.Random(f"{SEED} {step}")
    chosen = source.sample(list(names), max(1, round(LOCAL_SHARE * len(names))))
    return [
        Assignment(PendingUnit(UnitKey(f"local-{step}-{name}", n), "local", 0, 0.0, LOCAL), name)
        for name in chosen
        for n in range(6)
    ]


def prefill(names: Sequence[str], nodes: int) -> list[Assignment]:
    """Local work that runs before the first step."""
    source = random.Random(SEED)
    items: list[Assignment] = []
    for name in names:
        left = PREFILL * nodes * DEVICES
        while left > 0:
            size = source.choice((1, 1, 2, 2, 4, 8))
            left -= size
            demand = Demand(1, cpus=float(size), accelerators=size)
            items.append(Assignment(PendingUnit(UnitKey(f"before-{name}", len(items)), "local", 0, 0.0, demand), name))
    return items


def two_levels(
    fleet: Fleet, count: int, steps: int, *, remote: bool = True, local: bool = True, most_rounds: int = MOST_ROUNDS
) -> tuple[Figures, dict[UnitKey, frozenset[str]]]:
    """Run the steps on two levels; also where each unit went."""
    plugins_of(POLICY)  # loads the plugins, once for all processes
    domains: dict[str, IntraDomain] = {
        name: RemoteDomain(name, partial(local_domain, fleet, name)) if remote else local_domain(fleet, name)
        for name in fleet.domains
    }
    book = Book(random.Random(SEED), len(fleet.nodes) * DEVICES)
    whole = Cluster(table_of(Fleet(fleet.domains, {})), POLICY)
    summaries = []
    for domain in domains.values():
        domain.begin((), (), 0.0)
        summaries.append(domain.answer().summary)
    inter = InterDomain(fleet, summaries, POLICY)
    figures, went = Figures(), {}
    take_local(domains, prefill(list(domains), len(fleet.nodes) // len(domains)), book, 0.0)
    everything = Pending(plugins_of(POLICY).order)
    for unit in workload(0, 1000, len(fleet.nodes)):
        everything.add(unit)
    inter.know(everything)
    begun = time.perf_counter()
    refresh(inter, domains, (), 0.0)
    figures.first_sight_s = time.perf_counter() - begun
    for step in range(steps):
        refresh(inter, domains, book.ending(), float(step))
        if local:
            take_local(domains, local_work(step, list(domains)), book, float(step))
        units = workload(step, count, len(fleet.nodes))
        by_key = {unit.key: unit for unit in units}
        context = OrderContext(whole.shares())
        processor_s = spent_s(domains)
        begun = time.perf_counter()
        pending = Pending(plugins_of(POLICY).order)
        for unit in units:
            pending.add(unit)
        found: Coordinated = coordinate(inter, pending, domains, context, float(step), most_rounds=most_rounds)
        took = time.perf_counter() - begun
        for key, ranks in found.placed.items():
            book.began(by_key[key], ranks)
            went[key] = frozenset(rank.domain_id for rank in ranks)
        record(figures, took, spent_s(domains) - processor_s, len(units), len(found.placed))
        figures.feedback += found.feedback
        figures.rounds.append(found.rounds)
    for domain in domains.values():
        if isinstance(domain, RemoteDomain):
            domain.close()
    return figures, went


def refresh(
    inter: InterDomain,
    domains: dict[str, IntraDomain],
    ended: Sequence[tuple[UnitKey, frozenset[str]]],
    now_s: float,
) -> None:
    """Runs end; every domain tells its summary anew."""
    for key, names in ended:
        for name in names:
            domains[name].give_back((key,), now_s)
    for domain in domains.values():
        domain.begin((), inter.classes, now_s)
    for domain in domains.values():
        inter.update(domain.answer().summary)


def take_local(domains: dict[str, IntraDomain], items: Sequence[Assignment], book: Book, now_s: float) -> None:
    """Domains take work by themselves; the network does not hear of it."""
    by_domain: dict[str, list[Assignment]] = {}
    for item in items:
        by_domain.setdefault(item.domain_id, []).append(item)
    units = {item.unit.key: item.unit for item in items}
    for name, own_items in by_domain.items():
        domains[name].begin(own_items, (), now_s)
        for key, ranks in domains[name].answer().placed:
            book.began(units[key], ranks)


def one_level(
    fleet: Fleet, count: int, steps: int, *, local: bool = True
) -> tuple[Figures, dict[UnitKey, frozenset[str]]]:
    """The same steps on one cluster."""
    cluster = Cluster(table_of(fleet), POLICY)
    book = Book(random.Random(SEED), len(fleet.nodes) * DEVICES)
    figures, went = Figures(), {}
    take_local_whole(cluster, prefill(list(fleet.domains), len(fleet.nodes) // len(fleet.domains)), book, 0.0)
    cluster.extend(workload(0, 1000, len(fleet.nodes)))
    decide(cluster, POLICY, 0.0, explain=False)
    for unit in list(cluster.pending):
        cluster.withdraw(unit.key)
    for step in range(steps):
        for key, _ in book.ending():
            cluster.release(key, float(step))
        if local:
            take_local_whole(cluster, local_work(step, list(fleet.domains)), book, float(step))
        units = workload(step, count, len(fleet.nodes))
        processor_s, begun = time.process_time(), time.perf_counter()
        cluster.extend(units)
        decisions = decide(cluster, POLICY, float(step), explain=False)
        runs = cluster.apply(decisions, float(step))
        took = time.perf_counter() - begun
        for running in runs:
            book.began(running.unit, running.ranks)
            went[running.unit.key] = frozenset(rank.domain_id for rank in running.ranks)
        for unit in list(cluster.pending):
            cluster.withdraw(unit.key)
        record(figures, took, time.process_time() - processor_s, len(units), len(runs))
    return figures, went


def take_local_whole(cluster: Cluster, items: Sequence[Assignment], book: Book, now_s: float) -> None:
    """The same local work on the one cluster."""
    for item in items:
        demand = replace(item.unit.demand, domains=frozenset({item.domain_id}))
        cluster.add(replace(item.unit, demand=demand))
    decisions = decide(cluster, POLICY, now_s, explain=False)
    for running in cluster.apply(decisions, now_s):
        book.began(running.unit, running.ranks)
    for unit in list(cluster.pending):
        cluster.withdraw(unit.key)


def spent_s(domains: dict[str, IntraDomain]) -> float:
    """Processor time of this process and those of the domains so far."""
    return time.process_time() + sum(item.processor_s for item in domains.values() if isinstance(item, RemoteDomain))


def record(figures: Figures, took: float, processor_s: float, units: int, placed: int) -> None:
    """Count a step."""
    figures.seconds.append(took)
    figures.processor_s.append(processor_s)
    figures.units.append(units)
    figures.placed += placed
    figures.waited += units - placed


def rows_of(subject: str, where: str, figures: Figures, *, baseline: bool) -> list[Row]:
    """A slice's figures."""
    times = np.array(figures.seconds)
    rates = [count / took for count, took in zip(figures.units, figures.seconds, strict=True)]
    total = sum(figures.units)
    found = [
        Row(subject, "coordination_p50_s", float(np.quantile(times, 0.5)), where, n=len(times), baseline=baseline),
        Row(
            subject,
            "coordination_p99_s",
            float(np.quantile(times, 0.99)),
            where,
            low=float(times.min()),
            high=float(times.max()),
            n=len(times),
            baseline=baseline,
        ),
        Row(
            subject,
            "units_per_s",
            statistics.median(rates),
            where,
            low=min(rates),
            high=max(rates),
            n=len(rates),
            baseline=baseline,
        ),
        Row(
            subject,
            "processor_p50_s",
            statistics.median(figures.processor_s),
            where,
            low=min(figures.processor_s),
            high=max(figures.processor_s),
            n=len(rates),
            baseline=baseline,
        ),
        Row(subject, "placed_ratio", figures.placed / total, where, n=total, baseline=baseline),
    ]
    if figures.rounds:
        found += [
            Row(subject, "first_sight_s", figures.first_sight_s, where),
            Row(subject, "feedback_ratio", figures.feedback / total, where, n=total),
            Row(subject, "rounds_mean_count", statistics.mean(figures.rounds), where, n=len(figures.rounds)),
        ]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.two_level", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--domains", type=int, nargs="+", help="only these numbers of domains")
    parser.add_argument("--units", type=int, nargs="+", help="only these numbers of units per step")
    parser.add_argument("--bus", action="store_true", help="the services over the embedded broker")
    parser.add_argument("--json", metavar="OUT")
    options = parser.parse_args(arguments)
    command = command_line("bench.two_level", arguments)
    rows: list[Row] = []
    if options.bus:
        shapes = two_level_bus.SHAPES
        if options.domains or options.units:
            shapes = tuple(product(options.domains or [20], options.units or [100]))
        rows = two_level_bus.rows(options.steps, shapes)
        print_table(rows)
        if options.json:
            write(options.json, command, [], two_level_bus.SEED, Setting.REAL, rows)
        return 0
    chosen = [
        (domains, count)
        for domains, count in SHAPES
        if domains in (options.domains or [domains]) and count in (options.units or [count])
    ]
    if not chosen:
        known = ", ".join(f"{domains} with {count}" for domains, count in SHAPES)
        parser.error(f"--domains, --units: without --bus there are {known}")
    for domains, count in chosen:
        fleet = network(domains)
        where = f"{domains} domains, {len(fleet.nodes)} nodes, {count} units"
        steps = options.steps if count < 1000 else max(options.steps // 3, 3)
        rows += rows_of("two levels", where, two_levels(fleet, count, steps)[0], baseline=False)
        rows += rows_of("one level", where, one_level(fleet, count, steps)[0], baseline=True)
    fleet = network(5)
    _, two = two_levels(fleet, 100, options.steps, remote=False, local=False)
    _, one = one_level(fleet, 100, options.steps, local=False)
    keys = two.keys() | one.keys()
    same = sum(two.get(key) == one.get(key) for key in keys)
    rows.append(
        Row("two levels", "agreement_ratio", same / len(keys), "5 domains, 250 nodes, 100 units, fresh", n=len(keys))
    )
    print_table(rows)
    if options.json:
        write(options.json, command, [], SEED, Setting.REAL, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
