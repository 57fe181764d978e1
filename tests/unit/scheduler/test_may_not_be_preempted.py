"""A unit that may not be preempted keeps its nodes, whatever waits; one beside it that may gives way."""

from __future__ import annotations

import pytest

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import PendingUnit
from tests.unit.scheduler.world import a_fleet

FILTERS = ("up", "domain", "accelerator", "capacity")


def holding(name: str, node_id: str, *, preemptible: bool) -> tuple[PendingUnit, list[PlacedRank]]:
    unit = PendingUnit(UnitKey(name, 0), "lab", 0, 0.0, Demand(1, accelerators=4), preemptible=preemptible)
    return unit, [PlacedRank(0, "a", node_id, 0, tuple(range(4)))]


@pytest.mark.parametrize("preemption", ["priority", "order"])
@pytest.mark.parametrize("kept", [set(), {"a-0"}, {"a-1"}, {"a-0", "a-1"}])
def test_only_who_may_be_preempted_gives_way(preemption: str, kept: set[str]) -> None:
    policy = Policy("p", filters=FILTERS, scores=(), order=("priority", "age"), preemptions=(preemption,))
    cluster = Cluster(table_of(a_fleet({"a": 2})), policy)
    for node_id in ("a-0", "a-1"):
        cluster.begin(*holding(node_id, node_id, preemptible=node_id not in kept), 0.0)
    cluster.add(PendingUnit(UnitKey("urgent", 0), "lab", 9, 1.0, Demand(1, accelerators=4)))
    found = decide(cluster, policy, 10.0)
    gone = {item.key.job_id for item in found.preempted}
    assert len(gone) == (len(kept) < 2)
    assert not gone & kept
    assert [item.key.job_id for item in found.waiting] == (["urgent"] if len(kept) == 2 else [])
