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
   of a change.
6. When nothing more can be asked, the rounds are over; what waits is said to the domains, so that they tell of more room.

A dispatcher is good for one session: one state of the book, read by one instance. When either is doubtful, a new session
begins, and answers to the old one are passed over.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from services.scheduler.core.apart.knowledge import KnownDomain, known_of
from services.scheduler.core.apart.messages import GrantName, Holding, Reply, Request, Session, Wanted
from services.scheduler.core.apart.rounds import (
    Asked,
    Carried,
    Heard,
    Link,
    Round,
    Step,
    as_full,
    holding_of,
    waits_still,
)
from services.scheduler.core.apart.shares import ShardShares, whole
from services.scheduler.core.book import Book, Draft
from services.scheduler.core.contract import tell
from services.scheduler.core.pending import Pending
from services.scheduler.core.policy import Policy
from services.scheduler.core.queue import OrderContext, PendingUnit
from services.scheduler.core.stages import stages_of
from services.scheduler.core.state import Demand, RunState, UnitKey
from services.scheduler.core.two_level import MOST_ROUNDS, Dispatch, DomainSummary, InterDomain

ANSWER_LIMIT_S = 5.0
"""A domain that has not answered for so long counts as full."""
HOLDINGS_EVERY_S = 30.0
"""So often a shard says all that it holds in a domain."""
_UNCOUNTED = -1
"""Less than the sequence of any summary."""
_SPLIT_WAIT_S = 0.05
"""How long the first wait of a unit is that was refused a part, at least; it doubles up to 64 times of it."""


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
        self.told: dict[str, DomainSummary] = dict(told or {})
        self.others: dict[str, ShardShares] = dict(others or {})
        self._policy = policy
        self._answer_limit_s, self._holdings_every_s = answer_limit_s, holdings_every_s
        self._links: dict[str, Link] = {}
        self._inter: InterDomain | None = None
        self._facts: tuple[object, ...] = ()
        self._numbers: dict[Demand, int] = {}
        self._demands: dict[int, Demand] = {}
        self._round: Round | None = None
        self._rounds_begun = 0
        self._rounds = 0
        self._again = True
        self._excluded: dict[UnitKey, frozenset[str]] = {}
        self._twice: set[UnitKey] = set()
        self._why: dict[UnitKey, str] = {}
        self._splits_refused: dict[UnitKey, int] = {}
        self._resting: dict[UnitKey, float] = {}
        self._told_off: dict[UnitKey, dict[str, tuple[int, str]]] = {}
        self._refusals: dict[UnitKey, dict[str, str]] = {}

    # -- what comes ----------------------------------------------------------------------------------------------------

    def hear(self, summary: DomainSummary) -> bool:
        """A domain told everybody about itself; whether that was news (`is_news`)."""
        if not self.is_news(summary):
            return False
        self._take(summary)
        return True

    def is_news(self, summary: DomainSummary) -> bool:
        """Whether a summary says more than is known. A domain that answers tells this shard more than everybody."""
        known = self.told.get(summary.domain_id)
        return not self._reachable(summary.domain_id) and (known is None or summary.sequence > known.sequence)

    def hear_shares(self, shares: ShardShares) -> None:
        """Another shard told what domains give to its tenants."""
        known = self.others.get(shares.shard)
        if known is None or known.at_s <= shares.at_s:
            self.others[shares.shard] = shares

    def public(self) -> dict[str, DomainSummary]:
        """What is known of domains without what they told this shard alone."""
        return {name: replace(summary, ranks={}) for name, summary in self.told.items()}

    def use(self, policy: Policy) -> None:
        """Another policy applies from the next round on."""
        self._policy = policy
        self._inter = None
        self._again = True

    def answer(self, reply: Reply, draft: Draft) -> Heard:
        """A domain answered, or told of more room. What is carried out is to be placed in ``draft``."""
        heard = Heard()
        if reply.session != self.session or reply.shard != self.shard:
            return heard
        name = reply.domain_id
        if reply.begin_again or name not in self._links:
            self._links[name] = Link()
            self._again = True
        rooms = {self._demands[number]: room for number, room in reply.rooms.items() if number in self._demands}
        self._take(replace(reply.summary, ranks=rooms))
        now = self._round
        if now is None or reply.round != now.number or name not in now.open:
            self._again = self._again or not reply.round
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
            else:
                asked.refused[name] = reason = refused.get(asked.name, "it said nothing about it")
                if self._links[name].own_scheduler and not reply.begin_again:
                    self._told_off.setdefault(asked.name.key, {})[name] = (self.told[name].sequence, reason)
            if asked.complete:
                self._settle(asked, now, draft, heard.carried, back)
        heard.requests = [self._release(domain_id, names) for domain_id, names in back.items()]
        self._close_round()
        return heard

    def released(self, draft: Draft) -> list[Request]:
        """What to give back because runs of a draft ended, by whatever path."""
        back: dict[str, list[GrantName]] = {}
        for run in draft.runs.values():
            before = draft.book.runs.get(run.run_id)
            held = before.open_domains if before is not None else run.open_domains
            left = frozenset() if run.state is RunState.ENDED else run.open_domains
            for name in sorted(held - left):
                if name in self._links and self._links[name].begun:
                    back.setdefault(name, []).append(GrantName(run.key, run.epoch))
        return [self._release(name, names) for name, names in back.items()]

    # -- what goes -----------------------------------------------------------------------------------------------------

    def known(self, demand: Demand, key: UnitKey | None = None) -> list[KnownDomain]:
        """What is known of all domains for a class, and for a unit of it that waits; nothing before one has told of itself."""
        if self._inter is None:
            return []
        return known_of(self._inter, self._links, demand, self._refusals.get(key, {}) if key is not None else {})

    def due_s(self) -> float:
        """When `step` has something to do though nothing happens; infinite for never."""
        if self._again and self._round is None:
            return 0.0
        rested = [] if self._round is not None else list(self._resting.values())
        due = rested + [link.holdings_at_s + self._holdings_every_s for link in self._links.values() if link.begun]
        return min([*due, self._round.until_s if self._round is not None else math.inf], default=math.inf)

    def step(self, book: Book, now_s: float) -> Step:
        """Begin sessions, close rounds whose time is over, say what is held, and ask for what waits."""
        step = Step()
        self._time_out(book, now_s, step)
        self._begin(book, now_s, step)
        for name, link in self._links.items():
            if link.begun and now_s >= link.holdings_at_s + self._holdings_every_s:
                step.requests.append(self._request(name, holdings=self._holdings(name, book)))
                link.holdings_at_s = now_s
        if self._round is None:
            self._dispatch(book, now_s, step)
        return step

    # -- steps of a step -----------------------------------------------------------------------------------------------

    def _begin(self, book: Book, now_s: float, step: Step) -> None:
        """Domains that have not heard of this session; the first ones are waited for before anything is asked."""
        first = not self._links
        own = {name: self._answers_itself(name, book) for name in sorted({*book.fleet.domains, *self.told})}
        # A domain that has got a scheduler of its own, or has none any more, is answered for by somebody else from now on.
        new = [
            name
            for name, answers_itself in own.items()
            if name not in self._links
            or not self._links[name].begun
            or self._links[name].own_scheduler != answers_itself
        ]
        if not new:
            return
        number = self._next_round()
        for name in new:
            if name in self._links and self._links[name].begun and name in self.told:
                # Sequences of the one and the other do not count together.
                self.told[name] = replace(self.told[name], sequence=_UNCOUNTED)
            link = self._links[name] = Link(begun=True, own_scheduler=own[name], holdings_at_s=now_s)
            link.silent = not first and name not in self.told
            holdings = self._holdings(name, book)
            step.requests.append(replace(self._request(name, number, holdings=holdings), begins=True))
        if first:
            self._round = Round(number, now_s + self._answer_limit_s, set(new), again=True)

    def _dispatch(self, book: Book, now_s: float, step: Step) -> None:
        self._again = False
        cluster = book.cluster
        inter = self._known(book)
        if inter is None or not len(cluster.pending):
            self._rounds_over()
            for link in self._links.values():
                link.waiting = False
            step.waiting = dict.fromkeys((unit.key for unit in cluster.pending), "no domain has told of itself yet")
            return
        inter.know(cluster.pending)
        if self._ask_about_classes(inter, book, now_s, step):
            return
        account = book.promises.shares
        if account is not None:
            table = inter.view.table
            tell(inter, whole(account, self.others.values(), table.domain_ids, table.domain_devices), now_s)
        facts = {**cluster.view.facts, "running": cluster.running, "order": cluster.pending.order, "cluster": cluster}
        context = OrderContext(cluster.shares(), now_s, facts)
        gates = [limit.open(context) for limit in stages_of(self._policy).limits]
        certain = self._rounds < MOST_ROUNDS - 1
        self._rest(book, now_s)
        for key in [key for key in self._refusals if key not in cluster.pending]:
            del self._refusals[key]
        found = inter.dispatch(
            cluster.pending,
            context,
            excluded=self._not_to_ask(cluster.pending),
            refused=self._twice | self._resting.keys(),
            gates=gates,
            certain=certain,
            explain=True,
        )
        if found.assigned:
            self._rounds += 1
            self._ask(found, book, now_s, step)
            return
        step.waiting = {
            unit.key: self._why.get(unit.key) or self._told_why(unit.key) or self._no_room(unit, gates)
            for unit in found.waiting
        }
        self._rounds_over()
        if found.waiting:
            self._say_that_it_waits(now_s, step)

    def _not_to_ask(self, pending: Pending) -> dict[UnitKey, frozenset[str]]:
        """Domains that refused a unit in these rounds, or chose not to take it and have not changed since."""
        excluded = dict(self._excluded)
        for key, said in list(self._told_off.items()):
            if key not in pending:
                del self._told_off[key]
                continue
            for name, (sequence, _) in list(said.items()):
                if self.told[name].sequence != sequence or not self._links[name].own_scheduler:
                    del said[name]
            if said:
                excluded[key] = excluded.get(key, frozenset()) | said.keys()
        return excluded

    def _told_why(self, key: UnitKey) -> str:
        return "; ".join(f"{name}: {reason}" for name, (_, reason) in self._told_off.get(key, {}).items())

    def _rest(self, book: Book, now_s: float) -> None:
        """Who was refused a part rests from now on; who has rested may ask again."""
        for key, until_s in list(self._resting.items()):
            if key not in book.cluster.pending:
                del self._resting[key]
                self._splits_refused.pop(key, None)
            elif until_s == 0.0:
                times = self._splits_refused[key]
                part = zlib.crc32(f"{self.shard} {key} {times}".encode()) / 2**32
                self._resting[key] = now_s + _SPLIT_WAIT_S * 2.0 ** min(times - 1, 6) * (1.0 + part)
            elif until_s <= now_s:
                del self._resting[key]

    def _ask_about_classes(self, inter: InterDomain, book: Book, now_s: float, step: Step) -> bool:
        """Ask domains that have not told of a class that waits; whether one was asked."""
        waiting = dict.fromkeys(demand for _, _, demand in book.cluster.pending.lanes)
        asked = [
            name
            for name, summary in inter.summaries.items()
            if self._reachable(name)
            and not summary.own_scheduler
            and any(demand not in self.told[name].ranks for demand in waiting)
        ]
        if asked:
            self._round = Round(self._next_round(), now_s + self._answer_limit_s, set(asked), again=True)
            step.requests += [self._request(name, self._round.number, inter=inter) for name in asked]
        return bool(asked)

    def _ask(self, found: Dispatch, book: Book, now_s: float, step: Step) -> None:
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
            known = item.whole and item.unit.demand in self._links[item.domain_id].classes
            number = self._numbers[item.unit.demand] if known else 0
            wanted = Wanted(
                name,
                unit.tenant_id,
                number,
                None if number else item.unit.demand,
                item.first_rank,
                item.whole,
                unit.limit_s,
            )
            by_domain.setdefault(item.domain_id, []).append(wanted)
        number = self._next_round()
        self._round = Round(number, now_s + self._answer_limit_s, set(by_domain), units, again=found.stopped)
        step.asked = len(units)
        step.requests += [self._request(name, number, wanted=tuple(items)) for name, items in by_domain.items()]

    def _say_that_it_waits(self, now_s: float, step: Step) -> None:
        deaf = [name for name, link in self._links.items() if self._reachable(name) and not link.waiting]
        if deaf:
            self._round = Round(self._next_round(), now_s + self._answer_limit_s, set(deaf), again=True)
            step.requests += [replace(self._request(name, self._round.number), waiting=True) for name in deaf]
            for name in deaf:
                self._links[name].waiting = True

    def _time_out(self, book: Book, now_s: float, step: Step) -> None:
        now = self._round
        if now is None or now_s < now.until_s:
            return
        back: dict[str, list[GrantName]] = {}
        for name in sorted(now.open):
            self._links[name].silent = True
            self._full(name)
        for asked in list(now.units.values()):
            for name in sorted(asked.parts.keys() & now.open):
                asked.refused[name] = "it did not answer in time"
                back.setdefault(name, []).append(asked.name)
            self._settle(asked, now, None, [], back)
        now.open.clear()
        step.requests += [self._release(name, names) for name, names in back.items()]
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
            considered = len(self._inter.summaries) if self._inter is not None else 0
            self._refusals.pop(key, None)
            item = Carried(asked.unit, asked.name.epoch, ranks, considered, asked.explanation, asked.said)
            carried.append(item)
            return
        for name in asked.placed:
            back.setdefault(name, []).append(asked.name)
        if asked.refused:
            if len(asked.parts) > 1:
                self._splits_refused[key] = self._splits_refused.get(key, 0) + 1
                self._resting[key] = 0.0
            if key in self._excluded:
                self._twice.add(key)
            self._excluded[key] = self._excluded.get(key, frozenset()) | asked.refused.keys()
            self._refusals.setdefault(key, {}).update(asked.refused)
            self._why[key] = "; ".join(f"{name}: {reason}" for name, reason in asked.refused.items())
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
        self._excluded.clear()
        self._twice.clear()
        self._why.clear()

    # -- what is known of domains --------------------------------------------------------------------------------------

    def _take(self, summary: DomainSummary) -> None:
        """A domain told of itself, so it is there."""
        name = summary.domain_id
        known = self.told.get(name)
        if known is not None and summary.sequence < known.sequence:
            return
        self.told[name] = summary
        link = self._links.get(name)
        if link is not None and link.silent:
            link.silent = False
            self._again = True
        if known is None or self._inter is None or name not in self._inter.summaries:
            self._again = self._again or known is None
            self._inter = None
        elif (known.total_devices, known.total_cpus) != (summary.total_devices, summary.total_cpus):
            self._inter = None
        else:
            self._inter.update(summary)

    def _full(self, name: str) -> None:
        """Count a domain as full."""
        if self._inter is not None and name in self._inter.summaries:
            self._inter.update(as_full(self._inter.summaries[name]))

    def _known(self, book: Book) -> InterDomain | None:
        """The network's view, made anew when domains, their facts or their models changed; None when there are none."""
        names = sorted(name for name in self.told if name in self._links and self._links[name].begun)
        fleet = book.fleet
        facts = (*(fleet.domains.get(name) for name in names), *fleet.expected_demand.items())
        if self._inter is not None and facts == self._facts:
            return self._inter
        if not names:
            return None
        told = [self.told[name] if self._reachable(name) else as_full(self.told[name]) for name in names]
        self._facts = facts
        self._inter = InterDomain(fleet, told, self._policy)
        return self._inter

    def _answers_itself(self, name: str, book: Book) -> bool:
        """Whether a domain has a scheduler of its own: by the graph, or before that knows it, by the domain's own word."""
        domain = book.fleet.domains.get(name)
        return domain.own_scheduler if domain is not None else self.told[name].own_scheduler

    def _reachable(self, name: str) -> bool:
        link = self._links.get(name)
        return link is not None and link.begun and not link.silent and name in self.told

    @staticmethod
    def _no_room(unit: PendingUnit, gates: Iterable[object]) -> str:
        for gate in gates:
            refuses = getattr(gate, "refuses")(unit)  # noqa: B009 - gates of plugins
            if refuses:
                return str(refuses)
        return f"waiting for capacity: no domain told of room for {unit.demand.ranks} ranks"

    # -- requests ------------------------------------------------------------------------------------------------------

    def _next_round(self) -> int:
        self._rounds_begun += 1
        return self._rounds_begun

    def _request(
        self,
        name: str,
        number: int = 0,
        *,
        holdings: tuple[Holding, ...] | None = None,
        wanted: tuple[Wanted, ...] = (),
        inter: InterDomain | None = None,
    ) -> Request:
        link = self._links[name]
        classes: list[tuple[int, Demand]] = []
        dropped: list[int] = []
        if inter is not None:
            kept = inter.classes
            classes = [(self._number(demand), demand) for demand in kept if demand not in link.classes]
            dropped = sorted(self._numbers[demand] for demand in link.classes.difference(kept))
            link.classes = set(kept)
        return Request(
            name,
            self.shard,
            self.session,
            number,
            holdings=holdings,
            classes=tuple(classes),
            dropped_classes=tuple(dropped),
            wanted=wanted,
            waiting=link.waiting,
            own_scheduler=link.own_scheduler,
        )

    def _release(self, name: str, names: Iterable[GrantName]) -> Request:
        return replace(self._request(name), released=tuple(names))

    def _number(self, demand: Demand) -> int:
        number = self._numbers.get(demand)
        if number is None:
            number = self._numbers[demand] = len(self._numbers) + 1
            self._demands[number] = demand
        return number

    def _holdings(self, name: str, book: Book) -> tuple[Holding, ...]:
        """What runs hold in a domain, and what it was asked for and has not been carried out."""
        found = [holding_of(run, name, book) for run in book.runs.values() if name in run.open_domains]
        if self._round is not None:
            for asked in self._round.units.values():
                part = asked.parts.get(name)
                if part is not None:
                    found.append(Holding(asked.name, asked.unit.tenant_id, part.unit.demand, (), 0.0))
        return tuple(found)
