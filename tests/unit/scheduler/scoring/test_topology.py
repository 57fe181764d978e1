"""Gangs kept together, jobs split only where the network carries it, rented domains last: hand-computed values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.fleet import Link
from services.scheduler.core.scoring.burst import BurstLastFilter, BurstScore
from services.scheduler.core.scoring.topology import CompactScore, SplitCostScore
from services.scheduler.core.state import Demand
from services.scheduler.core.view import View
from tests.unit.scheduler.scoring.fleets import node, view_of

ALL = slice(None)


def racks() -> View:
    """Nodes of 4 devices. Spine s: rack x with two nodes, rack y with one; spine t: rack z with one; one node alone."""
    places = {"a": ("x", "s"), "b": ("x", "s"), "c": ("y", "s"), "d": ("z", "t")}
    return view_of(
        *(node(name, topology={"rack": rack, "spine": spine}) for name, (rack, spine) in places.items()), node("e")
    )


def test_the_nearest_group_that_holds_the_gang() -> None:
    view = racks()
    # 8 ranks: rack x holds them exactly: 1 - 1/3 + 1/3. y: spine s has room for 12: 1/3 + 8/12/3. z and e hold half: 4/8/3.
    assert CompactScore().nodes(view, Demand(8, accelerators=1), ALL) == pytest.approx(
        [1.0, 1.0, 1 / 3 + 2 / 9, 1 / 6, 1 / 6]
    )
    # 4 ranks fit on every node; the tightest rack that holds them is best: 4/8 in x, 4/4 elsewhere.
    assert CompactScore().nodes(view, Demand(4, accelerators=1), ALL) == pytest.approx(
        [2 / 3 + 1 / 6, 2 / 3 + 1 / 6, 1.0, 1.0, 1.0]
    )
    # 20 ranks fit nowhere together; most of them in spine s.
    assert CompactScore().nodes(view, Demand(20, accelerators=1), ALL) == pytest.approx([0.2, 0.2, 0.2, 4 / 60, 4 / 60])
    assert CompactScore().nodes(view, Demand(1, accelerators=1), ALL).tolist() == [1.0] * 5


def test_only_what_is_free_and_up_counts() -> None:
    view = racks()
    view.occupy(0, Demand(1, accelerators=3), (0, 1, 2))
    view.set_up([1], False)
    # Rack x has 1 device left, spine s 5: 1/3 + 5/5/3 for its nodes; c holds 4 of 5 but the spine suffices.
    assert CompactScore().nodes(view, Demand(5, accelerators=1), np.array([0, 2, 3])) == pytest.approx(
        [2 / 3, 2 / 3, 4 / 15]
    )
    spines = CompactScore().configured({"levels": ("spine",)})
    # One level: 1 - 1/2 + 5/5/2; d: 4/5/2.
    assert spines.nodes(view, Demand(5, accelerators=1), np.array([0, 3])) == pytest.approx([1.0, 0.4])
    for wrong in ("rack", (), (1,)):
        with pytest.raises(PolicyError, match=r"options.compact.levels"):
            CompactScore().configured({"levels": wrong})


def test_the_slowest_link_decides_about_a_split() -> None:
    view = view_of(
        a={"links": (Link("b", 0.01, 100.0), Link("c", 0.01, 40.0))}, b={"links": (Link("c", 0.01, 80.0),)}, c={}, d={}
    )
    demand = Demand(4, traffic_bytes_per_s=50.0)
    split = SplitCostScore()
    assert split.domain_set(view, demand, (0, 1)) == 1.0
    assert split.domain_set(view, demand, (0,)) == 1.0
    assert split.domain_set(view, demand, (0, 2)) == -math.inf
    assert split.domain_set(view, demand, (0, 1, 2)) == -math.inf
    half = split.configured({"least_share": 0.5})
    assert half.domain_set(view, demand, (2, 0, 1)) == pytest.approx(0.8)
    # An unknown link is refused, unless nothing is exchanged.
    assert half.domain_set(view, demand, (0, 3)) == -math.inf
    assert half.domain_set(view, Demand(4), (0, 3)) == 1.0
    with pytest.raises(PolicyError, match=r"options.split_cost.least_share"):
        split.configured({"least_share": -1})


def test_rented_domains_open_when_the_others_are_full() -> None:
    view = view_of(node("a0", "a"), node("b0", "b"), node("r0", "r"), a={}, b={}, r={"burst": True})
    assert BurstScore().domains(view, Demand(1)).tolist() == [1.0, 1.0, 0.0]
    two = Demand(2, accelerators=1)
    last = BurstLastFilter()
    assert last.passes(view, two, ALL).tolist() == [True, True, False]
    assert last.why(view, two, 2) == "r is rented, and there is room elsewhere"
    for row in (0, 1):
        view.occupy(row, Demand(1, accelerators=3), (0, 1, 2))
    # One device is left in each: a gang of two fits neither, but both together.
    assert last.passes(view, two, ALL).tolist() == [True, True, True]
    assert last.passes(view, Demand(2, accelerators=1, cross_domain=True), ALL).tolist() == [True, True, False]
    assert last.passes(view, Demand(1, accelerators=1), np.array([2])).tolist() == [False]
    # Domains that the unit may not use are no reason to wait.
    one = Demand(1, accelerators=1, domains=frozenset("ar"), excluded_nodes=frozenset({"a0"}))
    assert last.passes(view, one, ALL).all()
    assert last.passes(view, Demand(1, accelerators=1, excluded_domains=frozenset("ab")), ALL).all()
    assert last.passes(view, Demand(1, accelerators=1, min_security_level=1), ALL).all()


def test_a_gang_is_held_only_by_one_model() -> None:
    view = view_of(node("a0", "a", models=("A100", "V100")), node("r0", "r"), r={"burst": True})
    assert BurstLastFilter().passes(view, Demand(2, accelerators=1), ALL).tolist() == [True, True]
    assert BurstLastFilter().passes(view, Demand(1, accelerators=1), ALL).tolist() == [True, False]
