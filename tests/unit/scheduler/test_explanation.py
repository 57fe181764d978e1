"""Explanations: what is printed makes the choice again, over random clusters and policies; stages; copies."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meridian.cli.explanation import lines
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.cycle import run_cycle
from services.scheduler.core.decide import decide
from services.scheduler.core.deciding.decisions import Decisions, Placement
from services.scheduler.core.explaining.explanation import (
    NO_RANKING,
    STAGES,
    Ranking,
    rederive,
    sentences,
    weighed,
    with_cause,
)
from services.scheduler.core.fleet import Domain, Fleet, Link, with_domain
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import PendingUnit
from tests.unit.scheduler.world import GIB, World, a_fleet, a_node, task

SCORES = [name for name, _ in Policy().scores]


def a_random_cluster(seed: int, discipline: str) -> tuple[Cluster, Policy]:
    """Domains that differ in price, carbon and size, nodes partly taken, many gangs of different shapes."""
    rng = random.Random(seed)
    fleet = Fleet()
    names = [f"d{number}" for number in range(rng.randint(1, 5))]
    for name in names:
        links = tuple(Link(other, rng.choice([0.001, 0.02, 0.2]), 1e9) for other in names if other != name)
        domain = Domain(
            name,
            links=links,
            price_micro_units=rng.choice([0, 5, 9, 9, 20]),
            currency="CNY",
            carbon_g_per_kwh=rng.choice([0.0, 200.0, 600.0]),
            security_level=rng.randint(0, 2),
        )
        nodes = [
            a_node(
                f"{name}-{number}",
                name,
                cpus=rng.choice([8.0, 16.0]),
                devices=rng.choice([2, 4, 8]),
                model=rng.choice(["A100", "A100", "910B"]),
                topology={"rack": f"r{number % 2}"},
            )
            for number in range(rng.randint(1, 6))
        ]
        fleet = with_domain(fleet, domain, nodes)
    scores = tuple((name, rng.choice([0.0, 0.25, 1.0, 2.0])) for name in SCORES)
    own = ((names[0], (("pack", rng.choice([0.0, 3.0])),)),) if rng.random() < 0.3 else ()
    policy = Policy(
        order=("priority", "age"),
        scores=scores,
        discipline=discipline,
        domain_node_scores=own,
        shown_candidates=rng.choice([1, 2, 5]),
    )
    cluster = Cluster(table_of(fleet), policy)
    for number in range(rng.randint(5, 30)):
        expected_s = rng.choice([60.0, 600.0, 6000.0])
        demand = Demand(
            rng.choice([1, 1, 1, 2, 3, 6, 12]),
            cpus=1.0,
            memory_bytes=GIB,
            accelerators=rng.choice([0, 1, 2, 4]),
            accelerator_types=rng.choice([(), (), ("A100",)]),
            min_security_level=rng.choice([0, 0, 1]),
            cross_domain=rng.random() < 0.4,
            topology=rng.choice(["", "", "rack"]),
            checkpoint_domain=rng.choice(["", names[0]]),
            checkpoint_bytes=GIB,
        )
        key = UnitKey(f"j{number}", 0)
        cluster.add(PendingUnit(key, "t", rng.randint(0, 2), float(number), demand, expected_s=expected_s))
    return cluster, policy


def check(item: Placement, rng: random.Random) -> None:
    assert item.explanation is not None
    body = json.loads(json.dumps(item.explanation.as_json()))
    nodes: dict[str, int] = {}
    for rank in item.ranks:
        nodes[rank.node_id] = nodes.get(rank.node_id, 0) + 1
    place = "+".join(dict.fromkeys(rank.domain_id for rank in item.ranks))
    found = rederive(body)
    assert found.place == place == body["chosen"]["place"]
    assert set(found.nodes) <= set(nodes.items())
    for domain in place.split("+"):
        taken = [(rank.node_id, nodes[rank.node_id]) for rank in item.ranks if rank.domain_id == domain]
        shown = [entry for entry in found.nodes if entry in taken]
        assert shown
        assert list(dict.fromkeys(taken))[: len(shown)] == shown
    assert sum(body["chosen"]["nodes"].values()) == sum(ranks for _, ranks in found.nodes)
    # However the candidates are listed: only ties depend on the order in which they are shown.
    key = "sets" if "sets" in body else "domains"
    compared = body[key]
    if key == "domains":
        compared = [entry for entry in compared if entry["ranks_that_fit"] >= body["ranks"]]
    sums = sorted(weighed(entry, body["weights"]) for entry in compared)
    if key == "domains" and (len(sums) == 1 or sums[-1] - sums[-2] > 1e-5):
        rng.shuffle(body["domains"])
        assert rederive(body).place == place
    # The best that was not chosen is there if any other has room.
    if key == "domains" and item.explanation.domains.feasible > 1:
        assert len(compared) > 1
    every = sum(body["weights"][name] * value for name, value in body.get("everywhere", {}).items())
    if key == "domains":
        chosen = next(entry for entry in body["domains"] if entry["place"] == place)
        assert weighed(chosen, body["weights"]) + every == pytest.approx(chosen["score"], abs=1e-6)
    assert sentences(body)[-1].endswith(f"policy {body['policy_version']}.")
    check_lines(body)


def check_lines(body: dict[str, Any]) -> None:
    """What the command line prints of a place adds up to its score."""
    unit = {"unit_index": 0, "state": "running", "placement": body, "sentences": sentences(body)}
    printed = lines({"job_id": "job-1", "state": "running", "policy_version": "1", "units": [unit]})
    alike = sum(map(added, (line for line in printed if line.startswith("  for every domain: "))))
    places = [line for line in printed if line.startswith(("  set ", "  domain ", "  node "))]
    assert any(line.startswith("  node ") for line in places)
    for line in places:
        score = float(line.split(": ")[1].split(",")[0])
        both = added(line) + (alike if line.startswith("  domain ") else 0.0)
        assert both == pytest.approx(score, abs=0.011 * len(line.split(" + ")) * 3)


def added(line: str) -> float:
    """The weighted sum at the end of a line."""
    terms = [term.rsplit(" ", 3) for term in line.rsplit(": ", 1)[1].split(" + ")]
    return sum(float(value) * float(weight) for _, value, _, weight in terms if value)


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(["greedy", "easy", "conservative", "strict"]))
def test_the_printed_reason_makes_the_choice_again(seed: int, discipline: str) -> None:
    cluster, policy = a_random_cluster(seed, discipline)
    rng = random.Random(seed)
    for now_s in (100.0, 200.0):
        decisions = decide(cluster, policy, now_s)
        for item in decisions.placed:
            check(item, rng)
        for waiting in decisions.waiting:
            body = waiting.explanation.as_json()
            assert body["stage"] in STAGES
            assert "chosen" not in body
        begun = cluster.apply(decisions, now_s)
        for running in begun[::2]:
            cluster.release(running.unit.key, now_s)


def test_the_random_clusters_have_choices_to_make() -> None:
    """Otherwise the property above would say nothing: units with rivals, spans and several nodes occur."""
    rivals = spans = many = beside = 0
    for seed in range(80):
        cluster, policy = a_random_cluster(seed, "easy")
        decisions = decide(cluster, policy, 100.0)
        for item in decisions.placed:
            assert item.explanation is not None
            rivals += item.explanation.domains.feasible > 1
            spans += bool(item.explanation.sets)
            many += len(item.explanation.nodes[0].chosen) > 1
        beside += len(decisions.reservations)
    assert min(rivals, spans, many, beside) >= 10, (rivals, spans, many, beside)


def one(decisions: Decisions) -> dict[str, object]:
    return decisions.waiting[0].explanation.as_json()


def placing(fleet: Fleet, *units: PendingUnit, policy: Policy | None = None) -> tuple[Cluster, Decisions]:
    policy = policy or Policy(order=("priority", "age"))
    cluster = Cluster(table_of(fleet), policy)
    cluster.extend(units)
    return cluster, decide(cluster, policy, 100.0)


def a_unit(name: str, demand: Demand, **more: object) -> PendingUnit:
    return PendingUnit(UnitKey(name, 0), "lab", 0, 0.0, demand, **more)  # type: ignore[arg-type]


def test_a_better_domain_without_room_for_all_ranks_is_not_taken_and_that_is_said() -> None:
    fleet = with_domain(Fleet(), Domain("cheap", price_micro_units=1, currency="CNY"), [a_node("c-0", "cheap")])
    dear = [a_node(f"d-{number}", "dear") for number in range(3)]
    fleet = with_domain(fleet, Domain("dear", price_micro_units=100, currency="CNY"), dear)
    policy = Policy(scores=(("price", 1.0),), shown_candidates=1)
    _, decisions = placing(fleet, a_unit("j", Demand(2, accelerators=4)), policy=policy)
    assert decisions.placed[0].explanation is not None
    body = decisions.placed[0].explanation.as_json()
    # By hand: the cheapest has value 1, the dearest 0; only the dear one has room for both ranks.
    assert [(item["place"], item["score"], item["ranks_that_fit"]) for item in body["domains"]] == [
        ("dear", 0.0, 3),
        ("cheap", 1.0, 1),
    ]
    assert rederive(body).place == "dear"
    assert "cheap scores more (1.00) but has room for 1 of 2 ranks." in sentences(body)


@pytest.mark.parametrize(
    ("demand", "stage"),
    [
        (Demand(1, accelerators=1, accelerator_types=("H800",)), "filters"),
        (Demand(3, accelerators=4), "size"),
        (Demand(1, accelerators=4), "capacity"),
    ],
)
def test_the_stage_that_decided_is_named(demand: Demand, stage: str) -> None:
    first = a_unit("first", Demand(2, accelerators=4), expected_s=60.0)
    cluster, decisions = placing(a_fleet({"a": 2}), first)
    cluster.apply(decisions, 100.0)
    cluster.add(a_unit("second", demand))
    assert one(decide(cluster, cluster.policy, 100.0))["stage"] == stage


def test_what_is_free_but_reserved_is_said_to_be() -> None:
    policy = Policy(order=("priority", "age"), discipline="easy")
    cluster, decisions = placing(a_fleet({"a": 2}), a_unit("runs", Demand(1, accelerators=4), expected_s=600.0))
    cluster.apply(decisions, 100.0)
    cluster.add(a_unit("wide", Demand(2, accelerators=4), expected_s=600.0))
    cluster.add(replace(a_unit("long", Demand(1, accelerators=4), expected_s=6000.0), queued_at_s=1.0))
    decisions = decide(cluster, policy, 100.0)
    stages = {item.key.job_id: item.explanation.as_json() for item in decisions.waiting}
    assert stages["wide"]["stage"] == "capacity"
    assert stages["long"]["stage"] == "reservation"
    assert stages["long"]["reason"].startswith("what is free is reserved for others: 1 ranks wanted, 1 would fit in a")


def test_an_explanation_that_shows_no_place_with_room_cannot_be_followed() -> None:
    _, decisions = placing(a_fleet({"a": 1}), a_unit("j", Demand(9, accelerators=4)))
    with pytest.raises(ValueError, match="no place with room"):
        rederive(one(decisions))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(["greedy", "easy", "conservative"]))
def test_a_copy_decides_as_the_original_and_changes_nothing_in_it(seed: int, discipline: str) -> None:
    cluster, policy = a_random_cluster(seed, discipline)
    cluster.apply(decide(cluster, policy, 100.0), 100.0)
    free = cluster.view.free_devices.copy(), cluster.view.free_cpus.copy()
    copy = cluster.copy()
    for key in list(copy.running)[::2]:
        copy.release(key, 150.0)
    there = decide(copy, policy, 150.0)
    copy.apply(there, 150.0)
    assert (cluster.view.free_devices == free[0]).all()
    assert (cluster.view.free_cpus == free[1]).all()
    for key in list(cluster.running)[::2]:
        cluster.release(key, 150.0)
    here = decide(cluster, policy, 150.0)
    assert [(item.key, item.ranks) for item in here.placed] == [(item.key, item.ranks) for item in there.placed]
    assert [(item.key, item.start_s) for item in here.waiting] == [(item.key, item.start_s) for item in there.waiting]


def test_those_behind_a_waiting_unit_in_a_strict_order_are_told_behind_whom() -> None:
    policy = Policy(order=("priority", "age"), discipline="strict")
    wide, small = a_unit("wide", Demand(3, accelerators=4)), a_unit("small", Demand(1, accelerators=1))
    _, decisions = placing(a_fleet({"a": 2}), wide, replace(small, queued_at_s=1.0), policy=policy)
    found = {item.key.job_id: item.explanation.as_json() for item in decisions.waiting}
    assert (found["wide"]["stage"], found["small"]["stage"]) == ("size", "order")
    assert found["small"]["reason"].startswith("behind wide.0 in the order, which waits: too large")


def test_what_led_to_a_placement_is_kept_with_it() -> None:
    preemptive = Policy(order=("priority", "age"), preemptions=("priority",))
    world = World(a_fleet({"a": 1}), preemptive)
    world.submit("low", task(accelerators=4))
    world.cycle()
    world.submit("high", replace(task(accelerators=4), priority=3))
    draft = world.book.draft()
    run_cycle(draft, preemptive, world.now_s, lambda: "dec")
    body = next(record.explanation for record in draft.records if record.key.job_id == "high")
    assert body["stage"] == "preemption"
    assert body["preempted"] == [{"unit": "low.0", "reason": "taken off by priority preemption for high.0"}]
    assert "For it low.0 was taken off." in sentences(body)
    assert rederive(body).place == "a"
    planned = with_cause({"stage": "scores"}, "longest first", [])
    assert planned == {"stage": "plan", "plan": "longest first"}


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-0.5, 0.0, 0.25, 1.0, 1.5])), min_size=1, max_size=40),
    st.integers(1, 3),
    st.integers(1, 8),
    st.data(),
)
def test_the_best_places_are_those_that_sorting_all_would_show(
    rows: list[tuple[int, float]], ranks: int, limit: int, data: st.DataObject
) -> None:
    first = data.draw(st.lists(st.sampled_from(range(len(rows))), unique=True, max_size=3))
    fits, totals = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    names = [f"n{number}" for number in range(len(rows))]
    shown = Ranking(names, ("pack",), totals[None], totals, fits, ranks).top(limit, first)
    rest = [place for place in range(len(rows)) if fits[place] > 0 and place not in first]
    rest.sort(key=lambda place: (fits[place] < ranks, -totals[place]))
    expected = [*first, *rest[: max(limit - len(first), 1)]]
    assert [(item.place, item.score, item.ranks_that_fit) for item in shown] == [
        (names[place], *reversed(rows[place])) for place in expected
    ]


def test_an_explanation_for_which_nobody_judged_places_names_none() -> None:
    assert NO_RANKING.feasible == 0
    assert NO_RANKING.top(5) == ()
