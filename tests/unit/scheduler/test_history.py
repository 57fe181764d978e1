"""Whatever happens in whatever order, the invariants of the scheduler hold, and every job ends or waits with a reason."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.scheduler.core import fleet as facts
from services.scheduler.core import lifecycle
from services.scheduler.core.book import Book
from services.scheduler.core.effects import Finished, Placed, Start, Stop
from services.scheduler.core.fleet import Mark, MarkKind
from services.scheduler.core.ledger import Ledger
from services.scheduler.core.lifecycle import RecoveryPlan, RunReport
from services.scheduler.core.state import (
    Checkpoint,
    Demand,
    FailureKind,
    JobKind,
    JobSpec,
    JobState,
    Run,
    RunState,
    UnitKey,
    UnitState,
    WorkflowTask,
)
from tests.unit.scheduler.world import World, a_fleet

NODES = [f"{domain}-{number}" for domain, size in (("east", 2), ("west", 2), ("north", 1)) for number in range(size)]
DOMAINS = ["east", "west", "north"]

demands = st.builds(
    Demand,
    ranks=st.just(1),
    cpus=st.sampled_from([0.1, 1.0, 3.0, 8.0, 9.0]),
    accelerators=st.integers(0, 5),
    domains=st.sampled_from([frozenset(), frozenset({"east"}), frozenset({"nowhere"})]),
    cross_domain=st.booleans(),
)
workflows = st.sampled_from(
    [
        (WorkflowTask("a"), WorkflowTask("b", depends_on=("a",)), WorkflowTask("c", depends_on=("a", "b"), ranks=2)),
        (WorkflowTask("a", depends_on=("b",)), WorkflowTask("b", depends_on=("a",))),
        (WorkflowTask("a"), WorkflowTask("b")),
    ]
)
specs = st.builds(
    JobSpec,
    kind=st.sampled_from(list(JobKind)),
    demand=demands,
    ranks=st.integers(0, 6),
    array_size=st.integers(0, 4),
    replicas=st.integers(1, 2),
    service_port=st.sampled_from([0, 8080]),
    tasks=workflows,
    max_restarts=st.integers(0, 2),
    priority=st.integers(0, 2),
)


class History(RuleBasedStateMachine):
    """Random acts of tenants, agents, failover and time."""

    @initialize()
    def begin(self) -> None:
        self.world = World(a_fleet({"east": 2, "west": 2, "north": 1}))
        self.submitted: list[str] = []
        self.runs: list[Run] = []
        self.specs: dict[str, JobSpec] = {}

    # -- acts ------------------------------------------------------------------------------------------------------

    @rule(spec=specs, tenant=st.sampled_from(["red", "blue"]))
    def submit(self, spec: JobSpec, tenant: str) -> None:
        job_id = f"job-{len(self.submitted)}"
        self.submitted.append(job_id)
        self.specs[job_id] = spec
        self.world.submit(job_id, spec, tenant)

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.world.cancel(data.draw(st.sampled_from(self.submitted)))

    @rule()
    def cycle(self) -> None:
        before = {key: unit.epoch for key, unit in self.world.book.units.items()}
        decisions = self.world.cycle()
        for item in decisions.waiting:
            assert item.explanation.reason
        for item in decisions.placed:
            run = self.world.run(*item.key)
            assert run.epoch == before[item.key] + 1
            self.runs.append(run)
            self._check_placement(run)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), kind=st.sampled_from(["started", "checkpoint", "finished", *FailureKind]))
    def report(self, data: st.DataObject, kind: str) -> None:
        """An agent reports about any run there ever was, ended or not, as often as it likes."""
        run = data.draw(st.sampled_from(self.runs))
        domain_id = data.draw(st.sampled_from(run.domains))
        world = self.world
        draft = world.book.draft()
        if kind == "started":
            lifecycle.started(draft, RunReport(run.run_id, domain_id), world.now_s)
        elif kind == "checkpoint":
            checkpoint = Checkpoint("/ckpt", data.draw(st.integers(1, 9)), domain_id, 100)
            lifecycle.checkpointed(draft, RunReport(run.run_id, domain_id), checkpoint)
        world.merge(draft)
        if kind == "finished":
            world.finish(run, [domain_id])
        elif kind in list(FailureKind):
            world.fail(run, FailureKind(kind), domain_id)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), excluded=st.sets(st.sampled_from(NODES), max_size=2))
    def recover(self, data: st.DataObject, excluded: set[str]) -> None:
        run = data.draw(st.sampled_from(self.runs))
        draft = self.world.book.draft()
        plan = RecoveryPlan(run.key, run.epoch, Checkpoint("/plan", 5), frozenset(excluded), "lost")
        lifecycle.recover(draft, plan, self.world.now_s, self.world.rules)
        self.world.merge(draft)

    @rule(node_id=st.sampled_from(NODES), kind=st.sampled_from([MarkKind.NODE_SUSPECTED, MarkKind.NODE_FAILED]))
    def node_down(self, node_id: str, kind: MarkKind) -> None:
        draft = self.world.book.draft()
        draft.fleet = facts.with_mark(draft.fleet, Mark(kind, node_id))
        if kind is MarkKind.NODE_FAILED:
            domain_id = node_id.partition("-")[0]
            lifecycle.node_failed(draft, node_id, domain_id, self.world.now_s, self.world.rules)
        self.world.merge(draft)

    @rule(node_id=st.sampled_from(NODES))
    def node_up(self, node_id: str) -> None:
        draft = self.world.book.draft()
        keys = [(MarkKind.NODE_SUSPECTED, node_id), (MarkKind.NODE_FAILED, node_id)]
        draft.fleet = facts.without_marks(draft.fleet, keys)
        lifecycle.node_recovered(draft, node_id)
        self.world.merge(draft)

    @rule(domain_id=st.sampled_from(DOMAINS), reachable=st.booleans())
    def reach(self, domain_id: str, reachable: bool) -> None:
        draft = self.world.book.draft()
        mark = Mark(MarkKind.DOMAIN_UNREACHABLE, domain_id)
        if reachable:
            draft.fleet = facts.without_marks(draft.fleet, [(mark.kind, domain_id)])
        else:
            draft.fleet = facts.with_mark(draft.fleet, mark)
        self.world.merge(draft)

    @rule(node_id=st.sampled_from(NODES), device=st.integers(0, 3))
    def revoke_device(self, node_id: str, device: int) -> None:
        draft = self.world.book.draft()
        mark = Mark(MarkKind.DEVICE_REVOKED, f"{node_id}/{device}", "revoked", node_id=node_id)
        draft.fleet = facts.with_mark(draft.fleet, mark)
        lifecycle.fence(draft, mark, self.world.now_s, self.world.rules)
        self.world.merge(draft)

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 20.0, 70.0]))
    def advance(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule()
    def restart(self) -> None:
        """The process dies: what it had in a draft is gone, and the book is built from what was written."""
        lost = self.world.book.draft()
        lifecycle.submit(lost, "never-committed", "red", JobSpec(JobKind.TASK, Demand(1)), self.world.now_s)
        old, new = self.world.book, Book()
        draft = new.draft()
        draft.fleet, draft.jobs, draft.units, draft.runs = old.fleet, dict(old.jobs), dict(old.units), dict(old.runs)
        new.merge(draft)
        self.world.book = new

    # -- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_given_twice(self) -> None:
        book = self.world.book
        cpus: Counter[str] = Counter()
        devices: Counter[tuple[str, int]] = Counter()
        ports: Counter[tuple[str, int]] = Counter()
        ledger = Ledger()
        for run in book.runs.values():
            ledger.move(None, run)
            ports[run.master_addr, run.master_port] += 1
            if run.service_port:
                ports[run.master_addr, run.service_port] += 1
            for rank in run.ranks:
                if rank.domain_id in run.open_domains:
                    cpus[rank.node_id] += run.cpus  # type: ignore[assignment]
                    devices.update((rank.node_id, device) for device in rank.devices)
        assert all(held <= 8.0 + 1e-6 for held in cpus.values())
        assert all(count == 1 for count in devices.values())
        assert all(count == 1 for count in ports.values())
        assert {name: held.devices for name, held in ledger.nodes.items()} == {
            name: held.devices for name, held in book.ledger.nodes.items()
        }
        for name, held in ledger.nodes.items():
            assert abs(held.cpus - book.ledger.nodes[name].cpus) < 1e-6

    @invariant()
    def runs_are_found_by_their_nodes_and_units_by_those_they_avoid(self) -> None:
        book, draft = self.world.book, self.world.book.draft()
        held = {rank.node_id for run in book.runs.values() for rank in run.ranks}
        assert book.runs_on.keys() == held
        avoided = {name for unit in book.units.values() for name in unit.excluded_nodes}
        for node_id in held | avoided | {"nowhere"}:
            there = [run for run in draft.open_runs() if any(rank.node_id == node_id for rank in run.ranks)]
            assert draft.open_runs_on(node_id) == there
            waiting = {
                unit.key
                for unit in book.units.values()
                if unit.state is UnitState.QUEUED and node_id in unit.excluded_nodes
            }
            assert {unit.key for unit in draft.units_avoiding(node_id)} == waiting

    @invariant()
    def a_unit_has_one_run_at_a_time(self) -> None:
        book = self.world.book
        open_runs: dict[UnitKey, list[Run]] = {}
        for run in book.runs.values():
            assert run.state is not RunState.ENDED
            assert run.open_domains
            open_runs.setdefault(run.key, []).append(run)
        for key, unit in book.units.items():
            runs = open_runs.get(key, [])
            assert len(runs) <= 1
            active = [run for run in runs if run.state is RunState.ACTIVE]
            assert bool(active) == (unit.state is UnitState.RUNNING)
            assert all(run.epoch == unit.epoch for run in runs)
            assert (key in book.queued) == (unit.state is UnitState.QUEUED)
        assert set(open_runs) <= set(book.units)

    @invariant()
    def counters_are_right(self) -> None:
        book = self.world.book
        for job in book.jobs.values():
            runs = [run for run in book.runs.values() if run.key.job_id == job.job_id]
            units = [book.units[UnitKey(job.job_id, unit.index)] for unit in job.units]
            assert job.open_runs == len(runs)
            assert job.active_runs == sum(run.state is RunState.ACTIVE for run in runs)
            assert job.succeeded_units == sum(unit.state is UnitState.SUCCEEDED for unit in units)
            expected = JobState.RUNNING if job.active_runs else JobState.QUEUED
            assert job.state in {expected, JobState.ENDING}
            if job.state is JobState.ENDING:
                assert runs
                assert all(run.state is RunState.STOPPING for run in runs)

    @invariant()
    def the_world_is_told_once(self) -> None:
        finished = Counter(effect.job.job_id for effect in self.world.effects if isinstance(effect, Finished))
        assert all(count == 1 for count in finished.values())
        started = Counter((e.run.run_id, e.domain_id) for e in self.world.effects if isinstance(e, Start))
        assert all(count == 1 for count in started.values())
        epochs: dict[UnitKey, int] = {}
        ended: set[str] = set()
        for effect in self.world.effects:
            if isinstance(effect, Placed):
                assert effect.run.epoch > epochs.get(effect.run.key, 0)
                epochs[effect.run.key] = effect.run.epoch
            if isinstance(effect, Finished):
                ended.add(effect.job.job_id)
            if isinstance(effect, Placed | Start | Stop):
                assert effect.job.job_id not in ended
        assert ended | set(self.world.book.jobs) == set(self.submitted)
        assert not ended & set(self.world.book.jobs)

    def _check_placement(self, run: Run) -> None:
        spec = self.world.book.spec_of(run.key)
        assert [rank.rank for rank in run.ranks] == list(range(spec.demand.ranks))
        assert len(run.domains) == 1 or spec.demand.cross_domain
        fleet = self.world.book.fleet
        for rank in run.ranks:
            node = fleet.nodes[rank.node_id]
            assert node.domain_id == rank.domain_id
            assert not fleet.why_down(node)
            assert len(rank.devices) == spec.demand.accelerators
            revoked = {device.index for device in node.devices if not fleet.usable(device)}
            assert not revoked & set(rank.devices)

    def teardown(self) -> None:
        """Everything gets well again: every job that can run ends, every other waits with a reason."""
        if not hasattr(self, "world"):
            return
        world = self.world
        draft = world.book.draft()
        draft.fleet = facts.without_marks(draft.fleet, list(draft.fleet.marks))
        world.merge(draft)
        for job in list(world.book.jobs.values()):
            if job.spec.kind is JobKind.SERVICE:
                world.cancel(job.job_id)
        for _ in range(60):
            world.advance(100.0)
            self.cycle()
            for run in list(world.book.runs.values()):
                world.finish(run)
        waiting = {item.key: item.explanation.reason for item in world.cycle().waiting}
        for job in world.book.jobs.values():
            left = [unit for unit in world.book.units.values() if unit.key.job_id == job.job_id]
            stuck = [unit for unit in left if unit.state is UnitState.QUEUED]
            assert stuck or any(unit.state is UnitState.BLOCKED for unit in left)
            assert all(waiting[unit.key].startswith(("no node qualifies", "too large")) for unit in stuck)
        self.nothing_is_given_twice()
        self.the_world_is_told_once()


TestHistory = History.TestCase
TestHistory.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
