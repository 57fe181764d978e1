"""Backfilling: what reservations promise is kept, and what is remembered between cycles changes no decision."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import _Cycle, decide
from services.scheduler.core.deciding.decisions import Decisions
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.fleet import Domain, Fleet, with_domain
from services.scheduler.core.memory import Memory
from services.scheduler.core.policy import Policy, policy_from_json
from services.scheduler.core.profile import Profile
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import Table, table_of
from services.scheduler.core.waiting_unit import PendingUnit
from tests.unit.scheduler.world import a_fleet, a_node

PLAIN = Policy(name="plain", filters=("up", "domain", "accelerator", "capacity"), scores=(), order=("age",))
EASY = replace(PLAIN, discipline="easy")
CONSERVATIVE = replace(PLAIN, discipline="conservative")


@dataclass(frozen=True)
class Job:
    submit_s: float
    demand: Demand
    run_s: float
    said_s: float
    tenant: str = "lab"
    priority: int = 0

    def unit(self, number: int) -> PendingUnit:
        key = UnitKey(f"job-{number:03d}", 0)
        return PendingUnit(
            key, self.tenant, self.priority, self.submit_s, self.demand, expected_s=self.said_s, limit_s=self.said_s
        )


@dataclass
class Replay:
    """A queue over time. ``renewed`` gives each cycle a cluster built from what is known, not the one that was kept."""

    table: Table
    policy: Policy
    jobs: Sequence[Job]
    renewed: bool = False
    watch: Callable[[float, Decisions], None] = lambda now_s, decisions: None
    starts: dict[str, float] = field(default_factory=dict)
    placed: list[tuple[float, str, tuple[tuple[str, tuple[int, ...]], ...]]] = field(default_factory=list)
    partial: int = 0

    def run(self) -> Self:
        cluster = Cluster(self.table, self.policy)
        arrivals = sorted((job.submit_s, number) for number, job in enumerate(self.jobs))
        ends: list[tuple[float, UnitKey]] = []
        while arrivals or ends:
            now_s = min([*(time_s for time_s, _ in arrivals[:1]), *(time_s for time_s, _ in ends[:1])])
            while ends and ends[0][0] <= now_s:
                cluster.release(heapq.heappop(ends)[1])
            while arrivals and arrivals[0][0] <= now_s:
                number = arrivals.pop(0)[1]
                cluster.add(self.jobs[number].unit(number))
            if self.renewed:
                cluster = self._anew(cluster, now_s)
            decisions = self._decide(cluster, now_s)
            self.partial += decisions.partial
            self.watch(now_s, decisions)
            for running in cluster.apply(decisions, now_s):
                name = running.unit.key.job_id
                self.starts[name] = now_s
                self.placed.append((now_s, name, tuple((rank.node_id, rank.devices) for rank in running.ranks)))
                heapq.heappush(ends, (now_s + self.jobs[int(name[4:])].run_s, running.unit.key))
        return self

    def _decide(self, cluster: Cluster, now_s: float) -> Decisions:
        return decide(cluster, self.policy, now_s, explain=False)

    def _anew(self, old: Cluster, now_s: float) -> Cluster:
        """The same state without what was worked out before. Conservative reservations are promises: part of the state."""
        cluster = Cluster(self.table, self.policy)
        for running in old.running.values():
            cluster.occupy(replace(running))
        for unit in old.pending:
            cluster.add(unit)
        memory = old.memory
        if self.policy.discipline == "conservative" and memory is not None and memory.profile is not None:
            profile = Profile(cluster.view, cluster.running.values(), now_s, self.policy.estimate)
            for item in memory.profile.reservations:
                candidates = cluster.candidates(old.pending.get(item.key).demand)[0]  # type: ignore[union-attr]
                profile.reserve(item.key, item.start_s, item.end_s - item.start_s, candidates, item.choice)
            cluster.memory = Memory(cluster.stamp, profile, memory.reserved)
        return cluster


def replay(policy: Policy, jobs: Sequence[Job], fleet: Fleet, **more: object) -> Replay:
    return Replay(table_of(fleet), policy, jobs, **more).run()  # type: ignore[arg-type]


def a_job(submit_s: float, ranks: int, run_s: float, said_s: float = 0.0, **more: object) -> Job:
    """``ranks`` whole nodes of one cpu."""
    return Job(submit_s, Demand(ranks, cpus=1.0), run_s, said_s or run_s, **more)  # type: ignore[arg-type]


def starts(policy: Policy, jobs: Sequence[Job], nodes: int = 4) -> list[float]:
    found = replay(policy, jobs, a_fleet({"a": nodes}, cpus=1.0, devices=0)).starts
    return [found[f"job-{number:03d}"] for number in range(len(jobs))]


# -- by hand -----------------------------------------------------------------------------------------------------------

# 4 nodes. The first job holds 3 until 100; the second wants all 4, so it waits for 100.
BLOCKED = (a_job(0, 3, 100), a_job(1, 4, 50))


def test_strict_lets_nobody_pass() -> None:
    assert starts(replace(PLAIN, discipline="strict"), [*BLOCKED, a_job(2, 1, 10)]) == [0, 100, 150]


def test_greedy_lets_everybody_pass() -> None:
    assert starts(PLAIN, [*BLOCKED, a_job(2, 1, 500)]) == [0, 502, 2]


@pytest.mark.parametrize("policy", [EASY, CONSERVATIVE])
def test_what_ends_before_the_reservation_passes(policy: Policy) -> None:
    assert starts(policy, [*BLOCKED, a_job(2, 1, 98)]) == [0, 100, 2]


@pytest.mark.parametrize("policy", [EASY, CONSERVATIVE])
def test_what_would_delay_the_reservation_does_not(policy: Policy) -> None:
    assert starts(policy, [*BLOCKED, a_job(2, 1, 99)]) == [0, 100, 150]


def test_easy_passes_on_nodes_that_the_reservation_leaves() -> None:
    # The second wants 3 of the 4 at 100: the fourth is free for as long as anyone likes.
    assert starts(EASY, [a_job(0, 3, 100), a_job(1, 4, 50), a_job(2, 1, 500)])[2] == 150
    second = [a_job(0, 2, 100), a_job(1, 3, 50), a_job(2, 1, 500)]
    # The reservation holds the first nodes that will be free, so that one of the two free now is left.
    assert starts(EASY, second)[1] == 100


def test_a_unit_without_an_end_passes_one_that_no_node_can_hold() -> None:
    jobs = [Job(0.0, Demand(1, cpus=1e6), 10.0, 10.0), Job(1.0, Demand(1, cpus=1.0), 5.0, np.inf)]
    for renewed in (False, True):
        assert Replay(table_of(a_fleet({"east": 1})), EASY, jobs, renewed=renewed).run().starts["job-001"] == 1.0


def test_with_several_reservations_the_first_alone_does_not_limit_who_passes() -> None:
    """a is held until 50 and wanted then; of b one node is held until 100, then both are wanted. Behind one of 500 s, which has to
    wait, one of 90 s fits onto the free node of b, though the reservation in a begins before its end."""
    a, b = frozenset({"a"}), frozenset({"b"})
    cluster = Cluster(table_of(a_fleet({"a": 1, "b": 2}, cpus=1.0, devices=0)), EASY)

    def add(name: str, ranks: int, domains: frozenset[str], run_s: float) -> None:
        demand = Demand(ranks, cpus=1.0, domains=domains)
        cluster.add(PendingUnit(UnitKey(name, 0), "lab", 0, float(len(cluster.pending)), demand, expected_s=run_s))

    add("runs-a", 1, a, 50.0)
    add("runs-b", 1, b, 100.0)
    cluster.apply(decide(cluster, EASY, 0.0), 0.0)
    for name, ranks, domains, run_s in (("1", 1, a, 9.0), ("2", 2, b, 9.0), ("3-long", 1, b, 500.0), ("4", 1, b, 90.0)):
        add(name, ranks, domains, run_s)
    found = decide(cluster, EASY, 0.0)
    assert {item.key.job_id: item.start_s for item in found.reservations} == {"1": 50.0, "2": 100.0}
    assert [item.unit.key.job_id for item in found.placed] == ["4"]


@pytest.mark.parametrize("cheap", ["a", "b"])
def test_of_two_models_that_are_free_at_the_same_time_the_better_one_is_reserved(cheap: str) -> None:
    fleet = Fleet()
    for name, model in (("a", "A100"), ("b", "H100")):
        domain = Domain(name, price_micro_units=1 if name == cheap else 5, currency="CNY")
        fleet = with_domain(fleet, domain, [a_node(f"{name}-0", name, model=model)], full_of=name)
    policy = replace(EASY, scores=(("price", 1.0),))
    cluster = Cluster(table_of(fleet), policy)
    for number in range(2):
        cluster.add(PendingUnit(UnitKey(f"r{number}", 0), "lab", 0, 0.0, Demand(1, accelerators=4), expected_s=100.0))
    cluster.apply(decide(cluster, policy, 0.0), 0.0)
    gang = Demand(2, accelerators=2)
    assert len(cluster.candidates(gang)) == 2
    cluster.add(PendingUnit(UnitKey("gang", 0), "lab", 0, 1.0, gang, expected_s=10.0))
    [reservation] = decide(cluster, policy, 1.0).reservations
    assert reservation.start_s == 100.0
    assert [cluster.table.nodes[row].domain_id for row, _ in reservation.choice.rows] == [cheap]


def test_beside_reservations_a_gang_in_one_domain_goes_before_a_cheaper_one_in_two() -> None:
    fleet = Fleet()
    for name, model, devices, price in (
        ("a", "A100", 1, 1),
        ("b", "H100", 2, 9),
        ("c", "A100", 1, 1),
        ("d", "L4", 1, 5),
    ):
        domain = Domain(name, price_micro_units=price, currency="CNY")
        node = a_node(f"{name}-0", name, devices=devices, model=model)
        fleet = with_domain(fleet, domain, [node], full_of=name)
    policy = replace(EASY, scores=(("price", 1.0),))
    cluster = Cluster(table_of(fleet), policy)
    in_d = Demand(1, accelerators=1, domains=frozenset({"d"}))
    cluster.add(PendingUnit(UnitKey("runs", 0), "lab", 0, 0.0, in_d, expected_s=100.0))
    cluster.apply(decide(cluster, policy, 0.0), 0.0)
    cluster.add(PendingUnit(UnitKey("kept", 0), "lab", 0, 1.0, in_d, expected_s=100.0))
    gang = Demand(2, accelerators=1, cross_domain=True, accelerator_types=("A100", "H100"))
    cluster.add(PendingUnit(UnitKey("gang", 0), "lab", 0, 2.0, gang, expected_s=100.0))
    found = decide(cluster, policy, 2.0)
    assert [item.key.job_id for item in found.reservations] == ["kept"]
    [placed] = found.placed
    assert {rank.domain_id for rank in placed.ranks} == {"b"}


def test_easy_protects_only_the_first_and_conservative_all() -> None:
    # 2 of 4 nodes are held until 100. The second (3 nodes) is promised 100, the third (4 nodes) 150 by conservative
    # backfilling. The fourth (1 node, 200 s) leaves 3 nodes to the second, so EASY lets it pass; it delays the third.
    jobs = [a_job(0, 2, 100), a_job(1, 3, 50), a_job(2, 4, 10), a_job(3, 1, 200)]
    assert starts(EASY, jobs) == [0, 100, 203, 3]
    assert starts(CONSERVATIVE, jobs) == [0, 100, 150, 160]


@pytest.mark.parametrize("policy", [replace(EASY, reservation_depth=2), CONSERVATIVE])
def test_a_unit_whose_former_runs_took_all_its_estimate_is_not_passed_for_ever(policy: Policy) -> None:
    """Two domains of two nodes, all held until 100 but one of "b". The second unit wants both of "b" and has no time left by its
    estimate; one of 500 s may not take the free node before it, and its reservation is where it may run."""
    both = frozenset({"b"})
    cluster = Cluster(table_of(a_fleet({"a": 2, "b": 2}, cpus=1.0, devices=0)), policy)
    for number, demand in enumerate([Demand(2, cpus=1.0, domains=frozenset({"a"})), Demand(1, cpus=1.0, domains=both)]):
        cluster.add(PendingUnit(UnitKey(f"runs-{number}", 0), "lab", 0, 0.0, demand, expected_s=100.0))
    cluster.apply(decide(cluster, policy, 0.0), 0.0)
    cluster.add(
        PendingUnit(UnitKey("first", 0), "lab", 0, 1.0, Demand(2, cpus=1.0, domains=frozenset({"a"})), expected_s=9.0)
    )
    again = Demand(2, cpus=1.0, domains=both)
    cluster.add(PendingUnit(UnitKey("again", 0), "lab", 0, 2.0, again, expected_s=50.0, attained_s=60.0))
    cluster.add(PendingUnit(UnitKey("long", 0), "lab", 0, 3.0, Demand(1, cpus=1.0), expected_s=500.0))
    found = decide(cluster, policy, 5.0)
    assert not found.placed
    kept = {item.key.job_id: (item.start_s, item.choice.rows) for item in found.reservations}
    assert kept["first"] == (100.0, ((0, 1), (1, 1)))
    assert kept["again"] == (100.0, ((2, 1), (3, 1)))


def test_a_second_reservation_protects_the_second() -> None:
    jobs = [a_job(0, 4, 100), a_job(1, 4, 50), a_job(2, 4, 10), a_job(3, 4, 5)]
    assert starts(replace(EASY, reservation_depth=2), jobs) == [0, 100, 150, 160]


def test_when_something_ends_early_reservations_move_up_in_order() -> None:
    # Said to end at 100, ends at 40: the second, promised 100, begins at 40, and the third follows it.
    jobs = [a_job(0, 3, 40, 100), a_job(1, 4, 50), a_job(2, 4, 10)]
    promised: dict[float, list[float]] = {}

    def watch(now_s: float, decisions: Decisions) -> None:
        promised[now_s] = [item.start_s for item in decisions.reservations]

    fleet = a_fleet({"a": 4}, cpus=1.0, devices=0)
    found = replay(CONSERVATIVE, jobs, fleet, watch=watch)
    assert promised == {0: [], 1: [100], 2: [100, 150], 40: [90], 90: [], 100: []}
    assert list(found.starts.values()) == [0, 40, 90]


def test_compression_keeps_the_promises_to_others() -> None:
    # 4 nodes: 2 until 100 (really 50), 2 until 80. Promised: A (4 nodes, 20 s) 100, then B (2 nodes, 60 s): 120, as it would
    # reach into A's time from any moment before. When 2 nodes come free at 50, A stays at 80 (it needs all 4) and B, which
    # would disturb A from 50 on, moves to the end of A at 100.
    jobs = [a_job(0, 2, 50, 100), a_job(0, 2, 80), a_job(1, 4, 20), a_job(2, 2, 60)]
    assert starts(CONSERVATIVE, jobs) == [0, 0, 80, 100]


def test_shortest_first_among_those_that_pass() -> None:
    # One node is free until 100. In the queue's order the 60 s job passes first and the 30 s job begins at 62; by length the
    # 30 s job passes first and leaves 68 s for the other.
    jobs = [*BLOCKED, a_job(2, 1, 60), a_job(2, 1, 30)]
    assert starts(EASY, jobs) == [0, 100, 2, 62]
    assert starts(replace(EASY, backfill_order="shortest"), jobs) == [0, 100, 32, 2]


def test_passing_may_rest_on_another_estimate() -> None:
    # The third is predicted to run 50 s but declared 500: by the limit it may not pass, by the prediction it may.
    fleet = table_of(a_fleet({"a": 4}, cpus=1.0, devices=0))
    for policy, passes in (
        (replace(EASY, estimate="limit"), False),
        (replace(EASY, estimate="limit", backfill_estimate="expected"), True),
        (replace(EASY, estimate="limit", backfill_estimate="high"), False),
    ):
        cluster = Cluster(fleet, policy)
        for number, job in enumerate(BLOCKED):
            cluster.add(job.unit(number))
        one = a_job(2, 1, 50).unit(2)
        cluster.add(replace(one, limit_s=500.0, high_s=200.0))
        placed = [item.key.job_id for item in decide(cluster, policy, 0.0).placed]
        assert placed == (["job-000", "job-002"] if passes else ["job-000"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"estimate": "low"}, "estimate: 'low' is none of expected, high, limit"),
        ({"backfill_estimate": "low"}, "backfill_estimate: 'low' is none of expected, high, limit"),
        ({"backfill_order": "longest"}, "backfill_order: 'longest' is neither empty nor shortest"),
    ],
)
def test_wrong_values_are_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        policy_from_json(change)


def test_deciding_changes_no_promise_until_it_is_carried_out() -> None:
    cluster = Cluster(table_of(a_fleet({"a": 4}, cpus=1.0, devices=0)), CONSERVATIVE)
    for number, job in enumerate(BLOCKED):
        cluster.add(job.unit(number))
    cluster.apply(decide(cluster, CONSERVATIVE, 1.0), 1.0)
    assert cluster.memory is not None
    before = cluster.memory.profile.reservations  # type: ignore[union-attr]
    cluster.add(a_job(2, 2, 500).unit(2))
    first = decide(cluster, CONSERVATIVE, 2.0)
    assert len(first.reservations) == 2
    assert cluster.memory.profile.reservations == before  # type: ignore[union-attr]
    assert decide(cluster, CONSERVATIVE, 2.0).reservations == first.reservations


def test_a_unit_that_leaves_the_queue_leaves_its_reservation() -> None:
    cluster = Cluster(table_of(a_fleet({"a": 4}, cpus=1.0, devices=0)), CONSERVATIVE)
    for number, job in enumerate([*BLOCKED, a_job(2, 1, 150)]):
        cluster.add(job.unit(number))
    first = decide(cluster, CONSERVATIVE, 2.0)
    assert [item.key.job_id for item in first.reservations] == ["job-001", "job-002"]
    cluster.apply(first, 2.0)
    cluster.withdraw(UnitKey("job-001", 0))
    second = decide(cluster, CONSERVATIVE, 3.0)
    assert [item.key.job_id for item in second.placed] == ["job-002"]
    assert second.reservations == ()


# -- for any queue -----------------------------------------------------------------------------------------------------

_DEMANDS = (
    Demand(1, accelerators=1),
    Demand(1, accelerators=2),
    Demand(1, accelerators=4),
    Demand(2, accelerators=4),
    Demand(3, accelerators=2, cross_domain=True),
    Demand(1, cpus=5.0),
    Demand(4, cpus=3.0, domains=frozenset({"a"})),
)


@st.composite
def queues(draw: st.DrawFn, early: int = 0, late: int = 0) -> list[Job]:
    """Jobs whose real run is up to ``early`` seconds shorter and ``late`` longer than declared. Whole seconds: exact."""
    size = draw(st.integers(2, 22))
    jobs = []
    submit_s = 0
    for _ in range(size):
        submit_s += draw(st.integers(0, 12))
        run_s = draw(st.integers(1, 60))
        said_s = max(run_s + draw(st.integers(-late, early)), 1)
        demand = draw(st.sampled_from(_DEMANDS))
        tenant, priority = draw(st.sampled_from(("lab", "team"))), draw(st.integers(0, 1))
        jobs.append(Job(float(submit_s), demand, float(run_s), float(said_s), tenant, priority))
    return jobs


FLEET = a_fleet({"a": 2, "b": 1})


def _promises(
    policy: Policy, jobs: Sequence[Job], keys: Callable[[Decisions], Iterable[str]]
) -> tuple[Replay, dict[str, list[float]]]:
    promised: dict[str, list[float]] = {}

    def watch(now_s: float, decisions: Decisions) -> None:
        watched = set(keys(decisions))
        for item in decisions.reservations:
            if item.key.job_id in watched:
                promised.setdefault(item.key.job_id, []).append(item.start_s)

    return replay(policy, jobs, FLEET, watch=watch), promised


@pytest.mark.parametrize("scores", [(), (("pack", 1.0), ("spread", 0.001))])
@settings(max_examples=25, deadline=None)
@given(jobs=queues(early=40))
def test_nobody_who_passes_delays_the_first(scores: tuple[tuple[str, float], ...], jobs: list[Job]) -> None:
    """EASY with true limits: the first that waits begins no later than it was ever promised."""
    policy = replace(EASY, scores=scores)
    found, promised = _promises(
        policy, jobs, lambda decisions: [item.key.job_id for item in decisions.reservations[:1]]
    )
    for name, times in promised.items():
        assert found.starts[name] <= times[0]
        assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("scores", [(), (("pack", 1.0), ("spread", 0.001))])
@settings(max_examples=25, deadline=None)
@given(jobs=queues(early=40))
def test_conservative_keeps_what_it_promised_at_arrival(scores: tuple[tuple[str, float], ...], jobs: list[Job]) -> None:
    policy = replace(CONSERVATIVE, scores=scores)
    found, promised = _promises(policy, jobs, lambda decisions: [item.key.job_id for item in decisions.reservations])
    for name, times in promised.items():
        assert found.starts[name] <= times[0]
        assert times == sorted(times, reverse=True)


@settings(max_examples=30, deadline=None)
@given(jobs=queues())
def test_with_exact_run_times_conservative_starts_are_those_reserved(jobs: list[Job]) -> None:
    found, promised = _promises(
        CONSERVATIVE, jobs, lambda decisions: [item.key.job_id for item in decisions.reservations]
    )
    for name, times in promised.items():
        assert set(times) == {found.starts[name]}


POLICIES = {
    "greedy": PLAIN,
    "strict": replace(PLAIN, discipline="strict"),
    "easy": EASY,
    "easy packed": replace(EASY, scores=(("pack", 1.0), ("spread", 0.001))),
    "easy 3": replace(EASY, reservation_depth=3, order=("priority", "age")),
    "easy shortest": replace(EASY, backfill_order="shortest", estimate="limit"),
    "easy fair": replace(EASY, order=("fair_share", "age")),
    "easy least first": replace(EASY, order=("shortest", "age")),
}


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=15, deadline=None)
@given(jobs=queues(early=20, late=30))
def test_what_is_remembered_changes_no_decision(name: str, jobs: list[Job]) -> None:
    """A cluster that was kept decides as one built anew each time, also when runs end early and late."""
    kept = replay(POLICIES[name], jobs, FLEET)
    renewed = replay(POLICIES[name], jobs, FLEET, renewed=True)
    assert renewed.partial == 0
    assert kept.placed == renewed.placed


Schedule = dict[UnitKey, tuple[float, tuple[tuple[int, int], ...]]]
"""When a unit begins, and how many of its ranks on which nodes."""


@dataclass
class LookedAtTwice(Replay):
    """A queue over time in which each cycle that looks at few is made again as one that looks at all, from the same state."""

    resting: bool = False
    """Whether looking at all once more after the last cycle would have changed nothing."""
    compared: int = 0

    def _decide(self, cluster: Cluster, now_s: float) -> Decisions:
        before = cluster.memory.profile.reservations if cluster.memory and cluster.memory.profile else ()
        few = decide(cluster, self.policy, now_s, explain=False)
        found = _schedule(few, cluster, now_s)
        if few.partial:
            whole = _schedule(self._looking_at_all(cluster, now_s), cluster, now_s)
            kept = {item.key: tuple(sorted(item.choice.rows)) for item in before}
            assert all(whole[key][0] <= found[key][0] for key in kept)
            elsewhere = any(found[item.key][1] != kept.get(item.key, found[item.key][1]) for item in few.placed)
            # Scores judge nodes as they are now: looking at all may find others better for the same time.
            judged = self.policy.scores and any(
                whole[key][0] == start_s and whole[key][1] != rows for key, (start_s, rows) in found.items()
            )
            if self.resting and not elsewhere and not judged:
                assert whole == found
                self.compared += 1
        after = cluster.copy()
        after.apply(few, now_s)
        again = _schedule(self._looking_at_all(after, now_s), after, now_s)
        begun = {item.key for item in few.placed}
        self.resting = again == {key: value for key, value in found.items() if key not in begun}
        return few

    def _looking_at_all(self, cluster: Cluster, now_s: float) -> Decisions:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_Cycle, "_due", lambda self, profile: None)
            found = decide(cluster, self.policy, now_s, explain=False)
        assert not found.partial
        return found


def _schedule(decisions: Decisions, cluster: Cluster, now_s: float) -> Schedule:
    out = {item.key: (item.start_s, item.choice.rows) for item in decisions.reservations}
    for item in decisions.placed:
        counts: dict[int, int] = {}
        for row, _ in cluster.rows_of(item.ranks):
            counts[row] = counts.get(row, 0) + 1
        out[item.key] = now_s, tuple(sorted(counts.items()))
    return {key: (start_s, tuple(sorted(rows))) for key, (start_s, rows) in out.items()}


def _fours(submit_s: float, run_s: float, said_s: float = 0.0) -> Job:
    return Job(submit_s, Demand(1, accelerators=4), run_s, said_s or run_s)


# 3 nodes of 4 accelerators. At 7 the gang ends 3 s early; the fourth still waits for 10, as all nodes are held or promised. Then
# the fifth, promised the third node at 10, moves up to the first node, and leaves room on the third from 7 on.
ONE_PASS = [
    Job(0.0, Demand(1, accelerators=1), 10.0, 10.0),
    _fours(0.0, 11.0),
    Job(0.0, Demand(3, accelerators=2, cross_domain=True), 7.0, 10.0),
    _fours(0.0, 1.0, 4.0),
    Job(0.0, Demand(1, accelerators=2), 1.0, 1.0),
]


def test_compression_goes_through_the_queue_once() -> None:
    """As published: who could use what one behind it gave up keeps its promise, until something ends early again."""
    found = replay(CONSERVATIVE, ONE_PASS, FLEET).starts
    assert [found[f"job-{number:03d}"] for number in range(5)] == [0, 0, 0, 10, 7]


@pytest.mark.parametrize("scores", [(), (("pack", 1.0), ("spread", 0.001))])
@settings(max_examples=15, deadline=None)
@given(jobs=queues(early=20))
@example(jobs=ONE_PASS)
def test_looking_only_at_what_changed_is_as_good_as_looking_at_all(
    scores: tuple[tuple[str, float], ...], jobs: list[Job]
) -> None:
    """Conservative: a cycle that looks at few decides as one that looks at all, while compression is at rest and units begin
    on the nodes kept for them. Else looking at all would be one more pass of compression: nobody's promise is later for it."""
    LookedAtTwice(table_of(FLEET), replace(CONSERVATIVE, scores=scores), jobs).run()


def test_cycles_that_look_at_few_are_compared() -> None:
    jobs = [a_job(float(number), 1 + number % 3, 40.0 + number) for number in range(40)]
    found = LookedAtTwice(table_of(a_fleet({"a": 4}, cpus=1.0, devices=0)), CONSERVATIVE, jobs).run()
    assert found.partial >= found.compared > 30


def test_what_is_remembered_is_used() -> None:
    jobs = [a_job(float(number), 1 + number % 3, 40.0 + number) for number in range(40)]
    fleet = a_fleet({"a": 4}, cpus=1.0, devices=0)
    for policy in (PLAIN, EASY, CONSERVATIVE):
        assert replay(policy, jobs, fleet).partial > 10
