"""Share accounts and service levels over restarts, and how a policy file promises them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from services.scheduler.core.contracts.account import Held, ShareAccount, restored
from services.scheduler.core.contracts.plan import SharePlan
from services.scheduler.core.contracts.service_levels import (
    FINISHED,
    LOST,
    QUEUED,
    RECOVERED,
    RESPONDED,
    STARTED,
    Observation,
    ServiceLevels,
)
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.sla_values import Objective, ObjectiveKind
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.policy.file import parse
from services.scheduler.promises_api import series_of

PLAN = SharePlan(((("a", 1.0), ("b", 1.0)),), window_s=100.0)
UP = {"a": 8.0, "b": 8.0}


def running(name: str, domain_id: str, since_s: float) -> RunningUnit:
    unit = PendingUnit(UnitKey(name, 0), "t", 0, 0.0, Demand(1, accelerators=2))
    return RunningUnit(unit, (PlacedRank(0, domain_id, f"{domain_id}-1", 0, (0, 1)),), since_s)


def test_an_account_that_was_read_again_is_as_one_that_never_stopped() -> None:
    account = ShareAccount(PLAN, ("a", "b"), np.array([8.0, 8.0]), 0.0, pieces=True, judge=True)
    one, other, third = running("one", "a", 0.0), running("other", "b", 10.0), running("third", "b", 120.0)
    account.began(one)
    account.began(other)
    account.advance(50.0)
    state = json.loads(json.dumps(account.state()))
    # It stops at 50; "other" ends at 90 and "third" begins at 120 while nobody counts.
    account.ended(other, 90.0)
    account.began(third)
    account.advance(150.0)
    again = restored(PLAN, state, UP, [one, third], [Held(10.0, 90.0, (("b", 2.0),))], 150.0)
    assert again.state() == account.state()
    # a: 2 accelerators for 100 s; b: 2 for 80 s, in the first window. Then 50 s and 30 s of two each.
    assert again.windows[0].given.tolist() == [200.0, 160.0]
    assert again.given.tolist() == [100.0, 60.0]


def test_domains_come_and_go_and_plans_change() -> None:
    account = ShareAccount(PLAN, ("a", "b"), np.array([8.0, 8.0]), 0.0, judge=True)
    account.began(running("one", "b", 0.0))
    account.advance(110.0)
    account.fit(("b", "c"), np.array([8.0, 4.0]))
    account.advance(120.0)
    assert account.given.tolist() == [40.0, 0.0]
    assert account.windows[0].given.tolist() == [200.0, 0.0]
    assert account.windows[0].wanted is not None
    assert account.windows[0].wanted[0] == 100.0
    planned = SharePlan(((("b", 3.0), ("c", 1.0)),), window_s=100.0)
    other = account.under(planned)
    # What was judged stays as it was; the open window counts under the new plan.
    assert (other.windows[0].wanted is account.windows[0].wanted, other.planned_row().tolist()) == (True, [0.75, 0.25])
    assert account.planned_row()[0] == 1.0


def test_service_levels_by_hand_and_over_a_restart() -> None:
    wait = Objective(ObjectiveKind.AVERAGE_WAIT, 5.0, 100.0, 7)
    recovery = Objective(ObjectiveKind.RECOVERY_TIME, 10.0, 100.0, 9)
    response = Objective(ObjectiveKind.RESPONSE_TIME, 10.0, 100.0)
    promised = {"org": (wait,), "lab": (recovery, response)}
    levels = ServiceLevels(promised, {"lab": "org"}, 0.0)
    assert (levels.counts("lab"), levels.counts("other")) == (True, False)
    key = UnitKey("j", 0)
    before = [Observation(QUEUED, "lab", key, 1.0), Observation(STARTED, "lab", key, 9.0)]
    after = [
        Observation(RESPONDED, "lab", key, 12.0, 11.0),
        Observation(LOST, "lab", key, 20.0),
        Observation(QUEUED, "lab", key, 22.0),
        Observation(STARTED, "lab", key, 24.0),
        Observation(RECOVERED, "lab", key, 31.0),
        Observation(FINISHED, "lab", key, 40.0),
    ]
    levels.observe(before)
    again = ServiceLevels(promised, {"lab": "org"}, 15.0)
    again.load(json.loads(json.dumps(levels.state())))
    for item in (levels, again):
        item.observe([Observation.from_row(json.loads(json.dumps(row.as_row()))) for row in after])
        rows = {(row.tenant_id, row.kind): row for row in item.rows(50.0)}
        # Waits of 8 s and 2 s; 11 s from the loss at 20 to the run at 31, promised were 10; a response of 11 s.
        average = rows["org", "average_wait"]
        assert (average.value, average.observations, average.met) == (5.0, 2, True)
        lost = rows["lab", "recovery_time"]
        assert (lost.violations, lost.penalty_micro_units, lost.met) == (1, 9, False)
        assert (rows["lab", "response_time"].violations, item.number) == (1, 8)
    assert again.state() == levels.state()


GOOD = """name: x
allocation:
  scores: {share_deficit: 1}
shares:
  planned: {a: 3, b: 1}
service_levels:
  lab:
  - {kind: average_wait, target: 600, window_s: 3600}
"""


def test_a_policy_file_promises() -> None:
    policy = parse(GOOD)
    assert SharePlan.of(policy.options_of("share_deficit")).shares == ((("a", 3), ("b", 1)),)
    assert parse(json.dumps(policy.as_json())) == policy


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("a: 3", "a: -3", "line 5: shares.planned.a: must be a finite number above 0"),
        ("target: 600", "target: -1", "line 8: service_levels.lab[0].target: must be at least 0"),
        ("average_wait", "patience", "line 8: service_levels.lab[0].kind: must be one of"),
        ("share_deficit", "price", "line 5: shares: planned shares have no effect"),
        ("planned: {a: 3, b: 1}", "kind: fraction", "line 5: shares: names no planned shares"),
        ("planned", "plant", "line 5: shares.plant: unknown key"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(old: str, new: str, said: str) -> None:
    with pytest.raises(PolicyError) as error:
        parse(GOOD.replace(old, new))
    assert said in error.value.detail


def test_what_happened_before_something_was_promised_anew_is_taken_in() -> None:
    wait = Objective(ObjectiveKind.AVERAGE_WAIT, 5.0, 100.0)
    levels = ServiceLevels({"lab": (wait,)}, {}, 0.0)
    levels.observe([Observation(QUEUED, "lab", UnitKey("early", 0), 900.0)])
    more = ServiceLevels({"lab": (wait,), "new": (wait,)}, {}, 1000.0)
    more.load(levels.state())
    # Submitted before, heard after; the other tenant's account is not held up by it.
    more.observe(
        [Observation(QUEUED, "new", UnitKey("late", 0), 950.0), Observation(STARTED, "lab", UnitKey("early", 0), 960.0)]
    )
    more.observe([Observation(STARTED, "new", UnitKey("late", 0), 1003.0)])
    rows = {row.tenant_id: row.value for row in more.rows(1004.0)}
    assert rows == {"lab": 60.0, "new": 3.0}


def test_objectives_that_differ_in_their_windows_alone_are_one_series_of_metrics() -> None:
    short, long = (Objective(ObjectiveKind.RESPONSE_TIME, 10.0, window_s) for window_s in (10.0, 1000.0))
    other = Objective(ObjectiveKind.RESPONSE_TIME, 11.0, 10.0)
    levels = ServiceLevels({"lab": (short, long, other)}, {}, 0.0)
    levels.observe([Observation(RESPONDED, "lab", UnitKey("j", 0), 5.0, 12.0)])
    # At 20 the short window has forgotten it.
    assert series_of(levels.rows(20.0)) == {
        ("lab", "response_time", "10"): (2, False),
        ("lab", "response_time", "11"): (1, True),
    }
