"""Energy against hand-computed sums, and against a slow integration of the same day."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meridian.errors import InvalidArgumentError
from simulation.energy import CarbonSeries, Energy
from simulation.model import Network, SimDomain, SimNode

NIGHT_AND_DAY = (100.0,) * 6 + (400.0,) * 18


def node(name: str, **values) -> SimNode:
    known = {"idle_watts": 500.0, "busy_watts_per_accelerator": 300.0, "sleep_watts": 20.0, "wake_s": 60.0}
    return SimNode(name, "d", 64, 2**38, accelerators=8, **{**known, **values})


def one_domain(*nodes: SimNode, carbon: tuple[float, ...] = (0.0,), price: int = 0) -> Network:
    return Network(
        [SimDomain("d", list(nodes), carbon_g_per_kwh=carbon, electricity_micro_units_per_kwh=price, currency="CNY")]
    )


def test_a_day_of_one_node_by_hand() -> None:
    # 1 h idle 500 W, 2 h with 4 of 8 busy 1700 W, 1 h idle: 0.5 + 3.4 + 0.5 = 4.4 kWh.
    energy = Energy(one_domain(node("n"), carbon=(250.0,), price=700_000))
    energy.set_busy("n", 4, 3600.0)
    energy.set_busy("n", 0, 3 * 3600.0)
    total = energy.totals(4 * 3600.0)["d"]
    assert total.joules == pytest.approx(4.4 * 3.6e6)
    assert total.carbon_g == pytest.approx(4.4 * 250)
    assert total.money_micro_units == 3_080_000
    assert total.currency == "CNY"


def test_carbon_follows_the_hours_of_the_day() -> None:
    # 1 kW from 5:00 to 7:00 on the third day: an hour at 100 and an hour at 400 g/kWh.
    day_s = 86400.0
    energy = Energy(one_domain(node("n", idle_watts=1000.0), carbon=NIGHT_AND_DAY), start_s=2 * day_s + 5 * 3600)
    assert energy.totals(2 * day_s + 7 * 3600)["d"].carbon_g == pytest.approx(500.0)
    # The same 2 h when the trace begins at 22:00 and they are from 0:00 on: both at 100.
    late = Energy(
        one_domain(node("n", idle_watts=1000.0), carbon=NIGHT_AND_DAY), start_s=7200.0, day_offset_s=22 * 3600.0
    )
    assert late.totals(4 * 3600.0)["d"].carbon_g == pytest.approx(200.0)


def test_sleeping_and_waking_by_hand() -> None:
    # 100 s idle (500 W), 1000 s asleep (20 W), 60 s waking (800 W), 40 s idle.
    energy = Energy(one_domain(node("n")), wake_watts={"n": 800.0})
    energy.sleep("n", 100.0)
    assert energy.is_asleep("n")
    assert energy.wake("n", 1100.0) == 1160.0
    assert energy.wake("n", 1130.0) == 1160.0
    assert energy.watts("n", 1130.0) == 800.0
    assert energy.node_joules(1130.0) == pytest.approx([50_000 + 20_000 + 30 * 800])
    expected = 50_000 + 20_000 + 60 * 800 + 40 * 500
    assert energy.node_joules(1200.0) == pytest.approx([expected])
    assert energy.watts("n", 1160.0) == 500.0
    energy.set_busy("n", 8, 1200.0)
    assert energy.node_joules(1210.0) == pytest.approx([expected + 10 * 2900])
    assert energy.wake("n", 1210.0) == 1210.0


def test_a_node_put_to_sleep_while_waking_paid_for_the_part() -> None:
    energy = Energy(one_domain(node("n")), wake_watts={"n": 800.0})
    energy.sleep("n", 0.0)
    energy.wake("n", 0.0)
    energy.sleep("n", 30.0)
    assert energy.node_joules(130.0) == pytest.approx([30 * 800 + 100 * 20])


def test_waking_costs_carbon_over_the_hour_boundary() -> None:
    # Waking 5:59:30 to 6:00:30 at 3600 W: 30 s at 100 and 30 s at 400 g/kWh = 108 kJ each = 0.03 kWh each.
    boundary = 6 * 3600.0
    energy = Energy(
        one_domain(node("n", sleep_watts=0.0, idle_watts=0.0), carbon=NIGHT_AND_DAY), wake_watts={"n": 3600.0}
    )
    energy.sleep("n", 0.0)
    energy.wake("n", boundary - 30)
    assert energy.totals(boundary + 500)["d"].carbon_g == pytest.approx(0.03 * 100 + 0.03 * 400)
    energy.set_busy("n", 0, boundary + 500)
    assert energy.totals(boundary + 500)["d"].carbon_g == pytest.approx(15.0)


def test_domains_are_kept_apart() -> None:
    network = Network(
        [SimDomain("x", [node("a")]), SimDomain("empty", []), SimDomain("y", [node("b"), node("c")])],
    )
    totals = Energy(network).totals(10.0)
    assert {name: total.joules for name, total in totals.items()} == {"x": 5000.0, "empty": 0.0, "y": 10_000.0}
    assert Energy(Network([SimDomain("x", [])])).totals(10.0)["x"].joules == 0.0


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda energy: energy.set_busy("z", 1, 10.0), "no node 'z'"),
        (lambda energy: energy.set_busy("n", 9, 10.0), "9 busy on 'n'"),
        (lambda energy: energy.set_busy("n", math.nan, 10.0), "nan busy"),
        (lambda energy: energy.set_busy("n", 2, 4.0), "now_s: 4.0 is before 5.0"),
        (lambda energy: energy.set_busy("n", 2, math.nan), "now_s: nan"),
        (lambda energy: energy.sleep("n", 10.0), "has 1 busy"),
        (lambda energy: energy.set_busy("s", 1, 10.0), "'s' is asleep"),
        (lambda energy: energy.set_busy("w", 1, 10.0), "'w' is ready only at 65.0"),
        (lambda energy: energy.totals(4.0), "now_s: 4.0"),
    ],
)
def test_bad_calls_name_the_reason_and_change_nothing(call, names) -> None:
    energy = Energy(one_domain(node("n"), node("s"), node("w")))
    energy.set_busy("n", 1, 5.0)
    energy.sleep("s", 5.0)
    energy.sleep("w", 5.0)
    energy.wake("w", 5.0)
    before = energy.node_joules(100.0)
    with pytest.raises(InvalidArgumentError, match=names):
        call(energy)
    assert (energy.node_joules(100.0) == before).all()


@pytest.mark.parametrize(
    ("network", "names"),
    [
        (one_domain(node("n", idle_watts=math.nan)), "idle_watts of node 'n'"),
        (one_domain(node("n"), node("n")), "node_id is given twice"),
        (one_domain(node("n"), carbon=(1.0, 2.0)), "carbon_g_per_kwh: 2 values"),
        (one_domain(node("n"), carbon=(-1.0,)), r"carbon_g_per_kwh\[0\]"),
    ],
)
def test_a_bad_network_is_refused(network, names) -> None:
    with pytest.raises(InvalidArgumentError, match=names):
        Energy(network)


@given(
    st.lists(st.floats(0, 1000), min_size=24, max_size=24),
    st.floats(0, 1e7),
    st.floats(0, 3e5),
    st.floats(0, 86400),
)
@settings(deadline=None)
def test_the_integral_of_carbon_is_the_sum_over_the_pieces(hourly, start_s, length_s, offset_s) -> None:
    series = CarbonSeries(tuple(hourly), offset_s)
    cuts = [start_s]
    hour = math.floor((start_s + offset_s) / 3600) + 1
    while hour * 3600 - offset_s < start_s + length_s:
        cuts.append(max(hour * 3600 - offset_s, start_s))
        hour += 1
    cuts.append(start_s + length_s)
    pieces = math.fsum(
        (later - sooner) * hourly[math.floor(((later + sooner) / 2 + offset_s) / 3600) % 24]
        for sooner, later in itertools.pairwise(cuts)
    )
    assert series.integral(start_s + length_s) - series.integral(start_s) == pytest.approx(pieces, abs=0.1, rel=1e-9)
    assert series.integral(0.0) == pytest.approx(0.0, abs=1e-6)


calls = st.lists(
    st.tuples(
        st.sampled_from(["busy", "sleep", "wake", "look"]), st.integers(0, 2), st.integers(0, 8), st.integers(0, 2000)
    ),
    max_size=40,
)


@given(calls)
@settings(deadline=None)
def test_events_agree_with_a_second_by_second_sum(script) -> None:
    """The slow way: the watts of every node asked for at every second (all events fall on whole seconds)."""
    names = ["a", "b", "c"]
    energy = Energy(one_domain(*(node(name) for name in names), carbon=NIGHT_AND_DAY), wake_watts={"b": 900.0})
    series = CarbonSeries(NIGHT_AND_DAY)
    now, joules, grams = 0, np.zeros(3), 0.0
    for kind, place, accelerators, wait in script:
        for second in range(now, now + wait):
            watts = np.array([energy.watts(name, second) for name in names])
            joules += watts
            grams += float(watts.sum()) * series.intensity(second) / 3.6e6
        now += wait
        try:
            if kind == "busy":
                energy.set_busy(names[place], accelerators, now)
            elif kind == "sleep":
                energy.sleep(names[place], now)
            elif kind == "wake":
                energy.wake(names[place], now)
        except InvalidArgumentError:
            pass
        assert energy.node_joules(now) == pytest.approx(joules)
    assert energy.totals(now)["d"].carbon_g == pytest.approx(grams)
