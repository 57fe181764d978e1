"""What a buyer is told of a plan of jobs on what is offered: the waveform of each offer, and the one that is cheapest. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import JobSpec
from services.forecast.accelerator_names import means
from services.forecast.job_units import accelerators_of_rank, units_of
from services.forecast.waveform.curve import Planned, Waveform, waveform
from services.forecast.waveform.durations import Unknown, run_time

MOST_WINDOWS = 500
_WINDOWS = 96
_ROUND_S = (60.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 14_400.0, 21_600.0, 43_200.0, 86_400.0)


@dataclass(frozen=True, slots=True)
class Wish:
    """A job of the plan: ``copies`` of it, from ``start_s`` on and behind the jobs named in ``after``."""

    name: str
    spec: JobSpec
    start_s: float = 0.0
    after: tuple[str, ...] = ()
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Offer:
    """One accelerator type of one domain, with its price in micro-units per accelerator-hour (None: not stated)."""

    domain_id: str
    accelerator_type: str
    accelerators: int
    price: int | None = None
    currency: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The plan on one offer: jobs with their run times, those that cannot be told (name, reason), and the waveform of the others."""

    offer: Offer
    known: tuple[Planned, ...]
    unknown: tuple[tuple[str, str], ...]
    waveform: Waveform | None

    @property
    def cost(self) -> float | None:
        """Expected micro-units of all; None where a job or the price is not known."""
        if self.unknown or self.waveform is None or self.offer.price is None:
            return None
        return float(self.waveform.accelerator_hours.expected[0]) * self.offer.price


def accelerators_of(spec: JobSpec) -> float:
    """All that the job holds at once: every rank of a gang, element of an array, replica of a service; of a workflow what its first
    tasks hold."""
    if spec.kind == job_pb2.JOB_KIND_WORKFLOW:
        return sum(unit.asked.accelerators for unit in units_of(spec) if not unit.depends_on)
    units = {
        job_pb2.JOB_KIND_GANG: spec.ranks,
        job_pb2.JOB_KIND_ARRAY: spec.array_size,
        job_pb2.JOB_KIND_SERVICE: spec.replicas,
    }.get(spec.kind, 1)
    return max(1, units) * accelerators_of_rank(spec.resources)


def together(spec: JobSpec) -> int:
    """Accelerators that have to be there at one time for the job to run at all: elements of an array may run one after the other."""
    return (max(1, spec.ranks) if spec.kind == job_pb2.JOB_KIND_GANG else 1) * spec.resources.accelerators


def on_offer(plan: Sequence[Wish], offer: Offer, window_s: float | None = None, seed: int = 0) -> Answer:
    """The plan on one offer. ``window_s`` None: chosen so that some 96 windows hold the plan; it is longer than asked where 500
    would not hold it."""
    known: list[Planned] = []
    unknown: list[tuple[str, str]] = []
    for wish in plan:
        found = _takes(wish, offer) or run_time(wish.spec, offer.accelerator_type)
        if isinstance(found, Unknown):
            unknown.append((wish.name, found.reason))
        else:
            known.append(Planned(wish.name, accelerators_of(wish.spec) * wish.copies, found, wish.start_s, wish.after))
    left_out = {name for name, _ in unknown}
    while behind := [job for job in known if set(job.after) & left_out]:
        # What follows a job whose end is not known has no known start.
        unknown += [(job.name, f"it follows {min(set(job.after) & left_out)}") for job in behind]
        left_out |= {job.name for job in behind}
        known = [job for job in known if job.name not in left_out]
    if not known:
        return Answer(offer, (), tuple(unknown), None)
    span_s = _span(known)
    width = window_s or next((item for item in _ROUND_S if item * _WINDOWS >= span_s), _ROUND_S[-1])
    if width * MOST_WINDOWS < span_s:
        days = math.ceil(span_s / MOST_WINDOWS / _ROUND_S[-1])
        width = next((item for item in _ROUND_S if item * MOST_WINDOWS >= span_s), days * _ROUND_S[-1])
    windows = min(MOST_WINDOWS, max(1, math.ceil(span_s / width)))
    return Answer(offer, tuple(known), tuple(unknown), waveform(known, window_s=width, windows=windows, seed=seed))


def _takes(wish: Wish, offer: Offer) -> Unknown | None:
    resources, placement = wish.spec.resources, wish.spec.placement
    if not resources.accelerators:
        return Unknown("it asks for no accelerators")
    if not means(resources.accelerator_types, offer.accelerator_type):
        return Unknown(f"it does not take {offer.accelerator_type}")
    allowed = not placement.domains or offer.domain_id in placement.domains
    if not allowed or offer.domain_id in placement.exclude_domains:
        return Unknown(f"it may not run in {offer.domain_id}")
    if together(wish.spec) > offer.accelerators:
        return Unknown(f"{offer.domain_id} has {offer.accelerators} {offer.accelerator_type}")
    return None


def _span(jobs: Sequence[Planned]) -> float:
    """Seconds until the 80 % band of every job has ended, chains included."""
    ends: dict[str, float] = {}
    left = list(jobs)
    while left:
        ready = [job for job in left if all(name in ends for name in job.after)]
        for job in ready:
            begins = max([job.start_s, *(ends[name] for name in job.after)])
            ends[job.name] = begins + job.run_time.high_s
        left = [job for job in left if job.name not in ends]
    return max(ends.values())


def best(answers: Sequence[Answer]) -> int | None:
    """The offer to take: all jobs known, the least expected cost (no price, or one in another currency than most: after all with
    one), then the earliest end."""
    able = [place for place, answer in enumerate(answers) if answer.waveform is not None and not answer.unknown]
    if not able:
        able = [place for place, answer in enumerate(answers) if answer.waveform is not None]

    counts = Counter(answers[place].offer.currency for place in able if answers[place].cost is not None)
    currency = min(counts, key=lambda name: (-counts[name], name), default="")

    def key(place: int) -> tuple[int, float, float]:
        answer = answers[place]
        assert answer.waveform is not None
        cost = answer.cost
        return (
            len(answer.unknown),
            math.inf if cost is None or answer.offer.currency != currency else cost,
            float(answer.waveform.end_s.expected[0]),
        )

    return min(able, key=key, default=None)
