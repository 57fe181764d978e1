"""The cluster as the decisions see it: what is free, what waits, what runs; kept up with each event instead of built anew.

`decide` reads it and leaves it as it was; `apply` carries out what was decided. The live service, what-if, replay and the
simulator all keep one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from services.scheduler.core.counting import Counts, CountsKey, Shared
from services.scheduler.core.deciding.decisions import Decisions
from services.scheduler.core.ledger import Ledger, Usage
from services.scheduler.core.memory import Memory
from services.scheduler.core.pending import Pending, estimated_s
from services.scheduler.core.placement import Candidates
from services.scheduler.core.plugins import plugins_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.table import Table
from services.scheduler.core.view import View
from services.scheduler.core.waiting_unit import PendingUnit, Shares
from services.scheduler.core.watching import Watching

_MOST_CELLS = 40_000_000
"""Nodes times judgements that are kept (about 64 bytes each)."""
_MOST_TOUCHED = 200_000


class Cluster:
    """See the module. ``facts`` are values that plugins read by name (throughputs, transfer prices, planned shares); they
    are kept in ``view.facts``, and `View.state` changes them."""

    def __init__(
        self, table: Table, policy: Policy, ledger: Ledger | None = None, facts: Mapping[str, Any] | None = None
    ) -> None:
        self.policy = policy
        self.plugins = plugins_of(policy)
        """What the policy names: looked up once, as a policy is long to hash."""
        self.looked_up: dict[str, Any] = {}
        """What others looked up by the policy, for the same reason; forgotten with it."""
        self._version = policy.version
        self._weights = dict(policy.tenant_weights)
        self.view = View(table, ledger)
        self.pending = Pending(self.plugins.order)
        self.running: dict[UnitKey, RunningUnit] = {}
        self.holders: dict[int, dict[UnitKey, int]] = {}
        """Which units run on a node (row), and how many of its devices each holds. What is said of one node is not changed but
        replaced, so copies share it."""
        self.tenants: dict[str, Usage] = dict(ledger.tenants) if ledger is not None else {}
        self.view.facts.update(facts or {})
        self.memory: Memory | None = None
        self._totals: tuple[Table, float, float] | None = None
        self._candidates: dict[Demand, list[Candidates]] = {}
        self._counts: WeakValueDictionary[CountsKey, Counts] = WeakValueDictionary()
        """Counts of the candidates, which share them: gone with the last of these."""
        self._generation = 0
        self._observers: dict[str, tuple[Hashable, Any]] = {}

    @property
    def table(self) -> Table:
        """The arrays that do not change."""
        return self.view.table

    @property
    def version(self) -> str:
        """The version of the policy."""
        return self._version

    @property
    def stamp(self) -> tuple[int, int, str]:
        """Changes when there may be more room than before."""
        return self.view.gives, self.view.generation, self._version

    def use(self, policy: Policy) -> None:
        """Another policy applies from now on."""
        if policy is self.policy or policy.version == self._version:
            return
        self.policy, self._version, self._weights = policy, policy.version, dict(policy.tenant_weights)
        self.plugins, self.looked_up = plugins_of(policy), {}
        self.pending.reorder(self.plugins.order)
        self._candidates.clear()
        self._counts.clear()
        self.forget()

    def forget(self) -> None:
        """What the last cycle found holds no more: the next one looks at all that waits."""
        self.memory = None

    def shares(self) -> Shares:
        """The tenants' shares as they are; the caller may charge them."""
        table = self.table
        if self._totals is None or self._totals[0] is not table:
            self._totals = table, float(table.domain_devices.sum()), float(table.domain_cpus.sum())
        return Shares(self.tenants, *self._totals[1:], self._weights)

    def watch(self, name: str, settings: Hashable, make: Callable[[], Watching]) -> Watching:
        """What is kept up under ``name`` with each unit that begins or ends; made from what runs when it is asked for
        first, or with other ``settings``. Other policies leave it as it is."""
        found = self._observers.get(name)
        if found is None or found[0] != settings:
            found = self._observers[name] = (settings, make())
            for running in self.running.values():
                found[1].began(running)
        observer: Watching = found[1]
        return observer

    def unwatch(self, name: str) -> None:
        """Nothing is kept up under ``name`` any more."""
        self._observers.pop(name, None)

    def copy(self, *, observed: bool = True) -> Cluster:
        """A cluster that can be changed without changing this one; not from inside a cycle. Runs are shared: what changes
        one puts another in its place. With ``observed`` False plugins begin to watch it anew (they forget the past)."""
        other = object.__new__(Cluster)
        other.policy, other.view, other.pending = self.policy, self.view.copy(), self.pending.copy()
        other.plugins, other._version, other._weights = self.plugins, self._version, self._weights
        other.looked_up, other._totals = self.looked_up, self._totals
        other.running = dict(self.running)
        other.holders = dict(self.holders)
        other.tenants = {name: replace(usage) for name, usage in self.tenants.items()}
        other._generation = self._generation
        other._candidates, other._counts = {}, WeakValueDictionary()
        copies: dict[Counts, Counts] = {}
        if self._generation == self.view.generation:
            for _, _, demand in self.pending.lanes:
                if demand in self._candidates and demand not in other._candidates:
                    other._candidates[demand] = [item.on(other.view, copies) for item in self._candidates[demand]]
            for key, counts in self._counts.items():
                if counts in copies:
                    other._counts[key] = copies[counts]
        memory = self.memory
        other.memory = memory
        if memory is not None and memory.profile is not None:
            other.memory = replace(memory, profile=memory.profile.copy())
        other._observers = {}
        if observed and self._observers:
            same: list[object] = [self.table, self.policy, *self.running.values()]
            memo: dict[int, object] = {id(item): item for item in same}
            memo |= {id(self): other, id(self.view): other.view}
            other._observers = deepcopy(self._observers, memo)
        self._copy_facts(other)
        return other

    def _copy_facts(self, other: Cluster) -> None:
        """Facts that are observers are the copy's own ones; so are those that change and have a ``snapshot``."""
        own = {id(self._observers[name][1]): found for name, (_, found) in other._observers.items()}
        for name, value in other.view.facts.items():
            if id(value) in own:
                other.view.facts[name] = own[id(value)]
            elif hasattr(value, "snapshot"):
                other.view.facts[name] = value.snapshot()

    # -- events ------------------------------------------------------------------------------------------------------

    def add(self, unit: PendingUnit) -> None:
        """A unit waits."""
        if unit.key in self.pending:
            self.withdraw(unit.key)
        self.pending.add(unit)

    def extend(self, units: Iterable[PendingUnit]) -> None:
        """Units wait."""
        for unit in units:
            self.add(unit)

    def withdraw(self, key: UnitKey) -> PendingUnit | None:
        """A unit waits no more. What was reserved for it is there for others."""
        if self.memory is not None and self.memory.since is not None:
            self.memory = replace(self.memory, since=None)
        return self.pending.remove(key)

    def occupy(self, running: RunningUnit) -> None:
        """A unit holds nodes."""
        rows = running.rows or self.rows_of(running.ranks)
        running.rows = rows
        for row, devices in rows:
            self.view.occupy(row, running.unit.demand, devices)
        self.enter(running)
        self.running[running.unit.key] = running
        self._charge(running.unit, 1)
        for _, observer in self._observers.values():
            observer.began(running)
        if len(self.view.taken) > _MOST_TOUCHED:
            self.view.forget_touched()

    def enter(self, running: RunningUnit) -> None:
        """Write a unit down on its nodes."""
        for row, devices in running.rows:
            here = self.holders.get(row, {})
            self.holders[row] = {**here, running.unit.key: here.get(running.unit.key, 0) + len(devices)}

    def restate(self, running: RunningUnit) -> None:
        """A unit that holds what it held: something else is known or thought of when it began, of its end or of what it keeps."""
        self.running[running.unit.key] = running
        for _, observer in self._observers.values():
            if hasattr(observer, "restated"):
                observer.restated(running)

    def release(self, key: UnitKey, now_s: float = math.nan) -> RunningUnit | None:
        """A unit holds nothing more since ``now_s``; None when it did not run."""
        running = self.running.pop(key, None)
        if running is None:
            return None
        for row, devices in running.rows:
            self.view.give(row, running.unit.demand, devices)
            here = self.holders[row]
            if key in here:
                self.holders[row] = {name: devices for name, devices in here.items() if name != key}
        self._charge(running.unit, -1)
        for _, observer in self._observers.values():
            observer.ended(running, now_s)
        return running

    def fell(self, running: RunningUnit) -> None:
        """A unit that runs has fallen in the order by itself (`Order.changes_at_s`): who waits may take it off now."""
        self.view.touch([row for row, _ in running.rows])

    def apply(self, decisions: Decisions, now_s: float) -> list[RunningUnit]:
        """Carry out decisions on this cluster: preempted units hold nothing more (and do not wait: the caller says when
        they do), placed ones run. Returns the runs that were begun."""
        self.memory = decisions.memory
        for item in decisions.preempted:
            self.release(item.key, now_s)
        begun = []
        for placement in decisions.placed:
            self.pending.remove(placement.key)
            begun.append(self.begin(placement.unit, placement.ranks, now_s))
        if self.memory is not None:
            self.memory.stamp = self.stamp
        self.pending.looked()
        return begun

    def begin(self, unit: PendingUnit, ranks: tuple[PlacedRank, ...], now_s: float) -> RunningUnit:
        """A unit begins to run on these nodes."""
        running = RunningUnit(
            unit,
            ranks,
            now_s,
            expected_end_s=now_s + estimated_s(unit, "expected"),
            limit_end_s=now_s + estimated_s(unit, "limit"),
            service_index=unit.service_index,
        )
        self.occupy(running)
        return running

    def rows_of(self, ranks: Sequence[PlacedRank]) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Node rows and devices of placed ranks; ranks on nodes that are gone are left out."""
        index = self.table.node_index
        return tuple([(index[rank.node_id], rank.devices) for rank in ranks if rank.node_id in index])

    def _charge(self, unit: PendingUnit, sign: int) -> None:
        usage = self.tenants.get(unit.tenant_id)
        if usage is None:
            usage = self.tenants[unit.tenant_id] = Usage()
        demand = unit.demand
        usage.cpus += sign * demand.ranks * demand.cpus
        usage.accelerator_milli += sign * demand.ranks * demand.accelerators * demand.device_milli

    # -- judgements --------------------------------------------------------------------------------------------------

    def candidates(self, demand: Demand) -> list[Candidates]:
        """The ways to satisfy a demand, judged once and kept up to date where nodes were touched.

        A gang takes one accelerator model for all ranks, so each model is judged by itself; so is each model of a demand
        with a throughput profile, as models then differ in worth.
        """
        if self._generation != self.view.generation:
            self._candidates.clear()
            self._counts.clear()
            self._generation = self.view.generation
        found = self._candidates.get(demand)
        if found is None:
            size = max(len(self.table.nodes), 1)
            while len(self._candidates) * size > _MOST_CELLS:
                del self._candidates[next(iter(self._candidates))]
            found = self._candidates[demand] = alternatives(self.view, demand, self.policy, self._counts)
        return found


def alternatives(view: View, demand: Demand, policy: Policy, shared: Shared | None = None) -> list[Candidates]:
    """One `Candidates` per accelerator model that the unit might take, or one for all; ``shared`` are counts on this view."""
    columns = view.columns(demand)
    apart = (demand.ranks > 1 and policy.one_accelerator_model_per_gang) or bool(demand.profile)
    if demand.accelerators and len(columns) > 1 and apart:
        return [Candidates(view, demand, columns[place : place + 1], policy, shared) for place in range(len(columns))]
    return [Candidates(view, demand, columns, policy, shared)]
