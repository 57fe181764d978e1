"""Quotas where tenants are split over shards: what is taken is exact, what would not be is refused and named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meridian.sharding import shard_of_tenant
from services.scheduler.core.apart.quotas import check_shards
from services.scheduler.core.entitlement.queues import QueueSpec
from services.scheduler.core.entitlement.quota import QuotaTree
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.policy import Policy
from tests.unit.scheduler.selection.plays import a_policy

SHARDS = 3
APART = {"borrowing_limit": {"accelerators": 0}, "lending_limit": {"accelerators": 0}}
ORGANISATIONS = ("acme", "globex")


def policy(queues: Sequence[dict[str, Any]], **more: Any) -> Policy:
    return a_policy(limits=["quota"], options={"quota": {"queues": list(queues), **more}})


def tree(**acme: Any) -> list[dict[str, Any]]:
    return [
        {"name": "all"},
        {"name": "acme", "parent": "all", "nominal": {"accelerators": 8}, **APART, **acme},
        {"name": "acme.vision", "parent": "acme", "nominal": {"accelerators": 4}},
        {"name": "acme.speech", "parent": "acme", "nominal": {"accelerators": 2}, "max_running": 3},
        {"name": "globex", "parent": "all", "nominal": {"accelerators": 6}, **APART},
    ]


def test_organisations_in_two_shards_are_taken() -> None:
    assert len({shard_of_tenant(name, SHARDS) for name in ORGANISATIONS}) == 2
    check_shards(policy(tree()), SHARDS, shard_of_tenant)


@pytest.mark.parametrize(
    ("queues", "field"),
    [
        (tree(borrowing_limit={"accelerators": 1}), "options.quota.queues.acme.borrowing_limit.accelerators"),
        (tree(borrowing_limit={}), "options.quota.queues.acme.borrowing_limit.accelerators"),
        (tree(lending_limit={}), "options.quota.queues.acme.lending_limit.accelerators"),
        ([{"name": "all", "max_running": 9}, *tree()[1:]], "options.quota.queues.all.max_running"),
        # A team that is not named after its organisation lies elsewhere.
        (
            [*tree(), {"name": "globex-two", "parent": "globex"}, {"name": "lab-5", "parent": "globex"}],
            "options.quota.queues.globex-two.borrowing_limit.accelerators",
        ),
    ],
)
def test_what_several_shards_would_have_to_count_together_is_refused(queues: list[dict[str, Any]], field: str) -> None:
    with pytest.raises(PolicyError, match=field):
        check_shards(policy(queues), SHARDS, shard_of_tenant)
    check_shards(policy(queues), 1, shard_of_tenant)


def test_a_queue_for_all_other_tenants_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"options\.quota\.others"):
        check_shards(policy(tree(), others="globex"), SHARDS, shard_of_tenant)


def test_without_the_limit_nothing_is_looked_at() -> None:
    check_shards(replace(policy(tree(lending_limit={})), limits=()), SHARDS, shard_of_tenant)


AMOUNTS = st.integers(0, 6)
TEAMS = st.fixed_dictionaries(
    {"nominal": AMOUNTS, "borrowing_limit": st.none() | AMOUNTS, "lending_limit": st.none() | AMOUNTS}
)


@st.composite
def trees(draw: st.DrawFn) -> list[QueueSpec]:
    """A root, organisations that are apart, teams with limits of any kind below them."""

    def amounts(value: int | None) -> dict[str, float]:
        return {} if value is None else {"accelerators": float(value)}

    specs = [QueueSpec("all", nominal=amounts(draw(AMOUNTS)))]
    for number in range(draw(st.integers(2, 5))):
        name = f"org-{number}"
        specs.append(QueueSpec(name, "all", amounts(draw(AMOUNTS)), amounts(0), amounts(0)))
        for team in range(draw(st.integers(0, 3))):
            found = draw(TEAMS)
            running = draw(st.none() | st.integers(0, 3))
            nominal, borrowing, lending = (
                amounts(found[key]) for key in ("nominal", "borrowing_limit", "lending_limit")
            )
            specs.append(QueueSpec(f"{name}.team-{team}", name, nominal, borrowing, lending, max_running=running))
    return specs


@given(trees(), st.lists(st.tuples(st.integers(0, 99), st.integers(0, 4)), max_size=40))
def test_each_shard_alone_decides_as_one_that_counts_all(specs: list[QueueSpec], asked: list[tuple[int, int]]) -> None:
    queues = [
        {
            "name": spec.name,
            "parent": spec.parent,
            **{key: dict(getattr(spec, key)) for key in ("nominal", "borrowing_limit", "lending_limit")},
            **({} if spec.max_running is None else {"max_running": spec.max_running}),
        }
        for spec in specs
    ]
    queues[0] = {"name": "all", "nominal": queues[0]["nominal"]}
    check_shards(policy(queues), SHARDS, shard_of_tenant)
    whole, alone = QuotaTree(specs), [QuotaTree(specs) for _ in range(SHARDS)]
    for place, accelerators in asked:
        name = specs[place % len(specs)].name
        own = alone[shard_of_tenant(name, SHARDS)]
        amounts = {"accelerators": accelerators * 1000}
        verdict = whole.admits(name, amounts)
        assert own.admits(name, amounts).ok == verdict.ok
        if verdict.ok:
            whole.charge(name, amounts)
            own.charge(name, amounts)
