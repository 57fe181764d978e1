"""What is kept from one round to the next is what would be made anew: after each change, and in a copy."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from services.scheduler.core.decide import decide
from services.scheduler.core.fleet import Domain, Fleet, with_domain
from services.scheduler.core.planning import Planner
from services.scheduler.core.policy import Policy, RestartRules
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit, Shares
from services.scheduler.plans.elastic import ExactPlanner, MarginalPlanner, PolluxPlanner, SiaPlanner, round_of
from services.scheduler.plans.state import Jobs, jobs_of
from tests.unit.scheduler.plans.small import cluster, policy
from tests.unit.scheduler.plans.test_measured_plans import world_of
from tests.unit.scheduler.world import World, a_node, gang

ELASTIC = (SiaPlanner(), MarginalPlanner(), PolluxPlanner(), ExactPlanner())


def arrays(jobs: Jobs) -> list[object]:
    texts = [jobs.assumed(job) for job in range(len(jobs.units))]
    values = (jobs.capacity, jobs.throughput, jobs.devices, jobs.kind, jobs.held, jobs.left, jobs.age_s, jobs.fixed)
    return [jobs.keys, jobs.models, jobs.runs, texts, *(value.tolist() for value in values)]


def as_anew(world: World) -> None:
    cluster = world.book.cluster
    assert arrays(jobs_of(cluster, world.now_s)) == arrays(jobs_of(cluster.copy(), world.now_s))


def test_jobs_are_what_they_would_be_anew() -> None:
    world = world_of("gavel")
    world.submit("first", gang(1, accelerators=1))
    as_anew(world)
    before = jobs_of(world.book.cluster, world.now_s)
    world.now_s += 10.0
    later = jobs_of(world.book.cluster, world.now_s)
    assert later.keys is before.keys, "nothing came or went"
    assert later.age_s.tolist() == [before.age_s[0] + 10.0]
    world.submit("second", gang(2, accelerators=1))
    as_anew(world)
    world.cycle()
    as_anew(world)
    world.start(world.run("first"))
    as_anew(world)
    world.book.cluster.view.set_up([0], False)
    assert sum(jobs_of(world.book.cluster, world.now_s).capacity) == 2.0
    as_anew(world)


@pytest.mark.parametrize("planner", ELASTIC, ids=lambda planner: planner.name)
@pytest.mark.parametrize("models", [("A100",), ("A100", "H100")], ids=len)
def test_elastic_targets_are_what_they_would_be_anew(planner: Planner, models: tuple[str, ...]) -> None:
    nodes = [a_node(f"{model}-0", "a", devices=3, model=model) for model in models]
    rules = RestartRules(least_run_s=0.0, restart_cost_s=1.0)
    policy = Policy(name="elastic", planner="elastic-exact", interval_s=10.0, restarts=rules)
    world = World(with_domain(Fleet(), Domain("a"), nodes, full_of="a"), policy)
    for number in range(3):
        world.submit(f"rigid-{number}", gang(1 + number % 2, accelerators=1))
    cluster = world.book.cluster

    def same() -> None:
        context = OrderContext(Shares({}, 1.0, 1.0, {}), world.now_s)
        kept = planner.plan(cluster, context)
        assert planner.plan(cluster, context) == kept
        assert planner.plan(cluster.copy(), context) == kept

    same()
    world.cycle()
    for key in list(cluster.running):
        world.start(world.run(key.job_id))
    same()
    if len(models) == 1:
        assert round_of(cluster, world.now_s).until_s == pytest.approx(world.now_s + 1.0, abs=0.01), (
            "they start for 1 s"
        )
    world.now_s += 2.0
    if len(models) == 1:
        assert round_of(cluster, world.now_s).until_s == float("inf"), "rigid jobs, and nothing hangs on the time"
    same()
    world.now_s += 100.0
    same()
    world.submit("late", gang(1, accelerators=1))
    same()


@pytest.mark.parametrize("objective", ["las", "fifo", "min_makespan"])
@pytest.mark.parametrize("sizes", [{"v100": 4}, {"v100": 3, "k80": 2}], ids=len)
def test_gavels_rounds_are_what_they_would_be_anew(objective: str, sizes: dict[str, int]) -> None:
    draw = random.Random(7)
    chosen = policy("gavel", 360.0, objective=objective)
    held = cluster(sizes, chosen)
    moved = 0
    for number in range(60):
        now_s = 360.0 * number
        if number % 4 == 0:
            demand = Demand(draw.choice([1, 1, 2]), accelerators=1)
            work = draw.uniform(600.0, 6000.0)
            held.add(PendingUnit(UnitKey(f"job-{number}", 0), "lab", 0, now_s, demand, submitted_at_s=now_s, work=work))
        elif number % 5 == 0 and held.running:
            held.release(draw.choice(list(held.running)), now_s)
        anew = decide(held.copy(), chosen, now_s)
        decisions = decide(held, chosen, now_s, explain=False)
        assert [(item.key, item.ranks) for item in decisions.placed] == [(item.key, item.ranks) for item in anew.placed]
        assert decisions.preempted == anew.preempted
        off = [held.running[item.key].unit for item in decisions.preempted]
        moved += len(off)
        begun = {item.unit.key for item in held.apply(decisions, now_s)}
        held.extend([unit for unit in off if unit.key not in begun])
    assert moved, "not all had room, so rounds changed who ran"


def test_a_round_with_a_choice_is_made_anew_as_restarts_cost_less_of_older_jobs() -> None:
    world = world_of("elastic-exact")
    world.submit("job", replace(gang(1, accelerators=1), min_ranks=1, max_ranks=2))
    world.cycle()
    world.start(world.run("job"))
    assert round_of(world.book.cluster, world.now_s + 5.0, growth=0.0).until_s == -float("inf")
