"""A cluster in virtual time: units arrive, are decided about, run for as long as they say and end."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.deciding.decisions import Decisions
from services.scheduler.core.policy import Policy, policy_from_json
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import PendingUnit
from tests.unit.scheduler.world import a_fleet


def a_policy(**fields: Any) -> Policy:
    """A policy with few scores, in the order of age unless said otherwise."""
    body = {"name": "test", "filters": ("up", "capacity"), "scores": {"pack": 1.0}, "order": ("age",)}
    return policy_from_json({**body, **fields})


def a_cluster(policy: Policy, nodes: int = 1, facts: dict[str, Any] | None = None, **node: Any) -> Cluster:
    return Cluster(table_of(a_fleet({"a": nodes}, **node)), policy, facts=facts)


def a_unit(name: str, tenant: str = "lab", devices: int = 0, cpus: float = 1.0, **more: Any) -> PendingUnit:
    """A unit of one rank, or of ``ranks`` with ``devices`` and ``cpus`` each."""
    demand = Demand(more.pop("ranks", 1), cpus=cpus, accelerators=devices, **more.pop("demand", {}))
    queued_at_s = more.pop("queued_at_s", 0.0)
    return PendingUnit(UnitKey(name, 0), tenant, more.pop("priority", 0), queued_at_s, demand, **more)


def names(decisions: Decisions) -> list[str]:
    return [item.key.job_id for item in decisions.placed]


def preempted(decisions: Decisions) -> list[str]:
    return sorted(item.key.job_id for item in decisions.preempted)


def reasons(decisions: Decisions) -> dict[str, str]:
    return {item.key.job_id: item.explanation.blocked for item in decisions.waiting}


def run_now(cluster: Cluster, policy: Policy, *units: PendingUnit, now_s: float = 0.0) -> None:
    """Units that run already: placed by a policy without limits."""
    waiting = [cluster.withdraw(unit.key) for unit in list(cluster.pending)]
    free = replace(policy, limits=(), preemptions=(), order=("age",), options=(), discipline="greedy")
    for unit in units:
        cluster.use(free)
        cluster.add(unit)
        decisions = decide(cluster, free, now_s)
        assert names(decisions) == [unit.key.job_id]
        cluster.apply(decisions, now_s)
    cluster.use(policy)
    cluster.extend(unit for unit in waiting if unit is not None)


@dataclass
class Play:
    """Runs units to their ends: each runs ``unit.expected_s`` and is preempted without loss of its age."""

    cluster: Cluster
    policy: Policy
    after: Callable[[Play], None] = lambda play: None
    now_s: float = 0.0
    started_s: dict[str, float] = field(default_factory=dict)
    _ends: list[tuple[float, UnitKey, float]] = field(default_factory=list)

    def run(self, arrivals: list[PendingUnit], until_s: float) -> None:
        """Units arrive when they say that they are queued."""
        arrivals = sorted(arrivals, key=lambda unit: unit.queued_at_s)
        place = 0
        while True:
            next_s = arrivals[place].queued_at_s if place < len(arrivals) else float("inf")
            next_s = min(next_s, self._ends[0][0] if self._ends else float("inf"))
            if next_s > until_s:
                return
            self.now_s = next_s
            while self._ends and self._ends[0][0] <= next_s:
                _, key, since_s = heapq.heappop(self._ends)
                running = self.cluster.running.get(key)
                if running is not None and running.since_s == since_s:
                    self.cluster.release(key, next_s)
            while place < len(arrivals) and arrivals[place].queued_at_s <= next_s:
                self.cluster.add(arrivals[place])
                place += 1
            self.cycle()

    def cycle(self) -> None:
        decisions = decide(self.cluster, self.policy, self.now_s, explain=False)
        off = [self.cluster.running[item.key] for item in decisions.preempted]
        for running in self.cluster.apply(decisions, self.now_s):
            unit = running.unit
            self.started_s.setdefault(unit.key.job_id, self.now_s)
            heapq.heappush(self._ends, (self.now_s + unit.expected_s - unit.attained_s, unit.key, self.now_s))
        for running in off:
            self.cluster.add(replace(running.unit, attained_s=running.ran_s(self.now_s)))
        self.after(self)
