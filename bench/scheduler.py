"""Decisions per second of the scheduler's core, for growing numbers of nodes and of waiting units.

    python -m bench.scheduler [--rounds 5] [--json OUT]

One cycle: decisions about all waiting units on an empty network of 8-accelerator nodes in domains of equal size. Units that
find no room are decided about too; ``placed_ratio`` tells their share. Two workloads: `array` (equal single-rank units of three
tenants) and `mixed` (single ranks and gangs of 2 to 16 ranks with 60 different demands). Every placement has its explanation.

Subjects:
  classes     the scheduler: a demand is judged once in a cycle
  per unit    the same filters and scores for each unit anew (baseline; what a scheduler does that looks at one job after
              the other), on the first 500 units, as it is slow; the speed-up compares both on these 500
  first fit   first in, first out, first node with room, no scores, no domains, no explanation: the least one can do

Times are processor time of this process, the median over the rounds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from bench.result import Row, Setting, print_table, write
from services.scheduler.core.decide import Snapshot, decide
from services.scheduler.core.fleet import Device, Domain, Fleet, Node, with_domain
from services.scheduler.core.ledger import Ledger
from services.scheduler.core.pending import Selection
from services.scheduler.core.placement import Candidates
from services.scheduler.core.policy import Policy
from services.scheduler.core.queue import OrderContext, PendingUnit, Shares
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import View, table_of

SEED = 7
DEVICES, CPUS, MEMORY_BYTES = 8, 64.0, 2**38
SHAPES = ((17, 1_000), (17, 10_000), (100, 1_000), (1_000, 1_000), (1_000, 10_000), (5_000, 10_000))
MOST_PER_UNIT = 500
POLICY = Policy()


def network(nodes: int) -> Fleet:
    """``nodes`` nodes in domains of about 20 to 500 nodes, at least five."""
    count = max(5, nodes // 500)
    fleet = Fleet()
    for number in range(count):
        name = f"domain-{number}"
        rows = [
            Node(
                f"{name}-{index}",
                name,
                CPUS,
                MEMORY_BYTES,
                tuple(Device(device, "NVIDIA", "A100") for device in range(DEVICES)),
            )
            for index in range(nodes // count + (number < nodes % count))
        ]
        domain = Domain(
            name, price_micro_units=1_000_000 + 50_000 * number, currency="CNY", carbon_g_per_kwh=300.0 + number
        )
        fleet = with_domain(fleet, domain, rows, full_of=name)
    return fleet


def array(nodes: int, units: int) -> list[PendingUnit]:
    """Equal units of one to 64 cpus that together ask for a tenth more than there is, where that is possible."""
    share = min(CPUS, max(1.0, 1.1 * nodes * CPUS / units))
    return [
        PendingUnit(UnitKey(f"job-{n % 3}", n), f"tenant-{n % 3}", 0, float(n), Demand(1, cpus=share))
        for n in range(units)
    ]


def mixed(nodes: int, units: int) -> list[PendingUnit]:
    """Sixty different demands; many small, few large, as in the Philly trace (most jobs ask for one accelerator)."""
    source = random.Random(SEED)
    demands = [
        Demand(ranks, cpus=float(cpus), memory_bytes=2**30 * (1 + variant), accelerators=accelerators)
        for ranks, accelerators in ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 8), (16, 8), (2, 4), (4, 2))
        for cpus in (1, 4)
        for variant in range(3)
    ]
    weights = [1.0 / (item.ranks * item.accelerators) for item in demands]
    chosen = source.choices(demands, weights, k=units)
    return [
        PendingUnit(UnitKey(f"job-{n}", 0), f"tenant-{n % 7}", source.randrange(3), float(n), demand)
        for n, demand in enumerate(chosen)
    ]


def by_classes(snapshot: Snapshot) -> int:
    """The scheduler."""
    return len(decide(snapshot, POLICY).placed)


def by_unit(snapshot: Snapshot) -> int:
    """Every unit is judged anew."""
    view = View(snapshot.table, snapshot.ledger)
    shares = Shares({}, float(snapshot.table.domain_devices.sum()), float(snapshot.table.domain_cpus.sum()), {})
    queue = Selection(snapshot.cluster(POLICY).pending, OrderContext(shares))
    placed = 0
    while (unit := queue.pop()) is not None:
        candidates = Candidates(view, unit.demand, view.columns(unit.demand), POLICY)
        choice = candidates.choose()
        if choice is None:
            candidates.explain_waiting()
            continue
        candidates.explain(choice)
        candidates.take(choice)
        queue.charge(unit)
        placed += 1
    return placed


def first_fit(snapshot: Snapshot) -> int:
    """First in, first out; the first nodes with room."""
    free = [[node.cpus, node.memory_bytes, len(node.devices)] for node in snapshot.table.nodes]
    placed = 0
    for unit in sorted(snapshot.pending, key=lambda item: item.queued_at_s):
        demand = unit.demand
        taken: list[list[float]] = []
        for node in free:
            while len(taken) < demand.ranks and (
                node[0] >= demand.cpus and node[1] >= demand.memory_bytes and node[2] >= demand.accelerators
            ):
                node[0] -= demand.cpus
                node[1] -= demand.memory_bytes
                node[2] -= demand.accelerators
                taken.append(node)
            if len(taken) == demand.ranks:
                break
        if len(taken) == demand.ranks:
            placed += 1
            continue
        for node in taken:
            node[0] += demand.cpus
            node[1] += demand.memory_bytes
            node[2] += demand.accelerators
    return placed


def measured(work: Callable[[Snapshot], int], snapshot: Snapshot, rounds: int) -> tuple[list[float], int]:
    """Seconds of each round, and how many units it placed."""
    times, placed = [], 0
    for _ in range(rounds):
        begun = time.process_time()
        placed = work(snapshot)
        times.append(time.process_time() - begun)
    return times, placed


def rows_of(subject: str, where: str, units: int, times: Sequence[float], placed: int, *, baseline: bool) -> list[Row]:
    """Figures of one subject on one shape."""
    rate = [units / seconds for seconds in times]
    millis = [seconds * 1e3 for seconds in times]
    spread = {"slice": where, "n": len(times), "baseline": baseline}
    return [
        Row(subject, "decisions_per_s", statistics.median(rate), low=min(rate), high=max(rate), **spread),  # type: ignore[arg-type]
        Row(subject, "cycle_ms", statistics.median(millis), low=min(millis), high=max(millis), **spread),  # type: ignore[arg-type]
        Row(subject, "placed_ratio", placed / units, **spread),  # type: ignore[arg-type]
    ]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scheduler", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="OUT")
    options = parser.parse_args()
    rows: list[Row] = []
    ratios: list[Row] = []
    for nodes, units in SHAPES:
        table = table_of(network(nodes))
        for name, workload in (("array", array), ("mixed", mixed)):
            snapshot = Snapshot(table, Ledger(), workload(nodes, units))
            where = f"{name}, {nodes} nodes, {units} units"
            times, placed = measured(by_classes, snapshot, options.rounds)
            rows += rows_of("classes", where, units, times, placed, baseline=False)
            few = replace(snapshot, pending=snapshot.pending[:MOST_PER_UNIT])
            slow, slow_placed = measured(by_unit, few, options.rounds)
            rows += rows_of("per unit", where, len(few.pending), slow, slow_placed, baseline=True)
            plain, plain_placed = measured(first_fit, snapshot, options.rounds)
            rows += rows_of("first fit", where, units, plain, plain_placed, baseline=False)
            same, _ = measured(by_classes, few, options.rounds)
            faster = statistics.median(slow) / statistics.median(same)
            ratios.append(Row("classes against per unit", "speedup_ratio", faster, slice=where))
    rows += ratios
    print_table(rows)
    if options.json:
        write(options.json, "python -m bench.scheduler", [], SEED, Setting.OFFLINE, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
