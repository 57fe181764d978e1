"""Shards and domains apart, in memory: what is on its way between them arrives when a test says so, in the form of the contracts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from services.scheduler.core import binding, lifecycle
from services.scheduler.core.apart.dispatching import ANSWER_LIMIT_S, Dispatcher
from services.scheduler.core.apart.granted import Grant, ShardSession
from services.scheduler.core.apart.grants import DomainGrants
from services.scheduler.core.apart.messages import Reply, Request, Session
from services.scheduler.core.apart.turns import take_answers, turn
from services.scheduler.core.apart.waking import kept_grant
from services.scheduler.core.book import Book, Draft
from services.scheduler.core.effects import Effect
from services.scheduler.core.fleet import Fleet, NodeState
from services.scheduler.core.lifecycle import RunReport
from services.scheduler.core.loads import by_load
from services.scheduler.core.measured import News
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import JobSpec, PlacedRank, RunState, UnitKey
from services.scheduler.shards.wire import answer_from, answer_message, request_from, request_message
from tests.unit.scheduler.world import a_fleet

POLICY = Policy(order=("priority", "age"))
SIZES = {"east": 2, "west": 2, "north": 1}


@dataclass
class Shard:
    """A shard's book and dispatcher; what was committed is in the book."""

    name: str
    book: Book
    dispatcher: Dispatcher
    term: int = 1
    sessions: int = 1


@dataclass
class Network:
    """Shards and domains, and what is on its way between them: in order from one to another, in any order otherwise."""

    fleet: Fleet
    shards: dict[str, Shard] = field(default_factory=dict)
    domains: dict[str, DomainGrants] = field(default_factory=dict)
    tables: dict[str, dict[UnitKey, Grant]] = field(default_factory=dict)
    sessions: dict[str, dict[str, ShardSession]] = field(default_factory=dict)
    asked: dict[tuple[str, str], deque[Request]] = field(default_factory=dict)
    answered: dict[tuple[str, str], deque[Reply]] = field(default_factory=dict)
    waking: set[str] = field(default_factory=set)
    effects: list[Effect] = field(default_factory=list)
    now_s: float = 1000.0
    ids: int = 0
    jobs: int = 0

    def begin(self, shards: int) -> None:
        """Everybody starts with nothing."""
        for name in self.fleet.domains:
            self.tables[name], self.sessions[name] = {}, {}
            self.domains[name] = DomainGrants(name, self.fleet, POLICY, 1)
        for number in range(shards):
            name = f"shard-{number}"
            book = Book(POLICY)
            draft = book.draft()
            draft.fleet = replace(self.fleet, asks_domains=True)
            book.merge(draft)
            self.shards[name] = Shard(name, book, Dispatcher(name, Session(1, 1), POLICY))

    def send(self, requests: list[Request]) -> None:
        """On their way, in the form of the contracts."""
        for item in requests:
            known = request_from(request_message(item, self.now_s))
            assert known == item
            self.asked.setdefault((item.shard, item.domain_id), deque()).append(known)

    def step(self, shard: Shard, *, committed: bool = True) -> None:
        """A turn, and another one when the first only began or gave up what was waited for."""
        for _ in range(2):
            draft = shard.book.draft()
            turned = turn(draft, shard.dispatcher, (), (), self.now_s)
            if not committed:
                self.restart_shard(shard, same_term=True)
                return
            self.merge(shard, draft)
            self.send(turned.step.requests)
            if not draft.changed:
                return

    def tick(self, shard: Shard) -> None:
        """Deadlines are carried out."""
        draft = shard.book.draft()
        lifecycle.tick(draft, shard.book.due(self.now_s), self.now_s, POLICY.restarts)
        self.merge(shard, draft)

    def tell_graph(self, shard: Shard) -> None:
        """A shard hears how the nodes are."""
        draft = shard.book.draft()
        draft.fleet = replace(self.fleet, asks_domains=True)
        if draft.fleet != shard.book.fleet:
            self.merge(shard, draft)

    def wake(self, *node_ids: str) -> None:
        """Nodes wake, those of the agents' orders when none are named."""
        nodes = dict(self.fleet.nodes)
        for name in node_ids or sorted(self.waking):
            self.waking.discard(name)
            nodes[name] = replace(nodes[name], state=NodeState.HEALTHY)
        self.refit(replace(self.fleet, nodes=nodes))

    def put_to_sleep(self, *node_ids: str) -> None:
        """Nodes sleep that hold nothing."""
        nodes = dict(self.fleet.nodes)
        for name in node_ids:
            grants = self.domains[nodes[name].domain_id].grants.values()
            if not any(rank.node_id == name for grant in grants for rank in grant.ranks):
                nodes[name] = replace(nodes[name], state=NodeState.ASLEEP)
        self.refit(replace(self.fleet, nodes=nodes))

    def deliver_request(self, pair: tuple[str, str], *, twice: bool = False) -> None:
        request = self.asked[pair].popleft()
        domain = self.domains[request.domain_id]
        replies = [domain.handle(request, self.now_s)]
        if twice:
            again = domain.handle(request, self.now_s)
            assert (again is None) == (replies[0] is None)
            if again is not None and replies[0] is not None:
                assert sorted(again.placed) == sorted(replies[0].placed)
        self.publish(domain, [item for item in replies if item is not None])

    def publish(self, domain: DomainGrants, replies: list[Reply]) -> None:
        for item in [*replies, *domain.news()]:
            known = answer_from(answer_message(item, self.now_s))
            self.answered.setdefault((item.shard, domain.domain_id), deque()).append(known)
        self.waking |= {name for item in domain.take_woken() for name in item.node_ids}
        changes = domain.take_changes()
        for key, grant in changes.grants.items():
            if grant is None:
                self.tables[domain.domain_id].pop(key, None)
            else:
                self.tables[domain.domain_id][key] = grant
        for name, session in changes.sessions.items():
            kept = ShardSession(
                session.session,
                dict(session.classes),
                session.waiting,
                waiting_classes=session.waiting_classes,
            )
            self.sessions[domain.domain_id][name] = kept

    def deliver_answer(self, pair: tuple[str, str], *, committed: bool = True) -> None:
        shard = self.shards[pair[0]]
        reply = self.answered[pair].popleft()
        draft = shard.book.draft()
        taken = take_answers(draft, shard.dispatcher, [reply], POLICY, self.now_s, self._new_id, binding.PORTS)
        if committed:
            self.send(taken.requests)
            self.merge(shard, draft)
        else:
            self.restart_shard(shard, same_term=True)

    def merge(self, shard: Shard, draft: Draft) -> None:
        self.effects += draft.effects
        self.send(shard.dispatcher.released(draft))
        shard.book.merge(draft)

    def restart_shard(self, shard: Shard, *, same_term: bool = False) -> None:
        old = shard.book
        shard.book = Book.restored(old.fleet, old.jobs.values(), old.units.values(), old.runs.values(), POLICY)
        shard.sessions = shard.sessions + 1 if same_term else 1
        shard.term += not same_term
        session = Session(shard.term, shard.sessions)
        shard.dispatcher = Dispatcher(shard.name, session, POLICY, shard.dispatcher.public())

    def restart_domain(self, name: str) -> None:
        term = self.domains[name].term + 1
        grants, sessions = self.tables[name].values(), self.sessions[name]
        kept = {
            shard: ShardSession(i.session, dict(i.classes), i.waiting, waiting_classes=i.waiting_classes)
            for shard, i in sessions.items()
        }
        self.domains[name] = DomainGrants(name, self.fleet, POLICY, term, grants, kept.items())

    def submit(self, shard: Shard, spec: JobSpec) -> None:
        self.jobs += 1
        draft = shard.book.draft()
        lifecycle.submit(draft, f"job-{self.jobs}", f"tenant-of-{shard.name}", spec, self.now_s)
        self.merge(shard, draft)

    def cancel(self, shard: Shard, job_id: str) -> None:
        draft = shard.book.draft()
        lifecycle.cancel(draft, job_id, "", self.now_s, POLICY.restarts)
        self.merge(shard, draft)

    def finish(self, shard: Shard, run_id: str) -> None:
        draft = shard.book.draft()
        for name in sorted(shard.book.runs[run_id].domains):
            lifecycle.finished(draft, RunReport(run_id, name), self.now_s, POLICY.restarts)
        self.merge(shard, draft)

    def hear(self, shard: Shard, news: News) -> None:
        """Programs of a shard's tenants reported steps or loads."""
        draft = shard.book.draft()
        draft.at_s = self.now_s
        shard.book.learn(news, self.now_s)
        wishes = by_load(draft, news, self.now_s, POLICY.restarts)
        self.send(shard.dispatcher.wish(wishes, shard.book))
        self.merge(shard, draft)

    def refit(self, fleet: Fleet) -> None:
        self.fleet = fleet
        for domain in self.domains.values():
            if domain.refit(fleet, self.now_s):
                self.publish(domain, [])

    def exchange(self) -> None:
        """Everybody goes on, and everything that is on its way arrives."""
        for shard in self.shards.values():
            self.tell_graph(shard)
            self.step(shard)
        for pair in list(self.asked):
            while self.asked[pair]:
                self.deliver_request(pair)
        for pair in list(self.answered):
            while self.answered[pair]:
                self.deliver_answer(pair)

    def drain(self) -> None:
        """Everything that is on its way arrives, and every run ends, until nothing happens any more."""
        for _ in range(400):
            self.now_s += ANSWER_LIMIT_S / 50
            if self.waking:
                self.wake()
            self.exchange()
            for shard in self.shards.values():
                for run in list(shard.book.runs.values()):
                    if run.state is RunState.STOPPING:
                        draft = shard.book.draft()
                        lifecycle.tick(draft, [(0.0, "stop", run.run_id)], run.stop_until_s, POLICY.restarts)
                        self.merge(shard, draft)
                    else:
                        self.finish(shard, run.run_id)
            quiet = not any(self.asked.values()) and not any(self.answered.values())
            if quiet and not any(shard.book.queued for shard in self.shards.values()):
                return

    def check(self) -> None:
        """What holds at any time."""
        held: dict[tuple[str, int], int] = {}
        for name, domain in self.domains.items():
            assert domain.grants == self.tables[name]
            view = domain.cluster.view
            assert (view.free_cpus >= -1e-6).all()
            assert (view.free_memory_bytes >= 0).all()
            for grant in domain.grants.values():
                for rank in grant.ranks:
                    for device in rank.devices:
                        place = rank.node_id, device
                        held[place] = held.get(place, 0) + rank.device_milli
        assert not {place: milli for place, milli in held.items() if milli > 1000}
        for domain in self.domains.values():
            for grant in domain.grants.values():
                if grant.least_milli:
                    assert grant.ranks[0].device_milli >= grant.least_milli
        for shard in self.shards.values():
            for run in shard.book.runs.values():
                for name in run.open_domains:
                    kept = self.domains[name].grants.get(run.key)
                    assert kept is not None, f"{run.run_id} runs in {name} without a grant"
                    assert (kept.shard, kept.name.epoch) == (shard.name, run.epoch)
                    # Parts of devices may be on their way.
                    assert whole(kept.ranks) == whole(rank for rank in run.ranks if rank.domain_id == name)
            for key in shard.book.nominated:
                waits = kept_grant(shard.book, key)
                assert waits is not None
                for name in {rank.domain_id for rank in waits[1].ranks}:
                    kept = self.domains[name].grants.get(key)
                    assert kept is not None, f"{key} waits for nodes of {name} without a grant"
                    assert (kept.shard, kept.name) == (shard.name, waits[0])
                    assert set(kept.ranks) == {rank for rank in waits[1].ranks if rank.domain_id == name}

    def _new_id(self) -> str:
        self.ids += 1
        return f"dec-{self.ids}"


def whole(ranks: Iterable[PlacedRank]) -> set[PlacedRank]:
    """Ranks whatever part of their devices they have."""
    return {replace(rank, device_milli=1000) for rank in ranks}


def a_network(shards: int, **node: object) -> Network:
    """A network of which every shard has heard."""
    network = Network(a_fleet(SIZES, **node))
    network.begin(shards)
    network.exchange()
    return network
