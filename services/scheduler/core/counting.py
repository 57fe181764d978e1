"""Counting places: how many ranks fit on which nodes, and which filters reject the others; asked once, then kept up to date where
capacity was taken.

What filters say and what fits depends on what one rank asks for. Demands that differ in how many they ask for share one `Counts`.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence, Set
from dataclasses import replace
from typing import Self

import numpy as np

from services.scheduler.core.explaining.explanation import Rejection
from services.scheduler.core.filters import Filter
from services.scheduler.core.node_values import NodeValues
from services.scheduler.core.plugins import Plugins, plugins_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.rejecting import Rejecting, applies
from services.scheduler.core.state import Demand
from services.scheduler.core.table import SLACK, UNBOUNDED, Bools, Ints
from services.scheduler.core.view import View

_FEW = 6
"""Up to so many touched nodes are counted again one by one, which is quicker than arrays are."""


def is_per_rank(plugins: Plugins, demand: Demand, *, values: bool) -> bool:
    """Whether no filter, and with ``values`` no node score, looks at how many ranks a demand asks for: those that do not say so
    by ``per_rank``."""
    asked: list[object] = [item for item in plugins.filters if applies(item, demand)]
    asked += [score for score, _ in plugins.scores.node] if values else []
    return all(getattr(item, "per_rank", False) for item in asked)


def asks_all(plugins: Plugins, demand: Demand) -> bool:
    """Whether what a plugin says of one node may change with what is taken on another (``everywhere``)."""
    asked: list[object] = [*again(plugins.filters, demand), *(score for score, _ in plugins.scores.node)]
    return any(getattr(item, "everywhere", False) for item in asked)


def again(chain: Sequence[Filter], demand: Demand) -> tuple[Filter, ...]:
    """The filters that are asked again where capacity was taken, beside the count itself."""
    return tuple([item for item in chain if item.dynamic and item.name != "capacity" and applies(item, demand)])


CountsKey = tuple[Demand, tuple[int, ...]]
Shared = MutableMapping[CountsKey, "Counts"]
"""Counts by what they depend on: a demand as of one rank, and the device models that may be used."""


def counts_of(view: View, demand: Demand, columns: Ints, policy: Policy, shared: Shared) -> Counts:
    """Those of a demand on the device models ``columns``, of which filters may leave fewer: found in ``shared``, or made anew."""
    plugins = plugins_of(policy)
    for item in plugins.filters:
        narrow = getattr(item, "columns", None)
        if narrow is not None and applies(item, demand):
            columns = narrow(view, demand, columns)
    by_domain = policy.discipline in {"greedy", "strict"} and not asks_all(plugins, demand)
    if not is_per_rank(plugins, demand, values=by_domain):
        return Counts(view, demand, columns, policy, by_domain=by_domain)
    key = replace(demand, ranks=1), tuple(columns.tolist())
    found = shared.get(key)
    if found is None:
        found = shared[key] = Counts(view, demand, columns, policy, by_domain=by_domain)
    return found


class Counts:
    """See the module. ``fits`` (N) are the ranks that fit per node, ``domain_fits`` (D) those per domain, ``most`` those in the
    roomiest domain, or in all together where they may be spread; all as they were at the last `count`.

    ``columns`` are the device models that may be used. ``values`` is how good the nodes are, where that is looked at only when
    something is to be chosen among them (``by_domain``).
    """

    def __init__(self, view: View, demand: Demand, columns: Ints, policy: Policy, *, by_domain: bool) -> None:
        plugins = plugins_of(policy)
        self._view, self._table = view, view.table
        self._demand, self.columns = demand, columns
        self._again = again(plugins.filters, demand)
        self._asks_all = asks_all(plugins, demand)
        self._seen = len(view.taken)
        self._window: tuple[int, int, set[int]] = (0, 0, set())
        self._window_rows: Ints | None = None
        self._could_hold: Ints | None = None
        self.groups = self._table.levels.get(demand.topology) if demand.topology else None
        if demand.topology_required and self.groups is None:
            self.groups = np.full(len(self._table.nodes), -1, dtype=np.int64)
        fits = view.ranks_that_fit(demand, columns)
        all_models = len(columns) == len(view.columns(demand))
        self._rejecting = Rejecting(view, demand, plugins.filters, policy.shown_nodes, fits > 0 if all_models else None)
        self._rejected_at = len(view.taken)
        self._lost = 0
        """How many more nodes lost their last room than got their first since then."""
        self._rejects_full = all_models and self._rejecting.capacity_alone
        """Whether a node that is allowed is rejected just when no rank fits on it."""
        self.allowed: Bools = self._rejecting.allowed
        self._all_allowed = bool(self.allowed.all())
        self.fits: Ints = np.where(self._rejecting.passing, fits, 0)
        self.domain_fits: Ints = self.per_domain(self.fits)
        self.spans = demand.cross_domain and not demand.topology_required
        self.one_by_one = not (
            self._again or demand.resources or demand.topology_required or demand.device_milli < 1000 or self._asks_all
        )
        """Whether what fits on a node depends on that node alone, and on amounts alone."""
        self._models: list[int] = columns.tolist()
        self.most = self._most_ranks()
        self._shares = False
        """Whether a copy has the same arrays."""
        self.values = NodeValues(view, demand, policy) if by_domain else None

    def on(self, view: View) -> Self:
        """The same on a copy of this view."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._view = view
        other._rejecting = self._rejecting.on(view)
        other.values = self.values.on(view) if self.values is not None else None
        self._shares = other._shares = True
        return other

    def _own(self) -> None:
        """Before a change: what is shared with a copy is copied."""
        if self._shares:
            self.fits, self.domain_fits, self._shares = self.fits.copy(), self.domain_fits.copy(), False

    def count(self) -> None:
        """Count ranks again on the nodes that were taken from since."""
        begin, end = self._seen, len(self._view.taken)
        if begin == end:
            return
        self._seen = end
        self._own()
        touched = self.touched(begin)
        if self.one_by_one and len(touched) <= _FEW:
            self._count_one_by_one(touched)
            return
        rows = self.touched_rows(begin)
        fits = self._view.ranks_that_fit(self._demand, self.columns, rows)
        if not self._all_allowed:
            fits[~self.allowed[rows]] = 0
        for item in self._again:
            fits[~item.passes(self._view, self._demand, rows)] = 0
        more = fits - self.fits[rows]
        places = more.nonzero()[0]
        if not len(places):
            return
        changed_rows, fits, more = rows[places], fits[places], more[places]
        if self._rejects_full:
            self._lost += int(np.count_nonzero(fits == 0)) - int(np.count_nonzero(fits == more))
        self.fits[changed_rows] = fits
        if self.groups is None or not self._demand.topology_required:
            np.add.at(self.domain_fits, self._table.node_domain[changed_rows], more)
        else:
            self.domain_fits[:] = self.per_domain(self.fits)
        self.most = self._most_ranks()

    def touched(self, begin: int) -> set[int]:
        """The nodes that were touched since ``taken`` was as long as ``begin``."""
        end = len(self._view.taken)
        if self._window[:2] != (begin, end):
            self._window, self._window_rows = (begin, end, set(self._view.taken[begin:])), None
        return self._window[2]

    def touched_rows(self, begin: int) -> Ints:
        """Nodes to look at again, in order, when those were touched."""
        if self._asks_all:
            return np.arange(len(self._table.nodes))
        touched = self.touched(begin)
        if self._window_rows is None:
            self._window_rows = np.array(sorted(touched), dtype=np.int64)
        return self._window_rows

    def could_hold(self) -> Ints:
        """Ranks that would fit per domain if nothing ran."""
        if self._could_hold is None:
            empty = np.where(self.allowed, self._view.ranks_that_fit(self._demand, self.columns, total=True), 0)
            self._could_hold = self.per_domain(empty)
        return self._could_hold

    def per_domain(self, values: Ints) -> Ints:
        """Ranks that fit per domain: of all nodes, or of the best group where the ranks must share one."""
        if self.groups is not None and self._demand.topology_required:
            out = np.zeros(len(self._table.domain_ids), dtype=np.int64)
            grouped = self.groups >= 0
            if grouped.any():
                sums = np.bincount(self.groups[grouped], weights=values[grouped]).astype(np.int64)
                np.maximum.at(out, self._table.node_domain[grouped], sums[self.groups[grouped]])
            return out
        sums = np.bincount(self._table.node_domain, weights=values, minlength=len(self._table.domain_ids))
        return sums.astype(np.int64)

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """What each filter rejects of what those before it have left, as it is now."""
        self.count()
        taken = self._view.taken
        if self._rejected_at != len(taken):
            begin, self._rejected_at = self._rejected_at, len(taken)
            if self._rejects_full:
                self._rejecting.count_full(self.touched(begin), self._lost, self.fits)
                self._lost = 0
            else:
                self._rejecting.look_again(self.touched_rows(begin))
        return self._rejecting.said()

    def _most_ranks(self) -> int:
        fits: list[int] = self.domain_fits.tolist()
        return sum(fits) if self.spans else max(fits, default=0)

    def _count_one_by_one(self, rows: Set[int]) -> None:
        """As `fitting.fits` on these nodes, for whole devices."""
        view, demand, fits, domain_fits = self._view, self._demand, self.fits, self.domain_fits
        devices, free_cpus, free_memory_bytes = view.free_devices, view.free_cpus, view.free_memory_bytes
        each, cpus, memory_bytes = demand.accelerators, max(demand.cpus, SLACK), demand.memory_bytes
        most, changed = 1 if demand.service_port else UNBOUNDED, False
        for row in rows:
            if not self.allowed.item(row):
                continue
            fit = most
            if each:
                ranks = 0
                for column in self._models:
                    ranks += devices.item(row, column) // each
                fit = min(fit, ranks)
            if fit > 0 and demand.cpus:
                fit = int(min(fit, (free_cpus.item(row) + SLACK) // cpus))
            if fit > 0 and memory_bytes:
                fit = min(fit, free_memory_bytes.item(row) // memory_bytes)
            fit, before = max(fit, 0), fits.item(row)
            if fit != before:
                fits[row] = fit
                domain_fits[self._table.node_domain.item(row)] += fit - before
                self._lost += (fit == 0) - (before == 0)
                changed = True
        if changed:
            self.most = self._most_ranks()
