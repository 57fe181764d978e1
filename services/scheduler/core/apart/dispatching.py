"""A shard's side: rounds of asking domains, over messages that come late or never.

Steps of a round:
1. `step` dispatches what waits over the summaries (`InterDomain`) and asks each chosen domain. No other round begins before
   all of them have answered, or the time for it is over.
2. `answer` takes what a domain says. A unit with all its parts is carried out, if it still waits and would begin the epoch
   that was asked for; else its parts are given back. A refusal excludes the domain for the rest of the rounds; a unit that is
   refused again waits for the next change.
3. A domain that does not answer in time counts as full until it tells something; what it was asked for is taken back.
   Whatever it says later about that round is passed over, as the taking back comes after the asking.
4. Shards that want the same domains for parts of units may refuse each other for ever. Who is refused a part waits a moment,
   longer each time and each unit another one, before it asks for parts again.
5. A scheduler of a domain's own may refuse what its room would take. It is not asked for that unit again before it has told
   of a change. Who is told of more room in the middle of rounds begins others after them.
6. When nothing more can be asked, nodes that sleep are asked for (waking.py). When that gives nothing either, the rounds are over;
   what waits is said to the domains, so that they tell of more room.

A dispatcher is good for one session: one state of the book, read by one instance. When either is doubtful, a new session
begins, and answers to the old one are passed over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from services.scheduler.core.apart.choosing import Choosing, no_room
from services.scheduler.core.apart.knowledge import KnownDomain, known_of
from services.scheduler.core.apart.messages import GrantName, Reply, Request, Session, Wanted
from services.scheduler.core.apart.refusals import Refusals
from services.scheduler.core.apart.requests import Requests, given_back, holdings_in
from services.scheduler.core.apart.rounds import Asked, Carried, Heard, Link, Round, Step, least_of, waits_still
from services.scheduler.core.apart.shares import ShardShares
from services.scheduler.core.apart.told import Told
from services.scheduler.core.apart.waking import Waking, kept_grant, with_sleepers
from services.scheduler.core.book import Book, Draft
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.two_level import MOST_ROUNDS, Dispatch, DomainSummary, InterDomain

ANSWER_LIMIT_S = 5.0
"""A domain that has not answered for so long counts as full."""
HOLDINGS_EVERY_S = 30.0
"""So often a shard says all that it holds in a domain."""


class Dispatcher:
    """See the module. ``told`` are summaries that were heard before this session began, ``others`` what other shards told of what
    domains give to their tenants."""

    def __init__(
        self,
        shard: str,
        session: Session,
        policy: Policy,
        told: Mapping[str, DomainSummary] | None = None,
        others: Mapping[str, ShardShares] | None = None,
        *,
        answer_limit_s: float = ANSWER_LIMIT_S,
        holdings_every_s: float = HOLDINGS_EVERY_S,
    ) -> None:
        self.shard, self.session = shard, session
        self._answer_limit_s, self._holdings_every_s = answer_limit_s, holdings_every_s
        self._told = Told(policy, told or {}, others or {})
        self._links = self._told.links
        self._requests = Requests(shard, session, self._links)
        self._refusals = Refusals(shard)
        self.waking = Waking()
        self._choosing = Choosing(policy, self._told, self._refusals, self.waking)
        self._round: Round | None = None
        self._rounds_begun = 0
        self._rounds = 0
        self._again = True
        self._more_room = False

    # -- what is known -------------------------------------------------------------------------------------------------

    @property
    def told(self) -> Mapping[str, DomainSummary]:
        """What each domain told of itself last."""
        return self._told.summaries

    @property
    def others(self) -> Mapping[str, ShardShares]:
        """What other shards told of share contracts last."""
        return self._told.shares

    @property
    def told_whole(self) -> dict[str, DomainSummary]:
        """The same, with the nodes that sleep and could be woken as if they were awake."""
        return {name: with_sleepers(summary, self.waking.asleep.get(name)) for name, summary in self.told.items()}

    def public(self) -> dict[str, DomainSummary]:
        """What is known of domains without what they told this shard alone."""
        return {name: replace(summary, ranks={}) for name, summary in self.told.items()}

    def known(self, demand: Demand, key: UnitKey | None = None) -> list[KnownDomain]:
        """What is known of all domains for a class, and for a unit of it that waits; nothing before one has told of itself."""
        if self._told.inter is None:
            return []
        return known_of(self._told.inter, self._links, demand, {} if key is None else self._refusals.last(key))

    # -- what comes ----------------------------------------------------------------------------------------------------

    def is_news(self, summary: DomainSummary) -> bool:
        """Whether a summary that is told to everybody says more than is known; see `Told.is_news`."""
        return self._told.is_news(summary)

    def hear(self, summary: DomainSummary) -> bool:
        """A domain told everybody about itself; whether that was news."""
        if not self.is_news(summary):
            return False
        self._take(summary)
        return True

    def hear_shares(self, shares: ShardShares) -> None:
        """Another shard told what domains give to its tenants."""
        self._told.hear_shares(shares)

    def use(self, policy: Policy) -> None:
        """Another policy applies from the next round on."""
        self._choosing.policy = policy
        self._told.use(policy)
        self._again = True

    def answer(self, reply: Reply, draft: Draft) -> Heard:
        """A domain answered, or told of more room. What is carried out is to be placed in ``draft``."""
        heard = Heard()
        if reply.session != self.session or reply.shard != self.shard:
            return heard
        heard.parts = reply.parts
        name = reply.domain_id
        if reply.begin_again or name not in self._links:
            self._links[name] = Link()
            self._again = True
        demands = self._requests.demands
        rooms = {demands[number]: room for number, room in reply.rooms.items() if number in demands}
        self._take(replace(reply.summary, ranks=rooms))
        self._hear_of_sleepers(reply)
        now = self._round
        if now is None or reply.round != now.number or name not in now.open:
            if not reply.round:
                self._again = True
                # Units that were refused there in these rounds are asked for again after them.
                self._more_room = self._more_room or now is not None or self._refusals.some
            return heard
        now.open.discard(name)
        placed, refused = dict(reply.placed), dict(reply.refused)
        back: dict[str, list[GrantName]] = {}
        for asked in list(now.units.values()):
            if name not in asked.parts:
                continue
            if asked.name in reply.explanations and not self._links[name].own_scheduler:
                asked.said[name] = reply.explanations[asked.name]
            if asked.name in placed:
                asked.placed[name] = placed[asked.name]
                if asked.name in reply.wake_s:
                    asked.wake_s[name] = reply.wake_s[asked.name]
            else:
                asked.refused[name] = reason = refused.get(asked.name, "it said nothing about it")
                if self._links[name].own_scheduler and not reply.begin_again:
                    # As of when it refused: it may have told of more room since.
                    self._refusals.told_off(asked.name.key, name, reply.summary.sequence, reason)
            if asked.complete:
                self._settle(asked, now, draft, heard.carried, back)
        heard.requests = self._requests.release(back)
        self._close_round()
        return heard

    def released(self, draft: Draft) -> list[Request]:
        """What to give back because runs of a draft ended, or units do not wait with their grants any more, by whatever path."""
        return self._requests.release(given_back(draft, {name for name, link in self._links.items() if link.begun}))

    def wish(self, wanted: Mapping[str, int], book: Book) -> list[Request]:
        """Runs would like to have other parts of their accelerators (thousandths, by run)."""
        by_domain: dict[str, dict[GrantName, int]] = {}
        for run_id, milli in wanted.items():
            run = book.runs[run_id]
            name = run.ranks[0].domain_id
            if self._told.reachable(name) and not self._links[name].own_scheduler:
                by_domain.setdefault(name, {})[GrantName(run.key, run.epoch)] = milli
        return self._requests.parts(by_domain)

    def _hear_of_sleepers(self, reply: Reply) -> None:
        """What the domain could wake, and which grants have all their nodes awake."""
        asleep, name = reply.asleep, reply.domain_id
        if asleep is None:
            self.waking.told(name, None)
        else:
            demands = self._requests.demands
            rooms = {demands[number]: room for number, room in asleep.rooms.items() if number in demands}
            self.waking.told(name, replace(asleep.summary, ranks=rooms))
        for grant, _ in reply.placed:
            if grant not in reply.wake_s:
                self.waking.woke(grant, name)

    def _take(self, summary: DomainSummary) -> None:
        if self._told.take(summary):
            self._again = True

    # -- what goes -----------------------------------------------------------------------------------------------------

    def due_s(self) -> float:
        """When `step` has something to do though nothing happens; infinite for never."""
        if self._again and self._round is None:
            return 0.0
        rested = [] if self._round is not None else self._refusals.rested_s
        due = rested + [link.holdings_at_s + self._holdings_every_s for link in self._links.values() if link.begun]
        return min([*due, self._round.until_s if self._round is not None else math.inf], default=math.inf)

    def step(self, book: Book, now_s: float) -> Step:
        """Begin sessions, close rounds whose time is over, say what is held, and ask for what waits."""
        step = Step()
        self._time_out(book, now_s, step)
        self._begin(book, now_s, step)
        for name, link in self._links.items():
            if link.begun and now_s >= link.holdings_at_s + self._holdings_every_s:
                step.requests.append(self._requests.of(name, holdings=holdings_in(name, book, self._round)))
                link.holdings_at_s = now_s
        if self._round is None:
            self._dispatch(book, now_s, step)
        return step

    # -- steps of a step -----------------------------------------------------------------------------------------------

    def _begin(self, book: Book, now_s: float, step: Step) -> None:
        """Domains that have not heard of this session; the first ones are waited for before anything is asked."""
        first = not self._links
        new = self._told.unspoken(book)
        if not new:
            return
        number = self._next_round()
        for name, own in new.items():
            self._told.begin(name, own_scheduler=own, awaited=first, now_s=now_s)
            request = self._requests.of(name, number, holdings=holdings_in(name, book, self._round))
            step.requests.append(replace(request, begins=True))
        if first:
            self._round = Round(number, now_s + self._answer_limit_s, set(new), again=True)

    def _dispatch(self, book: Book, now_s: float, step: Step) -> None:
        self._again = False
        cluster = book.cluster
        inter = self._told.network(book)
        if inter is None or not len(cluster.pending):
            self._rounds_over()
            for link in self._links.values():
                link.waiting = False
            step.waiting = dict.fromkeys((unit.key for unit in cluster.pending), "no domain has told of itself yet")
            return
        inter.know(cluster.pending)
        if self._ask_about_classes(inter, book, now_s, step):
            return
        self.waking.forget(self._not_begun(book))
        certain = self._rounds < MOST_ROUNDS - 1
        found, gates = self._choosing.choose(inter, book, now_s, certain=certain)
        if not found.assigned:
            more = self._choosing.choose_sleepers(book, now_s, certain=certain)
            if more is not None and more.assigned:
                self._rounds += 1
                self._ask(more, book, now_s, step, wake=True)
                return
        if found.assigned:
            self._rounds += 1
            self._ask(found, book, now_s, step)
            return
        step.waiting = {unit.key: self._refusals.why(unit.key) or no_room(unit, gates) for unit in found.waiting}
        self._rounds_over()
        if found.waiting:
            self._say_that_it_waits(book, now_s, step)

    def _not_begun(self, book: Book) -> list[GrantName]:
        """Grants of which a run may begin yet."""
        kept = [found[0] for key in book.nominated if (found := kept_grant(book, key)) is not None]
        return kept + [asked.name for asked in (self._round.units.values() if self._round is not None else ())]

    def _ask_about_classes(self, inter: InterDomain, book: Book, now_s: float, step: Step) -> bool:
        """Ask domains that have not told of a class that waits; whether one was asked."""
        waiting = dict.fromkeys(demand for _, _, demand in book.cluster.pending.lanes)
        asked = [
            name
            for name, summary in inter.summaries.items()
            if self._told.reachable(name)
            and not summary.own_scheduler
            and any(demand not in self.told[name].ranks for demand in waiting)
        ]
        if asked:
            self._round = Round(self._next_round(), now_s + self._answer_limit_s, set(asked), again=True)
            step.requests += [self._requests.of(name, self._round.number, inter=inter) for name in asked]
        return bool(asked)

    def _ask(self, found: Dispatch, book: Book, now_s: float, step: Step, *, wake: bool = False) -> None:
        units: dict[UnitKey, Asked] = {}
        by_domain: dict[str, list[Wanted]] = {}
        for item in found.assigned:
            key = item.unit.key
            unit = book.cluster.pending.get(key)
            assert unit is not None, f"{key} was dispatched and does not wait"
            name = GrantName(key, book.units[key].epoch + 1)
            asked = units.setdefault(key, Asked(unit, name, {}, explanation=found.explanations.get(key)))
            asked.parts[item.domain_id] = item
            # One with a scheduler of its own is not told of classes.
            number = self._requests.number_at(item.domain_id, item.unit.demand) if item.whole else 0
            wanted = Wanted(
                name,
                unit.tenant_id,
                number,
                None if number else item.unit.demand,
                item.first_rank,
                item.whole,
                unit.limit_s,
                wake,
                least_of(book, key.job_id),
            )
            by_domain.setdefault(item.domain_id, []).append(wanted)
        number = self._next_round()
        self._round = Round(number, now_s + self._answer_limit_s, set(by_domain), units, again=found.stopped)
        step.asked = len(units)
        step.requests += [self._requests.of(name, number, wanted=tuple(items)) for name, items in by_domain.items()]

    def _say_that_it_waits(self, book: Book, now_s: float, step: Step) -> None:
        deaf = [name for name, link in self._links.items() if self._told.reachable(name) and not link.waiting]
        if deaf:
            self._round = Round(self._next_round(), now_s + self._answer_limit_s, set(deaf), again=True)
            waiting = [demand for _, _, demand in book.cluster.pending.lanes]
            step.requests += [
                self._requests.waiting(self._requests.of(name, self._round.number), waiting) for name in deaf
            ]

    def _time_out(self, book: Book, now_s: float, step: Step) -> None:
        now = self._round
        if now is None or now_s < now.until_s:
            return
        back: dict[str, list[GrantName]] = {}
        for name in sorted(now.open):
            self._told.fall_silent(name)
        for asked in list(now.units.values()):
            for name in sorted(asked.parts.keys() & now.open):
                asked.refused[name] = "it did not answer in time"
                back.setdefault(name, []).append(asked.name)
            self._settle(asked, now, None, [], back)
        now.open.clear()
        step.requests += self._requests.release(back)
        self._close_round()

    def _settle(
        self,
        asked: Asked,
        now: Round,
        draft: Draft | None,
        carried: list[Carried],
        back: dict[str, list[GrantName]],
    ) -> None:
        """All parts of a unit are answered: it is carried out, or what it got is given back."""
        key = asked.name.key
        now.units.pop(key)
        if not asked.refused and draft is not None and waits_still(draft, asked.name):
            ranks = tuple(sorted((rank for part in asked.placed.values() for rank in part), key=lambda rank: rank.rank))
            considered = len(self._told.inter.summaries) if self._told.inter is not None else 0
            self._refusals.granted(key)
            late = [s for name, s in asked.wake_s.items() if not self.waking.awake(asked.name, (name,))]
            wake_s = max(late, default=0.0)
            item = Carried(asked.unit, asked.name.epoch, ranks, considered, asked.explanation, asked.said, wake_s)
            carried.append(item)
            return
        for name in asked.placed:
            back.setdefault(name, []).append(asked.name)
        if asked.refused:
            self._refusals.refused(asked)
            now.again = True

    def _close_round(self) -> None:
        now = self._round
        if now is not None and not now.open:
            self._round = None
            self._again = self._again or now.again
            if not now.again:
                self._rounds_over()

    def _rounds_over(self) -> None:
        self._rounds = 0
        self._again = self._again or self._more_room
        self._more_room = False
        self._refusals.rounds_over()

    def _next_round(self) -> int:
        self._rounds_begun += 1
        return self._rounds_begun
