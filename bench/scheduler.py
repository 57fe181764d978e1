"""Speed of the scheduler's core: placements per second, time of a decision, and how both grow.

    python -m bench.scheduler [--quick] [--rounds 5] [--json OUT]

Networks of 8-accelerator nodes in domains of equal size, written "domains x nodes of each"; 60 different demands, single ranks
and gangs of 2 to 16 ranks, of seven tenants, with the default policy; every placement has its explanation.

  cold     one cycle over all waiting units on an empty network, nothing kept from before
  steady   a full network with the given number of units waiting: one run ends, one unit comes, one cycle decides (p50, p99)
  filling  cycles of 500 units each on an empty network until it is full: the cost of a placement in the last tenth of them
           against the first (1 means that it does not grow with what is placed)
Baselines:
  per unit    the same filters and scores, judged for each unit anew, as a scheduler does that looks at one job after the other;
              on the first 300 units, as it is slow
  first fit   first in, first out, first node with room, no scores, no domains, no explanation: the least one can do
Exponents are slopes of log cost over log nodes at equal numbers of waiting units. Times are processor time of this process, with the
collector of cycles held off while a cycle decides, as the service holds it off.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from bench.result import Row, Setting, command_line, print_table, write
from services.scheduler.collector import held_off
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.cycle_order import Selection
from services.scheduler.core.decide import Snapshot, decide
from services.scheduler.core.fleet import Device, Domain, Fleet, Node
from services.scheduler.core.ledger import Ledger
from services.scheduler.core.placement import Candidates
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import Table, table_of
from services.scheduler.core.view import View
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit, Shares

SEED = 7
DEVICES, CPUS, MEMORY_BYTES = 8, 64.0, 2**38
SHAPES = ((5, 250), (5, 400), (20, 2_000), (100, 1_000))
WAITING = (1_000, 10_000, 100_000)
QUICK_SHAPES, QUICK_WAITING = ((5, 50), (5, 250)), (1_000, 10_000)
MOST_PER_UNIT = 300
EVENTS = 200
POLICY = Policy()


def network(nodes: int, domains: int = 0) -> Fleet:
    """``nodes`` nodes in ``domains`` domains (default: of about 500 nodes, at least five)."""
    count = domains or max(5, nodes // 500)
    rows: dict[str, Node] = {}
    facts: dict[str, Domain] = {}
    for number in range(count):
        name = f"domain-{number}"
        for index in range(nodes // count + (number < nodes % count)):
            devices = tuple(Device(device, "NVIDIA", "A100") for device in range(DEVICES))
            rows[f"{name}-{index}"] = Node(f"{name}-{index}", name, CPUS, MEMORY_BYTES, devices)
        facts[name] = Domain(
            name, price_micro_units=1_000_000 + 50_000 * number, currency="CNY", carbon_g_per_kwh=300.0 + number
        )
    return Fleet(facts, rows)


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


def seconds(work: Callable[[], object]) -> float:
    """Processor time of a piece of work."""
    with held_off():
        begun = time.process_time()
        work()
        return time.process_time() - begun


def cold(table: Table, units: Sequence[PendingUnit], rounds: int, where: str) -> list[Row]:
    """One cycle over all units, nothing known before; the baselines on the same."""
    snapshot = Snapshot(table, Ledger(), units)
    times, placed = [], 0
    for _ in range(rounds):
        cluster = snapshot.cluster(POLICY)
        with held_off():
            begun = time.process_time()
            placed = len(decide(cluster, POLICY, 0.0).placed)
            times.append(time.process_time() - begun)
    rows = _rates("core", times, placed, len(units), where, baseline=False)
    few = replace(snapshot, pending=list(units[:MOST_PER_UNIT]))
    slow = [seconds(lambda: by_unit(few)) for _ in range(min(rounds, 3))]
    same = [seconds(lambda: decide(few, POLICY)) for _ in range(min(rounds, 3))]
    rows += _rates("per unit", slow, by_unit(few), len(few.pending), where, baseline=True)
    rows.append(
        Row("core against per unit", "speedup_ratio", statistics.median(slow) / statistics.median(same), slice=where)
    )
    if len(table.nodes) <= 2_000 and len(units) <= 10_000:
        plain = [seconds(lambda: first_fit(snapshot)) for _ in range(min(rounds, 3))]
        rows += _rates("first fit", plain, first_fit(snapshot), len(units), where, baseline=True)
    return rows


def _rates(subject: str, times: Sequence[float], placed: int, units: int, where: str, *, baseline: bool) -> list[Row]:
    rates = [placed / value for value in times]
    millis = [value * 1e3 for value in times]
    spread = {"slice": where, "n": len(times), "baseline": baseline}
    return [
        Row(subject, "placements_per_s", statistics.median(rates), low=min(rates), high=max(rates), **spread),  # type: ignore[arg-type]
        Row(subject, "cycle_ms", statistics.median(millis), low=min(millis), high=max(millis), **spread),  # type: ignore[arg-type]
        Row(subject, "placed_ratio", placed / units, **spread),  # type: ignore[arg-type]
    ]


def full(table: Table) -> Cluster:
    """A network filled to about 97 % with gangs of whole nodes, the rest with small units."""
    cluster = Cluster(table, POLICY)
    gangs = int(0.97 * len(table.nodes) / 16)
    whole = Demand(16, cpus=32.0, memory_bytes=2**37, accelerators=DEVICES)
    cluster.extend(PendingUnit(UnitKey(f"whole-{n}", 0), f"tenant-{n % 7}", 0, 0.0, whole) for n in range(gangs))
    cluster.apply(decide(cluster, POLICY, 0.0, explain=False), 0.0)
    single = Demand(1, cpus=1.0, memory_bytes=2**30, accelerators=1)
    left = int(cluster.view.free_device_totals.sum())
    cluster.extend(PendingUnit(UnitKey(f"single-{n}", 0), f"tenant-{n % 7}", 0, 0.0, single) for n in range(left + 8))
    cluster.apply(decide(cluster, POLICY, 0.0, explain=False), 0.0)
    return cluster


def steady(table: Table, waiting: int, where: str) -> list[Row]:
    """One run ends, one unit comes, one cycle decides."""
    cluster = full(table)
    units = mixed(len(table.nodes), waiting + EVENTS)
    cluster.extend(units[:waiting])
    cluster.apply(decide(cluster, POLICY, 0.0), 0.0)
    source = random.Random(SEED)
    names = [key for key in cluster.running if key.job_id.startswith("single")] or list(cluster.running)
    source.shuffle(names)
    times, placed = [], 0
    for number in range(EVENTS):
        cluster.release(names[number % len(names)])
        cluster.add(units[waiting + number])
        with held_off():
            begun = time.process_time()
            decisions = decide(cluster, POLICY, float(number))
            times.append(time.process_time() - begun)
        placed += len(decisions.placed)
        cluster.apply(decisions, float(number))
    ordered = sorted(times)
    spread = {"slice": where, "n": len(times)}
    return [
        Row("core, steady", "decision_p50_ms", ordered[len(ordered) // 2] * 1e3, **spread),  # type: ignore[arg-type]
        Row("core, steady", "decision_p99_ms", ordered[int(0.99 * len(ordered))] * 1e3, **spread),  # type: ignore[arg-type]
        Row("core, steady", "placed_per_event", placed / EVENTS, **spread),  # type: ignore[arg-type]
    ]


def filling(table: Table, where: str) -> list[Row]:
    """Cycles of 500 units until the network is full."""
    cluster = Cluster(table, POLICY)
    costs: list[float] = []
    number = 0
    while True:
        batch = [replace(unit, key=UnitKey(f"{unit.key.job_id}-{number}", 0)) for unit in mixed(0, 500)]
        cluster.extend(batch)
        with held_off():
            begun = time.process_time()
            decisions = decide(cluster, POLICY, float(number))
            spent = time.process_time() - begun
        if len(decisions.placed) < 450 or number >= 60:
            break
        cluster.apply(decisions, float(number))
        costs.append(spent / len(decisions.placed))
        number += 1
    if len(costs) < 4:
        return []
    tenth = max(1, len(costs) // 10)
    # The first cycle judges every demand for the first time.
    first, last = statistics.median(costs[1 : 1 + tenth]), statistics.median(costs[-tenth:])
    return [
        Row("core, filling", "placement_us", statistics.median(costs) * 1e6, slice=where, n=len(costs)),
        Row("core, filling", "last_against_first_ratio", last / first, slice=where, n=len(costs)),
    ]


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """Slope of log y over log x by least squares."""
    if len({x for x, _ in points}) < 2:
        return None
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum((x - mean_x) ** 2 for x in xs)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scheduler", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--quick", action="store_true", help="small shapes only")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="OUT")
    options = parser.parse_args()
    rows: list[Row] = []
    growth: dict[tuple[str, int], list[tuple[float, float]]] = {}
    shapes, numbers = (QUICK_SHAPES, QUICK_WAITING) if options.quick else (SHAPES, WAITING)
    for domains, each in shapes:
        nodes = domains * each
        table = table_of(network(nodes, domains))
        rows += filling(table, f"{domains} x {each} nodes")
        for waiting in numbers:
            where = f"{domains} x {each} nodes, {waiting} waiting"
            rounds = options.rounds if nodes * waiting <= 20_000_000 else min(options.rounds, 3)
            rows += cold(table, mixed(nodes, waiting), rounds, where)
            rows += steady(table, waiting, where)
            for row in rows:
                if row.slice == where and row.value and row.measure in {"decision_p50_ms", "decision_p99_ms"}:
                    growth.setdefault((row.measure, waiting), []).append((float(nodes), row.value))
                if row.slice == where and row.value and row.subject == "core" and row.measure == "placements_per_s":
                    growth.setdefault(("cold_placement_us", waiting), []).append((float(nodes), 1e6 / row.value))
            print(f"measured: {where}", file=sys.stderr)
    for (measure, waiting), points in growth.items():
        slope = exponent(points)
        rows.append(
            Row("growth with nodes", f"{measure}_exponent", slope, slice=f"{waiting} waiting", n=len(points))
            if slope is not None
            else Row(
                "growth with nodes", f"{measure}_exponent", None, slice=f"{waiting} waiting", reason="one shape only"
            )
        )
    print_table(rows)
    if options.json:
        write(options.json, command_line("bench.scheduler"), [], SEED, Setting.OFFLINE, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
