"""The order starvation: a bound on waiting under constant overload, in real decisions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meridian.errors import InvalidArgumentError
from services.scheduler.core.decide import decide
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.selection.starvation import start_bound_s
from services.scheduler.core.stages import check
from tests.unit.scheduler.selection.plays import Play, a_cluster, a_policy, a_unit, names

AFTER_S = 50.0
LONGEST_S = 20.0


def guarded(**fields: Any) -> Any:
    body = {
        "order": ["starvation", "priority", "age"],
        "discipline": "easy",
        "options": {"starvation": {"after_s": AFTER_S}},
    }
    return a_policy(**{**body, **fields})


def test_a_protected_unit_comes_first_and_the_oldest_of_them() -> None:
    policy = guarded()
    cluster = a_cluster(policy)
    cluster.add(a_unit("old", devices=3, queued_at_s=10.0, expected_s=5.0))
    cluster.add(a_unit("older", devices=3, queued_at_s=5.0, expected_s=5.0))
    cluster.add(a_unit("high", devices=3, queued_at_s=40.0, priority=9, expected_s=5.0))
    assert [names(decide(cluster, policy, now_s)) for now_s in (54.0, 55.0, 70.0)] == [["high"], ["older"], ["older"]]


def test_backfill_does_not_delay_a_protected_unit() -> None:
    policy = guarded()
    cluster = a_cluster(policy)
    play = Play(cluster, policy)
    # `wide` needs all 4; `running` ends at 110. At 100, `long` would delay it, `short` would not.
    play.run([a_unit("running", devices=3, queued_at_s=90.0, expected_s=20.0)], 90.0)
    cluster.add(a_unit("wide", devices=4, queued_at_s=0.0, expected_s=10.0))
    cluster.add(a_unit("long", devices=1, queued_at_s=95.0, priority=9, expected_s=11.0))
    cluster.add(a_unit("short", devices=1, queued_at_s=96.0, expected_s=10.0))
    decisions = decide(cluster, policy, 100.0)
    assert names(decisions) == ["short"]
    assert {item.key.job_id: item.start_s for item in decisions.waiting}["wide"] == 110.0
    unguarded = guarded(order=["priority", "age"], options={})
    assert "long" in names(decide(cluster, unguarded, 100.0))


loads = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, int(LONGEST_S)), st.integers(0, 5), st.sampled_from("xyz")),
    min_size=5,
    max_size=15,
)


@settings(max_examples=15, deadline=None)
@given(
    loads, st.integers(1, 2), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.sampled_from(["easy", "strict"])
)
def test_no_unit_waits_longer_than_the_bound_under_constant_overload(
    pattern: list[tuple[int, int, int, str]], nodes: int, wide: list[int], discipline: str
) -> None:
    # A unit of higher priority arrives every second, more than the nodes can run; `wide` want every node, at priority -1.
    policy = guarded(discipline=discipline)
    cluster = a_cluster(policy, nodes)
    units = []
    for second in range(300):
        devices, length, priority, tenant = pattern[second % len(pattern)]
        more = {"queued_at_s": float(second), "expected_s": float(length), "priority": priority}
        units.append(a_unit(f"u{second:03}", tenant, devices, **more))
    victims = [
        a_unit(f"w{number}", "w", devices, ranks=nodes, queued_at_s=5.0 + number, expected_s=LONGEST_S, priority=-1)
        for number, devices in enumerate(wide)
    ]
    play = Play(cluster, policy)
    older: dict[str, int] = {}

    def watch(now: Play) -> None:
        for unit in victims:
            if unit.queued_at_s == now.now_s:
                waiting = [item for item in now.cluster.pending if item.key != unit.key]
                older.setdefault(unit.key.job_id, sum(item.queued_at_s <= unit.queued_at_s for item in waiting))

    play.after = watch
    play.run([*units, *victims], 300.0)
    for unit in victims:
        name = unit.key.job_id
        bound_s = start_bound_s(older[name], AFTER_S, LONGEST_S)
        limit_s = unit.queued_at_s + bound_s
        assert limit_s <= 300.0, "the test must see the bound come"
        assert play.started_s[name] <= limit_s


def test_without_it_a_wide_unit_starves() -> None:
    def start_of_wide(policy: Any) -> float:
        cluster = a_cluster(policy, 1)
        play = Play(cluster, policy)
        units = [a_unit(f"u{n:03}", "x", 2, queued_at_s=float(n), expected_s=3.0, priority=1) for n in range(400)]
        play.run([*units, a_unit("wide", "w", 4, queued_at_s=1.0, expected_s=5.0)], 400.0)
        return play.started_s.get("wide", 1e9)

    assert start_of_wide(guarded(order=["priority", "age"], options={})) == 1e9
    # One unit waits when it comes: 50 + 2 x 5 s after it came, at the latest.
    assert start_of_wide(guarded()) <= 1.0 + start_bound_s(1, AFTER_S, 5.0)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"options": {"starvation": {"after_s": 0}}}, "options.starvation.after_s"),
        ({"options": {"starvation": {"after": 5}}}, "options.starvation.after"),
        ({"order": ["priority", "starvation"]}, "order: starvation must come first"),
        ({"discipline": "greedy"}, "discipline: starvation needs"),
        ({"reservation_depth": 0}, "reservation_depth"),
    ],
)
def test_wrong_policies_are_named(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(PolicyError) as caught:
        check(guarded(**fields))
    assert caught.value.detail.startswith(path)


def test_the_bound_by_hand() -> None:
    assert start_bound_s(2, 100.0, 10.0) == 130.0
    assert start_bound_s(0, 100.0, 10.0, interval_s=1.0) == 111.0
    with pytest.raises(InvalidArgumentError, match="older"):
        start_bound_s(-1, 1.0, 1.0)
