"""When the lease is lost, which orders of a backlog are void, which have expired."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.lease import Lease
from agent.orders import is_expired, without_superseded
from meridian.contracts.run.v1.run_pb2 import ASSIGNMENT_ACTION_START, ASSIGNMENT_ACTION_STOP, Assignment

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def _order(action: str, epoch: int) -> Assignment:
    number = ASSIGNMENT_ACTION_START if action == "start" else ASSIGNMENT_ACTION_STOP
    return Assignment(domain_id="d", action=number, run_id=f"r{epoch}", job_id="j", epoch=epoch)


def test_the_lease_runs_out_before_its_end_and_once() -> None:
    lease = Lease(lease_s=10, reserve_s=2, now_s=0)
    lease.acknowledged(sent_at_s=5, now_s=5.1)
    assert not lease.runs_out(12.9)
    assert lease.runs_out(13)
    assert not lease.runs_out(14)
    assert not lease.held


def test_an_old_heartbeat_acknowledged_late_proves_nothing() -> None:
    lease = Lease(lease_s=10, reserve_s=2, now_s=0)
    assert lease.runs_out(8)
    assert not lease.acknowledged(sent_at_s=1, now_s=20)
    assert not lease.held
    assert lease.acknowledged(sent_at_s=19.9, now_s=20)
    assert lease.held
    assert lease.held_since_s == 20
    assert not lease.acknowledged(sent_at_s=20.1, now_s=20.2), "regained once"


@pytest.mark.parametrize(
    ("orders", "kept"),
    [
        ([("start", 1)], [("start", 1)]),
        ([("start", 1), ("stop", 1)], [("stop", 1)]),
        ([("start", 1), ("start", 2)], [("start", 2)]),
        ([("stop", 1), ("start", 2)], [("stop", 1), ("start", 2)]),
        ([("start", 2), ("stop", 1)], [("start", 2), ("stop", 1)]),
        ([("start", 1), ("start", 1)], [("start", 1), ("start", 1)]),
        (
            [("start", 1), ("stop", 1), ("start", 2), ("stop", 2), ("start", 3)],
            [("stop", 1), ("stop", 2), ("start", 3)],
        ),
    ],
)
def test_void_starts_are_left_out(orders: list[tuple[str, int]], kept: list[tuple[str, int]]) -> None:
    left = without_superseded([_order(*order) for order in orders])
    assert [("start" if item.action == ASSIGNMENT_ACTION_START else "stop", item.epoch) for item in left] == kept


def _outcome(orders: list[Assignment]) -> tuple[int, int | None]:
    """What an agent that carries the orders out one by one has in the end: highest epoch and the running one."""
    highest, running = 0, None
    for order in orders:
        if order.action == ASSIGNMENT_ACTION_START and order.epoch > highest:
            highest = running = order.epoch
        elif order.action == ASSIGNMENT_ACTION_STOP:
            highest = max(highest, order.epoch)
            running = running if running is not None and running > order.epoch else None
    return highest, running


@given(st.lists(st.tuples(st.sampled_from(["start", "stop"]), st.integers(1, 5)), max_size=12))
def test_leaving_void_starts_out_does_not_change_the_outcome(orders: list[tuple[str, int]]) -> None:
    messages = [_order(*order) for order in orders]
    assert _outcome(without_superseded(messages)) == _outcome(messages)


def test_a_start_from_before_a_long_absence_has_expired() -> None:
    order = _order("start", 1)
    assert not is_expired(order, NOW, 10), "no time given"
    order.assigned_at.FromDatetime(NOW - timedelta(seconds=9))
    assert not is_expired(order, NOW, 10)
    order.assigned_at.FromDatetime(NOW - timedelta(seconds=11))
    assert is_expired(order, NOW, 10)
    stop = _order("stop", 1)
    stop.assigned_at.FromDatetime(NOW - timedelta(hours=1))
    assert not is_expired(stop, NOW, 10), "a stop never expires"


@pytest.mark.parametrize(("seconds", "expired"), [(-(2**63), True), (2**63 - 1, False), (253402300799, False)])
def test_a_time_that_is_none_in_any_year_stops_nobody(seconds: int, expired: bool) -> None:
    """The wire carries any number of seconds; dates end in the year 9999."""
    order = _order("start", 1)
    order.assigned_at.seconds = seconds
    assert is_expired(order, NOW, 10) is expired
