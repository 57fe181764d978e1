"""What a later release of the gateway kept is shown, and what comes after it is taken, by an older one."""

from __future__ import annotations

import sqlalchemy as sa

from meridian.contracts.run.v1 import run_pb2
from tests.integration.gateway.conftest import Stack
from tests.integration.gateway.test_jobs import eventually, finished, placed, read, run_event, submit


async def test_states_of_a_later_release_stop_nothing(stack: Stack) -> None:
    job_id = await submit(stack)
    await stack.bus.publish(placed(job_id), run_event(run_pb2.RunStarted, job_id, node_ids=["beijing-1"]))
    await eventually(lambda: read(stack, f"/v1/jobs/{job_id}/runs"), lambda page: page["items"][:1] != [])
    await eventually(lambda: read(stack, f"/v1/jobs/{job_id}"), lambda job: job["units"][0]["state"] == "running")
    async with stack.service.kernel.database.transaction() as connection:
        for table in ("job", "unit", "run"):
            await connection.execute(sa.text(f"UPDATE {table} SET state = 'suspended'"))
    [listed] = (await read(stack, "/v1/jobs"))["items"]
    assert listed["state"] == "running"
    job = await read(stack, f"/v1/jobs/{job_id}")
    assert (job["state"], job["units"][0]["state"]) == ("running", "running")
    [run] = (await read(stack, f"/v1/jobs/{job_id}/runs"))["items"]
    assert run["state"] == "started"
    await stack.bus.publish(run_event(run_pb2.RunFinished, job_id), finished(job_id))
    job = await eventually(lambda: read(stack, f"/v1/jobs/{job_id}"), lambda job: job["state"] == "succeeded")
    assert job["units"][0]["state"] == "succeeded"
