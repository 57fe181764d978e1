"""Both levels apart, as pure state machines: whatever comes late, twice, after a restart or not at all, no device is given
twice, every run has its grant, and in the end every unit has run."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.scheduler.core import lifecycle
from services.scheduler.core.apart.carrying import carry_out
from services.scheduler.core.apart.dispatching import ANSWER_LIMIT_S, HOLDINGS_EVERY_S, Dispatcher
from services.scheduler.core.apart.grants import DomainGrants, Grant, ShardSession
from services.scheduler.core.apart.messages import GrantName, Reply, Request, Session, Wanted
from services.scheduler.core.book import Book, Draft
from services.scheduler.core.fleet import Fleet, Mark, MarkKind, NodeState, with_mark, without_marks
from services.scheduler.core.lifecycle import RunReport
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, JobKind, JobSpec, PlacedRank, RunState, UnitKey
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
            draft.fleet = self.fleet
            book.merge(draft)
            self.shards[name] = Shard(name, book, Dispatcher(name, Session(1, 1), POLICY))

    def send(self, requests: list[Request]) -> None:
        """On their way, in the form of the contracts."""
        for item in requests:
            known = request_from(request_message(item, self.now_s))
            assert known == item
            self.asked.setdefault((item.shard, item.domain_id), deque()).append(known)

    def step(self, shard: Shard, *, committed: bool = True) -> None:
        shard.book.advance(self.now_s)
        step = shard.dispatcher.step(shard.book, self.now_s)
        if committed:
            self.send(step.requests)
        else:
            self.restart_shard(shard, same_term=True)

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
        changes = domain.take_changes()
        for key, grant in changes.grants.items():
            if grant is None:
                self.tables[domain.domain_id].pop(key, None)
            else:
                self.tables[domain.domain_id][key] = grant
        for name, session in changes.sessions.items():
            kept = ShardSession(session.session, dict(session.classes), session.waiting)
            self.sessions[domain.domain_id][name] = kept

    def deliver_answer(self, pair: tuple[str, str], *, committed: bool = True) -> None:
        shard = self.shards[pair[0]]
        reply = self.answered[pair].popleft()
        draft = shard.book.draft()
        heard = shard.dispatcher.answer(reply, draft)
        carry_out(draft, heard.carried, POLICY, self.now_s, self._new_id)
        if committed:
            self.send(heard.requests)
            self.merge(shard, draft)
        else:
            self.restart_shard(shard, same_term=True)

    def merge(self, shard: Shard, draft: Draft) -> None:
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
        kept = {shard: ShardSession(i.session, dict(i.classes), i.waiting) for shard, i in sessions.items()}
        self.domains[name] = DomainGrants(name, self.fleet, POLICY, term, grants, kept.items())

    def submit(self, shard: Shard, spec: JobSpec) -> None:
        self.jobs += 1
        draft = shard.book.draft()
        lifecycle.submit(draft, f"job-{self.jobs}", f"tenant-of-{shard.name}", spec, self.now_s)
        self.merge(shard, draft)

    def finish(self, shard: Shard, run_id: str) -> None:
        draft = shard.book.draft()
        for name in shard.book.runs[run_id].domains:
            lifecycle.finished(draft, RunReport(run_id, name), self.now_s, POLICY.restarts)
        self.merge(shard, draft)

    def refit(self, fleet: Fleet) -> None:
        self.fleet = fleet
        for domain in self.domains.values():
            if domain.refit(fleet):
                self.publish(domain, [])

    def exchange(self) -> None:
        """Everybody goes on, and everything that is on its way arrives."""
        for shard in self.shards.values():
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
        held: dict[tuple[str, int], UnitKey] = {}
        for name, domain in self.domains.items():
            assert domain.grants == self.tables[name]
            view = domain.cluster.view
            assert (view.free_cpus >= -1e-6).all()
            assert (view.free_memory_bytes >= 0).all()
            for grant in domain.grants.values():
                for rank in grant.ranks:
                    for device in rank.devices:
                        assert held.setdefault((rank.node_id, device), grant.name.key) == grant.name.key
        for shard in self.shards.values():
            for run in shard.book.runs.values():
                for name in run.open_domains:
                    grant = self.domains[name].grants.get(run.key)
                    assert grant is not None, f"{run.run_id} runs in {name} without a grant"
                    assert (grant.shard, grant.name.epoch) == (shard.name, run.epoch)
                    assert set(grant.ranks) == {rank for rank in run.ranks if rank.domain_id == name}

    def _new_id(self) -> str:
        self.ids += 1
        return f"dec-{self.ids}"


SPECS = st.one_of(
    st.builds(
        lambda size, cpus: JobSpec(JobKind.TASK, Demand(1, cpus=float(cpus), accelerators=size), command=("run",)),
        st.integers(0, 4),
        st.integers(1, 4),
    ),
    st.builds(
        lambda ranks, size, cross: JobSpec(
            JobKind.GANG, Demand(1, cpus=1.0, accelerators=size, cross_domain=cross), ranks=ranks, command=("run",)
        ),
        st.integers(2, 4),
        st.integers(1, 2),
        st.booleans(),
    ),
    st.just(
        JobSpec(JobKind.GANG, Demand(1, cpus=1.0, accelerators=4, cross_domain=True), ranks=5, command=("run",)),
    ),
)


WHOLE = JobSpec(JobKind.GANG, Demand(1, cpus=1.0, accelerators=4, cross_domain=True), ranks=5, command=("run",))


def a_network(shards: int) -> Network:
    """A network of which every shard has heard."""
    network = Network(a_fleet(SIZES))
    network.begin(shards)
    network.exchange()
    return network


def test_shards_that_want_the_whole_network_at_once_get_it_one_after_another() -> None:
    network = a_network(3)
    for shard in network.shards.values():
        network.submit(shard, WHOLE)
    network.exchange()
    # In every domain another shard is heard first, over and over: each gets a part, none gets all.
    network.asked = dict(sorted(network.asked.items(), key=lambda item: (item[0][1], hash_of(item[0]))))
    network.drain()
    assert not any(shard.book.queued for shard in network.shards.values())


def hash_of(pair: tuple[str, str]) -> int:
    shards, domains = ("shard-0", "shard-1", "shard-2"), ("east", "north", "west")
    return (shards.index(pair[0]) + domains.index(pair[1])) % 3


def test_an_answer_that_comes_after_its_time_is_not_carried_out() -> None:
    network = a_network(1)
    (shard,) = network.shards.values()
    network.submit(shard, JobSpec(JobKind.TASK, Demand(1, cpus=1.0, accelerators=1), command=("run",)))
    network.exchange()
    network.step(shard)
    (asked,) = [pair for pair, queue in network.asked.items() if queue]
    network.deliver_request(asked)
    assert network.domains[asked[1]].grants
    network.now_s += ANSWER_LIMIT_S + 1.0
    network.step(shard)
    network.deliver_answer(asked)
    assert not shard.book.runs
    network.deliver_request(asked)
    assert not network.domains[asked[1]].grants, "what was asked for is taken back"
    network.drain()
    assert not shard.book.queued


def test_what_a_new_session_does_not_name_is_taken_back() -> None:
    network = a_network(1)
    (shard,) = network.shards.values()
    network.submit(shard, JobSpec(JobKind.TASK, Demand(1, cpus=1.0, accelerators=1), command=("run",)))
    network.exchange()
    network.step(shard)
    (asked,) = [pair for pair, queue in network.asked.items() if queue]
    network.deliver_request(asked)
    network.restart_shard(shard)
    draft = shard.book.draft()
    lifecycle.cancel(draft, "job-1", "", network.now_s, POLICY.restarts)
    network.merge(shard, draft)
    assert network.domains[asked[1]].grants
    network.exchange()
    assert not network.domains[asked[1]].grants


def test_what_runs_before_there_are_two_levels_is_adopted() -> None:
    network = a_network(1)
    (shard,) = network.shards.values()
    network.submit(shard, JobSpec(JobKind.TASK, Demand(1, cpus=1.0, accelerators=3), command=("run",)))
    draft = shard.book.draft()
    ranks = (PlacedRank(0, "north", "north-0", 0, (0, 1, 2)),)
    lifecycle.place(draft, UnitKey("job-1", 0), ranks, 1000.0, decision_id="d", policy_version="p", reason="before")
    shard.book.merge(draft)
    network.restart_shard(shard)
    network.exchange()
    (grant,) = network.domains["north"].grants.values()
    assert (grant.name.epoch, grant.ranks) == (1, ranks)
    assert network.domains["north"].cluster.view.free_devices.sum() == 1


def test_a_domain_that_lost_its_state_asks_to_begin_again() -> None:
    network = a_network(1)
    (shard,) = network.shards.values()
    network.tables["east"].clear()
    network.sessions["east"].clear()
    network.restart_domain("east")
    east = frozenset({"east"})
    demand = Demand(1, cpus=1.0, accelerators=1, domains=east)
    network.submit(shard, JobSpec(JobKind.TASK, demand, command=("run",)))
    network.drain()
    assert not shard.book.jobs


def test_a_domain_grants_no_node_that_sleeps() -> None:
    fleet = a_fleet({"east": 2})
    asleep = replace(fleet.nodes["east-0"], state=NodeState.ASLEEP, wake_s=30.0)
    domain = DomainGrants("east", replace(fleet, nodes={**fleet.nodes, "east-0": asleep}), POLICY, 1)
    demand = Demand(2, cpus=1.0, accelerators=4)
    wanted = Wanted(GrantName(UnitKey("job-1", 0), 1), "lab", 0, demand)
    reply = domain.handle(Request("east", "shard-0", Session(1, 1), 1, begins=True, wanted=(wanted,)), 0.0)
    assert reply is not None
    assert reply.placed == ()
    assert reply.refused[0][0] == wanted.name


def test_an_older_session_and_an_older_epoch_get_nothing() -> None:
    domain = DomainGrants("east", a_fleet({"east": 1}), POLICY, 1)
    key, demand = UnitKey("job-1", 0), Demand(1, cpus=1.0, accelerators=1)
    second = Wanted(GrantName(key, 2), "lab", 0, demand)
    reply = domain.handle(Request("east", "shard-0", Session(2, 1), 1, begins=True, wanted=(second,)), 0.0)
    assert reply is not None
    assert [name for name, _ in reply.placed] == [second.name]
    assert domain.handle(Request("east", "shard-0", Session(1, 9), 5, released=(second.name,)), 0.0) is None
    assert key in domain.grants
    late = domain.handle(
        Request("east", "shard-0", Session(2, 1), 2, wanted=(Wanted(GrantName(key, 1), "lab", 0, demand),)), 0.0
    )
    assert late is not None
    assert late.refused == ((GrantName(key, 1), "epoch 2 of it was granted already"),)
    other = domain.handle(Request("east", "shard-1", Session(1, 1), 1, begins=True, wanted=(second,)), 0.0)
    assert other is not None
    assert other.refused == ((second.name, "it was granted to shard-0"),)
    assert domain.grants[key].shard == "shard-0"


class TwoLevelsApart(RuleBasedStateMachine):
    """Any order of everything that may happen."""

    @initialize(shards=st.integers(1, 3), specs=st.lists(SPECS, min_size=2, max_size=4))
    def begin(self, shards: int, specs: list[JobSpec]) -> None:
        self.network = Network(a_fleet(SIZES))
        self.network.begin(shards)
        for shard in self.network.shards.values():
            for spec in specs:
                self.network.submit(shard, spec)
        # Sessions begin, classes are told, the first units are asked for.
        for _ in range(2):
            self.network.exchange()
        for shard in self.network.shards.values():
            self.network.step(shard)

    def _shard(self, data: st.DataObject) -> Shard:
        return self.network.shards[data.draw(st.sampled_from(sorted(self.network.shards)))]

    @rule(data=st.data(), spec=SPECS, count=st.integers(1, 6))
    def submit(self, data: st.DataObject, spec: JobSpec, count: int) -> None:
        shard = self._shard(data)
        for _ in range(count):
            self.network.submit(shard, spec)

    @rule()
    def step(self) -> None:
        for shard in self.network.shards.values():
            self.network.step(shard)

    @rule()
    def exchange(self) -> None:
        self.network.exchange()

    @precondition(lambda self: any(self.network.asked.values()))
    @rule(data=st.data(), count=st.integers(1, 5), twice=st.booleans())
    def ask(self, data: st.DataObject, count: int, twice: bool) -> None:
        for _ in range(count):
            pairs = sorted(pair for pair, queue in self.network.asked.items() if queue)
            if pairs:
                self.network.deliver_request(data.draw(st.sampled_from(pairs)), twice=twice)

    @precondition(lambda self: any(self.network.answered.values()))
    @rule(data=st.data(), count=st.integers(1, 5))
    def answer(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            pairs = sorted(pair for pair, queue in self.network.answered.items() if queue)
            if pairs:
                self.network.deliver_answer(data.draw(st.sampled_from(pairs)))

    @precondition(lambda self: any(self.network.answered.values()))
    @rule(data=st.data())
    def answer_and_fail_to_commit(self, data: st.DataObject) -> None:
        pairs = sorted(pair for pair, queue in self.network.answered.items() if queue)
        self.network.deliver_answer(data.draw(st.sampled_from(pairs)), committed=False)

    @rule(data=st.data())
    def step_and_fail_to_commit(self, data: st.DataObject) -> None:
        self.network.step(self._shard(data), committed=False)

    @precondition(lambda self: any(shard.book.runs for shard in self.network.shards.values()))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        runs = sorted((name, run) for name, shard in self.network.shards.items() for run in shard.book.runs)
        name, run_id = data.draw(st.sampled_from(runs))
        self.network.finish(self.network.shards[name], run_id)

    @precondition(lambda self: any(shard.book.jobs for shard in self.network.shards.values()))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        jobs = sorted((name, job) for name, shard in self.network.shards.items() for job in shard.book.jobs)
        name, job_id = data.draw(st.sampled_from(jobs))
        shard = self.network.shards[name]
        draft = shard.book.draft()
        lifecycle.cancel(draft, job_id, "", self.network.now_s, POLICY.restarts)
        self.network.merge(shard, draft)

    @rule(data=st.data(), same_term=st.booleans())
    def restart_shard(self, data: st.DataObject, same_term: bool) -> None:
        self.network.restart_shard(self._shard(data), same_term=same_term)

    @rule(name=st.sampled_from(sorted(SIZES)))
    def restart_domain(self, name: str) -> None:
        self.network.restart_domain(name)

    @rule(passed_s=st.sampled_from([1.0, ANSWER_LIMIT_S + 1.0, HOLDINGS_EVERY_S + 1.0]))
    def time_passes(self, passed_s: float) -> None:
        self.network.now_s += passed_s
        self.step()

    @rule(node=st.sampled_from(["east-0", "east-1", "west-0", "north-0"]), down=st.booleans())
    def node_changes(self, node: str, down: bool) -> None:
        mark = Mark(MarkKind.NODE_SUSPECTED, node, "test", node.split("-", maxsplit=1)[0], node)
        fleet = self.network.fleet
        self.network.refit(with_mark(fleet, mark) if down else without_marks(fleet, [(mark.kind, mark.subject)]))

    @invariant()
    def nothing_is_given_twice(self) -> None:
        if hasattr(self, "network"):
            self.network.check()

    def teardown(self) -> None:
        if not hasattr(self, "network"):
            return
        network = self.network
        network.refit(replace(network.fleet, marks={}))
        network.drain()
        network.check()
        for shard in network.shards.values():
            assert not shard.book.queued, f"{shard.name} waits for ever"
            assert not shard.book.jobs
        assert not any(domain.grants for domain in network.domains.values())


TwoLevelsApart.TestCase.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTwoLevelsApart = TwoLevelsApart.TestCase
