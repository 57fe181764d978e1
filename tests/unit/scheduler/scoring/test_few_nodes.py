"""A few touched nodes are judged one by one: with the same numbers as all of them at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.fleet import Domain, Fleet, Node
from services.scheduler.core.policy import Policy
from services.scheduler.core.scores import PackScore
from services.scheduler.core.state import Demand
from services.scheduler.core.table import table_of
from services.scheduler.core.view import View
from tests.unit.scheduler.scoring.fleets import node

POLICY = Policy(scores=(("pack", 1.0), ("health", 0.3), ("spread", 0.001)))
NODES = 9
taken = st.lists(
    st.tuples(st.integers(0, NODES - 1), st.sampled_from([0.0, 0.1, 0.7, 3.0]), st.integers(0, 2)), max_size=12
)


def fleet() -> Fleet:
    """Nodes in three domains: with and without accelerators, each with its own number of cpus, one without any."""
    nodes: dict[str, Node] = {}
    for number in range(NODES):
        models = ("A100",) * (number % 4)
        found = node(f"n{number}", f"d{number // 3}", models=models, cpus=float(number) * 1.7)
        nodes[found.node_id] = found
    return Fleet({f"d{number}": Domain(f"d{number}") for number in range(3)}, nodes)


@given(taken, st.sampled_from([0, 1, 2]), st.sampled_from([0.0, 0.3, 2.0]))
def test_the_packing_of_one_node_is_that_of_many(
    found: list[tuple[int, float, int]], accelerators: int, cpus: float
) -> None:
    view = View(table_of(fleet()))
    take(view, found)
    demand = Demand(1, accelerators=accelerators, cpus=cpus)
    values = PackScore().nodes(view, demand, slice(None)).tolist()
    assert [PackScore().node(view, demand, row) for row in range(NODES)] == values


@given(st.lists(taken, max_size=6), st.sampled_from([0, 1, 2]))
def test_judged_bit_by_bit_as_anew(steps: list[list[tuple[int, float, int]]], accelerators: int) -> None:
    """Up to six touched nodes at once are judged one by one, more than that together."""
    cluster = Cluster(table_of(fleet()), POLICY)
    demand = Demand(1, accelerators=accelerators, cpus=0.3)
    (kept,) = cluster.candidates(demand)
    for found in steps:
        take(cluster.view, found)
        kept.choose()
        anew = Cluster(cluster.table, POLICY)
        anew.view = cluster.view.copy()
        (fresh,) = anew.candidates(demand)
        assert kept.choose() == fresh.choose()
        assert kept.has_room() == fresh.has_room()
        mine, theirs = kept.explain_waiting().domains, fresh.explain_waiting().domains
        assert np.array_equal(mine.totals, theirs.totals)
        choice = kept.choose()
        if choice is not None:
            ours, others = kept.explain(choice).nodes, fresh.explain(choice).nodes
            for one, other in zip(ours, others, strict=True):
                room = one.ranking.fits > 0
                assert np.array_equal(one.ranking.fits, other.ranking.fits)
                assert np.array_equal(one.ranking.totals[room], other.ranking.totals[room])


def take(view: View, found: list[tuple[int, float, int]]) -> None:
    """Ranks with these cpus and accelerators, where they fit."""
    for row, cpus, accelerators in found:
        demand = Demand(1, accelerators=accelerators, cpus=cpus)
        columns = view.columns(demand)
        if view.ranks_that_fit(demand, columns)[row]:
            view.take(row, demand, columns)
