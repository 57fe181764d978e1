"""A job from submission to its end, as the tenant sees it."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.run.v1 import run_pb2
from tests.harness import PATIENCE_S
from tests.integration.gateway.conftest import Stack, task_file


async def eventually(read: Any, wanted: Any, timeout_s: float = PATIENCE_S) -> Any:
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


async def submit(stack: Stack, **changes: Any) -> str:
    answer = await stack.http.post("/v1/jobs", json=task_file(**changes), headers=stack.issuer.headers())
    assert answer.status_code == 202, answer.text
    return str(answer.json()["job_id"])


def placed(job_id: str, epoch: int = 1, unit: int = 0, node: str = "beijing-1") -> job_pb2.JobPlaced:
    event = job_pb2.JobPlaced(
        job_id=job_id, tenant_id="tenant-a", unit_index=unit, run_id=f"{job_id}.{unit}.{epoch}", epoch=epoch,
        reason="cheapest", policy_version="p1",
    )  # fmt: skip
    event.ranks.add(rank=0, domain_id=node.rsplit("-", 1)[0], node_id=node, accelerator_indices=[0, 1])
    event.placed_at.GetCurrentTime()
    return event


def run_event(
    message: type[Any], job_id: str, /, epoch: int = 1, unit: int = 0, domain: str = "beijing", **fields: Any
) -> Any:
    event = message(
        run_id=f"{job_id}.{unit}.{epoch}", job_id=job_id, unit_index=unit, epoch=epoch, domain_id=domain, **fields
    )
    event.at.GetCurrentTime()
    return event


def finished(job_id: str, outcome: int = job_pb2.JOB_OUTCOME_SUCCEEDED, reason: str = "") -> job_pb2.JobFinished:
    event = job_pb2.JobFinished(job_id=job_id, tenant_id="tenant-a", outcome=outcome, reason=reason)
    event.finished_at.GetCurrentTime()
    return event


async def read(stack: Stack, path: str, **kwargs: Any) -> Any:
    answer = await stack.http.get(path, headers=stack.issuer.headers(**kwargs))
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_job_is_followed_through_failure_and_resume_to_its_end(stack: Stack) -> None:
    job_id = await submit(stack)
    queued = job_pb2.JobQueued(job_id=job_id, tenant_id="tenant-a", units=1, reason="no free node")
    queued.queued_at.GetCurrentTime()
    await stack.bus.publish(queued)
    job = await eventually(lambda: read(stack, f"/v1/jobs/{job_id}"), lambda job: job["state"] == "queued")
    assert job["reason"] == "no free node"
    assert job["units"][0]["state"] == "queued"

    await stack.bus.publish(placed(job_id))
    await stack.bus.publish(
        run_event(run_pb2.RunStarted, job_id, node_ids=["beijing-1"]),
        run_event(run_pb2.RunProgress, job_id, step=5, total_steps=20, metrics={"loss": 2.5}),
        run_event(run_pb2.RunCheckpointed, job_id, step=4, path="/c/4", size_bytes=10),
    )

    def all_told(job: Any) -> bool:
        unit = job["units"][0]
        return job["progress"] is not None and bool(unit["checkpoint"]) and bool(unit["placement"])

    # Placements and runs are told on two topics.
    job = await eventually(lambda: read(stack, f"/v1/jobs/{job_id}"), all_told)
    unit = job["units"][0]
    assert (job["state"], job["progress"], unit["state"]) == ("running", 0.25, "running")
    assert unit["metrics"] == {"loss": 2.5}
    assert unit["placement"] == [
        {
            "rank": 0,
            "domain_id": "beijing",
            "node_id": "beijing-1",
            "accelerator_indices": [0, 1],
            "accelerator_milli": 1000,
        }
    ]
    assert unit["checkpoint"]["step"] == 4
    assert unit["checkpoint"]["path"] == "/c/4"

    lost = job_pb2.JobPreempted(
        job_id=job_id, tenant_id="tenant-a", unit_index=0, run_id=f"{job_id}.0.1", epoch=1, reason="node lost"
    )
    lost.preempted_at.GetCurrentTime()
    await stack.bus.publish(
        run_event(
            run_pb2.RunFailed,
            job_id,
            kind=run_pb2.RUN_FAILURE_KIND_NODE_LOST,
            reason="gone",
            log_tail="a\x00b",
            signal=9,
        )
    )
    await stack.bus.publish(lost)
    job = await eventually(lambda: read(stack, f"/v1/jobs/{job_id}"), lambda job: job["state"] == "queued")
    assert job["units"][0]["state"] == "queued"
    assert job["units"][0]["reason"] == "node lost"

    await stack.bus.publish(placed(job_id, epoch=2, node="shanghai-1"))
    await stack.bus.publish(
        run_event(run_pb2.RunStarted, job_id, epoch=2, domain="shanghai"),
        run_event(run_pb2.RunFinished, job_id, epoch=2, domain="shanghai"),
    )
    await stack.bus.publish(finished(job_id))
    job = await eventually(
        lambda: read(stack, f"/v1/jobs/{job_id}"),
        lambda job: job["state"] == job["units"][0]["state"] == "succeeded" and job["restarts"] == 1,
    )
    assert job["progress"] == 1.0
    assert job["units"][0]["state"] == "succeeded"
    assert job["unit_counts"] == {"succeeded": 1}
    assert job["units"][0]["checkpoint"]["step"] == 4
    assert job["timeline"][0]["what"] == "submitted"
    assert "succeeded" in {entry["what"] for entry in job["timeline"]}

    runs = (
        await eventually(
            lambda: read(stack, f"/v1/jobs/{job_id}/runs"),
            lambda page: page["items"][0]["state"] == "finished" and bool(page["items"][1]["failure"]),
        )
    )["items"]
    assert [(run["epoch"], run["state"]) for run in runs] == [(2, "finished"), (1, "preempted")]
    assert runs[1]["failure"]["kind"] == "node_lost"
    assert runs[1]["failure"]["signal"] == 9
    assert runs[1]["failure"]["log_tail"] == "a\ufffdb"

    # A late event of the lost run changes nothing that is final.
    late = run_event(run_pb2.RunProgress, job_id, epoch=1, step=6, total_steps=20)
    late.at.seconds += 10
    await stack.bus.publish(late)
    events = await eventually(
        lambda: read(stack, f"/v1/jobs/{job_id}/events"),
        lambda page: sum(item["type"] == "RunProgress" for item in page["items"]) == 2,
    )
    assert {item["type"] for item in events["items"]} == {
        "JobSubmitted", "JobQueued", "JobPlaced", "RunStarted", "RunProgress", "RunCheckpointed", "RunFailed", "JobPreempted",
        "RunFinished", "JobFinished",
    }  # fmt: skip
    assert (await read(stack, f"/v1/jobs/{job_id}"))["state"] == "succeeded"
    trace = await read(stack, f"/v1/jobs/{job_id}/trace")
    times = [datetime.fromisoformat(item["time"]) for item in trace["events"]]
    assert times == sorted(times)
    assert trace["trace_ids"]
    assert stack.bus.dead_letters == []


async def test_tenants_see_only_their_own_jobs_and_operators_see_all(stack: Stack) -> None:
    job_id = await submit(stack)
    other = stack.issuer.headers(tenant="tenant-b")
    for path in ("", "/runs", "/events", "/trace", "/units", "/logs", "/explanation", "/requirement", "/phases"):
        answer = await stack.http.get(f"/v1/jobs/{job_id}{path}", headers=other)
        assert answer.status_code == 404, path
        assert answer.json()["code"] == "NOT_FOUND"
    assert (await stack.http.post(f"/v1/jobs/{job_id}/cancel", headers=other)).status_code == 404
    assert (await stack.http.get("/v1/jobs", headers=other)).json()["items"] == []
    operator = stack.issuer.headers(tenant="ops", scope="operator")
    assert [job["job_id"] for job in (await stack.http.get("/v1/jobs", headers=operator)).json()["items"]] == [job_id]


async def test_jobs_are_listed_newest_first_in_pages(stack: Stack) -> None:
    headers = stack.issuer.headers()
    batch = {"jobs": [task_file(name=f"job-{number}") for number in range(25)]}
    answer = await stack.http.post("/v1/jobs:batch", json=batch, headers=headers)
    assert answer.status_code == 202, answer.text
    assert [job["name"] for job in answer.json()["items"]] == [f"job-{number}" for number in range(25)]
    names: list[str] = []
    token: str | None = None
    while True:
        params = {"page_size": 10, **({"page_token": token} if token else {})}
        page = (await stack.http.get("/v1/jobs", params=params, headers=headers)).json()
        names += [job["name"] for job in page["items"]]
        token = page["next_page_token"]
        if token is None:
            break
    assert names == [f"job-{number}" for number in reversed(range(25))]
    filtered = await stack.http.get("/v1/jobs", params={"state": "running"}, headers=headers)
    assert filtered.json()["items"] == []
    filtered = await stack.http.get("/v1/jobs", params={"kind": "task", "page_size": 1}, headers=headers)
    assert len(filtered.json()["items"]) == 1
    wrong = await stack.http.get("/v1/jobs", params={"page_token": "bm9uZQ"}, headers=headers)
    assert wrong.status_code == 422
    assert wrong.json()["errors"][0]["pointer"] == "query:page_token"
    await stack.bus.expect(job_pb2.JobSubmitted, count=25)


async def test_cancel_is_published_once_and_refused_when_the_job_is_over(stack: Stack) -> None:
    job_id = await submit(stack)
    headers = stack.issuer.headers()
    first = await stack.http.post(f"/v1/jobs/{job_id}/cancel", json={"reason": "a typo"}, headers=headers)
    second = await stack.http.post(f"/v1/jobs/{job_id}/cancel", headers=headers)
    assert first.status_code == second.status_code == 202
    assert first.json()["cancel_requested_at"] == second.json()["cancel_requested_at"]
    event = await stack.bus.expect(job_pb2.JobCancelRequested)
    assert (event.job_id, event.reason, event.tenant_id) == (job_id, "a typo", "tenant-a")
    await stack.bus.publish(finished(job_id, job_pb2.JOB_OUTCOME_CANCELLED, "by its tenant"))
    job = await eventually(lambda: read(stack, f"/v1/jobs/{job_id}"), lambda job: job["state"] == "cancelled")
    assert job["units"][0]["state"] == "cancelled"
    assert (await stack.http.post(f"/v1/jobs/{job_id}/cancel", headers=headers)).status_code == 202

    done = await submit(stack)
    await stack.bus.publish(finished(done))
    await eventually(lambda: read(stack, f"/v1/jobs/{done}"), lambda job: job["state"] == "succeeded")
    refused = await stack.http.post(f"/v1/jobs/{done}/cancel", headers=headers)
    assert refused.status_code == 409
    assert refused.headers["content-type"] == "application/problem+json"
    assert len(stack.bus.events(job_pb2.JobCancelRequested)) == 1


async def test_an_array_shows_units_to_which_nothing_happened(stack: Stack) -> None:
    job_id = await submit(stack, kind="array", array={"size": 2500})
    await stack.bus.publish(placed(job_id, unit=1))
    await stack.bus.publish(
        run_event(run_pb2.RunStarted, job_id, unit=1), run_event(run_pb2.RunFinished, job_id, unit=1)
    )
    job = await eventually(lambda: read(stack, f"/v1/jobs/{job_id}"), lambda job: job["units_succeeded"] == 1)
    assert job["units_truncated"] is True
    assert len(job["units"]) == 1000
    assert job["unit_counts"] == {"succeeded": 1, "submitted": 2499}
    assert job["progress"] == 1 / 2500
    page = await read(stack, f"/v1/jobs/{job_id}/units?page_size=1000")
    page = await read(stack, f"/v1/jobs/{job_id}/units?page_size=1000&page_token={page['next_page_token']}")
    page = await read(stack, f"/v1/jobs/{job_id}/units?page_size=1000&page_token={page['next_page_token']}")
    assert [page["items"][0]["unit_index"], page["items"][-1]["unit_index"]] == [2000, 2499]
    assert page["next_page_token"] is None


async def test_a_view_that_lost_its_submissions_learns_them_from_the_bus(stack: Stack) -> None:
    # Lifecycle and submission travel on two topics, and may arrive in any order when a view is rebuilt.
    await stack.bus.publish(placed("job-elsewhere"))
    await eventually(lambda: stack.rows("event"), lambda rows: rows["event"] > 0)
    headers = stack.issuer.headers()
    assert (await stack.http.get("/v1/jobs/job-elsewhere", headers=headers)).status_code == 404
    event = job_pb2.JobSubmitted(job_id="job-elsewhere", tenant_id="tenant-a")
    event.spec.name, event.spec.kind = "elsewhere", job_pb2.JOB_KIND_GANG
    event.spec.command.append("true")
    event.spec.ranks = 2
    event.spec.resources.cpus, event.spec.resources.memory_bytes = 1, 1 << 30
    event.submitted_at.GetCurrentTime()
    await stack.bus.publish(event)
    await eventually(
        lambda: stack.http.get("/v1/jobs/job-elsewhere", headers=headers), lambda answer: answer.status_code == 200
    )
    job = await read(stack, "/v1/jobs/job-elsewhere")
    assert job["state"] == "running"
    assert job["spec"]["gang"] == {"ranks": 2, "allow_cross_domain": False, "min_ranks": None, "max_ranks": None}


async def test_all_replicas_that_a_service_may_have_are_shown(stack: Stack) -> None:
    service = {"replicas": 1, "scaling": {"min_replicas": 1, "max_replicas": 3, "target": 50}}
    job_id = await submit(stack, kind="service", service=service)
    await stack.bus.publish(
        job_pb2.JobQueued(job_id=job_id, tenant_id="tenant-a", units=3),
        *(placed(job_id, unit=unit) for unit in (0, 2)),
        *(run_event(run_pb2.RunStarted, job_id, unit=unit) for unit in (0, 2)),
    )
    job = await eventually(
        lambda: read(stack, f"/v1/jobs/{job_id}"),
        # The two are read one after the other.
        lambda job: (
            job["unit_counts"].get("running") == 2
            and [unit["unit_index"] for unit in job["units"] if unit["state"] == "running"] == [0, 2]
        ),
    )
    assert sum(job["unit_counts"].values()) == job["units_total"] == len(job["units"]) == 3
    assert job["units"][1]["reason"] == "so many replicas are not asked for yet"
    assert job["progress"] is None, "a service is never done"
    assert len((await read(stack, f"/v1/jobs/{job_id}/units"))["items"]) == 3
    # What waits again is nowhere.
    await stack.bus.publish(
        job_pb2.JobQueued(job_id=job_id, tenant_id="tenant-a", units=3, unit_index=2, reason="parked")
    )
    job = await eventually(lambda: read(stack, f"/v1/jobs/{job_id}"), lambda job: job["units"][2]["reason"] == "parked")
    assert (job["units"][2]["placement"], job["units"][2]["domains"]) == ([], [])
    assert job["units"][0]["placement"]
