"""Judging the places of one class of units: asked once, then kept up to date where capacity was taken.

Filters say which nodes may take a rank, `ranks_that_fit` counts ranks per node (counting.py); scores say how good nodes
(node_values.py) and domains are.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from services.scheduler.core.counting import Counts, Shared, asks_all, counts_of
from services.scheduler.core.explaining.explanation import Rejection
from services.scheduler.core.node_values import NodeValues
from services.scheduler.core.plugins import plugins_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.scores import DomainScore
from services.scheduler.core.scoring.preference import device_preference
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Bools, Floats, Ints
from services.scheduler.core.view import View


def stacked(values: list[Floats], size: int) -> Floats:
    """Rows as a matrix, also when there are none."""
    return np.array(values) if values else np.zeros((0, size))


class Judging:
    """What fits on which nodes for one class of units, and how good nodes and domains are for it. ``columns`` are the device
    models that it may use; ``shared`` are the counts of other classes on this view."""

    def __init__(self, view: View, demand: Demand, columns: Ints, policy: Policy, shared: Shared | None = None) -> None:
        self._view, self._table = view, view.table
        self._demand, self._policy = demand, policy
        self._version = policy.version
        plugins = plugins_of(policy)
        self._scores = plugins.scores
        self._chooses_devices = device_preference(plugins.scores.node)
        self._limit: Ints | None = None
        self._asks_all = asks_all(plugins, demand)
        self._scored = len(view.taken)
        self._facts = view.facts_version
        self._some_sleep = bool(view.table.asleep.any())
        self._counts = counts = counts_of(view, demand, columns, policy, {} if shared is None else shared)
        # A reservation chooses among the nodes of all domains, as they are judged then: each demand has values of its own.
        self._values = counts.values if counts.values is not None else NodeValues(view, demand, policy)
        self._domain_parts = stacked(
            [self._of_domains(score) for score, _ in self._scores.domain], len(self._table.domain_ids)
        )
        self._dynamic = [(index, score) for index, (score, _) in enumerate(self._scores.domain) if score.dynamic]
        self._domain_names = tuple(score.name for score, _ in self._scores.domain)
        self._domain_weights = np.array([weight for _, weight in self._scores.domain])
        self._everywhere = self._set_parts((0,))
        self._whole = sum(
            weight * value for (_, weight), (_, value) in zip(self._scores.domain_set, self._everywhere, strict=True)
        )
        self._domain_totals = self._weigh_domains()

    def on(self, view: View, copies: dict[Counts, Counts] | None = None) -> Self:
        """The same judgements on a copy of this view; ``copies`` are the counts of other classes that are on it already."""
        counts = None if copies is None else copies.get(self._counts)
        if counts is None:
            counts = self._counts.on(view)
        if copies is not None:
            copies[self._counts] = counts
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._view, other._limit, other._counts = view, None, counts
        other._values = counts.values if counts.values is not None else self._values.on(view)
        other._domain_parts, other._domain_totals = self._domain_parts.copy(), self._domain_totals.copy()
        return other

    def refresh(self) -> None:
        """Look again at the nodes that were taken from since."""
        self._counts.count()
        self._judge()

    def has_room(self) -> bool:
        """Whether all ranks fit now, by number alone; costs little, as no score is asked."""
        counts = self._counts
        counts.count()
        return counts.most >= self._demand.ranks

    def roomiest(self) -> int:
        """Ranks that fit now in the domain with most room."""
        self._counts.count()
        return int(self.domain_fits.max(initial=0))

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
            self._values.judge_rows(np.arange(len(self._table.nodes)))
        elif self._counts.values is None:
            self._values.judge(self._counts.touched(begin))
        for index, domain_score in self._dynamic:
            self._domain_parts[index] = self._of_domains(domain_score)
        self._domain_totals = self._weigh_domains()

    def _judge_in(self, domain: int) -> None:
        """The same about the nodes of a domain, where they are judged by domain."""
        if self._counts.values is not None:
            self._counts.values.judge_in(domain)

    def _of_domains(self, score: DomainScore) -> Floats:
        """Value per domain; of the models of this alternative, where the score tells them apart."""
        of_models = getattr(score, "domains_of", None)
        if of_models is None:
            return score.domains(self._view, self._demand)
        values: Floats = of_models(self._view, self._demand, self.columns)
        return values

    def _weigh_domains(self) -> Floats:
        totals: Floats = self._domain_weights @ self._domain_parts
        return totals + self._whole

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """What each filter rejects of what those before it have left, as it is now."""
        return self._counts.rejections

    @property
    def demand(self) -> Demand:
        """What is asked for."""
        return self._demand

    @property
    def columns(self) -> Ints:
        """Device models that may be used."""
        return self._counts.columns

    @property
    def allowed(self) -> Bools:
        """Nodes that qualify, whatever is free on them."""
        return self._counts.allowed

    @property
    def fits(self) -> Ints:
        """Ranks that fit per node (N), as counted last."""
        return self._counts.fits

    @property
    def domain_fits(self) -> Ints:
        """Ranks that fit per domain (D), as counted last."""
        return self._counts.domain_fits

    @property
    def local(self) -> bool:
        """Whether what fits on a node depends on that node alone, and where there is room by number there is room."""
        return self._counts.one_by_one and not (self._counts.spans and self._scores.domain_set)

    def _set_parts(self, domains: tuple[int, ...]) -> tuple[tuple[str, float], ...]:
        return tuple(
            [
                (score.name, float(score.domain_set(self._view, self._demand, domains)))
                for score, _ in self._scores.domain_set
            ]
        )
