"""What bringing data costs and how long it takes: hand-computed values; hard limits on where data and work may be."""

from __future__ import annotations

import numpy as np
import pytest

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.fleet import Domain, Fleet, Link
from services.scheduler.core.policy import Policy
from services.scheduler.core.scoring.contracts import ShareContractScore
from services.scheduler.core.scoring.data import (
    DataLocalityScore,
    TransferCostScore,
    TransferTimeScore,
    transfer_cost,
    transfer_seconds,
)
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.view import View
from services.scheduler.core.waiting_unit import PendingUnit
from tests.unit.scheduler.scoring.fleets import GIB, node, view_of


@pytest.fixture
def view() -> View:
    """a -> b costs 20 000 a GiB at 1 GiB/s, b -> a 50 000; c is reached from a at 0.25 GiB/s for nothing; b-c is unknown."""
    return view_of(
        a={"links": (Link("b", 0.01, GIB, 20_000), Link("c", 0.05, GIB / 4)), "price_micro_units": 1_000_000},
        b={"links": (Link("a", 0.01, GIB, 50_000),), "price_micro_units": 3_000_000},
        c={},
    )


DATA = Demand(2, accelerators=4, data=(("a", 100.0 * GIB),), checkpoint_domain="b", checkpoint_bytes=10 * GIB)


def test_what_leaves_a_domain_is_paid(view: View) -> None:
    # In a: the checkpoint from b, 10 * 50 000; in b: the data from a, 100 * 20 000; in c: a asks nothing, b is not stated.
    assert transfer_cost(view.table, DATA).tolist() == [500_000.0, 2_000_000.0, 0.0]
    # 1e6 / (1e6 + cost).
    assert TransferCostScore().domains(view, DATA) == pytest.approx([2 / 3, 1 / 3, 1.0])
    scaled = TransferCostScore().configured({"micro_units": 2_000_000})
    assert scaled.domains(view, DATA) == pytest.approx([0.8, 0.5, 1.0])


def test_the_cost_is_seen_against_the_run(view: View) -> None:
    # An hour of 8 devices at the mean price of 2 000 000 is 16 000 000.
    values = TransferCostScore().configured({"run_hours": 1}).domains(view, DATA)
    assert values == pytest.approx([16 / 16.5, 16 / 18, 1.0])
    # A unit without devices falls back to the absolute scale.
    cpus = Demand(1, cpus=1.0, data=DATA.data)
    assert TransferCostScore(run_hours=1.0).domains(view, cpus) == pytest.approx([1.0, 1 / 3, 1.0])


def test_the_slowest_transfer_counts(view: View) -> None:
    # In a: 10 GiB from b; in b: 100 GiB from a; in c: 400 s from a, but b-c is unknown.
    assert transfer_seconds(view.table, DATA)[:2].tolist() == [10.0, 100.0]
    assert np.isnan(transfer_seconds(view.table, DATA)[2])
    assert TransferTimeScore().domains(view, DATA) == pytest.approx([60 / 70, 60 / 160, 0.0])
    assert TransferTimeScore().configured({"seconds": 10}).domains(view, DATA) == pytest.approx([0.5, 10 / 110, 0.0])
    only_a = Demand(1, data=(("a", 100.0 * GIB),))
    assert transfer_seconds(view.table, only_a).tolist() == [0.0, 100.0, 400.0]


def test_nothing_to_bring_is_free_everywhere(view: View) -> None:
    for score in (TransferCostScore(), TransferTimeScore(), DataLocalityScore()):
        assert score.domains(view, Demand(1)).tolist() == [1.0, 1.0, 1.0]
    elsewhere = Demand(1, data=(("unknown", 5.0 * GIB),))
    assert TransferTimeScore().domains(view, elsewhere).tolist() == [1.0, 1.0, 1.0]
    assert DataLocalityScore().domains(view, elsewhere).tolist() == [0.0, 0.0, 0.0]


def test_data_locality_is_the_share_of_bytes(view: View) -> None:
    demand = Demand(1, data=(("a", 30.0), ("c", 50.0), ("a", 10.0), ("unknown", 10.0)), checkpoint_domain="b")
    assert DataLocalityScore().domains(view, demand).tolist() == [0.4, 0.0, 0.5]


@pytest.mark.parametrize(
    ("score", "option"),
    [(TransferCostScore(), "micro_units"), (TransferCostScore(), "run_hours"), (TransferTimeScore(), "seconds")],
)
def test_wrong_options_are_named(score: TransferCostScore | TransferTimeScore, option: str) -> None:
    with pytest.raises(PolicyError, match=f"options.{score.name}.{option}"):
        score.configured({option: -1})


def test_domains_below_their_planned_share_come_first(view: View) -> None:
    assert ShareContractScore().domains(view, Demand(1)).tolist() == [0.5, 0.5, 0.5]
    view.state("share_gap", [0.2, -1.0, np.nan])
    assert ShareContractScore().domains(view, Demand(1)) == pytest.approx([0.6, 0.0, 0.5])


def test_limits_on_where_data_may_be_are_hard() -> None:
    """However good a place is, one that the job excludes or that is not secure enough is never taken."""
    domains = {
        "a": Domain("a", security_level=1),
        "b": Domain("b", security_level=3),
        "c": Domain("c", security_level=2),
    }
    fleet = Fleet(domains, {name: node(f"{name}0", name) for name in domains})
    policy = Policy(scores=(("data_locality", 1000.0),))
    at_a = (("a", 1.0 * GIB),)
    cases = {
        "free": (Demand(1, cpus=1.0, data=at_a), "a"),
        "allowed": (Demand(1, cpus=1.0, data=at_a, domains=frozenset("bc")), "b"),
        "excluded": (Demand(1, cpus=1.0, data=at_a, excluded_domains=frozenset("ab")), "c"),
        "secure": (Demand(1, cpus=1.0, data=at_a, min_security_level=3), "b"),
        "impossible": (Demand(1, cpus=1.0, data=at_a, domains=frozenset("a"), min_security_level=3), None),
    }
    found = {}
    for name, (demand, _) in cases.items():
        cluster = Cluster(table_of(fleet), policy)
        cluster.add(PendingUnit(UnitKey(name, 0), "t", 0, 0.0, demand))
        placed = decide(cluster, policy, 0.0).placed
        found[name] = placed[0].ranks[0].domain_id if placed else None
    assert found == {name: wanted for name, (_, wanted) in cases.items()}
