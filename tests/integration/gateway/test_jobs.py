"""A job from submission to its end, as the tenant sees it."""

from __future__ import annotations

import asyncio
from typing import Any

from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.run.v1 import run_pb2
from tests.integration.gateway.conftest import Stack, task_file


async def eventually(read: Any, wanted: Any, timeout_s: float = 10.0) -> Any:
    """Read until ``wanted`` holds."""
    value = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                value = await read()
                if wanted(value):
                    return value
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not reached in {timeout_s} s; last: {value}") from None


async def test_a_submitted_job_is_seen_at_once_and_published(stack: Stack) -> None:
    headers = stack.issuer.headers()
    answer = await stack.http.post("/v1/jobs", json=task_file(env={"A": "b"}), headers=headers)
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert job["state"] == "submitted"
    assert job["tenant_id"] == "tenant-a"
    assert job["spec"]["env"] == {"A": "b"}
    assert job["units"][0]["state"] == "submitted"
    assert answer.headers["location"] == f"/v1/jobs/{job['job_id']}"
    assert "RateLimit" in answer.headers
    read = await stack.http.get(f"/v1/jobs/{job['job_id']}", headers=headers)
    assert read.status_code == 200
    assert read.json() == job
    event = await stack.bus.expect(job_pb2.JobSubmitted, lambda event: event.job_id == job["job_id"])
    assert event.spec.command == ["echo", "hello"]
    assert event.spec.kind == job_pb2.JOB_KIND_TASK
    assert event.tenant_id == "tenant-a"
    unchanged = await stack.http.get(
        f"/v1/jobs/{job['job_id']}", headers={**headers, "If-None-Match": read.headers["etag"]}
    )
    assert unchanged.status_code == 304
    assert unchanged.content == b""
