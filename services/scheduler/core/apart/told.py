"""What a shard has been told: by domains of themselves, by other shards of what domains give to their tenants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from services.scheduler.core.apart.rounds import Link, as_full
from services.scheduler.core.apart.shares import ShardShares
from services.scheduler.core.book import Book
from services.scheduler.core.policy import Policy
from services.scheduler.core.two_level import DomainSummary, InterDomain

_UNCOUNTED = -1
"""Less than the sequence of any summary."""


class Told:
    """``summaries`` by domain and ``shares`` by shard, as they were heard last; ``links`` say how far each domain was spoken to in
    this session; ``inter`` is the network's view made of it (None: to be made anew)."""

    def __init__(
        self, policy: Policy, summaries: Mapping[str, DomainSummary], shares: Mapping[str, ShardShares]
    ) -> None:
        self.summaries: dict[str, DomainSummary] = dict(summaries)
        self.shares: dict[str, ShardShares] = dict(shares)
        self.links: dict[str, Link] = {}
        self.inter: InterDomain | None = None
        self._policy = policy
        self._facts: tuple[object, ...] = ()

    def use(self, policy: Policy) -> None:
        """Another policy judges domains from now on."""
        self._policy = policy
        self.inter = None

    # -- hearing -------------------------------------------------------------------------------------------------------

    def is_news(self, summary: DomainSummary) -> bool:
        """Whether a summary says more than is known. A domain that answers tells this shard more than everybody."""
        known = self.summaries.get(summary.domain_id)
        return not self.reachable(summary.domain_id) and (known is None or summary.sequence > known.sequence)

    def hear_shares(self, shares: ShardShares) -> None:
        """Another shard told what domains give to its tenants."""
        known = self.shares.get(shares.shard)
        if known is None or known.at_s <= shares.at_s:
            self.shares[shares.shard] = shares

    def take(self, summary: DomainSummary) -> bool:
        """A domain told of itself, so it is there; whether it was not there before. An older summary changes nothing."""
        name = summary.domain_id
        known = self.summaries.get(name)
        if known is not None and summary.sequence < known.sequence:
            return False
        self.summaries[name] = summary
        link = self.links.get(name)
        was_silent = link is not None and link.silent
        if link is not None:
            link.silent = False
        if (
            known is None
            or self.inter is None
            or name not in self.inter.summaries
            or (known.total_devices, known.total_cpus) != (summary.total_devices, summary.total_cpus)
        ):
            self.inter = None
        else:
            self.inter.update(summary)
        return was_silent or known is None

    def fall_silent(self, name: str) -> None:
        """A domain did not answer in time: it counts as full until it tells something."""
        self.links[name].silent = True
        if self.inter is not None and name in self.inter.summaries:
            self.inter.update(as_full(self.inter.summaries[name]))

    # -- looking -------------------------------------------------------------------------------------------------------

    def reachable(self, name: str) -> bool:
        """Whether a domain has been spoken to, has told of itself, and answers."""
        link = self.links.get(name)
        return link is not None and link.begun and not link.silent and name in self.summaries

    def unspoken(self, book: Book) -> dict[str, bool]:
        """Domains with which the session has not begun, or not with who answers for them now: whether that is a scheduler of
        their own. By the graph, or before that knows a domain, by its own word."""
        found = {}
        for name in sorted({*book.fleet.domains, *self.summaries}):
            domain = book.fleet.domains.get(name)
            own = domain.own_scheduler if domain is not None else self.summaries[name].own_scheduler
            link = self.links.get(name)
            if link is None or not link.begun or link.own_scheduler != own:
                found[name] = own
        return found

    def begin(self, name: str, *, own_scheduler: bool, awaited: bool, now_s: float) -> None:
        """The session with a domain begins, or begins anew with another one that answers for it. Unless it is ``awaited``, a domain
        that never told of itself is not counted on."""
        before = self.links.get(name)
        if before is not None and before.begun and name in self.summaries:
            # Sequences of the one and the other do not count together.
            self.summaries[name] = replace(self.summaries[name], sequence=_UNCOUNTED)
        silent = not awaited and name not in self.summaries
        self.links[name] = Link(begun=True, silent=silent, own_scheduler=own_scheduler, holdings_at_s=now_s)

    def network(self, book: Book) -> InterDomain | None:
        """The network's view, made anew when domains, their facts or their models changed; None when there are none."""
        names = sorted(name for name in self.summaries if name in self.links and self.links[name].begun)
        fleet = book.fleet
        facts = (*(fleet.domains.get(name) for name in names), *fleet.expected_demand.items())
        if self.inter is not None and facts == self._facts:
            return self.inter
        if not names:
            return None
        told = [self.summaries[name] if self.reachable(name) else as_full(self.summaries[name]) for name in names]
        self._facts = facts
        self.inter = InterDomain(fleet, told, self._policy)
        return self.inter
