"""What the parts of a policy do beside a planner: which have no effect and are refused, and which have one."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import Decisions, decide
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.fleet import Domain, Fleet, with_domain
from services.scheduler.core.policy import NOT_FOR_PLANNERS, Policy, RestartRules
from services.scheduler.core.stages import check
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.plans.catalogue import PLANNERS, register_all
from services.scheduler.policy.file import parse, shipped, shipped_names, stored
from tests.unit.scheduler.world import a_node

register_all()
NAMES = [plugin.name for plugin in PLANNERS]
UNREAD: dict[str, Any] = {
    "preemptions": ("priority",),
    "discipline": "conservative",
    "reservation_depth": 3,
    "estimate": "limit",
    "backfill_estimate": "high",
    "backfill_order": "shortest",
}


def planned(planner: str, **more: Any) -> Policy:
    return Policy(name="p", planner=planner, restarts=RestartRules(least_run_s=0.0), **more)


def decided(policy: Policy, seed: int) -> list[Decisions]:
    """Three cycles, an end before each but the first."""
    rng = random.Random(seed)
    fleet = Fleet()
    for name, model in (("a", "H100"), ("b", "V100")):
        nodes = [a_node(f"{name}-{number}", name, devices=2, model=model) for number in range(2)]
        fleet = with_domain(fleet, Domain(name, price_micro_units=rng.randint(1, 900)), nodes, full_of=name)
    cluster = Cluster(table_of(fleet), policy)
    found = []
    for step in range(3):
        for number in range(5):
            demand = Demand(1, cpus=1.0, accelerators=rng.choice([0, 1, 1, 2]))
            known = {"expected_s": rng.uniform(10, 900), "limit_s": 1000.0, "deadline_s": rng.choice([200.0, 9e9])}
            tenant, priority = rng.choice(["lab", "web"]), rng.choice([0, 0, 5])
            key, at_s = UnitKey(f"j{step}-{number}", 0), 100.0 * step + number
            cluster.add(PendingUnit(key, tenant, priority, at_s, demand, **known))
        found.append(decide(cluster, policy, 100.0 * step + 50.0, explain=False))
        off = [cluster.running[item.key] for item in found[-1].preempted]
        begun = cluster.apply(found[-1], 100.0 * step + 50.0)
        again = {item.unit.key for item in begun}
        for item in off:
            if item.unit.key not in again:
                cluster.add(item.unit)
        if cluster.running:
            cluster.release(min(cluster.running), 100.0 * step + 60.0)
    return found


def said(found: list[Decisions]) -> list[Any]:
    return [([(item.key, item.ranks) for item in one.placed], [item.key for item in one.preempted]) for one in found]


def test_every_field_that_planners_do_not_read_is_tried_here() -> None:
    assert set(UNREAD) == set(NOT_FOR_PLANNERS)


@pytest.mark.parametrize("planner", NAMES)
def test_what_is_refused_has_no_effect(planner: str) -> None:
    for seed in range(3):
        expected = said(decided(planned(planner), seed))
        assert any(placed for placed, _ in expected)
        for name, value in UNREAD.items():
            assert said(decided(planned(planner, **{name: value}), seed)) == expected, name
        # Not refused, as it says which place in the queue is told.
        assert said(decided(planned(planner, order=("shortest", "age")), seed)) == expected


@pytest.mark.parametrize("name", UNREAD)
def test_what_has_no_effect_beside_a_planner_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(PolicyError, match=f"^{name}: has no effect beside a planner: gavel says who runs"):
        check(planned("gavel", **{name: UNREAD[name]}))
    check(planned("gavel"))
    check(Policy(**{name: UNREAD[name]}))


def test_the_place_in_the_document_is_named() -> None:
    text = "name: x\nplanner: gavel\nselection:\n  preemption: [priority]"
    with pytest.raises(PolicyError) as caught:
        parse(text)
    (error,) = caught.value.errors
    assert error.pointer == "/selection/preemption"
    assert error.detail == (
        "line 4: selection.preemption: has no effect beside a planner: gavel says who runs and who is taken off"
    )
    with pytest.raises(PolicyError, match=r"line 3: selection.order: starvation protects nobody beside a planner"):
        parse("planner: gavel\nselection:\n  order: [starvation, age]")
    with pytest.raises(
        PolicyError, match=r"line 3: queues\[0\].priority_boost: a boost has no effect: the planner gavel"
    ):
        parse("planner: gavel\nselection: {order: [boosted_priority]}\nqueues: [{name: org, priority_boost: 2}]")


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_policy_may_be_extended_by_a_planner(name: str) -> None:
    """What the planner does in its own way does not come along; where to place, weights and restarts do."""
    before, policy = shipped(name), parse(f"name: mine\nextends: {name}\nplanner: gavel\ninterval_s: 60")
    assert policy.unread == ()
    assert (policy.planner, policy.unlike_planner) == ("gavel", "")
    for same in ("filters", "scores", "order", "domain_node_scores", "tenant_weights", "restarts"):
        assert getattr(policy, same) == getattr(before, same)
    # What the API tells can be put back.
    assert parse(json.dumps(policy.as_json())) == policy


def test_what_the_document_itself_says_beside_an_inherited_planner_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"line 3: selection.discipline: has no effect beside a planner"):
        parse("extends: priority-preemption\nplanner: gavel\nselection: {discipline: easy}")


@pytest.mark.parametrize("planner", NAMES)
def test_where_units_go_beside_a_planner_is_the_scores_to_say(planner: str) -> None:
    """Units without a rate go by the scores of the policy; where the plan names a model, among its nodes."""
    policies = [planned(planner, scores=((name, 1.0),)) for name in ("pack", "spread")]
    assert any(said(decided(policies[0], seed)) != said(decided(policies[1], seed)) for seed in range(12))


def test_a_stored_policy_of_before_goes_on_without_what_has_no_effect() -> None:
    policy = Policy(
        name="old",
        planner="gavel",
        interval_s=60.0,
        preemptions=("order",),
        discipline="easy",
        options=(("order", (("margin_s", 300),)), ("gavel", (("objective", "las"),))),
    )
    body = policy.as_json()
    del body["version"]
    found, left_out = stored(json.dumps(body))
    assert left_out == ("preemptions", "discipline")
    assert found == replace(policy, preemptions=(), discipline="greedy", options=(("gavel", (("objective", "las"),)),))
    # The document that it was set by is read again when a tenant changes its weights.
    document = "name: old\nplanner: gavel\ninterval_s: 60\nselection: {preemption: [{order: {margin_s: 300}}], discipline: easy}\n"
    with pytest.raises(PolicyError, match="no effect beside a planner"):
        parse(document)
    found, left_out = stored(document)
    assert left_out == ("preemptions", "discipline")
    assert found == parse("name: old\nplanner: gavel\ninterval_s: 60\n")
    for name in shipped_names():
        body = shipped(name).as_json()
        assert stored(json.dumps(body)) == (shipped(name), ())
    with pytest.raises(PolicyError, match="planners read no limits"):
        stored(json.dumps({**policy.as_json(), "limits": ["max_running"]}))
