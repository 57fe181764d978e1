"""Counterfactuals: each one that is printed flips the decision when the changed input is given to a cluster made anew."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.deciding.decisions import Placement
from services.scheduler.core.explaining.blockers import blockers
from services.scheduler.core.explaining.counterfactual import counterfactuals
from services.scheduler.core.explaining.decided_again import Change, Counterfactual, Question
from services.scheduler.core.fleet import Domain, Fleet, Mark, MarkKind, Node, with_domain, with_mark, without_marks
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import PendingUnit
from tests.unit.scheduler.world import World, a_fleet, a_node, task

NOW_S = 1000.0


def a_unit(name: str, demand: Demand, **more: object) -> PendingUnit:
    values: dict[str, object] = {"tenant_id": "lab", "priority": 0, "queued_at_s": 0.0, **more}
    return PendingUnit(UnitKey(name, 0), demand=demand, **values)  # type: ignore[arg-type]


def a_cluster(fleet: Fleet, policy: Policy, running: list[PendingUnit], waiting: list[PendingUnit]) -> Cluster:
    """What runs was placed by the policy in this order at time 0."""
    cluster = Cluster(table_of(fleet), policy)
    for unit in running:
        cluster.add(unit)
        cluster.apply(decide(cluster, policy, 0.0), 0.0)
        cluster.withdraw(unit.key)
    cluster.extend(waiting)
    return cluster


def anew(
    fleet: Fleet, policy: Policy, cluster: Cluster, key: UnitKey, item: Counterfactual, unit: PendingUnit
) -> Placement | None:
    """The decision with the printed change, on a cluster built from facts: nothing of the search is used."""
    changed, field, value = unit, item.field, item.new
    ended: set[UnitKey] = set()
    if field.startswith("domains."):
        name = field.split(".")[1]
        fleet = with_domain(fleet, replace(fleet.domains[name], price_micro_units=round(value)), [])
    elif field.startswith("nodes."):
        fleet = without_marks(fleet, [(MarkKind.NODE_FAILED, field.split(".")[1])])
    elif field.startswith("policy.scores."):
        scores = {**dict(policy.scores), field.rsplit(".", 1)[1]: value}
        policy = replace(policy, scores=tuple(scores.items()))
    elif field.startswith("units."):
        name, index = field.removeprefix("units.").rsplit(".", 1)
        ended = {UnitKey(name, int(index))}
    elif field in {"priority", "expected_s", "limit_s"}:
        changed = replace(unit, **{field: value})
    elif field.startswith("user_resources."):
        amounts = {**dict(unit.demand.resources), field.removeprefix("user_resources."): float(value)}
        changed = replace(unit, demand=replace(unit.demand, resources=tuple(amounts.items())))
    else:
        kind = {"domains": frozenset, "excluded_domains": frozenset, "accelerator_types": tuple}.get(field)
        changed = replace(unit, demand=replace(unit.demand, **{field: kind(value) if kind else value}))
    again = Cluster(table_of(fleet), policy)
    alone = key in cluster.running
    for running in cluster.running.values():
        if running.unit.key not in ended and running.unit.key != key:
            again.occupy(replace(running, rows=()))
    if not alone:
        again.extend(other for other in cluster.pending if other.key != key)
    again.add(changed)
    decisions = decide(again, policy, NOW_S)
    return next((placement for placement in decisions.placed if placement.key == key), None)


def a_case(seed: int) -> tuple[Fleet, Policy, Cluster]:
    rng = random.Random(seed)
    fleet = Fleet()
    for name in [f"d{number}" for number in range(rng.randint(1, 4))]:
        domain = Domain(
            name,
            price_micro_units=rng.randint(1, 2000),
            currency="CNY",
            carbon_g_per_kwh=rng.choice([50.0, 300.0, 700.0]),
        )
        nodes: list[Node] = []
        for number in range(rng.randint(1, 3)):
            model = rng.choice(["A100", "A100", "910B"])
            nodes.append(a_node(f"{name}-{number}", name, devices=rng.choice([2, 4]), model=model))
        fleet = with_domain(fleet, domain, nodes)
    for name in sorted(fleet.nodes):
        if rng.random() < 0.15:
            fleet = with_mark(fleet, Mark(MarkKind.NODE_FAILED, name))
    policy = Policy(
        order=("priority", "age"),
        discipline=rng.choice(["greedy", "strict", "easy", "conservative"]),
        preemptions=rng.choice([(), (), ("priority",)]),
    )

    def some(prefix: str, count: int) -> list[PendingUnit]:
        out = []
        for number in range(count):
            demand = Demand(
                rng.choice([1, 1, 2, 3]),
                cpus=1.0,
                accelerators=rng.choice([1, 2, 4]),
                accelerator_types=rng.choice([(), ("A100",)]),
                domains=rng.choice([frozenset(), frozenset(), frozenset({"d0"})]),
            )
            expected_s = rng.choice([500.0, 3000.0, 20000.0])
            out.append(
                a_unit(
                    f"{prefix}{number}", demand, priority=rng.randint(0, 2), queued_at_s=number, expected_s=expected_s
                )
            )
        return out

    return fleet, policy, a_cluster(fleet, policy, some("r", rng.randint(1, 6)), some("w", rng.randint(1, 5)))


def flips(fleet: Fleet, policy: Policy, cluster: Cluster, key: UnitKey) -> list[Counterfactual]:
    waits = cluster.pending.get(key)
    unit = waits or cluster.running[key].unit
    before = Question(cluster, policy, key, NOW_S).ask(Change())
    found = counterfactuals(cluster, policy, key, NOW_S)
    for item in found:
        placement = anew(fleet, policy, cluster, key, item, unit)
        assert placement is not None, item
        place = "+".join(dict.fromkeys(rank.domain_id for rank in placement.ranks))
        nodes = tuple(dict.fromkeys(rank.node_id for rank in placement.ranks))
        assert (place, nodes) == (item.outcome.place, item.outcome.nodes), item
        assert before is None or (place, nodes) != (before.place, before.nodes), item
        assert item.new != item.old
    return list(found)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_every_counterfactual_flips_the_choice_when_run_again(seed: int) -> None:
    fleet, policy, cluster = a_case(seed)
    for key in [*list(cluster.running)[:2], *[unit.key for unit in cluster.pending][:2]]:
        flips(fleet, policy, cluster, key)


def test_all_kinds_of_counterfactuals_occur() -> None:
    """Otherwise the property above would say nothing."""
    kinds: dict[str, int] = {}
    for seed in range(120):
        _, policy, cluster = a_case(seed)
        for key in [*list(cluster.running)[:1], *[unit.key for unit in cluster.pending][:2]]:
            for item in counterfactuals(cluster, policy, key, NOW_S):
                kind = item.field.split(".")[0]
                kinds[kind] = kinds.get(kind, 0) + 1
    wanted = {"domains", "policy", "nodes", "accelerators", "ranks", "accelerator_types", "units", "priority"}
    assert wanted <= kinds.keys(), kinds


def two_domains(left: int, right: int) -> Fleet:
    fleet = with_domain(Fleet(), Domain("left", price_micro_units=left, currency="CNY"), [a_node("l", "left")])
    return with_domain(fleet, Domain("right", price_micro_units=right, currency="CNY"), [a_node("r", "right")])


def test_the_price_at_which_it_would_go_elsewhere() -> None:
    """By hand: the cheaper of two has price value 1, the other 0, so the flip is where the prices meet; at equal prices the
    first domain in order is taken, so right must be cheaper by one."""
    policy = Policy(scores=(("price", 1.0),), order=("age",))
    cluster = a_cluster(two_domains(100, 500), policy, [a_unit("j", Demand(1, accelerators=1))], [])
    found = counterfactuals(cluster, policy, UnitKey("j", 0), NOW_S)
    assert [(item.field, item.old, item.new, item.outcome.place) for item in found] == [
        ("domains.right.price_micro_units", 500.0, 99.0, "right")
    ]
    assert "if an accelerator-hour there cost 99 micro-units instead of 500" in found[0].sentence


def test_the_weight_at_which_it_would_go_elsewhere() -> None:
    """By hand: left wins by price (1 against 0, weight 1), right by carbon (1 against 0, weight 0.4): they meet where both
    weights are equal."""
    fleet = with_domain(
        Fleet(),
        Domain("left", price_micro_units=100, currency="CNY", carbon_g_per_kwh=900.0),
        [a_node("l", "left")],
    )
    right = Domain("right", price_micro_units=500, currency="CNY", carbon_g_per_kwh=100.0)
    fleet = with_domain(fleet, right, [a_node("r", "right")])
    policy = Policy(scores=(("price", 1.0), ("carbon", 0.4)), order=("age",))
    cluster = a_cluster(fleet, policy, [a_unit("j", Demand(1, accelerators=1))], [])
    found = {item.field: item for item in counterfactuals(cluster, policy, UnitKey("j", 0), NOW_S)}
    assert found["policy.scores.carbon"].new == pytest.approx(1.0, abs=0.0011)
    assert found["policy.scores.price"].new == pytest.approx(0.4, abs=0.0011)
    assert (found["policy.scores.carbon"].bound, found["policy.scores.price"].bound) == ("at least", "at most")


def test_what_would_let_a_waiting_unit_start() -> None:
    fleet = a_fleet({"a": 1, "b": 1})
    policy = Policy(order=("priority", "age"), preemptions=("priority",))
    running = [
        a_unit("holder", Demand(1, accelerators=3, domains=frozenset({"a"})), expected_s=5000.0),
        a_unit("other", Demand(1, accelerators=1, domains=frozenset({"b"})), expected_s=9000.0),
    ]
    waiting = [a_unit("w", Demand(1, accelerators=3, domains=frozenset({"a"})))]
    cluster = a_cluster(fleet, policy, running, waiting)
    found = {item.field: item for item in flips(fleet, policy, cluster, UnitKey("w", 0))}
    # One of four accelerators is free in a; b has three free.
    assert (found["accelerators"].new, found["accelerators"].old) == (1, 3)
    assert found["domains"].new == ["a", "b"]
    assert found["units.holder.0"].sentence == "It would start now in a if holder.0 (lab) ended"
    assert found["priority"].new == 1
    assert found["priority"].outcome.preempted == (UnitKey("holder", 0),)


def test_the_run_time_with_which_it_would_be_backfilled() -> None:
    """By hand: the head needs both nodes and is reserved when the run of 1500 s that began at 0 ends: 500 s from now."""
    fleet = a_fleet({"a": 2})
    policy = Policy(order=("priority", "age"), discipline="easy")
    running = [a_unit("runs", Demand(1, accelerators=4), expected_s=1500.0)]
    wide = a_unit("wide", Demand(2, accelerators=4), expected_s=600.0)
    long = a_unit("long", Demand(1, accelerators=4), expected_s=6000.0, queued_at_s=1.0)
    cluster = a_cluster(fleet, policy, running, [wide, long])
    found = {item.field: item for item in flips(fleet, policy, cluster, UnitKey("long", 0))}
    assert found["expected_s"].new == pytest.approx(500.0, abs=1.0)


def test_a_unit_that_is_not_there_has_none() -> None:
    policy = Policy(order=("age",))
    with pytest.raises(KeyError):
        counterfactuals(Cluster(table_of(a_fleet({"a": 1})), policy), policy, UnitKey("no", 0), NOW_S)


def test_a_run_that_is_told_to_stop_is_named_as_a_run() -> None:
    world = World(a_fleet({"a": 1}, devices=1))
    world.submit("first", task(accelerators=1))
    world.cycle()
    run = world.run("first")
    world.cancel("first")
    world.submit("next", task(accelerators=1))
    world.cycle()
    cluster, key = world.book.cluster, UnitKey("next", 0)
    (found,) = [
        item for item in counterfactuals(cluster, world.policy, key, world.now_s) if item.change.ended is not None
    ]
    assert found.field == f"runs.{run.run_id}"
    assert found.sentence == "It would start now in a if the run first.0.1 (lab), which is told to stop, had ended"
    pending = cluster.pending.get(key)
    assert pending is not None
    assert [item.name for item in blockers(cluster, pending, world.now_s).holders] == [run.run_id]


def test_the_least_priority_is_that_of_an_equal_that_is_younger() -> None:
    """A node has come free; of two that want it the younger has priority 2. With 2 the older one goes first."""
    whole = Demand(1, accelerators=4)
    policy = Policy(order=("priority", "age"))
    urgent, own = a_unit("urgent", whole, priority=2, queued_at_s=5.0), a_unit("own", whole, queued_at_s=1.0)
    cluster = a_cluster(a_fleet({"a": 1}), policy, [], [urgent, own])
    (found,) = [item for item in counterfactuals(cluster, policy, own.key, 10.0) if item.field == "priority"]
    assert (found.old, found.new, found.bound) == (0, 2, "at least")


def test_nothing_need_be_otherwise_where_it_would_start_if_reservations_were_made_anew() -> None:
    """One node of 4, half of it held by q until 100. W of p wants all of it and is reserved at 100, so V of q, which runs longer,
    waits. Then p gets most of the CPUs: by fair share V would come first now, but W keeps what it has. Whatever were
    otherwise, V would start: none of that is the reason."""
    policy = Policy(order=("fair_share", "age"), discipline="conservative")
    held = a_unit("held", Demand(1, accelerators=2), tenant_id="q", expected_s=100.0)
    cluster = a_cluster(a_fleet({"a": 1}), policy, [held], [])
    large = a_unit("large", Demand(1, accelerators=4), tenant_id="p", expected_s=50.0, queued_at_s=1.0)
    long = a_unit("long", Demand(1, accelerators=2), tenant_id="q", expected_s=500.0, queued_at_s=1.0)
    for at_s, units in (
        (1.0, [large, long]),
        (2.0, [a_unit("cpus", Demand(1, cpus=7.0), tenant_id="p", expected_s=900.0)]),
    ):
        cluster.extend(units)
        cluster.apply(decide(cluster, policy, at_s), at_s)
    assert long.key in {item.key for item in decide(cluster.copy(), policy, 3.0).waiting}
    assert counterfactuals(cluster, policy, long.key, 3.0) == ()


def test_the_amounts_of_a_rank_that_would_start_are_named() -> None:
    """Of what a node has in all, and of what is left of it."""
    fleet = a_fleet({"a": 2}, devices=1, resources={"licence": 3.0})
    held = a_unit("held", Demand(1, cpus=2.0, memory_bytes=48 * 2**30, resources=(("licence", 1.0),)))
    for demand, field, new, words in (
        (Demand(1, cpus=1.0, resources=(("licence", 6.0),)), "user_resources.licence", 3, "3 licence per rank"),
        (
            Demand(2, cpus=1.0, resources=(("licence", 2.5),)),
            "user_resources.licence",
            2,
            "2 licence per rank instead of 2.5",
        ),
        (Demand(1, cpus=1.0, resources=(("tape", 1.0),)), "user_resources.tape", 0, "0 tape per rank"),
        (Demand(1, cpus=9.0), "cpus", 8, "8 cpus per rank instead of 9"),
        (Demand(1, cpus=1.0, memory_bytes=65 * 2**30), "memory_bytes", 64 * 2**30, "68719476736 bytes of memory"),
    ):
        unit = a_unit("wants", demand)
        cluster = a_cluster(fleet, Policy(), [held], [unit])
        found = {item.field: item for item in counterfactuals(cluster, Policy(), unit.key, NOW_S)}
        assert field in found, demand
        item = found[field]
        assert item.new <= new
        assert words in item.sentence
        assert anew(fleet, Policy(), cluster, unit.key, item, unit) is not None
