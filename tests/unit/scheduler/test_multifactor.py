"""Multi-factor priority: sums by hand, order over time, and the bound on starvation under constant overload."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meridian.errors import InvalidArgumentError
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.multifactor import Multifactor, WaitingJobs, Weights, breakdown, priority, start_bound_s

NAN = float("nan")
DAY = 86400.0


def test_the_weighted_sum_by_hand() -> None:
    policy = Multifactor(
        Weights(age=1000, fair_share=500, size=100, partition=10, qos=2000, tres={"licence": 40}),
        max_age_s=100.0,
        total_size=64,
        tres_totals={"licence": 8},
    )
    jobs = WaitingJobs(
        queued_at_s=[950.0, 0.0],
        fair_share=[0.5, 0.25],
        size=[16, 64],
        partition=[1.0, 0.5],
        qos=[0.1, 0.0],
        tres={"licence": [2, 0]},
        nice=[0, 7],
    )
    parts = {name: part.tolist() for name, part in breakdown(jobs, policy, 1000.0).items()}
    assert parts == {
        "age": [500, 1000],
        "fair_share": [250, 125],
        "size": [25, 100],
        "partition": [10, 5],
        "qos": [200, 0],
        "tres.licence": [10, 0],
        "nice": [0, -7],
    }
    assert priority(jobs, policy, 1000.0).tolist() == [995, 1223]
    small = priority(jobs, replace(policy, favor_small=True), 1000.0)
    assert small.tolist() == [995 - 25 + 75, 1223 - 100]


def test_slurm_s_proportions_70_15_15() -> None:
    # The example of the Slurm document: fair share 70 %, size and age 15 % each. A whole-machine job at the age cap of an
    # unserved queue has exactly 100.
    policy = Multifactor(Weights(age=15, fair_share=70, size=15, qos=0), max_age_s=DAY, total_size=512)
    jobs = WaitingJobs([0.0, 0.0], fair_share=[1.0, 0.5], size=[512, 0])
    assert priority(jobs, policy, 30 * DAY).tolist() == [100, 50]


def test_age_starts_at_zero_and_stops_at_the_cap() -> None:
    policy = Multifactor(Weights(age=10, fair_share=0, qos=0), max_age_s=100.0)
    assert priority(WaitingJobs([150.0, 100.0, 50.0, 0.0, -900.0]), policy, 100.0).tolist() == [0, 0, 5, 10, 10]


factors = st.floats(0, 1)


@settings(max_examples=200, deadline=None)
@given(
    st.floats(0, 2e9),
    st.floats(0, 1e6),
    st.lists(st.floats(0, 3e6), min_size=1, max_size=6),
    st.tuples(factors, factors, factors),
    st.sampled_from([None, 10.0, 3 * DAY, 40 * DAY]),
)
def test_jobs_that_differ_in_age_only_never_change_places(
    first_s: float, later_s: float, delays: list[float], shared: tuple[float, float, float], starvation_s: float | None
) -> None:
    share, size, qos = shared
    policy = Multifactor(Weights(size=300), starvation_age_s=starvation_s, protected_qos=0.5)
    jobs = WaitingJobs([first_s, first_s + later_s], fair_share=share, size=size, qos=qos)
    for delay in delays:
        older, younger = priority(jobs, policy, first_s + delay)
        assert older >= younger


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 6 * DAY), factors, factors), min_size=2, max_size=6),
    st.floats(0, DAY),
    st.floats(0, DAY),
)
def test_below_the_cap_no_pair_of_jobs_changes_places(
    rows: list[tuple[float, float, float]], first: float, second: float
) -> None:
    policy = Multifactor()  # the cap is 7 days; the oldest is 7 days old at most
    queued, share, qos = np.array(rows).T
    jobs = WaitingJobs(queued, fair_share=share, qos=qos)
    start = 6 * DAY
    one, two = (priority(jobs, policy, start + delay) for delay in (first, second))
    gap_one, gap_two = (values[:, None] - values[None, :] for values in (one, two))
    assert gap_one == pytest.approx(gap_two, abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 20 * DAY), factors, factors, factors, factors), min_size=1, max_size=20), factors
)
def test_who_has_waited_long_enough_passes_every_younger_job_up_to_the_class(
    rows: list[tuple[float, float, float, float, float]], protected_qos: float
) -> None:
    age, share, size, partition, qos = np.array(rows).T
    weights = Weights(1000, 3000, 500, 700, 2500)
    policy = Multifactor(weights, starvation_age_s=2 * DAY, protected_qos=protected_qos)
    values = priority(WaitingJobs(-age, share, size, partition, qos), policy, 0.0)
    old = age >= 2 * DAY
    within = qos <= protected_qos
    if old.any() and (~old & within).any():
        assert values[old].min() > values[~old & within].max()
    order = np.argsort(-values[old & within], kind="stable")
    assert np.all(np.diff(age[old & within][order]) <= 0)


def test_the_worst_case_of_protection_by_hand() -> None:
    # One job with nothing in its favour against one with everything, a second short of protection.
    policy = Multifactor(
        Weights(1000, 3000, 500, 700, 2500), max_age_s=DAY, starvation_age_s=2 * DAY, protected_qos=1.0
    )
    jobs = WaitingJobs([0.0, 1.0], [0, 1], [0, 1], [0, 1], [0, 1])
    poor, rich = priority(jobs, policy, 2 * DAY)
    assert (poor, rich) == (1000 + 3000 + 500 + 700 + 2500 + 1000, 1000 + 3000 + 500 + 700 + 2500)
    poor, rich = priority(jobs, policy, 2 * DAY - 1)
    assert (poor, rich) == (1000, 7700)


def test_a_job_above_the_protected_class_keeps_its_place() -> None:
    policy = Multifactor(Weights(qos=50_000), starvation_age_s=DAY, protected_qos=0.5)
    urgent, plain = priority(WaitingJobs([0.0, 0.0], qos=[1.0, 0.5]), policy, 2 * DAY)
    assert urgent > plain > 25_000


@settings(max_examples=200, deadline=None)
@given(factors, factors, factors, st.lists(st.floats(0, 30 * DAY), min_size=2, max_size=6).map(sorted))
def test_a_waiting_job_never_loses_priority(share: float, qos: float, guarded: float, times: list[float]) -> None:
    policy = Multifactor(Weights(qos=20_000), starvation_age_s=3 * DAY, protected_qos=guarded)
    values = [float(priority(WaitingJobs([0.0], share, qos=qos), policy, now)[0]) for now in times]
    assert values == sorted(values)


# -- starvation -------------------------------------------------------------------------------------------------------


@dataclass
class Waiting:
    queued_s: int
    size: int
    duration_s: int
    fair_share: float
    older: int = 0


def waits(arrivals: list[list[Waiting]], capacity: int, policy: Multifactor) -> list[tuple[Waiting, int, bool]]:
    """(Job, seconds waited, whether it started), one step a second: the queue is gone through by priority; what does not
    fit is passed over, unless it is protected."""
    queue: list[Waiting] = []
    running: list[tuple[int, int]] = []
    done = []
    for now_s, fresh in enumerate(arrivals):
        running = [(end_s, size) for end_s, size in running if end_s > now_s]
        for job in fresh:
            job.older = len(queue)
            queue.append(job)
        if not queue:
            continue
        jobs = WaitingJobs(
            [job.queued_s for job in queue], [job.fair_share for job in queue], [job.size for job in queue]
        )
        values = priority(jobs, policy, now_s)
        free = capacity - sum(size for _, size in running)
        started = set()
        for at in sorted(range(len(queue)), key=lambda at: (-values[at], at)):
            job = queue[at]
            if job.size <= free:
                free -= job.size
                running.append((now_s + job.duration_s, job.size))
                done.append((job, now_s - job.queued_s, True))
                started.add(at)
            elif policy.starvation_age_s is not None and now_s - job.queued_s >= policy.starvation_age_s:
                break
        queue = [job for at, job in enumerate(queue) if at not in started]
    return done + [(job, len(arrivals) - job.queued_s, False) for job in queue]


def overload(seconds: int) -> list[list[Waiting]]:
    """Two small jobs of a favoured queue each second, of 4 s, for a capacity of 6; one large job of a poor queue."""
    arrivals = [[Waiting(now, 1, 4, 1.0), Waiting(now, 1, 4, 1.0)] for now in range(seconds)]
    arrivals[5].append(Waiting(5, 6, 4, 0.0))
    return arrivals


def test_the_large_job_of_a_poor_queue_starves_without_protection_and_not_with_it() -> None:
    plain = Multifactor(Weights(age=10, fair_share=1000, qos=0), max_age_s=60.0)
    large = next(item for item in waits(overload(600), 6, plain) if item[0].size == 6)
    assert large[1:] == (595, False)
    guarded = replace(plain, starvation_age_s=30.0)
    job, waited_s, started = next(item for item in waits(overload(600), 6, guarded) if item[0].size == 6)
    assert started
    assert 30 <= waited_s <= start_bound_s(job.older, 4.0, guarded, side_by_side=1)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_under_constant_overload_every_job_starts_within_its_bound(data: st.DataObject) -> None:
    capacity, largest, longest, seconds = 8, data.draw(st.integers(1, 8)), data.draw(st.integers(1, 6)), 150
    seed = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    arrivals: list[list[Waiting]] = []
    for now in range(seconds):
        count = rng.integers(1, 5)
        rows = zip(
            rng.integers(1, largest + 1, count), rng.integers(1, longest + 1, count), rng.random(count), strict=True
        )
        arrivals.append([Waiting(now, int(size), int(length), float(share)) for size, length, share in rows])
    policy = Multifactor(Weights(age=10, fair_share=1000), max_age_s=50.0, starvation_age_s=20.0)
    found = waits(arrivals, capacity, policy)
    assert len(found) == sum(map(len, arrivals))
    for job, waited_s, _ in found:
        assert waited_s <= start_bound_s(job.older, longest, policy, capacity // largest)


def test_the_bound_by_hand() -> None:
    policy = Multifactor(starvation_age_s=100.0)
    assert start_bound_s(0, 10.0, policy) == 110.0
    assert start_bound_s(7, 10.0, policy, side_by_side=4) == 120.0
    assert start_bound_s(8, 10.0, policy, side_by_side=4) == 130.0
    assert start_bound_s(0, 10.0, Multifactor()) == math.inf
    with pytest.raises(InvalidArgumentError):
        start_bound_s(-1, 10.0, policy)


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-1.0, NAN, float("inf")])
@pytest.mark.parametrize("factor", ["age", "fair_share", "size", "partition", "qos", "tres.licence"])
def test_a_wrong_weight_is_refused_by_name(factor: str, value: float) -> None:
    name = factor.partition(".")[2]
    with pytest.raises(PolicyError, match=rf"weights\.{factor} must"):
        Weights(tres={name: value}) if name else Weights(**{factor: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_age_s", 0.0),
        ("total_size", NAN),
        ("starvation_age_s", -1.0),
        ("protected_qos", 1.5),
        ("protected_qos", NAN),
    ],
)
def test_a_wrong_policy_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(PolicyError, match=field):
        Multifactor(**{field: value})  # type: ignore[arg-type]


def test_a_resource_with_a_weight_needs_a_total() -> None:
    with pytest.raises(PolicyError, match=r"tres_totals\.licence"):
        Multifactor(Weights(tres={"licence": 1.0}))
    with pytest.raises(PolicyError, match=r"tres_totals\.licence"):
        Multifactor(Weights(tres={"licence": 1.0}), tres_totals={"licence": 0.0})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queued_at_s", [NAN, 0.0]),
        ("fair_share", 1.1),
        ("fair_share", [0.1, NAN]),
        ("size", -1.0),
        ("partition", [0.1, 0.2, 0.3]),
        ("qos", -0.1),
        ("nice", -1.0),
    ],
)
def test_wrong_jobs_are_refused_by_field(field: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=field):
        priority(WaitingJobs(**{"queued_at_s": [0.0, 1.0], field: value}), Multifactor(), 5.0)  # type: ignore[arg-type]
