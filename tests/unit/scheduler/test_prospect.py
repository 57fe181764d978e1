"""Predicted starts: by hand where runs end as said, bands, bounds, and nothing changed in the cluster that is asked."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.futures.prospect import ahead_of, order_of, prospects
from services.scheduler.core.policy import Policy, RestartRules
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.plans.catalogue import register_all
from tests.unit.scheduler.world import a_fleet

WHOLE = Demand(1, cpus=1.0, accelerators=4)


def a_unit(
    name: str, expected_s: float, *, low_s: float = 0.0, high_s: float = math.inf, **more: object
) -> PendingUnit:
    values: dict[str, object] = {"tenant_id": "lab", "demand": WHOLE, "queued_at_s": 0.0, **more}
    return PendingUnit(
        UnitKey(name, 0),
        priority=0,
        expected_s=expected_s,
        low_s=low_s or expected_s,
        high_s=expected_s if high_s == math.inf else high_s,
        **values,  # type: ignore[arg-type]
    )


def a_cluster(discipline: str, nodes: int, running: list[PendingUnit], waiting: list[PendingUnit]) -> Cluster:
    policy = Policy(order=("priority", "age"), discipline=discipline)
    cluster = Cluster(table_of(a_fleet({"a": nodes})), policy)
    cluster.extend(running)
    cluster.apply(decide(cluster, policy, 0.0), 0.0)
    assert not len(cluster.pending)
    cluster.extend(waiting)
    return cluster


def key(name: str) -> UnitKey:
    return UnitKey(name, 0)


@pytest.mark.parametrize("discipline", ["greedy", "strict", "easy", "conservative"])
def test_units_start_when_those_before_them_end(discipline: str) -> None:
    """One node, runs of 100, 200 and 300 s one after the other: starts at 100 and 300, by hand."""
    waiting = [a_unit("second", 200.0, queued_at_s=1.0), a_unit("third", 300.0, queued_at_s=2.0)]
    cluster = a_cluster(discipline, 1, [a_unit("first", 100.0)], waiting)
    found = prospects(cluster, cluster.policy, 10.0, [key("second"), key("third")])
    for name, start_s in (("second", 100.0), ("third", 300.0)):
        item = found[key(name)]
        assert (item.start_s, item.low_s, item.high_s) == pytest.approx((start_s, start_s, start_s))
    assert ahead_of(order_of(cluster, 10.0), key("third")).units == 1
    assert ahead_of(order_of(cluster, 10.0), key("third")).accelerators == 4


@pytest.mark.parametrize("beside", [0, 200, 600])
def test_who_waits_for_one_run_gets_the_band_of_what_is_left_of_it(beside: int) -> None:
    """A run of 100 s (40 to 900) that has just begun: its band, whatever is drawn, in 25, five or three futures (as many runs
    that last long hold other nodes)."""
    runs = [a_unit("runs", 100.0, low_s=40.0, high_s=900.0)]
    runs += [a_unit(f"r{number}", 1e6, low_s=9e5, high_s=2e6) for number in range(beside)]
    cluster = a_cluster("greedy", beside + 1, runs, [a_unit("waits", 50.0)])
    for seed in range(10):
        item = prospects(cluster, cluster.policy, 1e-6, [key("waits")], seed=seed)[key("waits")]
        assert (item.low_s, item.start_s, item.high_s) == pytest.approx((40.0, 100.0, 900.0), rel=1e-3)


def test_what_is_left_of_a_run_that_goes_on_is_that_of_the_longer_ones() -> None:
    """At 100 s of a run of 100 s (high: 500 s, a fifth as many): half of those longer are over 200 s, and nine tenths of them
    over 100 / 0.9 s, one tenth over 1000 s."""
    cluster = a_cluster("greedy", 1, [a_unit("runs", 100.0, low_s=20.0, high_s=500.0)], [a_unit("waits", 50.0)])
    item = prospects(cluster, cluster.policy, 100.0, [key("waits")])[key("waits")]
    assert (item.low_s, item.start_s, item.high_s) == pytest.approx((100.0 / 0.9, 200.0, 1000.0))


def test_who_waits_for_the_first_of_two_runs_gets_a_band_that_is_not_left_to_chance() -> None:
    """Two such runs, with errors that go together in part: the first end is earlier than the one of a run, but not by much."""
    runs = [a_unit(name, 100.0, low_s=40.0, high_s=900.0) for name in "ab"]
    cluster = a_cluster("greedy", 2, runs, [a_unit("waits", 50.0)])
    items = [prospects(cluster, cluster.policy, 1e-6, [key("waits")], seed=seed)[key("waits")] for seed in range(20)]
    assert all(25.0 < item.low_s < 45.0 for item in items)
    assert all(50.0 < item.start_s < 101.0 for item in items)
    assert all(150.0 < item.high_s < 901.0 for item in items)


def test_a_run_that_outlived_its_band_is_given_time_in_proportion_to_its_age() -> None:
    """At 10,000 s, a hundred times its median: the start is hours away, not a moment."""
    cluster = a_cluster("greedy", 1, [a_unit("runs", 100.0, low_s=50.0, high_s=300.0)], [a_unit("waits", 50.0)])
    item = prospects(cluster, cluster.policy, 10_000.0, [key("waits")])[key("waits")]
    assert 12_000.0 < item.start_s < 30_000.0
    assert item.high_s > item.start_s


def test_the_same_question_with_the_same_seed_has_the_same_answer() -> None:
    running = [a_unit("runs", 100.0, low_s=40.0, high_s=900.0)]
    cluster = a_cluster("greedy", 1, running, [a_unit("waits", 50.0)])
    found = [prospects(cluster, cluster.policy, 1.0, [key("waits")], seed=seed) for seed in (7, 7)]
    assert found[0] == found[1]


def test_what_never_fits_and_what_starts_too_late_to_be_said() -> None:
    large = a_unit("large", 10.0, demand=Demand(3, accelerators=4))
    late = a_unit("late", 10.0, queued_at_s=1.0)
    cluster = a_cluster("greedy", 1, [a_unit("runs", 1e9)], [large, late])
    found = prospects(cluster, cluster.policy, 10.0, [key("large"), key("late")], horizon_s=1000.0)
    assert found[key("late")].start_s == math.inf
    assert found[key("late")].later_than_s == 10.0
    assert not found[key("late")].never
    empty = a_cluster("greedy", 1, [a_unit("runs", 50.0)], [large])
    assert prospects(empty, empty.policy, 10.0, [key("large")])[key("large")].never


def test_runs_of_unknown_length_never_end() -> None:
    cluster = a_cluster("greedy", 1, [PendingUnit(key("runs"), "lab", 0, 0.0, WHOLE)], [a_unit("waits", 10.0)])
    item = prospects(cluster, cluster.policy, 10.0, [key("waits")])[key("waits")]
    assert (item.start_s, item.high_s, item.never) == (math.inf, math.inf, False)


def test_the_cluster_is_left_as_it_is_and_strangers_are_left_out() -> None:
    cluster = a_cluster("easy", 2, [a_unit("a", 100.0), a_unit("b", 50.0)], [a_unit("c", 10.0), a_unit("d", 10.0)])
    before = cluster.view.free_devices.copy(), set(cluster.running), len(cluster.pending), cluster.policy
    assert prospects(cluster, cluster.policy, 10.0, [key("no")]) == {}
    assert prospects(cluster, cluster.policy, 10.0, [key("c")])[key("c")].start_s == 50.0
    assert (cluster.view.free_devices == before[0]).all()
    assert (set(cluster.running), len(cluster.pending), cluster.policy) == before[1:]


def test_the_work_is_bounded() -> None:
    """A thousand ends on a hundred nodes: no more cycles than are allowed, and the start lies between two ends."""
    nodes = 500
    running = [a_unit(f"r{number}", 100.0 + 7.0 * number) for number in range(nodes)]
    waiting = [a_unit(f"w{number}", 5000.0, queued_at_s=number) for number in range(300)]
    cluster = a_cluster("greedy", nodes, running, waiting)
    item = prospects(cluster, cluster.policy, 10.0, [key("w299")])[key("w299")]
    assert item.cycles <= 410
    # By hand: the 300th of equal units takes the node of the 300th end.
    end_s = 100.0 + 7.0 * 299
    assert item.low_s <= end_s <= item.high_s
    assert item.start_s == pytest.approx(end_s, rel=0.05)


def test_who_is_taken_off_in_a_future_runs_on_in_it() -> None:
    """One node, held from 0 to 100; at 10 an urgent unit of 50 s waits before another of 30 s. It takes the run off, until 60;
    that runs its other 90 s, until 150; then the other begins."""
    policy = Policy(order=("priority", "age"), preemptions=("priority",))
    cluster = Cluster(table_of(a_fleet({"a": 1})), policy)
    whole = Demand(1, accelerators=4)
    cluster.add(PendingUnit(UnitKey("held", 0), "lab", 0, 0.0, whole, expected_s=100.0))
    cluster.apply(decide(cluster, policy, 0.0), 0.0)
    cluster.add(PendingUnit(UnitKey("urgent", 0), "lab", 1, 10.0, whole, expected_s=50.0))
    other = UnitKey("other", 0)
    cluster.add(PendingUnit(other, "lab", 0, 10.0, whole, expected_s=30.0))
    found = prospects(cluster, policy, 10.0, [other])[other]
    assert (found.low_s, found.start_s, found.high_s, found.never) == (150.0, 150.0, 150.0, False)


@pytest.mark.parametrize("discipline", ["greedy", "strict", "easy", "conservative"])
def test_tenants_with_fair_shares_take_turns(discipline: str) -> None:
    """Four nodes that two tenants hold in equal parts until 100, 200, 300 and 400 s, and four units of each that wait. As things are,
    both have the same share, and all units of the one stand before those of the other; as each start counts, they begin by
    turns."""
    running = [a_unit(f"r{n}", 100.0 * (n + 1), tenant_id="ab"[n % 2]) for n in range(4)]
    waiting = [a_unit(f"{tenant}{n}", 1e6, queued_at_s=1.0 + n, tenant_id=tenant) for n in range(4) for tenant in "ab"]
    policy = Policy(order=("priority", "fair_share", "age"), discipline=discipline)
    cluster = Cluster(table_of(a_fleet({"a": 4})), policy)
    cluster.extend(running)
    cluster.apply(decide(cluster, policy, 0.0), 0.0)
    assert not len(cluster.pending)
    cluster.extend([replace(unit, queued_at_s=unit.queued_at_s + 10 * (unit.tenant_id == "b")) for unit in waiting])
    keys = [unit.key for unit in order_of(cluster, 10.0)]
    assert [key.job_id for key in keys] == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"]
    found = prospects(cluster, policy, 10.0, keys, horizon_s=1000.0)
    starts = sorted((item.start_s, key.job_id) for key, item in found.items() if item.start_s < math.inf)
    assert [name for _, name in starts] == ["a0", "b0", "a1", "b1"]
    assert [at_s for at_s, _ in starts] == pytest.approx([100.0, 200.0, 300.0, 400.0])
    assert [unit.key for unit in order_of(cluster, 10.0)] == keys, "the shares of the cluster are as before"


# -- planners ------------------------------------------------------------------------------------------------------------


def planned(nodes: int, interval_s: float, running: list[PendingUnit], planner: str = "completion") -> Cluster:
    """A cluster whose planner had a round at 0, in which ``running`` began."""
    register_all()
    policy = Policy(name="p", planner=planner, interval_s=interval_s, restarts=RestartRules(least_run_s=1e9))
    cluster = Cluster(table_of(a_fleet({"a": nodes})), policy)
    cluster.extend(running)
    cluster.apply(decide(cluster, policy, 0.0), 0.0)
    assert len(cluster.running) == len(running)
    return cluster


def test_what_comes_between_two_rounds_starts_with_the_next_or_with_the_first_after_an_end() -> None:
    """A node is free, another until 130 s: rounds every 60 s start the first at 60 and the second at 180."""
    cluster = planned(2, 60.0, [a_unit("long", 130.0)])
    cluster.extend([a_unit("one", 500.0, queued_at_s=1.0), a_unit("two", 1000.0, queued_at_s=2.0)])
    before = cluster.copy()
    found = prospects(cluster, cluster.policy, 10.0, [key("one"), key("two")])
    starts = {name: (found[key(name)].low_s, found[key(name)].start_s) for name in ("one", "two")}
    assert starts == {"one": (60.0, 60.0), "two": (180.0, 180.0)}
    assert (before.running, len(before.pending)) == (cluster.running, len(cluster.pending))
    assert decide(cluster, cluster.policy, 20.0).placed == ()


def test_rounds_that_change_nothing_more_and_those_there_is_no_time_for_are_told() -> None:
    cluster = planned(1, 60.0, [a_unit("endless", math.inf)])
    cluster.add(a_unit("one", 1000.0, queued_at_s=1.0))
    (item,) = prospects(cluster, cluster.policy, 10.0, [key("one")]).values()
    assert (item.start_s, item.never) == (math.inf, False)
    assert item.note == "nothing that runs is known to end, and rounds of the planner completion change nothing more"
    cluster = planned(1, 60.0, [a_unit("long", 86_400.0)])
    cluster.add(a_unit("one", 1000.0, queued_at_s=1.0))
    asked: list[float] = []

    def patience(part: float) -> bool:
        asked.append(part)
        return False

    (item,) = prospects(cluster, cluster.policy, 10.0, [key("one")], patience=patience).values()
    assert (item.start_s, item.later_than_s, item.never) == (math.inf, 10.0, False)
    assert item.note == "the planner completion was followed through 0 rounds, and no further"
    assert asked == pytest.approx([1 / 3, 2 / 3, 1.0])


def test_long_waits_for_a_planner_take_few_rounds() -> None:
    """Ten hours of rounds of a minute: several are taken as one, and the band says between which the start lies."""
    cluster = planned(1, 60.0, [a_unit("long", 36_000.0)])
    cluster.add(a_unit("one", 1000.0, queued_at_s=1.0))
    (item,) = prospects(cluster, cluster.policy, 10.0, [key("one")]).values()
    assert item.low_s <= 36_060.0
    assert item.start_s == pytest.approx(36_060.0, rel=0.05)
    assert item.cycles <= 400


def test_a_run_of_which_nothing_is_known_does_not_blur_the_round_of_the_others() -> None:
    """One run ends at 130 s, the other in a year: the next round after the first end is at 180 s."""
    cluster = planned(2, 60.0, [a_unit("long", 130.0), a_unit("endless", 3e7)])
    cluster.add(a_unit("one", 500.0, queued_at_s=1.0))
    cluster.add(a_unit("two", 500.0, queued_at_s=2.0))
    found = prospects(cluster, cluster.policy, 10.0, [key("one"), key("two")])
    first, second = sorted(item.start_s for item in found.values())
    assert first == 180.0
    assert second == pytest.approx(720.0, rel=0.1)


def test_a_gang_that_never_fits_is_told_by_a_planner_too() -> None:
    cluster = planned(1, 60.0, [])
    cluster.add(a_unit("huge", 10.0, demand=Demand(1, cpus=1.0, accelerators=4, accelerator_types=("H100",))))
    (item,) = prospects(cluster, cluster.policy, 10.0, [key("huge")]).values()
    assert (item.start_s, item.never) == (math.inf, True)
