"""What the cycle makes of scores and filters that look beyond one node: models, other domains, neighbours, sets."""

from __future__ import annotations

import pytest

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.deciding.decisions import Decisions
from services.scheduler.core.fleet import Domain, Fleet, Link, Node
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import PendingUnit
from simulation.model import Throughputs
from tests.unit.scheduler.scoring.fleets import node


def cluster_of(policy: Policy, *nodes: Node, **domains: Domain) -> Cluster:
    return Cluster(table_of(Fleet(domains, {item.node_id: item for item in nodes})), policy)


def cycle(cluster: Cluster, **units: Demand) -> dict[str, list[str]]:
    """Names of units to the nodes of their ranks, after one cycle that is carried out."""
    for number, (name, demand) in enumerate(units.items()):
        cluster.add(PendingUnit(UnitKey(name, 0), "t", 0, float(number), demand))
    decisions: Decisions = decide(cluster, cluster.policy, 0.0)
    cluster.apply(decisions, 0.0)
    return {item.key.job_id: [rank.node_id for rank in item.ranks] for item in decisions.placed}


def rates() -> Throughputs:
    known = Throughputs()
    known.rates["lm", 1] = {"A100": 8.0, "V100": 2.0}
    known.rates["mlp", 1] = {"A100": 8.0, "V100": 7.0}
    return known


LM = Demand(1, accelerators=1, profile="lm")


@pytest.mark.parametrize("first", ["A100", "V100"])
def test_the_faster_model_of_one_domain_then_the_slower_one(first: str) -> None:
    second = {"A100": "V100", "V100": "A100"}[first]
    policy = Policy(scores=(("throughput", 1.0),))
    cluster = cluster_of(policy, node("n0", models=(first,)), node("n1", models=(second,)))
    cluster.view.facts["throughputs"] = rates()
    fast, slow = ("n0", "n1") if first == "A100" else ("n1", "n0")
    assert cycle(cluster, x=LM, y=LM, z=LM) == {"x": [fast], "y": [slow]}


def test_a_unit_waits_rather_than_run_too_slowly() -> None:
    policy = Policy(
        filters=("up", "runs_there", "capacity"),
        scores=(("throughput", 1.0),),
        options=(("runs_there", (("least", 0.5),)),),
    )
    # One node has both models: it passes, and its slow device is not given away.
    cluster = cluster_of(policy, node("n0", models=("V100", "A100")))
    cluster.view.facts["throughputs"] = rates()
    assert cycle(cluster, x=LM, y=LM) == {"x": ["n0"]}
    assert cluster.running[UnitKey("x", 0)].rows == ((0, (1,)),)
    mlp = Demand(1, accelerators=1, profile="mlp")
    assert cycle(cluster, m=mlp) == {"m": ["n0"]}
    assert cluster.running[UnitKey("m", 0)].rows == ((0, (0,)),)


def test_rented_nodes_open_in_the_cycle_in_which_the_others_fill_up() -> None:
    policy = Policy(filters=("up", "domain", "burst_last", "capacity"), scores=(("price", 1.0),))
    cluster = cluster_of(
        policy,
        node("own", "own", models=("A100",) * 2),
        node("rented", "rented", models=("A100",) * 2),
        own=Domain("own", price_micro_units=9, currency="EUR"),
        rented=Domain("rented", price_micro_units=1, currency="EUR", burst=True),
    )
    one = Demand(1, accelerators=1)
    assert cycle(cluster, a=one, b=one, c=one) == {"a": ["own"], "b": ["own"], "c": ["rented"]}
    cluster.release(UnitKey("a", 0))
    assert cycle(cluster, d=one, e=one) == {"d": ["own"], "e": ["rented"]}


def linked(**bandwidth: float) -> dict[str, Domain]:
    """Domains x, y, z with links by the names of their ends."""
    links: dict[str, list[Link]] = {"x": [], "y": [], "z": []}
    for ends, value in bandwidth.items():
        links[ends[0]].append(Link(ends[1], 0.01, value))
    return {name: Domain(name, links=tuple(found)) for name, found in links.items()}


def test_a_job_is_split_only_where_the_network_carries_it() -> None:
    policy = Policy(filters=("up", "capacity"), scores=(("split_cost", 1.0),))
    nodes = [node(f"{name}0", name, models=("A100",) * 2) for name in "xyz"]
    gang = Demand(4, accelerators=1, cross_domain=True, traffic_bytes_per_s=100.0)
    good = cluster_of(policy, *nodes, **linked(xy=10.0, xz=10.0, yz=100.0))
    assert cycle(good, g=gang) == {"g": ["y0", "y0", "z0", "z0"]}
    poor = cluster_of(policy, *nodes, **linked(xy=99.0, xz=10.0, yz=99.0))
    poor.add(PendingUnit(UnitKey("g", 0), "t", 0, 0.0, gang))
    decisions = decide(poor, policy, 0.0)
    assert not decisions.placed
    assert "refused by a score of sets" in decisions.waiting[0].explanation.reason
    # Without weight a score neither counts nor refuses.
    off = Policy(filters=("up", "capacity"), scores=(("split_cost", 0.0), ("spread", 1.0)))
    assert len(cycle(cluster_of(off, *nodes, **linked(xy=99.0)), g=gang)["g"]) == 4


def test_a_gang_sees_what_its_neighbours_took() -> None:
    policy = Policy(filters=("up", "capacity"), scores=(("compact", 1.0),))
    nodes = [node(f"{rack}{number}", models=("A100",), topology={"rack": rack}) for rack in "pq" for number in range(3)]
    cluster = cluster_of(policy, *nodes)
    gang = Demand(2, accelerators=1)
    # The first gang leaves one node of rack p. It was not touched, but a gang of two finds no second one beside it.
    assert cycle(cluster, one=gang, two=gang) == {"one": ["p0", "p1"], "two": ["q0", "q1"]}
