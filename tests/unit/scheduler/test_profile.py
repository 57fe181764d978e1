"""The future of what is free: every expected value is worked out by hand from the situation described."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core import following, segments
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.fitting import fits
from services.scheduler.core.fleet import Device, Domain, Fleet, Node, with_domain
from services.scheduler.core.following import Change
from services.scheduler.core.placement import Candidates
from services.scheduler.core.policy import Policy
from services.scheduler.core.profile import Profile
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import PendingUnit
from tests.unit.scheduler.world import GIB, a_fleet, a_node

INF = float("inf")
PLAIN = Policy(name="plain", filters=("up", "domain", "accelerator", "capacity"), scores=(), order=("age",))


def a_cluster(fleet: Fleet) -> Cluster:
    return Cluster(table_of(fleet), PLAIN)


def unit(name: str, demand: Demand, run_s: float = INF, **more: float) -> PendingUnit:
    return PendingUnit(UnitKey(name, 0), "lab", 0, 0.0, demand, expected_s=run_s, **more)  # type: ignore[arg-type]


def begin(cluster: Cluster, name: str, demand: Demand, run_s: float, now_s: float = 0.0, **more: float) -> RunningUnit:
    """A unit begins where the core would put it."""
    candidates = cluster.candidates(demand)[0]
    choice = candidates.choose()
    assert choice is not None
    cluster.view.begin()
    ranks = candidates.take(choice)
    cluster.view.rollback()
    return cluster.begin(unit(name, demand, run_s, **more), ranks, now_s)


def profile(cluster: Cluster, now_s: float = 0.0, estimate: str = "expected") -> Profile:
    return Profile(cluster.view, cluster.running.values(), now_s, estimate)


def start(cluster: Cluster, future: Profile, demand: Demand, run_s: float) -> float | None:
    found = future.earliest(cluster.candidates(demand)[0], run_s)
    return None if found is None else found[0]


def keep(cluster: Cluster, future: Profile, name: str, demand: Demand, run_s: float) -> float:
    """Reserve at the earliest time; returns it."""
    candidates = cluster.candidates(demand)[0]
    found = future.earliest(candidates, run_s)
    assert found is not None
    future.reserve(UnitKey(name, 0), found[0], run_s, candidates, found[1])
    return found[0]


def gpus(count: int, ranks: int = 1, **more: object) -> Demand:
    return Demand(ranks, accelerators=count, **more)  # type: ignore[arg-type]


def test_a_service_has_one_rank_of_its_port_on_a_node_whatever_is_free() -> None:
    service = Demand(2, cpus=1.0, service_port=8080)
    alone = a_cluster(a_fleet({"a": 1}))
    assert start(alone, profile(alone), service, 50.0) is None
    assert start(alone, profile(alone), replace(service, service_port=0), 50.0) == 0.0
    two = a_cluster(a_fleet({"a": 2}))
    future = profile(two)
    assert start(two, future, service, 50.0) == 0.0
    keep(two, future, "other", gpus(4), 50.0)
    window = future.window(two.candidates(service)[0], 50.0)
    assert window is not None
    assert window.tolist() == [1, 1]


def test_a_unit_waits_for_the_end_that_frees_enough() -> None:
    # One node of 4: 3 run until 100, so 1 is free now and 4 are then.
    cluster = a_cluster(a_fleet({"a": 1}))
    begin(cluster, "long", gpus(3), 100.0)
    future = profile(cluster)
    assert start(cluster, future, gpus(1), 1000.0) == 0.0
    assert start(cluster, future, gpus(2), 50.0) == 100.0
    assert start(cluster, future, gpus(5), 50.0) is None
    assert future.times.tolist() == [0.0, 100.0]


def test_a_window_reaches_up_to_a_reservation_but_not_into_it() -> None:
    cluster = a_cluster(a_fleet({"a": 1}))
    begin(cluster, "long", gpus(3), 100.0)
    future = profile(cluster)
    assert keep(cluster, future, "wide", gpus(4), 50.0) == 100.0
    one = cluster.candidates(gpus(1))[0]
    assert future.window(one, 100.0) is None, "it ends as the reservation begins"
    assert future.window(one, 100.5).tolist() == [0]  # type: ignore[union-attr]
    # Behind it: 150, when all 4 are free again.
    assert start(cluster, future, gpus(1), 100.5) == 150.0
    assert start(cluster, future, gpus(1), 100.0) == 0.0


def test_reservations_that_overlap_leave_what_neither_takes() -> None:
    # 3 of 4 until 100; then reserved: 3 in [100, 200), and 1 in [100, 250) beside it.
    cluster = a_cluster(a_fleet({"a": 1}))
    begin(cluster, "long", gpus(3), 100.0)
    future = profile(cluster)
    assert keep(cluster, future, "first", gpus(3), 100.0) == 100.0
    assert keep(cluster, future, "second", gpus(1), 150.0) == 0.0  # the one that is free now
    assert keep(cluster, future, "third", gpus(1), 60.0) == 150.0  # 4 - 3 - 1 = 0 until the second ends
    # In [150, 200) the first and the third hold 4; from 200 on the third holds 1, until 210.
    assert start(cluster, future, gpus(2), 10.0) == 200.0
    assert start(cluster, future, gpus(4), 10.0) == 210.0
    assert [item.start_s for item in future.reservations] == [100.0, 0.0, 150.0]


def test_units_one_after_another_on_the_same_devices_need_no_segments_of_their_own() -> None:
    # 3 of 4 until 100, then for a thousand units of 10 s each: what is free changes at 100 no more, and at 10,100.
    cluster = a_cluster(a_fleet({"a": 1}))
    begin(cluster, "long", gpus(3), 100.0)
    future = profile(cluster)
    begun = [keep(cluster, future, f"job-{number}", gpus(3), 10.0) for number in range(1000)]
    assert begun == [100.0 + 10.0 * number for number in range(1000)]
    assert future.times.tolist() == [0.0, 10_100.0]
    # The middle one is given up: 4 are free while it would have run.
    future.drop(UnitKey("job-500", 0))
    assert future.times.tolist() == [0.0, 5100.0, 5110.0, 10_100.0]
    assert start(cluster, future, gpus(3), 10.0) == 5100.0
    assert start(cluster, future, gpus(3), 10.5) == 10_100.0
    assert keep(cluster, future, "again", gpus(3), 10.0) == 5100.0
    assert future.times.tolist() == [0.0, 10_100.0]


def test_a_reservation_given_up_leaves_no_trace() -> None:
    cluster = a_cluster(a_fleet({"a": 1}))
    begin(cluster, "long", gpus(3), 100.0)
    future = profile(cluster)
    keep(cluster, future, "wide", gpus(4), 50.0)
    dropped = future.drop(UnitKey("wide", 0))
    assert dropped is not None
    assert (dropped.start_s, dropped.end_s) == (100.0, 150.0)
    assert future.drop(UnitKey("wide", 0)) is None
    assert future.reservations == ()
    assert future.reserved_from_s == INF
    assert future.times.tolist() == [0.0, 100.0]
    assert start(cluster, future, gpus(1), 1e9) == 0.0
    assert start(cluster, future, gpus(4), 1.0) == 100.0


def test_a_gang_waits_until_all_its_nodes_are_free_at_once() -> None:
    # Two nodes of 4, free again at 50 and at 80.
    cluster = a_cluster(a_fleet({"a": 2}))
    begin(cluster, "one", gpus(4), 50.0)
    begin(cluster, "two", gpus(4), 80.0)
    future = profile(cluster)
    assert start(cluster, future, gpus(4), 10.0) == 50.0
    assert start(cluster, future, gpus(4, 2), 10.0) == 80.0
    assert start(cluster, future, gpus(4, 3), 10.0) is None
    # A reservation on the first node in [50, 90) pushes the gang to its end.
    assert keep(cluster, future, "short", gpus(4), 40.0) == 50.0
    assert start(cluster, future, gpus(4, 2), 10.0) == 90.0


def test_a_gang_spans_domains_only_if_it_may() -> None:
    cluster = a_cluster(a_fleet({"a": 1, "b": 1}))
    begin(cluster, "one", gpus(4), 50.0)
    future = profile(cluster)
    assert start(cluster, future, gpus(4, 2), 10.0) is None
    assert start(cluster, future, gpus(4, 2, cross_domain=True), 10.0) == 50.0


def test_ranks_are_counted_per_node() -> None:
    # Nodes of 8 cpus: 3 each. 2 ranks fit on each node now, 5 ranks need the 8 cpus that end at 30 (2 + 2 + 2).
    cluster = a_cluster(a_fleet({"a": 3}, devices=0))
    begin(cluster, "one", Demand(1, cpus=8.0), 30.0)
    future = profile(cluster)
    assert start(cluster, future, Demand(4, cpus=3.0), 10.0) == 0.0
    assert start(cluster, future, Demand(5, cpus=3.0), 10.0) == 30.0
    assert start(cluster, future, Demand(7, cpus=3.0), 10.0) is None


def test_each_model_has_its_own_future() -> None:
    # A node with 2 of one model and 2 of another: a rank's devices are of one model.
    devices = tuple(Device(n, "NVIDIA", "A100" if n < 2 else "L4") for n in range(4))
    cluster = a_cluster(with_domain(Fleet(), Domain("a"), [Node("a-0", "a", 8.0, 64 * GIB, devices)]))
    begin(cluster, "one", gpus(2, accelerator_types=("A100",)), 40.0)
    begin(cluster, "two", gpus(1, accelerator_types=("L4",)), 70.0)
    future = profile(cluster)
    assert start(cluster, future, gpus(2, accelerator_types=("A100",)), 10.0) == 40.0
    assert start(cluster, future, gpus(2, accelerator_types=("L4",)), 10.0) == 70.0
    either = gpus(2)
    assert start(cluster, future, either, 10.0) == 40.0
    assert start(cluster, future, gpus(3), 10.0) is None
    # Reserved on the A100s in [40, 140): the next finds the L4s at 70.
    assert keep(cluster, future, "first", either, 100.0) == 40.0
    assert keep(cluster, future, "second", either, 100.0) == 70.0
    assert start(cluster, future, either, 100.0) == 140.0


def test_a_run_without_end_is_never_waited_for() -> None:
    cluster = a_cluster(a_fleet({"a": 1}))
    begin(cluster, "endless", gpus(3), INF)
    future = profile(cluster)
    assert start(cluster, future, gpus(2), 10.0) is None
    # Nor does anything come after a reservation without end.
    assert keep(cluster, future, "forever", gpus(1), INF) == 0.0
    assert start(cluster, future, gpus(1), 10.0) is None


def test_a_shared_device_is_free_when_its_last_unit_ends() -> None:
    cluster = a_cluster(a_fleet({"a": 1}, devices=1))
    begin(cluster, "one", gpus(1, device_milli=500), 40.0)
    begin(cluster, "two", gpus(1, device_milli=500), 90.0)
    future = profile(cluster)
    assert start(cluster, future, gpus(1), 10.0) == 90.0
    assert future.follow(cluster.view, cluster.running.values(), 10.0) is None, "shared devices are not followed"


def test_with_more_ends_than_segments_nothing_is_thought_to_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_MOST_CELLS", 1)
    monkeypatch.setattr(following, "_LEAST_SEGMENTS", 5)
    cluster = a_cluster(a_fleet({"a": 10}))
    for number in range(40):
        begin(cluster, f"unit-{number}", gpus(1), 10.0 + 7.0 * number)
    future = profile(cluster)
    assert len(future.times) == 6
    exact = [10.0 + 7.0 * number for number in range(40)]
    # Units fill the nodes in order: node n is wholly free when its last unit, number 4n + 3, ends.
    for ranks in range(1, 11):
        found = start(cluster, future, gpus(4, ranks), 10.0)
        assert found is not None
        assert found >= exact[4 * ranks - 1]
    assert start(cluster, future, gpus(4, 10), 10.0) == exact[-1], "the last end is kept"


def test_what_outlives_its_estimate_is_given_more_whenever_one_asks() -> None:
    demand = gpus(1)
    running = RunningUnit(unit("late", demand, 100.0), (), 0.0, expected_end_s=100.0)
    # 100; then at least a minute more: 160; then half as much again: 240; 360.
    assert running.end_s(0.0, "expected") == 100.0
    assert running.end_s(100.0, "expected") == 160.0
    assert running.end_s(159.0, "expected") == 160.0
    assert running.end_s(160.0, "expected") == 240.0
    assert running.end_s(300.0, "expected") == 360.0
    assert running.end_s(300.0, "limit") == 360.0, "no limit is known: the prediction counts"


def test_the_upper_end_of_the_band_may_be_what_counts() -> None:
    running = RunningUnit(unit("u", gpus(1), 100.0, high_s=250.0, attained_s=50.0), (), 1000.0, expected_end_s=1050.0)
    assert running.end_s(1000.0, "high") == 1200.0
    assert running.end_s(1000.0, "expected") == 1050.0


def test_following_tells_what_ended_early_and_what_late() -> None:
    cluster = a_cluster(a_fleet({"a": 1}))
    early = begin(cluster, "early", gpus(1), 100.0)
    begin(cluster, "late", gpus(2), 50.0)
    future = profile(cluster)
    running = cluster.running

    def follow(now_s: float) -> Change | None:
        return future.follow(cluster.view, running.values(), now_s)

    assert follow(10.0) == Change(freed=False, late=False)
    cluster.release(early.unit.key)
    assert follow(20.0) == Change(freed=True, late=False)
    assert start(cluster, future, gpus(2), 10.0) == 20.0
    assert follow(50.0) == Change(freed=False, late=True)
    # Until 50 + 60.
    assert start(cluster, future, gpus(3), 10.0) == 110.0
    assert follow(40.0) is None, "time does not go back"
    cluster.view.set_up([0], up=False)
    assert follow(60.0) is None, "nodes changed"


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_takes_no_time_needs_room_too(ranks: int) -> None:
    """Both nodes of each domain are held until 100, and something is reserved: also for no time at all nothing is free before."""
    cluster = a_cluster(a_fleet({"a": 2, "b": 2}))
    for name in "abcd":
        begin(cluster, name, gpus(4), 100.0)
    future = profile(cluster)
    assert keep(cluster, future, "kept", gpus(4), 50.0) == 100.0
    demand = replace(gpus(4), ranks=ranks, domains=frozenset({"b"}))
    found = future.earliest(cluster.candidates(demand)[0], 0.0)
    assert found is not None
    assert (found[0], [row for row, _ in found[1].rows]) == (100.0, [2, 3][:ranks])


def test_following_finds_units_that_others_took_the_place_of() -> None:
    # As the live service renews estimates: another object in the same place of what runs.
    cluster = a_cluster(a_fleet({"a": 1}))
    runs = [begin(cluster, name, gpus(1), 100.0 * place) for place, name in enumerate(("first", "second", "third"), 1)]
    future = profile(cluster)
    same = cluster.running[runs[0].unit.key] = replace(runs[0])
    assert future.follow(cluster.view, cluster.running.values(), 5.0) == Change(freed=False, late=False)
    other = cluster.running[runs[1].unit.key] = replace(runs[1], expected_end_s=60.0)
    assert future.follow(cluster.view, cluster.running.values(), 10.0) == Change(freed=True, late=True)
    assert start(cluster, future, gpus(2), 10.0) == 60.0
    assert future.follow(cluster.view, cluster.running.values(), 20.0) == Change(freed=False, late=False)
    for gone in (same, runs[2]):
        cluster.release(gone.unit.key)
    assert future.follow(cluster.view, cluster.running.values(), 30.0) == Change(freed=True, late=False)
    assert start(cluster, future, gpus(3), 10.0) == 30.0
    assert start(cluster, future, gpus(4), 10.0) == other.expected_end_s


def test_what_a_copy_follows_the_other_does_not() -> None:
    # A run that takes the place of another in one of two copies is new to the other one still.
    cluster = a_cluster(a_fleet({"a": 1}))
    before = begin(cluster, "unit", gpus(3), 100.0)
    future = profile(cluster)
    other = future.copy()
    cluster.running[before.unit.key] = replace(before)
    assert other.follow(cluster.view, cluster.running.values(), 5.0) == Change(freed=False, late=False)
    cluster.running[before.unit.key] = before
    assert future.follow(cluster.view, cluster.running.values(), 5.0) == Change(freed=False, late=False)
    future.end(before, 5.0)
    assert start(cluster, future, gpus(4), 10.0) == 5.0
    assert start(cluster, other, gpus(4), 10.0) == 100.0


_DEMANDS = (
    gpus(1),
    gpus(3),
    gpus(4, 2),
    Demand(2, cpus=2.5),
    Demand(1, cpus=0.3, memory_bytes=20 * GIB),
    gpus(2, cpus=0.1, accelerator_types=("L4",)),
)


def _fleet() -> Fleet:
    nodes = [
        a_node("a-0", "a"),
        a_node("a-1", "a", devices=2, model="L4"),
        a_node("a-2", "a"),
        a_node("a-3", "a", cpus=3.0),
    ]
    return with_domain(Fleet(), Domain("a"), nodes)


_STEPS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, len(_DEMANDS) - 1), st.integers(1, 120), st.integers(0, 3)),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(_STEPS)
def test_a_profile_that_follows_is_the_one_made_anew(steps: list[tuple[int, int, int, int]]) -> None:
    """Units begin and end at any time, early and late; after each step all demands start when and where they would."""
    cluster = a_cluster(_fleet())
    kept = profile(cluster)
    now_s = 0.0
    for number, (passed, which, run_s, ends) in enumerate(steps):
        now_s += passed
        for key in list(cluster.running)[:ends]:
            cluster.release(key)
        demand = _DEMANDS[which]
        if cluster.candidates(demand)[0].choose() is not None:
            begin(cluster, f"unit-{number}", demand, float(run_s), now_s)
        assert kept.follow(cluster.view, cluster.running.values(), now_s) is not None
        fresh = profile(cluster, now_s)
        for other in _DEMANDS:
            candidates = cluster.candidates(other)[0]
            for duration_s in (5.0, INF):
                assert kept.earliest(candidates, duration_s) == fresh.earliest(candidates, duration_s)


@settings(max_examples=40, deadline=None)
@given(_STEPS)
def test_the_present_of_a_profile_is_what_is_free(steps: list[tuple[int, int, int, int]]) -> None:
    cluster = a_cluster(_fleet())
    for number, (_, which, run_s, _) in enumerate(steps):
        if cluster.candidates(_DEMANDS[which])[0].choose() is not None:
            begin(cluster, f"unit-{number}", _DEMANDS[which], float(run_s))
    future = profile(cluster)
    everything = np.zeros(len(cluster.table.nodes), dtype=np.bool_) | True
    for demand in _DEMANDS:
        candidates = cluster.candidates(demand)[0]
        first = future._fits(demand, candidates.columns, everything, 0, 1)[0]
        assert first.tolist() == cluster.view.ranks_that_fit(demand, candidates.columns).tolist()
        last = future._fits(demand, candidates.columns, everything, len(future.times) - 1, len(future.times))[0]
        empty = fits(cluster.table, _all_of(cluster), demand, candidates.columns)
        assert last.tolist() == empty.tolist(), "when all ended, everything is free"


def _all_of(cluster: Cluster):  # type: ignore[no-untyped-def]
    from services.scheduler.core.fitting import Free

    table = cluster.table
    return Free(table.cpus, table.memory_bytes, table.devices, table.resources, None)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60)), max_size=10),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60)), min_size=1, max_size=12),
    st.sampled_from([1, 2, 64]),
)
def test_earliest_is_what_trying_every_moment_gives(
    running: list[tuple[int, int]], waiting: list[tuple[int, int]], at_first: int
) -> None:
    """Against the definition: at each beginning, the least of what fits over the run; the first that suffices. However many
    beginnings are looked at together."""
    cluster = a_cluster(_fleet())
    for number, (which, run_s) in enumerate(running):
        if cluster.candidates(_DEMANDS[which])[0].choose() is not None:
            begin(cluster, f"run-{number}", _DEMANDS[which], float(run_s))
    future = profile(cluster)
    for number, (which, run_s) in enumerate(waiting):
        candidates = cluster.candidates(_DEMANDS[which])[0]
        times = future.times.tolist()
        table = future._fits(candidates.demand, candidates.columns, candidates.allowed, 0, len(times))
        expected = None
        for first, at_s in enumerate(times):
            inside = [place for place in range(first, len(times)) if times[place] < at_s + run_s]
            if table[inside].min(axis=0).sum() >= candidates.demand.ranks:
                expected = at_s
                break
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(segments, "_FIRST", at_first)
            assert keep(cluster, future, f"wait-{number}", _DEMANDS[which], float(run_s)) == expected
        assert future._free[: len(times)].min() >= -1e-6, "nothing is promised twice"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["keep", "drop", "pass"]), st.integers(0, 5), st.integers(1, 60)), max_size=10)
)
def test_what_is_reserved_on_a_copy_counts_there_and_nowhere_else(steps: list[tuple[str, int, int]]) -> None:
    """Each step on a copy of the profile before it, and on one that is never copied: the same is said by both, and the
    profiles before say what they said."""
    cluster = a_cluster(_fleet())
    for number in range(3):
        begin(cluster, f"run-{number}", _DEMANDS[number], 20.0 * (number + 1))
    alone, copied = profile(cluster), profile(cluster)

    def said(future: Profile) -> list[object]:
        group = [cluster.candidates(demand)[0] for demand in _DEMANDS]
        windows = [future.window(item, 30.0) for item in group]
        starts = [future.earliest(item, run_s) for item in group for run_s in (5.0, 50.0)]
        return [starts, [None if item is None else item.tolist() for item in windows], future.times.tolist()]

    before: list[tuple[Profile, list[object]]] = []
    now_s = 0.0
    for number, (what, which, run_s) in enumerate(steps):
        before.append((copied, said(copied)))
        copied = copied.copy()
        now_s += 1.0 if what == "pass" else 0.0
        for future in (alone, copied):
            if what == "keep":
                keep(cluster, future, f"wait-{number}", _DEMANDS[which], float(run_s))
            if what == "drop":
                # Also the one that was reserved last, before anybody asked.
                future.drop(UnitKey(f"wait-{number - 1 - which}", 0))
            if what == "pass":
                future.follow(cluster.view, cluster.running.values(), now_s)
            if what == "keep" and which == 0:
                future.drop(UnitKey(f"wait-{number}", 0))
        assert copied.reservations == alone.reservations
        assert said(copied) == said(alone)
        assert said(before[-1][0]) == before[-1][1]
    assert all(said(future) == told for future, told in before)


def test_a_copy_on_which_one_is_reserved_last_copies_nothing() -> None:
    """Whoever reserves and asks no more, as a question does, needs no amounts of its own."""
    cluster = a_cluster(a_fleet({"a": 2}))
    begin(cluster, "long", gpus(3), 100.0)
    future = profile(cluster)
    other = future.copy()
    keep(cluster, other, "wide", gpus(4, 2), 50.0)
    assert other._free is future._free
    assert start(cluster, other, gpus(1), 500.0) == 150.0
    assert other._free is not future._free
    assert start(cluster, future, gpus(1), 500.0) == 0.0


def test_copies_share_nothing_that_one_of_them_changes() -> None:
    """What is free is copied when it is changed first, whichever of the copies that is."""
    cluster = Cluster(table_of(with_domain(Fleet(), Domain("a"), [Node("a-1", "a", 64.0, 2**36)])), Policy())
    demand = Demand(1, cpus=8.0)
    first, second = (
        cluster.begin(PendingUnit(UnitKey(f"j{number}", 0), "t", 0, 0.0, demand, expected_s=10.0 * number), ranks, 0.0)
        for number, ranks in ((1, (PlacedRank(0, "a", "a-1", 0),)), (2, (PlacedRank(0, "a", "a-1", 1),)))
    )
    profile = Profile(cluster.view, [first, second], 0.0, "expected")
    copy = profile.copy()
    another = copy.copy()
    copy.end(first, 0.0)
    profile.end(second, 0.0)
    wide = Candidates(cluster.view, Demand(1, cpus=56.0), np.zeros(0, dtype=np.int64), cluster.policy)
    starts = [item.earliest(wide, 1.0) for item in (profile, copy, another)]
    # Two runs of 8 processors leave 48: 56 are free at once where one was taken off, else when the first ends.
    assert [found[0] for found in starts if found is not None] == [0.0, 0.0, 10.0]


_RANKS = st.builds(
    Demand,
    st.just(1),
    cpus=st.sampled_from((0.0, 0.5, 1.0, 3.0)),
    memory_bytes=st.sampled_from((0, GIB, 40 * GIB)),
    accelerators=st.integers(0, 5),
    device_milli=st.sampled_from((1000, 1000, 500)),
)


@settings(max_examples=60, deadline=None)
@given(held=st.lists(st.tuples(_RANKS, st.integers(1, 5)), max_size=8), wanted=_RANKS)
def test_whether_a_rank_fits_is_as_counted(held: list[tuple[Demand, int]], wanted: Demand) -> None:
    cluster = a_cluster(a_fleet({"a": 2, "b": 1}))
    for number, (demand, ends) in enumerate(held):
        if cluster.candidates(demand)[0].choose() is not None:
            begin(cluster, f"r{number}", demand, 10.0 * ends)
    future = profile(cluster)
    asked = cluster.candidates(wanted)[0]
    where = wanted, asked.columns, asked.allowed, 0, len(future.times)
    assert (future._holds(*where) == (future._fits(*where) >= 1)).all()


def test_reservations_are_due_when_they_begin_and_until_they_are_given_up() -> None:
    cluster = a_cluster(a_fleet({"a": 1}))
    begin(cluster, "long", gpus(4), 100.0)
    future = profile(cluster)
    assert keep(cluster, future, "one", gpus(4), 50.0) == 100.0
    assert keep(cluster, future, "two", gpus(4), 50.0) == 150.0
    assert future.due(99.0) == []
    assert [future.due(100.0), future.due(100.0)] == [[UnitKey("one", 0)]] * 2
    assert sorted(future.due(150.0)) == [UnitKey("one", 0), UnitKey("two", 0)]
    other = future.copy()
    other.drop(UnitKey("one", 0))
    assert other.due(149.0) == []
    assert other.due(150.0) == [UnitKey("two", 0)]
    # Made again at the same time, after a copy: due once.
    assert keep(cluster, other, "one", gpus(4), 50.0) == 100.0
    assert other.due(100.0) == [UnitKey("one", 0)]
    assert future.due(100.0) == [UnitKey("one", 0)]


_GANGS = st.builds(
    Demand,
    st.integers(2, 4),
    cpus=st.sampled_from((0.0, 1.0, 5.0)),
    memory_bytes=st.sampled_from((0, GIB)),
    accelerators=st.integers(1, 4),
    cross_domain=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(
    running=st.lists(st.tuples(_RANKS, st.integers(1, 6)), max_size=8),
    reserved=st.lists(st.tuples(_GANGS, st.integers(1, 60)), max_size=6),
    wanted=_GANGS,
    lasts_s=st.sampled_from((0.0, 7.0, 30.0, INF)),
)
def test_gangs_of_large_ranks_find_the_same_room_as_by_counting(
    running: list[tuple[Demand, int]], reserved: list[tuple[Demand, int]], wanted: Demand, lasts_s: float
) -> None:
    """Where no node has room for two ranks it is only asked whether one fits: the same moments, the same ranks by node."""
    cluster = a_cluster(a_fleet({"a": 3, "b": 2}))
    for number, (demand, ends) in enumerate(running):
        if cluster.candidates(demand)[0].choose() is not None:
            begin(cluster, f"r{number}", demand, 10.0 * ends)
    future = profile(cluster)
    for number, (demand, run_s) in enumerate(reserved):
        if start(cluster, future, demand, float(run_s)) is not None:
            keep(cluster, future, f"w{number}", demand, float(run_s))
    asked = cluster.candidates(wanted)[0]
    assert future._at_most_one(wanted, asked) == (wanted.accelerators > 2)
    found = [(start, fits.tolist()) for start, fits in future._rooms(asked, lasts_s)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Profile, "_at_most_one", lambda *_: False)
        assert found == [(start, fits.tolist()) for start, fits in future._rooms(asked, lasts_s)]
