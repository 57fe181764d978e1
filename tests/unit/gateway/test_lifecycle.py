"""The fold of job events: order between topics does not matter, and what is final stays."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.run.v1 import run_pb2
from services.gateway import later_values
from services.gateway.lifecycle import (
    Fold,
    JobRecord,
    JobState,
    RunState,
    UnitState,
    thinned,
    touched,
    unit_state_now,
)

JOB = "job-1"


def at(second: int) -> datetime:
    return datetime.fromtimestamp(1_800_000_000 + second, UTC)


def placed(epoch: int, unit: int = 0, domains: tuple[str, ...] = ("beijing",), second: int = 0) -> job_pb2.JobPlaced:
    event = job_pb2.JobPlaced(job_id=JOB, unit_index=unit, run_id=f"{JOB}.{unit}.{epoch}", epoch=epoch)
    for rank, domain in enumerate(domains):
        event.ranks.add(rank=rank, domain_id=domain, node_id=f"{domain}-1")
    event.placed_at.FromDatetime(at(second))
    return event


def run(kind: type[Any], epoch: int, /, unit: int = 0, domain: str = "beijing", second: int = 0, **fields: Any) -> Any:
    event = kind(run_id=f"{JOB}.{unit}.{epoch}", job_id=JOB, unit_index=unit, epoch=epoch, domain_id=domain, **fields)
    event.at.FromDatetime(at(second))
    return event


def preempted(epoch: int, unit: int = 0) -> job_pb2.JobPreempted:
    event = job_pb2.JobPreempted(
        job_id=JOB, unit_index=unit, run_id=f"{JOB}.{unit}.{epoch}", epoch=epoch, reason="lost"
    )
    event.preempted_at.FromDatetime(at(50))
    return event


def queued(unit: int | None = None) -> job_pb2.JobQueued:
    event = job_pb2.JobQueued(job_id=JOB, tenant_id="t", units=2, unit_index=unit)
    event.queued_at.FromDatetime(at(1))
    return event


def finished(outcome: int = job_pb2.JOB_OUTCOME_SUCCEEDED) -> job_pb2.JobFinished:
    event = job_pb2.JobFinished(job_id=JOB, tenant_id="t", outcome=outcome)
    event.finished_at.FromDatetime(at(99))
    return event


def fold(*messages: Message, units: int = 1) -> Fold:
    result = Fold([JobRecord(JOB, "t", units_total=units, submitted_at=at(0))])
    for message in messages:
        result.apply(message)
    return result


def test_a_run_in_two_domains_has_finished_when_both_have() -> None:
    two = placed(1, domains=("beijing", "shanghai"))
    partly = fold(two, run(run_pb2.RunStarted, 1), run(run_pb2.RunFinished, 1))
    assert partly.runs[f"{JOB}.0.1"].state == RunState.STARTED
    assert partly.jobs[JOB].state == JobState.RUNNING
    partly.apply(run(run_pb2.RunFinished, 1, domain="shanghai"))
    assert partly.runs[f"{JOB}.0.1"].state == RunState.FINISHED
    assert partly.units[JOB, 0].state == UnitState.SUCCEEDED


def test_a_lost_unit_is_queued_until_it_is_placed_again() -> None:
    found = fold(queued(), placed(1), run(run_pb2.RunStarted, 1), preempted(1))
    assert (found.jobs[JOB].state, found.units[JOB, 0].state) == (JobState.QUEUED, UnitState.QUEUED)
    found.apply(run(run_pb2.RunProgress, 1, step=5, total_steps=10))
    assert found.units[JOB, 0].state == UnitState.QUEUED
    found.apply(placed(2))
    assert (found.jobs[JOB].state, found.units[JOB, 0].state) == (JobState.RUNNING, UnitState.PLACED)
    assert found.jobs[JOB].restarts == 1


def test_a_unit_that_goes_back_to_the_queue_without_preemption_is_queued() -> None:
    found = fold(placed(1), run(run_pb2.RunFailed, 1, kind=run_pb2.RUN_FAILURE_KIND_PROGRAM, reason="exit 1"))
    assert found.units[JOB, 0].state == UnitState.FAILED
    assert found.units[JOB, 0].reason == "exit 1"
    assert found.jobs[JOB].state == JobState.RUNNING
    found.apply(queued(unit=0))
    assert found.units[JOB, 0].state == UnitState.QUEUED


def test_a_finished_job_stays_finished() -> None:
    for late in (placed(2), queued(), preempted(1), run(run_pb2.RunStarted, 1), finished(job_pb2.JOB_OUTCOME_FAILED)):
        found = fold(placed(1), finished(), late)
        assert found.jobs[JOB].state == JobState.SUCCEEDED, late
        assert found.jobs[JOB].progress == 1.0


def test_progress_never_goes_back_and_checkpoints_survive_the_run() -> None:
    found = fold(
        placed(1),
        run(run_pb2.RunProgress, 1, step=8, total_steps=10, metrics={"loss": 1.0, "nan": float("nan")}),
        run(run_pb2.RunProgress, 1, step=5, total_steps=10),
        run(run_pb2.RunCheckpointed, 1, step=6, path="/c6"),
        run(run_pb2.RunCheckpointed, 1, step=4, path="/c4"),
        preempted(1),
        placed(2),
    )
    assert found.runs[f"{JOB}.0.1"].step == 8
    assert found.runs[f"{JOB}.0.1"].metrics == {"loss": 1.0, "nan": None}
    checkpoint = found.units[JOB, 0].checkpoint
    assert checkpoint is not None
    assert checkpoint["path"] == "/c6"


def test_units_of_a_finished_job_are_over() -> None:
    assert unit_state_now("running", "running") == "running"
    assert unit_state_now("succeeded", "running") == "succeeded"
    assert unit_state_now("failed", "failed") == "failed"
    assert unit_state_now("failed", "running") == "cancelled"
    assert unit_state_now("failed", "succeeded") == "succeeded"
    assert unit_state_now("cancelled", "queued") == "cancelled"


def test_thinning_keeps_the_first_and_then_one_per_interval() -> None:
    assert not thinned(None, at(0), 0.5)
    assert thinned(at(0), at(0), 0.5)
    assert not thinned(at(0), at(1), 0.5)
    # A clock that went back must not silence a run.
    assert not thinned(at(9), at(1), 0.5)


def test_touched_names_every_record() -> None:
    found = touched([queued(), placed(1, unit=3)])
    assert (found.jobs, found.units, found.runs) == ({JOB}, {(JOB, 3)}, {f"{JOB}.3.1"})
    assert touched([queued(unit=0)]).units == {(JOB, 0)}


LIFECYCLE: tuple[Message, ...] = (
    queued(), placed(1), placed(1, unit=1, domains=("beijing", "shanghai")), preempted(1), queued(unit=0),
    placed(2, domains=("shanghai",)), finished(),
)  # fmt: skip
RUNS: tuple[Message, ...] = (
    run(run_pb2.RunStarted, 1), run(run_pb2.RunStarted, 1, unit=1), run(run_pb2.RunProgress, 1, step=3, total_steps=9),
    run(run_pb2.RunFailed, 1, kind=run_pb2.RUN_FAILURE_KIND_NODE_LOST, reason="gone"),
    run(run_pb2.RunStarted, 1, unit=1, domain="shanghai"), run(run_pb2.RunStarted, 2, domain="shanghai"),
    run(run_pb2.RunProgress, 2, domain="shanghai", step=9, total_steps=9), run(run_pb2.RunFinished, 1, unit=1),
    run(run_pb2.RunFinished, 1, unit=1, domain="shanghai"), run(run_pb2.RunFinished, 2, domain="shanghai"),
)  # fmt: skip


@given(st.data())
def test_any_interleaving_of_the_two_topics_ends_in_the_same_view(data: st.DataObject) -> None:
    from_scheduler = data.draw(
        st.lists(st.booleans(), min_size=len(LIFECYCLE) + len(RUNS), max_size=len(LIFECYCLE) + len(RUNS))
    )
    lifecycle, runs = list(LIFECYCLE), list(RUNS)
    order = []
    for first in from_scheduler:
        source = lifecycle if (first and lifecycle) or not runs else runs
        order.append(source.pop(0))
    found = fold(*order, units=2)
    reference = fold(*LIFECYCLE, *RUNS, units=2)
    job, wanted = asdict(found.jobs[JOB]), asdict(reference.jobs[JOB])
    assert job == wanted
    for key, unit in reference.units.items():
        assert (found.units[key].state, found.units[key].run_id) == (unit.state, unit.run_id)
    assert {key: value.state for key, value in found.runs.items()} == {
        key: value.state for key, value in reference.runs.items()
    }
    assert job["state"] == JobState.SUCCEEDED
    assert job["units_active"] == 0
    assert job["units_succeeded"] == 2


@given(st.lists(st.sampled_from([*LIFECYCLE[:-1], *RUNS]), max_size=30))
def test_counters_always_agree_with_the_units(messages: list[Message]) -> None:
    found = fold(*messages, units=2)
    states = [unit.state for unit in found.units.values()]
    job = found.jobs[JOB]
    holding = {UnitState.PLACED, UnitState.RUNNING, UnitState.FAILED}
    assert job.units_active == sum(state in holding for state in states)
    assert job.units_succeeded == states.count(UnitState.SUCCEEDED)
    assert (job.state == JobState.RUNNING) == bool(job.units_active or job.units_succeeded)


def test_an_outcome_of_a_later_release_ends_the_job() -> None:
    """Else it would count against the quota of its tenant for ever."""
    for outcome in (0, 99):
        job = fold(finished(outcome)).jobs[JOB]
        assert (job.state, job.finished_at) == (JobState.FAILED, at(99))
        assert job.reason == f"the outcome is not known here: {'unspecified' if outcome == 0 else outcome}"
    told = finished(99)
    told.reason = "its budget is used up"
    assert fold(told).jobs[JOB].reason == "its budget is used up"


def test_a_job_whose_end_names_no_time_has_ended() -> None:
    found = fold(queued(), placed(1), job_pb2.JobFinished(job_id=JOB, outcome=job_pb2.JOB_OUTCOME_SUCCEEDED)).jobs[JOB]
    assert (found.state, found.finished_at) == (JobState.SUCCEEDED, found.placed_at)
    assert found.placed_at is not None


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({}, JobState.SUBMITTED),
        ({"queued_at": at(1)}, JobState.QUEUED),
        ({"queued_at": at(1), "placed_at": at(2)}, JobState.RUNNING),
        ({"queued_at": at(1), "finished_at": at(3)}, JobState.FAILED),
    ],
)
def test_a_job_in_a_state_of_a_later_release(facts: dict[str, Any], state: JobState) -> None:
    times = {"queued_at": None, "placed_at": None, "finished_at": None} | facts
    assert later_values.job_state("suspended", **times) is state
    assert [later_values.job_state(str(item), **times) for item in JobState] == list(JobState)


def test_units_and_runs_in_states_of_a_later_release() -> None:
    unit, run_of = later_values.unit_state, later_values.run_state
    assert unit("suspended", placed_epoch=2, lost_epoch=1) is UnitState.RUNNING
    assert unit("suspended", placed_epoch=2, lost_epoch=2) is UnitState.QUEUED
    assert run_of("suspended", ended_at=None, started_at=None) is RunState.ASSIGNED
    assert run_of("suspended", ended_at=None, started_at=at(1)) is RunState.STARTED
    assert run_of("suspended", ended_at=at(2), started_at=at(1)) is RunState.FAILED
    assert [unit(str(item), placed_epoch=1, lost_epoch=0) for item in UnitState] == list(UnitState)
    assert [run_of(str(item), ended_at=None, started_at=None) for item in RunState] == list(RunState)
