"""Objectives weighed per tenant: the score, whose unit it judges, and fronts of waiting jobs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.fleet import Domain, Fleet, Link
from services.scheduler.core.front.explorer import explore
from services.scheduler.core.front.pareto import coverage, exact_front, pick
from services.scheduler.core.front.tenants import front_json, problem_for
from services.scheduler.core.policy import Policy, policy_from_json
from services.scheduler.core.stages import check
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.tenants_objectives import ChebyshevScore, domain_costs, state_tenant
from services.scheduler.core.two_level import InterDomain, LocalDomain
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit
from tests.unit.scheduler.world import a_node

GIB = 2.0**30
WEIGHTS = {
    "hasty": {"completion": 1.0},
    "thrifty": {"transfer": 1.0},
    "green": {"energy": 1.0},
}
"""A tenant for each of the three domains."""


def a_network() -> Fleet:
    """Data lies in "fast", which is full of watts; moving it to "frugal" takes long, to "cheap" it costs nothing but time.

    fast -> frugal: 1 GiB/s, 10 micro-units per GiB x 1e5; fast -> cheap: 0.01 GiB/s, free.
    """
    links = (Link("frugal", 0.01, GIB, 1_000_000), Link("cheap", 0.01, GIB / 100, 0))
    domains = {
        "fast": Domain("fast", price_micro_units=3_000_000, currency="CNY"),
        "frugal": Domain("frugal", price_micro_units=2_000_000, currency="CNY"),
        "cheap": Domain("cheap", price_micro_units=1_000_000, currency="CNY"),
        "data": Domain("data", links=(Link("fast", 0.01, 10 * GIB, 2_000_000), *links)),
    }
    watts = {"fast": 2000.0, "frugal": 400.0, "cheap": 1200.0}
    nodes = {
        f"{name}-{number}": a_node(f"{name}-{number}", name, devices=4, idle_watts=watts[name])
        for name in watts
        for number in range(2)
    }
    return Fleet(domains, nodes)


def a_policy(weights: dict[str, dict[str, float]] | None = None, **options: object) -> Policy:
    given = {"weights": WEIGHTS if weights is None else weights, **options}
    return policy_from_json(
        {"scores": {"chebyshev": 1.0, "pack": 1.0}, "order": ["age"], "options": {"chebyshev": given}}
    )


def unit(number: int, tenant: str, accelerators: int = 2, **more: object) -> PendingUnit:
    demand = Demand(1, accelerators=accelerators, data=(("data", 10 * GIB),))
    return PendingUnit(UnitKey("job", number), tenant, 0, float(number), demand, **more)  # type: ignore[arg-type]


# -- the score ---------------------------------------------------------------------------------------------------------


def test_what_a_domain_costs_is_worked_out_by_objective() -> None:
    view = Cluster(table_of(a_network()), Policy()).view
    costs = dict(zip(view.table.domain_ids, domain_costs(view, unit(0, "x").demand).tolist(), strict=True))
    # completion = 3600 s + transfer; idle = (8 - 2) / 8; transfer = 10 GiB x price; energy = 2 x W x 1 h.
    assert costs["fast"] == pytest.approx([3601.0, 0.75, 20e6, 2 * 500 / 1000])
    assert costs["frugal"] == pytest.approx([3610.0, 0.75, 10e6, 2 * 100 / 1000])
    assert costs["cheap"] == pytest.approx([4600.0, 0.75, 0.0, 2 * 300 / 1000])


def test_in_one_cycle_each_tenant_goes_where_its_own_weights_send_it() -> None:
    policy = a_policy()
    cluster = Cluster(table_of(a_network()), policy)
    # Equal demands, so they are one class to the scheduler: only the tenant differs.
    units = [unit(number, tenant) for number, tenant in enumerate(("hasty", "thrifty", "green", "hasty", "green"))]
    cluster.extend(units)
    placed = {item.unit.key: item.ranks[0].domain_id for item in decide(cluster, policy, 0.0).placed}
    assert [placed[item.key] for item in units] == ["fast", "cheap", "frugal", "fast", "frugal"]


def test_swapping_the_weights_of_two_tenants_swaps_their_domains() -> None:
    swapped = {**WEIGHTS, "hasty": WEIGHTS["green"], "green": WEIGHTS["hasty"]}
    cluster = Cluster(table_of(a_network()), a_policy(swapped))
    cluster.extend([unit(0, "hasty"), unit(1, "green")])
    placed = [item.ranks[0].domain_id for item in decide(cluster, cluster.policy, 0.0).placed]
    assert placed == ["frugal", "fast"]


def test_a_compromise_is_chosen_that_a_weighted_sum_would_not_choose() -> None:
    """Three domains on a concave front of two objectives: (0, 1), (0.6, 0.6), (1, 0), in units of the scales."""
    fleet = a_network()
    view = Cluster(table_of(replace(fleet, nodes=fleet.nodes)), Policy()).view
    names = view.table.domain_ids
    waits = {"fast": 0.0, "frugal": 600.0, "cheap": 1000.0, "data": 9e9}
    watts = {"fast": 1000.0, "frugal": 600.0, "cheap": 0.0, "data": 9e9}
    view.state("expected_wait_s", [waits[name] for name in names])
    view.state("accelerator_watts", [watts[name] for name in names])
    demand = Demand(1, accelerators=1)
    even = {"default": {"completion": 1.0, "energy": 1.0}}
    values = ChebyshevScore(even, {"completion": 1000.0, "energy": 1.0}).domains(view, demand)
    assert names[int(values.argmax())] == "frugal"
    costs = domain_costs(view, demand)
    sums = costs[:, 0] / 1000.0 + costs[:, 3] / 1.0
    assert names[int(sums.argmin())] == "cheap"


def test_tenants_without_weights_have_the_default_ones_or_equal_ones() -> None:
    view = Cluster(table_of(a_network()), Policy()).view
    demand = unit(0, "x").demand
    state_tenant(view, "nobody")
    default = ChebyshevScore({"default": {"energy": 1.0}}).domains(view, demand)
    state_tenant(view, "green")
    np.testing.assert_array_equal(ChebyshevScore(WEIGHTS).domains(view, demand), default)
    everything = dict.fromkeys(("completion", "idle", "transfer", "energy"), 1.0)
    np.testing.assert_allclose(
        ChebyshevScore().domains(view, demand), ChebyshevScore({"default": everything}).domains(view, demand)
    )
    assert ((default > 0) & (default <= 1)).all()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"weights": {"a": {"speed": 1}}}, "chebyshev.weights.a.speed: there is no such objective"),
        ({"weights": {"a": {"energy": -1}}}, "chebyshev.weights.a.energy: must not be negative"),
        ({"weights": {"a": {"energy": 0}}}, "chebyshev.weights.a: at least one"),
        ({"weights": {"a": {"energy": "x"}}}, "weights.a.energy: a finite number is wanted"),
        ({"weights": {"a": 3}}, "objects of numbers"),
        ({"scales": {"energy": 0}}, "scales.energy: must be at least"),
        ({"scales": {"speed": 1}}, "scales.speed: unknown option"),
        ({"reference_s": -1}, "reference_s"),
        ({"wheights": {}}, "wheights: unknown option"),
    ],
)
def test_bad_options_name_the_field(options: dict[str, object], field: str) -> None:
    policy = policy_from_json({"scores": {"chebyshev": 1.0}, "options": {"chebyshev": options}})
    with pytest.raises(PolicyError, match=field):
        check(policy)


def test_the_dispatcher_of_two_levels_weighs_for_each_tenant_too() -> None:
    fleet, policy = a_network(), a_policy()
    parts = [
        LocalDomain(
            Cluster(
                table_of(
                    Fleet({name: fleet.domains[name]}, {k: v for k, v in fleet.nodes.items() if v.domain_id == name})
                ),
                policy,
            )
        )
        for name in ("fast", "frugal", "cheap")
    ]
    whole = Cluster(table_of(fleet), policy)
    units = [unit(0, "hasty"), unit(1, "green")]
    whole.extend(units)
    costs = {"fast": 100.0, "frugal": 50.0, "cheap": 0.0}
    inter = InterDomain(fleet, [part.summary([units[0].demand]) for part in parts], policy)
    names = inter.view.table.domain_ids
    inter.view.state("expected_wait_s", [50.0 - costs[name] / 2 for name in names])
    inter.view.state("accelerator_watts", [costs[name] for name in names])
    found = inter.dispatch(whole.pending, OrderContext(whole.shares()))
    # Nothing is known of the data's domain there: the wait decides for the hasty one, the watts for the green one.
    assert [item.domain_id for item in found.assigned] == ["fast", "cheap"]


# -- fronts ------------------------------------------------------------------------------------------------------------


def three_jobs() -> list[PendingUnit]:
    return [unit(number, "lab", 4, expected_s=3600.0 * (number + 1)) for number in range(3)]


def test_a_front_offers_places_and_waiting_and_reaches_the_true_one() -> None:
    cluster = Cluster(table_of(a_network()), Policy())
    problem = problem_for(three_jobs(), cluster, "lab")
    assert problem.options == ("cheap/A100", "fast/A100", "frugal/A100", "wait")
    assert problem.capacity.tolist() == [8.0, 8.0, 8.0]
    front = explore(problem_for(three_jobs(), cluster, "lab"), 200)
    truth = exact_front(problem)
    assert len(truth) > 3
    assert coverage(truth.costs, front.costs) >= 0.95
    # At most two jobs of four accelerators fit into eight.
    for assignment in front.assignments:
        counts = np.bincount(assignment, minlength=4)
        assert (counts[:3] <= 2).all()


def test_costs_of_an_option_are_those_of_the_job_there() -> None:
    problem = problem_for(three_jobs()[:1], Cluster(table_of(a_network()), Policy()), "lab", wait_s=1000.0)
    fast = problem.contributions[0, 1]
    # 1 h and 1 s of transfer; 20 micro-units x 1e6 for the data and 4 x 3e6 for the hour; 4 x 500 W.
    np.testing.assert_allclose(fast, [3601.0, 0.0, 20e6 + 12e6, 2.0])
    # Waiting: 1000 s more than the quickest, four accelerators idle, the least money (cheap: 4e6) and energy (4 x 100 W).
    np.testing.assert_allclose(problem.contributions[0, 3], [4601.0, 4.0, 4e6, 0.4])


def test_weights_flip_the_point_that_is_picked() -> None:
    front = explore(problem_for(three_jobs(), Cluster(table_of(a_network()), Policy()), "lab"), 200)
    quick, green = pick(front, [1.0, 0.01, 0.01, 0.01]), pick(front, [0.01, 0.01, 0.01, 1.0])
    assert quick.index != green.index
    assert front.points[quick.index, 0] < front.points[green.index, 0]
    assert front.points[quick.index, 3] > front.points[green.index, 3]


def test_occupied_accelerators_are_no_option() -> None:
    cluster = Cluster(table_of(a_network()), Policy())
    filling = replace(unit(9, "other"), demand=Demand(2, accelerators=4, domains=frozenset({"frugal"})))
    cluster.add(filling)
    cluster.apply(decide(cluster, cluster.policy, 0.0), 0.0)
    assert problem_for(three_jobs(), cluster, "lab").options == ("cheap/A100", "fast/A100", "wait")


def test_jobs_without_accelerators_share_processors() -> None:
    cluster = Cluster(table_of(a_network()), Policy())
    jobs = [replace(unit(0, "lab"), demand=Demand(2, cpus=3.0))]
    problem = problem_for(jobs, cluster, "lab")
    assert problem.options == ("cheap", "fast", "frugal", "wait")
    assert problem.demand[0].tolist() == [6.0, 6.0, 6.0, 0.0]
    assert problem.capacity.tolist() == [16.0, 16.0, 16.0]


def test_the_answer_for_an_api_is_json_with_names_and_reasons() -> None:
    cluster = Cluster(table_of(a_network()), Policy())
    body = front_json(three_jobs(), cluster, "lab", weights={"energy": 1.0})
    assert json.loads(json.dumps(body)) == body
    assert body["tenant"] == "lab"
    assert {item["name"] for item in body["objectives"]} == {"completion", "idle", "money", "energy"}
    assert set(body["points"][0]["assignment"]) == {"job.0", "job.1", "job.2"}
    assert "energy" in body["choice"]["text"]
    assert front_json(three_jobs(), cluster, "lab")["choice"] is None
    by_index = front_json(three_jobs(), cluster, "lab", index=0)
    assert by_index["choice"]["index"] == 0


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"jobs": []}, "jobs: none"),
        ({"tenant": "other"}, "jobs.job.0: is not a job of 'other'"),
        ({"jobs": [unit(0, "lab"), unit(0, "lab")]}, "jobs.job.0: is given twice"),
        ({"wait_s": -1.0}, "wait_s"),
        ({"weights": {"speed": 1.0}}, "weights.speed"),
        ({"weights": {"energy": 1.0}, "index": 0}, "either weights or index"),
        ({"index": 99}, "index must lie"),
        ({"solves": 2}, "solves must be at least"),
    ],
)
def test_bad_requests_name_the_field(arguments: dict[str, object], field: str) -> None:
    given = {"jobs": three_jobs(), "tenant": "lab", "cluster": Cluster(table_of(a_network()), Policy()), **arguments}
    with pytest.raises(PolicyError, match=field):
        front_json(**given)  # type: ignore[arg-type]
