"""Parts of a device move to replicas that need more and come back: by hand, and never more than there is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.effects import Adjust, Start
from services.scheduler.core.errors import MalformedJobError
from services.scheduler.core.loads import by_load
from services.scheduler.core.measured import Load, News
from services.scheduler.core.policy import Policy
from services.scheduler.core.scaling import Scaling
from services.scheduler.core.shares import wanted_milli
from services.scheduler.core.state import Demand, JobKind, JobSpec, RunState, UnitKey
from services.scheduler.core.units import units_of
from services.scheduler.policy.file import parse
from tests.unit.scheduler.test_book_cluster import assert_same_cluster
from tests.unit.scheduler.world import World, a_fleet

RULES = Scaling(1, 1, target=10.0, down_after_s=60.0, cooldown_s=0.0)
PART = Demand(1, cpus=1.0, accelerators=1)


def serving(asked: int = 300, most: int = 800, rules: Scaling = RULES) -> JobSpec:
    demand = replace(PART, device_milli=asked)
    return JobSpec(JobKind.SERVICE, demand, replicas=1, scaling=rules, most_milli=most)


def training(asked: int = 700, least: int = 200) -> JobSpec:
    return JobSpec(JobKind.TASK, replace(PART, device_milli=asked), least_milli=least, command=("run",))


def world_of(*specs: tuple[str, JobSpec]) -> World:
    """One node with one device."""
    world = World(a_fleet({"a": 1}, devices=1))
    for name, spec in specs:
        world.submit(name, spec)
        world.now_s += 1.0
    world.cycle()
    return world


def tell(world: World, **loads: float) -> None:
    """Services report; at the same time everything is looked at."""
    news = News(loads=tuple((UnitKey(name, 0), Load(value, world.now_s)) for name, value in loads.items()))
    draft = world.book.draft()
    world.book.learn(news, world.now_s)
    by_load(draft, news, world.now_s, world.rules)
    world.merge(draft)


def parts(world: World) -> dict[str, int]:
    return {run.key.job_id: run.ranks[0].device_milli for run in world.book.runs.values()}


def limited(*queues: str, limit: str = "selection: {limits: [quota]}") -> Policy:
    return parse("name: limited\n" + limit + "\nqueues:\n" + "\n".join(f"- {{{queue}}}" for queue in queues))


def world_by(policy: Policy, *specs: tuple[str, str, JobSpec]) -> World:
    """The same where a policy limits what tenants hold: (tenant, job, specification)."""
    world = World(a_fleet({"a": 1}, devices=1), policy)
    for tenant, name, spec in specs:
        world.submit(name, spec, tenant)
        world.now_s += 1.0
    world.cycle()
    return world


ORG = "name: org"


@pytest.mark.parametrize(
    ("tenant", "policy", "found"),
    [
        # Nothing may be borrowed: 0.5 is all, whoever would give the rest.
        ("lab", limited(ORG, "name: web, parent: org, nominal: {accelerators: 0.5}, borrowing_limit: {accelerators: 0}",
                        "name: lab, parent: org, nominal: {accelerators: 1}"), {"web": 500, "train": 500}),
        # 0.1 may be borrowed.
        ("lab", limited(ORG, "name: web, parent: org, nominal: {accelerators: 0.5}, borrowing_limit: {accelerators: 0.1}",
                        "name: lab, parent: org, nominal: {accelerators: 1}"), {"web": 600, "train": 400}),
        # All is lent, also what the training gives.
        ("lab", limited(ORG, "name: web, parent: org, nominal: {accelerators: 0.3}",
                        "name: lab, parent: org, nominal: {accelerators: 0.7}"), {"web": 800, "train": 200}),
        # The tenant's own training gives: its queue holds as much as before.
        ("web", limited(ORG, "name: web, parent: org, nominal: {accelerators: 1}, max_running: 2"), {"web": 800, "train": 200}),
        ("lab", parse("name: capped\nselection: {limits: [queue_cap: {queues: {web: {accelerators: 0.45}}}]}"),
         {"web": 450, "train": 550}),
    ],
    ids=["own", "borrowed", "lent", "from itself", "capped"],
)  # fmt: skip
def test_a_part_grows_as_far_as_the_limits_let_its_tenant(tenant: str, policy: Policy, found: dict[str, int]) -> None:
    world = world_by(policy, ("web", "web", serving()), (tenant, "train", training()))
    assert parts(world) == {"web": 300, "train": 700}
    tell(world, web=100.0)
    assert parts(world) == found
    assert_same_cluster(world.book, world.policy)
    tell(world, web=100.0)
    assert parts(world) == found


def test_what_one_replica_leaves_of_a_quota_another_gets() -> None:
    queue = "name: web, parent: org, nominal: {accelerators: 0.9}, borrowing_limit: {accelerators: 0}"
    now = replace(RULES, down_after_s=0.0)
    world = World(a_fleet({"a": 2}, devices=1), limited(ORG, queue))
    for name in ("first", "second"):
        world.submit(name, replace(serving(asked=400, rules=now), least_milli=100), "web")
    world.cycle()
    assert parts(world) == {"first": 400, "second": 400}
    tell(world, first=30.0, second=30.0)
    assert parts(world) == {"first": 500, "second": 400}
    world.now_s += 1.0
    tell(world, first=2.0, second=30.0)
    assert parts(world) == {"first": 100, "second": 800}


def test_a_shrunk_part_comes_back_as_far_as_the_quota_of_its_queue_is_left() -> None:
    """What the training gave was taken by another job of its queue: it gets its part back when that has ended, not before."""
    lab = "name: lab, parent: org, nominal: {accelerators: 0.7}, borrowing_limit: {accelerators: 0}"
    policy = limited(ORG, lab, "name: web, parent: org, nominal: {accelerators: 1}")
    world = World(a_fleet({"a": 2}, devices=1), policy)
    world.submit("web", serving(), "web")
    world.submit("train", training(), "lab")
    world.cycle()
    (first, second) = (world.run(name).ranks[0] for name in ("web", "train"))
    assert (first.node_id, first.devices) == (second.node_id, second.devices), "they share a device"
    tell(world, web=20.0)
    assert parts(world) == {"web": 600, "train": 400}
    world.submit("other", JobSpec(JobKind.TASK, replace(PART, device_milli=200), command=("run",)), "lab")
    world.cycle()
    assert parts(world) == {"web": 600, "train": 400, "other": 200}
    for _ in range(8):
        world.now_s += 10.0
        tell(world, web=1.0)
    # 0.7 in all: 0.1 is left of the quota, though 0.3 is free on the device.
    assert parts(world) == {"web": 300, "train": 500, "other": 200}
    assert_same_cluster(world.book, world.policy)
    world.start(world.run("other"))
    world.finish(world.run("other"))
    tell(world)
    assert parts(world) == {"web": 300, "train": 700}


def test_a_quota_that_is_cut_takes_nothing_from_what_a_run_holds() -> None:
    world = world_by(limited(ORG, "name: lab, parent: org, nominal: {accelerators: 1}"), ("lab", "train", training()))
    lab = "name: lab, parent: org, nominal: {accelerators: 0.1}, borrowing_limit: {accelerators: 0}"
    world.book.use(limited(ORG, lab), world.now_s)
    tell(world)
    assert parts(world) == {"train": 700}


@pytest.mark.parametrize(
    ("milli", "load", "wanted"),
    [(300, 10.0, 300), (300, 10.9, 300), (300, 15.0, 450), (300, 100.0, 800), (600, 5.0, 300), (600, 1.0, 250)],
)
def test_the_part_that_a_load_asks_for(milli: int, load: float, wanted: int) -> None:
    assert wanted_milli(RULES, milli, load, 250, 800) == wanted


def test_training_shrinks_for_a_replica_and_gets_it_back() -> None:
    world = world_of(("web", serving()), ("train", training()))
    assert parts(world) == {"web": 300, "train": 700}
    tell(world, web=20.0)
    assert parts(world) == {"web": 600, "train": 400}
    assert [(effect.run.key.job_id, effect.run.ranks[0].device_milli) for effect in world.of(Adjust)] == [
        ("train", 400),
        ("web", 600),
    ], "what shrinks is told first"
    assert_same_cluster(world.book, world.policy)
    for _ in range(7):
        world.now_s += 10.0
        tell(world, web=5.0)
    assert parts(world) == {"web": 300, "train": 700}
    assert len(world.of(Start)) == 2, "nothing was started again"
    assert_same_cluster(world.book, world.policy)


def test_never_below_the_least_and_what_is_free_goes_first() -> None:
    world = world_of(("web", serving(most=1000)), ("train", training(asked=500, least=400)))
    tell(world, web=15.0)
    assert parts(world) == {"web": 450, "train": 500}, "200 were free"
    tell(world, web=100.0)
    assert parts(world) == {"web": 600, "train": 400}


def test_the_one_with_most_to_give_gives_first() -> None:
    world = world_of(("web", serving()), ("x", training(300, 250)), ("y", training(400, 100)))
    tell(world, web=20.0)
    assert parts(world) == {"web": 600, "x": 300, "y": 100}
    tell(world, web=12.0)
    assert parts(world) == {"web": 650, "x": 250, "y": 100}


def test_work_without_bounds_keeps_its_part() -> None:
    world = world_of(("web", serving()), ("train", training(least=0)))
    tell(world, web=50.0)
    assert parts(world) == {"web": 300, "train": 700}
    assert world.of(Adjust) == []


def test_what_a_replica_leaves_goes_back_without_any_report() -> None:
    world = world_of(("web", serving()), ("train", training()))
    tell(world, web=20.0)
    assert world.book.squeezed.keys() == {"train.0.1"}
    world.cancel("web")
    draft = world.book.draft()
    by_load(draft, News(), world.now_s, world.rules)
    world.merge(draft)
    assert parts(world)["train"] == 400, "the replica is ending and holds its part"
    world.finish(world.run("web"))
    draft = world.book.draft()
    by_load(draft, News(), world.now_s, world.rules)
    world.merge(draft)
    assert parts(world) == {"train": 700}
    assert not world.book.squeezed


def test_a_new_leader_knows_the_parts() -> None:
    world = world_of(("web", serving()), ("train", training()))
    tell(world, web=20.0)
    world.restart()
    assert parts(world) == {"web": 600, "train": 400}
    assert world.book.squeezed.keys() == {"train.0.1"}
    assert_same_cluster(world.book, world.policy)


def test_replicas_are_added_only_when_their_parts_cannot_grow() -> None:
    rules = replace(RULES, most=3)
    world = world_of(("web", serving(most=500, rules=rules)), ("train", training()))
    tell(world, web=15.0)
    assert parts(world) == {"web": 450, "train": 550}
    assert len(world.book.queued) == 0
    tell(world, web=15.0)
    assert parts(world)["web"] == 500
    tell(world, web=15.0)
    assert len(world.book.queued) == 1, "it has the most that it may have"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.integers(1, 40)), max_size=12))
def test_whatever_the_loads_nothing_holds_more_than_there_is(steps: list[tuple[float, float, int]]) -> None:
    world = world_of(
        ("web", serving(200, 900)), ("chat", serving(200, 600)), ("x", training(300, 100)), ("y", training(300, 50))
    )
    asked, least = {"x": 300, "y": 300}, {"x": 100, "y": 50}
    for web, chat, pause_s in steps:
        world.now_s += pause_s
        tell(world, web=web, chat=chat)
        found = parts(world)
        assert sum(found.values()) <= 1000
        assert all(least[name] <= found[name] <= asked[name] for name in asked)
        assert 200 <= found["web"] <= 900
        assert 200 <= found["chat"] <= 600
        assert_same_cluster(world.book, world.policy)


@pytest.mark.parametrize(
    "spec",
    [
        training(700, 800),
        training(1000, 200),
        serving(300, 200),
        replace(training(), least_milli=-1),
        replace(serving(), most_milli=1001),
        replace(training(), kind=JobKind.GANG, ranks=2),
    ],
)
def test_bounds_that_make_no_sense_are_refused(spec: JobSpec) -> None:
    with pytest.raises(MalformedJobError, match="accelerator_milli"):
        units_of(spec)


def test_what_a_replica_got_before_it_was_parked_is_not_given_twice() -> None:
    eager = replace(RULES, most=3, down_after_s=0.0)
    world = world_of(
        ("web", replace(serving(200, 800, eager), replicas=3)),
        ("train", training(300, 100)),
        ("chat", serving(100, 200)),
    )
    tell(world, chat=20.0)
    chat = world.run("chat")
    assert (chat.ranks[0].device_milli, world.run("train").ranks[0].device_milli) == (200, 200)
    world.cancel("chat")
    world.finish(chat)
    # The last of three has all the load: it gets the 200 that are free, and by the mean one is too many.
    loads = {0: 0.0, 1: 0.0, 2: 20.0}
    news = News(loads=tuple((UnitKey("web", index), Load(value, world.now_s)) for index, value in loads.items()))
    draft = world.book.draft()
    world.book.learn(news, world.now_s)
    by_load(draft, news, world.now_s, world.rules)
    world.merge(draft)
    assert world.run("web", 2).state is RunState.STOPPING
    held = {run.run_id: run.ranks[0].device_milli for run in world.book.runs.values()}
    assert held == {"web.0.1": 200, "web.1.1": 200, "web.2.1": 400, "train.0.1": 200}
    assert_same_cluster(world.book, world.policy)


def test_a_load_that_is_told_after_its_service_has_finished_leaves_nothing() -> None:
    world = world_of(("web", serving()))
    run = world.run("web")
    world.cancel("web")
    world.finish(run)
    tell(world, web=20.0)
    assert not world.book.replicas.loads
    assert not world.book.replicas.scalers
