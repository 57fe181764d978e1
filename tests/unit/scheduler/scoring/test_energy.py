"""Awake nodes before sleeping ones, cheap and clean electricity: hand-computed values and what a cycle makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.fleet import Fleet, NodeState
from services.scheduler.core.policy import Policy
from services.scheduler.core.scores import CarbonScore
from services.scheduler.core.scoring.energy import AwakeScore, ElectricityScore, EnergyScore, in_use
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import PendingUnit
from tests.unit.scheduler.scoring.fleets import GIB, node, view_of

ALL = slice(None)
ASLEEP = {"state": NodeState.ASLEEP}


def test_in_use_then_awake_then_asleep() -> None:
    view = view_of(
        node("a", idle_watts=200.0),
        node("b", idle_watts=200.0),
        node("c", idle_watts=600.0),
        node("d", idle_watts=200.0, wake_s=60.0, **ASLEEP),
        node("e", idle_watts=200.0, wake_s=180.0, **ASLEEP),
    )
    view.occupy(0, Demand(1, cpus=1.0), ())
    # a is in use; b: 0.5 + 0.25 * 200/400; c: 0.5 + 0.25 * 200/800; d: 0.5 * 200/400 * 60/120; e: 0.5 * 200/400 * 60/240.
    assert EnergyScore().nodes(view, Demand(1), ALL).tolist() == [1.0, 0.625, 0.5625, 0.125, 0.0625]
    other = EnergyScore().configured({"watts": 600, "wake_s": 180})
    # b: 0.5 + 0.25 * 600/800; e: 0.5 * 600/800 * 180/360.
    assert other.nodes(view, Demand(1), np.array([1, 4])).tolist() == [0.6875, 0.1875]


def test_a_node_that_is_to_wake_counts_as_awake() -> None:
    view = view_of(node("a", wake_s=60.0, **ASLEEP), node("b"))
    assert EnergyScore().nodes(view, Demand(1), ALL).tolist() == [0.25, 0.75]
    view.occupy(0, Demand(1, memory_bytes=GIB), ())
    assert EnergyScore().nodes(view, Demand(1), ALL).tolist() == [1.0, 0.75]
    view.give(0, Demand(1, memory_bytes=GIB), ())
    # The fact goes before the state of the fleet.
    view.state("asleep", np.array([False, True]))
    assert EnergyScore().nodes(view, Demand(1), ALL).tolist() == [0.75, 0.5]


def test_any_part_of_a_node_is_use() -> None:
    view = view_of(*(node(name) for name in "abcd"))
    view.occupy(0, Demand(1, cpus=0.5), ())
    view.occupy(1, Demand(1, memory_bytes=1), ())
    view.occupy(2, Demand(1, accelerators=1, device_milli=10), (3,))
    assert in_use(view).tolist() == [True, True, True, False]


def test_a_cycle_wakes_no_more_nodes_than_it_needs() -> None:
    nodes = [node(f"s{n}", cpus=4.0, models=(), wake_s=30.0, idle_watts=50.0, **ASLEEP) for n in range(4)]
    nodes.append(node("w", cpus=2.0, models=(), idle_watts=500.0))
    policy = Policy(filters=("up", "capacity"), scores=(("energy", 1.0),))
    cluster = Cluster(table_of(Fleet({}, {item.node_id: item for item in nodes})), policy)
    for number in range(8):
        cluster.add(PendingUnit(UnitKey(f"j{number}", 0), "t", 0, float(number), Demand(1, cpus=1.0)))
    placed = decide(cluster, policy, 0.0).placed
    used = [placement.ranks[0].node_id for placement in placed]
    # Two go to the awake node, though it draws most; six need two of the sleeping ones.
    assert used == ["w"] * 2 + ["s0"] * 4 + ["s1"] * 2


def test_domains_with_room_on_awake_nodes_first() -> None:
    view = view_of(
        node("a0", "a", models=(), wake_s=30.0, **ASLEEP),
        node("a1", "a", cpus=2.0, models=()),
        node("b0", "b", cpus=8.0, models=()),
        node("c0", "c", models=(), **ASLEEP),
    )
    # 1-cpu ranks: two fit on the awake node of a, all four in b, none in c (its node cannot be woken).
    assert AwakeScore().domains(view, Demand(4, cpus=1.0)).tolist() == [0.5, 1.0, 0.0]
    nobody_sleeps = view_of(node("a0", "a"), node("b0", "b"))
    assert AwakeScore().domains(nobody_sleeps, Demand(99, cpus=8.0)).tolist() == [1.0, 1.0]


def test_cheap_electricity() -> None:
    euro = {"currency": "EUR"}
    view = view_of(a=euro, b=euro, c=euro, d={"currency": "USD"}, e=euro)
    assert ElectricityScore().domains(view, Demand(1)).tolist() == [0.5] * 5
    view.state("electricity_micro_units_per_kwh", np.array([100.0, 150.0, 300.0, 10.0, np.nan]))
    # (300 - x) / 200; d has another currency, e is unknown.
    assert ElectricityScore().domains(view, Demand(1)).tolist() == [1.0, 0.75, 0.0, 0.5, 0.5]
    view.state("electricity_micro_units_per_kwh", np.array([1.0]))
    with pytest.raises(PolicyError, match=r"facts.electricity_micro_units_per_kwh: one value per domain"):
        ElectricityScore().domains(view, Demand(1))


def test_carbon_follows_the_hour() -> None:
    view = view_of(a={"carbon_g_per_kwh": 100.0}, b={"carbon_g_per_kwh": 500.0})
    assert CarbonScore().domains(view, Demand(1)).tolist() == [1.0, 0.0]
    view.state("carbon_g_per_kwh", np.array([300.0, 200.0]))
    assert CarbonScore().domains(view, Demand(1)).tolist() == [0.0, 1.0]


def test_a_cycle_sees_a_changed_fact() -> None:
    policy = Policy(filters=("up", "capacity"), scores=(("carbon", 1.0),))
    fleet = Fleet({}, {name: node(f"{name}0", name) for name in "ab"})
    cluster = Cluster(table_of(fleet), policy)
    found = []
    for number, values in enumerate(([100.0, 200.0], [200.0, 100.0])):
        cluster.view.state("carbon_g_per_kwh", np.array(values))
        cluster.add(PendingUnit(UnitKey(f"j{number}", 0), "t", 0, 0.0, Demand(1, cpus=1.0)))
        decisions = decide(cluster, policy, 0.0)
        cluster.apply(decisions, 0.0)
        found.append(decisions.placed[0].ranks[0].domain_id)
    assert found == ["a", "b"]


@pytest.mark.parametrize(("option", "value"), [("watts", 0), ("wake_s", -1), ("watt", 1), ("watts", "x")])
def test_wrong_options_are_named(option: str, value: object) -> None:
    with pytest.raises(PolicyError, match=f"options.energy.{option}"):
        EnergyScore().configured({option: value})
