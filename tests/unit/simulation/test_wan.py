"""Links between domains: the sharing against hand-computed cases and a slow reference, and what must hold always."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meridian.errors import InvalidArgumentError
from simulation.model import Network, SimDomain, SimLink
from simulation.wan import GIB, Wan, water_level


def network(*links: SimLink) -> Network:
    names = sorted({name for link in links for name in (link.from_domain, link.to_domain)})
    return Network([SimDomain(name, []) for name in names], list(links))


def one_link(bandwidth: float = 100.0, rtt_s: float = 0.0, price: int = 0) -> Network:
    return network(SimLink("a", "b", bandwidth, rtt_s, price))


def finish_times(wan: Wan) -> dict[str, float]:
    times = {}
    while (event := wan.next_finish()) is not None:
        for transfer_id in wan.advance(event[0]):
            times[transfer_id] = event[0]
    return times


def test_two_transfers_share_a_link_while_both_move() -> None:
    # By hand: x alone for 5 s (500 of 1000 bytes), both at 50/s until x ends at 15; y's last 500 at 100/s until 20.
    wan = Wan(one_link())
    wan.start("x", "a", "b", 1000, 0.0)
    wan.start("y", "a", "b", 1000, 5.0)
    assert (wan.rate("x"), wan.rate("y")) == (50.0, 50.0)
    assert wan.next_finish() == (15.0, "x")
    assert finish_times(wan) == {"x": 15.0, "y": 20.0}
    assert wan.moved_bytes() == {("a", "b"): 2000}
    assert wan.next_finish() is None


def test_the_two_directions_do_not_share() -> None:
    wan = Wan(network(SimLink("a", "b", 100.0), SimLink("b", "a", 10.0)))
    wan.start("out", "a", "b", 1000, 0.0)
    wan.start("back", "b", "a", 1000, 0.0)
    assert finish_times(wan) == {"out": 10.0, "back": 100.0}


def test_water_level_by_hand() -> None:
    # 120 for wants 30, 80 and one without bound: 30, then 90 for two.
    assert water_level(120.0, [(30.0, 1), (80.0, 1)], 1) == 45.0
    assert water_level(120.0, [(30.0, 1), (80.0, 1)]) == math.inf
    assert water_level(100.0, [(30.0, 1), (80.0, 1)]) == 70.0
    assert water_level(0.0, [(30.0, 2)]) == 0.0
    assert water_level(10.0, []) == math.inf


def test_flows_get_no_more_than_they_demand_and_leave_the_rest() -> None:
    wan = Wan(one_link(120.0))
    assert wan.flow("small", "a", "b", 30.0, 0.0) == 30.0
    assert wan.flow("large", "a", "b", 80.0, 0.0) == 80.0
    assert wan.take_changed_flows() == set()
    wan.start("x", "a", "b", 450, 0.0)
    assert (wan.rate("small"), wan.rate("large"), wan.rate("x")) == (30.0, 45.0, 45.0)
    assert wan.take_changed_flows() == {"large"}
    assert wan.advance(10.0) == ["x"]
    assert wan.rate("large") == 80.0
    assert wan.take_changed_flows() == {"large"}
    # 10 s at 45, then 5 s at 80.
    assert wan.cancel("large", 15.0) == 850
    assert wan.cancel("small", 15.0) == 450
    assert wan.moved_bytes() == {("a", "b"): 1750}


def test_a_flow_may_change_its_demand_and_keeps_its_account() -> None:
    wan = Wan(one_link(100.0))
    wan.flow("f", "a", "b", 10.0, 0.0)
    assert wan.flow("f", "a", "b", 500.0, 10.0) == 100.0
    assert wan.cancel("f", 20.0) == 10 * 10 + 10 * 100


def test_a_cap_on_what_leaves_a_domain_is_shared_over_its_links() -> None:
    # Cap 90: 45 each; once a-c can only take 20, a-b has the other 70.
    wan = Wan(network(SimLink("a", "b", 100.0), SimLink("a", "c", 50.0)), {"a": 90.0})
    wan.start("x", "a", "b", 10_000, 0.0)
    wan.start("y", "a", "c", 10_000, 0.0)
    assert (wan.rate("x"), wan.rate("y")) == (45.0, 45.0)
    wan.set_bandwidth("a", "c", 20.0, 1.0)
    assert (wan.rate("x"), wan.rate("y")) == (70.0, 20.0)
    assert wan.transfer_time_s("a", "b", 900) == 10.0
    wan.cancel("y", 1.0)
    assert wan.rate("x") == 90.0


def test_bandwidth_varies_by_thirty_percent() -> None:
    # By hand: 10 s x 100 + 10 s x 70 = 1700 of 3000 bytes; the other 1300 at 130/s take 10 s.
    wan = Wan(one_link())
    wan.start("x", "a", "b", 3000, 0.0)
    wan.set_bandwidth("a", "b", 70.0, 10.0)
    wan.set_bandwidth("a", "b", 130.0, 20.0)
    assert finish_times(wan) == {"x": pytest.approx(30.0)}


def test_a_stopped_link_foretells_nothing_and_goes_on_later() -> None:
    wan = Wan(one_link())
    wan.start("x", "a", "b", 1000, 0.0)
    wan.set_bandwidth("a", "b", 0.0, 4.0)
    assert wan.next_finish() is None
    assert wan.transfer_time_s("a", "b", 1) == math.inf
    wan.set_bandwidth("a", "b", 100.0, 100.0)
    assert finish_times(wan) == {"x": 106.0}


def test_the_round_trip_passes_after_the_last_byte_and_frees_the_link() -> None:
    wan = Wan(one_link(rtt_s=2.0))
    wan.start("x", "a", "b", 500, 0.0)
    wan.start("y", "a", "b", 1000, 0.0)
    assert wan.next_finish() == (10.0, "x")
    assert wan.advance(10.0) == []
    assert (wan.rate("x"), wan.rate("y")) == (0.0, 100.0)
    assert wan.next_finish() == (12.0, "x")
    assert finish_times(wan) == {"x": 12.0, "y": 17.0}
    assert wan.transfer_time_s("a", "b", 500) == 7.0
    assert wan.transfer_time_s("a", "a", 500) == 0.0


def test_a_transfer_of_nothing_takes_the_round_trip() -> None:
    wan = Wan(one_link(rtt_s=2.0))
    wan.start("x", "a", "b", 0, 1.0)
    assert finish_times(wan) == {"x": 3.0}


def test_cancelling_counts_what_had_left_and_speeds_up_the_others() -> None:
    wan = Wan(one_link(price=GIB))
    wan.start("x", "a", "b", 1000, 0.0)
    wan.start("y", "a", "b", 1000, 0.0)
    assert wan.cancel("x", 10.0) == 500
    assert wan.rate("y") == 100.0
    assert finish_times(wan) == {"y": 15.0}
    assert wan.money_micro_units() == {("a", "b"): 1500}
    with pytest.raises(InvalidArgumentError, match="'x'"):
        wan.cancel("x", 15.0)


def test_a_transfer_cancelled_before_its_end_was_told_is_not_told() -> None:
    wan = Wan(one_link())
    wan.start("x", "a", "b", 1000, 0.0)
    assert wan.cancel("x", 20.0) == 1000
    assert wan.advance(30.0) == []
    assert wan.moved_bytes() == {("a", "b"): 1000}


def test_money_is_rounded_once_per_pair_halves_up() -> None:
    # 1.5 GiB at 90,000 = 135,000 exactly; half a GiB at 1 = 0.5 -> 1; two halves = 1, not 2.
    wan = Wan(one_link(GIB, price=90_000))
    wan.start("x", "a", "b", 1.5 * GIB, 0.0)
    wan.advance(2.0)
    assert wan.money_micro_units() == {("a", "b"): 135_000}
    wan = Wan(one_link(GIB, price=1))
    for number in (1, 2):
        wan.start(f"h{number}", "a", "b", GIB // 2, float(number))
        wan.advance(number + 0.75)
        assert wan.money_micro_units() == {("a", "b"): 1}


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda wan: wan.start("y", "b", "a", 1, 5.0), "no link from 'b' to 'a'"),
        (lambda wan: wan.start("x", "a", "b", 1, 5.0), "transfer_id: 'x'"),
        (lambda wan: wan.start("y", "a", "b", -1, 5.0), "size_bytes: -1"),
        (lambda wan: wan.start("y", "a", "b", math.nan, 5.0), "size_bytes: nan"),
        (lambda wan: wan.start("y", "a", "b", 1, 4.0), "now_s: 4.0 is before 5.0"),
        (lambda wan: wan.advance(math.nan), "now_s: nan"),
        (lambda wan: wan.flow("x", "a", "b", 1.0, 5.0), "flow_id: 'x'"),
        (lambda wan: wan.flow("f", "a", "b", -1.0, 5.0), "bytes_per_s: -1.0"),
        (lambda wan: wan.set_bandwidth("a", "b", -1.0, 5.0), "bytes_per_s: -1.0"),
        (lambda wan: wan.rate("y"), "'y'"),
    ],
)
def test_bad_input_names_the_field_and_changes_nothing(call, names) -> None:
    wan = Wan(one_link())
    wan.start("x", "a", "b", 1000, 0.0)
    wan.advance(5.0)
    with pytest.raises(InvalidArgumentError, match=names):
        call(wan)
    assert finish_times(wan) == {"x": 10.0}


@pytest.mark.parametrize(
    ("links", "egress", "names"),
    [
        ([SimLink("a", "b", 1.0), SimLink("a", "b", 1.0)], {}, r"links\[1\]"),
        ([SimLink("a", "b", -1.0)], {}, r"links\[0\].bandwidth"),
        ([SimLink("a", "b", 1.0, math.nan)], {}, r"links\[0\].rtt_s"),
        ([SimLink("a", "b", 1.0)], {"z": 1.0}, "no domain 'z'"),
        ([SimLink("a", "b", 1.0)], {"a": math.inf}, r"egress_bytes_per_s\['a'\]"),
    ],
)
def test_a_bad_network_is_refused(links, egress, names) -> None:
    with pytest.raises(InvalidArgumentError, match=names):
        Wan(network(*links), egress)


PAIRS = [("a", "b"), ("a", "c"), ("b", "c")]


@dataclass(frozen=True)
class Step:
    kind: str
    name: str
    pair: tuple[str, str]
    amount: float
    wait_s: float


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["start", "start", "start", "flow", "cancel", "bandwidth"]),
        st.sampled_from([f"m{number}" for number in range(8)]),
        st.sampled_from(PAIRS),
        st.integers(0, 2000).map(float),
        st.sampled_from([0.0, 0.5, 1.0, 3.7, 11.0]),
    ),
    max_size=30,
)
caps = st.one_of(st.none(), st.integers(1, 200).map(float))


def wan_for(cap: float | None, rtt_s: float = 0.0) -> Wan:
    links = network(SimLink("a", "b", 100.0, rtt_s), SimLink("a", "c", 37.0), SimLink("b", "c", 55.0, rtt_s / 3))
    return Wan(links, {} if cap is None else {"a": cap})


class Script:
    """Applies the steps that make sense, and keeps what was asked for and told."""

    def __init__(self, wan: Wan) -> None:
        self.wan = wan
        self.now_s = 0.0
        self.moving: dict[str, tuple[str, tuple[str, str], float]] = {}
        self.told: list[str] = []
        self.asked: dict[tuple[str, str], int] = dict.fromkeys(PAIRS, 0)
        self.count = 0

    def hear(self, finished: list[str]) -> None:
        for moving_id in finished:
            self.told.append(moving_id)
            _, pair, size = self.moving.pop(moving_id)
            self.asked[pair] += int(size)

    def apply(self, step: Step) -> None:
        self.now_s += step.wait_s
        self.hear(self.wan.advance(self.now_s))
        running = [moving_id for moving_id in self.moving if moving_id.startswith(step.name)]
        if step.kind in {"start", "flow"}:
            self.count += 1
            moving_id = f"{step.name}.{self.count}"
            self.moving[moving_id] = (step.kind, step.pair, step.amount)
            if step.kind == "start":
                self.wan.start(moving_id, *step.pair, step.amount, self.now_s)
            else:
                self.wan.flow(moving_id, *step.pair, step.amount / 10, self.now_s)
        elif step.kind == "bandwidth":
            self.wan.set_bandwidth(*step.pair, step.amount / 10, self.now_s)
        elif running:
            _, pair, _ = self.moving.pop(running[0])
            self.asked[pair] += self.wan.cancel(running[0], self.now_s)


def reference_rates(script: Script, cap: float | None) -> dict[str, float]:
    """Progressive filling as in the textbook: raise all rates together, freeze at a met demand or a full constraint."""
    members: list[tuple[float, set[str]]] = [
        (script.wan.bandwidth(*pair), {name for name, (_, at, _) in script.moving.items() if at == pair})
        for pair in PAIRS
    ]
    if cap is not None:
        members.append((cap, {name for name, (_, at, _) in script.moving.items() if at[0] == "a"}))
    wants = {name: amount / 10 if kind == "flow" else math.inf for name, (kind, _, amount) in script.moving.items()}
    rates = dict.fromkeys(script.moving, 0.0)
    free = set(script.moving)
    while free:
        rooms = [
            (capacity - sum(rates[name] for name in group)) / len(group & free)
            for capacity, group in members
            if group & free
        ]
        step = max(min([*rooms, *(wants[name] - rates[name] for name in free)]), 0.0)
        for name in free:
            rates[name] += step
        full = [group for capacity, group in members if sum(rates[name] for name in group) >= capacity - 1e-9]
        free = {name for name in free if rates[name] < wants[name] - 1e-9 and not any(name in group for group in full)}
    return rates


@given(steps, caps)
@settings(max_examples=150, deadline=None)
def test_rates_are_those_of_progressive_filling(script_steps: list[Step], cap: float | None) -> None:
    script = Script(wan_for(cap))
    for step in script_steps:
        script.apply(step)
        script.hear(script.wan.advance(script.now_s))
        expected = reference_rates(script, cap)
        for name, rate in expected.items():
            assert script.wan.rate(name) == pytest.approx(rate, abs=1e-6)


@given(steps, caps, st.sampled_from([0.0, 1.0]))
@settings(max_examples=150, deadline=None)
def test_bytes_are_conserved_and_no_link_is_over_its_capacity(script_steps, cap, rtt_s) -> None:
    script = Script(wan_for(cap, rtt_s))
    wan = script.wan
    for step in script_steps:
        script.apply(step)
        leaving = 0.0
        for pair in PAIRS:
            used = sum(wan.rate(name) for name, (_, at, _) in script.moving.items() if at == pair)
            assert used <= wan.bandwidth(*pair) * (1 + 1e-9)
            leaving += used if pair[0] == "a" else 0.0
        assert cap is None or leaving <= cap * (1 + 1e-9)
    for name, (kind, pair, _) in list(script.moving.items()):
        if kind == "flow":
            script.asked[pair] += wan.cancel(name, script.now_s)
            del script.moving[name]
    for pair in PAIRS:
        wan.set_bandwidth(*pair, 50.0, script.now_s)
    while (event := wan.next_finish()) is not None:
        script.hear(wan.advance(event[0]))
    assert not script.moving
    assert wan.moved_bytes() == script.asked


@given(steps, caps, st.lists(st.floats(0, 120), max_size=40), st.sampled_from([0.0, 1.0]))
@settings(max_examples=150, deadline=None)
def test_the_outcome_does_not_depend_on_how_often_it_is_asked(script_steps, cap, looks, rtt_s) -> None:
    coarse, fine = Script(wan_for(cap, rtt_s)), Script(wan_for(cap, rtt_s))
    # The steps must be the same in both, so a cancel may only name what is known not to end: flows.
    looks = sorted(looks)
    for step in script_steps:
        if step.kind == "cancel":
            continue
        coarse.apply(step)
        while looks and looks[0] <= fine.now_s + step.wait_s:
            look = looks.pop(0)
            if look >= fine.now_s:
                fine.hear(fine.wan.advance(look))
                fine.wan.next_finish()
                fine.wan.moved_bytes()
        fine.apply(step)
        assert fine.wan.next_finish() == coarse.wan.next_finish()
        assert fine.wan.moved_bytes() == coarse.wan.moved_bytes()
    end_s = coarse.now_s + 1e4
    for second in range(40):
        fine.hear(fine.wan.advance(fine.now_s + second))
    coarse.hear(coarse.wan.advance(end_s))
    fine.hear(fine.wan.advance(end_s))
    assert fine.told == coarse.told
    assert fine.wan.moved_bytes() == coarse.wan.moved_bytes()
