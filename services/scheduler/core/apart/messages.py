"""What a shard and a domain say to each other, as values; the contracts are in scheduler.proto."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.table import DeviceModel
from services.scheduler.core.two_level import DomainSummary


class GrantName(NamedTuple):
    """Names what a unit's run of one epoch holds in a domain."""

    key: UnitKey
    epoch: int


class Session(NamedTuple):
    """A shard's session, ordered: the term of its leader, and how often that one read its state."""

    term: int
    number: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """A unit, or a part of it, that is to be placed. ``class_number`` 0 comes with a ``demand`` of its own. Its ranks are
    numbered from ``first_rank`` on; ``whole`` False says that other domains have other parts. ``time_limit_s`` is infinite
    when its user declared none. ``wake``: it may have nodes that sleep, where those that are awake have no room. Of a part
    of an accelerator it gives all but ``least_milli`` to runs beside it; 0: nothing."""

    name: GrantName
    tenant_id: str
    class_number: int = 0
    demand: Demand | None = None
    first_rank: int = 0
    whole: bool = True
    time_limit_s: float = math.inf
    wake: bool = False
    least_milli: int = 0


@dataclass(frozen=True, slots=True)
class Holding:
    """What a shard holds in a domain since a time; without ``ranks`` it was asked for and is not answered. ``waking``: it has not
    started, as nodes of it were asleep; the shard wants to know how it stands. ``asked_milli`` is the part of an accelerator that it asked
    for (0: that of its demand), ``least_milli`` as in `Wanted`."""

    name: GrantName
    tenant_id: str
    demand: Demand
    ranks: tuple[PlacedRank, ...]
    since_s: float
    waking: bool = False
    least_milli: int = 0
    asked_milli: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """What a shard wants of a domain, carried out in the order of the fields. ``round`` 0 wants no answer. ``holdings`` None
    says nothing about them; otherwise they are all that the shard has there. ``waiting``: it wants to hear of more room.
    ``own_scheduler``: it is for the domain's agent, no decider of Meridian's takes it. ``waiting_classes`` are numbers of classes of
    which units wait. ``parts`` are thousandths of their accelerators that runs would like to have from now on."""

    domain_id: str
    shard: str
    session: Session
    round: int = 0
    begins: bool = False
    holdings: tuple[Holding, ...] | None = None
    released: tuple[GrantName, ...] = ()
    classes: tuple[tuple[int, Demand], ...] = ()
    dropped_classes: tuple[int, ...] = ()
    wanted: tuple[Wanted, ...] = ()
    waiting: bool = False
    own_scheduler: bool = False
    waiting_classes: tuple[int, ...] = ()
    parts: tuple[tuple[GrantName, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Asleep:
    """What a domain would have besides if its nodes were woken that sleep: a summary of those alone, and the ranks that fit on them
    by the number of the shard's classes."""

    summary: DomainSummary
    rooms: Mapping[int, Mapping[DeviceModel | None, int]]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a domain answers to a shard, or with ``round`` 0 tells it unasked. ``rooms`` are the ranks that fit by the number
    of the shard's classes, ``summary`` the rest. ``begin_again``: the session is not known to the domain. ``explanations`` are
    JSON objects, of some of those that were placed or refused. ``wake_s`` is how long it takes until the nodes of some of those
    that were placed are awake; of others all are. ``asleep`` is None when no node can be woken. ``parts`` are thousandths of their
    accelerators that grants of the shard have from now on."""

    shard: str
    domain_id: str
    session: Session
    round: int
    domain_term: int
    placed: tuple[tuple[GrantName, tuple[PlacedRank, ...]], ...]
    refused: tuple[tuple[GrantName, str], ...]
    summary: DomainSummary
    rooms: Mapping[int, Mapping[DeviceModel | None, int]]
    begin_again: bool = False
    explanations: Mapping[GrantName, str] = field(default_factory=dict)
    wake_s: Mapping[GrantName, float] = field(default_factory=dict)
    asleep: Asleep | None = None
    parts: tuple[tuple[GrantName, int], ...] = ()
