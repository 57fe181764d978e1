"""What each event does to jobs, units and runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.scheduler.core import fleet as facts
from services.scheduler.core import lifecycle
from services.scheduler.core.effects import Finished, Placed, Preempted, Queued, Start, Stop
from services.scheduler.core.errors import MalformedJobError
from services.scheduler.core.fleet import Mark, MarkKind
from services.scheduler.core.lifecycle import RecoveryPlan, RunReport
from services.scheduler.core.state import (
    Checkpoint,
    Demand,
    FailureKind,
    JobKind,
    JobSpec,
    JobState,
    RunState,
    UnitKey,
    UnitState,
    WorkflowTask,
)
from services.scheduler.core.units import units_of
from tests.unit.scheduler.world import World, a_fleet, gang, task


@pytest.fixture
def world() -> World:
    return World(a_fleet({"east": 2, "west": 1}))


def outcome(world: World, job_id: str = "job") -> JobState | None:
    found = [effect.outcome for effect in world.effects if isinstance(effect, Finished) and effect.job.job_id == job_id]
    assert len(found) <= 1
    if found:
        last = [effect for effect in world.effects if effect.job.job_id == job_id][-1]
        assert isinstance(last, Finished), f"{last} after the end"
    return found[0] if found else None


def unit(world: World, index: int = 0):  # type: ignore[no-untyped-def]
    return world.book.units[UnitKey("job", index)]


def recover(world: World, epoch: int, **plan: object) -> None:
    draft = world.book.draft()
    key = UnitKey("job", 0)
    lifecycle.recover(draft, RecoveryPlan(key, epoch, **plan), world.now_s, world.rules)  # type: ignore[arg-type]
    world.merge(draft)


def mark(world: World, item: Mark) -> None:
    draft = world.book.draft()
    draft.fleet = facts.with_mark(draft.fleet, item)
    world.merge(draft)


# -- specifications ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        (gang(0), "at least one rank"),
        (JobSpec(JobKind.ARRAY, Demand(1)), "array_size"),
        (JobSpec(JobKind.ARRAY, Demand(1), array_size=100_001), "at most 100000"),
        (JobSpec(JobKind.SERVICE, Demand(1)), "replicas"),
        (JobSpec(JobKind.WORKFLOW, Demand(1)), "tasks"),
        (JobSpec(JobKind.WORKFLOW, Demand(1), tasks=(WorkflowTask("a"), WorkflowTask("a"))), "same name"),
        (JobSpec(JobKind.WORKFLOW, Demand(1), tasks=(WorkflowTask("a", depends_on=("z",)),)), "'z'"),
        (JobSpec(JobKind.WORKFLOW, Demand(1), tasks=(WorkflowTask("a", depends_on=("a",)),)), "cycle among a"),
        (task(cpus=-1.0), "cpus"),
        (task(cpus=float("nan")), "cpus"),
        (task(memory_bytes=-1), "memory_bytes"),
    ],
)
def test_malformed_jobs_fail_with_the_reason_and_leave_nothing(world: World, spec: JobSpec, names: str) -> None:
    with pytest.raises(MalformedJobError, match=names):
        units_of(spec)
    world.submit("job", spec)
    assert outcome(world) is JobState.FAILED
    assert not world.book.jobs
    assert not world.book.units


def test_units_of_each_kind() -> None:
    assert [item.demand.ranks for item in units_of(gang(5))] == [5]
    array = units_of(JobSpec(JobKind.ARRAY, Demand(1), array_size=3, command=("x",)))
    assert [(item.index, item.array_index, item.command) for item in array] == [(n, n, ("x",)) for n in range(3)]
    assert array[0].demand is array[2].demand
    replicas = units_of(JobSpec(JobKind.SERVICE, Demand(1), replicas=2, service_port=80))
    assert [item.demand.service_port for item in replicas] == [80, 80]
    tasks = (WorkflowTask("b", depends_on=("a",), ranks=2), WorkflowTask("a", ("own",)))
    flow = units_of(JobSpec(JobKind.WORKFLOW, Demand(1), command=("shared",), tasks=tasks))
    assert [(item.name, item.depends_on, item.demand.ranks, item.command) for item in flow] == [
        ("b", (1,), 2, ("shared",)),
        ("a", (), 1, ("own",)),
    ]


def test_a_job_submitted_twice_is_one_job(world: World) -> None:
    world.submit("job", task())
    world.submit("job", gang(3))
    assert len(world.of(Queued)) == 1
    assert world.book.jobs["job"].spec.kind is JobKind.TASK


# -- runs --------------------------------------------------------------------------------------------------------------


def test_a_run_over_two_domains_is_finished_when_both_are(world: World) -> None:
    world.submit("job", gang(3, accelerators=4, cross_domain=True))
    world.cycle()
    run = world.run("job")
    assert set(run.domains) == {"east", "west"}
    assert {effect.domain_id for effect in world.of(Start)} == {"east", "west"}  # type: ignore[attr-defined]
    world.finish(run, ["west"])
    assert outcome(world) is None
    assert not any(name.startswith("west") for name in world.book.ledger.nodes), "west is free again"
    world.finish(run, ["west"])
    assert outcome(world) is None
    world.finish(run, ["east"])
    assert outcome(world) is JobState.SUCCEEDED
    assert not world.book.ledger.nodes


def test_the_first_failure_stops_the_other_domains(world: World) -> None:
    world.submit("job", gang(3, accelerators=4, cross_domain=True))
    world.cycle()
    run = world.run("job")
    world.fail(run, FailureKind.PROGRAM, "west")
    assert [effect.domain_id for effect in world.of(Stop)] == ["east"]  # type: ignore[attr-defined]
    assert outcome(world) is None, "east still runs"
    world.fail(run, FailureKind.STOPPED, "east")
    assert outcome(world) is JobState.FAILED


def test_program_failures_back_off_and_run_out(world: World) -> None:
    world.submit("job", replace(task(), max_restarts=3))
    waits = []
    for _ in range(3):
        world.cycle()
        world.fail(world.run("job"), FailureKind.PROGRAM)
        waits.append(unit(world).not_before_s - world.now_s)
        assert not world.cycle().placed
        world.advance(waits[-1])
    assert waits == [1.0, 2.0, 4.0]
    world.cycle()
    world.fail(world.run("job"), FailureKind.OUT_OF_MEMORY)
    assert outcome(world) is JobState.FAILED
    assert [effect.run.epoch for effect in world.of(Placed)] == [1, 2, 3, 4]  # type: ignore[attr-defined]


def test_a_time_limit_is_not_tried_again(world: World) -> None:
    world.submit("job", replace(task(), max_restarts=3))
    world.cycle()
    world.fail(world.run("job"), FailureKind.TIME_LIMIT)
    assert outcome(world) is JobState.FAILED


def test_back_off_is_bounded() -> None:
    rules = World(a_fleet({})).rules
    assert [rules.backoff(count) for count in (1, 2, 5, 6, 7, 10_000)] == [1.0, 2.0, 16.0, 30.0, 30.0, 30.0]


@pytest.mark.parametrize("kind", sorted(lifecycle.LOST))
def test_a_lost_run_waits_for_its_plan_or_ten_seconds(world: World, kind: FailureKind) -> None:
    world.submit("job", task())
    world.cycle()
    world.fail(world.run("job"), kind)
    assert unit(world).state is UnitState.RECOVERING
    assert not world.cycle().placed
    world.advance(9.9)
    assert unit(world).state is UnitState.RECOVERING
    world.advance(0.2)
    assert unit(world).state is UnitState.QUEUED
    assert (unit(world).recoveries, unit(world).failures) == (1, 0)
    assert len(world.of(Preempted)) == 1
    recover(world, 1)
    assert unit(world).recoveries == 1, "the plan came too late and changes nothing"


def test_a_failed_node_without_a_plan_is_recovered_from_by_time(world: World) -> None:
    world.submit("job", task())
    world.cycle()
    node_id, domain_id = world.run("job").ranks[0].node_id, world.run("job").ranks[0].domain_id
    mark(world, Mark(MarkKind.NODE_FAILED, node_id))
    draft = world.book.draft()
    lifecycle.node_failed(draft, node_id, domain_id, world.now_s, world.rules)
    world.merge(draft)
    assert unit(world).state is UnitState.RUNNING
    world.advance(10.0)
    assert unit(world).state is UnitState.QUEUED
    assert unit(world).excluded_nodes == {node_id}
    world.fail(world.run("job"), FailureKind.STOPPED)
    world.cycle()
    assert world.run("job").ranks[0].node_id != node_id


def silent(world: World) -> None:
    """The only node of a running job is taken for dead, and a plan is made."""
    node_id = world.run("job").ranks[0].node_id
    mark(world, Mark(MarkKind.NODE_FAILED, node_id))
    recover(world, 1, excluded_nodes=frozenset({node_id}))


def test_a_unit_on_a_silent_node_runs_again_only_when_its_agent_has_fenced_it(world: World) -> None:
    world.submit("job", task())
    world.cycle()
    first = world.run("job")
    silent(world)
    assert [effect.grace_s for effect in world.of(Stop)] == [0.0]  # type: ignore[attr-defined]
    assert not world.cycle().placed
    world.fail(first, FailureKind.NODE_LOST)
    assert world.cycle().placed
    assert world.run("job").epoch == 2


def test_a_refused_order_costs_no_restart_and_blames_no_node(world: World) -> None:
    world.submit("job", replace(task(), max_restarts=0))
    world.cycle()
    world.fail(world.run("job"), FailureKind.REFUSED)
    waiting = unit(world)
    assert (waiting.state, waiting.failures, waiting.excluded_nodes) == (UnitState.QUEUED, 0, frozenset())
    assert not world.cycle().placed
    world.advance(world.rules.backoff(1))
    assert world.cycle().placed
    assert world.run("job").epoch == 2


def test_a_unit_whose_agent_never_answers_runs_again_after_a_time(world: World) -> None:
    world.submit("job", task())
    world.cycle()
    silent(world)
    world.advance(15.0)
    assert world.cycle().placed


def test_a_program_that_had_finished_on_a_silent_node_is_not_run_again(world: World) -> None:
    world.submit("job", task())
    world.cycle()
    silent(world)
    world.finish(world.run("job"))
    assert outcome(world) is JobState.SUCCEEDED
    assert not world.cycle().placed
    assert len(world.of(Placed)) == 1


def test_what_finishes_on_a_revoked_node_is_run_again(world: World) -> None:
    world.submit("job", task())
    world.cycle()
    run = world.run("job")
    node_id = run.ranks[0].node_id
    item = Mark(MarkKind.NODE_REVOKED, f"id/{node_id}", "revoked", node_id=node_id)
    draft = world.book.draft()
    draft.fleet = facts.with_mark(draft.fleet, item)
    lifecycle.fence(draft, item, world.now_s, world.rules)
    world.merge(draft)
    world.finish(run)
    assert unit(world).state is UnitState.QUEUED
    assert world.cycle().placed


def test_a_plan_is_carried_out_once_and_resumes_from_the_newest_checkpoint(world: World) -> None:
    world.submit("job", task())
    world.cycle()
    run = world.run("job")
    draft = world.book.draft()
    for step in (10, 30, 20):
        lifecycle.checkpointed(draft, RunReport(run.run_id, "east"), Checkpoint(f"/c/{step}", step, "east", 5))
    world.merge(draft)
    mark(world, Mark(MarkKind.NODE_FAILED, run.ranks[0].node_id))
    recover(world, 1, checkpoint=Checkpoint("/plan", 15))
    recover(world, 1, checkpoint=Checkpoint("/plan", 15))
    assert unit(world).checkpoint == Checkpoint("/c/30", 30, "east", 5)
    assert unit(world).recoveries == 1
    world.fail(run, FailureKind.NODE_LOST)
    world.cycle()
    assert world.run("job").epoch == 2
    recover(world, 1)
    assert world.run("job").epoch == 2
    start = world.of(Start)[-1]
    assert start.checkpoint.step == 30  # type: ignore[attr-defined]


def test_a_unit_is_not_placed_while_its_former_run_may_be_alive(world: World) -> None:
    world.submit("job", gang(2, accelerators=4, domains=frozenset({"east"})))
    world.cycle()
    run = world.run("job")
    mark(world, Mark(MarkKind.NODE_FAILED, "east-0"))
    recover(world, 1, excluded_nodes=frozenset({"east-0"}))
    assert world.run("job").state is RunState.STOPPING
    assert "east-1" in world.book.ledger.nodes, "its capacity is still held"
    assert not world.cycle().placed
    world.advance(15.0)
    assert not world.book.runs, "nobody confirmed within the time"
    assert run.run_id not in world.book.runs
    assert unit(world).state is UnitState.QUEUED


def test_recoveries_are_bounded(world: World) -> None:
    world.submit("job", task())
    for _ in range(50):
        world.cycle()
        world.fail(world.run("job"), FailureKind.STOPPED)
    assert unit(world).recoveries == 50
    world.cycle()
    world.fail(world.run("job"), FailureKind.STOPPED)
    assert outcome(world) is JobState.FAILED


def test_exclusions_end_by_time_or_when_the_node_is_back(world: World) -> None:
    world.submit("job", task(domains=frozenset({"west"})))
    world.cycle()
    recover(world, 1, excluded_nodes=frozenset({"west-0"}))
    world.fail(world.book.runs["job.0.1"], FailureKind.STOPPED)
    assert not world.cycle().placed
    assert "excluded_node" in world.decisions.waiting[0].explanation.reason
    world.advance(60.0)
    assert world.cycle().placed
    recover(world, 2, excluded_nodes=frozenset({"west-0"}))
    world.fail(world.book.runs["job.0.2"], FailureKind.STOPPED)
    assert not world.cycle().placed
    draft = world.book.draft()
    lifecycle.node_recovered(draft, "west-0")
    world.merge(draft)
    assert world.cycle().placed


# -- jobs --------------------------------------------------------------------------------------------------------------


def test_cancel_finishes_at_once_when_nothing_runs(world: World) -> None:
    world.submit("job", gang(2))
    world.cancel("job")
    world.cancel("job")
    assert outcome(world) is JobState.CANCELLED
    assert not world.of(Stop)


def test_cancel_waits_for_runs_at_most_fifteen_seconds(world: World) -> None:
    world.submit("job", JobSpec(JobKind.ARRAY, Demand(1, cpus=8.0), array_size=4))
    world.cycle()
    world.cancel("job")
    assert len(world.of(Stop)) == 3
    assert all(effect.grace_s == 5.0 for effect in world.of(Stop))  # type: ignore[attr-defined]
    first, *_ = world.book.runs.values()
    world.fail(first, FailureKind.STOPPED)
    assert outcome(world) is None
    world.advance(14.9)
    assert outcome(world) is None
    world.advance(0.2)
    assert outcome(world) is JobState.CANCELLED
    assert not world.book.ledger.nodes


def test_a_failed_unit_takes_its_job_with_it(world: World) -> None:
    world.submit("job", JobSpec(JobKind.ARRAY, Demand(1, cpus=1.0), array_size=3))
    world.cycle()
    runs = list(world.book.runs.values())
    world.finish(runs[0])
    world.fail(runs[1], FailureKind.PROGRAM)
    assert [effect.run.run_id for effect in world.of(Stop)] == [runs[2].run_id]  # type: ignore[attr-defined]
    world.fail(runs[2], FailureKind.STOPPED)
    assert outcome(world) is JobState.FAILED
    assert "unit 1" in world.of(Finished)[0].reason  # type: ignore[attr-defined]


def test_service_replicas_start_again_whatever_ends_them(world: World) -> None:
    world.submit("job", JobSpec(JobKind.SERVICE, Demand(1, cpus=1.0), replicas=1))
    for epoch, end in enumerate(["finish", FailureKind.PROGRAM, FailureKind.NOT_STARTABLE, "finish"], start=1):
        assert world.cycle().placed
        run = world.run("job")
        assert run.epoch == epoch
        assert 20_000 <= run.service_port < 30_000
        assert run.service_port != run.master_port
        if end == "finish":
            world.finish(run)
        else:
            world.fail(run, FailureKind(end))
        world.advance(31.0)
    assert outcome(world) is None
    world.cancel("job")
    assert outcome(world) is JobState.CANCELLED


def test_a_steady_replica_starts_again_at_once(world: World) -> None:
    world.submit("job", JobSpec(JobKind.SERVICE, Demand(1, cpus=1.0), replicas=1))
    for _ in range(4):
        world.cycle()
        world.finish(world.run("job"))
        world.advance(31.0)
    world.cycle()
    world.advance(60.0)
    world.finish(world.run("job"))
    assert unit(world).not_before_s - world.now_s == 1.0


def test_events_about_finished_jobs_change_nothing(world: World) -> None:
    world.submit("job", task())
    world.cycle()
    run = world.run("job")
    world.finish(run)
    count = len(world.effects)
    world.finish(run)
    world.fail(run, FailureKind.PROGRAM)
    world.cancel("job")
    recover(world, 1)
    assert len(world.effects) == count


@pytest.mark.parametrize(
    "item",
    [
        Mark(MarkKind.NODE_REVOKED, "id/west-0", "revoked", node_id="west-0"),
        Mark(MarkKind.DEVICE_REVOKED, "west-0/1", "revoked", node_id="west-0"),
        Mark(MarkKind.AGENT_REVOKED, "agent", "revoked", domain_id="west"),
    ],
)
def test_what_is_revoked_is_taken_off(world: World, item: Mark) -> None:
    world.submit("job", task(accelerators=2, domains=frozenset({"west"})))
    world.submit("other", task(accelerators=2, domains=frozenset({"east"})))
    world.cycle()
    draft = world.book.draft()
    draft.fleet = facts.with_mark(draft.fleet, item)
    lifecycle.fence(draft, item, world.now_s, world.rules)
    world.merge(draft)
    assert [effect.run.key.job_id for effect in world.of(Preempted)] == ["job"]  # type: ignore[attr-defined]
    assert world.run("job").state is RunState.STOPPING
    assert unit(world).state is UnitState.QUEUED


def test_two_runs_on_one_address_get_different_ports(world: World) -> None:
    world.submit("job", JobSpec(JobKind.ARRAY, Demand(1, cpus=0.05), array_size=300))
    world.cycle()
    ports = {run.master_port for run in world.book.runs.values()}
    assert len(ports) == 300
    assert all(20_000 <= port < 30_000 for port in ports)


def test_what_a_run_held_is_free_when_it_ends(world: World) -> None:
    for number in range(3):
        world.submit(f"job-{number}", task(accelerators=4, cpus=8.0, domains=frozenset({"west"})))
        assert world.cycle().placed
        assert world.run(f"job-{number}").ranks[0].devices == (0, 1, 2, 3)
        world.finish(world.run(f"job-{number}"))
        assert not world.book.ledger.nodes
    for number in (10, 11):
        world.submit(f"job-{number}", task(accelerators=2, domains=frozenset({"west"})))
    world.cycle()
    world.finish(world.run("job-10"))
    world.submit("job-12", task(accelerators=2, domains=frozenset({"west"})))
    assert world.cycle().placed, "one of two runs on a node ended"
    for number in (11, 12):
        world.finish(world.run(f"job-{number}"))
    assert world.book.ledger.tenants["lab"].accelerators == 0
    assert not world.book.ledger.used_ports("127.0.0.1")


def test_a_share_of_an_accelerator_counts_as_a_part(world: World) -> None:
    for number in range(3):
        world.submit(f"job-{number}", task(accelerators=1, device_milli=250))
    assert len(world.cycle().placed) == 3
    assert world.book.ledger.tenants["lab"].accelerators == world.book.cluster.tenants["lab"].accelerators == 0.75
    world.finish(world.run("job-1"))
    assert world.book.ledger.tenants["lab"].accelerators == world.book.cluster.tenants["lab"].accelerators == 0.5


def test_the_end_of_a_fenced_run_only_frees_its_capacity(world: World) -> None:
    world.submit("job", gang(2, accelerators=4, domains=frozenset({"east"})))
    world.cycle()
    run = world.run("job")
    recover(world, 1)
    before = unit(world)
    world.fail(run, FailureKind.PROGRAM)
    assert unit(world) == before
    assert not world.book.runs
    assert world.cycle().placed
    recover(world, 1)
    world.fail(run, FailureKind.PROGRAM)
    world.finish(run)
    assert (unit(world).state, world.run("job").epoch) == (UnitState.RUNNING, 2)
