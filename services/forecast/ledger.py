"""Who holds and who asks for how much, kept from events: pure.

A unit of a job is waiting (it asks), held (its run holds what it was given) or done. Its demand counts for its tenant,
and for a domain or a model of accelerators when it is held there, or waits and may run there only. A unit of a workflow asks only when the
units it depends on are done.

Events of different topics come in any order. What a run's end says about an epoch that has not been placed yet is kept
until the placement comes; a submission that comes after a placement adds only what was missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum


class SubjectKind(StrEnum):
    """Whose demand is forecast."""

    DOMAIN = "domain"
    TENANT = "tenant"
    # A model of accelerators, as the inventory of nodes names it.
    CHIP = "chip"
    # Kept without windows: what its structure lets expect.
    JOB = "job"


class UnitState(StrEnum):
    """What a unit does at present."""

    WAITING = "waiting"
    HELD = "held"
    DONE = "done"


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """A domain, a tenant, a model of accelerators or a job."""

    kind: SubjectKind
    id: str


@dataclass(frozen=True, slots=True)
class Amount:
    """Demand at one moment."""

    accelerators: float = 0.0
    cpus: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.accelerators + other.accelerators, self.cpus + other.cpus)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.accelerators - other.accelerators, self.cpus - other.cpus)

    @property
    def is_zero(self) -> bool:
        """Whether nothing is demanded, up to the rounding of fractions of processors."""
        return abs(self.accelerators) < 1e-9 and abs(self.cpus) < 1e-9


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit and what it holds. ``held`` and ``ranks_held``: accelerators and ranks of the present run by domain."""

    index: int
    asked: Amount = Amount()
    # Processors of one rank; known from the submission.
    cpus_per_rank: float = 0.0
    depends_on: tuple[int, ...] = ()
    # The only domain that the unit may run in; empty when there are several.
    only_domain: str = ""
    # The only model of accelerators, likewise.
    only_chip: str = ""
    # Seconds that a run of it may last; 0 without a limit.
    limit_s: float = 0.0
    state: UnitState = UnitState.WAITING
    epoch: int = 0
    held: Mapping[str, float] = field(default_factory=dict)
    ranks_held: Mapping[str, int] = field(default_factory=dict)
    # Of the accelerators held by domain, how many are of each model; those of unknown nodes are missing.
    chips_held: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # When the present run was placed, in seconds since 1970; 0 without one.
    began_s: float = 0.0
    # The newest epoch whose end is known, and the domains in which it ended; "*" for all.
    ended_epoch: int = 0
    ended_domains: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Job:
    """A job with its units; ``submitted`` when its request has been heard."""

    job_id: str
    tenant_id: str = ""
    submitted: bool = False
    finished: bool = False
    units: Mapping[int, Unit] = field(default_factory=dict)


EVERYWHERE = "*"


def submit(job: Job, tenant_id: str, units: Iterable[Unit]) -> Job:
    """The request was heard."""
    known = dict(job.units)
    for asked in units:
        unit = known.get(asked.index)
        if unit is None:
            known[asked.index] = asked
        else:
            known[asked.index] = replace(
                unit,
                asked=asked.asked,
                cpus_per_rank=asked.cpus_per_rank,
                depends_on=asked.depends_on,
                only_domain=asked.only_domain,
                only_chip=asked.only_chip,
                limit_s=asked.limit_s,
            )
    return replace(job, tenant_id=tenant_id, submitted=True, units=known)


@dataclass(frozen=True, slots=True)
class Placement:
    """What a unit got: accelerators, their models, and ranks, by domain; and when, in seconds since 1970."""

    held: Mapping[str, float]
    ranks: Mapping[str, int]
    chips: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    at_s: float = 0.0


def place(job: Job, tenant_id: str, index: int, epoch: int, given: Placement) -> Job:
    """A unit got its nodes."""
    unit = job.units.get(index, Unit(index))
    job = replace(job, tenant_id=job.tenant_id or tenant_id)
    if epoch <= unit.epoch:
        return job
    ended = unit.ended_domains if epoch == unit.ended_epoch else frozenset()
    if epoch < unit.ended_epoch or EVERYWHERE in ended:
        return _with(job, replace(unit, epoch=epoch))
    held = {domain: amount for domain, amount in given.held.items() if domain not in ended}
    ranks = {domain: count for domain, count in given.ranks.items() if domain not in ended}
    chips = {domain: parts for domain, parts in given.chips.items() if domain not in ended}
    state = UnitState.HELD if ranks else UnitState.DONE
    placed = replace(unit, epoch=epoch, state=state, held=held, ranks_held=ranks, chips_held=chips, began_s=given.at_s)
    return _with(job, placed)


def end_well(job: Job, index: int, epoch: int, domain_id: str) -> Job:
    """A run finished in a domain; with its last domain the unit is done."""
    unit = job.units.get(index, Unit(index))
    if epoch < max(unit.epoch, unit.ended_epoch):
        return job
    ended = (unit.ended_domains if epoch == unit.ended_epoch else frozenset()) | {domain_id}
    unit = replace(unit, ended_epoch=epoch, ended_domains=ended)
    if epoch == unit.epoch and unit.state is UnitState.HELD:
        held = {domain: amount for domain, amount in unit.held.items() if domain != domain_id}
        ranks = {domain: count for domain, count in unit.ranks_held.items() if domain != domain_id}
        chips = {domain: parts for domain, parts in unit.chips_held.items() if domain != domain_id}
        unit = replace(
            unit, held=held, ranks_held=ranks, chips_held=chips, state=UnitState.HELD if ranks else UnitState.DONE
        )
    return _with(job, unit)


def end_badly(job: Job, index: int, epoch: int) -> Job:
    """A run failed or lost its nodes; its unit asks again, until the job is finished or a new run is placed."""
    unit = job.units.get(index, Unit(index))
    if epoch < max(unit.epoch, unit.ended_epoch):
        return job
    unit = replace(unit, ended_epoch=epoch, ended_domains=frozenset({EVERYWHERE}))
    if unit.state is UnitState.HELD:
        unit = replace(unit, state=UnitState.WAITING, held={}, ranks_held={}, chips_held={})
    return _with(job, unit)


def finish(job: Job) -> Job:
    """The job reached a final state: it asks for nothing any more."""
    return replace(job, finished=True)


def demand(job: Job) -> dict[Subject, Amount]:
    """What the job demands now, of whom and where."""
    total: dict[Subject, Amount] = {}
    if job.finished:
        return total

    def add(kind: SubjectKind, subject_id: str, amount: Amount) -> None:
        if subject_id and not amount.is_zero:
            subject = Subject(kind, subject_id)
            total[subject] = total.get(subject, Amount()) + amount

    for unit in job.units.values():
        if unit.state is UnitState.HELD:
            for domain_id, ranks in unit.ranks_held.items():
                amount = Amount(unit.held.get(domain_id, 0.0), ranks * unit.cpus_per_rank)
                add(SubjectKind.DOMAIN, domain_id, amount)
                add(SubjectKind.TENANT, job.tenant_id, amount)
                for chip, count in unit.chips_held.get(domain_id, {}).items():
                    add(SubjectKind.CHIP, chip, Amount(count))
        elif asks(job, unit):
            add(SubjectKind.DOMAIN, unit.only_domain, unit.asked)
            add(SubjectKind.CHIP, unit.only_chip, Amount(unit.asked.accelerators))
            add(SubjectKind.TENANT, job.tenant_id, unit.asked)
    return total


def changes(before: Mapping[Subject, Amount], after: Mapping[Subject, Amount]) -> dict[Subject, Amount]:
    """What came (positive) and went (negative)."""
    differences = {
        subject: after.get(subject, Amount()) - before.get(subject, Amount()) for subject in {*before, *after}
    }
    return {subject: amount for subject, amount in differences.items() if not amount.is_zero}


def asks(job: Job, unit: Unit) -> bool:
    """Whether a unit waits for accelerators that it could use now."""
    return not job.finished and unit.state is UnitState.WAITING and job.submitted and _may_start(job, unit)


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that holds nothing any more: on how many accelerators it lasted how long; whether it came to its own end."""

    unit: int
    accelerators: float
    lasted_s: float
    by_itself: bool


def ended_runs(before: Job, after: Job, at_s: float, *, by_itself: bool) -> list[EndedRun]:
    """The runs that an event at ``at_s`` ended."""
    found = []
    for index, unit in before.units.items():
        now = after.units.get(index, unit)
        ends = after.finished or now.state is not UnitState.HELD or now.epoch != unit.epoch
        if unit.state is UnitState.HELD and not before.finished and ends and unit.began_s:
            lasted_s = max(0.0, at_s - unit.began_s)
            found.append(EndedRun(index, sum(unit.held.values()), lasted_s, by_itself))
    return found


def _with(job: Job, unit: Unit) -> Job:
    return replace(job, units={**job.units, unit.index: unit})


def _may_start(job: Job, unit: Unit) -> bool:
    return all(index in job.units and job.units[index].state is UnitState.DONE for index in unit.depends_on)
