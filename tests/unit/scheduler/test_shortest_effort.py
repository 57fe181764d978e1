"""The order between predicted remaining time and Gittins index, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from services.scheduler.core.efforts import ShortestEffortOrder
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit, Shares


def effort(weight: float | None = None) -> ShortestEffortOrder:
    return ShortestEffortOrder().configured({} if weight is None else {"weight": weight})


def test_shortest_effort_lies_between_remaining_time_and_index() -> None:
    context = OrderContext(Shares({}, 1.0, 1.0, {}), 1000.0)
    # 400 s of 500 s are left; one in 100 s of service ends: sqrt(400 x 100) = 200.
    unit = PendingUnit(
        UnitKey("a", 0), "lab", 0, 0.0, Demand(1), expected_s=500.0, attained_s=100.0, service_index=0.01
    )
    assert effort().key(unit, context) == pytest.approx(200.0)
    assert effort(0.0).key(unit, context) == 400.0
    assert effort(1.0).key(unit, context) == pytest.approx(100.0)
    assert effort(0.25).key(unit, context) == pytest.approx(400.0**0.75 * 100.0**0.25)
    running = RunningUnit(unit, (), 900.0, expected_end_s=1400.0, service_index=0.01)
    assert effort().running_key(running, context) == pytest.approx(200.0)
    # It ends now, they said: it is given a minute more.
    assert effort(0.0).running_key(replace(running, expected_end_s=1000.0), context) == pytest.approx(60.0)


def test_shortest_effort_without_an_index_is_the_remaining_time() -> None:
    context = OrderContext(Shares({}, 1.0, 1.0, {}), 0.0)
    unit = PendingUnit(UnitKey("a", 0), "lab", 0, 0.0, Demand(1), expected_s=70.0)
    assert effort().key(unit, context) == 70.0
    assert effort(1.0).key(replace(unit, expected_s=math.inf), context) == math.inf


@pytest.mark.parametrize(("weight", "word"), [(-0.1, "at least 0"), (1.1, "at most 1"), (math.nan, "finite")])
def test_weights_of_shortest_effort_are_shares(weight: float, word: str) -> None:
    with pytest.raises(PolicyError, match=f"options.shortest_effort.weight: .*{word}"):
        effort(weight)


def test_efforts_from_the_ceiling_on_count_alike() -> None:
    """400 s and 900 s with an index of 0.01 are efforts of 200 s and 300 s."""
    context = OrderContext(Shares({}, 1.0, 1.0, {}), 0.0)
    order = ShortestEffortOrder().configured({"ceiling_s": 250.0})
    units = [
        PendingUnit(UnitKey(name, 0), "lab", 0, 0.0, Demand(1), expected_s=left_s, service_index=0.01)
        for name, left_s in (("short", 400.0), ("long", 900.0), ("unknown", math.inf))
    ]
    assert [order.key(unit, context) for unit in units] == pytest.approx([200.0, 250.0, 250.0])
    running = [RunningUnit(unit, (), 0.0, expected_end_s=unit.expected_s, service_index=0.01) for unit in units]
    assert [order.running_key(item, context) for item in running] == pytest.approx([200.0, 250.0, 250.0])


@pytest.mark.parametrize(("ceiling_s", "word"), [(0.0, "at least 1"), (math.inf, "finite"), (True, "finite")])
def test_a_ceiling_is_a_number_of_seconds(ceiling_s: float, word: str) -> None:
    with pytest.raises(PolicyError, match=f"options.shortest_effort.ceiling_s: .*{word}"):
        ShortestEffortOrder().configured({"ceiling_s": ceiling_s})


def test_efforts_fall_by_a_factor_of_e_with_each_patience() -> None:
    """An effort of 100 e s, queued 1000 s before one of 100 s, ranks with it, now and later; the ceiling stays last."""
    order = ShortestEffortOrder().configured({"weight": 0.0, "ceiling_s": 5000.0, "patience_s": 1000.0})
    assert order.scale == "logarithm"

    def key(left_s: float, queued_at_s: float, now_s: float = 0.0) -> float:
        context = OrderContext(Shares({}, 1.0, 1.0, {}), now_s)
        return order.key(PendingUnit(UnitKey("a", 0), "lab", 0, queued_at_s, Demand(1), expected_s=left_s), context)

    assert key(100.0 * math.e, 0.0) == pytest.approx(math.log(100.0) + 1.0) == pytest.approx(key(100.0, 1000.0))
    assert key(100.0, 0.0, now_s=7000.0) == key(100.0, 0.0)
    assert key(300.0, 0.0) < key(4999.0, 0.0) < key(300.0, 3000.0) < math.inf
    assert key(5000.0, 0.0) == key(math.inf, -1e9) == math.inf
    assert key(0.0, 0.0) == key(1.0, 0.0) == 0.0


def test_patience_goes_on_while_a_unit_runs() -> None:
    order = ShortestEffortOrder().configured({"weight": 0.0, "ceiling_s": 5000.0, "patience_s": 1000.0})
    context = OrderContext(Shares({}, 1.0, 1.0, {}), 600.0)
    unit = PendingUnit(UnitKey("a", 0), "lab", 0, 500.0, Demand(1), expected_s=900.0)
    running = RunningUnit(unit, (), 550.0, expected_end_s=1000.0)
    assert order.running_key(running, context) == pytest.approx(math.log(400.0) + 0.5)
    assert order.running_key(replace(running, expected_end_s=5600.0), context) == math.inf


@pytest.mark.parametrize(("patience_s", "word"), [(0.0, "at least 1"), (math.nan, "finite"), ("1d", "finite")])
def test_patience_is_a_number_of_seconds(patience_s: float, word: str) -> None:
    with pytest.raises(PolicyError, match=f"options.shortest_effort.patience_s: .*{word}"):
        ShortestEffortOrder().configured({"patience_s": patience_s})


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("ceiling_s", [300.0, math.inf])
@pytest.mark.parametrize("patience_s", [86400.0, math.inf])
def test_efforts_of_many_are_those_of_each(weight: float, ceiling_s: float, patience_s: float) -> None:
    """With ends that are past, near, far and unknown, with an index and without."""
    context = OrderContext(Shares({}, 1.0, 1.0, {}), 1000.0)
    running = [
        RunningUnit(
            PendingUnit(UnitKey(f"{end_s}-{index}", 0), "lab", 0, queued_s, Demand(1), expected_s=end_s),
            (),
            since_s=500.0,
            expected_end_s=end_s,
            service_index=index,
        )
        for queued_s in (0.0, 450.0)
        for end_s in (600.0, 1000.0, 1000.5, 1400.0, 1e6, math.inf)
        for index in (0.0, 0.01, 3.0)
    ]
    order = ShortestEffortOrder(weight, ceiling_s, patience_s)
    assert order.running_keys(running, context) == [order.running_key(item, context) for item in running]
