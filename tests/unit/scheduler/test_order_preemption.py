"""Who may be taken off by the policy's own order, and by how much it must tell two units apart."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.cluster import RunningUnit
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.preemption import OrderPreemption
from services.scheduler.core.queue import OrderContext, PendingUnit, Shares, ShortestEffortOrder, orders
from services.scheduler.core.state import Demand, UnitKey

NOW_S = 1000.0


def waiting(name: str, remaining_s: float, *, priority: int = 0, accelerators: int = 0) -> PendingUnit:
    demand = Demand(1, accelerators=accelerators)
    return PendingUnit(UnitKey(name, 0), "lab", priority, 0.0, demand, expected_s=remaining_s)


def running(name: str, remaining_s: float, *, priority: int = 0, accelerators: int = 0) -> RunningUnit:
    """It began at 0."""
    unit = waiting(name, math.inf, priority=priority, accelerators=accelerators)
    return RunningUnit(unit, (), 0.0, expected_end_s=NOW_S + remaining_s)


def victims(unit: PendingUnit, units: list[RunningUnit], *order: str, **options: float) -> list[str]:
    facts = {"order": orders(order), "running": {item.unit.key: item for item in units}}
    context = OrderContext(Shares({}, 1.0, 1.0, {}), NOW_S, facts)
    return [item.unit.key.job_id for item in OrderPreemption().configured(options).victims(unit, units, context)]


def test_a_ratio_spares_units_that_are_hardly_behind() -> None:
    units = [running("a", 99.0), running("b", 101.0), running("c", 149.0), running("d", 150.0), running("e", 700.0)]
    unit = waiting("new", 100.0)
    assert victims(unit, units, "shortest_remaining") == ["e", "d", "c", "b"]
    assert victims(unit, units, "shortest_remaining", ratio=1.5) == ["e", "d"]
    assert victims(unit, units, "shortest_remaining", ratio=10.0) == []


def test_a_ratio_asks_the_first_criterion_that_tells_two_units_apart() -> None:
    units = [running("lower", 1.0, priority=1), running("equal", 140.0, priority=2), running("long", 160.0, priority=2)]
    unit = waiting("new", 100.0, priority=2)
    assert victims(unit, units, "priority", "shortest_remaining", ratio=1.5) == ["lower", "long"]


def test_units_that_differ_in_nothing_but_age_stay_under_a_ratio() -> None:
    young = RunningUnit(
        PendingUnit(UnitKey("young", 0), "lab", 0, 500.0, Demand(1)), (), 500.0, expected_end_s=NOW_S + 100.0
    )
    assert victims(waiting("old", 100.0), [young], "shortest_remaining") == ["young"]
    assert victims(waiting("old", 100.0), [young], "shortest_remaining", ratio=1.01) == []


def test_the_smallest_that_suffices_goes_first_among_equals() -> None:
    equal = [running(f"of-{count}", 500.0, accelerators=count) for count in (8, 1, 4, 2)]
    units = [*equal, running("longer", 600.0, accelerators=8), running("shorter", 400.0, accelerators=1)]

    def taken(accelerators: int, **options: bool) -> list[str]:
        return victims(waiting("new", 100.0, accelerators=accelerators), units, "shortest_remaining", **options)

    assert taken(1) == ["longer", "of-8", "of-4", "of-2", "of-1", "shorter"]
    assert taken(1, smallest_first=True) == ["longer", "of-1", "of-2", "of-4", "of-8", "shorter"]
    assert taken(4, smallest_first=True) == ["longer", "of-4", "of-8", "of-2", "of-1", "shorter"]
    assert taken(16, smallest_first=True) == ["longer", "of-8", "of-4", "of-2", "of-1", "shorter"]


def test_large_gangs_are_spared_among_units_beyond_a_ceiling() -> None:
    """Efforts of 500 s and 900 s are both the ceiling."""
    units = [running("gang", 900.0, accelerators=8), running("single", 500.0, accelerators=1)]
    order = ShortestEffortOrder().configured({"ceiling_s": 300.0})
    facts = {"order": (order,), "running": {item.unit.key: item for item in units}}
    context = OrderContext(Shares({}, 1.0, 1.0, {}), NOW_S, facts)
    plugin = OrderPreemption().configured({"ratio": 1.5, "smallest_first": True})

    def taken(remaining_s: float) -> list[str]:
        return [
            item.unit.key.job_id for item in plugin.victims(waiting("new", remaining_s, accelerators=1), units, context)
        ]

    assert taken(200.0) == ["single", "gang"]
    assert taken(201.0) == []
    assert taken(4000.0) == []


def test_smallest_first_is_true_or_false() -> None:
    with pytest.raises(PolicyError, match=r"options.order.smallest_first: true or false"):
        OrderPreemption().configured({"smallest_first": 1})


@pytest.mark.parametrize(("ratio", "word"), [(0.99, "at least 1"), (math.nan, "finite"), (math.inf, "finite")])
def test_a_ratio_below_one_is_refused(ratio: float, word: str) -> None:
    with pytest.raises(PolicyError, match=f"options.order.ratio: .*{word}"):
        OrderPreemption().configured({"ratio": ratio})


@pytest.mark.parametrize("name", ["shortest_remaining", "least_attained", "age"])
@given(
    st.lists(
        st.tuples(
            st.sampled_from((0.0, 100.0, 999.0, 1000.0, 1200.0)),
            st.sampled_from((0.0, 50.0, 3600.0)),
            st.sampled_from((0.0, 70.0, 900.0)),
            st.sampled_from((500.0, 1000.0, 1000.5, 4000.0, math.inf)),
            st.integers(0, 4),
        )
    )
)
def test_keys_of_many_that_run_are_those_of_each(name: str, runs: list[tuple[float, float, float, float, int]]) -> None:
    """Begun in the past, now and later; with and without former runs; expected to end in the past, now, later, never."""
    units = [
        RunningUnit(
            PendingUnit(
                UnitKey(f"r{number}", 0),
                "lab",
                0,
                since_s,
                Demand(1, accelerators=devices),
                attained_s=attained_s,
                served_s=served_s,
            ),
            (),
            since_s,
            expected_end_s=end_s,
        )
        for number, (since_s, attained_s, served_s, end_s, devices) in enumerate(runs)
    ]
    plugin: Any = orders((name,))[0]
    context = OrderContext(Shares({}, 1.0, 1.0, {}), NOW_S, {})
    assert plugin.running_keys(units, context) == [plugin.running_key(item, context) for item in units]
