"""The ranking of running units that is kept from cycle to cycle is the one that is sorted anew."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.queue import orders
from services.scheduler.core.ranking import KeptRanking, Place, can_be_kept, ranked, running_key
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit, Shares

ORDERS = [
    ("least_attained", "age"),
    ("priority", "age"),
    ("priority", "least_attained", "age"),
    ("age",),
    ("shortest_remaining",),
]
THRESHOLD_S = 3600.0
"""Of `least_attained`, in accelerator-seconds."""


def unit_of(number: int, *, attained_s: float = 0.0, expected_s: float = math.inf, devices: int = 1) -> PendingUnit:
    return PendingUnit(
        UnitKey(f"j{number}", 0),
        "lab",
        number % 3,
        float(number // 2),
        Demand(1, accelerators=devices),
        attained_s=attained_s,
        expected_s=expected_s,
    )


def begun(unit: PendingUnit, now_s: float) -> RunningUnit:
    left_s = unit.expected_s - unit.attained_s
    return RunningUnit(unit, (), now_s, expected_end_s=now_s + left_s)


def context_of(now_s: float, names: tuple[str, ...], running: dict[UnitKey, RunningUnit]) -> OrderContext:
    return OrderContext(Shares({}, 1.0, 1.0, {}), now_s, {"order": orders(names), "running": running})


def same(kept: KeptRanking | None, names: tuple[str, ...], running: dict[UnitKey, RunningUnit], now_s: float) -> None:
    """Everything that is asked of the kept one is what sorting gives."""
    context = context_of(now_s, names, running)
    anew = ranked(list(running.values()), context)
    soon_s = now_s + 1e-6
    assert kept is not None
    assert kept.ranking.last(0, len(running)) == anew.last(0, len(running))
    assert kept.ranking.last(1, 3) == anew.last(1, 3)
    some = {key for key in running if int(key.job_id[1:]) % 2}
    for key, item in running.items():
        place: Place = running_key(orders(names), item, context), item.unit.queued_at_s, key
        assert kept.place(key) == place
        ahead = place[0], place[1] - 0.5, key
        for other in (place, ahead):
            assert kept.ranking.behind(other) == anew.behind(other)
            assert kept.ranking.only(some).behind(other) == anew.only(some).behind(other)
    late = {key for key, item in running.items() if min(item.expected_end_s, item.limit_end_s) <= soon_s}
    assert {item.unit.key for item in kept.late()} == late


steps = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, 10.0, 449.9999995, 450.0, 900.0, 3599.5]),
        st.sampled_from(["begin", "begin", "end", "wait"]),
        st.integers(0, 30),
        st.sampled_from([0.0, 5.0, 3600.0]),
        st.sampled_from([20.0, 450.0, 900.0, 5000.0, math.inf]),
        st.sampled_from([0, 1, 8]),
    ),
    max_size=40,
)


@pytest.mark.parametrize("names", ORDERS)
@settings(max_examples=60, deadline=None)
@given(found=steps)
def test_kept_is_as_sorted_anew(names: tuple[str, ...], found: list[tuple[float, str, int, float, float, int]]) -> None:
    assert can_be_kept(orders(names))
    kept = KeptRanking(orders(names))
    running: dict[UnitKey, RunningUnit] = {}
    now_s = 1000.0
    for number, (after_s, what, which, attained_s, left_s, devices) in enumerate(found):
        now_s += after_s
        if what == "begin":
            unit = unit_of(number, attained_s=attained_s, expected_s=attained_s + left_s, devices=devices)
            running[unit.key] = item = begun(unit, now_s)
            kept.began(item)
            # The simulator adds what a start costs after the unit was noted.
            item.expected_end_s += 2.0 * (which % 2)
        elif what == "end" and running:
            key = list(running)[which % len(running)]
            kept.ended(running.pop(key), now_s)
        if which % 4:
            same(kept.at(now_s), names, running, now_s)
    same(kept.at(now_s), names, running, now_s)


def test_a_unit_falls_when_it_has_had_its_service() -> None:
    """One with eight accelerators after 450 s, one with one after an hour; 1 ms before and 1 microsecond after."""
    names = ("least_attained", "age")
    kept = KeptRanking(orders(names))
    running = {}
    for number, devices in ((0, 8), (1, 1)):
        unit = unit_of(number, devices=devices)
        running[unit.key] = begun(unit, 0.0)
        kept.began(running[unit.key])
    first, second = running
    levels = {}
    for now_s in (0.0, 449.9, 449.9995, 450.0, 3600.0):
        same(kept.at(now_s), names, running, now_s)
        levels[now_s] = kept.place(first)[0][0], kept.place(second)[0][0]
    assert levels == {0.0: (0, 0), 449.9: (0, 0), 449.9995: (0, 0), 450.0: (1, 0), 3600.0: (1, 1)}


def test_ends_next_to_each_other_are_sorted_anew() -> None:
    """What is left of both may be rounded to one number; then their age decides. Once the earlier is gone all is well."""
    names = ("shortest_remaining",)
    kept = KeptRanking(orders(names))
    ends_s = (100.0, 100.0 + 2e-7, 300.0)
    items = [replace(begun(unit_of(number), 0.0), expected_end_s=end_s) for number, end_s in enumerate(ends_s)]
    for item in items:
        kept.began(item)
    assert kept.at(1.0) is None
    kept.ended(items[0], 100.0)
    kept.ended(items[1], 100.0)
    same(kept.at(101.0), names, {items[2].unit.key: items[2]}, 101.0)


@pytest.mark.parametrize("names", [(), ("shortest_effort",), ("priority", "shortest_remaining"), ("fair_share", "age")])
def test_other_orders_cannot_be_kept(names: tuple[str, ...]) -> None:
    assert not can_be_kept(orders(names))
