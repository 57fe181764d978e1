"""Who may be taken off by the policy's own order, and by how much it must tell two units apart."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.efforts import LeastAttainedOrder, ShortestEffortOrder
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.preemption import OrderPreemption
from services.scheduler.core.queue import orders
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit, Shares

NOW_S = 1000.0


def waiting(
    name: str,
    remaining_s: float,
    *,
    priority: int = 0,
    accelerators: int = 0,
    cpus: float = 0.0,
    queued_at_s: float = 0.0,
) -> PendingUnit:
    demand = Demand(1, accelerators=accelerators, cpus=cpus)
    return PendingUnit(UnitKey(name, 0), "lab", priority, queued_at_s, demand, expected_s=remaining_s)


def running(
    name: str,
    remaining_s: float,
    *,
    priority: int = 0,
    accelerators: int = 0,
    cpus: float = 0.0,
    queued_at_s: float = 0.0,
) -> RunningUnit:
    """It began at 0."""
    unit = waiting(name, math.inf, priority=priority, accelerators=accelerators, cpus=cpus, queued_at_s=queued_at_s)
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


@pytest.mark.parametrize("since_s", [0.0, 1.7e9])
def test_points_in_time_have_no_ratio(since_s: float) -> None:
    """900 s and 1000 s after a beginning are as far apart as any two times, wherever times are counted from."""
    units = [running("elder", 1.0, queued_at_s=since_s + 800.0), running("younger", 1.0, queued_at_s=since_s + 1000.0)]
    assert victims(waiting("new", 1.0, queued_at_s=since_s + 900.0), units, "age", ratio=1.5) == ["younger"]


def test_levels_and_priorities_have_no_ratio() -> None:
    """Levels 3 and 4 of attained service, priorities -10 and -12: neither key is 1.5 times the other."""
    level_4 = running("level-4", 1.0)
    unit = replace(waiting("level-3", 1.0), served_s=300.0)
    order = LeastAttainedOrder().configured({"threshold_s": 100.0, "levels": 6, "growth": 1.5})
    facts = {"order": (order,), "running": {level_4.unit.key: level_4}}
    context = OrderContext(Shares({}, 1.0, 1.0, {}), 360.0, facts)
    assert (order.key(unit, context), order.running_key(level_4, context)) == (3.0, 4.0)
    plugin = OrderPreemption().configured({"ratio": 1.5})
    assert list(plugin.victims(unit, [level_4], context)) == [level_4]
    lower = [running("lower", 1.0, priority=-12)]
    assert victims(waiting("new", 1.0, priority=-10), lower, "priority", ratio=1.5) == ["lower"]


def test_a_ratio_is_a_difference_of_logarithms() -> None:
    """With patience a unit that was queued 1000 s x ln 2 later counts for twice its 80 s: 160 s, and 240 s is 1.5 times that."""
    order = ShortestEffortOrder().configured({"patience_s": 1000.0, "ceiling_s": 10_000.0})
    units = [running("239", 239.0), running("241", 241.0), running("ceiling", 20_000.0)]
    facts = {"order": (order,), "running": {item.unit.key: item for item in units}}
    context = OrderContext(Shares({}, 1.0, 1.0, {}), NOW_S, facts)
    plugin = OrderPreemption().configured({"ratio": 1.5})

    def taken(queued_at_s: float) -> list[str]:
        unit = waiting("new", 80.0, queued_at_s=queued_at_s)
        return [item.unit.key.job_id for item in plugin.victims(unit, units, context)]

    assert taken(1000.0 * math.log(2.0)) == ["ceiling", "241"]
    assert taken(0.0) == ["ceiling", "241", "239"]


def test_the_smallest_goes_first_among_those_that_a_ratio_does_not_put_apart() -> None:
    """The last has 900 s left: down to above 600 s all are alike to it."""
    units = [
        running("gang", 900.0, accelerators=8),
        running("pair", 601.0, accelerators=2),
        running("single", 600.0, accelerators=1),
    ]
    unit = waiting("new", 100.0, accelerators=1)
    assert victims(unit, units, "shortest_remaining", ratio=1.5, smallest_first=True) == ["pair", "gang", "single"]
    assert victims(unit, units, "shortest_remaining", ratio=1.5) == ["gang", "pair", "single"]


def test_units_without_accelerators_are_as_large_as_their_cpus() -> None:
    units = [running("32", 500.0, cpus=32.0), running("4", 500.0, cpus=4.0), running("2", 500.0, cpus=2.0)]
    unit = waiting("new", 100.0, cpus=4.0)
    assert victims(unit, units, "shortest_remaining", smallest_first=True) == ["4", "32", "2"]


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


def test_another_ratio_among_units_that_nothing_but_predictions_tells_apart() -> None:
    """Of 120 s all are 1.1 times the 105 s of the new one, none is 1.5 times that."""
    units = [running(name, 120.0) for name in ("alike", "other size", "other tenant", "named")]
    units = [replace(item, unit=replace(item.unit, nameless=item.unit.key.job_id != "named")) for item in units]
    units[1] = replace(units[1], unit=replace(units[1].unit, demand=replace(units[1].unit.demand, cpus=9.0)))
    units[2] = replace(units[2], unit=replace(units[2].unit, tenant_id="other"))
    new = replace(waiting("new", 105.0), nameless=True)
    options = {"ratio": 1.5, "alike_ratio": 1.1}
    assert victims(new, units, "shortest_remaining", **options) == ["alike"]
    assert victims(replace(new, nameless=False), units, "shortest_remaining", **options) == []
    assert victims(replace(new, expected_s=110.0), units, "shortest_remaining", **options) == []
    assert victims(new, units, "shortest_remaining", ratio=1.5) == []
    assert len(victims(new, units, "shortest_remaining", ratio=1.1)) == 4
    # The other way round too: among those alike more may be asked for.
    assert len(victims(new, units, "shortest_remaining", alike_ratio=1.5)) == 3


def test_smallest_first_is_true_or_false() -> None:
    with pytest.raises(PolicyError, match=r"options.order.smallest_first: true or false"):
        OrderPreemption().configured({"smallest_first": 1})


def test_a_ratio_among_alike_below_one_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"options.order.alike_ratio: must be at least 1"):
        OrderPreemption().configured({"alike_ratio": 0.5})


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
