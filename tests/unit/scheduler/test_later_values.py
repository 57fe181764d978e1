"""Values that a later release kept are read by an older one: for each the rule, and that nothing of it stops the load."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meridian.contracts.job.v1 import job_pb2
from services.scheduler.core.fleet import Mark, MarkKind, NodeState
from services.scheduler.core.state import JobState, RunState, UnitKey, UnitState
from services.scheduler.later_values import marks_of
from services.scheduler.store import Loaded
from tests.unit.scheduler.world import World, a_fleet, task

LATER = "of a later release"
SPEC = job_pb2.JobSpec(name="job", kind=job_pb2.JOB_KIND_TASK, command=["true"])


def _body(*, runs: bool = False) -> dict[str, Any]:
    """A kept state with one job of one unit, as JSON."""
    world = World(a_fleet({"a": 1}))
    world.submit("job", task())
    if runs:
        world.cycle()
        world.start(world.run("job"))
    book = world.book
    key = UnitKey("job", 0)
    specs = {"job": SPEC.SerializeToString()}
    marked = replace(
        book.fleet, marks={(MarkKind.NODE_FAILED, "a-0"): Mark(MarkKind.NODE_FAILED, "a-0", "dead", "a", "a-0")}
    )
    kept = Loaded(marked, (book.jobs["job"],), (book.units[key],), tuple(book.runs.values()), specs)
    return kept.as_json()


def test_what_is_known_is_read_as_it_was_written() -> None:
    body = _body(runs=True)
    assert Loaded.from_json(body).as_json() == body


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, JobState.QUEUED),
        ({"active_runs": 1}, JobState.RUNNING),
        ({"outcome": "cancelled"}, JobState.ENDING),
        ({"outcome": LATER}, JobState.ENDING),
        ({"outcome": LATER, "finished_at_s": 7.0}, JobState.FAILED),
    ],
)
def test_a_job_in_a_later_state(changes: dict[str, Any], state: JobState) -> None:
    body = _body()
    body["jobs"][0] |= {"state": LATER} | changes
    [job] = Loaded.from_json(body).jobs
    assert job.state is state
    assert job.outcome is {"cancelled": JobState.CANCELLED, LATER: JobState.FAILED}.get(changes.get("outcome", ""))


@pytest.mark.parametrize(("runs", "state"), [(False, UnitState.BLOCKED), (True, UnitState.RUNNING)])
def test_a_unit_in_a_later_state(runs: bool, state: UnitState) -> None:
    body = _body(runs=runs)
    body["units"][0]["state"] = LATER
    [unit] = Loaded.from_json(body).units
    assert unit.state is state


@pytest.mark.parametrize(("ended_at_s", "state"), [(0.0, RunState.ACTIVE), (7.0, RunState.ENDED)])
def test_a_run_in_a_later_state(ended_at_s: float, state: RunState) -> None:
    body = _body(runs=True)
    body["runs"][0] |= {"state": LATER, "ended_at_s": ended_at_s}
    [run] = Loaded.from_json(body).runs
    assert run.state is state


def test_a_node_in_a_later_state() -> None:
    body = _body()
    body["nodes"][0]["state"] = LATER
    assert Loaded.from_json(body).fleet.nodes["a-0"].state is NodeState.UNKNOWN


def test_marks_of_later_kinds() -> None:
    """Who set one wanted no new work there; and a mark that is known is never replaced by one that is not."""
    body = _body()
    body["marks"] += [
        {"kind": LATER, "subject": "ticket-7", "reason": "repair", "domain_id": "a", "node_id": "a-0"},
        {"kind": LATER, "subject": "ticket-8", "reason": "audit", "domain_id": "b", "node_id": ""},
        {"kind": LATER, "subject": "ticket-9", "reason": "", "domain_id": "", "node_id": ""},
    ]
    fleet = Loaded.from_json(body).fleet
    assert set(fleet.marks) == {
        (MarkKind.NODE_FAILED, "a-0"),
        (MarkKind.NODE_SUSPECTED, "a-0"),
        (MarkKind.DOMAIN_UNREACHABLE, "b"),
    }
    assert fleet.marks[MarkKind.NODE_SUSPECTED, "a-0"].reason == f"{LATER}: repair"
    known = ("node_suspected", "a-0", "silent", "a", "a-0")
    later = (LATER, "ticket-7", "repair", "a", "a-0")
    for rows in ([known, later], [later, known]):
        assert marks_of(rows)[MarkKind.NODE_SUSPECTED, "a-0"].reason == "silent"
