"""Waveforms of planned jobs: run times by hand, curves that add up, and what cannot be told."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import DeclaredRate, JobSpec, ModelDescription, PlacementConstraints
from meridian.errors import InvalidArgumentError
from services.forecast.cost_model import TrainingLayout, estimate, machine_of
from services.forecast.cost_model.shapes import shape_of
from services.forecast.predictions import predicted
from services.forecast.waveform.api import BandBody, OfferBody, WaveformBody, WaveformRequest, WishBody, answer_of
from services.forecast.waveform.asking import Offer, Wish, best, on_offer
from services.forecast.waveform.curve import Planned, in_order, waveform
from services.forecast.waveform.durations import RunTime, Source, Unknown, run_time

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def gang(ranks: int = 8, accelerators: int = 1, **fields: object) -> JobSpec:
    kind = job_pb2.JOB_KIND_GANG
    return JobSpec(name="g", kind=kind, ranks=ranks, resources=Resources(accelerators=accelerators), **fields)  # type: ignore[arg-type]


def exactly(seconds: float, group: str = "g") -> RunTime:
    return RunTime(seconds, Source.RATES, 0.0, math.inf, group)


def test_run_times_rest_on_rates_first_then_the_model_then_the_limit() -> None:
    rates = [
        DeclaredRate(accelerator_type="A100-80G", ranks=8, rate=2.0),
        DeclaredRate(accelerator_type="A100-80G", ranks=4, rate=1.0),
    ]
    model = ModelDescription(
        layers=32, hidden=4096, heads=32, sequence=2048, vocabulary=32000, global_batch=64, steps=1000
    )
    found = run_time(gang(model=model, rates=rates, max_run_time_s=400), "A100-80G")
    assert isinstance(found, RunTime)
    assert (found.expected_s, found.source, found.limit_s) == (400.0, Source.RATES, 400.0)
    found = run_time(gang(model=model, rates=rates), "A100-80G")
    assert isinstance(found, RunTime)
    assert found.expected_s == 500.0
    # Another chip: no rate, so 1,000 steps of the cost model.
    found = run_time(gang(model=model, rates=rates), "H100")
    assert isinstance(found, RunTime)
    shape = shape_of(layers=32, hidden=4096, heads=32, vocabulary=32000)
    step_s = estimate(shape, TrainingLayout(sequence=2048, global_batch=64, dp=8), machine_of("H100")).step.total_s
    assert found.expected_s == pytest.approx(1000 * step_s)
    assert found.source is Source.COST_MODEL
    found = run_time(gang(max_run_time_s=3600), "H100")
    assert isinstance(found, RunTime)
    assert (found.expected_s, found.low_s, found.high_s) == (1800, 360, 3240)
    unknown = run_time(gang(model=ModelDescription(layers=2, hidden=8)), "H100")
    assert isinstance(unknown, Unknown)
    assert "model.sequence" in unknown.reason


def test_a_ramp_and_pauses_lengthen_and_shorten_a_run() -> None:
    model = ModelDescription(
        layers=32, hidden=4096, heads=32, sequence=2048, vocabulary=32000, global_batch=64, steps=1000
    )
    plain = run_time(gang(model=model), "H100")
    model.evaluate_every_steps, model.evaluation_s = 100, 60.0
    paused = run_time(gang(model=model), "H100")
    # 320 samples at 16 sequences and 320 at 32 of 64: 20 and 10 steps of a quarter and half the time.
    model.batch_ramp_start, model.batch_ramp_increment, model.batch_ramp_samples = 32, 32, 320
    ramped = run_time(gang(model=model), "H100")
    assert isinstance(plain, RunTime)
    assert isinstance(paused, RunTime)
    assert isinstance(ramped, RunTime)
    step_s = plain.expected_s / 1000
    assert paused.expected_s == pytest.approx(plain.expected_s + 600)
    assert ramped.expected_s == pytest.approx(paused.expected_s - 10 * 0.5 * step_s)


def test_a_chain_of_known_lengths_makes_a_known_curve() -> None:
    plan = [
        Planned("eval", 4, exactly(1800), after=("train",)),
        Planned("train", 8, exactly(5400), start_s=1800),
    ]
    found = waveform(plan, window_s=3600, windows=3)
    # train: 1,800 to 7,200 s, eval until 9,000 s.
    assert found.demand.expected == pytest.approx([4.0, 8.0, 2.0])
    assert found.demand.low == pytest.approx(found.demand.high)
    assert found.cost.expected == pytest.approx([4.0, 12.0, 14.0])
    assert found.accelerator_hours.expected[0] == pytest.approx(14.0)
    assert found.ends_s["eval"].expected[0] == pytest.approx(9000)


def test_the_band_of_one_job_is_that_of_its_run_time_and_errors_of_one_kind_do_not_cancel() -> None:
    job = RunTime(3600.0, Source.COST_MODEL, 0.2, math.inf, "same")
    one = waveform([Planned("a", 1, job)], window_s=600, windows=20)
    assert one.end_s.low[0] == pytest.approx(job.low_s, rel=0.005)
    assert one.end_s.high[0] == pytest.approx(job.high_s, rel=0.005)
    same = waveform([Planned(str(i), 1, job) for i in range(25)], window_s=600, windows=20)
    others = [Planned(str(i), 1, replace(job, error_group=str(i))) for i in range(25)]
    apart = waveform(others, window_s=600, windows=20)
    width = [float(each.accelerator_hours.high[0] - each.accelerator_hours.low[0]) for each in (one, same, apart)]
    assert width[1] == pytest.approx(25 * width[0])
    # Independent errors add up as the root of their number.
    assert width[2] == pytest.approx(5 * width[0], rel=0.35)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 64), st.floats(1, 5e4), st.floats(0, 0.5), st.floats(0, 2e4)), min_size=1, max_size=8
    )
)
def test_the_last_of_the_spent_is_all_that_was_held(jobs: list[tuple[float, float, float, float]]) -> None:
    plan = [
        Planned(str(i), amount, RunTime(seconds, Source.RATES, spread, 1e5, str(i)), start)
        for i, (amount, seconds, spread, start) in enumerate(jobs)
    ]
    found = waveform(plan, window_s=7200, windows=20)
    assert found.cost.expected[-1] == pytest.approx(found.accelerator_hours.expected[0], rel=1e-9, abs=1e-9)
    assert np.all(np.diff(found.cost.expected) >= -1e-9)
    assert found.demand.expected.sum() * 2 == pytest.approx(found.accelerator_hours.expected[0], abs=1e-6)


def test_what_follows_must_be_there_and_not_follow_itself() -> None:
    assert in_order({"b": ["a"], "a": []}) == ["a", "b"]
    with pytest.raises(ValueError, match="'c', which is not in the plan"):
        in_order({"a": ["c"]})
    with pytest.raises(ValueError, match="follows itself"):
        in_order({"a": ["b"], "b": ["a"]})


def test_jobs_that_an_offer_cannot_take_are_named_and_so_is_what_follows_them() -> None:
    plan = [
        Wish("big", gang(64, 8, max_run_time_s=60)),
        Wish("after", gang(max_run_time_s=60), after=("big",)),
        Wish("other", gang(max_run_time_s=60, placement=PlacementConstraints(exclude_domains=["north"]))),
        Wish("fits", gang(max_run_time_s=60), copies=3),
    ]
    found = on_offer(plan, Offer("north", "A100", 100))
    assert dict(found.unknown) == {
        "big": "north has 100 A100",
        "other": "it may not run in north",
        "after": "it follows big",
    }
    assert [job.accelerators for job in found.known] == [24]
    assert found.cost is None


def test_the_cheapest_offer_that_takes_all_is_best() -> None:
    plan = [Wish("a", gang(max_run_time_s=3600))]
    offers = [
        Offer("dear", "A100", 8, 3_000_000, "EUR"),
        Offer("small", "A100", 4, 1, "EUR"),
        Offer("fair", "A100", 8, 2_000_000, "EUR"),
    ]
    answers = [on_offer(plan, offer) for offer in offers]
    assert best(answers) == 2
    # Half an hour of 8 at 2 EUR.
    assert answers[2].cost == pytest.approx(8_000_000, rel=1e-3)
    assert best([answers[1]]) is None


def test_a_wrong_plan_is_refused_by_its_place() -> None:
    spec = {"kind": "JOB_KIND_GANG", "ranks": 2, "resources": {"accelerators": 1}, "max_run_time_s": 60}

    def ask(*jobs: WishBody) -> InvalidArgumentError:
        with pytest.raises(InvalidArgumentError) as caught:
            answer_of(WaveformRequest(jobs=list(jobs), offers=[]), NOW)
        return caught.value

    assert ask(WishBody(name="a", spec={"ranksy": 2})).errors[0].pointer == "/jobs/0/spec"
    assert ask(WishBody(name="a", spec=spec), WishBody(name="a", spec=spec)).errors[0].pointer == "/jobs/1/name"
    assert "not in the plan" in ask(WishBody(name="a", spec=spec, after=["b"])).detail
    offer = OfferBody(
        domain_id="north", accelerator_type="A100", accelerators=4, price_micro_units=1_000_000, currency="EUR"
    )
    found = answer_of(WaveformRequest(jobs=[WishBody(name="a", spec=spec)], offers=[offer], window_s=60), NOW)
    assert found.best == 0
    assert len(found.curve) == 1
    assert found.curve[0].accelerators.expected == pytest.approx(1.0, rel=1e-3)
    assert found.offers[0].jobs[0].rests_on == "time limit"


def asked(*wishes: WishBody, window_s: float | None = None, price: int | None = 2_000_000) -> WaveformBody:
    offer = OfferBody(
        domain_id="north", accelerator_type="A100", accelerators=64, price_micro_units=price, currency="EUR"
    )
    return answer_of(WaveformRequest(jobs=list(wishes), offers=[offer], window_s=window_s), NOW)


def wish(name: str, steps: int, start: datetime | None = None, *, rate: float = 1.0, **fields: Any) -> WishBody:
    """A job on 8 accelerators that runs for some ``steps`` / ``rate`` seconds."""
    rates = [DeclaredRate(accelerator_type="A100", ranks=8, rate=rate)]
    spec = gang(rates=rates, model=ModelDescription(steps=steps))
    return WishBody(name=name, spec=json_format.MessageToDict(spec), start=start, **fields)


@pytest.mark.parametrize("days", [1, 2, 30, 800])
@pytest.mark.parametrize("window_s", [None, 60.0, 86_400.0])
def test_a_plan_that_begins_late_is_in_the_curve_to_its_end(days: int, window_s: float | None) -> None:
    found = asked(wish("a", 7 * 86_400, NOW + timedelta(days=days)), window_s=window_s)
    (offer,) = found.offers
    assert offer.peak_accelerators is not None
    assert (offer.peak_accelerators.low, offer.peak_accelerators.high) == (8, 8)
    assert found.window_s is not None
    assert found.window_s >= (window_s or 0)
    assert len(found.curve) <= 500
    # All but what one run in ten takes longer is in it.
    assert found.curve[-1].cost_micro_units is not None
    assert offer.cost_micro_units is not None
    assert found.curve[-1].cost_micro_units.low == pytest.approx(offer.cost_micro_units.low)
    assert found.curve[-1].cost_micro_units.expected == pytest.approx(offer.cost_micro_units.expected, rel=0.01)


def test_the_peak_is_what_is_held_at_once_whatever_the_windows_are() -> None:
    # Ten minutes of 8, and 8 more that begin as they end; then 8 twice at once, for a minute.
    later = NOW + timedelta(hours=3)
    plan = [wish("a", 600), wish("b", 600, after=["a"]), wish("c", 60, later), wish("d", 60, later)]
    for window_s in (60.0, 3600.0, 86_400.0):
        (offer,) = asked(*plan, window_s=window_s).offers
        assert offer.peak_accelerators == BandBody(expected=16, low=16, high=16)
        (offer,) = asked(*plan[:2], window_s=window_s).offers
        assert offer.peak_accelerators == BandBody(expected=8, low=8, high=8)


def test_what_is_free_costs_nothing_and_that_is_known() -> None:
    (offer,) = asked(wish("a", 3600), price=0).offers
    assert offer.cost_micro_units == BandBody(expected=0, low=0, high=0)
    (offer,) = asked(wish("a", 3600), price=None).offers
    assert offer.cost_micro_units is None


@pytest.mark.parametrize("rate", [1e-3, 1e-9, 1e-200])
def test_a_plan_of_ages_has_a_curve_as_far_as_there_are_dates(rate: float) -> None:
    found = asked(wish("a", 10**6, rate=rate), wish("b", 10**6, rate=rate, after=["a"]))
    assert 1 <= len(found.curve) <= 500
    assert found.offers[0].peak_accelerators == BandBody(expected=8, low=8, high=8)
    assert found.curve[0].start == NOW


def test_types_name_models_by_their_words() -> None:
    """As where jobs are admitted and placed (`meridian.hardware.accelerator_types`)."""

    def asking(*types: str, **fields: object) -> JobSpec:
        resources = Resources(accelerators=1, accelerator_types=types)
        return JobSpec(kind=job_pb2.JOB_KIND_TASK, resources=resources, max_run_time_s=60, **fields)  # type: ignore[arg-type]

    def reasons(offered: str, *types: str) -> list[str]:
        return [reason for _, reason in on_offer([Wish("a", asking(*types))], Offer("north", offered, 8)).unknown]

    for types in ((), ("a100",), ("A100-80GB",), ("B200", "nvidia a100"), ("A100-SXM4-80GB",)):
        assert reasons("A100-SXM4-80GB", *types) == []
    assert reasons("A100-SXM4-80GB", "H100") == ["it does not take A100-SXM4-80GB"]
    rates = [
        DeclaredRate(accelerator_type="a100", ranks=1, rate=2.0),
        DeclaredRate(accelerator_type="H100", ranks=1, rate=4.0),
    ]
    found = run_time(asking(rates=rates, model=ModelDescription(steps=100)), "A100-SXM4-80GB")
    assert isinstance(found, RunTime)
    assert (found.source, found.expected_s) == (Source.RATES, 50.0)


def test_costs_in_several_currencies_are_not_compared() -> None:
    plan = [Wish("a", gang(max_run_time_s=3600))]
    offers = [
        Offer("east", "A100", 8, 20_000_000, "CNY"),
        Offer("west", "A100", 8, 3_000_000, "EUR"),
        Offer("north", "A100", 8, 15_000_000, "CNY"),
    ]
    assert best([on_offer(plan, offer) for offer in offers]) == 2


@pytest.mark.parametrize("limit_s", [0.0, 3600.0])
def test_steps_that_never_end_tell_no_run_time(limit_s: float) -> None:
    """A time without end made forecasts of demand that are no numbers, which no table takes: forecasting stopped."""
    rates = [DeclaredRate(accelerator_type="a100", ranks=1, rate=1e-310)]
    spec = gang(1, rates=rates, model=ModelDescription(steps=1000), max_run_time_s=limit_s)
    found = run_time(spec, "A100-SXM4-80GB")
    told = predicted(spec.SerializeToString(), "A100-SXM4-80GB")
    if limit_s:
        assert isinstance(found, RunTime)
        assert (found.expected_s, told) == (limit_s, (limit_s, 0.10))
    else:
        assert isinstance(found, Unknown)
        assert "never end" in found.reason
        assert told is None


def test_checkpoints_without_end_tell_no_run_time() -> None:
    model = ModelDescription(
        layers=4, hidden=256, heads=4, sequence=512, vocabulary=1000, global_batch=8, steps=1000, checkpoint_s=1.0
    )
    spec = gang(1, model=model, checkpoint_interval_s=1e-310)
    found = run_time(spec, "A100-SXM4-80GB")
    assert isinstance(found, Unknown)
    assert "never end" in found.reason
