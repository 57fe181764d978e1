"""What a shard remembers of its domains and of a round, and what a round leads to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from services.scheduler.core.apart.messages import GrantName, Holding, Request
from services.scheduler.core.apart.parts import device_of
from services.scheduler.core.book import Book, Draft
from services.scheduler.core.explaining.explanation import Explanation
from services.scheduler.core.kept import held_demand, part_of
from services.scheduler.core.state import Demand, PlacedRank, Run, UnitKey, UnitState
from services.scheduler.core.two_level import Assignment, DomainSummary
from services.scheduler.core.waiting_unit import PendingUnit


@dataclass(frozen=True, slots=True)
class Carried:
    """A unit that all its domains granted, to be placed: ``considered`` domains were known. ``explanation`` says why these
    domains, ``said`` what each of them said of its nodes (JSON objects). ``wake_s`` above 0: nodes of it are being woken, which takes
    about so long, and it begins when they are."""

    unit: PendingUnit
    epoch: int
    ranks: tuple[PlacedRank, ...]
    considered: int
    explanation: Explanation | None = None
    said: Mapping[str, str] = field(default_factory=dict)
    wake_s: float = 0.0


@dataclass(slots=True)
class Heard:
    """What an answer leads to: units to be placed, requests that give back what is not wanted, and parts that grants have from now on."""

    carried: list[Carried] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    parts: tuple[tuple[GrantName, int], ...] = ()


@dataclass(slots=True)
class Step:
    """What a step leads to: requests, and when it found out about all that wait, why each of them does (None: not all)."""

    requests: list[Request] = field(default_factory=list)
    waiting: dict[UnitKey, str] | None = None
    asked: int = 0


@dataclass(slots=True)
class Link:
    """What a domain was told in this session; ``own_scheduler``: its agent was told, not a decider."""

    begun: bool = False
    silent: bool = False
    waiting: bool = False
    own_scheduler: bool = False
    classes: set[Demand] = field(default_factory=set)
    holdings_at_s: float = 0.0


@dataclass(slots=True)
class Asked:
    """A unit of a round: its parts by domain, and what was said of them. ``explanation`` and ``said`` as in `Carried`; ``wake_s`` by
    domain, of those that have to wake nodes for it."""

    unit: PendingUnit
    name: GrantName
    parts: dict[str, Assignment]
    placed: dict[str, tuple[PlacedRank, ...]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    explanation: Explanation | None = None
    said: dict[str, str] = field(default_factory=dict)
    wake_s: dict[str, float] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all its domains have answered."""
        return len(self.placed) + len(self.refused) == len(self.parts)


@dataclass(slots=True)
class Round:
    """Domains that have not answered yet, and the units they were asked for; ``again``: another round is wanted after it."""

    number: int
    until_s: float
    open: set[str]
    units: dict[UnitKey, Asked] = field(default_factory=dict)
    again: bool = False


def holding_of(run: Run, name: str, book: Book) -> Holding:
    """What a run holds in a domain."""
    ranks = tuple([rank for rank in run.ranks if rank.domain_id == name])
    asked = book.spec_of(run.key).demand
    demand = held_demand(asked, len(ranks), part_of(ranks))
    return Holding(
        GrantName(run.key, run.epoch),
        run.tenant_id,
        demand,
        ranks,
        run.assigned_at_s,
        least_milli=least_of(book, run.key.job_id),
        asked_milli=asked.device_milli if device_of(ranks) is not None else 0,
    )


def least_of(book: Book, job_id: str) -> int:
    """What a job's units keep of their parts of accelerators when runs beside them want some; 0: all."""
    spec = book.jobs[job_id].spec
    return 0 if spec.scaling is not None else spec.least_milli


def waits_still(draft: Draft, name: GrantName) -> bool:
    """Whether a unit waits, holds nothing and would begin this epoch."""
    unit = draft.unit(name.key)
    return (
        unit is not None
        and unit.state is UnitState.QUEUED
        and unit.nomination is None
        and unit.epoch + 1 == name.epoch
        and not draft.runs_of(name.key)
    )


def as_full(summary: DomainSummary) -> DomainSummary:
    """A domain of which nothing is free."""
    return replace(
        summary,
        ranks={},
        blocks=dict.fromkeys(summary.blocks, ()),
        free_cpus=0.0,
        free_memory_bytes=0,
        largest_block=0,
    )
