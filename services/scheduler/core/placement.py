"""Placing one class of equal units: judged once in a cycle, then kept up to date where capacity was taken.

Steps (two levels, as a domain decides for itself how its nodes look, and the network which domain fits):
1. Filters give the nodes that may take a rank; the first filter that rejects a node is the one named for it.
2. `ranks_that_fit` counts the ranks per node; domains with room for all ranks are the candidates.
3. Domain scores choose the domain. Without one, and only if the job allows it, the fewest domains that hold all ranks,
   then the best by mean domain score and set scores (round-trip time inside the job).
4. Node scores choose nodes in it: the best one that holds all remaining ranks, else the one that holds most, and again.
All ranks or none: nothing is taken before every rank has its node.

Steps 1 and 2, and what scores say, stand in judging.py, 3 and 4 in choosing.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from services.scheduler.core.choosing import Choice, Choosing
from services.scheduler.core.explaining.explanation import Candidate, Explanation, NodeChoice, Ranking
from services.scheduler.core.state import Demand, PlacedRank
from services.scheduler.core.table import SLACK, Bools, Ints, Table


class Candidates(Choosing):
    """The places of one class of units: judged, chosen, taken and explained."""

    def take(self, choice: Choice) -> tuple[PlacedRank, ...]:
        """Give the ranks of a choice their nodes and devices."""
        ranks: list[PlacedRank] = []
        for row, count in choice.rows:
            node = self._table.nodes[row]
            for local_rank in range(count):
                devices = self._view.take(row, self._demand, self.columns, self._preferred(row))
                milli = self._demand.device_milli if devices else 1000
                ranks.append(PlacedRank(len(ranks), node.domain_id, node.node_id, local_rank, devices, milli))
        return tuple(ranks)

    def _preferred(self, row: int) -> tuple[int, ...]:
        if self._chooses_devices is None:
            return ()
        return self._chooses_devices.devices(self._view, self._demand, self.columns, row)

    # -- explaining --------------------------------------------------------------------------------------------------

    def _fits_now(self) -> Ints:
        """Ranks per node that the last choice was made from."""
        return self.fits if self._limit is None else np.minimum(self.fits, self._limit)

    def domain_ranking(self) -> Ranking:
        """The domains as they are now, with what the last choice was made from."""
        self._counts.count()
        return self._domain_ranking(
            self.domain_fits if self._limit is None else self._counts.per_domain(self._fits_now())
        )

    def _domain_ranking(self, domain_fits: Ints) -> Ranking:
        self._judge()
        return Ranking(
            self._table.domain_ids,
            self._domain_names,
            self._domain_parts.copy(),
            self._domain_totals,
            domain_fits.copy(),
            self._demand.ranks,
        )

    def explain(self, choice: Choice) -> Explanation:
        """Why this choice; to be asked before it is taken."""
        fits = self._fits_now()
        place = "+".join([self._table.domain_ids[domain] for domain in choice.domains])
        return self._explanation(
            self.domain_ranking(),
            nodes=tuple([self._node_choice(domain, choice, fits) for domain in choice.domains]),
            chosen=place,
            score=choice.score,
            sets=self._compared(choice) if len(choice.domains) > 1 else (),
        )

    def _node_choice(self, domain: int, choice: Choice, all_fits: Ints) -> NodeChoice:
        self._judge_in(domain)
        values, groups = self._values, self._counts.groups
        part = self._table.domain_slice[domain]
        chosen = tuple([(row - part.start, count) for row, count in choice.rows if part.start <= row < part.stop])
        ranks = sum(count for _, count in chosen)
        fits, totals = all_fits[part], values.totals[part].copy()
        if groups is not None and ranks > 1:
            fits = self._one_group(fits, totals, groups[part], ranks)
        ranking = Ranking(
            self._table.domain_nodes[domain], values.names, values.parts_of(part), totals, fits.copy(), ranks
        )
        own = values.weights_by_domain
        return NodeChoice(
            self._table.domain_ids[domain], ranking, chosen, values.weights if own is None else own[:, domain]
        )

    def _compared(self, choice: Choice) -> tuple[Candidate, ...]:
        """The sets of domains that were compared, the chosen one first."""
        domain_fits = self._counts.per_domain(self._fits_now())
        sets = {frozenset(item): item for item in reversed(self._sets(domain_fits))}
        sets.pop(frozenset(choice.domains), None)
        rest = sorted(sets.values(), key=lambda item: (len(item), -self._set_score(item)))
        return tuple(
            [self._set(item, domain_fits) for item in (choice.domains, *rest)[: self._policy.shown_candidates]]
        )

    def _set(self, domains: tuple[int, ...], domain_fits: Ints) -> Candidate:
        members = list(domains)
        means = self._domain_parts[:, members].mean(axis=1).tolist()
        parts = tuple(zip(self._domain_names, means, strict=True)) + self._set_parts(domains)
        place = "+".join([self._table.domain_ids[domain] for domain in domains])
        return Candidate(place, self._set_score(domains), int(domain_fits[members].sum()), parts)

    def explain_waiting(self) -> Explanation:
        """Why there is no place now, and whether there could ever be one."""
        self.refresh()
        stage, text = self._blocked()
        return self._explanation(self._domain_ranking(self.domain_fits), blocked=text, found=text, found_stage=stage)

    def _explanation(self, domains: Ranking, **more: Any) -> Explanation:
        return Explanation(
            self._version,
            len(self._table.nodes),
            self.rejections,
            self._policy.scores,
            domains,
            shown=self._policy.shown_candidates,
            everywhere=self._everywhere,
            **more,
        )

    def _blocked(self) -> tuple[str, str]:
        """Which of `explanation.STAGES` holds it back, and how."""
        demand, table = self._demand, self._table
        if not table.nodes:
            return "fleet", "no node is known yet"
        if not self.allowed.any():
            return "filters", f"no node qualifies: {self._counted()}"
        most = self.most_ranks()
        if most < demand.ranks:
            scope = "all qualifying domains together" if self._counts.spans else "any qualifying domain"
            if demand.topology_required:
                scope = f"any {demand.topology} of a qualifying domain"
            text = f"too large for what is there now: {demand.ranks} ranks wanted, {scope} could hold {most} when empty"
            if len(self.columns) < len(self._view.columns(demand)):
                text += f", on {self._models_said()} alone (all its accelerators are of one model)"
            return "size", text if most else f"{text}; {beyond(table, demand, self.columns, self.allowed)}"
        if self._refused():
            text = "those that have room together are refused by a score of sets"
            return "scores", f"no domain has room for {demand.ranks} ranks now, and {text}"
        best = int(self.domain_fits.argmax())
        free = int(self.domain_fits[best])
        if self._limit is not None and self.choose_of(self.fits, self.domain_fits) is not None:
            left = int(self._counts.per_domain(self._fits_now()).max(initial=0))
            text = (
                f"{demand.ranks} ranks wanted, {free} would fit in {table.domain_ids[best]}, {left} beside reservations"
            )
            return "reservation", f"what is free is reserved for others: {text}"
        where = f"most in {table.domain_ids[best]} ({free})" if free else "none anywhere"
        if len(self.columns) < len(self._view.columns(demand)):
            where += f" of {self._models_said()}"
        # Something else than room holds it back: a limit, or who is before it.
        spans = demand.cross_domain and not demand.topology_required and int(self.domain_fits.sum()) >= demand.ranks
        said = "there is room" if free >= demand.ranks or spans else "waiting for capacity"
        return "capacity", f"{said}: {demand.ranks} ranks wanted, free now: {where}; {self._counted()}"

    def _models_said(self) -> str:
        return ", ".join(sorted({self._table.models[column].model for column in self.columns.tolist()}))

    def _refused(self) -> bool:
        """Whether domains have room together, and may be spanned but for the scores of sets."""
        demand = self._demand
        together = demand.cross_domain and not demand.topology_required
        return together and int(self.domain_fits.sum()) >= demand.ranks and self.choose_of(self.fits) is None

    def _counted(self) -> str:
        counts = ", ".join(f"{item.rejected} by {item.filter}" for item in self.rejections if item.rejected)
        return f"of {len(self._table.nodes)} nodes rejected: {counts or 'none'}"


def best(alternatives: Sequence[Candidates]) -> tuple[Candidates, Choice] | None:
    """The best choice among alternatives: fewest domains, then the best score."""
    if len(alternatives) == 1:
        choice = alternatives[0].choose()
        return (alternatives[0], choice) if choice is not None else None
    found = [(candidates, choice) for candidates in alternatives if (choice := candidates.choose()) is not None]
    return max(found, key=lambda pair: (-len(pair[1].domains), pair[1].score), default=None)


def would_do(alternatives: Sequence[Candidates]) -> Candidates:
    """The alternative whose wait is worth explaining: one that would do if nothing ran, and of these the one with most room now; if
    there is none, the one that would hold most. The first of equals."""

    def worth(item: Candidates) -> tuple[int, int]:
        return min(item.most_ranks(), item.demand.ranks), item.roomiest()

    return max(alternatives, key=worth)


def beyond(table: Table, demand: Demand, columns: Ints, rows: Bools) -> str:
    """What a rank asks for that none of some nodes (N) has, even empty, and the most that one of them has."""
    asked: list[tuple[str, float, float]] = [
        ("cpus", demand.cpus, float(table.cpus[rows].max(initial=0.0))),
        ("bytes of memory", demand.memory_bytes, int(table.memory_bytes[rows].max(initial=0))),
        ("accelerators of one model", demand.accelerators, int(table.devices[rows][:, columns].max(initial=0))),
    ]
    for name, amount in demand.resources:
        known = name in table.resource_names
        most = float(table.resources[rows, table.resource_names.index(name)].max(initial=0.0)) if known else 0.0
        asked.append((name, amount, most))
    lacking = [
        f"a rank asks for {_amount(amount)} {name}, the most that a qualifying node has is {_amount(most)}"
        for name, amount, most in asked
        if amount > most + SLACK
    ]
    return "; ".join(lacking) or "no qualifying node has all that a rank asks for together"


def _amount(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"
