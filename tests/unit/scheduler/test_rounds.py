"""Planners on the book of the live service: rounds, moves and other sizes, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.scheduler.core.declared_rates import DeclaredRates, profile_of
from services.scheduler.core.effects import Finished, Placed, Queued, Start, Stop
from services.scheduler.core.errors import MalformedJobError
from services.scheduler.core.fleet import Domain, Fleet, with_domain
from services.scheduler.core.policy import Policy, RestartRules
from services.scheduler.core.state import FailureKind, JobSpec, JobState, RunState, UnitKey, UnitState
from services.scheduler.plans import catalogue
from services.scheduler.plans.catalogue import register_all
from tests.unit.scheduler.world import World, a_fleet, a_node, gang, task

register_all()
PLANNERS = [plugin.name for plugin in catalogue.PLANNERS]


def planned(planner: str, interval_s: float, least_run_s: float = 0.0, **options: object) -> Policy:
    given = ((planner, tuple(options.items())),) if options else ()
    rules = RestartRules(least_run_s=least_run_s)
    return Policy(name=planner, planner=planner, interval_s=interval_s, options=given, restarts=rules)


def two_models() -> Fleet:
    """A fast and a slow node of one accelerator each."""
    nodes = [a_node("a-fast", "a", devices=1, model="H100"), a_node("a-slow", "a", devices=1, model="V100")]
    return with_domain(Fleet(), Domain("a"), nodes, full_of="a")


def elastic(least: int, ranks: int, most: int, **demand: object) -> JobSpec:
    return replace(gang(ranks, accelerators=1, **demand), min_ranks=least, max_ranks=most)


def waiting_reason(world: World, job_id: str) -> str:
    return next(item.explanation.reason for item in world.decisions.waiting if item.key.job_id == job_id)


# -- rounds --------------------------------------------------------------------------------------------------------------


def test_what_comes_between_rounds_waits_for_the_next_but_units_without_accelerators_begin() -> None:
    world = World(a_fleet({"a": 1}), planned("gavel", 60.0))
    world.submit("first", task(accelerators=1))
    world.cycle()
    assert world.run("first").epoch == 1
    world.now_s += 10
    world.submit("second", task(accelerators=1))
    world.submit("third", task())
    world.cycle()
    assert world.run("third").epoch == 1
    assert waiting_reason(world, "second") == "it waits for the next round of the planner gavel, in 50 s"
    assert world.decisions.blocked[0].explanation.stage == "plan"
    world.now_s += 50
    world.cycle()
    assert world.run("second").epoch == 1


def test_a_cycle_at_the_time_of_a_round_is_the_same_round() -> None:
    world = World(a_fleet({"a": 1}), planned("gavel", 60.0))
    world.submit("first", task(accelerators=1))
    world.cycle()
    world.submit("second", task(accelerators=1))
    world.cycle()
    assert world.run("second").epoch == 1


def test_another_policy_plans_at_once() -> None:
    world = World(a_fleet({"a": 1}), planned("gavel", 60.0))
    world.submit("first", task(accelerators=1))
    world.cycle()
    world.now_s += 10
    world.submit("second", task(accelerators=1))
    world.policy = planned("completion", 60.0)
    world.book.cluster.use(world.policy)
    world.cycle()
    assert world.run("second").epoch == 1


def test_whoever_gets_nothing_is_told_when_the_next_round_is() -> None:
    world = World(a_fleet({"a": 1}, devices=1), planned("gavel", 60.0))
    world.submit("first", task(accelerators=1))
    world.submit("second", task(accelerators=1))
    world.cycle()
    assert waiting_reason(world, "second") == "the planner gavel gives it nothing in this round; the next is in 60 s"


# -- moves ---------------------------------------------------------------------------------------------------------------


def test_gavel_takes_turns_on_one_accelerator_and_nothing_is_lost() -> None:
    """Two jobs, one accelerator: the shares are equal, so who had none goes next."""
    world = World(a_fleet({"a": 1}, devices=1), planned("gavel", 60.0))
    world.submit("x", task(accelerators=1))
    world.submit("y", task(accelerators=1))
    world.cycle()
    first, other = ("x", "y") if UnitKey("x", 0) in world.book.runs_of else ("y", "x")
    run = world.run(first)
    world.start(run)
    world.checkpoint(run, 30)
    world.now_s += 60
    world.cycle()
    # The run was told to stop; its nodes are kept for the other until it has.
    assert [item.run.run_id for item in world.of(Stop)] == [run.run_id]
    assert UnitKey(other, 0) in world.book.nominated
    world.fail(run, FailureKind.STOPPED)
    world.now_s += 1
    world.cycle()
    assert world.run(other).epoch == 1
    unit = world.book.units[UnitKey(first, 0)]
    assert (unit.state, unit.failures, unit.recoveries) == (UnitState.QUEUED, 0, 0)
    assert unit.checkpoint is not None
    assert unit.checkpoint.step == 30
    world.now_s += 59
    world.cycle()
    world.fail(world.run(other), FailureKind.STOPPED)
    world.now_s += 1
    world.cycle()
    again = world.run(first)
    starts = [item for item in world.of(Start) if item.run.run_id == again.run_id]
    assert starts[0].checkpoint is not None
    assert (again.epoch, starts[0].checkpoint.step) == (2, 30)


def test_a_run_is_not_moved_before_it_had_its_nodes_for_least_run_s() -> None:
    world = World(a_fleet({"a": 1}, devices=1), planned("gavel", 60.0, least_run_s=100.0))
    world.submit("x", task(accelerators=1))
    world.submit("y", task(accelerators=1))
    world.cycle()
    world.now_s += 60
    world.cycle()
    assert world.of(Stop) == []
    world.now_s += 60
    world.cycle()
    assert len(world.of(Stop)) == 1


def test_completion_moves_a_job_to_the_faster_type_that_came_free() -> None:
    world = World(two_models(), planned("completion", 60.0))
    profile = profile_of([("H100", 1, 4.0), ("V100", 1, 1.0)])
    for name in ("first", "second"):
        world.submit(name, replace(task(accelerators=1, profile=profile), steps=4000))
        world.now_s += 1
    world.cycle()
    fast = next(name for name in ("first", "second") if world.run(name).ranks[0].node_id == "a-fast")
    slow = "second" if fast == "first" else "first"
    world.checkpoint(world.run(slow), 50)
    world.finish(world.run(fast))
    world.now_s += 60
    world.cycle()
    # 3950 steps: 3950 s where it is, 988 s and a restart of 30 s on the other.
    moved = world.book.units[UnitKey(slow, 0)]
    assert moved.nomination is not None
    assert moved.nomination.ranks[0].node_id == "a-fast"
    world.fail(world.run(slow), FailureKind.STOPPED)
    world.cycle()
    assert (world.run(slow).epoch, world.run(slow).ranks[0].node_id) == (2, "a-fast")


def test_a_run_that_finished_before_the_order_to_stop_came_is_not_made_again() -> None:
    world = World(a_fleet({"a": 1}, devices=1), planned("gavel", 60.0))
    world.submit("x", task(accelerators=1))
    world.submit("y", task(accelerators=1))
    world.cycle()
    first, other = ("x", "y") if UnitKey("x", 0) in world.book.runs_of else ("y", "x")
    run = world.run(first)
    world.now_s += 60
    world.cycle()
    assert world.book.runs[run.run_id].state is RunState.STOPPING
    world.finish(run)
    assert [(item.job.job_id, item.outcome) for item in world.of(Finished)] == [(first, JobState.SUCCEEDED)]
    world.cycle()
    assert world.run(other).epoch == 1


def test_a_cancelled_job_whose_preempted_run_finished_stays_cancelled() -> None:
    world = World(a_fleet({"a": 1}, devices=1), planned("gavel", 60.0))
    world.submit("x", task(accelerators=1))
    world.submit("y", task(accelerators=1))
    world.cycle()
    first = "x" if UnitKey("x", 0) in world.book.runs_of else "y"
    run = world.run(first)
    world.now_s += 60
    world.cycle()
    world.cancel(first)
    world.finish(run)
    assert [item.outcome for item in world.of(Finished)] == [JobState.CANCELLED]


# -- sizes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("planner", ["elastic-exact", "sia"])
def test_an_elastic_job_grows_when_others_have_ended_and_shrinks_when_others_come(planner: str) -> None:
    """Four accelerators: two elastic jobs share them; alone, one gets all."""
    world = World(a_fleet({"a": 1}, devices=4), planned(planner, 60.0, growth=0))
    world.submit("x", elastic(1, 2, 4))
    world.submit("y", elastic(1, 2, 4))
    world.cycle()
    assert [len(world.run(name).ranks) for name in ("x", "y")] == [2, 2]
    run = world.run("x")
    world.checkpoint(run, 7)
    world.finish(world.run("y"))
    world.now_s += 600
    world.cycle()
    world.fail(run, FailureKind.STOPPED)
    world.cycle()
    grown = world.run("x")
    assert (grown.epoch, len(grown.ranks)) == (2, 4)
    started = next(item for item in world.of(Start) if item.run.run_id == grown.run_id)
    assert started.checkpoint is not None
    assert (len(started.run.ranks), started.checkpoint.step) == (4, 7)
    world.submit("z", elastic(1, 2, 4))
    world.now_s += 600
    world.cycle()
    unit = world.book.units[UnitKey("x", 0)]
    assert unit.nomination is not None
    assert len(unit.nomination.ranks) == 2
    assert (unit.failures, unit.recoveries) == (0, 0)
    assert unit.queued_at_s == world.book.jobs["x"].submitted_at_s


def test_sia_doubles_round_by_round() -> None:
    world = World(a_fleet({"a": 1}, devices=4), planned("sia", 60.0))
    world.submit("x", elastic(1, 4, 4))
    sizes = []
    for _ in range(3):
        world.cycle()
        if UnitKey("x", 0) in world.book.nominated:
            world.fail(world.run("x"), FailureKind.STOPPED)
            world.cycle()
        sizes.append(len(world.run("x").ranks))
        world.now_s += 600
    assert sizes == [1, 2, 4]


def test_a_rigid_job_of_three_is_offered_three() -> None:
    """The paper's sizes are powers of two within a node; what a job asks for is offered beside them."""
    world = World(a_fleet({"a": 1}, devices=4), planned("sia", 60.0))
    world.submit("x", gang(3, accelerators=1))
    world.cycle()
    assert len(world.run("x").ranks) == 3


def test_types_are_named_in_words_and_what_is_unknown_is_said() -> None:
    for planner in ("gavel", "elastic-exact", "completion", "rolling-milp", "deadlines", "sia"):
        world = World(a_fleet({"a": 1}, model="NVIDIA A100-SXM4-80GB"), planned(planner, 60.0))
        world.submit("x", task(accelerators=1, accelerator_types=("a100",)))
        world.cycle()
        assert world.run("x").epoch == 1, planner
        reason = world.decisions.placed[0].reason
        assert "its rates are not known, all accelerators count alike" in reason, planner


def test_a_gang_that_no_domain_can_hold_takes_nothing_from_others() -> None:
    """Two domains of four: eight ranks fit in none of them, though there are eight accelerators."""
    world = World(a_fleet({"a": 1, "b": 1}, devices=4), planned("gavel", 60.0))
    world.submit("large", gang(8, accelerators=1))
    world.submit("small", gang(4, accelerators=1))
    world.cycle()
    assert len(world.run("small").ranks) == 4
    assert "could hold 4 when empty" in waiting_reason(world, "large")


def test_elastic_sizes_are_checked() -> None:
    world = World(a_fleet({"a": 1}))
    world.submit("x", replace(gang(2), min_ranks=3, max_ranks=4))
    assert [effect.reason for effect in world.of(Finished)] == [
        "1 <= min_ranks <= ranks <= max_ranks is wanted, not 3, 2, 4"
    ]
    assert not [effect for effect in world.effects if isinstance(effect, Queued | Placed)]


# -- declared rates --------------------------------------------------------------------------------------------------


def test_rates_between_beyond_and_of_models_that_are_not_named() -> None:
    profile = profile_of([("a100", 1, 10.0), ("a100", 3, 18.0), ("H20", 2, 6.0)])
    rate = DeclaredRates().rate
    assert [rate(profile, ranks, "NVIDIA A100-SXM4") for ranks in (1, 2, 3, 8)] == [10.0, 14.0, 18.0, 18.0]
    assert rate(profile, 1, "H20") == 3.0
    assert rate(profile, 2, "Ascend 910B") == 6.0
    assert rate(profile_of([("H20", 1, 0.0)]), 1, "H20") == 0.0
    with pytest.raises(MalformedJobError, match="no declaration"):
        rate("some words", 1, "H20")


@pytest.mark.parametrize("bad", [("", 1, 1.0), ("a", 0, 1.0), ("a", 1, float("nan")), ("a", 1, -1.0)])
def test_rates_that_make_no_sense(bad: tuple[str, int, float]) -> None:
    with pytest.raises(MalformedJobError, match="rates: an accelerator type"):
        profile_of([bad])


@given(st.dictionaries(st.tuples(st.sampled_from(["a", "b c"]), st.integers(1, 9)), st.floats(0, 1e9), max_size=6))
def test_declared_points_are_met_whatever_their_order(points: dict[tuple[str, int], float]) -> None:
    rates = [(model, ranks, rate) for (model, ranks), rate in points.items()]
    profile = profile_of(rates)
    assert profile == profile_of(reversed(rates))
    for model, ranks, rate in rates:
        assert DeclaredRates().rate(profile, ranks, f"vendor {model}") == pytest.approx(rate)


# -- whatever comes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("planner", sorted(PLANNERS))
@given(
    nodes=st.lists(st.tuples(st.sampled_from(["V100", "H100"]), st.integers(0, 3)), max_size=3),
    jobs=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 2), st.booleans(), st.booleans(), st.sampled_from([1000, 500])),
        max_size=5,
    ),
    acts=st.lists(st.sampled_from(["round", "end", "stop", "lose"]), max_size=8),
)
@example(
    nodes=[("V100", 2)], jobs=[(1, 1, False, False, 1000)] * 3 + [(1, 1, True, False, 1000)], acts=["round", "round"]
)
@settings(max_examples=25, deadline=None)
def test_no_state_of_the_book_stops_a_planner_or_gives_a_device_away_twice(
    planner: str,
    nodes: list[tuple[str, int]],
    jobs: list[tuple[int, int, bool, bool, int]],
    acts: list[str],
) -> None:
    fleet = with_domain(
        Fleet(),
        Domain("a"),
        [a_node(f"a-{place}", "a", devices=devices, model=model) for place, (model, devices) in enumerate(nodes)],
        full_of="a",
    )
    world = World(fleet, planned(planner, 60.0))
    world.cycle()
    for place, (ranks, accelerators, grows, known, milli) in enumerate(jobs):
        profile = profile_of([("H100", 1, 3.0), ("V100", 1, 1.0)]) if known else ""
        share = milli if accelerators == 1 else 1000
        spec = gang(ranks, accelerators=accelerators, device_milli=share, profile=profile)
        world.submit(f"job-{place}", replace(spec, min_ranks=1, max_ranks=ranks + 2) if grows else spec)
    for act in ["round", *acts]:
        world.now_s += 60
        if act == "round":
            world.cycle()
        open_runs = sorted(world.book.runs.values(), key=lambda run: run.run_id)
        if open_runs and act == "end":
            world.finish(open_runs[0])
        for run in open_runs:
            if act == "stop" and run.state is RunState.STOPPING:
                world.fail(run, FailureKind.STOPPED)
        if open_runs and act == "lose":
            world.fail(open_runs[-1], FailureKind.NODE_LOST)
            world.advance(11.0)
        assert all(milli <= 1000 for held in world.book.ledger.nodes.values() for milli in held.devices.values())
        assert all(len(names) == 1 for names in world.book.runs_of.values())
