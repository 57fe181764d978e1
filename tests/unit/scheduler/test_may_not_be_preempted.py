"""Who gives way to whom: a unit that may not be preempted keeps its nodes, whatever waits."""

from __future__ import annotations

import pytest

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.fleet import Domain, Fleet, with_domain
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import PendingUnit
from tests.unit.scheduler.world import a_fleet, a_node

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


def test_who_holds_a_port_of_the_address_gives_way_though_the_place_is_on_another_node() -> None:
    # Both nodes have one address: 8080 is held on a-0, the accelerators that are wanted on a-1.
    policy = Policy("p", order=("priority", "age"), preemptions=("priority",))
    fleet = with_domain(Fleet(), Domain("a"), [a_node("a-0", "a", devices=2), a_node("a-1", "a")])
    cluster = Cluster(table_of(fleet), policy)
    service = PendingUnit(UnitKey("service", 0), "lab", 0, 0.0, Demand(1, cpus=8.0, service_port=8080))
    cluster.begin(service, [PlacedRank(0, "a", "a-0", 0, ())], 0.0)
    cluster.begin(*holding("training", "a-1", preemptible=True), 0.0)
    cluster.add(
        PendingUnit(UnitKey("urgent", 0), "lab", 9, 1.0, Demand(1, cpus=1.0, accelerators=4, service_port=8080))
    )
    found = decide(cluster, policy, 10.0)
    assert [item.key.job_id for item in found.placed] == ["urgent"]
    assert {item.key.job_id for item in found.preempted} == {"service", "training"}
