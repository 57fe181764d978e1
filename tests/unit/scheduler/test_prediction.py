"""Run-time prediction: small sequences computed by hand, causality, determinism, and what must hold for any history."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.run_time_prediction import (
    Experts,
    GroupMean,
    LastTwo,
    Log,
    Recorded,
    concordance,
    in_order,
    pinball,
    read_chronus,
    replay,
    waiting_pairs,
)
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.prediction import (
    EXPERTS,
    Bursts,
    Features,
    Prediction,
    PredictorSettings,
    RunTimePredictor,
    ServiceIndex,
    gittins_indices,
)
from services.scheduler.core.prediction.service_index import EDGES_S
from services.scheduler.core.prediction.window import Window, quantile, tail_exponent
from simulation.traces import load

USER_SHARE = EXPERTS.index("share of the estimate that this user uses")


def taught(*runs: tuple[str, float]) -> RunTimePredictor:
    """A predictor that has seen jobs (user, run time in s) of one rank end, each told before."""
    predictor = RunTimePredictor()
    for user, run_s in runs:
        job = Features(user=user)
        predictor.observe(job, run_s, said=predictor.predict(job))
    return predictor


def test_nothing_known() -> None:
    assert RunTimePredictor().predict(Features()).median_s == 3600.0
    known = RunTimePredictor().predict(Features(estimate_s=500.0))
    assert (known.median_s, known.high_s, known.n, known.evidence) == (500.0, 500.0, 0, "the estimate alone")


def test_one_job_with_another_estimate_by_hand() -> None:
    predictor = RunTimePredictor()
    predictor.observe(Features(user="a", estimate_s=200.0), 100.0)
    found = predictor.predict(Features(user="a", estimate_s=400.0))
    # Four groups say 100 s, two that half of the estimate is used: 200 s. No errors yet, so all weigh alike.
    assert found.median_s == pytest.approx(100.0 * 2 ** (2 / 6))
    assert found.mean_s == pytest.approx((4 * 100 + 2 * 200) / 6)
    assert found.n == 1


def test_the_answer_is_at_most_the_estimate() -> None:
    found = taught(("a", 1000.0), ("a", 1000.0)).predict(Features(user="a", estimate_s=60.0))
    assert found.median_s == found.mean_s == 60.0
    assert found.high_s == pytest.approx(60.0 * 1.02)


def test_the_share_of_the_estimate_by_hand() -> None:
    predictor = RunTimePredictor()
    for estimate_s, run_s in ((100.0, 50.0), (1000.0, 300.0), (200.0, 20.0)):
        predictor.observe(Features(user="a", estimate_s=estimate_s), run_s)
    votes = predictor.predict(Features(user="a", estimate_s=5000.0)).votes
    # Shares 0.5, 0.3, 0.1.
    assert {expert: math.exp(median) for expert, _, _, median, _ in votes}[USER_SHARE] == pytest.approx(1500.0)


def test_weight_goes_to_the_expert_that_was_right() -> None:
    noise = (3.0, 90_000.0, 15.0, 4000.0)
    predictor = taught(*((("a", 100.0), ("b", noise[number % 4]))[number % 2] for number in range(80)))
    found = predictor.predict(Features(user="a"))
    assert found.median_s == pytest.approx(100.0, rel=0.02)
    assert found.low_s > 90.0
    assert found.high_s < 110.0
    assert found.evidence in {"jobs of the same user", "jobs of the same user, name and size"}


def test_the_errors_of_the_experts_by_hand() -> None:
    predictor = taught(("a", 100.0), ("a", 100.0 * math.e))
    everyone = EXPERTS.index("all jobs")
    # One job remembered says ln 100 at all levels; the truth is 1 above: 0.5 + 0.1 + 0.9.
    assert predictor.state()["errors"][2 * 6 * everyone : 2 * 6 * everyone + 2] == pytest.approx([1.5, 1.0])
    # The band was [100, 100]: not below it (in by 0.02 x 0.1), above it (out by 0.02 x 0.9).
    assert predictor.state()["offsets"] == pytest.approx([-0.002, 0.018])


def test_the_band_is_never_widened_beyond_the_longest_run_time() -> None:
    predictor = RunTimePredictor(PredictorSettings(calibration=3.0))
    for run_s in (10.0, 20.0, 40.0, 80.0):
        predictor.observe(Features(), run_s, said=predictor.predict(Features()))
    found = predictor.predict(Features())
    assert found.high_s == pytest.approx(80.0)
    assert found.median_s == pytest.approx(math.sqrt(20.0 * 40.0))


@pytest.mark.parametrize("spread", [0.1, 1.0, 2.0])
def test_the_band_covers_what_it_should_in_the_long_run(spread: float) -> None:
    chance = np.random.default_rng(5)
    runs = np.exp(chance.normal(6.0, spread, 3000) + np.repeat(chance.normal(0.0, 2 * spread, 100), 30))  # moves on
    predictor, inside = RunTimePredictor(), []
    for run_s in np.maximum(runs, 1.0):
        said = predictor.predict(Features())
        inside.append(said.low_s <= run_s <= said.high_s)
        predictor.observe(Features(), float(run_s), said=said)
    assert np.mean(inside[1000:]) == pytest.approx(0.8, abs=0.04)


def test_an_expert_is_scored_on_what_it_said_at_submission() -> None:
    first, second = RunTimePredictor(), RunTimePredictor()
    job = Features(user="a")
    for predictor, remembers in ((first, True), (second, False)):
        predictor.observe(job, 10.0)
        said = predictor.predict(job)
        predictor.observe(job, 1000.0, said=said)
        predictor.observe(job, 1000.0, said=said if remembers else None)
    everyone = 2 * 6 * EXPERTS.index("all jobs")
    # Both jobs submitted when one job of 10 s was known: twice an error of 1.5 ln 100, at one job of history.
    assert first.state()["errors"][everyone : everyone + 2] == pytest.approx([1.5 * math.log(100), 2.0])
    assert second.state()["errors"][everyone + 1] == 1.0


def test_places_in_bursts_by_hand() -> None:
    bursts = Bursts()

    def place(at_s: float, tenant: str = "a", accelerators: int = 1, user: str = "", name: str = "") -> int:
        job = Features(tenant, user, name, accelerators=accelerators, submit_s=at_s)
        placed = bursts.placed(job)
        assert replace(placed, place=-1) == job
        return placed.place

    assert [place(at_s) for at_s in (0.0, 0.0, 900.0, 1800.0, 2700.5, 2701.0)] == [0, 1, 2, 3, 0, 1]
    # Another tenant or size has a burst of its own; who names user or program has no place and moves nobody's.
    assert [place(2702.0, "b"), place(2702.0, accelerators=8)] == [0, 0]
    assert [place(2703.0, user="u"), place(2703.0, name="train"), place(2704.0)] == [-1, -1, 2]


def test_places_tell_apart_what_nothing_else_does() -> None:
    """Three bursts of 16 jobs alike but for their place: the first eight take 2000 s, the others 900."""
    predictor, bursts = RunTimePredictor(), Bursts()
    for burst in range(3):
        jobs = [bursts.placed(Features("a", submit_s=burst * 10_000.0 + number)) for number in range(16)]
        said = [predictor.predict(job) for job in jobs]
        for job, answer in zip(jobs, said, strict=True):
            predictor.observe(job, 2000.0 if job.place < 8 else 900.0, said=answer)
    early, late = (predictor.predict(Features("a", place=place)) for place in (3, 12))
    assert (early.evidence, early.n) == (late.evidence, late.n) == (EXPERTS[-1], 24)
    assert early.median_s == pytest.approx(2000.0, rel=0.02)
    assert late.median_s == pytest.approx(900.0, rel=0.02)
    assert predictor.predict(Features("a")).evidence != EXPERTS[-1]


def test_a_state_from_before_the_last_expert_goes_on() -> None:
    predictor = taught(("a", 50.0), ("b", 70.0), ("a", 90.0))
    state = predictor.state()
    assert state["user_errors"]
    fewer = len(EXPERTS) - 1
    state["errors"] = state["errors"][: 2 * 6 * fewer]
    state["user_errors"] = [[key, values[: 2 * fewer]] for key, values in state["user_errors"]]
    assert json.dumps(RunTimePredictor.from_state(state).state()) == json.dumps(predictor.state())


def test_remaining_time_of_survivors_by_hand() -> None:
    runs = [(f"user-{number}", 100.0 if number % 2 else 1000.0) for number in range(20)]
    rest = taught(*runs).remaining(Features(user="new"), 200.0)
    assert rest.median_s == pytest.approx(800.0)
    assert rest.mean_s == pytest.approx(800.0)


def test_a_job_that_outlives_all_has_a_pareto_tail_by_hand() -> None:
    predictor = taught(*((f"user-{number}", 100.0) for number in range(20)))
    job = Features(user="new")
    # Equal run times: the exponent is at its bound, 3. Median: t (2^(1/3) - 1); mean: t / 2.
    for elapsed_s in (1000.0, 10_000.0):
        rest = predictor.remaining(job, elapsed_s)
        assert rest.median_s == pytest.approx(elapsed_s * (2 ** (1 / 3) - 1))
        assert rest.mean_s == pytest.approx(elapsed_s / 2)


def test_the_estimate_bounds_the_rest_until_it_has_passed() -> None:
    predictor = taught(*((f"user-{number}", 10_000.0) for number in range(20)))
    job = Features(user="new", estimate_s=500.0)
    assert predictor.remaining(job, 200.0).median_s == pytest.approx(300.0)
    assert predictor.remaining(job, 600.0).median_s > 300.0


def test_nothing_elapsed_is_the_prediction() -> None:
    predictor = taught(("a", 50.0), ("b", 70.0))
    assert predictor.remaining(Features(user="a"), 0.0) == predictor.predict(Features(user="a"))


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_bad_times_are_refused_and_teach_nothing(bad: float) -> None:
    predictor = taught(("a", 50.0))
    before = json.dumps(predictor.state())
    with pytest.raises(PolicyError, match="run_time_s"):
        predictor.observe(Features(user="a"), bad)
    with pytest.raises(PolicyError, match="elapsed_s"):
        predictor.remaining(Features(user="a"), bad)
    with pytest.raises(PolicyError, match="attained_s"):
        predictor.service_index(Features(user="a"), bad)
    assert json.dumps(predictor.state()) == before


@pytest.mark.parametrize(
    "bad",
    [{"low_level": 0.6}, {"capacity": 0}, {"max_groups": 1}, {"sharpness": -1.0}, {"prior": 0.0}, {"memory": math.nan}],
)
def test_bad_settings_are_refused_by_name(bad: dict[str, float]) -> None:
    with pytest.raises(PolicyError, match=next(iter(bad))):
        PredictorSettings(**bad)


def test_memory_is_bounded() -> None:
    predictor = RunTimePredictor(PredictorSettings(max_groups=100))
    for number in range(500):
        predictor.observe(Features(user=str(number)), 10.0)
    state = predictor.state()
    assert len(state["windows"]) <= 100
    assert len(state["user_errors"]) <= 100
    assert predictor.predict(Features(user="499")).median_s == pytest.approx(10.0)


histories = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "b"]),
        st.sampled_from(["", "train", "test"]),
        st.integers(1, 3),
        st.one_of(st.sampled_from([math.nan, math.inf, 0.0, -1.0, 0.01, 1e300]), st.floats(1.0, 1e6)),
        st.one_of(st.floats(0.0, 1e7), st.just(1e300)),
    ),
    max_size=40,
)


def features(user: str, name: str, ranks: int, estimate_s: float) -> Features:
    return Features(user=user, name=name, ranks=ranks, estimate_s=estimate_s)


def sound(found: Prediction) -> bool:
    ordered = 0.0 < found.low_s <= found.median_s <= found.high_s < math.inf
    return ordered and 0.0 < found.mean_s < math.inf


@settings(max_examples=60, deadline=None)
@given(histories, st.one_of(st.floats(0.0, 1e8), st.just(1e200)))
def test_any_history_gives_ordered_bands_and_a_positive_rest(
    history: list[tuple[str, str, int, float, float]], elapsed_s: float
) -> None:
    predictor = RunTimePredictor()
    for *what, run_s in history:
        job = features(*what)
        said = predictor.predict(job)
        assert sound(said)
        assert sound(predictor.remaining(job, elapsed_s))
        assert predictor.service_index(job, elapsed_s) > 0.0
        predictor.observe(job, run_s, said=said)


@settings(max_examples=30, deadline=None)
@given(histories, st.integers(0, 40))
def test_state_continues_where_it_stopped(history: list[tuple[str, str, int, float, float]], stop: int) -> None:
    straight, resumed = RunTimePredictor(), RunTimePredictor()
    for number, (*what, run_s) in enumerate(history):
        if number == stop:
            resumed = RunTimePredictor.from_state(json.loads(json.dumps(resumed.state())))
        job = features(*what)
        assert straight.predict(job) == resumed.predict(job)
        straight.observe(job, run_s)
        resumed.observe(job, run_s)
    assert json.dumps(straight.state()) == json.dumps(resumed.state())


def test_state_of_another_version_or_broken_is_refused() -> None:
    state = RunTimePredictor().state()
    with pytest.raises(PolicyError, match="version"):
        RunTimePredictor.from_state({**state, "version": 99})
    del state["windows"]
    with pytest.raises(PolicyError, match="windows"):
        RunTimePredictor.from_state(state)


def test_asking_changes_nothing() -> None:
    predictor = taught(*(("a", 10.0 * number + 1) for number in range(50)))
    before = json.dumps(predictor.state())
    predictor.predict(Features(user="a"))
    predictor.remaining(Features(user="a"), 77.0)
    predictor.service_index(Features(user="a"), 5.0)
    assert json.dumps(predictor.state()) == before


def a_log(seed: int, jobs: int = 120) -> list[Recorded]:
    chance = np.random.default_rng(seed)
    submits = np.cumsum(chance.exponential(30.0, jobs))
    return [
        Recorded(
            Features(user=str(chance.integers(3)), ranks=int(chance.integers(1, 3)), submit_s=float(submit)),
            float(submit + chance.exponential(20.0)),
            float(chance.lognormal(4.0, 1.5)),
        )
        for submit in submits
    ]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 119), st.floats(1.0, 1e5))
def test_a_job_that_has_not_ended_never_influences_an_answer(seed: int, changed: int, longer_s: float) -> None:
    jobs = a_log(seed)
    end_s = jobs[changed].start_s + jobs[changed].run_s
    other = list(jobs)
    other[changed] = Recorded(jobs[changed].features, jobs[changed].start_s, jobs[changed].run_s + longer_s)
    before = np.array([job.features.submit_s < end_s for job in jobs])
    for ours, theirs in zip(replay(jobs, Experts()), replay(other, Experts()), strict=True):
        np.testing.assert_array_equal(ours[before], theirs[before])


def test_a_job_that_has_ended_does_influence_answers() -> None:
    jobs = a_log(1)
    other = [Recorded(jobs[0].features, jobs[0].start_s, 10 * jobs[0].run_s), *jobs[1:]]
    assert not np.array_equal(replay(jobs, Experts())[0], replay(other, Experts())[0])


def test_ends_come_before_submissions_at_the_same_moment() -> None:
    jobs = [Recorded(Features(submit_s=0.0), 0.0, 5.0), Recorded(Features(submit_s=5.0), 5.0, 1.0)]
    assert list(in_order(jobs)) == [(False, 0), (True, 0), (False, 1), (True, 1)]


def test_quantiles_by_hand() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.25) == 1.25
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.9) == 4.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5, first=2) == 3.5
    assert quantile([7.0], 0.1) == 7.0


@given(st.lists(st.floats(-5.0, 15.0), min_size=1, max_size=30), st.floats(0.01, 0.49), st.floats(0.51, 0.99))
def test_a_window_holds_the_last_values(values: list[float], low: float, high: float) -> None:
    window = Window(8)
    for value in values:
        window.add(value)
    kept = values[-8:]
    assert window.ordered == sorted(kept)
    assert window.total == pytest.approx(sum(map(math.exp, kept)), rel=1e-6, abs=1e-6)
    assert window.mean_from(0) == pytest.approx(sum(map(math.exp, kept)) / len(kept))
    assert window.band(low, high) == pytest.approx([quantile(sorted(kept), level) for level in (low, 0.5, high)])


def test_tail_exponent_by_hand() -> None:
    assert tail_exponent([0.0] * 4) == 1.0
    # The greatest two of ten are 1 above the third: (2 + 1) / (1 + 1 + 1).
    assert tail_exponent([0.0] * 8 + [1.0, 1.0]) == 1.0
    assert tail_exponent([0.0] * 8 + [10.0, 10.0]) == 0.5


def counted(*found: tuple[int, float]) -> np.ndarray:
    counts = np.zeros(len(EDGES_S) - 1)
    for interval, count in found:
        counts[interval] = count
    return counts


def test_gittins_indices_by_hand() -> None:
    # All within (0, 1] s, evenly: all end for half a second of service each.
    assert gittins_indices(counted((0, 10)))[0] == pytest.approx(2.0)
    # Half in (0, 1], half in (1, 1.25]: to 1 s 1 / 1.5, to 1.25 s 2 / 1.625; after 1 s the rest is 1/8 s.
    index = gittins_indices(counted((0, 1), (1, 1)))
    assert index[0] == pytest.approx(2 / 1.625)
    assert index[1] == pytest.approx(8.0)
    # 9 of 10 in (0, 1], the last far away: the index falls by orders of magnitude after 1 s.
    index = gittins_indices(counted((0, 9), (40, 1)))
    assert index[0] == pytest.approx(9 / 5.5)
    assert index[1] == pytest.approx(1 / (EDGES_S[40:42].mean() - 1.0))
    # Beyond all: 1 / attained service.
    assert index[50] == pytest.approx(1 / EDGES_S[50])


def test_the_service_index_falls_after_the_usual_end_and_rises_before_the_next() -> None:
    index = ServiceIndex()
    job = Features(accelerators=1)
    assert index.index(job, 50.0) == 1 / 50.0
    for number in range(64):
        index.observe(job, 10.0 if number % 8 else 50_000.0)
    assert index.index(job, 0.0) > 20 * index.index(job, 20.0)
    assert index.index(job, 45_000.0) > 2 * index.index(job, 10_000.0)


def test_the_table_is_refreshed_at_fixed_counts() -> None:
    index = ServiceIndex()
    job = Features()
    for _ in range(32):
        index.observe(job, 10.0)
    after = [index.index(job, 5.0)]
    for _ in range(8):
        index.observe(job, 1000.0)
        after.append(index.index(job, 5.0))
    assert len(set(after[:8])) == 1  # 33 to 39 jobs
    assert after[8] < after[7]  # 40


def test_an_end_on_an_edge_belongs_to_the_interval_below() -> None:
    index = ServiceIndex()
    for run_s in (1.0, 1.25, 1.3, 1e12):
        index.observe(Features(), run_s)
    counts = index.state()["groups"][-1][1]
    assert [number for number, count in enumerate(counts) if count] == [0, 1, 2, len(counts) - 1]


def test_baselines_of_the_comparison_by_hand() -> None:
    job = Features(user="a", estimate_s=250.0)
    two = LastTwo()
    assert two.predict(job)[0] == 250.0
    for run_s in (900.0, 100.0, 300.0):
        two.observe(job, run_s)
    assert two.predict(job)[0] == 200.0
    two.observe(job, 900.0)
    assert two.predict(job)[0] == 250.0  # (300 + 900) / 2, capped
    mean = GroupMean()
    mean.observe(job, 100.0)
    mean.observe(job, 200.0)
    assert mean.predict(job)[0] == pytest.approx((0.9 * 100 + 200) / 1.9)


def test_measures_of_the_comparison_by_hand() -> None:
    assert pinball(np.array([10.0, 10.0]), np.array([0.0, 20.0]), 0.9) == pytest.approx((9.0 + 1.0) / 2)
    jobs = [
        Recorded(Features(submit_s=0.0), 100.0, 30.0),
        Recorded(Features(submit_s=10.0), 20.0, 10.0),
        Recorded(Features(submit_s=15.0), 15.0, 20.0),
        Recorded(Features(submit_s=50.0), 60.0, 40.0),
    ]
    pairs = waiting_pairs(Log("by hand", Path(), jobs, waits=True))
    assert pairs.tolist() == [[1, 0], [2, 0], [2, 1], [3, 0]]
    truth = np.array([job.run_s for job in jobs])
    assert concordance(truth, truth, pairs) == (1.0, 4)
    assert concordance(np.array([1.0, 1.0, 2.0, 3.0]), truth, pairs) == ((0.5 + 0 + 1 + 1) / 4, 4)


def test_recorded_times_are_those_of_the_simulator(tmp_path: Path) -> None:
    """Times of a Chronus workload are minutes, in the comparison of methods as where jobs are simulated."""
    header = "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval"
    path = tmp_path / "workload.csv"
    path.write_text(
        f"{header},expect_time_list,expect_value_list,best_effort,job_type\n"
        "0,vc,1,8555,50,vgg16,747,14,1105,10,0,strict\n1,vc,2,832,29,alexnet,98,8,832,10,1,best\n"
    )
    simulated = [(job.submit_s, job.duration_s) for job in load(path, "chronus").jobs]
    assert [(job.start_s, job.run_s) for job in read_chronus(path).jobs] == simulated
    assert simulated == [(832 * 60, 98 * 60), (8555 * 60, 747 * 60)]
