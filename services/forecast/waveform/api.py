"""HTTP of waveforms: what a planned set of jobs asks for and costs over time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter
from google.protobuf import json_format
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from meridian.clock import Clock
from meridian.contracts.job.v1.job_pb2 import JobSpec
from meridian.errors import FieldError, InvalidArgumentError
from services.forecast.waveform.asking import Answer, Offer, Wish, best, on_offer
from services.forecast.waveform.curve import Band, in_order

MOST_JOBS = 500


class WishBody(BaseModel):
    """A planned job: ``spec`` is a JobSpec in its JSON form."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=200)]
    spec: dict[str, Any]
    start: AwareDatetime | None = None
    after: Annotated[list[str], Field(max_length=MOST_JOBS)] = []
    copies: Annotated[int, Field(ge=1, le=100_000)] = 1


class OfferBody(BaseModel):
    """One accelerator type of one domain."""

    model_config = ConfigDict(extra="forbid")

    domain_id: str
    accelerator_type: str
    accelerators: Annotated[int, Field(ge=1)]
    price_micro_units: Annotated[int | None, Field(ge=0, description="per accelerator-hour")] = None
    currency: str = ""


class WaveformRequest(BaseModel):
    """A plan and what is offered; without ``window_s`` one is chosen, and a longer one where 500 would not hold the plan."""

    model_config = ConfigDict(extra="forbid")

    jobs: Annotated[list[WishBody], Field(min_length=1, max_length=MOST_JOBS)]
    offers: Annotated[list[OfferBody], Field(max_length=1000)]
    window_s: Annotated[float | None, Field(ge=60, le=7 * 86_400)] = None


class BandBody(BaseModel):
    """An expected value with the ends of its 80 % band."""

    expected: float
    low: float
    high: float


class JobBody(BaseModel):
    """A job of the plan on this offer."""

    name: str
    accelerators: float
    run_time_s: BandBody
    rests_on: str
    end_s: BandBody = Field(description="seconds after ``at``")


class UnknownBody(BaseModel):
    """A job that is not in the curve."""

    name: str
    reason: str


class OfferAnswer(BaseModel):
    """The plan on one offer; null where nothing of it is known, or no price is."""

    domain_id: str
    accelerator_type: str
    accelerators: int
    price_micro_units: int | None
    currency: str
    peak_accelerators: BandBody | None = Field(description="the most that is held at once")
    accelerator_hours: BandBody | None
    cost_micro_units: BandBody | None
    end_s: BandBody | None
    jobs: list[JobBody]
    unknown: list[UnknownBody]


class WindowBody(BaseModel):
    """One window: mean accelerators in it, and what is spent until its end."""

    start: datetime
    accelerators: BandBody
    cost_micro_units: BandBody | None


class WaveformBody(BaseModel):
    """The answer; ``curve`` is that of the offer with the number ``best``."""

    at: datetime
    window_s: float | None
    best: int | None
    offers: list[OfferAnswer]
    curve: list[WindowBody]


def _refused(pointer: str, detail: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{pointer}: {detail}", errors=(FieldError(pointer, detail),))


def wishes_of(bodies: list[WishBody], now: datetime, field: str = "/jobs") -> list[Wish]:
    """The plan of a request's ``field``; InvalidArgumentError names the job that is not a job, is there twice or follows what
    is not there."""
    found: list[Wish] = []
    for place, body in enumerate(bodies):
        try:
            spec = json_format.ParseDict(body.spec, JobSpec())
        except json_format.ParseError as error:
            raise _refused(f"{field}/{place}/spec", str(error)) from None
        start_s = 0.0 if body.start is None else max(0.0, (body.start - now).total_seconds())
        found.append(Wish(body.name, spec, start_s, tuple(body.after), body.copies))
    names = [wish.name for wish in found]
    for place, name in enumerate(names):
        if names.index(name) != place:
            raise _refused(f"{field}/{place}/name", f"there are two jobs {name!r}")
    try:
        in_order({wish.name: wish.after for wish in found})
    except ValueError as error:
        raise _refused(field, str(error)) from None
    return found


def band_body(band: Band, place: int = 0, times: float = 1.0) -> BandBody:
    """One place of a band."""
    return BandBody(
        expected=float(band.expected[place]) * times,
        low=float(band.low[place]) * times,
        high=float(band.high[place]) * times,
    )


def _offer_answer(answer: Answer) -> OfferAnswer:
    offer, wave = answer.offer, answer.waveform
    cost = None
    if wave is not None and offer.price is not None:
        cost = band_body(wave.accelerator_hours, 0, offer.price)
    jobs = []
    for job in answer.known:
        assert wave is not None
        time = job.run_time
        jobs.append(
            JobBody(
                name=job.name,
                accelerators=job.accelerators,
                run_time_s=BandBody(expected=time.expected_s, low=time.low_s, high=time.high_s),
                rests_on=time.source.value,
                end_s=band_body(wave.ends_s[job.name]),
            )
        )
    return OfferAnswer(
        domain_id=offer.domain_id,
        accelerator_type=offer.accelerator_type,
        accelerators=offer.accelerators,
        price_micro_units=offer.price,
        currency=offer.currency,
        peak_accelerators=None if wave is None else band_body(wave.peak),
        accelerator_hours=None if wave is None else band_body(wave.accelerator_hours),
        cost_micro_units=cost,
        end_s=None if wave is None else band_body(wave.end_s),
        jobs=jobs,
        unknown=[UnknownBody(name=name, reason=reason) for name, reason in answer.unknown],
    )


def _curve(answer: Answer, now: datetime) -> list[WindowBody]:
    wave, price = answer.waveform, answer.offer.price
    if wave is None:
        return []
    # As far as there are dates.
    most_s = (datetime.max.replace(tzinfo=now.tzinfo) - now).total_seconds()
    return [
        WindowBody(
            start=now + timedelta(seconds=place * wave.window_s),
            accelerators=band_body(wave.demand, place),
            cost_micro_units=None if price is None else band_body(wave.cost, place, price),
        )
        for place in range(len(wave.demand.expected))
        if place * wave.window_s < most_s
    ]


def answer_of(request: WaveformRequest, now: datetime) -> WaveformBody:
    """The waveform of a plan, on every offer."""
    plan = wishes_of(request.jobs, now)
    offers = [
        Offer(item.domain_id, item.accelerator_type, item.accelerators, item.price_micro_units, item.currency)
        for item in request.offers
    ]
    answers = [on_offer(plan, offer, request.window_s) for offer in offers]
    chosen = best(answers)
    wave = None if chosen is None else answers[chosen].waveform
    return WaveformBody(
        at=now,
        window_s=None if wave is None else wave.window_s,
        best=chosen,
        offers=[_offer_answer(answer) for answer in answers],
        curve=[] if chosen is None else _curve(answers[chosen], now),
    )


def create_waveform_router(clock: Clock) -> APIRouter:
    """The routes below /v1."""
    router = APIRouter(prefix="/v1")

    @router.post("/waveforms")
    def make_waveform(request: WaveformRequest) -> WaveformBody:
        return answer_of(request, clock.now())

    return router
