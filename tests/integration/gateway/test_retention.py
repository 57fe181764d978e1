"""What ended long ago is removed, with all that belongs to it; what goes on stays, however old."""

from __future__ import annotations

from datetime import timedelta

from meridian.contracts.failover.v1 import failover_pb2
from meridian.contracts.run.v1 import run_pb2
from services.gateway.retention import forget
from services.gateway.settings import GatewaySettings
from tests.integration.gateway.conftest import Stack, task_file
from tests.integration.gateway.test_jobs import eventually, finished, placed, read, run_event, submit

DAY = timedelta(days=1)
SETTINGS = GatewaySettings(keep_days=10)


def _incident(kind: type[failover_pb2.NodeFailed | failover_pb2.NodeRecovered], incident_id: str) -> object:
    event = kind(domain_id="beijing", node_id=f"node of {incident_id}", incident_id=incident_id, reason="silent")
    event.at.GetCurrentTime()
    return event


def _plan(job_id: str, incident_id: str) -> failover_pb2.RecoveryPlanned:
    plan = failover_pb2.RecoveryPlanned(
        domain_id="beijing", incident_id=incident_id, job_id=job_id, run_id=f"{job_id}.0.1 in {incident_id}", epoch=1
    )
    plan.at.GetCurrentTime()
    return plan


async def test_what_ended_long_ago_is_removed_in_steps(stack: Stack) -> None:
    ended = [await submit(stack) for _ in range(3)]
    many = await stack.http.post(
        "/v1/jobs",
        json=task_file(kind="array", array={"size": 5}),
        headers=stack.issuer.headers() | {"Idempotency-Key": "k"},
    )
    runs_on, ended_array = await submit(stack), str(many.json()["job_id"])
    for job_id in (*ended, runs_on, ended_array):
        await stack.bus.publish(placed(job_id), run_event(run_pb2.RunStarted, job_id, node_ids=["beijing-1"]))
    # Nobody submitted it here: its submission was in the log before this database was.
    await stack.bus.publish(run_event(run_pb2.RunStarted, "job-unknown", node_ids=["beijing-1"]))
    await stack.bus.publish(*(finished(job_id) for job_id in (*ended, ended_array)))
    for incident_id in ("inc-over", "inc-open"):
        await stack.bus.publish(_incident(failover_pb2.NodeFailed, incident_id), _plan(ended[0], incident_id))
    await stack.bus.publish(_incident(failover_pb2.NodeRecovered, "inc-over"), _plan(ended[1], "inc-of-a-run"))

    tables = ("job", "unit", "run", "incident", "recovery", "idempotency")
    before = {"job": 6, "unit": 5, "run": 6, "incident": 2, "recovery": 3, "idempotency": 1}
    assert await eventually(lambda: stack.rows(*tables), lambda rows: rows == before) == before
    await eventually(lambda: read(stack, f"/v1/jobs/{ended_array}"), lambda job: job["state"] == "succeeded")
    await eventually(lambda: read(stack, "/v1/incidents?open=true"), lambda page: len(page["items"]) == 1)
    await eventually(lambda: read(stack, f"/v1/jobs/{ended[2]}"), lambda job: job["state"] == "succeeded")
    database, now = stack.service.kernel.database, stack.service.kernel.clock.now()

    await forget(database, now + 9 * DAY, SETTINGS, step=1)
    assert await stack.rows(*tables) == before | {"idempotency": 0}
    await forget(database, now + 11 * DAY, SETTINGS, step=1)
    after = {"job": 1, "unit": 1, "run": 1, "incident": 1, "recovery": 1, "idempotency": 0}
    assert await stack.rows(*tables) == after
    listed = await read(stack, "/v1/jobs")
    assert [job["job_id"] for job in listed["items"]] == [runs_on]
    assert (await read(stack, f"/v1/jobs/{runs_on}"))["units"][0]["state"] == "running"
    for path in ("", "/units", "/runs", "/events", "/trace"):
        answer = await stack.http.get(f"/v1/jobs/{ended[0]}{path}", headers=stack.issuer.headers())
        assert answer.status_code == 404
        assert answer.json()["detail"] == (
            f"there is no job '{ended[0]}', or it ended so long ago that it is not kept any more"
        )
    incidents = await read(stack, "/v1/incidents")
    assert [item["incident_id"] for item in incidents["items"]] == ["inc-open"]

    # What comes late of a job that is gone does not bring it back.
    await stack.bus.publish(run_event(run_pb2.RunProgress, ended[0], step=9, total_steps=9))
    await eventually(lambda: stack.rows("job"), lambda rows: rows == {"job": 2})
    answer = await stack.http.get(f"/v1/jobs/{ended[0]}", headers=stack.issuer.headers())
    assert answer.status_code == 404
    await forget(database, now + 22 * DAY, SETTINGS)
    assert await stack.rows(*tables) == after


async def test_events_are_removed_in_steps_the_oldest_first(stack: Stack) -> None:
    job_id = await submit(stack)
    await stack.bus.publish(*(run_event(run_pb2.RunStarted, job_id, epoch=epoch) for epoch in range(1, 8)))
    # Those and the submission.
    await eventually(lambda: stack.rows("event"), lambda rows: rows["event"] == 8)
    database, now = stack.service.kernel.database, stack.service.kernel.clock.now()
    await forget(database, now + 8 * DAY, SETTINGS, step=3)
    assert await stack.rows("event") == {"event": 0}
