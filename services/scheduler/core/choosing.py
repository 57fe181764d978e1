"""Choosing where the ranks of a unit go: one domain, or the fewest that hold them; then nodes, those that hold most first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.scheduler.core.judging import Judging
from services.scheduler.core.table import Floats, Ints

_STARTS = 8
"""Domains from which the search for a set of domains begins."""
_FEW = 16
"""So many nodes are chosen one by one sooner than by sorting."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a unit's ranks go: (node row, number of ranks) in rank order, by domain."""

    domains: tuple[int, ...]
    rows: tuple[tuple[int, int], ...]
    score: float


class Choosing(Judging):
    """Chooses domains, then nodes in them, by how they were judged."""

    def choose(self, limit: Ints | None = None) -> Choice | None:
        """The best place for one unit now; None when it does not fit. ``limit`` (N) are the ranks that each node may take
        at most (what reservations leave). Nodes that the fleet says are asleep are taken only when the others do not suffice."""
        self._limit = limit
        if not self.has_room():
            return None
        self._judge()
        fits = self.fits if limit is None else np.minimum(self.fits, limit)
        asleep = self._view.to_be_woken() if self._some_sleep else None
        if asleep is not None:
            awake = np.where(asleep, 0, fits)
            found = self.choose_of(awake, self._counts.per_domain(awake))
            if found is not None:
                self._limit = awake
                return found
        return self.choose_of(fits, self.domain_fits if limit is None else self._counts.per_domain(fits))

    def choose_of(self, fits: Ints, domain_fits: Ints | None = None) -> Choice | None:
        """The best place when ``fits`` (N) ranks fit on the nodes."""
        ranks = self._demand.ranks
        if domain_fits is None:
            domain_fits = self._counts.per_domain(fits)
        feasible = (domain_fits >= ranks).nonzero()[0]
        if len(feasible):
            # Among these alone: whatever a score says, nothing goes where it does not fit.
            domain: int = feasible.item(self._domain_totals[feasible].argmax())
            return Choice((domain,), tuple(self._nodes(domain, ranks, fits)), float(self._domain_totals[domain]))
        if self._demand.cross_domain and not self._demand.topology_required and int(domain_fits.sum()) >= ranks:
            return self._span(fits, domain_fits)
        return None

    def most_ranks(self) -> int:
        """How many ranks would fit if nothing ran: in one domain, or in all when it may span them."""
        per_domain = self._counts.could_hold()
        return int(per_domain.sum()) if self._counts.spans else int(per_domain.max(initial=0))

    def could_fit(self) -> bool:
        """Whether it would fit if nothing ran."""
        return self.most_ranks() >= self._demand.ranks

    def _nodes(self, domain: int, ranks: int, all_fits: Ints) -> list[tuple[int, int]]:
        self._judge_in(domain)
        groups = self._counts.groups
        part = self._table.domain_slice[domain]
        fits, totals = all_fits[part], self._values.totals[part]
        if groups is not None and ranks > 1:
            fits = self._one_group(fits, totals, groups[part], ranks)
        chosen = []
        while ranks:
            enough = (fits >= ranks).nonzero()[0]
            if len(enough):
                row: int = enough.item(totals[enough].argmax())
                chosen.append((part.start + row, ranks))
                break
            count = int(fits.max())
            most = np.flatnonzero(fits == count)
            # Until a node holds all that is left; one by one where they are few, all at once where they are many.
            taken = min(-(-ranks // count) - 1, len(most))
            if taken > _FEW:
                rows = most[np.argsort(-totals[most], kind="stable")[:taken]]
            else:
                rows = most[totals[most].argmax()][None]
            chosen += [(part.start + row, count) for row in rows.tolist()]
            fits = fits.copy()
            fits[rows] = 0
            ranks -= count * len(rows)
        return chosen

    def _one_group(self, fits: Ints, totals: Floats, groups: Ints, ranks: int) -> Ints:
        """The fits of the tightest group of nodes that holds all ranks (then the best by mean score); all fits when no
        group does."""
        grouped = groups >= 0
        if not grouped.any():
            return fits
        sums = np.bincount(groups[grouped], weights=fits[grouped]).astype(np.int64)
        room = np.flatnonzero(sums >= ranks)
        if not len(room):
            return fits
        tightest = room[sums[room] == sums[room].min()]
        means = [float(totals[groups == group].mean()) for group in tightest]
        best = int(tightest[int(np.argmax(means))])
        return np.where(groups == best, fits, 0)

    def _span(self, fits: Ints, domain_fits: Ints) -> Choice | None:
        """The best set of domains; None when set scores refuse all (-inf)."""
        sets = self._sets(domain_fits)
        if not sets:
            return None
        best = max(sets, key=lambda domains: (-len(domains), self._set_score(domains)))
        rows: list[tuple[int, int]] = []
        left = self._demand.ranks
        for domain in best:
            here = min(left, int(domain_fits[domain]))
            rows.extend(self._nodes(domain, here, fits))
            left -= here
        return Choice(best, tuple(rows), self._set_score(best))

    def _sets(self, domain_fits: Ints) -> list[tuple[int, ...]]:
        """Sets of domains that hold all ranks and that no set score refuses (-inf)."""
        with_room = [int(domain) for domain in np.argsort(-self._domain_totals, kind="stable") if domain_fits[domain]]
        sets = [self._grow(start, with_room, domain_fits) for start in with_room[:_STARTS]]
        return [domains for domains in sets if self._set_score(domains) > -np.inf]

    def _grow(self, start: int, with_room: Sequence[int], domain_fits: Ints) -> tuple[int, ...]:
        """Add to a domain the best next one until all ranks fit: one that completes the set before one that does not."""
        domains: tuple[int, ...] = (start,)
        room = int(domain_fits[start])
        while room < self._demand.ranks:
            wanted = self._demand.ranks - room

            def worth(domain: int, domains: tuple[int, ...] = domains, wanted: int = wanted) -> tuple[bool, int, float]:
                score = self._set_score((*domains, domain))
                return score > -np.inf, min(int(domain_fits[domain]), wanted), score

            following = max((domain for domain in with_room if domain not in domains), key=worth)
            domains = (*domains, following)
            room += int(domain_fits[following])
        return domains

    def _set_score(self, domains: tuple[int, ...]) -> float:
        mean = float(self._domain_totals[list(domains)].mean()) - self._whole
        return mean + sum(
            weight * score.domain_set(self._view, self._demand, domains)
            for score, weight in self._scores.domain_set
            if weight > 0
        )
