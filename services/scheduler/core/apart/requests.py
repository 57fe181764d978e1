"""How a shard words its requests: the numbers of classes in a session, what it holds, what it gives back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from services.scheduler.core.apart.messages import GrantName, Holding, Request, Session, Wanted
from services.scheduler.core.apart.parts import device_of
from services.scheduler.core.apart.rounds import Link, Round, holding_of, least_of
from services.scheduler.core.apart.waking import kept_grant
from services.scheduler.core.book import Book, Draft
from services.scheduler.core.kept import held_demand
from services.scheduler.core.state import Demand, RunState, UnitState
from services.scheduler.core.two_level import InterDomain


class Requests:
    """Requests of a shard in a session; ``links`` are those of its `Told`."""

    def __init__(self, shard: str, session: Session, links: Mapping[str, Link]) -> None:
        self._shard, self._session, self._links = shard, session, links
        self._numbers: dict[Demand, int] = {}
        self.demands: dict[int, Demand] = {}
        self._waiting: dict[Demand, None] = {}

    def of(
        self,
        name: str,
        number: int = 0,
        *,
        holdings: tuple[Holding, ...] | None = None,
        wanted: tuple[Wanted, ...] = (),
        inter: InterDomain | None = None,
    ) -> Request:
        """A request to a domain in a round; with ``inter`` it names the classes that are new to the domain."""
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
            self._shard,
            self._session,
            number,
            holdings=holdings,
            classes=tuple(classes),
            dropped_classes=tuple(dropped),
            wanted=wanted,
            waiting=link.waiting,
            own_scheduler=link.own_scheduler,
            waiting_classes=self._waiting_classes(name) if link.waiting else (),
        )

    def waiting(self, request: Request, demands: Iterable[Demand]) -> Request:
        """A request that says that units of these classes wait."""
        self._waiting = dict.fromkeys(demands)
        self._links[request.domain_id].waiting = True
        return replace(request, waiting=True, waiting_classes=self._waiting_classes(request.domain_id))

    def parts(self, wanted: Mapping[str, Mapping[GrantName, int]]) -> list[Request]:
        """These grants would like to have other parts of their accelerators, by domain."""
        return [replace(request, parts=tuple(wanted[request.domain_id].items())) for request in map(self.of, wanted)]

    def _waiting_classes(self, name: str) -> tuple[int, ...]:
        return tuple(number for demand in self._waiting if (number := self.number_at(name, demand)))

    def release(self, back: Mapping[str, Iterable[GrantName]]) -> list[Request]:
        """Give these back, by domain."""
        return [
            Request(
                name,
                self._shard,
                self._session,
                released=tuple(names),
                waiting=self._links[name].waiting,
                own_scheduler=self._links[name].own_scheduler,
                waiting_classes=self._waiting_classes(name) if self._links[name].waiting else (),
            )
            for name, names in back.items()
        ]

    def number_at(self, name: str, demand: Demand) -> int:
        """The number of a class that a domain has been told of; 0 when it has not."""
        return self._numbers[demand] if demand in self._links[name].classes else 0

    def _number(self, demand: Demand) -> int:
        number = self._numbers.get(demand)
        if number is None:
            number = self._numbers[demand] = len(self._numbers) + 1
            self.demands[number] = demand
        return number


def holdings_in(name: str, book: Book, now: Round | None) -> tuple[Holding, ...]:
    """What runs hold in a domain, what units hold that wait for nodes to wake, and what it was asked for in the present round and has
    not been carried out."""
    found = [holding_of(run, name, book) for run in book.runs.values() if name in run.open_domains]
    for key in book.nominated:
        kept = kept_grant(book, key)
        ranks = tuple([rank for rank in kept[1].ranks if rank.domain_id == name]) if kept is not None else ()
        if kept is not None and ranks:
            job = book.jobs[key.job_id]
            demand = job.units[key.unit_index].demand
            held = Holding(
                kept[0],
                job.tenant_id,
                held_demand(demand, len(ranks)),
                ranks,
                book.now_s,
                waking=True,
                least_milli=least_of(book, key.job_id),
                asked_milli=demand.device_milli if device_of(ranks) is not None else 0,
            )
            found.append(held)
    if now is not None:
        for asked in now.units.values():
            part = asked.parts.get(name)
            if part is not None:
                found.append(Holding(asked.name, asked.unit.tenant_id, part.unit.demand, (), 0.0))
    return tuple(found)


def given_back(draft: Draft, begun: Collection[str]) -> dict[str, list[GrantName]]:
    """What is to be given back, by domain, because runs of a draft ended, or units do not wait with their grants any more, by whatever
    path; to domains with which the session has ``begun``."""
    back: dict[str, list[GrantName]] = {}
    for run in draft.runs.values():
        before = draft.book.runs.get(run.run_id)
        held = before.open_domains if before is not None else run.open_domains
        left = frozenset() if run.state is RunState.ENDED else run.open_domains
        for name in sorted(held - left):
            if name in begun:
                back.setdefault(name, []).append(GrantName(run.key, run.epoch))
    for key, unit in draft.units.items():
        kept = kept_grant(draft.book, key)
        waits = unit.state is UnitState.QUEUED and kept is not None and unit.nomination == kept[1]
        if kept is None or waits or unit.epoch >= kept[0].epoch:
            continue
        for name in dict.fromkeys(rank.domain_id for rank in kept[1].ranks):
            if name in begun:
                back.setdefault(name, []).append(kept[0])
    return back
