"""How long the scheduler thinks about why a job waits: predicted starts and counterfactuals, on a full network with a long queue.

Asked is what `GET /v1/jobs/{id}/explanation?counterfactuals=true` asks (outlook.py) about a job of three units, of those that come
first, in the middle and last in the order. Domains of equal nodes of 8 accelerators, all held; units of 40 demands wait, in
ten tenants and three priorities. On two levels a shard holds half of the nodes, and others what it leaves. `--at-once` questions
are asked together, as the service answers them: each in a thread. Run times are log-normal from a seed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from types import SimpleNamespace
from typing import Any

from bench.result import Row, print_table
from services.scheduler import outlook
from services.scheduler.collector import leave_survivors
from services.scheduler.core.apart.others import lay_over
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.fleet import Device, Domain, Fleet, Node, with_domain
from services.scheduler.core.futures.prospect import order_of
from services.scheduler.core.futures.track_record import TrackRecord
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.two_level import DomainSummary
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.live_book import SeenPart
from services.scheduler.policy.file import shipped

_GIB = 2**30
_DOMAINS = "abcde"
_UNITS = 3
"""Units of each job that waits."""
_ASKED_S = 2.0


def full(policy: Policy, nodes: int, waiting: int, levels: int, seed: int) -> Cluster:
    """A full network of so many nodes, on which so many units wait."""
    rng = random.Random(seed)
    fleet = Fleet()
    for name in _DOMAINS:
        devices = tuple(Device(index, "NVIDIA", "A100") for index in range(8))
        members = [Node(f"{name}-{number}", name, 64.0, 64 * _GIB, devices) for number in range(nodes // len(_DOMAINS))]
        fleet = with_domain(fleet, Domain(name, price_micro_units=rng.randint(100, 900)), members, full_of=name)
    # What fills it does not matter to the question.
    filling = Policy(order=("age",))
    cluster = Cluster(table_of(fleet), filling)
    for number in range(nodes // 2 // levels):
        cluster.add(_unit(rng, f"r{number}", 0, number % 10, 0, Demand(2, cpus=8.0, accelerators=8), 0.0))
    cluster.apply(decide(cluster, filling, 0.0, explain=False), 0.0)
    demands = [
        Demand(
            rng.choice([1, 1, 2, 4, 8]),
            cpus=rng.choice([1.0, 4.0]),
            accelerators=rng.choice([1, 2, 4, 8]),
            memory_bytes=(number + 1) * _GIB // 8,
        )
        for number in range(40)
    ]
    for number in range(waiting // _UNITS):
        demand, priority = rng.choice(demands), rng.choice([0, 0, 0, 1, 2])
        for index in range(_UNITS):
            cluster.add(_unit(rng, f"w{number}", index, number % 10, priority, demand, number / waiting))
    cluster.use(policy)
    if policy.discipline != "conservative":
        # Who may take others off has done so. (All reservations of a long queue anew take minutes.)
        cluster.apply(decide(cluster, policy, 1.0, explain=False), 1.0)
    return cluster


def _unit(
    rng: random.Random, job_id: str, index: int, tenant: int, priority: int, demand: Demand, at_s: float
) -> PendingUnit:
    expected_s = rng.lognormvariate(9.0, 1.5)
    known = {"expected_s": expected_s, "low_s": expected_s / 3, "high_s": 3 * expected_s}
    return PendingUnit(UnitKey(job_id, index), f"t{tenant}", priority, at_s, demand, **known)  # type: ignore[arg-type]


class Asked:
    """A scheduler as far as questions look at it."""

    def __init__(self, cluster: Cluster, policy: Policy, levels: int) -> None:
        self.cluster, self.policy = cluster, policy
        self.book = SimpleNamespace(cluster=cluster)
        self.seen_part = SeenPart("tenants of this shard", "others stay") if levels > 1 else None
        size = len(cluster.table.nodes) // len(_DOMAINS)
        self._told = {
            name: DomainSummary(name, 1, {}, dict.fromkeys(cluster.table.models, (size,)), {}, 0.0, 0.0, 0)
            for name in (_DOMAINS if levels > 1 else "")
        }

    def now_s(self) -> float:
        """When is asked."""
        return _ASKED_S

    def for_questions(self) -> Cluster:
        """A copy of the cluster, in which others hold what domains tell to be taken."""
        cluster = self.cluster.copy()
        lay_over(cluster, self._told, _ASKED_S)
        return cluster

    def known_of_domains(self, demand: Demand, key: UnitKey) -> list[Any]:
        """Nothing: it costs next to nothing."""
        return []


async def ask(live: Any, job_id: str) -> tuple[float, list[dict[str, Any]]]:
    """Seconds until the answer, and the units in it."""
    before_s = time.perf_counter()
    bodies: list[dict[str, Any]] = [{"unit_index": index} for index in range(_UNITS)]
    await outlook.add(live, job_id, bodies, TrackRecord(), flips=True)
    json.dumps(bodies)
    return time.perf_counter() - before_s, bodies


async def measure(name: str, nodes: int, waiting: int, levels: int, at_once: int, seed: int) -> list[Row]:
    """One policy on one or two levels: the longest answer, by the place of the job in the order."""
    policy = shipped(name)
    cluster = full(policy, nodes, waiting, levels, seed)
    live = Asked(cluster, policy, levels)
    order = order_of(cluster, _ASKED_S)
    rows = []
    for place, where in ((0, "first"), (len(order) // 2, "middle"), (len(order) - 1, "last")):
        found = await asyncio.gather(*[ask(live, order[place].key.job_id) for _ in range(at_once)])
        units = [unit for _, bodies in found for unit in bodies]
        complete = sum(unit.get("counterfactuals_search", {}).get("complete", True) for unit in units)
        part = f"{'two levels' if levels > 1 else 'one level'}, {where}, {at_once} at once"
        longest_s = max(seconds for seconds, _ in found)
        said = sum(len(unit["counterfactuals"]) for unit in units) / len(units)
        for metric, value in (
            ("longest_answer_s", longest_s),
            ("found_per_unit", said),
            ("searches_complete", complete / len(units)),
        ):
            rows.append(Row(name, metric, value, slice=part, n=at_once))
        print(f"{name}, {part}: {longest_s:.2f} s, {said:.1f} found, {complete} of {len(units)} complete", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policies", nargs="+", default=["balanced", "fair-share", "priority-preemption"])
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--levels", type=int, choices=(1, 2), default=1)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    leave_survivors()  # as the service does
    rows = []
    for name in arguments.policies:
        rows += asyncio.run(
            measure(name, arguments.nodes, arguments.waiting, arguments.levels, arguments.at_once, arguments.seed)
        )
    print_table(rows)


if __name__ == "__main__":
    main()
