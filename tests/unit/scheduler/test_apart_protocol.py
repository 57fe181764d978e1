"""Both levels apart, as pure state machines: whatever comes late, twice, after a restart or not at all, no device is given
twice, every run has its grant, and in the end every unit has run."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.scheduler.core import binding, lifecycle
from services.scheduler.core.apart.dispatching import ANSWER_LIMIT_S, HOLDINGS_EVERY_S
from services.scheduler.core.apart.grants import DomainGrants
from services.scheduler.core.apart.messages import GrantName, Request, Session, Wanted
from services.scheduler.core.fleet import Mark, MarkKind, NodeState, with_mark, without_marks
from services.scheduler.core.measured import Load, News
from services.scheduler.core.scaling import Scaling
from services.scheduler.core.state import Demand, JobKind, JobSpec, JobState, PlacedRank, RunState, UnitKey, UnitState
from tests.unit.scheduler.apart_network import POLICY, SIZES, Network, Shard, a_network
from tests.unit.scheduler.world import a_fleet

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
    st.just(
        JobSpec(
            JobKind.SERVICE,
            Demand(1, cpus=1.0, accelerators=1),
            replicas=1,
            command=("serve",),
            scaling=Scaling(1, 4, target=10.0, down_after_s=0.0, cooldown_s=0.0),
        ),
    ),
    st.just(
        JobSpec(
            JobKind.SERVICE,
            Demand(1, cpus=1.0, accelerators=1, device_milli=300),
            replicas=1,
            command=("serve",),
            scaling=Scaling(1, 2, target=10.0, down_after_s=0.0, cooldown_s=0.0),
            most_milli=800,
        ),
    ),
    st.just(
        JobSpec(
            JobKind.TASK,
            Demand(1, cpus=1.0, accelerators=1, device_milli=700),
            command=("train",),
            least_milli=200,
        ),
    ),
)


WHOLE = JobSpec(JobKind.GANG, Demand(1, cpus=1.0, accelerators=4, cross_domain=True), ranks=5, command=("run",))


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
    binding.place(draft, UnitKey("job-1", 0), ranks, 1000.0, decision_id="d", policy_version="p", reason="before")
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
        self.network = Network(a_fleet(SIZES, wake_s=30.0))
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

    @rule(data=st.data(), value=st.sampled_from([1.0, 10.0, 40.0]))
    def replicas_report(self, data: st.DataObject, value: float) -> None:
        """Replicas come and go by their load, whatever is on its way about them."""
        shard, now_s = self._shard(data), self.network.now_s
        books = shard.book
        active = [run for run in books.runs.values() if run.state is RunState.ACTIVE]
        loads = [(run.key, Load(value, now_s)) for run in active if books.jobs[run.key.job_id].spec.scaling is not None]
        self.network.hear(shard, News(loads=tuple(loads)))
        for job in books.jobs.values():
            if job.spec.scaling is not None and job.state in {JobState.QUEUED, JobState.RUNNING}:
                wanted = [
                    key
                    for key in [UnitKey(job.job_id, item.index) for item in job.units]
                    if books.units[key].state is not UnitState.BLOCKED
                ]
                assert 1 <= len(wanted) <= 4

    @precondition(lambda self: any(shard.book.jobs for shard in self.network.shards.values()))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        jobs = sorted((name, job) for name, shard in self.network.shards.items() for job in shard.book.jobs)
        name, job_id = data.draw(st.sampled_from(jobs))
        shard = self.network.shards[name]
        self.network.cancel(shard, job_id)

    @rule(data=st.data(), same_term=st.booleans())
    def restart_shard(self, data: st.DataObject, same_term: bool) -> None:
        self.network.restart_shard(self._shard(data), same_term=same_term)

    @rule(name=st.sampled_from(sorted(SIZES)))
    def restart_domain(self, name: str) -> None:
        self.network.restart_domain(name)

    @rule(passed_s=st.sampled_from([1.0, ANSWER_LIMIT_S + 1.0, HOLDINGS_EVERY_S + 1.0]))
    def time_passes(self, passed_s: float) -> None:
        self.network.now_s += passed_s
        for shard in self.network.shards.values():
            self.network.tick(shard)
        self.step()

    @rule(node=st.sampled_from(["east-0", "east-1", "west-0", "north-0"]), down=st.booleans())
    def node_changes(self, node: str, down: bool) -> None:
        mark = Mark(MarkKind.NODE_SUSPECTED, node, "test", node.split("-", maxsplit=1)[0], node)
        fleet = self.network.fleet
        self.network.refit(with_mark(fleet, mark) if down else without_marks(fleet, [(mark.kind, mark.subject)]))

    @rule(nodes=st.sets(st.sampled_from(["east-0", "east-1", "west-0", "north-0"]), min_size=1))
    def nodes_sleep(self, nodes: set[str]) -> None:
        self.network.put_to_sleep(*sorted(nodes))

    @precondition(lambda self: self.network.waking)
    @rule(data=st.data())
    def a_node_wakes(self, data: st.DataObject) -> None:
        self.network.wake(data.draw(st.sampled_from(sorted(self.network.waking))))

    @rule(data=st.data())
    def graph_is_told(self, data: st.DataObject) -> None:
        self.network.tell_graph(self._shard(data))

    @invariant()
    def nothing_is_given_twice(self) -> None:
        if hasattr(self, "network"):
            self.network.check()

    def teardown(self) -> None:
        if not hasattr(self, "network"):
            return
        network = self.network
        network.refit(replace(network.fleet, marks={}))
        # Nodes that did not wake in time are tried again after this.
        network.now_s += 2.0 * POLICY.restarts.exclusion_s
        for shard in network.shards.values():
            for job in [job for job in shard.book.jobs.values() if job.spec.kind is JobKind.SERVICE]:
                # Nothing else ends a service.
                network.cancel(shard, job.job_id)
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
