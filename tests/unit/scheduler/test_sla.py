"""Service-level objectives: every expected number is reckoned by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meridian.errors import ConflictError, InvalidArgumentError
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.sla import SlaAccount
from services.scheduler.core.sla_values import Objective, ObjectiveKind, Urgency

NAN = float("nan")
WAIT, THROUGHPUT, DEADLINE = ObjectiveKind.AVERAGE_WAIT, ObjectiveKind.THROUGHPUT, ObjectiveKind.DEADLINE
RECOVERY, RESPONSE = ObjectiveKind.RECOVERY_TIME, ObjectiveKind.RESPONSE_TIME


def account(kind: ObjectiveKind, target: float, window_s: float = 100.0, penalty: int = 7) -> SlaAccount:
    return SlaAccount([Objective(kind, target, window_s, penalty, "EUR")])


def test_recovery_and_response_times_are_charged_one_by_one() -> None:
    both = SlaAccount([Objective(RECOVERY, 30.0, 100.0, 5, "EUR"), Objective(RESPONSE, 0.2, 100.0, 3, "USD")])
    both.recovered(10.0, 30.0)
    both.recovered(20.0, 30.000001)
    for at_s, took_s in ((20.0, 0.1), (21.0, 0.3), (22.0, 0.4), (119.0, 0.2)):
        both.responded(at_s, took_s)
    assert both.compliance(119.0) == [(0.0, False, 1, 1), (0.5, False, 4, 2)]
    assert both.compliance(121.0) == [(pytest.approx(NAN, nan_ok=True), True, 0, 1), (0.5, False, 2, 2)]
    assert both.penalties(121.0) == {"EUR": 5, "USD": 6}


def test_the_average_wait_is_judged_at_the_end_of_each_window() -> None:
    it = account(WAIT, 10.0)
    for number, (queued_s, started_s) in enumerate([(0, 4), (10, 22), (30, 44)]):  # 4, 12, 14: average 10
        it.queued(f"u{number}", queued_s)
        it.started(f"u{number}", started_s)
    assert it.penalties(100.0) == {"EUR": 0}
    it.queued("v", 150.0)
    it.started("v", 161.0)
    assert it.compliance(199.0) == [(11.0, False, 1, 0)]
    assert it.penalties(200.0) == {"EUR": 7}
    assert it.penalties(900.0) == {"EUR": 7}  # nothing waits, nothing starts


def test_a_queue_that_starts_nothing_breaks_the_promise() -> None:
    it = account(WAIT, 30.0)
    it.queued("a", 80.0)
    # Windows end at 100 (waited 20: kept), 200, 300, 400.
    assert it.penalties(100.0) == {"EUR": 0}
    assert it.compliance(200.0) == [(120.0, False, 1, 1)]
    assert it.penalties(450.0) == {"EUR": 21}
    it.started("a", 460.0)
    assert it.penalties(500.0) == {"EUR": 28}
    assert it.penalties(600.0) == {"EUR": 28}


def test_throughput_is_charged_only_while_something_waits() -> None:
    it = account(THROUGHPUT, 2.0)
    for number in range(3):
        it.queued(f"u{number}", 0.0)
    it.started("u0", 1.0)
    it.finished("u0", 50.0)
    assert it.compliance(99.0) == [(1.0, False, 1, 0)]
    assert it.penalties(100.0) == {"EUR": 7}
    it.started("u1", 110.0)
    it.finished("u1", 120.0)
    it.started("u2", 130.0)
    it.finished("u2", 199.0)
    assert it.penalties(200.0) == {"EUR": 7}  # two finished
    assert it.penalties(800.0) == {"EUR": 7}  # nothing to do
    it.queued("w", 850.0)
    assert it.penalties(1250.0) == {"EUR": 7 * 5}  # 900, 1000, 1100, 1200


def test_a_missed_deadline_is_charged_once_when_it_passes() -> None:
    it = account(DEADLINE, 0.0)
    deadlines = {"on time": 50.0, "late": 60.0, "never": 70.0, "withdrawn": 65.0}
    for name, due_s in deadlines.items():
        it.queued(name, 0.0, deadline_s=due_s)
    for name in deadlines:
        it.started(name, 1.0)
    it.finished("on time", 50.0)
    it.withdrawn("withdrawn", 64.0)
    assert it.penalties(64.0) == {"EUR": 7}
    it.finished("late", 66.0)
    assert it.compliance(70.0) == [(0.5, False, 2, 1)]  # "never" has until 70 itself
    assert it.penalties(70.1) == {"EUR": 14}
    it.finished("never", 80.0)
    assert it.compliance(155.0) == [(0.0, False, 2, 2)]  # the one of 50 has left the window
    assert it.penalties(999.0) == {"EUR": 14}


def test_each_deadline_objective_has_its_own_tolerance() -> None:
    it = SlaAccount([Objective(DEADLINE, 0.0, 100.0, 1), Objective(DEADLINE, 10.0, 100.0, 100)])
    it.queued("a", 0.0, deadline_s=20.0)
    it.queued("b", 0.0, deadline_s=20.0)
    it.started("a", 1.0)
    it.finished("a", 25.0)
    assert it.penalties(25.0) == {"USD": 2}
    assert it.compliance(40.0) == [(0.0, False, 2, 2), (0.5, False, 2, 1)]
    assert it.penalties(40.0) == {"USD": 102}


def test_a_name_used_again_and_a_unit_queued_again() -> None:
    it = account(DEADLINE, 0.0)
    it.queued("a", 0.0, deadline_s=20.0)
    it.withdrawn("a", 1.0)
    it.queued("a", 2.0, deadline_s=50.0)
    it.started("a", 3.0)
    it.queued("a", 30.0, deadline_s=999.0, lost_at_s=29.0)  # keeps its deadline
    assert it.penalties(50.0) == {"EUR": 0}
    assert it.penalties(51.0) == {"EUR": 7}


def test_a_deadline_that_had_passed_already_is_missed() -> None:
    it = account(DEADLINE, 0.0)
    it.queued("a", 500.0, deadline_s=20.0)
    assert it.compliance(500.5) == [(0.0, False, 1, 1)]


def test_large_penalties_stay_exact() -> None:
    it = account(RESPONSE, 0.0, penalty=10**18 + 1)
    for number in range(3):
        it.responded(float(number), 1.0)
    assert it.penalties(3.0) == {"EUR": 3 * 10**18 + 3}


def test_urgency_by_hand() -> None:
    objectives = [
        Objective(DEADLINE, 5.0, 100.0, 4000),
        Objective(WAIT, 60.0, 100.0, 600),
        Objective(RECOVERY, 40.0, 100.0, 900),
        Objective(RESPONSE, 1.0, 100.0, 10**9),
    ]
    it = SlaAccount(objectives)
    it.queued("a", 10.0, deadline_s=200.0, run_time_s=65.0)
    it.queued("b", 20.0, lost_at_s=15.0)
    # a at 40: deadline 200 + 5 - 40 - 65 = 100 (4000 / 100); wait 10 + 60 - 40 = 30 (600 / 2 / 30).
    assert it.urgency("a", 40.0) == Urgency(30.0, -50.0)
    # b at 40: wait 40 (300 / 40); recovery 15 + 40 - 40 = 15 (900 / 15).
    assert it.urgency("b", 40.0) == Urgency(15.0, -67.5)
    assert min(["a", "b"], key=lambda name: it.urgency(name, 40.0)) == "b"
    # Overdue: slack 10 + 60 - 100 = -30; the stake counts over one second.
    assert it.urgency("a", 100.0) == Urgency(-30.0, -(4000 / 40 + 300))
    # The deadline has gone: only the wait is left.
    assert it.urgency("a", 206.0) == Urgency(-136.0, -300.0)
    it.recovered(206.0, 191.0, unit="b")
    assert it.urgency("b", 206.0).slack_s == 20.0 + 60.0 - 206.0
    assert SlaAccount([]).penalties(1.0) == {}
    free = SlaAccount([])
    free.queued("x", 0.0)
    assert free.urgency("x", 1.0) == Urgency(math.inf, 0.0)


def test_wrong_order_of_events_changes_nothing() -> None:
    it = SlaAccount([Objective(DEADLINE, 0.0, 10.0, 1), Objective(WAIT, 1.0, 10.0, 1)])
    it.queued("a", 5.0)
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: it.queued("a", 6.0), "'a'"),
        (lambda: it.finished("a", 6.0), "'a'"),
        (lambda: it.started("b", 6.0), "'b'"),
        (lambda: it.withdrawn("b", 6.0), "'b'"),
        (lambda: it.urgency("b", 6.0), "'b'"),
        (lambda: it.started("a", 4.0), "back"),
        (lambda: it.queued("b", NAN), "at_s"),
        (lambda: it.queued("b", 6.0, deadline_s=NAN), "deadline_s"),
        (lambda: it.queued("b", 6.0, run_time_s=-1.0), "run_time_s"),
        (lambda: it.recovered(6.0, -1.0), "took_s"),
        (lambda: it.responded(6.0, NAN), "took_s"),
    ]
    for action, word in wrong:
        with pytest.raises((ConflictError, InvalidArgumentError), match=word):
            action()
    it.started("a", 5.0)
    assert it.compliance(5.0)[1] == (0.0, True, 1, 0)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"target": -1.0}, "target"),
        ({"target": NAN}, "target"),
        ({"window_s": 0.0}, "window_s"),
        ({"window_s": NAN}, "window_s"),
        ({"penalty_micro_units": -1}, "penalty_micro_units"),
        ({"penalty_micro_units": 1.5}, "penalty_micro_units"),
        ({"currency": ""}, "currency"),
        ({"kind": "politeness"}, "kind"),
    ],
)
def test_a_wrong_objective_is_refused_by_field(change: dict[str, object], word: str) -> None:
    values = {"kind": WAIT, "target": 1.0, "window_s": 1.0, **change}
    with pytest.raises(PolicyError, match=word):
        Objective(**values)  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 300)), max_size=8),
    st.integers(0, 120),
    st.integers(1, 70),
    st.integers(1, 900),
)
def test_window_penalties_do_not_depend_on_how_often_the_account_looks(
    units: list[tuple[int, int]], target: int, window: int, end: int
) -> None:
    events = sorted(
        [(queued, 0, f"u{n}") for n, (queued, _) in enumerate(units)]
        + [(queued + wait, 1, f"u{n}") for n, (queued, wait) in enumerate(units)]
        + [(queued + wait + 50, 2, f"u{n}") for n, (queued, wait) in enumerate(units)]
    )
    often, seldom = (
        SlaAccount([Objective(WAIT, target, window, 1, "A"), Objective(THROUGHPUT, target / 40, window, 1, "B")])
        for _ in range(2)
    )
    expected = {"A": 0, "B": 0}
    for second in range(end + 1):
        often.advance(second)
        for at, step, name in events:
            if at == second:
                for it in (often, seldom):
                    (it.queued, it.started, it.finished)[step](name, at)
    for close in range(window, end + 1, window):  # from the definition, window by window
        waits = [wait for queued, wait in units if close - window <= queued + wait < close]
        open_ = [close - queued for queued, wait in units if queued < close <= queued + wait]
        waits += [wait for wait in open_ if wait > target]
        expected["A"] += sum(waits) > target * len(waits)
        done = sum(close - window <= queued + wait + 50 < close for queued, wait in units)
        expected["B"] += bool(open_) and done < target / 40
    assert often.penalties(end) == seldom.penalties(end) == expected


def test_a_deadline_is_kept_when_its_objective_stands_at_another_place() -> None:
    strict, mild, wait = (Objective(DEADLINE, target, 100.0, 7) for target in (0.0, 50.0, 1.0))
    it = SlaAccount([strict, mild])
    it.queued("late", 0.0, deadline_s=10.0)
    it.started("late", 1.0)
    other = SlaAccount([Objective(WAIT, 5.0, 100.0), mild, wait, strict], 2.0)
    other.load(it.state())
    assert [stand.violations for stand in other.compliance(11.0)] == [0, 0, 0, 1]
    assert [stand.violations for stand in other.compliance(61.0)] == [0, 1, 0, 1]
    other.finished("late", 62.0)
    assert [stand.observations for stand in other.compliance(62.0)[1:]] == [1, 0, 1]
