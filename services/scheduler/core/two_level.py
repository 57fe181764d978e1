"""Scheduling on two levels: the network chooses domains from summaries, each domain chooses its nodes itself.

Steps of one cycle (`coordinate`):
1. Every domain keeps a summary of itself: room per class of demands, free blocks of accelerators, totals. The network sees
   nothing else, so what it does grows with domains times classes, never with nodes (`InterDomain`).
2. In the policy's order each unit is given the best domain that has room, or a split over several. What it takes is counted
   off: of its own class exactly; of other classes it may take no more than a bound, so their room lies between two numbers.
   When the best domain of a unit hangs on that difference, the round ends before it.
3. Each domain places what it was given, in that order, by its own nodes (`LocalDomain`), all ranks of a part or none, and
   tells its new summary; the next round goes on. After ``most_rounds`` the network stops asking and goes by an estimate.
   A domain with a scheduler of its own gets `Constraints` instead, and says later whether it takes them.
4. What a domain could not place comes back with the reason, once: it is dispatched again, not to that domain. What fails
   again waits for the next cycle.

Summaries may be old. An old one leads to refusals, never to more than a domain has: only the domain gives its nodes away.

Preemption, reservations and planners look at all nodes at once; a policy with them is refused here (PolicyError).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from services.scheduler.core.admission import Gate
from services.scheduler.core.cluster import Cluster, RunningUnit, alternatives
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.fleet import Fleet, Node
from services.scheduler.core.pending import Pending, Selection
from services.scheduler.core.placement import Candidates, Choice, applies, plugins_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.preemption import best
from services.scheduler.core.queue import OrderContext, PendingUnit
from services.scheduler.core.scores import SCORES, DomainScore, SetScore
from services.scheduler.core.stages import stages_of
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.table import Bools, DeviceModel, Floats, Ints, View, table_of
from services.scheduler.core.tenants_objectives import state_tenant

ANY = None
"""In place of a device model: the ranks may use different ones."""

MOST_ROUNDS = 8
"""How often the domains are asked in a cycle before the network goes by estimates."""

_DOMAIN_FILTERS = ("domain", "security")
_MOST_CLASSES = 256
_MOST_TOUCHED = 100_000
_MOST_BLOCK = 256
"""Accelerators on a node at most, for the free blocks."""

Ranks = Mapping[Demand, Mapping[DeviceModel | None, int]]


# -- what is said between the levels -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DomainSummary:
    """What a domain tells the network about itself.

    ``sequence`` grows with every change. ``ranks`` is how many ranks of each class fit now, by the device model that all
    ranks of a unit must share, or `ANY`. ``blocks`` counts nodes by their free whole devices (0, 1, 2 ...), per model.
    ``largest_block`` is the greatest number of free devices on one node. Prices and the like stand in the fleet's `Domain`.
    """

    domain_id: str
    sequence: int
    ranks: Ranks
    blocks: Mapping[DeviceModel, tuple[int, ...]]
    total_devices: Mapping[DeviceModel, int]
    free_cpus: float
    total_cpus: float
    free_memory_bytes: int
    largest_block: int = 0
    running: int = 0
    share_gap: float = float("nan")
    own_scheduler: bool = False

    @property
    def free_devices(self) -> dict[DeviceModel, int]:
        """Free whole devices by model."""
        return {model: sum(size * count for size, count in enumerate(counts)) for model, counts in self.blocks.items()}


@dataclass(frozen=True, slots=True)
class Assignment:
    """A unit, or some of its ranks, that a domain is to place. ``first_rank`` is the number of its first rank here.

    ``unit.demand`` asks for the ranks of this part. ``whole`` False: other domains have other parts.
    """

    unit: PendingUnit
    domain_id: str
    first_rank: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a domain with a scheduler of its own is told: resources, not nodes. Amounts are per rank.

    ``time_limit_s`` is infinite when the user declared none. ``topology`` names the level that the ranks should share.
    """

    ranks: int
    cpus: float
    memory_bytes: int
    accelerators: int
    accelerator_types: tuple[str, ...]
    device_milli: int
    resources: tuple[tuple[str, float], ...]
    topology: str
    topology_required: bool
    time_limit_s: float

    @classmethod
    def of(cls, unit: PendingUnit) -> Constraints:
        """Those of a unit or of its part."""
        demand = unit.demand
        return cls(
            demand.ranks,
            demand.cpus,
            demand.memory_bytes,
            demand.accelerators,
            demand.accelerator_types,
            demand.device_milli,
            demand.resources,
            demand.topology,
            demand.topology_required,
            unit.limit_s,
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of assignments: ranks by unit; units that were handed to the domain's own scheduler; and refused ones
    with the reason. ``summary`` is the domain after it."""

    domain_id: str
    placed: tuple[tuple[UnitKey, tuple[PlacedRank, ...]], ...]
    refused: tuple[tuple[UnitKey, str], ...]
    summary: DomainSummary
    handed: tuple[tuple[UnitKey, Constraints], ...] = ()


class IntraDomain(Protocol):
    """A domain as the network reaches it, in this process or another. All are told first, then all are asked."""

    def begin(self, assignments: Sequence[Assignment], classes: Sequence[Demand], now_s: float) -> None:
        """Place these, in this order, and summarise for these classes."""
        ...

    def answer(self) -> Answer:
        """What became of them."""
        ...

    def give_back(self, keys: Sequence[UnitKey], now_s: float) -> None:
        """Parts that were placed here are not wanted: another part of their unit has no place."""
        ...


# -- inside a domain -----------------------------------------------------------------------------------------------------


class Tally:
    """Ranks per class that a domain has room for, kept up where nodes were touched. What the candidates keep up too, but
    without their scores, which only a choice needs."""

    def __init__(self) -> None:
        self._generation = -1
        self._rooms: dict[Demand, list[_NodeRoom]] = {}

    def ranks(self, cluster: Cluster, demand: Demand) -> dict[DeviceModel | None, int]:
        """Ranks that fit now, by the model that all share."""
        view = cluster.view
        if self._generation != view.generation:
            self._rooms.clear()
            self._generation = view.generation
        rooms = self._rooms.get(demand)
        if rooms is None:
            group = cluster.candidates(demand)
            if demand.topology_required or _looks_beyond(demand, cluster.policy):
                for candidates in group:
                    candidates.refresh()
                return {_model_of(item, demand, cluster): int(item.domain_fits[0]) for item in group}
            while len(self._rooms) >= _MOST_CLASSES:
                del self._rooms[next(iter(self._rooms))]
            rooms = self._rooms[demand] = []
            for item in group:
                item.refresh()
                fits = item.fits.copy()
                model = _model_of(item, demand, cluster)
                rooms.append(_NodeRoom(model, item.columns, item.allowed, fits, int(fits.sum()), len(view.taken)))
        seen = rooms[0].seen if rooms else 0
        if seen < len(view.taken):
            rows = np.array(sorted(set(view.taken[seen:])), dtype=np.int64)
            for room in rooms:
                fits = view.ranks_that_fit(demand, room.columns, rows) * room.allowed[rows]
                room.total += int(fits.sum() - room.fits[rows].sum())
                room.fits[rows] = fits
                room.seen = len(view.taken)
        return {room.model: room.total for room in rooms}


@dataclass(slots=True)
class _NodeRoom:
    model: DeviceModel | None
    columns: Ints
    allowed: Bools
    fits: Ints
    total: int
    seen: int


def _looks_beyond(demand: Demand, policy: Policy) -> bool:
    """Whether room on a node depends on more than what is free on it."""
    return any(
        item.dynamic and item.name != "capacity" and applies(item, demand) for item in plugins_of(policy).filters
    )


def summarise(
    cluster: Cluster,
    classes: Sequence[Demand],
    *,
    sequence: int = 0,
    own_scheduler: bool = False,
    tally: Tally | None = None,
) -> DomainSummary:
    """The summary of a cluster that is one domain; ``tally`` is kept from one to the next. PolicyError when the cluster has
    no domain or several."""
    view, table = cluster.view, cluster.table
    if len(table.domain_ids) != 1:
        raise PolicyError(f"a domain's own cluster is wanted, not one of {len(table.domain_ids)} domains")
    tally = tally or Tally()
    ranks = {demand: tally.ranks(cluster, demand) for demand in classes}
    up = view.up
    blocks, totals = {}, {}
    for column, model in enumerate(table.models):
        sizes = np.minimum(view.free_devices[up, column], _MOST_BLOCK)
        blocks[model] = tuple(np.bincount(sizes, minlength=1).tolist())
        totals[model] = int(table.devices[up, column].sum())
    return DomainSummary(
        table.domain_ids[0],
        sequence,
        ranks,
        blocks,
        totals,
        float(view.domain_free_cpus[0]),
        float(table.cpus[up].sum()),
        int(view.free_memory_bytes[up].sum()),
        int(view.free_devices[up].max(initial=0)),
        len(cluster.running),
        own_scheduler=own_scheduler,
    )


def _model_of(candidates: Candidates, demand: Demand, cluster: Cluster) -> DeviceModel | None:
    """The one model that all ranks share; `ANY` where the demand is judged for all its models together."""
    if not _apart(demand, cluster.policy):
        return ANY
    columns = candidates.columns
    return cluster.table.models[int(columns[0])] if len(columns) == 1 else ANY


def _apart(demand: Demand, policy: Policy) -> bool:
    """Whether each device model is judged by itself (as `alternatives` does)."""
    gang = demand.ranks > 1 and policy.one_accelerator_model_per_gang
    return bool(demand.accelerators) and (gang or bool(demand.profile))


def place_in_domain(
    cluster: Cluster, assignments: Sequence[Assignment], now_s: float
) -> tuple[list[RunningUnit], list[tuple[UnitKey, str]]]:
    """Place parts in order, each with all its ranks or not at all; they run on the cluster then. Returns what was begun, and
    what was refused with the reason. The cluster's own policy orders the nodes."""
    view = cluster.view
    chosen: list[tuple[PendingUnit, tuple[PlacedRank, ...]]] = []
    refused: list[tuple[UnitKey, str]] = []
    none: dict[Demand, str] = {}
    view.begin()
    try:
        for item in assignments:
            unit = item.unit
            if unit.key in cluster.running:
                refused.append((unit.key, "it runs here already"))
                continue
            if unit.demand in none:
                refused.append((unit.key, none[unit.demand]))
                continue
            group = cluster.candidates(unit.demand)
            found = best(group)
            if found is None:
                reason = group[0].explain_waiting().blocked if group else "no node is known yet"
                none[unit.demand] = reason
                refused.append((unit.key, reason))
            else:
                chosen.append((unit, found[0].take(found[1])))
    finally:
        view.rollback()
    return [cluster.begin(unit, ranks, now_s) for unit, ranks in chosen], refused


class LocalDomain:
    """A domain in this process, with its cluster. It counts the runs that it began and ended (``sequence``)."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.sequence = 0
        self._tally = Tally()
        self._told: tuple[Sequence[Assignment], Sequence[Demand], float] | None = None

    def begin(self, assignments: Sequence[Assignment], classes: Sequence[Demand], now_s: float) -> None:
        """See `IntraDomain`."""
        self._told = assignments, classes, now_s

    def answer(self) -> Answer:
        """See `IntraDomain`."""
        assert self._told is not None
        assignments, classes, now_s = self._told
        self._told = None
        begun, refused = place_in_domain(self.cluster, assignments, now_s)
        self.sequence += len(begun)
        placed = tuple([(running.unit.key, running.ranks) for running in begun])
        return Answer(self.cluster.table.domain_ids[0], placed, tuple(refused), self.summary(classes))

    def give_back(self, keys: Sequence[UnitKey], now_s: float) -> None:
        """See `IntraDomain`; also for units that ended."""
        for key in keys:
            self.sequence += self.cluster.release(key, now_s) is not None

    def summary(self, classes: Sequence[Demand]) -> DomainSummary:
        """The domain as it is now."""
        return summarise(self.cluster, classes, sequence=self.sequence, tally=self._tally)


class HandingDomain:
    """A domain with a scheduler of its own, which gets constraints; its agent says later which of them it takes.

    ``open`` are the units that it has not answered for. The summary is what the agent told last.
    """

    def __init__(self, summary: DomainSummary) -> None:
        self.summary = replace(summary, own_scheduler=True)
        self.open: dict[UnitKey, PendingUnit] = {}
        self._told: Sequence[Assignment] = ()

    def begin(self, assignments: Sequence[Assignment], classes: Sequence[Demand], now_s: float) -> None:
        """See `IntraDomain`."""
        self._told = assignments

    def answer(self) -> Answer:
        """See `IntraDomain`: everything is handed over, nothing is placed yet."""
        self.open.update({item.unit.key: item.unit for item in self._told})
        handed = tuple([(item.unit.key, Constraints.of(item.unit)) for item in self._told])
        self._told = ()
        return Answer(self.summary.domain_id, (), (), self.summary, handed)

    def give_back(self, keys: Sequence[UnitKey], now_s: float) -> None:
        """See `IntraDomain`."""
        for key in keys:
            self.open.pop(key, None)

    def accepted(self, key: UnitKey) -> bool:
        """The agent took it; False when it had been given back."""
        return self.open.pop(key, None) is not None

    def rejected(self, key: UnitKey) -> PendingUnit | None:
        """The agent did not take it: the part that waits again, None when it had been given back."""
        return self.open.pop(key, None)


# -- between domains -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Dispatch:
    """What one look at the summaries gave: parts in order, and units without room. ``stopped``: not all were looked at."""

    assigned: list[Assignment] = field(default_factory=list)
    waiting: list[PendingUnit] = field(default_factory=list)
    stopped: bool = False


class InterDomain:
    """The network's side: domains as single nodes, with the room that their summaries told.

    ``fleet`` gives the facts of domains (prices, links); its nodes are not looked at. ``facts`` are those of `View.facts`.
    """

    def __init__(
        self,
        fleet: Fleet,
        summaries: Sequence[DomainSummary],
        policy: Policy,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        _check(policy)
        self.policy = policy
        scored = [pair for pair in policy.scores if isinstance(SCORES.get(pair[0]), DomainScore | SetScore)]
        self._coarse = replace(
            policy,
            filters=tuple(name for name in policy.filters if name in _DOMAIN_FILTERS),
            scores=tuple(scored),
            domain_node_scores=(),
        )
        self._fleet = fleet
        self._summaries = {item.domain_id: item for item in summaries}
        self.view = self._build(facts or {})
        self._index = {name: index for index, name in enumerate(self.view.table.domain_ids)}
        self._blocks: list[dict[int, Ints]] = [{} for _ in self._index]
        self._room: dict[Demand, list[_Room]] = {}
        self._per_tenant = any(
            getattr(score, "per_tenant", False) for score, _ in plugins_of(self._coarse).scores.domain
        )
        self._least: Floats = np.zeros((0, len(self._index)))
        self._drops: dict[Demand, Floats] = {}
        self._taken: list[list[tuple[Demand, int]]] = [[] for _ in self._index]
        for item in summaries:
            self._read(item)

    @property
    def summaries(self) -> Mapping[str, DomainSummary]:
        """The newest summary of each domain."""
        return self._summaries

    def update(self, summary: DomainSummary) -> bool:
        """A domain told about itself; an older summary than the one that is known is left out (False)."""
        known = self._summaries.get(summary.domain_id)
        if known is None:
            raise PolicyError(f"the domain {summary.domain_id!r} is not known to the dispatcher")
        if summary.sequence < known.sequence:
            return False
        self._summaries[summary.domain_id] = summary
        self._read(summary)
        for demand, rooms in self._room.items():
            self._fill(demand, rooms, self._index[summary.domain_id])
        return True

    def dispatch(
        self,
        pending: Pending,
        context: OrderContext,
        *,
        excluded: Mapping[UnitKey, frozenset[str]] | None = None,
        refused: Collection[UnitKey] = (),
        gates: Sequence[Gate] = (),
        certain: bool = False,
    ) -> Dispatch:
        """A domain, or several with a part each, for each waiting unit that seems to have room. ``excluded`` names domains
        where a unit may not go, ``refused`` units that are not asked about. With ``certain`` it stops, having given
        something away, before a unit of which the summaries do not tell whether its best domain still has room."""
        excluded = excluded or {}
        self.know(pending)
        selection = Selection(pending, context)
        found = Dispatch()
        while (unit := selection.pop()) is not None:
            if unit.key in refused:
                found.waiting.append(unit)
                continue
            if any(gate.refuses(unit) for gate in gates):
                found.waiting += [unit, *selection.drop()]
                continue
            parts = self._assign(unit, excluded.get(unit.key, frozenset()), certain and bool(found.assigned))
            if parts is None:
                found.stopped = True
                return found
            if parts:
                found.assigned += parts
                selection.charge(unit)
                for gate in gates:
                    gate.charge(unit)
                continue
            found.waiting.append(unit)
            if self.policy.discipline == "strict":
                partition = unit.demand.domains
                found.waiting += selection.drop_where(lambda lane, wanted=partition: lane.demand.domains == wanted)  # type: ignore[misc]
            elif unit.key not in excluded:
                found.waiting += selection.drop()
        return found

    def know(self, pending: Pending) -> bool:
        """Keep room for the classes that wait, before anything is given away in this round. True when some domain has
        not told of one of them."""
        if len(self.view.taken) > _MOST_TOUCHED:
            # Kept judgements count from the beginning of this list.
            self._room.clear()
            self.view.taken.clear()
        waiting = dict.fromkeys(demand for _, _, demand in pending.lanes)
        new = [demand for demand in waiting if demand not in self._room]
        if new:
            for demand in new:
                self._room[demand] = self._rooms_of(demand)
            old = [demand for demand in self._room if demand not in waiting]
            for demand in old[: max(len(self._room) - _MOST_CLASSES, 0)]:
                del self._room[demand]
            self._line_up()
        return any(
            demand not in summary.ranks
            for demand in waiting
            for summary in self._summaries.values()
            if not summary.own_scheduler
        )

    def _line_up(self) -> None:
        """Put what fits at least into one matrix, so that taking from a domain is one operation."""
        rooms = [room for found in self._room.values() for room in found]
        self._least = np.array([room.least for room in rooms]).reshape(len(rooms), len(self._index))
        for place, room in enumerate(rooms):
            room.least = self._least[place]
        self._drops.clear()

    @property
    def classes(self) -> tuple[Demand, ...]:
        """The classes that domains are to tell about: those that wait, and those that did lately."""
        return tuple(self._room)

    # -- the coarse view ---------------------------------------------------------------------------------------------

    def _build(self, facts: Mapping[str, Any]) -> View:
        nodes = {name: Node(name, name, item.total_cpus, 2**62) for name, item in self._summaries.items()}
        domains = {name: self._fleet.domains[name] for name in nodes if name in self._fleet.domains}
        table = table_of(Fleet(domains, nodes, expected_demand=self._fleet.expected_demand))
        models = tuple(dict.fromkeys(model for item in self._summaries.values() for model in item.total_devices))
        devices = np.array(
            [[self._summaries[name].total_devices.get(model, 0) for model in models] for name in table.domain_ids],
            dtype=np.int64,
        ).reshape(len(table.domain_ids), len(models))
        totals = devices.sum(axis=1)
        table = replace(
            table, models=models, devices=devices, device_totals=totals, domain_devices=totals.astype(np.float64)
        )
        view = View(table)
        view.facts.update(facts)
        gaps = np.array([self._summaries[name].share_gap for name in table.domain_ids])
        if not np.isnan(gaps).all():
            view.facts.setdefault("share_gap", gaps)
        return view

    def _read(self, summary: DomainSummary) -> None:
        """Take a domain's room as it told it."""
        view, row = self.view, self._index[summary.domain_id]
        self._taken[row].clear()
        free = summary.free_devices
        for column, model in enumerate(view.table.models):
            view.free_devices[row, column] = free.get(model, 0)
            counts = np.zeros(_MOST_BLOCK + 1, dtype=np.int64)
            told = summary.blocks.get(model, ())
            counts[: len(told)] = told
            self._blocks[row][column] = counts
        view.free_device_totals[row] = view.domain_free_devices[row] = view.free_devices[row].sum()
        view.free_cpus[row] = view.domain_free_cpus[row] = summary.free_cpus
        view.free_memory_bytes[row] = summary.free_memory_bytes
        self._touched(row)

    def _touched(self, row: int) -> None:
        self.view.taken.append(row)

    def _rooms_of(self, demand: Demand) -> list[_Room]:
        size = len(self._index)
        rooms = [
            _Room(item, item.columns.tolist(), np.zeros(size), np.zeros(size))
            for item in alternatives(self.view, demand, self._coarse)
        ]
        for row in range(size):
            self._fill(demand, rooms, row)
        return rooms

    def _fill(self, demand: Demand, rooms: Sequence[_Room], row: int) -> None:
        """The room of a class in a domain, from its summary; bounded by its blocks and totals where it does not tell."""
        summary = self._summaries[self.view.table.domain_ids[row]]
        told = summary.ranks.get(demand)
        models = self.view.table.models
        for room in rooms:
            if not room.candidates.allowed[row]:
                room.least[row] = room.most[row] = 0.0
            elif told is None:
                room.most[row] = self._bound(demand, room.columns, row)
                # A foreign scheduler never tells more: its blocks are taken at their word.
                room.least[row] = room.most[row] if summary.own_scheduler else 0.0
            else:
                apart = _apart(demand, self.policy) and len(room.columns) == 1
                room.least[row] = told.get(models[room.columns[0]] if apart else ANY, told.get(ANY, 0))
                room.most[row] = room.least[row]

    def _bound(self, demand: Demand, columns: Sequence[int], row: int) -> float:
        """Ranks that can fit at most, by free blocks of devices and by totals of the rest."""
        view = self.view
        most = np.inf
        if demand.cpus > 0:
            most = min(most, (view.free_cpus[row] + 1e-6) // demand.cpus)
        if demand.memory_bytes > 0:
            most = min(most, view.free_memory_bytes[row] // demand.memory_bytes)
        if demand.accelerators and demand.device_milli >= 1000:
            blocks = self._blocks[row]
            sizes = np.arange(_MOST_BLOCK + 1) // demand.accelerators
            most = min(most, sum(float(blocks[column] @ sizes) for column in columns))
        elif demand.accelerators:
            shares = 1000 // demand.device_milli
            most = min(most, sum(int(view.free_devices[row, c]) for c in columns) * shares // demand.accelerators)
        return float(most) if most < np.inf else 1e6

    # -- choosing ----------------------------------------------------------------------------------------------------

    def _assign(self, unit: PendingUnit, excluded: frozenset[str], certain: bool) -> list[Assignment] | None:
        """The parts of a unit; none when there is no room; None when that is not ``certain``."""
        if self._per_tenant:
            state_tenant(self.view, unit.tenant_id)
        found: list[tuple[_Room, Choice]] = []
        shut = [self._index[name] for name in excluded if name in self._index]
        for room in self._room[unit.demand]:
            # By what fits at most the choice may be too good, but nothing is overlooked.
            fits = self._fits(unit.demand, room, most=certain)
            fits[shut] = 0
            room.candidates.refresh()
            choice = room.candidates.choose_of(fits, fits)
            if choice is not None:
                found.append((room, choice))
        if not found:
            return []
        room, choice = max(found, key=lambda pair: (-len(pair[1].domains), pair[1].score))
        if certain and not self._is_certain(unit.demand, room, choice):
            return None
        names = self.view.table.domain_ids
        parts, first = [], 0
        for row, count in choice.rows:
            demand = unit.demand
            if len(choice.rows) > 1:
                demand = replace(demand, ranks=count, cross_domain=False, accelerator_types=self._types(room, demand))
            part = unit if demand is unit.demand else replace(unit, demand=demand)
            parts.append(Assignment(part, names[row], first, whole=len(choice.rows) == 1))
            self._consume(unit.demand, room, row, count)
            first += count
        return parts

    def _is_certain(self, demand: Demand, room: _Room, choice: Choice) -> bool:
        """Whether the choice stands wherever the room lies between its bounds: that of other domains can only be less, so
        one domain stands when its own room does; a split depends on all of them."""
        if len(choice.domains) == 1:
            return bool(room.least[choice.domains[0]] >= demand.ranks)
        return bool((_whole(room.least) == _whole(room.most)).all())

    def _types(self, room: _Room, demand: Demand) -> tuple[str, ...]:
        """Parts of one gang use one model: each is told which."""
        if not _apart(demand, self.policy) or len(room.columns) != 1:
            return demand.accelerator_types
        return (self.view.table.models[room.columns[0]].model,)

    def _consume(self, demand: Demand, room: _Room, row: int, ranks: int) -> None:
        """Count ranks off a domain's room, as if it packed them; other classes see what is left."""
        view = self.view
        view.free_cpus[row] -= demand.cpus * ranks
        view.domain_free_cpus[row] -= demand.cpus * ranks
        view.free_memory_bytes[row] -= demand.memory_bytes * ranks
        if demand.accelerators:
            self._consume_devices(demand, room.columns, row, ranks)
        self._touched(row)
        self._taken[row].append((demand, ranks))
        self._least[:, row] -= ranks * self._drops_of(demand)
        np.maximum(self._least[:, row], 0.0, out=self._least[:, row])
        if not demand.topology_required:
            room.most[row] -= ranks

    def _drops_of(self, taken: Demand) -> Floats:
        """By how many ranks each of the kept rooms may fall for a rank of this class."""
        drops = self._drops.get(taken)
        if drops is None:
            found = [greatest_drop(taken, other) for other, rooms in self._room.items() for _ in rooms]
            drops = self._drops[taken] = np.array(found)
        return drops

    def _fits(self, demand: Demand, room: _Room, *, most: bool) -> Ints:
        """Ranks (D) that fit at most, or else are thought to."""
        view = self.view
        fits = room.most.copy()
        if demand.accelerators and demand.device_milli >= 1000:
            np.minimum(fits, view.free_device_totals // demand.accelerators, out=fits)
        if demand.cpus > 0:
            np.minimum(fits, (view.free_cpus + 1e-6) // demand.cpus, out=fits)
        if not most:
            for row, taken in enumerate(self._taken):
                if taken and fits[row] >= 1:
                    gone = sum(ranks * _displaced(other, demand) for other, ranks in taken if other != demand)
                    likely = min(fits[row] - gone, self._bound(demand, room.columns, row))
                    fits[row] = max(likely, room.least[row])
        return _whole(fits)

    def _consume_devices(self, demand: Demand, columns: Sequence[int], row: int, ranks: int) -> None:
        view, size = self.view, demand.accelerators
        if demand.device_milli < 1000:
            size, ranks = 1, -(-ranks * demand.accelerators * demand.device_milli // 1000)
        for column in columns:
            counts = self._blocks[row][column]
            while ranks:
                held = np.flatnonzero(counts[size:]) + size
                if not len(held):
                    break
                whole = held[held >= size * ranks]
                block = int(whole[0]) if len(whole) else int(held[-1])
                here = min(ranks, block // size)
                counts[block] -= 1
                counts[block - here * size] += 1
                ranks -= here
                view.free_devices[row, column] -= here * size
                view.free_device_totals[row] -= here * size
                view.domain_free_devices[row] -= here * size


@dataclass(slots=True)
class _Room:
    """A way to satisfy a class: its judgement of domains, its device models, and the ranks (D) that fit at least and at
    most. ``least`` is a row of a matrix over all rooms."""

    candidates: Candidates
    columns: list[int]
    least: Floats
    most: Floats


def _whole(room: Floats) -> Ints:
    return np.maximum(np.floor(room + 1e-6), 0.0).astype(np.int64)


def greatest_drop(taken: Demand, other: Demand) -> float:
    """By how many ranks of ``other`` a node may have less room after one rank of ``taken``, at most; infinite when they
    exclude each other in ways that amounts do not tell (ports, anti-affinity).

    On one node ``floor((free - a) / b) >= floor(free / b) - ceil(a / b)`` for each resource, so the least of them falls by
    no more than the greatest ``ceil(a / b)``.
    """
    if taken.service_port and taken.service_port == other.service_port:
        return math.inf
    if taken.labels & other.avoid or taken.avoid & other.labels:
        return math.inf
    if taken == other:
        return 1.0
    amounts = dict(taken.resources)
    pairs = [(taken.cpus, other.cpus), (float(taken.memory_bytes), float(other.memory_bytes))]
    pairs += [(amounts.get(name, 0.0), amount) for name, amount in other.resources]
    drops = [math.ceil(a / b - 1e-9) for a, b in pairs if b > 0]
    if other.accelerators and other.device_milli >= 1000:
        drops.append(-(-taken.accelerators // other.accelerators))
    elif other.accelerators:
        shares = -(-taken.device_milli // other.device_milli)
        drops.append(taken.accelerators * min(shares, 1000 // other.device_milli))
    return float(max(drops, default=0))


def _displaced(taken: Demand, other: Demand) -> float:
    """Ranks of a class without devices that a rank of another takes the place of. Classes with devices are bounded by the
    free blocks, which say more."""
    if other.accelerators:
        return 0.0
    parts = [taken.cpus / other.cpus] if other.cpus > 0 else []
    if other.memory_bytes > 0:
        parts.append(taken.memory_bytes / other.memory_bytes)
    return min(parts, default=0.0)


def _check(policy: Policy) -> None:
    if policy.discipline not in {"greedy", "strict"}:
        raise PolicyError(
            f"discipline: {policy.discipline!r} looks at all nodes at once; two levels take greedy or strict"
        )
    for name in ("preemptions", "planner"):
        if getattr(policy, name):
            raise PolicyError(f"{name}: looks at all nodes at once, which two levels do not")
    plugins_of(policy)


def dispatch(
    fleet: Fleet,
    summaries: Sequence[DomainSummary],
    pending: Pending,
    policy: Policy,
    context: OrderContext,
    facts: Mapping[str, Any] | None = None,
) -> Dispatch:
    """One dispatch from summaries alone; see `InterDomain.dispatch`. ``fleet`` gives the facts of domains, not nodes."""
    gates = [limit.open(context) for limit in stages_of(policy).limits]
    return InterDomain(fleet, summaries, policy, facts).dispatch(pending, context, gates=gates)


# -- both ----------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Coordinated:
    """What a cycle of both levels decided. ``placed`` gives all ranks of a unit, ``reasons`` what domains said of those that
    they refused; ``feedback`` counts units that came back, ``rounds`` how often domains were asked."""

    placed: dict[UnitKey, tuple[PlacedRank, ...]] = field(default_factory=dict)
    handed: dict[UnitKey, list[tuple[str, Constraints]]] = field(default_factory=dict)
    waiting: list[UnitKey] = field(default_factory=list)
    reasons: dict[UnitKey, list[str]] = field(default_factory=dict)
    feedback: int = 0
    rounds: int = 0


def coordinate(
    inter: InterDomain,
    pending: Pending,
    domains: Mapping[str, IntraDomain],
    context: OrderContext,
    now_s: float,
    *,
    most_rounds: int = MOST_ROUNDS,
) -> Coordinated:
    """One cycle; see the module. Units that were placed or handed over are taken out of ``pending``."""
    done = Coordinated()
    excluded: dict[UnitKey, frozenset[str]] = {}
    twice: set[UnitKey] = set()
    gates = [limit.open(context) for limit in stages_of(inter.policy).limits]
    if inter.know(pending):
        for name in domains:
            domains[name].begin((), inter.classes, now_s)
        for name in domains:
            inter.update(domains[name].answer().summary)
    while True:
        certain = done.rounds < most_rounds - 1
        found = inter.dispatch(pending, context, excluded=excluded, refused=twice, gates=gates, certain=certain)
        done.waiting = [unit.key for unit in found.waiting]
        if not found.assigned:
            return done
        done.rounds += 1
        refused = _round(inter, pending, domains, found.assigned, now_s, done)
        for unit, names in refused.items():
            if unit.key in excluded:
                twice.add(unit.key)
            else:
                done.feedback += 1
            excluded[unit.key] = excluded.get(unit.key, frozenset()) | names
            # It holds nothing: its tenant gets its turn back.
            context.shares.charge(unit.tenant_id, unit.demand, -1)
            for gate in gates:
                gate.charge(unit, -1)
        done.waiting += [unit.key for unit in refused]
        if not found.stopped and not refused:
            return done


@dataclass(slots=True)
class _Heard:
    """The answers of one round, by unit and domain."""

    ranks: dict[tuple[UnitKey, str], tuple[PlacedRank, ...]] = field(default_factory=dict)
    handed: dict[tuple[UnitKey, str], Constraints] = field(default_factory=dict)
    refused: dict[UnitKey, dict[str, str]] = field(default_factory=dict)

    def hear(self, answer: Answer) -> None:
        name = answer.domain_id
        self.ranks.update({(key, name): ranks for key, ranks in answer.placed})
        self.handed.update({(key, name): constraints for key, constraints in answer.handed})
        for key, reason in answer.refused:
            self.refused.setdefault(key, {})[name] = reason


def _round(
    inter: InterDomain,
    pending: Pending,
    domains: Mapping[str, IntraDomain],
    assigned: Sequence[Assignment],
    now_s: float,
    done: Coordinated,
) -> dict[PendingUnit, frozenset[str]]:
    """Let the domains place their parts; returns the units that have no place, with the domains that refused them."""
    by_domain: dict[str, list[Assignment]] = {}
    parts: dict[UnitKey, list[Assignment]] = {}
    for item in assigned:
        by_domain.setdefault(item.domain_id, []).append(item)
        parts.setdefault(item.unit.key, []).append(item)
    classes = inter.classes
    for name, items in by_domain.items():
        domains[name].begin(items, classes, now_s)
    heard = _Heard()
    for name in by_domain:
        answer = domains[name].answer()
        inter.update(answer.summary)
        heard.hear(answer)
    back: dict[str, list[UnitKey]] = {}
    refused: dict[PendingUnit, frozenset[str]] = {}
    for key, items in parts.items():
        reasons = heard.refused.get(key)
        if reasons is None:
            pending.remove(key)
            _record(done, key, items, heard)
            continue
        unit = pending.get(key)
        assert unit is not None
        refused[unit] = frozenset(reasons)
        done.reasons.setdefault(key, []).extend(f"{name}: {reason}" for name, reason in reasons.items())
        for item in items:
            if item.domain_id not in reasons:
                back.setdefault(item.domain_id, []).append(key)
    for name, keys in back.items():
        domains[name].give_back(keys, now_s)
        domains[name].begin([], classes, now_s)
        inter.update(domains[name].answer().summary)
    return refused


def _record(done: Coordinated, key: UnitKey, items: Sequence[Assignment], heard: _Heard) -> None:
    """Put the parts of a unit together."""
    ranks: list[PlacedRank] = []
    for item in items:
        constraints = heard.handed.get((key, item.domain_id))
        if constraints is not None:
            done.handed.setdefault(key, []).append((item.domain_id, constraints))
        here = heard.ranks.get((key, item.domain_id), ())
        ranks.extend(replace(rank, rank=item.first_rank + rank.rank) for rank in here)
    if ranks:
        done.placed[key] = tuple(ranks)
