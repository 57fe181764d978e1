"""What a decider of domains does with what it hears, without a bus, a database or a clock: the same live and in a replay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.message import Message

from meridian.codec import Envelope
from meridian.contracts.forecast.v1 import forecast_pb2
from services.scheduler import events
from services.scheduler.core.apart.granted import Grant, ShardSession
from services.scheduler.core.apart.grants import DomainGrants
from services.scheduler.core.apart.messages import Reply, Request
from services.scheduler.core.apart.resting import Woken
from services.scheduler.core.book import Book
from services.scheduler.core.effects import Sleep
from services.scheduler.core.fleet import Fleet, with_mark, without_marks
from services.scheduler.core.idle_nodes import IdleRules, idle_rules_of
from services.scheduler.core.policy import Policy
from services.scheduler.domains.answer_size import ANSWER_BYTES, fitted


class Deciding:
    """The domains of a decider: their facts, and the grants of each.

    ``grants`` and ``sessions`` are as they were written, by domain; ``term`` is the decider's. ``counted``: sequences of
    summaries count from here in this term (`next_count` of what went before). ``begun_s`` is when everything was read: idle nodes are since
    then. ``most_bytes``: of an answer; what it has no room to tell is not granted.
    """

    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        term: int,
        grants: Mapping[str, Sequence[Grant]] | None = None,
        sessions: Mapping[str, Mapping[str, ShardSession]] | None = None,
        counted: int = 0,
        begun_s: float = 0.0,
        most_bytes: int = ANSWER_BYTES,
    ) -> None:
        self._most_bytes = most_bytes
        grants, sessions = grants or {}, sessions or {}
        self._counted, self._begun_s = counted, begun_s
        self.rules: IdleRules | None = idle_rules_of(policy)
        self.fleet, self.policy, self.term = fleet, policy, term
        self.domains = {
            name: DomainGrants(
                name, fleet, policy, term, grants.get(name, ()), sessions.get(name, {}).items(), counted, begun_s
            )
            for name in sorted({*fleet.domains, *grants, *sessions})
            if not fleet.schedules_itself(name)
        }

    def asked(self, requests: Iterable[Request], now_s: float) -> tuple[list[Reply], list[DomainGrants]]:
        """Requests of shards, in order: the answers, then what shards that wait are told unasked; and the domains."""
        replies: list[Reply] = []
        touched: dict[str, DomainGrants] = {}
        for request in requests:
            domain = touched[request.domain_id] = self.domain(request.domain_id)
            reply = domain.handle(request, now_s)
            if reply is not None:
                reply, untold = fitted(reply, self._most_bytes, now_s)
                replies.append(domain.take_back(request, reply, untold, now_s) if untold else reply)
        return [*replies, *_news(touched.values())], list(touched.values())

    def learned(self, envelopes: Sequence[Envelope], now_s: float) -> tuple[list[Reply], list[DomainGrants]] | None:
        """Events about the fleet: what shards that wait are told, and the domains that changed. None: it was no news."""
        draft = Book().draft()
        draft.fleet = draft.fleet_before = self.fleet
        events.apply(events.Batch(draft, now_s, self.policy.restarts, set()), envelopes)
        if draft.fleet is self.fleet:
            return None
        self.fleet = draft.fleet
        for name in [name for name in self.domains if self.fleet.schedules_itself(name)]:
            self._counted = self.next_count()
            del self.domains[name]
        names = dict.fromkeys(domain_of(item.data) for item in envelopes)
        touched = [self.domain(name) for name in names if name and not self.fleet.schedules_itself(name)]
        changed = [domain for domain in touched if domain.refit(self.fleet, now_s) or not domain.sessions]
        return _news(changed), changed

    def rest(self, now_s: float) -> tuple[list[Sleep], list[Reply], list[DomainGrants]]:
        """Idle nodes go to sleep by the policy's rules: what agents are told, what shards that wait are told, and the domains that
        changed."""
        told: list[Sleep] = []
        before = self.fleet
        for domain in self.domains.values():
            if self.rules is None:
                break
            after, sleeps = domain.rest(self.rules, now_s)
            told += sleeps
            gone = [key for key in domain.fleet.marks if key not in after.marks]
            self.fleet = without_marks(self.fleet, gone)
            for mark in after.marks.values():
                self.fleet = with_mark(self.fleet, mark)
        if self.fleet is before:
            return told, [], []
        changed = [domain for domain in self.domains.values() if domain.refit(self.fleet, now_s)]
        return told, _news(changed), changed

    def take_woken(self) -> list[Woken]:
        """Nodes that are to be woken since this was asked last."""
        return [item for domain in self.domains.values() for item in domain.take_woken()]

    def domain(self, domain_id: str) -> DomainGrants:
        """The grants of a domain; a new one has none."""
        domain = self.domains.get(domain_id)
        if domain is None:
            domain = self.domains[domain_id] = DomainGrants(
                domain_id, self.fleet, self.policy, self.term, counted=self._counted, begun_s=self._begun_s
            )
        return domain

    def next_count(self) -> int:
        """More than any summary of this term has counted."""
        return 1 + max([self._counted, *(domain.counted for domain in self.domains.values())])


def domain_of(message: Message) -> str:
    """The domain that an event about the fleet is about; empty when it is about none."""
    if isinstance(message, forecast_pb2.DemandForecast):
        of_domain = message.subject_kind == forecast_pb2.FORECAST_SUBJECT_KIND_DOMAIN
        return message.subject_id if of_domain else ""
    return str(getattr(message, "domain_id", ""))


def _news(domains: Iterable[DomainGrants]) -> list[Reply]:
    return [reply for domain in domains for reply in domain.news()]
