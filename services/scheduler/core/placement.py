"""Placing one class of equal units: judged once in a cycle, then kept up to date where capacity was taken.

Steps (two levels, as a domain decides for itself how its nodes look, and the network which domain fits):
1. Filters give the nodes that may take a rank; the first filter that rejects a node is the one named for it.
2. `ranks_that_fit` counts the ranks per node; domains with room for all ranks are the candidates.
3. Domain scores choose the domain. Without one, and only if the job allows it, the fewest domains that hold all ranks,
   then the best by mean domain score and set scores (round-trip time inside the job).
4. Node scores choose nodes in it: the best one that holds all remaining ranks, else the one that holds most, and again.
All ranks or none: nothing is taken before every rank has its node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Any

import numpy as np

from services.scheduler.core.explanation import Candidate, Explanation, NodeChoice, Ranking, Rejection
from services.scheduler.core.filters import Filter, filters
from services.scheduler.core.options import configured
from services.scheduler.core.policy import Policy, check_numbers
from services.scheduler.core.queue import Order, orders
from services.scheduler.core.scores import DomainScore, Weighted, weighted
from services.scheduler.core.scoring.preference import device_preference
from services.scheduler.core.state import Demand, PlacedRank
from services.scheduler.core.table import SLACK, UNBOUNDED, Bools, Floats, Ints, View

_STARTS = 8
"""Domains from which the search for a set of domains begins."""
_FEW = 6
"""Up to so many touched nodes are counted again one by one, which is quicker than arrays are."""
_MOST_UNSCORED = 512
"""Touched nodes for which scores may be put off."""


@dataclass(frozen=True, slots=True)
class Plugins:
    """The plugins that a policy names."""

    filters: tuple[Filter, ...]
    scores: Weighted
    order: tuple[Order, ...]
    per_tenant: bool = False
    """Whether a domain score depends on the unit's tenant."""


@lru_cache(maxsize=256)
def plugins_of(policy: Policy) -> Plugins:
    """Resolve a policy's names; PolicyError when one does not exist."""
    # Registers the built-in plugins; some of them import what imports this module.
    from services.scheduler.core import builtin  # noqa: F401

    check_numbers(policy)
    scores = weighted(policy.scores, policy.options_of)
    return Plugins(
        tuple(configured(item, policy.options_of(item.name)) for item in filters(policy.filters)),
        scores,
        tuple(configured(item, policy.options_of(item.name)) for item in orders(policy.order)),
        any(getattr(score, "per_tenant", False) for score, _ in scores.domain),
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a unit's ranks go: (node row, number of ranks) in rank order, by domain."""

    domains: tuple[int, ...]
    rows: tuple[tuple[int, int], ...]
    score: float


def applies(item: Filter, demand: Demand) -> bool:
    """Whether a filter has anything to say about a demand; a plugin without ``applies`` always has."""
    says = getattr(item, "applies", None)
    return says is None or bool(says(demand))


def _stack(values: list[Floats], size: int) -> Floats:
    """Rows as a matrix, also when there are none."""
    return np.array(values) if values else np.zeros((0, size))


class Candidates:
    """The places of one class of units. ``columns`` are the device models it may use."""

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
        self._facts = view.facts_version
        self._some_sleep = bool(view.table.asleep.any())
        self._could_hold: Ints | None = None
        self._groups = self._table.levels.get(demand.topology) if demand.topology else None
        if demand.topology_required and self._groups is None:
            self._groups = np.full(len(self._table.nodes), -1, dtype=np.int64)
        everything = slice(None)
        lasting = tuple(takewhile(lambda item: not item.dynamic, plugins.filters))
        everywhere = np.ones(len(self._table.nodes), dtype=np.bool_)
        static, self._lasting_rejections = self._filtered(lasting, everywhere)
        self._lasting, self._other_filters = static, plugins.filters[len(lasting) :]
        mask, self._rejections = self._filtered(self._other_filters, static)
        self._rejected_at = len(view.taken)
        for item in self._other_filters:
            if not item.dynamic and applies(item, demand):
                static = static & item.passes(view, demand, everything)
        self._allowed = static
        self.fits: Ints = np.where(mask, view.ranks_that_fit(demand, columns), 0)
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
        self._whole = sum(
            weight * value for (_, weight), (_, value) in zip(self._scores.domain_set, self._everywhere, strict=True)
        )
        self._node_totals: Floats = self._weigh_nodes(everything)
        self._domain_totals = self._weigh_domains()

    def on(self, view: View) -> Candidates:
        """The same judgements on a copy of this view."""
        other = object.__new__(Candidates)
        other.__dict__.update(self.__dict__)
        other._view, other._limit = view, None
        other.fits, other.domain_fits = self.fits.copy(), self.domain_fits.copy()
        other._domain_parts, other._domain_totals = self._domain_parts.copy(), self._domain_totals.copy()
        other._node_parts, other._node_totals = self._node_parts.copy(), self._node_totals.copy()
        return other

    # -- judging -----------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Look again at the nodes that were taken from since."""
        self._count()
        self._judge()

    def has_room(self) -> bool:
        """Whether all ranks fit now, by number alone; costs little, as no score is asked."""
        self._count()
        return self._most >= self._demand.ranks

    def _most_ranks(self) -> int:
        """Ranks that fit in the roomiest domain; in all together where they may be spread."""
        fits: list[int] = self.domain_fits.tolist()
        return sum(fits) if self._spans else max(fits, default=0)

    def _count(self) -> None:
        """Count ranks again on the nodes that were taken from since."""
        taken = self._view.taken
        if self._seen == len(taken):
            return
        new = taken[self._seen :]
        self._seen = len(taken)
        few = set(new)
        if self._one_by_one and len(few) <= _FEW:
            changed = False
            fits = self.fits
            for row in few:
                fit = self._fit_of(row)
                before = fits.item(row)
                if fit != before:
                    fits[row] = fit
                    self.domain_fits[self._table.node_domain.item(row)] += fit - before
                    changed = True
            if changed:
                self._most = self._most_ranks()
            return
        rows = self._touched(new)
        fits = self._view.ranks_that_fit(self._demand, self._columns, rows)
        fits[~self._allowed[rows]] = 0
        for item in self._again:
            fits[~item.passes(self._view, self._demand, rows)] = 0
        if self._groups is None or not self._demand.topology_required:
            np.add.at(self.domain_fits, self._table.node_domain[rows], fits - self.fits[rows])
            self.fits[rows] = fits
        else:
            self.fits[rows] = fits
            self.domain_fits = self._per_domain(self.fits)
        self._most = self._most_ranks()

    def _touched(self, new: list[int]) -> Ints:
        """Nodes to look at again."""
        if self._asks_all:
            return np.arange(len(self._table.nodes))
        return np.array(new if len(new) == 1 else sorted(set(new)), dtype=np.int64)

    def _fit_of(self, row: int) -> int:
        """As `table.fits`, for one node and whole devices."""
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
        new = taken[self._scored :]
        self._scored = len(taken)
        few = set(new)
        if self._judges_one and len(few) <= _FEW:
            for row in few:
                self._judge_node(row)
        else:
            rows = self._touched(new)
            for index, (score, _) in enumerate(self._scores.node):
                if score.dynamic:
                    self._node_parts[index, rows] = score.nodes(self._view, self._demand, rows)
            self._node_totals[rows] = self._weigh_nodes(rows)
        for index, (domain_score, _) in enumerate(self._scores.domain):
            if domain_score.dynamic:
                self._domain_parts[index] = self._of_domains(domain_score)
        self._domain_totals = self._weigh_domains()

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

    def _weigh_nodes(self, rows: Any) -> Floats:
        parts = self._node_parts[:, rows]
        if self._weights_by_domain is None:
            # One after the other: a product of matrices gives sums that depend on which other nodes stand beside.
            totals: Floats = np.zeros(parts.shape[1])
            for weight, part in zip(self._node_weights.tolist(), parts, strict=True):
                totals += weight * part
        else:
            totals = (self._weights_by_domain[:, self._table.node_domain[rows]] * parts).sum(axis=0)
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
        """What each filter rejects of what those before it have left, as it is now. The first ones that read nothing of what is
        free are asked once."""
        if self._rejected_at != len(self._view.taken):
            self._rejected_at = len(self._view.taken)
            _, self._rejections = self._filtered(self._other_filters, self._lasting)
        return self._lasting_rejections + self._rejections

    def _filtered(self, chain: Sequence[Filter], mask: Bools) -> tuple[Bools, tuple[Rejection, ...]]:
        """The nodes of a mask (N) that filters let pass, and what each of them rejects."""
        rejections = []
        for item in chain:
            if not applies(item, self._demand):
                rejections.append(Rejection(item.name, 0, ()))
                continue
            passes = item.passes(self._view, self._demand, slice(None))
            rejections.append(self._rejection(item, np.flatnonzero(mask & ~passes)))
            mask = mask & passes
        return mask, tuple(rejections)

    def _rejection(self, item: Filter, rows: Ints) -> Rejection:
        shown = rows[: self._policy.shown_nodes]
        examples = tuple(
            (self._table.nodes[row].node_id, item.why(self._view, self._demand, int(row))) for row in shown
        )
        return Rejection(item.name, len(rows), examples)

    # -- choosing ----------------------------------------------------------------------------------------------------

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

    @property
    def domain_totals(self) -> Floats:
        """The domains' scores."""
        self._judge()
        return self._domain_totals

    def choose(self, limit: Ints | None = None) -> Choice | None:
        """The best place for one unit now; None when it does not fit. ``limit`` (N) are the ranks that each node may take
        at most (what reservations leave). Nodes that the fleet says are asleep are taken only when the others do not suffice."""
        self._limit = limit
        if not self.has_room() and len(self._view.taken) - self._scored < _MOST_UNSCORED:
            return None
        self._judge()
        fits = self.fits if limit is None else np.minimum(self.fits, limit)
        asleep = self._view.to_be_woken() if self._some_sleep else None
        if asleep is not None:
            awake = np.where(asleep, 0, fits)
            found = self.choose_of(awake, self._per_domain(awake))
            if found is not None:
                self._limit = awake
                return found
        return self.choose_of(fits, self.domain_fits if limit is None else self._per_domain(fits))

    def choose_of(self, fits: Ints, domain_fits: Ints | None = None) -> Choice | None:
        """The best place when ``fits`` (N) ranks fit on the nodes."""
        ranks = self._demand.ranks
        if domain_fits is None:
            domain_fits = self._per_domain(fits)
        feasible = np.flatnonzero(domain_fits >= ranks)
        if len(feasible):
            # Among these alone: whatever a score says, nothing goes where it does not fit.
            domain = int(feasible[self._domain_totals[feasible].argmax()])
            return Choice((domain,), tuple(self._nodes(domain, ranks, fits)), float(self._domain_totals[domain]))
        if self._demand.cross_domain and not self._demand.topology_required and int(domain_fits.sum()) >= ranks:
            return self._span(fits, domain_fits)
        return None

    def _could(self) -> Ints:
        """Ranks that would fit per domain if nothing ran."""
        if self._could_hold is None:
            empty = np.where(self._allowed, self._view.ranks_that_fit(self._demand, self._columns, total=True), 0)
            self._could_hold = self._per_domain(empty)
        return self._could_hold

    def most_ranks(self) -> int:
        """How many ranks would fit if nothing ran: in one domain, or in all when it may span them."""
        per_domain = self._could()
        return int(per_domain.sum()) if self._spans else int(per_domain.max(initial=0))

    def could_fit(self) -> bool:
        """Whether it would fit if nothing ran."""
        return self.most_ranks() >= self._demand.ranks

    def _nodes(self, domain: int, ranks: int, all_fits: Ints) -> list[tuple[int, int]]:
        part = self._table.domain_slice[domain]
        fits, totals = all_fits[part], self._node_totals[part]
        if self._groups is not None and ranks > 1:
            fits = self._one_group(fits, totals, self._groups[part], ranks)
        chosen = []
        while ranks:
            enough = np.flatnonzero(fits >= ranks)
            if len(enough):
                row = int(enough[totals[enough].argmax()])
                chosen.append((part.start + row, ranks))
                break
            most = np.flatnonzero(fits == fits.max())
            row = int(most[totals[most].argmax()])
            count = int(fits[row])
            chosen.append((part.start + row, count))
            fits = fits.copy()
            fits[row] = 0
            ranks -= count
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

    # -- carrying out ------------------------------------------------------------------------------------------------

    def take(self, choice: Choice) -> tuple[PlacedRank, ...]:
        """Give the ranks of a choice their nodes and devices."""
        ranks: list[PlacedRank] = []
        for row, count in choice.rows:
            node = self._table.nodes[row]
            for local_rank in range(count):
                devices = self._view.take(row, self._demand, self._columns, self._preferred(row))
                milli = self._demand.device_milli if devices else 1000
                ranks.append(PlacedRank(len(ranks), node.domain_id, node.node_id, local_rank, devices, milli))
        return tuple(ranks)

    def _preferred(self, row: int) -> tuple[int, ...]:
        if self._chooses_devices is None:
            return ()
        return self._chooses_devices.devices(self._view, self._demand, self._columns, row)

    # -- explaining --------------------------------------------------------------------------------------------------

    def _fits_now(self) -> Ints:
        """Ranks per node that the last choice was made from."""
        return self.fits if self._limit is None else np.minimum(self.fits, self._limit)

    def domain_ranking(self) -> Ranking:
        """The domains as they were judged for the last choice."""
        return self._domain_ranking(self.domain_fits if self._limit is None else self._per_domain(self._fits_now()))

    def _domain_ranking(self, domain_fits: Ints) -> Ranking:
        self._judge()
        return Ranking(
            self._table.domain_ids,
            self._domain_names,
            self._domain_parts.copy(),
            self._domain_totals.copy(),
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
        part = self._table.domain_slice[domain]
        chosen = tuple([(row - part.start, count) for row, count in choice.rows if part.start <= row < part.stop])
        ranks = sum(count for _, count in chosen)
        fits, totals = all_fits[part], self._node_totals[part].copy()
        if self._groups is not None and ranks > 1:
            fits = self._one_group(fits, totals, self._groups[part], ranks)
        parts = self._node_parts[:, part].copy()
        ranking = Ranking(self._table.domain_nodes[domain], self._node_names, parts, totals, fits.copy(), ranks)
        own = self._weights_by_domain
        return NodeChoice(
            self._table.domain_ids[domain], ranking, chosen, self._node_weights if own is None else own[:, domain]
        )

    def _compared(self, choice: Choice) -> tuple[Candidate, ...]:
        """The sets of domains that were compared, the chosen one first."""
        domain_fits = self._per_domain(self._fits_now())
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

    def _set_parts(self, domains: tuple[int, ...]) -> tuple[tuple[str, float], ...]:
        return tuple(
            [
                (score.name, float(score.domain_set(self._view, self._demand, domains)))
                for score, _ in self._scores.domain_set
            ]
        )

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
        if not self._allowed.any():
            return "filters", f"no node qualifies: {self._counted()}"
        most = self.most_ranks()
        if most < demand.ranks:
            scope = "all qualifying domains together" if self._spans else "any qualifying domain"
            if demand.topology_required:
                scope = f"any {demand.topology} of a qualifying domain"
            text = f"too large for what is there now: {demand.ranks} ranks wanted, {scope} could hold {most} when empty"
            return "size", text
        if self._refused():
            text = "those that have room together are refused by a score of sets"
            return "scores", f"no domain has room for {demand.ranks} ranks now, and {text}"
        best = int(self.domain_fits.argmax())
        free = int(self.domain_fits[best])
        if self._limit is not None and self.choose_of(self.fits, self.domain_fits) is not None:
            left = int(self._per_domain(self._fits_now()).max(initial=0))
            text = (
                f"{demand.ranks} ranks wanted, {free} would fit in {table.domain_ids[best]}, {left} beside reservations"
            )
            return "reservation", f"what is free is reserved for others: {text}"
        where = f"most in {table.domain_ids[best]} ({free})" if free else "none anywhere"
        text = f"waiting for capacity: {demand.ranks} ranks wanted, free now: {where}; {self._counted()}"
        return "capacity", text

    def _refused(self) -> bool:
        """Whether domains have room together, and may be spanned but for the scores of sets."""
        demand = self._demand
        together = demand.cross_domain and not demand.topology_required
        return together and int(self.domain_fits.sum()) >= demand.ranks and self.choose_of(self.fits) is None

    def _counted(self) -> str:
        counts = ", ".join(f"{item.rejected} by {item.filter}" for item in self.rejections if item.rejected)
        return f"of {len(self._table.nodes)} nodes rejected: {counts or 'none'}"
