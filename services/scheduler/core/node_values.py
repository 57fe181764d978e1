"""How good nodes are for one class of units: what the node scores say, asked once, then again where capacity was taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any, Self

import numpy as np

from services.scheduler.core.plugins import plugins_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Floats, Ints
from services.scheduler.core.view import View

_FEW = 6
"""Up to so many touched nodes are judged again one by one, which is quicker than arrays are."""


class NodeValues:
    """See the module. ``parts`` (one array of N per score) are the values of the scores ``names``, ``totals`` (N) what they come to by
    ``weights``; ``weights_by_domain`` (scores, D) stand in for those where domains have their own, else None."""

    def __init__(self, view: View, demand: Demand, policy: Policy) -> None:
        scores = plugins_of(policy).scores.node
        self._view, self._table, self._demand, self._scores = view, view.table, demand, scores
        self.names = tuple(score.name for score, _ in scores)
        self.weights = np.array([weight for _, weight in scores])
        self.weights_by_domain = self._overridden(policy)
        self._one: list[tuple[Callable[[View, Demand, int], float] | None, float]] = [
            (getattr(score, "node", None) if score.dynamic else None, weight) for score, weight in scores
        ]
        """Per score: how its value of one node is asked, None where that lasts; its weight."""
        self._judges_one = (
            not any(getattr(score, "everywhere", False) for score, _ in scores)
            and self.weights_by_domain is None
            and all(hasattr(score, "node") for score, _ in scores if score.dynamic)
        )
        self._seen_in = [len(rows) for rows in view.taken_in]
        everything, size = slice(None), len(self._table.nodes)
        self.parts = [np.array(score.nodes(view, demand, everything), dtype=np.float64) for score, _ in scores]
        self.totals: Floats = self._weighed(self.parts, everything, size)
        self._shares = False
        """Whether a copy has the same arrays."""

    def on(self, view: View) -> Self:
        """The same on a copy of this view."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._view, other._seen_in = view, list(self._seen_in)
        self._shares = other._shares = True
        return other

    def parts_of(self, rows: slice) -> list[Floats]:
        """Values of nodes as they are now; those that last are not copied."""
        return [
            part[rows].copy() if score.dynamic else part[rows]
            for part, (score, _) in zip(self.parts, self._scores, strict=True)
        ]

    def judge_in(self, domain: int) -> None:
        """Ask again about the nodes of a domain that were touched since that was done last."""
        touched = self._view.taken_in[domain]
        begin, self._seen_in[domain] = self._seen_in[domain], len(touched)
        if begin < len(touched):
            self.judge(set(touched[begin:]))

    def judge(self, rows: Set[int]) -> None:
        """Ask again about these nodes."""
        self._own()
        if self._judges_one and len(rows) <= _FEW:
            for row in rows:
                self._judge_node(row)
        else:
            self.judge_rows(np.array(sorted(rows), dtype=np.int64))

    def judge_rows(self, rows: Ints) -> None:
        """The same of nodes in order."""
        self._own()
        values: list[Floats] = []
        for part, (score, _) in zip(self.parts, self._scores, strict=True):
            if score.dynamic:
                part[rows] = value = score.nodes(self._view, self._demand, rows)
            else:
                value = part[rows]
            values.append(value)
        self.totals[rows] = self._weighed(values, rows, len(rows))

    def _own(self) -> None:
        """Before a change: what is shared with a copy is copied."""
        if self._shares:
            self.parts, self.totals, self._shares = self.parts_of(slice(None)), self.totals.copy(), False

    def _judge_node(self, row: int) -> None:
        parts = self.parts
        total = 0.0
        for index, (ask, weight) in enumerate(self._one):
            if ask is None:
                value = parts[index].item(row)
            else:
                parts[index][row] = value = ask(self._view, self._demand, row)
            total += weight * value
        self.totals[row] = total

    def _weighed(self, parts: Sequence[Floats], rows: Any, size: int) -> Floats:
        """What the values of ``size`` nodes (one array per score) come to."""
        if self.weights_by_domain is not None:
            totals: Floats = (self.weights_by_domain[:, self._table.node_domain[rows]] * np.array(parts)).sum(axis=0)
            return totals
        # One after the other: a product of matrices gives sums that depend on which other nodes stand beside.
        totals = np.zeros(size)
        for (_, weight), part in zip(self._one, parts, strict=True):
            totals += weight * part
        return totals

    def _overridden(self, policy: Policy) -> Floats | None:
        """Weights of node scores (scores, D) where domains have their own; None where none has."""
        own = dict(policy.domain_node_scores)
        if not own or not own.keys() & set(self._table.domain_ids):
            return None
        weights = np.repeat(self.weights[:, None], len(self._table.domain_ids), axis=1)
        for place, name in enumerate(self._table.domain_ids):
            if name in own:
                weights[:, place] = [dict(own[name]).get(plugin, 0.0) for plugin in self.names]
        return weights
