"""Advice: shifting against all combinations, never worse than the baseline; daily profiles; what cannot shift."""

from __future__ import annotations

import itertools
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import (
    DeclaredRate,
    JobSpec,
    ModelDescription,
    PlacementConstraints,
    WorkflowTask,
)
from services.forecast.advice.advising import Work, advise, money
from services.forecast.advice.planned import planned_work
from services.forecast.advice.profile import DAY_S, expected_load
from services.forecast.advice.shifting import Flexible, _costs, above_capacity, cost_of, load_of, shift, stretches_where
from services.forecast.advice.terms import trimmed
from services.forecast.waveform.asking import Wish
from services.forecast.waveform.durations import RunTime, Source, Unknown


def test_two_jobs_that_meet_in_a_peak_part() -> None:
    base = np.array([6.0, 6.0, 0.0, 0.0, 0.0, 0.0])
    jobs = [Flexible("a", 4, 0, 4, 2), Flexible("b", 4, 0, 4, 2)]
    found = shift(base, jobs, capacity=8)
    assert sorted(found.starts) == [2, 4]
    assert found.before.tolist() == [14, 14, 0, 0, 0, 0]
    assert found.after.tolist() == [6, 6, 4, 4, 4, 4]
    assert above_capacity(found.before, 8, 1800) == 6.0


def test_work_is_not_delayed_where_nothing_is_gained() -> None:
    found = shift(np.full(6, 5.0), [Flexible("a", 1, 0, 4, 2)], capacity=8)
    assert found.starts == (0,)


def test_a_job_that_shifts_starts_as_early_as_it_may_for_that() -> None:
    found = shift(np.array([6.0, 6.0, 0, 0, 0, 0, 0, 0]), [Flexible("a", 4, 0, 6, 1)], capacity=8)
    assert found.starts == (2,)


def test_work_is_not_pushed_behind_what_is_known() -> None:
    found = shift(np.full(4, 5.0), [Flexible("a", 4, 0, 9, 2), Flexible("b", 1, 3, 9, 5)], capacity=8)
    assert found.starts[0] <= 2
    assert found.starts[1] == 3


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_shifting_is_never_worse_than_submitted(data: st.DataObject) -> None:
    windows = 8
    base = np.array(data.draw(st.lists(st.integers(0, 10), min_size=windows, max_size=windows)), dtype=float)
    jobs = []
    for place in range(data.draw(st.integers(1, 3))):
        length = data.draw(st.integers(1, 3))
        earliest = data.draw(st.integers(0, windows - length))
        latest = data.draw(st.integers(earliest, windows - length))
        last = data.draw(st.sampled_from([1.0, 0.5, 0.125]))
        jobs.append(Flexible(str(place), float(data.draw(st.integers(1, 8))), earliest, latest, length, last))
    capacity = float(data.draw(st.integers(4, 16)))
    found = shift(base, jobs, capacity)
    assert all(job.earliest <= start <= job.latest for job, start in zip(jobs, found.starts, strict=True))
    assert np.array_equal(found.after, load_of(base, jobs, found.starts))
    assert found.after.sum() == found.before.sum()
    assert found.after.max() <= found.before.max()
    assert above_capacity(found.after, capacity, 60) <= above_capacity(found.before, capacity, 60) + 1e-9
    assert cost_of(found.after, capacity) <= cost_of(found.before, capacity) + 1e-9


def test_it_gains_most_of_what_all_combinations_could() -> None:
    chance = np.random.default_rng(0)
    possible = gained = 0.0
    for _ in range(100):
        base = chance.integers(0, 11, 10).astype(float)
        jobs = []
        for place in range(3):
            length = int(chance.integers(1, 4))
            earliest = int(chance.integers(0, 10 - length))
            jobs.append(Flexible(str(place), float(chance.integers(1, 9)), earliest, 10 - length, length))
        combinations = itertools.product(*(range(job.earliest, job.latest + 1) for job in jobs))
        least = min(cost_of(load_of(base, jobs, starts), 12.0) for starts in combinations)
        found = shift(base, jobs, 12.0)
        possible += cost_of(found.before, 12.0) - least
        gained += cost_of(found.before, 12.0) - cost_of(found.after, 12.0)
    assert gained >= 0.9 * possible


def test_a_job_makes_room_for_another_where_it_gains_nothing_itself() -> None:
    jobs = [Flexible("a", 1, 0, 0, 1), Flexible("b", 1, 1, 2, 1), Flexible("c", 1, 0, 1, 1)]
    assert shift(np.zeros(4), jobs, 4.0).starts == (0, 2, 1)


def test_a_short_job_counts_for_as_long_as_it_lasts() -> None:
    minute = RunTime(60.0, Source.RATES, 0.1, math.inf, "g")
    long = RunTime(1350.0, Source.RATES, 0.1, math.inf, "g")
    work = [
        Work("short", "t", 8.0, minute, deadline_s=36_000.0),
        Work("fixed", "t", 4.0, long),
        Work("late", "t", 4.0, long, start_s=2700.0),
    ]
    found = advise({}, 8.0, 8.0, work, now_s=1e9, window_s=900.0, windows=4)
    assert found.shifted.before.tolist() == pytest.approx([8 + 8 / 15 + 4, 8 + 2, 8, 8 + 4])
    # A minute of 8 and 22.5 minutes of 4 above the capacity, and 15 minutes of 4 before the end of what is looked at.
    assert found.above_before == pytest.approx(8 / 60 + 4 * 0.375 + 4 * 0.25)
    costs = _costs(np.full(4, 8.0), Flexible("a", 4.0, 0, 3, 2, 0.5), 8.0)
    for start, cost in enumerate(costs):
        load = load_of(np.full(4, 8.0), [Flexible("a", 4.0, 0, 3, 2, 0.5)], [start])
        assert cost == pytest.approx(cost_of(load, 8.0) - cost_of(np.full(4, 8.0), 8.0))


def test_stretches() -> None:
    load = np.array([1.0, 9.0, 9.5, 1.0, 8.0])
    found = stretches_where(load > 7, load)
    assert [(item.first, item.end, item.load) for item in found] == [(1, 3, 9.25), (4, 5, 8.0)]


def test_a_daily_profile_is_expected_again_and_the_present_fades_into_it() -> None:
    start = 20_000 * DAY_S
    history = {start + hour * 3600: 10.0 if 8 <= hour % 24 < 20 else 2.0 for hour in range(72)}
    found = expected_load(history, 6.0, start + 72 * 3600, 3600.0, 24)
    assert found.days == 3
    assert found.load[0] == pytest.approx(2 + 4 * math.exp(-0.5))
    assert found.load[12] == pytest.approx(10.0, abs=0.01)
    short = expected_load({start: 3.0}, 6.0, start + 3600, 3600.0, 4)
    assert (short.days, short.load.tolist()) == (0, [6.0] * 4)


def work(name: str, *, deadline_h: float = math.inf, hours: float = 1.0, accelerators: float = 8.0) -> Work:
    time = RunTime(hours * 3600, Source.RATES, 0.1, math.inf, name)
    return Work(name, "t", accelerators, time, deadline_s=deadline_h * 3600)


def test_only_what_has_a_deadline_with_room_can_shift() -> None:
    jobs = [
        work("free", deadline_h=10),
        work("also", deadline_h=10),
        work("late", deadline_h=1.05),
        work("never"),
        Work("odd", "t", 2.0, Unknown("nobody knows"), deadline_s=1e6),
    ]
    found = advise({}, 4.0, 16.0, jobs, now_s=1e9, window_s=3600, windows=12)
    assert {item.job_id: reason for item, reason in found.fixed} == {
        "late": "its deadline leaves no room",
        "never": "it has no deadline: how long it may wait is not said",
        "odd": "nobody knows",
    }
    # 4 held, 2 of the odd one, 8 each of four jobs in the first hour, on 16.
    assert found.shifted.before[0] == 38
    assert [move.work.job_id for move in found.moves] == ["free", "also"]
    assert found.shifted.after[0] == 22
    assert (found.above_before, found.above_after) == (22.0, 6.0)
    assert money(found.above_before - found.above_after, 2_000_000) == 32_000_000
    assert money(1.0, None) is None
    # The band of a run time, not its middle, keeps the deadline: 10 h - 1 h x exp(0.128).
    assert all(move.start_s + 3600 * math.exp(0.1282) <= 36_000 for move in found.moves)
    assert [(item.first, item.end) for item in found.peaks] == [(0, 1)]
    assert [(item.first, item.end) for item in found.valleys] == [(1, 12)]


def test_commands_and_environments_are_not_kept() -> None:
    spec = JobSpec(
        name="n", command=["secret"], env={"KEY": "secret"}, ranks=3, resources=Resources(accelerators=2),
        model=ModelDescription(steps=5), max_run_time_s=9,
    )  # fmt: skip
    spec.rates.add(accelerator_type="A", rate=1.0)
    spec.deadline.FromSeconds(77)
    kept = trimmed(spec)
    assert (list(kept.command), dict(kept.env)) == ([], {})
    assert (kept.ranks, kept.model.steps, kept.rates[0].rate, kept.deadline.seconds) == (3, 5, 1.0, 77)
    assert not trimmed(JobSpec()).HasField("deadline")


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def wish(name: str, *after: str, start_h: float = 0.0, **fields: Any) -> Wish:
    """A job on 8 accelerators that ends anywhere within four hours, half of them expected, with a deadline two days ahead."""
    spec = JobSpec(kind=job_pb2.JOB_KIND_GANG, ranks=8, resources=Resources(accelerators=1))
    spec.deadline.FromDatetime(NOW + timedelta(days=2))
    given_fields = JobSpec(**({"max_run_time_s": 14_400.0} | fields))
    spec.MergeFrom(given_fields)
    return Wish(name, spec, start_h * 3600, after)


def test_planned_jobs_that_follow_others_begin_when_these_end() -> None:
    plan = [wish("c", "b"), wish("a"), wish("b", "a", start_h=1.0), wish("late", "a", start_h=9.0), wish("alone")]
    found = planned_work(plan, "north", {"A100": 64}, NOW)
    assert [(item.job_id, item.start_s / 3600) for item in found] == [
        ("c", 4.0), ("a", 0.0), ("b", 2.0), ("late", 9.0), ("alone", 0.0)
    ]  # fmt: skip
    advised = advise({}, 0.0, 64.0, found, now_s=1e9, window_s=3600, windows=12)
    assert advised.shifted.before.tolist() == [16, 16, 8, 8, 8, 8, 0, 0, 0, 8, 8, 0]
    assert {item.job_id: reason for item, reason in advised.fixed} == {
        "c": "it follows b",
        "a": "another job follows it",
        "b": "it follows a",
        "late": "it follows a",
    }


def test_planned_jobs_that_may_not_run_in_the_domain_are_none_of_its_load() -> None:
    elsewhere = PlacementConstraints(domains=["south"])
    plan = [
        wish("south", placement=elsewhere),
        wish("not-north", placement=PlacementConstraints(exclude_domains=["north"])),
        wish("behind", "south"),
        wish("endless", max_run_time_s=0.0),
        wish("never", "endless"),
        wish("here", placement=PlacementConstraints(domains=["north", "south"])),
    ]
    found = planned_work(plan, "north", {"A100": 64}, NOW)
    advised = advise({}, 0.0, 64.0, found, now_s=1e9, window_s=3600, windows=4)
    # "here" for two hours, "endless" to the end of what is looked at.
    assert advised.shifted.before.tolist() == [16, 16, 8, 8]
    reasons = {item.job_id: reason for item, reason in advised.fixed}
    assert reasons["south"] == reasons["not-north"] == "it may not run in north"
    assert reasons["behind"] == "it follows south, whose end is not known"
    assert reasons["never"] == "it follows endless, whose end is not known"
    assert [item.accelerators for item in found] == [8] * 6


def test_planned_jobs_are_told_on_accelerators_that_they_take() -> None:
    def asking(*types: str, ranks: int = 0, **fields: Any) -> Wish:
        rates = [
            DeclaredRate(accelerator_type="A100", ranks=8 + ranks, rate=1.0),
            DeclaredRate(accelerator_type="H100", ranks=8 + ranks, rate=2.0),
        ]
        fields = {"model": ModelDescription(steps=7200), "rates": rates, **fields}
        found = wish("-".join(types) or "any", resources=Resources(accelerator_types=types), **fields)
        found.spec.ranks += ranks
        return found

    plan = [asking(), asking("A100"), asking("H100"), asking("B200"), asking("A100", "B200", ranks=24)]
    found = planned_work(plan, "north", {"H100": 16, "A100": 24}, NOW)
    times = [item.run_time.expected_s for item in found[:3] if isinstance(item.run_time, RunTime)]
    assert times == [3600, 7200, 3600]
    assert [(item.here, item.bound) for item in found] == [
        (True, ""),
        (True, ""),
        (True, ""),
        (False, "it does not take H100, A100"),
        (False, "north has 24 accelerators that it takes"),
    ]
    # Where the model of some is not known, they may be the ones.
    assert planned_work([asking("B200")], "north", {"H100": 16, "": 8}, NOW)[0].here


def test_planned_services_hold_all_of_their_replicas() -> None:
    service = wish("s", kind=job_pb2.JOB_KIND_SERVICE, replicas=3, max_run_time_s=0.0)
    flow = wish("w", kind=job_pb2.JOB_KIND_WORKFLOW)
    flow.spec.tasks.extend(
        [
            WorkflowTask(name="a", ranks=2),
            WorkflowTask(name="b", resources=Resources(accelerators=4)),
            WorkflowTask(name="c", depends_on=["a"]),
        ]
    )
    half = wish("h", resources=Resources(accelerator_milli=500))
    found = planned_work([service, flow, half], "north", {"A100": 64}, NOW)
    assert [item.accelerators for item in found] == [3, 2 + 4, 4]


@pytest.mark.parametrize("window_s", [60.0, 420.0, 900.0])
def test_every_window_of_a_day_has_its_own_place_in_the_profile(window_s: float) -> None:
    start, count = 20_000 * DAY_S, int(3 * DAY_S / window_s)
    history = {start + place * window_s: (start + place * window_s) % DAY_S / 3600 for place in range(count)}
    now = start + 3 * DAY_S
    found = expected_load(history, 0.0, now, window_s, int(2 * DAY_S / window_s))
    hours = (now + np.arange(len(found.load)) * window_s) % DAY_S / 3600
    far = np.arange(len(found.load)) * window_s > 12 * 3600
    # Around midnight windows that do not divide the day hold both ends of it.
    inner = far & (hours > 0.5) & (hours < 23.5)
    assert found.load[inner] == pytest.approx(hours[inner], abs=1.01 * window_s / 3600)
