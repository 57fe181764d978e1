"""Planned jobs as work of a domain: where they may run, when those begin that follow others, what cannot shift for it. Pure.

1. A job that may not run in the domain is none of its load: one that is for other domains or accelerators, or larger than what is there.
2. A job that follows others begins at its declared time, and not before these are expected to end; behind one whose end is not
   known nothing is known of it.
3. Neither it nor those it follows are moved: a move of one would move the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from meridian.contracts.job.v1.job_pb2 import JobSpec
from services.forecast.accelerator_names import means
from services.forecast.advice.advising import Work
from services.forecast.waveform.asking import Wish, accelerators_of, together
from services.forecast.waveform.curve import in_order
from services.forecast.waveform.durations import RunTime, run_time


def deadline_s(spec: JobSpec, now: datetime) -> float:
    """Seconds from ``now`` to the deadline; infinite without one."""
    if not spec.HasField("deadline"):
        return math.inf
    return (spec.deadline.ToDatetime(tzinfo=UTC) - now).total_seconds()


def chip_of(spec: JobSpec, types: Iterable[str]) -> str:
    """The accelerator that the job would run on: the first of the domain's ``types`` that it takes, else the first that it names."""
    named = spec.resources.accelerator_types
    known = [each for each in types if each]
    return next((each for each in known if means(named, each)), next(iter(named), next(iter(known), "")))


def planned_work(
    wishes: Sequence[Wish], domain_id: str, accelerators: Mapping[str, int], now: datetime, first: str = ""
) -> list[Work]:
    """The plan in its order, as work of ``domain_id``; ValueError as `in_order`.

    ``accelerators`` are the domain's by model, in the order in which they are taken, but ``first`` before them; those of unknown
    model are under "".
    """
    by_name = {wish.name: wish for wish in wishes}
    followed = {name for wish in wishes for name in wish.after}
    ends_s: dict[str, float] = {}
    found: dict[str, Work] = {}
    for name in in_order({wish.name: wish.after for wish in wishes}):
        wish = by_name[name]
        work = _work(wish, chip_of(wish.spec, [first, *accelerators]), now)
        placement = wish.spec.placement
        unknown = sorted(set(wish.after) - set(ends_s))
        if (placement.domains and domain_id not in placement.domains) or domain_id in placement.exclude_domains:
            work = replace(work, here=False, bound=f"it may not run in {domain_id}")
        elif (lacking := _lacking(wish.spec, domain_id, accelerators)) is not None:
            work = replace(work, here=False, bound=lacking)
        elif unknown:
            work = replace(work, here=False, bound=f"it follows {unknown[0]}, whose end is not known")
        elif wish.after:
            begins_s = max(wish.start_s, *(ends_s[other] for other in wish.after))
            work = replace(work, start_s=begins_s, bound=f"it follows {wish.after[0]}")
        elif name in followed:
            work = replace(work, bound="another job follows it")
        if work.here and isinstance(work.run_time, RunTime):
            ends_s[name] = work.start_s + work.run_time.expected_s
        found[name] = work
    return [found[wish.name] for wish in wishes]


def _lacking(spec: JobSpec, domain_id: str, accelerators: Mapping[str, int]) -> str | None:
    """Why the domain has no room for the job even when it is empty; None where it has, or nothing is known of it."""
    named = spec.resources.accelerator_types
    there = sum(count for model, count in accelerators.items() if not model or means(named, model))
    if not accelerators or together(spec) <= there:
        return None
    if not there:
        return f"it does not take {', '.join(model for model in accelerators)}"
    return f"{domain_id} has {there} accelerators that it takes"


def _work(wish: Wish, chip: str, now: datetime) -> Work:
    return Work(
        wish.name,
        "",
        accelerators_of(wish.spec) * wish.copies,
        run_time(wish.spec, chip),
        wish.start_s,
        deadline_s(wish.spec, now),
        planned=True,
    )
