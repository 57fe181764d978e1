"""The cluster that the book keeps up equals one that is built anew, whatever happened; preemption and kept nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from services.scheduler.core import binding
from services.scheduler.core import fleet as facts
from services.scheduler.core.book import Book
from services.scheduler.core.decide import decide
from services.scheduler.core.deciding.decisions import Decisions
from services.scheduler.core.effects import Finished, Preempted, Queued, Stop
from services.scheduler.core.errors import MalformedJobError
from services.scheduler.core.fleet import Domain, Mark, MarkKind, NodeState
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import (
    Demand,
    FailureKind,
    JobKind,
    JobSpec,
    JobState,
    Run,
    RunState,
    UnitKey,
    UnitState,
)
from services.scheduler.core.table import table_of
from services.scheduler.core.view import View
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.what_if import answer
from tests.unit.scheduler.test_history import NODES, History, workflows
from tests.unit.scheduler.world import World, a_fleet, a_node, gang, task

PREEMPTIVE = replace(Policy(), name="preemptive", preemptions=("priority",))
POLICIES = (
    Policy(),
    PREEMPTIVE,
    replace(Policy(), name="easy", order=("age",), discipline="easy", estimate="limit"),
    replace(Policy(), name="strict", order=("priority", "age"), discipline="strict"),
)

# Cpus whose sums are exact, so that equal means equal.
specs = st.builds(
    JobSpec,
    kind=st.sampled_from(list(JobKind)),
    demand=st.builds(
        Demand,
        ranks=st.just(1),
        cpus=st.sampled_from([0.125, 1.0, 3.0, 8.0, 9.0]),
        accelerators=st.integers(0, 4),
        domains=st.sampled_from([frozenset(), frozenset({"east"})]),
        cross_domain=st.booleans(),
    ),
    ranks=st.integers(1, 6),
    array_size=st.integers(1, 4),
    replicas=st.integers(1, 2),
    service_port=st.sampled_from([0, 8080]),
    tasks=workflows,
    max_restarts=st.integers(0, 2),
    priority=st.integers(0, 2),
    max_run_time_s=st.sampled_from([0.0, 10.0, 600.0]),
)


def rebuilt(book: Book, policy: Policy) -> Book:
    fresh = Book.restored(
        book.fleet, book.jobs.values(), book.units.values(), book.runs.values(), policy, book.run_times
    )
    fresh.advance(book.now_s)
    return fresh


def unpredicted(unit: PendingUnit) -> PendingUnit:
    return replace(unit, expected_s=0.0, low_s=0.0, high_s=0.0, service_index=0.0)


def assert_same_cluster(book: Book, policy: Policy) -> None:
    kept, fresh = book.cluster, rebuilt(book, policy).cluster
    for name in (
        "up",
        "free_cpus",
        "free_memory_bytes",
        "free_devices",
        "free_device_totals",
        "free_resources",
        "device_milli",
        "domain_free_cpus",
        "domain_free_devices",
    ):
        np.testing.assert_array_equal(getattr(kept.view, name), getattr(fresh.view, name), err_msg=name)
    for name in ("down", "degraded", "asleep", "domain_cpus", "domain_devices", "expected_demand", "nodes"):
        np.testing.assert_array_equal(getattr(kept.table, name), getattr(fresh.table, name), err_msg=name)
    assert kept.view.labels == fresh.view.labels
    # Predictions are those of the time when a unit began to wait.
    assert {unit.key: unpredicted(unit) for unit in kept.pending} == {
        unit.key: unpredicted(unit) for unit in fresh.pending
    }
    assert {unit.key for unit in kept.pending} == {unit.key for unit in book.eligible(book.now_s)}
    assert kept.running.keys() == fresh.running.keys()
    for key, running in kept.running.items():
        other = fresh.running[key]
        assert (running.ranks, sorted(running.rows)) == (other.ranks, sorted(other.rows))
        assert (running.unit.demand, running.unit.preemptible) == (other.unit.demand, other.unit.preemptible)
        if key not in book.nominated:
            assert (running.since_s, running.kept_s, running.limit_end_s) == (
                other.since_s,
                other.kept_s,
                other.limit_end_s,
            )
    held = {name: usage for name, usage in kept.tenants.items() if usage.cpus or usage.accelerators}
    assert held == {name: usage for name, usage in fresh.tenants.items() if usage.cpus or usage.accelerators}
    ports = {8080, *(run.master_port for run in book.runs.values()), *(run.service_port for run in book.runs.values())}
    for row in range(len(kept.table.nodes)):
        assert [kept.view.port_free(row, port) for port in ports] == [fresh.view.port_free(row, port) for port in ports]
    if not book.nominated:
        # By another way: from what the ledger says is held.
        view = View(table_of(book.fleet), book.ledger)
        for name in ("free_cpus", "free_memory_bytes", "free_devices", "free_device_totals"):
            np.testing.assert_array_equal(getattr(kept.view, name), getattr(view, name), err_msg=name)
        in_ledger = {name: usage for name, usage in book.ledger.tenants.items() if usage.cpus or usage.accelerators}
        assert held == in_ledger


def outcome(decisions: Decisions) -> tuple[object, ...]:
    return (
        [(item.key, item.ranks) for item in decisions.placed],
        [(item.key, item.beneficiary) for item in decisions.preempted],
    )


class KeptCluster(History):
    """The acts of `History`, with policies that preempt and reserve; nodes change, cycles look only at what is new."""

    @initialize(policy=st.sampled_from(POLICIES))
    def begin_with(self, policy: Policy) -> None:
        self.world = World(a_fleet({"east": 2, "west": 2, "north": 1}), policy)
        self.submitted = []
        self.runs = []
        self.specs = {}

    def begin(self) -> None:
        """In place of the default policy: `begin_with`."""

    @rule(spec=specs, tenant=st.sampled_from(["red", "blue"]))
    def submit(self, spec: JobSpec, tenant: str) -> None:
        job_id = f"job-{len(self.submitted)}"
        self.submitted.append(job_id)
        self.specs[job_id] = spec
        self.world.submit(job_id, spec, tenant)

    @rule()
    def cycle(self) -> None:
        self._cycle(whole=True)

    @rule()
    def cycle_of_what_is_new(self) -> None:
        self._cycle(whole=False)

    def _cycle(self, *, whole: bool) -> None:
        world = self.world
        fresh = rebuilt(world.book, world.policy)
        fresh.advance(world.now_s)
        expected = outcome(decide(fresh.cluster, world.policy, world.now_s))
        before = {key: unit.epoch for key, unit in world.book.units.items()}
        world.cycle(whole=whole)
        assert outcome(world.decisions) == expected
        for run in world.last.begun:
            assert run.epoch == before[run.key] + 1
            self.runs.append(run)
            self._check_placement(run)
        for key, kept in world.last.nominated:
            assert kept.waits_for
            assert all(world.book.runs[name].state is RunState.STOPPING for name in kept.waits_for)
            assert key in world.book.nominated

    @rule(node_id=st.sampled_from(NODES), state=st.sampled_from(list(NodeState)))
    def node_state(self, node_id: str, state: NodeState) -> None:
        draft = self.world.book.draft()
        draft.fleet = facts.with_node_state(draft.fleet, node_id, state, "")
        self.world.merge(draft)

    @rule(node_id=st.sampled_from(NODES), devices=st.sampled_from([0, 2, 4]))
    def node_changes(self, node_id: str, devices: int) -> None:
        """A node leaves, or comes with other devices."""
        draft = self.world.book.draft()
        name = node_id.partition("-")[0]
        if devices:
            draft.fleet = facts.with_domain(draft.fleet, None, [a_node(node_id, name, devices=devices)])
        else:
            draft.fleet = facts.with_domain(draft.fleet, None, [], removed=[node_id])
        self.world.merge(draft)

    @rule(domain_id=st.sampled_from(["east", "west"]), wanted=st.sampled_from([0.0, 3.0]))
    def forecast(self, domain_id: str, wanted: float) -> None:
        draft = self.world.book.draft()
        draft.fleet = facts.with_expected_demand(draft.fleet, domain_id, wanted)
        self.world.merge(draft)

    @rule(spec=specs)
    def ask_what_if(self, spec: JobSpec) -> None:
        with contextlib.suppress(MalformedJobError):
            answer(self.world.book.cluster, self.world.policy, spec, "red", self.world.now_s)

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @invariant()
    def the_kept_cluster_is_right(self) -> None:
        if hasattr(self, "world"):
            assert_same_cluster(self.world.book, self.world.policy)

    @invariant()
    def what_is_kept_is_not_given_away(self) -> None:
        """Nodes of a nominated unit are held by nobody but runs that are ending (and were there before)."""
        if not hasattr(self, "world"):
            return
        book = self.world.book
        for key in book.nominated:
            kept = book.units[key].nomination
            assert kept is not None
            mine = {(rank.node_id, device) for rank in kept.ranks for device in rank.devices}
            for run in book.runs.values():
                theirs = {(rank.node_id, device) for rank in run.open_ranks for device in rank.devices}
                assert not mine & theirs or (run.state is RunState.STOPPING and run.run_id in kept.waits_for)

    def teardown(self) -> None:
        """Nothing is left over when everything has ended."""
        if not hasattr(self, "world"):
            return
        world = self.world
        for job_id in list(world.book.jobs):
            world.cancel(job_id)
        world.advance(100.0)
        world.book.advance(world.now_s)
        assert not world.book.jobs
        cluster = world.book.cluster
        assert not cluster.running
        assert not len(cluster.pending)
        np.testing.assert_array_equal(cluster.view.free_cpus, cluster.table.cpus)
        np.testing.assert_array_equal(cluster.view.free_devices, cluster.table.devices)


TestKeptCluster = KeptCluster.TestCase
TestKeptCluster.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


# -- preemption --------------------------------------------------------------------------------------------------------


@pytest.fixture
def world() -> World:
    return World(a_fleet({"east": 2}), PREEMPTIVE)


def low_and_high(world: World) -> None:
    """A gang of low priority on both nodes, at 40 s with a checkpoint of 30 s; then one that needs both nodes."""
    world.submit("low", gang(2, accelerators=4))
    world.cycle()
    world.start(world.run("low"))
    world.advance(30.0)
    world.checkpoint(world.run("low"), 3)
    world.advance(10.0)
    world.submit("high", replace(gang(2, accelerators=4), priority=5))
    world.cycle()


def unit(world: World, job_id: str):  # type: ignore[no-untyped-def]
    return world.book.units[UnitKey(job_id, 0)]


def stopped(world: World, job_id: str) -> None:
    world.fail(world.run(job_id), FailureKind.STOPPED)


def test_a_gang_is_taken_off_as_a_whole_and_resumes_from_its_newest_checkpoint(world: World) -> None:
    low_and_high(world)
    run = world.run("low")
    assert (run.state, run.preempted_for) == (RunState.STOPPING, "high.0")
    assert [effect.run.run_id for effect in world.effects if isinstance(effect, Stop)] == ["low.0.1"]
    taken_off = [effect for effect in world.effects if isinstance(effect, Preempted)]
    assert [(effect.run.run_id, effect.beneficiary) for effect in taken_off] == [("low.0.1", UnitKey("high", 0))]
    assert "high.0" in taken_off[0].reason
    assert [effect.job.job_id for effect in world.effects if isinstance(effect, Queued)][-1] == "low"
    # It keeps its nodes until it has ended: the other one does not start on them.
    assert unit(world, "high").nomination is not None
    assert not world.book.runs_of.get(UnitKey("high", 0))
    world.checkpoint(run, 4)
    assert unit(world, "low").checkpoint.step == 4, "the program wrote its state when it was told to stop"
    assert unit(world, "low").kept_s == 40.0

    stopped(world, "low")
    world.cycle()
    assert world.run("high").epoch == 1
    assert unit(world, "high").nomination is None
    waiting = unit(world, "low")
    assert (waiting.state, waiting.queued_at_s, waiting.failures, waiting.recoveries) == (
        UnitState.QUEUED,
        1000.0,
        0,
        0,
    )
    assert world.decisions.waiting[0].key == UnitKey("low", 0)

    world.finish(world.run("high"))
    world.cycle()
    again = world.run("low")
    assert (again.epoch, unit(world, "low").attained_s, unit(world, "low").kept_s) == (2, 40.0, 0.0)
    world.finish(again)
    assert not world.book.jobs


def test_nobody_else_takes_what_is_kept(world: World) -> None:
    low_and_high(world)
    for number in range(3):
        world.submit(f"small-{number}", replace(task(accelerators=1), priority=4))
    world.cycle(whole=False)
    world.cycle()
    stopped(world, "low")
    world.cycle()
    assert world.run("high").state is RunState.ACTIVE
    assert all(world.book.units[UnitKey(f"small-{number}", 0)].state is UnitState.QUEUED for number in range(3))


def test_part_of_the_nodes_may_be_free_already() -> None:
    world = World(a_fleet({"east": 2}), PREEMPTIVE)
    world.submit("low", task(accelerators=4))
    world.cycle()
    world.submit("high", replace(gang(2, accelerators=4), priority=5))
    world.cycle()
    world.submit("small", task(accelerators=1))
    world.cycle()
    assert unit(world, "small").state is UnitState.QUEUED, "the free node is kept for the gang too"
    stopped(world, "low")
    world.cycle()
    assert world.run("high").state is RunState.ACTIVE


def test_the_time_to_confirm_bounds_the_waiting(world: World) -> None:
    low_and_high(world)
    world.advance(world.rules.stop_timeout_s - 0.1)
    world.cycle()
    assert unit(world, "high").nomination is not None
    world.advance(0.1)
    world.cycle()
    assert world.run("high").epoch == 1
    assert not world.book.runs_of.get(UnitKey("low", 0))


@pytest.mark.parametrize("happens", ["failed", "removed", "fewer devices"])
def test_kept_nodes_that_go_away_are_given_up(world: World, happens: str) -> None:
    low_and_high(world)
    draft = world.book.draft()
    if happens == "failed":
        draft.fleet = facts.with_mark(draft.fleet, Mark(MarkKind.NODE_FAILED, "east-1"))
    elif happens == "removed":
        draft.fleet = facts.with_domain(draft.fleet, None, [], removed=["east-1"])
    else:
        draft.fleet = facts.with_domain(draft.fleet, None, [a_node("east-1", "east", devices=2)])
    world.merge(draft)
    world.cycle()
    assert unit(world, "high").nomination is None
    stopped(world, "low")
    world.cycle()
    assert unit(world, "high").state is UnitState.QUEUED
    nodes = [a_node(f"east-{number}", "east") for number in range(2)]
    draft = world.book.draft()
    draft.fleet = facts.without_marks(facts.with_domain(draft.fleet, Domain("east"), nodes), list(draft.fleet.marks))
    world.merge(draft)
    world.cycle()
    assert world.run("high").epoch == 1


def test_a_cancelled_beneficiary_gives_up_what_was_kept(world: World) -> None:
    low_and_high(world)
    world.cancel("high")
    stopped(world, "low")
    world.cycle()
    assert world.run("low").epoch == 2
    assert not world.book.nominated


def test_preemption_counts_neither_as_failure_nor_as_recovery() -> None:
    policy = replace(PREEMPTIVE, restarts=replace(PREEMPTIVE.restarts, max_recoveries=1))
    world = World(a_fleet({"east": 1}), policy)
    world.submit("low", task(accelerators=4))
    for number in range(4):
        world.cycle()
        assert world.run("low").epoch == number + 1
        world.submit(f"high-{number}", replace(task(accelerators=4), priority=5))
        world.cycle()
        stopped(world, "low")
        world.cycle()
        world.finish(world.run(f"high-{number}"))
    world.cycle()
    world.finish(world.run("low"))
    assert not world.book.jobs
    ends = {effect.job.job_id: effect.outcome for effect in world.effects if isinstance(effect, Finished)}
    assert ends["low"] is JobState.SUCCEEDED


def test_the_victim_of_a_preemption_that_fails_meanwhile_still_waits(world: World) -> None:
    """Late news about a run that is stopping only give capacity back."""
    low_and_high(world)
    world.fail(world.run("low"), FailureKind.PROGRAM)
    assert (unit(world, "low").state, unit(world, "low").failures) == (UnitState.QUEUED, 0)
    world.cycle()
    assert world.run("high").epoch == 1


def test_a_restart_keeps_waiting_nominated_and_stopping_units(world: World) -> None:
    low_and_high(world)
    world.submit("later", gang(2, accelerators=4))
    world.restart()
    assert_same_cluster(world.book, world.policy)
    world.advance(world.rules.stop_timeout_s)
    world.cycle()
    assert world.run("high").epoch == 1
    assert {item.key.job_id for item in world.decisions.waiting} == {"low", "later"}


# -- run times ---------------------------------------------------------------------------------------------------------


def test_limits_and_finished_units_give_ends_for_reservations() -> None:
    """EASY: the large job is promised the end of the running one (600 s by its limit); a job of 500 s may go before it."""
    policy = replace(Policy(), name="easy", order=("age",), discipline="easy", estimate="limit")
    world = World(a_fleet({"east": 2}), policy)
    world.submit("running", replace(task(accelerators=4), max_run_time_s=600.0))
    world.cycle()
    world.advance(10.0)
    world.submit("large", replace(gang(2, accelerators=4), max_run_time_s=100.0))
    world.advance(1.0)
    world.submit("long", replace(task(accelerators=4), max_run_time_s=700.0))
    world.advance(1.0)
    world.submit("short", replace(task(accelerators=4), max_run_time_s=500.0))
    world.cycle()
    assert [(item.key.job_id, item.start_s) for item in world.decisions.reservations] == [("large", 1600.0)]
    assert [item.key.job_id for item in world.decisions.placed] == ["short"]


def test_run_times_are_learned_from_units_that_succeed() -> None:
    world = World(a_fleet({"east": 1}))
    for number in range(20):
        world.submit(f"job-{number}", replace(task(), name="nightly"))
        world.cycle()
        world.start(world.run(f"job-{number}"))
        world.advance(120.0)
        world.finish(world.run(f"job-{number}"))
    assert world.book.run_times.observed == 20
    world.submit("next", replace(task(), name="nightly"))
    waiting = world.book.cluster.pending.get(UnitKey("next", 0))
    assert waiting is not None
    assert waiting.expected_s == pytest.approx(120.0, rel=0.01)
    world.cycle()
    running = world.book.cluster.running[UnitKey("next", 0)]
    assert running.expected_end_s == pytest.approx(world.now_s + 120.0, rel=0.01)
    # It runs on: the end is put off, by at least a minute.
    world.advance(150.0)
    world.cycle()
    assert world.book.cluster.running[UnitKey("next", 0)].expected_end_s >= world.now_s + 60.0
    restored = type(world.book.run_times).restored(world.book.run_times.state())
    job = world.book.jobs["next"]
    assert restored.estimate(job, job.units[0], 0.0) == world.book.run_times.estimate(job, job.units[0], 0.0)


def test_failed_and_cancelled_units_teach_nothing() -> None:
    world = World(a_fleet({"east": 1}))
    ends: list[Callable[[Run], None]] = [
        lambda run: world.fail(run, FailureKind.TIME_LIMIT),
        lambda _: world.cancel("job-1"),
    ]
    for number, end in enumerate(ends):
        world.submit(f"job-{number}", task())
        world.cycle()
        world.advance(50.0)
        end(world.run(f"job-{number}"))
    world.submit("service", JobSpec(JobKind.SERVICE, Demand(1, cpus=1.0), replicas=1))
    world.cycle()
    world.finish(world.run("service"))
    assert world.book.run_times.observed == 0


# -- what if -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_what_if_leaves_the_kept_cluster_as_it_was(policy: Policy) -> None:
    """Asking changes nothing that a cycle reads: two worlds, one of them asked all the time, decide alike to the last bit."""
    worlds = [World(a_fleet({"east": 2, "west": 2}), policy) for _ in range(2)]
    asks: list[Callable[[], object]] = []
    for number in range(12):
        for world in worlds:
            spec = gang(1 + number % 3, accelerators=1 + number % 4, cpus=0.1 * (number % 7 + 1))
            world.submit(f"job-{number}", replace(spec, priority=number % 2, max_run_time_s=60.0))
            if world is worlds[0]:
                asks = [
                    lambda: answer(worlds[0].book.cluster, policy, gang(2, accelerators=2), "lab", worlds[0].now_s),
                    lambda: answer(worlds[0].book.cluster, policy, task(cpus=0.3), "other", worlds[0].now_s),
                ]
                for ask in asks:
                    ask()
            world.cycle(whole=False)
            world.advance(5.0)
            if number % 3 == 2:
                oldest = min(world.book.runs.values(), key=lambda run: run.assigned_at_s)
                world.finish(oldest)
        assert outcome(worlds[0].decisions) == outcome(worlds[1].decisions)
        first, second = (world.book.cluster for world in worlds)
        np.testing.assert_array_equal(first.view.free_cpus, second.view.free_cpus)
        assert first.view.taken == second.view.taken
        assert first.stamp == second.stamp
        flags = [[lane.fresh for lane in cluster.pending.lanes.values()] for cluster in (first, second)]
        assert flags[0] == flags[1]


def test_lifecycle_of_a_preempted_unit_needs_a_run(world: World) -> None:
    world.submit("job", task())
    draft = world.book.draft()
    assert binding.preempt(draft, UnitKey("job", 0), "why", world.now_s, world.rules) is None
    assert not draft.changed


def test_a_unit_that_falls_behind_is_taken_off_though_nothing_happened() -> None:
    """Tiresias with a threshold of 16 accelerator-seconds: 4 s on 4 accelerators."""
    options = (("least_attained", (("threshold_s", 16.0),)),)
    policy = replace(Policy(), name="las", order=("least_attained", "age"), preemptions=("order",), options=options)
    world = World(a_fleet({"east": 1}), policy)
    world.submit("long", task(accelerators=4))
    world.cycle()
    world.advance(1.0)
    world.submit("new", task(accelerators=4))
    world.cycle(whole=False)
    assert world.book.next_fall_s() == 1004.0
    world.advance(2.9)
    assert not world.cycle(whole=False).preempted
    world.advance(0.1)
    assert [item.key.job_id for item in world.cycle(whole=False).preempted] == ["long"]
