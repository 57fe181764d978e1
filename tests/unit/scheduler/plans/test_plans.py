"""The planners as plugins, on cases that are worked out by hand in the comments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from services.scheduler.core.decide import decide
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.planners.elastic_exact import exact_choice, is_small
from services.scheduler.planners.mixed_integer import Limits
from services.scheduler.planners.sia import configurations, greatest_value, sia_allocation
from services.scheduler.plans import catalogue, elastic
from services.scheduler.plans.deadlines import DeadlinePlanner
from services.scheduler.plans.elastic import ExactPlanner, SiaPlanner
from services.scheduler.plans.gavel import GavelPlanner
from services.scheduler.plans.service import service_of
from services.scheduler.plans.state import jobs_of
from simulation.model import Throughputs
from tests.unit.scheduler.plans.small import cluster, job, policy, rates, run

BOTH = {"k80": 1, "v100": 1}


def unit(
    name: str, profile: str = "", *, submitted_at_s: float = 0.0, work: float = 100.0, **more: object
) -> PendingUnit:
    demand = Demand(1, accelerators=1, profile=profile or name, **more)  # type: ignore[arg-type]
    return PendingUnit(UnitKey(name, 0), "lab", 0, submitted_at_s, demand, submitted_at_s=submitted_at_s, work=work)


def step(held, chosen, now_s: float) -> dict[str, str]:  # type: ignore[no-untyped-def]
    """One round: what runs after it, and on which model; what was taken off waits again."""
    decisions = decide(held, chosen, now_s)
    off = [held.running[item.key].unit for item in decisions.preempted]
    begun = {item.unit.key for item in held.apply(decisions, now_s)}
    for item in off:
        if item.key not in begun:
            held.add(replace(item, demand=service_of(held).asked[item.key]))
    return {key.job_id: "k80" if item.rows[0][0] == 0 else "v100" for key, item in held.running.items()}


# -- arrays ----------------------------------------------------------------------------------------------------------


def test_arrays_of_two_jobs_and_two_chips() -> None:
    chosen = policy("gavel", 360.0)
    held = cluster(BOTH, chosen, rates({"a": {"v100": 4.0, "k80": 1.0}, "b": {"v100": 3.0}}))
    held.add(unit("b", submitted_at_s=5.0, work=30.0))
    held.add(unit("a", submitted_at_s=1.0, work=20.0))
    jobs = jobs_of(held, 11.0)
    assert [key.job_id for key in jobs.keys] == ["a", "b"]
    assert jobs.models == ("k80", "v100")
    assert jobs.throughput.tolist() == [[1.0, 4.0], [0.0, 3.0]]
    assert jobs.capacity.tolist() == [1.0, 1.0]
    assert jobs.seconds.tolist() == [[20.0, 5.0], [np.inf, 10.0]]
    assert (jobs.kind.tolist(), jobs.age_s.tolist()) == ([-1, -1], [10.0, 6.0])


def test_work_left_of_a_running_job_follows_from_its_rate() -> None:
    chosen = policy("gavel", 360.0)
    held = cluster({"v100": 1}, chosen, rates({"a": {"v100": 2.0}}))
    held.add(unit("a", work=100.0))
    step(held, chosen, 10.0)
    # 20 s at 2 per second: 40 of 100 are done.
    assert jobs_of(held, 30.0).left.tolist() == [60.0]


def test_predicted_seconds_are_those_of_the_fastest_type() -> None:
    chosen = policy("completion", 360.0)
    held = cluster(BOTH, chosen, rates({"a": {"v100": 4.0, "k80": 1.0}, "b": {"v100": 4.0}}))
    held.add(replace(unit("a", work=0.0), expected_s=50.0, attained_s=10.0))
    held.add(unit("b", work=0.0))
    # 40 s on the V100 are 160 on the K80. Of b nothing is known: a day.
    assert jobs_of(held, 0.0).seconds.tolist() == [[160.0, 40.0], [np.inf, 86_400.0]]


def test_a_job_keeps_to_the_models_that_it_asked_for() -> None:
    chosen = policy("gavel", 360.0, objective="max_throughput")
    held = cluster(BOTH, chosen, rates({"a": {"v100": 4.0, "k80": 1.0}}))
    held.add(unit("a", accelerator_types=("k80",)))
    for now_s in (0.0, 360.0):
        assert step(held, chosen, now_s) == {"a": "k80"}
        assert jobs_of(held, now_s).throughput.tolist() == [[1.0, 0.0]]


def test_units_without_accelerators_run_beside_the_plan() -> None:
    chosen = policy("gavel", 360.0)
    held = cluster({"v100": 1}, chosen)
    held.add(PendingUnit(UnitKey("cpu", 0), "lab", 0, 0.0, Demand(1, cpus=1.0)))
    assert set(step(held, chosen, 0.0)) == {"cpu"}
    assert set(step(held, chosen, 360.0)) == {"cpu"}


# -- Gavel -----------------------------------------------------------------------------------------------------------


def test_greatest_throughput_gives_the_fast_chip_to_who_gains_most() -> None:
    # On the V100 and K80: a and b 1 + 1/3 of their best, b and a 1 + 1/4.
    chosen = policy("gavel", 360.0, objective="max_throughput")
    table = rates({"a": {"v100": 4.0, "k80": 1.0}, "b": {"v100": 3.0, "k80": 1.0}})
    held = cluster(BOTH, chosen, table)
    held.add(unit("b"))
    held.add(unit("a"))
    assert step(held, chosen, 0.0) == {"a": "v100", "b": "k80"}


def test_equal_jobs_take_turns_on_the_fast_chip() -> None:
    # The fair share of each is half of its time on each chip: in the second round each has its half of the other one to come.
    chosen = policy("gavel", 360.0)
    same = {"v100": 2.0, "k80": 1.0}
    held = cluster(BOTH, chosen, rates({"a": same, "b": same}))
    held.add(unit("a"))
    held.add(unit("b"))
    rounds = [step(held, chosen, now_s) for now_s in (0.0, 360.0, 720.0, 1080.0)]
    assert rounds[0] != rounds[1]
    assert [list(seen.values()).count("v100") for seen in rounds] == [1, 1, 1, 1]
    assert sum(seen["a"] == "v100" for seen in rounds) == 2


def test_what_comes_free_stays_free_until_the_round_ends() -> None:
    # Rounds at 360 and 720. a runs from 360 to 460; b, behind it, begins at 720, not at 460.
    found = run(
        {"v100": 1},
        [job("a", 100.0), job("b", 100.0, submit_s=1.0)],
        rates({"a": {"v100": 1.0}, "b": {"v100": 1.0}}),
        policy("gavel", 360.0, objective="fifo"),
    )
    assert found == {"a": pytest.approx(460.0), "b": pytest.approx(820.0)}


@pytest.mark.parametrize("objective", ["las", "finish_time_fairness", "min_makespan", "shortest_job_first"])
def test_every_objective_runs_a_job_to_its_end(objective: str) -> None:
    # Alone: from 360 on the V100 at 2 per second.
    found = run(
        BOTH, [job("a", 100.0)], rates({"a": {"v100": 2.0, "k80": 1.0}}), policy("gavel", 360.0, objective=objective)
    )
    assert found == {"a": pytest.approx(410.0)}


# -- ours on unlike chips --------------------------------------------------------------------------------------------


def test_the_short_job_goes_first_on_the_fast_chip_and_the_long_one_moves_up() -> None:
    # From 360: short on the V100 until 1080, long on the K80 at half the rate (360 of 3600 done by then). At 1080 it moves: 7 s
    # of restart, 3240 s of work: 4327.
    same = {"v100": 1.0, "k80": 0.5}
    found = run(
        BOTH,
        [job("long", 3600.0), job("short", 720.0)],
        rates({"long": same, "short": same}),
        policy("completion", 360.0),
    )
    assert found == {"short": pytest.approx(1080.0), "long": pytest.approx(4327.0)}


def test_nothing_moves_while_no_job_comes_or_ends() -> None:
    same = {"v100": 1.0, "k80": 0.5}
    chosen = policy("completion", 360.0)
    held = cluster(BOTH, chosen, rates({"a": same, "b": same}))
    held.add(unit("a", work=10_000.0))
    held.add(unit("b", work=10_001.0))
    first = step(held, chosen, 0.0)
    assert all(step(held, chosen, 360.0 * turn) == first for turn in range(1, 20))


def test_blind_it_does_not_read_the_work_left() -> None:
    same = {"v100": 1.0, "k80": 0.5}
    places = []
    for works in ((50_000.0, 10.0), (10.0, 50_000.0)):
        chosen = policy("completion", 360.0, known=0)
        held = cluster(BOTH, chosen, rates({"a": same, "b": same}))
        held.add(unit("a", work=works[0]))
        held.add(unit("b", work=works[1]))
        places.append(step(held, chosen, 0.0))
    assert places[0] == places[1]


# -- elastic ---------------------------------------------------------------------------------------------------------


def _linear() -> Throughputs:
    found = Throughputs()
    for count in range(1, 5):
        found.rates["e", count] = {"v100": float(count)}
    return found


def _elastic(work: float):  # type: ignore[no-untyped-def]
    return job("e", work, min_ranks=1, max_ranks=4)


def test_sia_doubles_round_by_round_and_each_resize_costs_a_restart() -> None:
    # Rounds of 60 s: 1 device from 60 (60 done), 2 from 120 after 7 s (106 more), 4 from 180 after 7 s: 834 / 4 = 208.5 s from 187.
    found = run({"v100": 4}, [_elastic(1000.0)], _linear(), policy("sia", 60.0), "none")
    assert found == {"e": pytest.approx(395.5)}


def test_ours_begins_with_what_is_best() -> None:
    # 4 devices from 60: 250 s.
    found = run({"v100": 4}, [_elastic(1000.0)], _linear(), policy("elastic-exact", 60.0), "none")
    assert found == {"e": pytest.approx(310.0)}


@pytest.mark.parametrize("planner", ["sia", "elastic-exact", "greedy-elastic", "pollux-lite"])
def test_a_second_job_gets_its_share(planner: str) -> None:
    chosen = policy(planner, 60.0)
    table = _linear()
    held = cluster({"v100": 4}, chosen, table)
    for name in ("a", "b"):
        held.add(replace(unit(name, "e", work=1e6), min_ranks=1, max_ranks=4, restart_s=1.0))
    for turn in range(1, 8):
        step(held, chosen, 60.0 * turn)
    assert sorted(item.unit.demand.ranks for item in held.running.values()) == [2, 2]


@pytest.mark.parametrize("planner", ["sia", "elastic-exact", "greedy-elastic", "pollux-lite"])
def test_a_job_that_runs_on_the_scarcest_type_alone_is_not_passed_over(planner: str) -> None:
    # It can start at 60, where one v100 is free beside four t4; nothing else ever comes.
    found = run(
        {"t4": 4, "v100": 1}, [job("picky", 300.0)], rates({"picky": {"v100": 1.0}}), policy(planner, 60.0), "none"
    )
    assert found == {"picky": pytest.approx(360.0)}


def test_exact_choice_by_hand() -> None:
    # Configurations: 1 or 2 of the first type (2 free), 1 of the second (1 free). Best: job 0 the pair (5), job 1 the other (3): 8;
    # greedily by value per device job 0 would take the second type (4) and job 1 one of the first (1).
    value = [[2.0, 5.0, 4.0], [1.0, 1.5, 3.0]]
    assert exact_choice(value, [0, 0, 1], [1, 2, 1], [2, 1]).tolist() == [1, 2]
    assert exact_choice(value, [0, 0, 1], [1, 2, 1], [0, 0]).tolist() == [-1, -1]
    assert exact_choice(np.zeros((0, 3)), [0, 0, 1], [1, 2, 1], [2, 1]).tolist() == []
    with pytest.raises(PolicyError, match="states"):
        exact_choice(np.ones((1, 3)), [0, 1, 2], [1, 1, 1], [200, 200, 200])


@pytest.mark.parametrize("seed", range(8))
def test_exact_choice_is_the_integer_program(seed: int) -> None:
    source = np.random.default_rng(seed)
    offered = configurations([2, 1], [4, 8])
    capacity = np.array([8.0, 8.0])
    goodput = source.uniform(0.5, 1.0, (9, 1)) * offered.devices ** source.uniform(0.3, 1.0, (9, 1))
    plan = sia_allocation(goodput, offered, capacity)
    value = 1.1 - (goodput / goodput.min(axis=1, keepdims=True)) ** -0.5
    choice = exact_choice(value, offered.kind, offered.devices, capacity)
    picked = np.flatnonzero(choice >= 0)
    used = np.bincount(offered.kind[choice[picked]], offered.devices[choice[picked]], 2)
    assert (used <= capacity).all()
    assert 1.1 * 9 - value[picked, choice[picked]].sum() == pytest.approx(plan.objective, rel=2e-4)


@pytest.mark.parametrize("seed", range(8))
def test_greatest_value_is_the_exact_choice(seed: int) -> None:
    source = np.random.default_rng(seed)
    offered = configurations([2, 1, 1], [4, 8, 2])
    free = np.array([7.0, 6.0, 2.0])
    value = source.uniform(-0.5, 1.0, (9, offered.devices.size)) * offered.devices**0.7
    choice, proven = greatest_value(value, offered.kind, offered.devices, free)
    assert proven
    totals = []
    for each in (choice, exact_choice(value, offered.kind, offered.devices, free)):
        picked = np.flatnonzero(each >= 0)
        assert (np.bincount(offered.kind[each[picked]], offered.devices[each[picked]], 3) <= free).all()
        totals.append(value[picked, each[picked]].sum())
    assert totals[0] == pytest.approx(totals[1], rel=2e-4)


def test_ours_plans_for_more_types_than_its_table_holds() -> None:
    # Over five types of 32 accelerators there are 33^5 states. Both get four of the type on which they are fastest at 60: 250 s.
    models = [f"m{place}" for place in range(5)]
    table = Throughputs()
    for profile, fast in (("one", "m1"), ("two", "m4")):
        for ranks in (1, 2, 4):
            table.rates[profile, ranks] = {model: ranks * (1.0 if model == fast else 0.5) for model in models}
    jobs = [job(name, 1000.0, min_ranks=1, max_ranks=4) for name in ("one", "two")]
    assert not is_small(np.ones((len(jobs), 1)), np.full(5, 32.0))
    found = run(dict.fromkeys(models, 32), jobs, table, policy("elastic-exact", 60.0), "none")
    assert found == {"one": pytest.approx(310.0), "two": pytest.approx(310.0)}


def test_a_table_that_would_take_long_is_left_to_the_program() -> None:
    """Three types of 24, 16 and 24 with 40 jobs of 15 configurations (Sia's workloads) are small; five of eight with ten of 20 are not,
    though they fit; nor are five of sixteen with seven jobs."""
    assert is_small(np.ones((40, 15)), np.array([24.0, 16.0, 24.0]))
    assert not is_small(np.ones((10, 20)), np.full(5, 8.0))
    assert is_small(np.where(np.arange(20) < 10, 1.0, 0.0) * np.ones((10, 1)), np.full(5, 8.0))
    assert not is_small(np.ones((7, 20)), np.full(5, 16.0))


@pytest.mark.parametrize("planner", ["sia", "elastic-exact"])
def test_a_search_that_ends_at_its_bound_says_so(planner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no node to search in, the plan is the best that was found, or the greedy one: it is carried out, and its reason tells."""
    monkeypatch.setattr(elastic, "BOUNDED", Limits(nodes=0))
    monkeypatch.setattr(elastic, "is_small", lambda value, free: False)
    draw = np.random.default_rng(3)
    table = Throughputs()
    models = ["m0", "m1", "m2"]
    for number in range(40):
        for ranks in (1, 2, 4, 8):
            values = (draw.uniform(0.5, 2.0, 3) * ranks ** draw.uniform(0.5, 1.0)).tolist()
            table.rates[f"job-{number}", ranks] = dict(zip(models, values, strict=True))
    chosen = policy(planner, 60.0)
    here = cluster(dict.fromkeys(models, 11), chosen, table)
    for number in range(40):
        demand = Demand(1, cpus=0.1, accelerators=1, profile=f"job-{number}")
        ranks = {"min_ranks": 1, "max_ranks": 8}
        here.add(PendingUnit(UnitKey(f"job-{number}", 0), "lab", 0, 0.0, demand, work=1000.0, **ranks))
    placed = decide(here, chosen, 0.0).placed
    told = [item.reason.endswith("(the best plan found: the search ended at its bound)") for item in placed]
    assert told
    assert all(told)


# -- deadlines and the rolling program -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["edf", "admission", "chronus"])
def test_the_earlier_deadline_goes_first(method: str) -> None:
    # One device, both 300 s; late came first, but soon must end by 800: it runs from 360 to 660, late from 720.
    found = run(
        {"v100": 1},
        [job("late", 300.0, deadline_s=9000.0), job("soon", 300.0, deadline_s=800.0)],
        rates({"late": {"v100": 1.0}, "soon": {"v100": 1.0}}),
        policy("deadlines", 360.0, method=method),
    )
    assert found == {"soon": pytest.approx(660.0), "late": pytest.approx(1020.0)}


def test_the_rolling_program_starts_the_shorter_job_and_leaves_what_runs() -> None:
    # At 360 the short one (300 s) begins, at 720 the long one; nothing is interrupted when a shorter one comes at 800.
    table = rates({name: {"v100": 1.0} for name in ("long", "short", "new")})
    found = run(
        {"v100": 1},
        [job("long", 1000.0), job("short", 300.0), job("new", 10.0, submit_s=800.0)],
        table,
        policy("rolling-milp", 360.0, slot_s=360.0),
    )
    assert found == {"short": pytest.approx(660.0), "long": pytest.approx(1720.0), "new": pytest.approx(1810.0)}


# -- all -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("planner", ["gavel", "completion", "deadlines", "rolling-milp", "sia", "elastic-exact"])
def test_equal_inputs_give_equal_outcomes(planner: str) -> None:
    source = np.random.default_rng(3)
    table = rates({f"p{n}": {"v100": 1.0 + n, "k80": 0.5 + 0.3 * n} for n in range(3)})
    jobs = [
        job(f"j{n}", float(source.exponential(2000.0)), profile=f"p{n % 3}", submit_s=float(60 * n)) for n in range(12)
    ]
    outcomes = [run({"v100": 2, "k80": 2}, jobs, table, policy(planner, 360.0)) for _ in range(2)]
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0]) == 12


@pytest.mark.parametrize("name", [item.name for item in catalogue.PLANNERS])
def test_an_empty_cluster_needs_no_plan(name: str) -> None:
    chosen = policy(name, 60.0)
    assert not decide(cluster({"v100": 1}, chosen), chosen, 0.0).placed


def test_the_account_forgets_jobs_that_are_no_more_and_counts_from_a_reset() -> None:
    chosen = policy("gavel", 360.0)
    held = cluster({"v100": 1}, chosen, rates({"a": {"v100": 1.0}}))
    held.add(unit("a"))
    step(held, chosen, 0.0)
    account = service_of(held)
    jobs = jobs_of(held, 100.0)
    assert account.received_s(jobs.keys, jobs.models, 100.0).tolist() == [[100.0]]
    account.reset(100.0)
    assert account.received_s(jobs.keys, jobs.models, 130.0).tolist() == [[30.0]]
    assert account.device_s(jobs.keys, 130.0).tolist() == [130.0]
    held.release(UnitKey("a", 0), 150.0)
    jobs_of(held, 200.0)
    assert not account.asked
    assert account.starts([UnitKey("a", 0)]).tolist() == [0]


def test_wrong_options_are_named() -> None:
    with pytest.raises(PolicyError, match=r"options\.gavel\.objective"):
        GavelPlanner().configured({"objective": "fastest"})
    with pytest.raises(PolicyError, match=r"options\.gavel\.speed"):
        GavelPlanner().configured({"speed": 1})
    with pytest.raises(PolicyError, match=r"options\.sia\.power"):
        SiaPlanner().configured({"power": 0})
    with pytest.raises(PolicyError, match=r"options\.elastic-exact\.keep"):
        ExactPlanner().configured({"keep": -1})
    with pytest.raises(PolicyError, match=r"options\.deadlines\.method"):
        DeadlinePlanner().configured({"method": "luck"})
