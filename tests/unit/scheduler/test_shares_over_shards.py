"""Share contracts where several shards choose domains: each sees what the others gave."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from services.scheduler.core.apart.shares import DomainShare, ShardShares, check_shares, shares_of, whole
from services.scheduler.core.contracts.account import ShareAccount
from services.scheduler.core.contracts.contract import needs
from services.scheduler.core.contracts.plan import SharePlan
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.policy import policy_from_json
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.shards.wire import shares_from, shares_message

PLAN = SharePlan(((("a", 3.0), ("b", 1.0)),), window_s=100.0)
NAMES = ("a", "b")
UP = np.array([8.0, 8.0])


def account(*held: tuple[str, int, float, float], now_s: float, names: tuple[str, ...] = NAMES) -> ShareAccount:
    """Units (domain, accelerators, since, thought to run for)."""
    found = ShareAccount(PLAN, names, np.full(len(names), 8.0), 1000.0)
    for number, (domain, size, since_s, runs_s) in enumerate(held):
        demand = Demand(1, accelerators=size)
        unit = PendingUnit(UnitKey(f"job-{number}", 0), "lab", 0, 0.0, demand)
        rank = PlacedRank(0, domain, f"{domain}-0", 0, tuple(range(size)))
        found.began(RunningUnit(unit, (rank,), since_s, expected_end_s=since_s + runs_s))
    found.advance(now_s)
    return found


def test_a_shard_tells_what_is_given_to_its_tenants() -> None:
    # By hand, window 1000 to 1100: 4 accelerators of b since 1010, thought to end at 1130, told at 1030.
    told = shares_of(account(("b", 4, 1010.0, 120.0), now_s=1030.0), "scheduler_1")
    assert told == ShardShares("scheduler_1", 1030.0, 100.0, 10, {"b": DomainShare(80.0, 4.0, 280.0, 120.0)})
    assert shares_from(shares_message(told)) == told


@pytest.mark.parametrize(
    ("now_s", "given", "this", "following"),
    [
        # When it was told, 20 s later, and when it must have gone on longer than it was thought to: 80 + 4 * 65 > 320.
        (1030.0, 80.0, 320.0, 40.0),
        (1050.0, 160.0, 320.0, 40.0),
        (1095.0, 340.0, 340.0, 40.0),
        # In the next window it counts from the border on; in the one after that it does not any more.
        (1105.0, 20.0, 40.0, 40.0),
        (1199.0, 396.0, 396.0, 40.0),
        (1205.0, 0.0, 0.0, 0.0),
    ],
)
def test_what_was_told_goes_on(now_s: float, given: float, this: float, following: float) -> None:
    told = ShardShares("other", 1030.0, 100.0, 10, {"b": DomainShare(80.0, 4.0, 240.0, 40.0)})
    found = whole(account(now_s=now_s), [told], NAMES, UP)
    assert found.given.tolist() == [0.0, given]
    first, second = found.projections()
    assert first.tolist() == [0.0, this]
    assert second.tolist() == [0.0, following]


def test_the_sum_of_all_shards_is_what_one_would_have_counted() -> None:
    units = [("a", 2, 1000.0, 500.0), ("b", 1, 1020.0, 50.0), ("a", 3, 1040.0, 30.0), ("b", 4, 1060.0, 900.0)]
    one = account(*units, now_s=1060.0)
    mine, others = account(*units[:2], now_s=1060.0), [account(item, now_s=1060.0) for item in units[2:]]
    told = [shares_of(item, f"shard-{number}") for number, item in enumerate(others)]
    found = whole(mine, told, NAMES, UP)
    np.testing.assert_allclose(found.given, one.given)
    np.testing.assert_allclose(found.held, one.held)
    np.testing.assert_allclose(found.gap(), one.gap())
    np.testing.assert_allclose(found.projections(), one.projections())
    np.testing.assert_allclose(needs(found, 2.0, np.zeros(2)), needs(one, 2.0, np.zeros(2)))
    assert mine.given.tolist() == [120.0, 40.0], "the shard's own account stays as it is"


def test_domains_are_known_by_name() -> None:
    # The other shard has heard of c, which this one has not, and names them in another order.
    other = account(("c", 5, 1000.0, 500.0), ("a", 1, 1000.0, 500.0), now_s=1010.0, names=("c", "b", "a"))
    found = whole(account(("b", 2, 1000.0, 500.0), now_s=1010.0), [shares_of(other, "o")], ("b", "a"), UP)
    assert found.given.tolist() == [20.0, 10.0]


def test_who_goes_by_another_length_of_windows_is_left_out() -> None:
    told = ShardShares("other", 1030.0, 50.0, 20, {"b": DomainShare(80.0, 4.0, 240.0, 40.0)})
    assert whole(account(now_s=1030.0), [told], NAMES, UP).given.tolist() == [0.0, 0.0]


def test_plans_per_window_are_issued_by_one_shard_or_refused() -> None:
    options = {"shares": {"a": 3, "b": 1}, "plan": "per_window"}
    policy = policy_from_json({"scores": {"share_deficit": 1.0}, "options": {"share_deficit": options}})
    check_shares(policy, 1)
    moving = policy_from_json(
        {"scores": {"share_deficit": 1.0}, "options": {"share_deficit": {**options, "move_every_s": 120}}}
    )
    with pytest.raises(PolicyError, match=r"options.share_deficit.move_every_s: two levels"):
        check_shares(moving, 1)
    with pytest.raises(PolicyError, match=r"options.share_deficit.plan: per_window needs one .* 2 shards"):
        check_shares(policy, 2)
    check_shares(
        policy_from_json(
            {"scores": {"share_deficit": 1.0}, "options": {"share_deficit": {**options, "plan": "standing"}}}
        ),
        2,
    )


def test_the_one_shard_chooses_by_the_plan_that_was_issued() -> None:
    found = ShareAccount(replace(PLAN, plan="per_window"), NAMES, UP, 1000.0)
    demand = Demand(1, accelerators=6)
    unit = PendingUnit(UnitKey("job", 0), "lab", 0, 0.0, demand)
    found.began(RunningUnit(unit, (PlacedRank(0, "b", "b-0", 0, tuple(range(6))),), 1000.0))
    found.advance(1150.0)
    # Domains in another order, as the network's side of two levels has them.
    copy = whole(found, [], ("b", "a"), UP)
    assert copy.planned_row().tolist() == found.planned_row().tolist()[::-1]
    assert copy.planned_row()[0] > 0.5
