"""Judging the places of one class of units: asked once, then kept up to date where capacity was taken.

Filters say which nodes may take a rank, `ranks_that_fit` counts ranks per node, scores say how good nodes and domains are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any, Self

import numpy as np

from services.scheduler.core.explaining.explanation import Rejection
from services.scheduler.core.plugins import plugins_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.rejecting import Rejecting, applies
from services.scheduler.core.scores import DomainScore
from services.scheduler.core.scoring.preference import device_preference
from services.scheduler.core.state import Demand
from services.scheduler.core.table import SLACK, UNBOUNDED, Bools, Floats, Ints
from services.scheduler.core.view import View

_FEW = 6
"""Up to so many touched nodes are counted again one by one, which is quicker than arrays are."""


def _stack(values: list[Floats], size: int) -> Floats:
    """Rows as a matrix, also when there are none."""
    return np.array(values) if values else np.zeros((0, size))


class Judging:
    """What fits on which nodes for one class of units, and how good nodes and domains are for it. ``columns`` are the device
    models that it may use."""

    def __init__(self, view: View, demand: Demand, columns: Ints, policy: Policy) -> None:
        self._view, self._table = view, view.table
        self._demand, self._policy = demand, policy
        self._version = policy.version
        plugins = plugins_of(policy)
        for item in plugins.filters:
            narrow = getattr(item, "columns", None)
            if narrow is not None and applies(item, demand):
                columns = narrow(view, demand, columns)
        self._columns = columns
        self._scores = plugins.scores
        self._chooses_devices = device_preference(plugins.scores.node)
        self._again = tuple(
            item for item in plugins.filters if item.dynamic and item.name != "capacity" and applies(item, demand)
        )
        self._limit: Ints | None = None
        self._asks_all = any(
            getattr(item, "everywhere", False) for item in (*self._again, *(score for score, _ in self._scores.node))
        )
        self._seen = self._scored = len(view.taken)
        self._window: tuple[int, int, set[int]] = (0, 0, set())
        self._window_rows: Ints | None = None
        self._facts = view.facts_version
        self._some_sleep = bool(view.table.asleep.any())
        self._could_hold: Ints | None = None
        self._groups = self._table.levels.get(demand.topology) if demand.topology else None
        if demand.topology_required and self._groups is None:
            self._groups = np.full(len(self._table.nodes), -1, dtype=np.int64)
        everything = slice(None)
        fits = view.ranks_that_fit(demand, columns)
        all_models = len(columns) == len(view.columns(demand))
        self._rejecting = Rejecting(view, demand, plugins.filters, policy.shown_nodes, fits > 0 if all_models else None)
        self._rejected_at = len(view.taken)
        self._lost = 0
        """How many more nodes lost their last room than got their first since then."""
        self._rejects_full = all_models and self._rejecting.capacity_alone
        """Whether a node that is allowed is rejected just when no rank fits on it."""
        self._allowed = self._rejecting.allowed
        self._all_allowed = bool(self._allowed.all())
        self.fits: Ints = np.where(self._rejecting.passing, fits, 0)
        self.domain_fits: Ints = self._per_domain(self.fits)
        self._spans = demand.cross_domain and not demand.topology_required
        self._one_by_one = not (
            self._again or demand.resources or demand.topology_required or demand.device_milli < 1000 or self._asks_all
        )
        self._models: list[int] = columns.tolist()
        self._most = self._most_ranks()
        self._domain_parts = _stack(
            [self._of_domains(score) for score, _ in self._scores.domain], len(self._table.domain_ids)
        )
        self._node_parts = _stack(
            [score.nodes(view, demand, everything) for score, _ in self._scores.node], len(self._table.nodes)
        )
        self._domain_names = tuple(score.name for score, _ in self._scores.domain)
        self._node_names = tuple(score.name for score, _ in self._scores.node)
        self._domain_weights = np.array([weight for _, weight in self._scores.domain])
        self._node_weights = np.array([weight for _, weight in self._scores.node])
        self._weights_by_domain = self._overridden(policy)
        self._everywhere = self._set_parts((0,))
        self._one: list[tuple[Callable[[View, Demand, int], float] | None, float]] = [
            (getattr(score, "node", None) if score.dynamic else None, weight) for score, weight in self._scores.node
        ]
        """Per node score: how its value of one node is asked, None where that lasts; its weight."""
        self._judges_one = (
            not self._asks_all
            and self._weights_by_domain is None
            and all(hasattr(score, "node") for score, _ in self._scores.node if score.dynamic)
        )
        # Reservations are made by how nodes were judged when there was no room.
        self._by_domain = not self._asks_all and policy.discipline in {"greedy", "strict"}
        """Whether nodes are judged when something is to be chosen in their domain, and not before."""
        self._scored_in = [len(rows) for rows in view.taken_in]
        self._whole = sum(
            weight * value for (_, weight), (_, value) in zip(self._scores.domain_set, self._everywhere, strict=True)
        )
        self._weights: list[float] = self._node_weights.tolist()
        self._node_totals: Floats = self._weighed(self._node_parts, everything, len(self._table.nodes))
        self._domain_totals = self._weigh_domains()

    def on(self, view: View) -> Self:
        """The same judgements on a copy of this view."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._view, other._limit = view, None
        other._scored_in = list(self._scored_in)
        other._rejecting = self._rejecting.on(view)
        other.fits, other.domain_fits = self.fits.copy(), self.domain_fits.copy()
        other._domain_parts, other._domain_totals = self._domain_parts.copy(), self._domain_totals.copy()
        other._node_parts, other._node_totals = self._node_parts.copy(), self._node_totals.copy()
        return other

    def refresh(self) -> None:
        """Look again at the nodes that were taken from since."""
        self._count()
        self._judge()

    def has_room(self) -> bool:
        """Whether all ranks fit now, by number alone; costs little, as no score is asked."""
        self._count()
        return self._most >= self._demand.ranks

    def roomiest(self) -> int:
        """Ranks that fit now in the domain with most room."""
        self._count()
        return int(self.domain_fits.max(initial=0))

    def _most_ranks(self) -> int:
        """Ranks that fit in the roomiest domain; in all together where they may be spread."""
        fits: list[int] = self.domain_fits.tolist()
        return sum(fits) if self._spans else max(fits, default=0)

    def _count(self) -> None:
        """Count ranks again on the nodes that were taken from since."""
        begin, end = self._seen, len(self._view.taken)
        if begin == end:
            return
        self._seen = end
        few = self._touched(begin)
        if self._one_by_one and len(few) <= _FEW:
            changed, fits = False, self.fits
            for row in few:
                fit = self._fit_of(row)
                before = fits.item(row)
                if fit != before:
                    fits[row] = fit
                    self.domain_fits[self._table.node_domain.item(row)] += fit - before
                    changed = True
                    self._lost += (fit == 0) - (before == 0)
            if changed:
                self._most = self._most_ranks()
            return
        rows = self._touched_rows(begin)
        fits = self._view.ranks_that_fit(self._demand, self._columns, rows)
        if not self._all_allowed:
            fits[~self._allowed[rows]] = 0
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
        if self._groups is None or not self._demand.topology_required:
            np.add.at(self.domain_fits, self._table.node_domain[changed_rows], more)
        else:
            self.domain_fits = self._per_domain(self.fits)
        self._most = self._most_ranks()

    def _touched(self, begin: int) -> set[int]:
        """The nodes that were touched since ``taken`` was as long as ``begin``."""
        end = len(self._view.taken)
        if self._window[:2] != (begin, end):
            self._window, self._window_rows = (begin, end, set(self._view.taken[begin:])), None
        return self._window[2]

    def _touched_rows(self, begin: int) -> Ints:
        """Nodes to look at again, in order, when those were touched."""
        if self._asks_all:
            return np.arange(len(self._table.nodes))
        touched = self._touched(begin)
        if self._window_rows is None:
            self._window_rows = np.array(sorted(touched), dtype=np.int64)
        return self._window_rows

    def _fit_of(self, row: int) -> int:
        """As `fitting.fits`, for one node and whole devices."""
        if not self._allowed[row]:
            return 0
        demand, view = self._demand, self._view
        fit = 1 if demand.service_port else UNBOUNDED
        if demand.accelerators > 0:
            free, each = view.free_devices, demand.accelerators
            ranks = 0
            for column in self._models:
                ranks += free.item(row, column) // each
            fit = min(fit, ranks)
        if fit > 0 and demand.cpus > 0:
            fit = int(min(fit, (view.free_cpus.item(row) + SLACK) // max(demand.cpus, SLACK)))
        if fit > 0 and demand.memory_bytes > 0:
            fit = min(fit, view.free_memory_bytes.item(row) // demand.memory_bytes)
        return max(fit, 0)

    def _judge(self) -> None:
        """Ask the scores again about what was touched since they were asked."""
        taken = self._view.taken
        if self._facts != self._view.facts_version:
            self._facts = self._view.facts_version
            for index, (domain_score, _) in enumerate(self._scores.domain):
                self._domain_parts[index] = self._of_domains(domain_score)
            self._domain_totals = self._weigh_domains()
        if self._scored == len(taken):
            return
        begin, self._scored = self._scored, len(taken)
        if self._asks_all:
            self._judge_nodes(np.arange(len(self._table.nodes)))
        elif not self._by_domain:
            self._judge_touched(self._touched(begin))
        for index, (domain_score, _) in enumerate(self._scores.domain):
            if domain_score.dynamic:
                self._domain_parts[index] = self._of_domains(domain_score)
        self._domain_totals = self._weigh_domains()

    def _judge_in(self, domain: int) -> None:
        """The same about the nodes of a domain, where they are judged by domain."""
        if not self._by_domain:
            return
        touched = self._view.taken_in[domain]
        begin, self._scored_in[domain] = self._scored_in[domain], len(touched)
        if begin < len(touched):
            self._judge_touched(set(touched[begin:]))

    def _judge_touched(self, rows: Set[int]) -> None:
        if self._judges_one and len(rows) <= _FEW:
            for row in rows:
                self._judge_node(row)
        else:
            self._judge_nodes(np.array(sorted(rows), dtype=np.int64))

    def _judge_nodes(self, rows: Ints) -> None:
        values: list[Floats] = []
        for part, (score, _) in zip(self._node_parts, self._scores.node, strict=True):
            if score.dynamic:
                part[rows] = value = score.nodes(self._view, self._demand, rows)
            else:
                value = part[rows]
            values.append(value)
        self._node_totals[rows] = self._weighed(values, rows, len(rows))

    def _judge_node(self, row: int) -> None:
        parts = self._node_parts
        total = 0.0
        for index, (ask, weight) in enumerate(self._one):
            if ask is None:
                value = parts.item(index, row)
            else:
                parts[index, row] = value = ask(self._view, self._demand, row)
            total += weight * value
        self._node_totals[row] = total

    def _of_domains(self, score: DomainScore) -> Floats:
        """Value per domain; of the models of this alternative, where the score tells them apart."""
        of_models = getattr(score, "domains_of", None)
        if of_models is None:
            return score.domains(self._view, self._demand)
        values: Floats = of_models(self._view, self._demand, self._columns)
        return values

    def _weigh_domains(self) -> Floats:
        totals: Floats = self._domain_weights @ self._domain_parts
        return totals + self._whole

    def _weighed(self, parts: Sequence[Floats] | Floats, rows: Any, size: int) -> Floats:
        """What the values of ``size`` nodes (one array per score) come to."""
        if self._weights_by_domain is not None:
            totals: Floats = (self._weights_by_domain[:, self._table.node_domain[rows]] * np.array(parts)).sum(axis=0)
            return totals
        # One after the other: a product of matrices gives sums that depend on which other nodes stand beside.
        totals = np.zeros(size)
        for weight, part in zip(self._weights, parts, strict=True):
            totals += weight * part
        return totals

    def _overridden(self, policy: Policy) -> Floats | None:
        """Weights of node scores (plugins, domains) where domains have their own; None where none has."""
        own = dict(policy.domain_node_scores)
        if not own or not own.keys() & set(self._table.domain_ids):
            return None
        weights = np.repeat(self._node_weights[:, None], len(self._table.domain_ids), axis=1)
        for place, name in enumerate(self._table.domain_ids):
            if name in own:
                weights[:, place] = [dict(own[name]).get(plugin, 0.0) for plugin in self._node_names]
        return weights

    def _per_domain(self, values: Ints) -> Ints:
        """Ranks that fit per domain: of all nodes, or of the best group where the ranks must share one."""
        if self._groups is not None and self._demand.topology_required:
            out = np.zeros(len(self._table.domain_ids), dtype=np.int64)
            grouped = self._groups >= 0
            if grouped.any():
                sums = np.bincount(self._groups[grouped], weights=values[grouped]).astype(np.int64)
                np.maximum.at(out, self._table.node_domain[grouped], sums[self._groups[grouped]])
            return out
        sums = np.bincount(self._table.node_domain, weights=values, minlength=len(self._table.domain_ids))
        return sums.astype(np.int64)

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """What each filter rejects of what those before it have left, as it is now."""
        self._count()
        taken = self._view.taken
        if self._rejected_at != len(taken):
            begin, self._rejected_at = self._rejected_at, len(taken)
            if self._rejects_full:
                self._rejecting.count_full(self._touched(begin), self._lost, self.fits)
                self._lost = 0
            else:
                self._rejecting.look_again(self._touched_rows(begin))
        return self._rejecting.said()

    @property
    def demand(self) -> Demand:
        """What is asked for."""
        return self._demand

    @property
    def columns(self) -> Ints:
        """Device models that may be used."""
        return self._columns

    @property
    def allowed(self) -> Bools:
        """Nodes that qualify, whatever is free on them."""
        return self._allowed

    @property
    def local(self) -> bool:
        """Whether what fits on a node depends on that node alone, and where there is room by number there is room."""
        return self._one_by_one and not (self._spans and self._scores.domain_set)

    def _set_parts(self, domains: tuple[int, ...]) -> tuple[tuple[str, float], ...]:
        return tuple(
            [
                (score.name, float(score.domain_set(self._view, self._demand, domains)))
                for score, _ in self._scores.domain_set
            ]
        )
