"""The same request with the same key is carried out once."""

from __future__ import annotations

import asyncio

from meridian.contracts.job.v1 import job_pb2
from services.gateway.store import submissions
from tests.integration.gateway.conftest import Stack, image, task_file
from tests.integration.gateway.test_jobs import eventually, read


async def test_a_repeated_key_replays_and_a_reused_one_is_refused(stack: Stack) -> None:
    headers = {**stack.issuer.headers(), "Idempotency-Key": "key-1"}
    first = await stack.http.post("/v1/jobs", json=task_file(), headers=headers)
    again = await stack.http.post("/v1/jobs", json=dict(reversed(task_file().items())), headers=headers)
    assert first.status_code == again.status_code == 202
    assert again.json() == first.json()
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first.headers
    other_body = await stack.http.post("/v1/jobs", json=task_file(name="other"), headers=headers)
    assert other_body.status_code == 422
    assert other_body.json()["errors"][0]["pointer"] == "header:Idempotency-Key"
    other_route = await stack.http.post("/v1/jobs:batch", json={"jobs": [task_file()]}, headers=headers)
    assert other_route.status_code == 422
    theirs = {**stack.issuer.headers(tenant="tenant-b"), "Idempotency-Key": "key-1"}
    assert (await stack.http.post("/v1/jobs", json=task_file(), headers=theirs)).json() != first.json()
    assert (await stack.rows("job", "idempotency")) == {"job": 2, "idempotency": 2}
    await stack.bus.expect(job_pb2.JobSubmitted, count=2)


async def test_a_refused_request_leaves_its_key_free(stack: Stack) -> None:
    headers = {**stack.issuer.headers(), "Idempotency-Key": "key-1"}
    bad = await stack.http.post("/v1/jobs", json=task_file(command=[]), headers=headers)
    assert bad.status_code == 422
    assert (await stack.http.post("/v1/jobs", json=task_file(), headers=headers)).status_code == 202


async def test_while_the_first_is_in_progress_the_second_conflicts(stack: Stack) -> None:
    headers = {**stack.issuer.headers(), "Idempotency-Key": "key-1"}
    async with stack.service.kernel.database.transaction() as connection:
        assert await submissions.take_key(connection, "tenant-a", "key-1")
        answer = await stack.http.post("/v1/jobs", json=task_file(), headers=headers)
    assert answer.status_code == 409
    assert (await stack.rows("job")) == {"job": 0}


async def test_many_at_once_make_one_job(stack: Stack) -> None:
    headers = {**stack.issuer.headers(), "Idempotency-Key": "key-1"}
    answers = await asyncio.gather(*(stack.http.post("/v1/jobs", json=task_file(), headers=headers) for _ in range(20)))
    assert {answer.status_code for answer in answers} <= {202, 409}
    assert (await stack.rows("job")) == {"job": 1}


async def test_what_was_accepted_is_replayed_though_it_could_not_be_accepted_now(stack: Stack) -> None:
    """Who did not get the answer asks again, maybe after the nodes for it have gone."""
    bus = stack.bus
    await bus.publish(image("beijing", cpus=8))
    await eventually(lambda: read(stack, "/v1/domains"), lambda body: [item["cpus"] for item in body["items"]] == [16])
    job = task_file(resources={"cpus": 8})
    headers = {**stack.issuer.headers(), "Idempotency-Key": "key-1"}
    many = {**stack.issuer.headers(), "Idempotency-Key": "key-2"}
    first = await stack.http.post("/v1/jobs", json=job, headers=headers)
    batch = await stack.http.post("/v1/jobs:batch", json={"jobs": [job]}, headers=many)
    assert first.status_code == batch.status_code == 202
    await bus.publish(image("beijing", cpus=4, version=2))
    await eventually(lambda: read(stack, "/v1/domains"), lambda body: [item["cpus"] for item in body["items"]] == [8])
    assert (await stack.http.post("/v1/jobs", json=job, headers=stack.issuer.headers())).status_code == 422
    again = await stack.http.post("/v1/jobs", json=job, headers=headers)
    assert again.status_code == 202, again.text
    assert again.json() == first.json()
    again = await stack.http.post("/v1/jobs:batch", json={"jobs": [job]}, headers=many)
    assert again.json() == batch.json()
