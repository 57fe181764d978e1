"""Steps per second from what programs report, what follows for rates that nobody measured, and for the ends of runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.contracts.promises import Saved
from services.scheduler.core.declared_rates import profile_of
from services.scheduler.core.measured import Cell, Done, Measured, News
from services.scheduler.core.metering import LEAST_STEPS, WINDOW_S, Metering, Report
from services.scheduler.core.policy import Policy, policy_from_json
from services.scheduler.core.state import FailureKind, UnitKey
from tests.unit.scheduler.world import World, a_fleet, gang

KEY = UnitKey("job", 0)
A2 = Cell("A100", 2)


def reported(*points: tuple[float, int], domain: str = "north", run: str = "job.0.1") -> Metering:
    metering = Metering()
    for at_s, step in points:
        metering.report(KEY, A2, Report(run, domain, step, 100, at_s))
    return metering


def test_the_rate_is_that_between_the_first_and_the_last_report() -> None:
    """4 steps in 2 s; what came before the first report is no part of it."""
    found = reported((100.0, 1), (101.0, 3), (102.0, 5)).news(["job.0.1"])
    assert found == News((("job", A2, 2.0),), ((KEY, Done(5, 100, 102.0)),))


def test_too_few_steps_or_too_short_a_time_say_nothing_of_the_rate() -> None:
    assert reported((100.0, 1), (109.0, LEAST_STEPS)).news(["job.0.1"]).rates == ()
    assert reported((100.0, 1), (100.5, 50)).news(["job.0.1"]).rates == ()


def test_reports_out_of_order_of_other_domains_and_of_runs_that_are_over_change_nothing() -> None:
    metering = reported((100.0, 1), (102.0, 9), (101.0, 90))
    metering.report(KEY, A2, Report("job.0.1", "south", 50, 100, 103.0))
    assert metering.news(["job.0.1"]).rates == (("job", A2, 4.0),)
    assert not reported((100.0, 1), (102.0, 9)).news([])


def test_steps_that_go_back_begin_the_measurement_anew() -> None:
    metering = reported((100.0, 50), (110.0, 90), (120.0, 10), (122.0, 20))
    assert metering.news(["job.0.1"]).rates == (("job", A2, 5.0),)


def heard(*points: tuple[float, int, float]) -> Metering:
    """Reports (dated, step, heard)."""
    metering = Metering()
    for at_s, step, heard_s in points:
        metering.report(KEY, A2, Report("job.0.1", "north", step, 100, at_s, heard_s))
    return metering


def test_a_report_dated_far_ahead_hides_no_later_one() -> None:
    """A clock of an agent that stood a day ahead was set back: what follows is measured by itself, 4 steps in 2 s."""
    found = heard((86_500.0, 40, 100.0), (101.0, 42, 101.0), (103.0, 46, 103.0)).news(["job.0.1"])
    assert found == News((("job", A2, 2.0),), ((KEY, Done(46, 100, 103.0)),))


def test_a_clock_that_stays_ahead_measures_as_well_and_dates_nothing_ahead() -> None:
    """Reports out of order are passed over by that clock; steps done count from when they were heard."""
    found = heard((86_500.0, 40, 100.0), (86_504.0, 48, 104.5)).news(["job.0.1"])
    assert found == News((("job", A2, 2.0),), ((KEY, Done(48, 100, 104.5)),))


def test_a_report_that_comes_twice_from_a_clock_that_is_ahead_changes_nothing() -> None:
    found = heard((86_500.0, 40, 100.0), (86_504.0, 48, 104.0), (86_504.0, 48, 104.1)).news(["job.0.1"])
    assert found == News((("job", A2, 2.0),), ((KEY, Done(48, 100, 104.0)),))


def test_a_clock_that_differs_a_little_hides_reports_out_of_order_as_ever() -> None:
    found = heard((110.0, 40, 100.0), (114.0, 48, 101.0), (112.0, 90, 102.0)).news(["job.0.1"])
    assert found == News((("job", A2, 2.0),), ((KEY, Done(48, 100, 101.0)),))


def test_old_reports_leave_the_window() -> None:
    """One step per second for an hour, then ten: after the window nothing is left of the first."""
    slow = [(float(second), second) for second in range(0, 3600, 10)]
    fast = [(3600.0 + second, 3600 + 10 * second) for second in range(0, int(WINDOW_S) + 60, 10)]
    [(_, _, rate)] = reported(*slow, *fast).news(["job.0.1"]).rates
    assert rate == pytest.approx(10.0)


def test_a_rate_is_told_again_only_when_it_changed() -> None:
    metering = reported((100.0, 0), (110.0, 100))
    assert len(metering.news(["job.0.1"]).rates) == 1
    assert not metering.news(["job.0.1"])
    metering.report(KEY, A2, Report("job.0.1", "north", 201, 0, 120.0))
    again = metering.news(["job.0.1"])
    assert (again.rates, again.done) == ((), ((KEY, Done(201, 100, 120.0)),))
    metering.report(KEY, A2, Report("job.0.1", "north", 220, 100, 130.0))
    assert metering.news(["job.0.1"]).rates == (("job", A2, 220 / 30),)
    metering.begin()
    assert metering.news(["job.0.1"]).rates == (("job", A2, 220 / 30),)


def test_a_job_with_several_runs_has_the_mean_of_their_rates() -> None:
    metering = Metering()
    for index, rate in enumerate((2, 4)):
        for second in range(4):
            report = Report(f"job.{index}.1", "north", rate * second, 0, float(second))
            metering.report(UnitKey("job", index), A2, report)
    assert metering.news(["job.0.1", "job.1.1"]).rates == (("job", A2, 3.0),)


def test_what_is_not_measured_follows_from_what_is() -> None:
    measured = Measured()
    assert measured.rate("job", "", 2, "A100") is None
    measured.learn(News((("job", A2, 6.0),)))
    assert measured.rate("job", "", 2, "A100") == 6.0
    assert measured.rate("job", "", 4, "A100") == 12.0
    assert measured.rate("job", "", 1, "H100") == 3.0
    assert measured.rate("other", "", 2, "A100") is None


def test_declared_rates_keep_their_proportions() -> None:
    """Declared 1 and 3, measured 2 on the first: all is twice as fast. Where it does not run by its own word, it does not."""
    profile = profile_of([("A100", 2, 1.0), ("H100", 2, 3.0), ("T4", 2, 0.0)])
    measured = Measured()
    measured.learn(News((("job", A2, 2.0),)))
    assert measured.rate("job", profile, 2, "A100") == 2.0
    assert measured.rate("job", profile, 2, "H100") == pytest.approx(6.0)
    assert measured.rate("job", profile, 2, "T4") == 0.0
    measured.learn(News((("job", Cell("H100", 2), 24.0),)))
    assert measured.rate("job", profile, 1, "A100") == pytest.approx(0.5 * (2.0 * 8.0) ** 0.5)


def test_steps_left_and_their_time() -> None:
    measured = Measured()
    measured.learn(News((("job", A2, 2.0),), ((KEY, Done(40, 100, 1000.0)),)))
    assert measured.steps_left(KEY) == 60.0
    assert measured.left_s(KEY, A2, 0, 900.0, 1010.0) == 20.0
    assert measured.left_s(KEY, A2, 0, 1006.0, 1010.0) == 26.0, "it has not run longer than since its begin"
    assert measured.left_s(KEY, Cell("A100", 1), 0, 900.0, 1010.0) is None
    measured.waits(KEY, 30)
    assert measured.steps_left(KEY) == 70.0
    measured.forget("job", [KEY])
    assert measured.steps_left(KEY) is None
    assert not measured.told()


def test_a_program_that_does_not_say_how_many_steps_there_are_leaves_it_to_the_job() -> None:
    measured = Measured()
    measured.learn(News((("job", A2, 2.0),), ((KEY, Done(40, 0, 1000.0)),)))
    assert measured.steps_left(KEY) is None
    assert measured.steps_left(KEY, declared=50) == 10.0


names = st.text(max_size=4)
news = st.builds(
    News,
    st.lists(st.tuples(names, st.builds(Cell, names, st.integers(1, 9)), st.floats(0, 1e9)), max_size=4).map(tuple),
    st.lists(
        st.tuples(
            st.builds(UnitKey, names, st.integers(0, 9)),
            st.builds(Done, st.integers(0, 2**62), st.integers(0, 2**62), st.floats(0, 2e9)),
        ),
        max_size=4,
    ).map(tuple),
)


@given(news)
def test_news_are_the_same_after_the_journal(told: News) -> None:
    assert News.from_json(told.as_json()) == told


EASY = replace(Policy(), name="easy", order=("age",), discipline="easy")


def running(policy: Policy) -> World:
    world = World(a_fleet({"a": 1}), policy)
    world.submit("job", gang(2, accelerators=2))
    world.cycle()
    world.start(world.run("job"))
    return world


def test_the_end_of_a_run_is_where_its_steps_say() -> None:
    world = running(EASY)
    before = world.book.cluster.running[KEY].expected_end_s
    world.now_s += 100.0
    told = News((("job", A2, 2.0),), ((KEY, Done(40, 100, world.now_s)),))
    world.book.learn(told, world.now_s)
    found = world.book.cluster.running[KEY]
    assert (found.expected_end_s, found.expected_end_s != before) == (world.now_s + 30.0, True)
    world.now_s += 1.0
    world.book.learn(News((), ((KEY, Done(42, 100, world.now_s)),)), world.now_s)
    assert world.book.cluster.running[KEY] is found, "it changed although it says the same"


def test_a_run_that_is_lost_has_done_what_its_checkpoint_keeps() -> None:
    world = running(EASY)
    run = world.run("job")
    world.checkpoint(run, 25)
    world.book.learn(News((("job", A2, 2.0),), ((KEY, Done(40, 100, world.now_s)),)), world.now_s)
    assert world.book.measured.steps_left(KEY) == 60.0
    world.fail(run, FailureKind.STOPPED)
    assert world.book.measured.steps_left(KEY) == 75.0
    world.cycle()
    world.finish(world.run("job"))
    assert not world.book.measured.told(), "the job has finished"


SHARES = policy_from_json(
    {
        "discipline": "easy",
        "scores": {"share_deficit": 1.0},
        "options": {"share_deficit": {"shares": {"a": 1, "b": 1}, "window_s": 1000.0}},
    }
)


def projected(world: World) -> tuple[list[float], list[float]]:
    """Of domains a and b, for this window and the next one."""
    account = world.book.promises.shares
    assert account is not None
    this, following = account.projections()
    return this.tolist(), following.tolist()


def under_shares() -> World:
    """Domain a gives four accelerators from 2,000 on (a window begins) to a unit of at most 500 s."""
    world = World(a_fleet({"a": 1}), SHARES, now_s=2000.0)
    world.book.promises.begin(Saved({}), world.now_s)
    world.submit("job", replace(gang(2, accelerators=2), max_run_time_s=500.0))
    world.cycle()
    assert projected(world) == ([2000.0], [0.0])
    return world


def test_projected_shares_know_when_a_run_began() -> None:
    world = under_shares()
    world.now_s = 2300.0
    world.start(world.run("job"))
    # It ends at 2,800 then, and holds its nodes since 2,000.
    assert projected(world) == ([3200.0], [0.0])


def test_projected_shares_know_the_end_that_steps_say() -> None:
    world = under_shares()
    world.start(world.run("job"))
    world.now_s = 2200.0
    world.book.advance(world.now_s)
    world.book.learn(News((("job", A2, 1.0),), ((KEY, Done(100, 400, world.now_s)),)), world.now_s)
    # 300 steps from 2,200 on: it ends at 2,500 as was thought; then it is slower and ends at 3,200.
    assert projected(world) == ([2000.0], [0.0])
    world.book.learn(News((("job", A2, 0.3),), ((KEY, Done(100, 400, world.now_s)),)), world.now_s)
    assert projected(world) == ([4000.0], [800.0])


def test_projected_shares_are_the_same_after_a_restart_of_the_scheduler() -> None:
    world = under_shares()
    world.now_s = 2300.0
    world.start(world.run("job"))
    world.now_s = 2350.0
    world.book.advance(world.now_s)
    before, saved = projected(world), Saved(world.book.promises.state())
    world.restart()
    world.book.promises.begin(saved, world.now_s)
    assert projected(world) == before
