"""The network as callers see it, and what the gateway asks of others."""

from __future__ import annotations

import json
from typing import Any

from meridian.contracts.failover.v1 import failover_pb2
from meridian.contracts.forecast.v1 import forecast_pb2
from meridian.contracts.graph.v1 import graph_pb2
from meridian.contracts.job.v1 import job_pb2
from tests.integration.gateway.conftest import Stack, image, task_file
from tests.integration.gateway.test_jobs import eventually, placed, read, submit


async def nodes(stack: Stack) -> dict[str, Any]:
    items = (await read(stack, "/v1/nodes"))["items"]
    return {node["node_id"]: node for node in items}


async def test_domains_nodes_and_links_follow_the_graph(stack: Stack) -> None:
    await stack.bus.publish(image("beijing"), image("shanghai", nodes=1, emulated=False))
    found = await eventually(lambda: nodes(stack), lambda found: len(found) == 3)
    assert found["beijing-1"]["state"] == "healthy"
    assert found["beijing-1"]["accelerators"][3]["index"] == 3
    assert found["beijing-1"]["metrics"] == {"hw.cpu.utilization": 0.25}
    domains = {domain["domain_id"]: domain for domain in (await read(stack, "/v1/domains"))["items"]}
    beijing = domains["beijing"]
    assert (beijing["nodes"], beijing["accelerators"], beijing["cpus"], beijing["memory_bytes"]) == (2, 8, 16, 1 << 35)
    assert beijing["price_per_accelerator_hour"] == {"micro_units": 1_500_000, "currency": "CNY"}
    assert "agent_url" not in beijing
    assert await read(stack, "/v1/domains/beijing") == beijing
    graph = await read(stack, "/v1/graph")
    assert {(link["from_domain_id"], link["rtt_s"]) for link in graph["links"]} == {
        ("beijing", 0.03),
        ("shanghai", 0.03),
    }

    changed = graph_pb2.NodeStateChanged(
        domain_id="beijing", node_id="beijing-2", state=graph_pb2.NODE_STATE_FAILED, reason="declared dead"
    )
    changed.changed_at.GetCurrentTime()
    await stack.bus.publish(changed)
    found = await eventually(lambda: nodes(stack), lambda found: found["beijing-2"]["state"] == "failed")
    assert found["beijing-2"]["state_reason"] == "declared dead"
    assert [node["node_id"] for node in (await read(stack, "/v1/nodes?state=failed"))["items"]] == ["beijing-2"]

    part = image("beijing", nodes=1, cpus=4, version=2)
    part.full = False
    part.removed_node_ids.append("beijing-2")
    await stack.bus.publish(part)
    found = await eventually(lambda: nodes(stack), lambda found: "beijing-2" not in found)
    assert found["beijing-1"]["cpus"] == 4
    await stack.bus.publish(image("shanghai", nodes=0, version=3))
    found = await eventually(lambda: nodes(stack), lambda found: len(found) == 1)
    page = await read(stack, "/v1/nodes?domain=beijing&page_size=1")
    assert page["next_page_token"] is None
    assert (await stack.http.get("/v1/nodes/none-1", headers=stack.issuer.headers())).status_code == 404
    assert (await stack.http.get("/v1/domains/none", headers=stack.issuer.headers())).status_code == 404


async def test_incidents_open_and_close_and_show_each_tenant_its_own_runs(stack: Stack) -> None:
    await stack.bus.publish(image("beijing"))
    job_id = await submit(stack)
    failed = failover_pb2.NodeFailed(
        domain_id="beijing",
        node_id="beijing-1",
        incident_id="inc-1",
        reason="silent for 3 s",
        run_ids=[f"{job_id}.0.1"],
    )
    failed.at.GetCurrentTime()
    plan = failover_pb2.RecoveryPlanned(
        domain_id="beijing", incident_id="inc-1", job_id=job_id, run_id=f"{job_id}.0.1", epoch=1, restore_step=4
    )
    plan.at.GetCurrentTime()
    away = failover_pb2.DomainUnreachable(domain_id="beijing", incident_id="inc-2", reason="agent silent")
    away.at.GetCurrentTime()
    await stack.bus.publish(failed, plan, away)
    incidents = await eventually(lambda: read(stack, "/v1/incidents"), lambda page: len(page["items"]) == 2)
    await eventually(lambda: read(stack, "/v1/domains"), lambda page: len(page["items"]) == 1)
    domain, node = incidents["items"]
    assert (domain["incident_id"], domain["state"], domain["node_id"]) == ("inc-2", "unreachable", "")
    assert (node["state"], node["reason"], node["recoveries"], node["closed_at"]) == (
        "failed",
        "silent for 3 s",
        1,
        None,
    )
    assert node["runs"][0]["run_id"] == f"{job_id}.0.1"
    theirs = await read(stack, "/v1/incidents", tenant="tenant-b")
    assert (theirs["items"][1]["recoveries"], theirs["items"][1]["runs"]) == (1, [])
    assert (await read(stack, "/v1/domains/beijing"))["reachable"] is False

    recovered = failover_pb2.NodeRecovered(
        domain_id="beijing", node_id="beijing-1", incident_id="inc-1", reason="beats"
    )
    recovered.at.GetCurrentTime()
    back = failover_pb2.DomainReachable(domain_id="beijing", incident_id="inc-2")
    back.at.GetCurrentTime()
    await stack.bus.publish(recovered, back)
    await eventually(lambda: read(stack, "/v1/incidents?open=true"), lambda page: page["items"] == [])
    closed = (await read(stack, "/v1/incidents?open=false"))["items"]
    assert {item["state"] for item in closed} == {"recovered"}
    assert (await read(stack, "/v1/domains/beijing"))["reachable"] is True


async def test_a_domain_whose_agent_fell_silent_before_its_first_image_is_not_reachable(stack: Stack) -> None:
    """Incidents and images are told on two topics: either may be read first."""
    away = failover_pb2.DomainUnreachable(domain_id="beijing", incident_id="inc-2", reason="agent silent")
    away.at.GetCurrentTime()
    await stack.bus.publish(away)
    await eventually(lambda: read(stack, "/v1/incidents"), lambda page: len(page["items"]) == 1)
    await stack.bus.publish(image("beijing"), image("shanghai"))
    found = await eventually(lambda: read(stack, "/v1/domains"), lambda page: len(page["items"]) == 2)
    assert [(item["domain_id"], item["reachable"]) for item in found["items"]] == [
        ("beijing", False),
        ("shanghai", True),
    ]


async def test_a_domain_that_is_forgotten_is_shown_no_more(stack: Stack) -> None:
    await stack.bus.publish(image("beijing"), image("shanghai"))
    away = failover_pb2.DomainUnreachable(domain_id="beijing", incident_id="inc-2", reason="agent silent")
    away.at.GetCurrentTime()
    await stack.bus.publish(away)
    await eventually(lambda: read(stack, "/v1/incidents"), lambda page: len(page["items"]) == 1)
    await eventually(lambda: read(stack, "/v1/domains"), lambda page: len(page["items"]) == 2)
    forgotten = failover_pb2.DomainForgotten(domain_id="beijing", incident_id="inc-2", reason="silent for 30 days")
    forgotten.at.GetCurrentTime()
    await stack.bus.publish(forgotten)
    found = await eventually(lambda: read(stack, "/v1/domains"), lambda page: len(page["items"]) == 1)
    assert [item["domain_id"] for item in found["items"]] == ["shanghai"]
    assert {item["domain_id"] for item in (await read(stack, "/v1/nodes"))["items"]} == {"shanghai"}
    [incident] = (await read(stack, "/v1/incidents"))["items"]
    assert (incident["state"], incident["reason"]) == ("forgotten", "silent for 30 days")
    assert incident["closed_at"] is not None
    await stack.bus.publish(image("beijing", version=9))
    found = await eventually(lambda: read(stack, "/v1/domains"), lambda page: len(page["items"]) == 2)
    assert [item["reachable"] for item in found["items"]] == [True, True]


async def test_forecasts_and_requirements(stack: Stack) -> None:
    def forecast(kind: int, subject: str, current: float) -> forecast_pb2.DemandForecast:
        event = forecast_pb2.DemandForecast(subject_kind=kind, subject_id=subject, method="seasonal", current=current)
        event.tenant_id = {"job-b": "tenant-b", "job-a": "tenant-a"}.get(subject, "")
        event.made_at.GetCurrentTime()
        event.points.add(horizon_s=600, expected=3, low=2, high=float("inf"))
        return event

    job_id = await submit(stack)
    requirement = forecast_pb2.JobRequirementEstimated(
        job_id=job_id, tenant_id="tenant-a", parameters=7e9, memory_parts_bytes={"weights": 1.4e10}
    )
    domain, tenant = forecast_pb2.FORECAST_SUBJECT_KIND_DOMAIN, forecast_pb2.FORECAST_SUBJECT_KIND_TENANT
    of_job = forecast_pb2.FORECAST_SUBJECT_KIND_JOB
    await stack.bus.publish(
        forecast(domain, "beijing", 1), forecast(domain, "beijing", 2), forecast(tenant, "tenant-a", 3),
        forecast(tenant, "tenant-b", 4), forecast(of_job, "job-a", 5), forecast(of_job, "job-b", 6),
        forecast(of_job, "job-of-nobody", 7), requirement,
    )  # fmt: skip
    page = await eventually(
        lambda: read(stack, "/v1/forecasts"), lambda page: [item["current"] for item in page["items"]] == [2, 5, 3]
    )
    assert [(item["subject_id"], item["current"]) for item in page["items"]] == [
        ("beijing", 2),
        ("job-a", 5),
        ("tenant-a", 3),
    ]
    assert page["items"][0]["points"] == [{"horizon_s": 600, "expected": 3, "low": 2, "high": None}]
    await eventually(
        lambda: read(stack, "/v1/forecasts", tenant="ops", scope="operator"), lambda page: len(page["items"]) == 5
    )
    assert (await read(stack, "/v1/forecasts?subject=tenant-b"))["items"] == []
    headers = stack.issuer.headers()
    answer = await eventually(
        lambda: stack.http.get(f"/v1/jobs/{job_id}/requirement", headers=headers), lambda got: got.status_code == 200
    )
    assert answer.json()["memory_parts_bytes"] == {"weights": 1.4e10}
    # A job that has ended asks for nothing, whatever was forecast for it before.
    ended = job_pb2.JobFinished(job_id="job-a", tenant_id="tenant-a", outcome=job_pb2.JOB_OUTCOME_CANCELLED)
    ended.finished_at.GetCurrentTime()
    await stack.bus.publish(ended)
    await eventually(
        lambda: read(stack, "/v1/forecasts"), lambda page: [item["current"] for item in page["items"]] == [2, 3]
    )


async def test_a_node_is_killed_through_its_agent_only_where_it_is_emulated(stack: Stack) -> None:
    await stack.bus.publish(
        image("beijing", agent_url=stack.issuer.url), image("real", emulated=False, agent_url=stack.issuer.url),
        image("mute", agent_url=""),
    )  # fmt: skip
    await eventually(lambda: nodes(stack), lambda found: len(found) == 6)
    operator = stack.issuer.headers(scope="operator")
    stack.issuer.answers["POST", "/nodes/beijing-1/kill"] = (202, {"killed": True})
    answer = await stack.http.post("/v1/nodes/beijing-1/kill", headers=operator)
    assert answer.status_code == 202, answer.text
    assert (answer.json()["node_id"], answer.json()["domain_id"]) == ("beijing-1", "beijing")
    _, path, headers, _ = stack.issuer.requests[-1]
    assert path == "/nodes/beijing-1/kill"
    assert headers["authorization"] == "Bearer join-secret"
    calls = len(stack.issuer.requests)
    for node_id, status in (("real-1", 409), ("mute-1", 409), ("none-1", 404)):
        assert (await stack.http.post(f"/v1/nodes/{node_id}/kill", headers=operator)).status_code == status, node_id
    assert len(stack.issuer.requests) == calls
    gone = await stack.http.post("/v1/nodes/beijing-2/kill", headers=operator)
    assert gone.status_code == 404


async def test_logs_come_from_the_agent_that_executes_the_rank(stack: Stack) -> None:
    await stack.bus.publish(image("beijing", agent_url=stack.issuer.url))
    await eventually(lambda: nodes(stack), lambda found: len(found) == 2)
    job_id = await submit(stack)
    headers = stack.issuer.headers()
    assert (await stack.http.get(f"/v1/jobs/{job_id}/logs", headers=headers)).status_code == 404
    await stack.bus.publish(placed(job_id))
    stack.issuer.answers["GET", f"/logs/{job_id}.0.1"] = (
        200, {"text": "hello", "offset": 3, "next_offset": 8, "size_bytes": 8, "complete": True},
    )  # fmt: skip
    answer = await eventually(
        lambda: stack.http.get(f"/v1/jobs/{job_id}/logs?offset=3", headers=headers), lambda got: got.status_code == 200
    )
    assert answer.json() == {
        "run_id": f"{job_id}.0.1", "unit_index": 0, "rank": 0, "node_id": "beijing-1", "offset": 3, "next_offset": 8,
        "text": "hello", "complete": True,
    }  # fmt: skip
    assert "rank=0&offset=3" in stack.issuer.requests[-1][1]
    assert (await stack.http.get(f"/v1/jobs/{job_id}/logs?rank=1", headers=headers)).status_code == 404
    stack.issuer.down = True
    assert (await stack.http.get(f"/v1/jobs/{job_id}/logs", headers=headers)).status_code == 503


async def test_a_job_that_the_scheduler_has_not_heard_of_yet_is_not_denied(stack: Stack) -> None:
    headers = stack.issuer.headers()
    job_id = (await stack.http.post("/v1/jobs", json=task_file(), headers=headers)).json()["job_id"]
    problem = {"title": "Not found", "status": 404, "detail": f"there is no job '{job_id}'", "code": "NOT_FOUND"}
    stack.issuer.answers["GET", f"/v1/jobs/{job_id}/explanation"] = (404, problem)
    answer = await stack.http.get(f"/v1/jobs/{job_id}/explanation", headers=headers)
    assert (answer.status_code, answer.json()["detail"]) == (
        503, f"the scheduler has not heard of job '{job_id}' yet; ask again",
    )  # fmt: skip


async def test_questions_are_passed_on(stack: Stack) -> None:
    headers = stack.issuer.headers()
    job_id = await submit(stack)
    stack.issuer.answers["GET", f"/v1/jobs/{job_id}/explanation"] = (200, {"why": "cheapest"})
    assert await read(stack, f"/v1/jobs/{job_id}/explanation") == {"why": "cheapest"}
    stack.issuer.answers["GET", f"/v1/jobs/{job_id}/phases"] = (200, {"units": []})
    assert await read(stack, f"/v1/jobs/{job_id}/phases") == {"units": []}
    plan = {"jobs": [{"job": {"name": "a", "kind": "task", "command": ["x"], "deadline": "2030-01-01T00:00:00Z"}}]}
    stack.issuer.answers["POST", "/v1/waveforms"] = (200, {"best": None})
    answer = await stack.http.post("/v1/waveforms", json=plan, headers=headers)
    assert (answer.status_code, answer.json()) == (200, {"best": None})
    assert b'"JOB_KIND_TASK"' in stack.issuer.requests[-1][3]
    wrong = {"jobs": [{"job": {"name": "a", "kind": "gang", "command": ["x"]}}]}
    answer = await stack.http.post("/v1/waveforms", json=wrong, headers=headers)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/jobs/0/job/gang")
    stack.issuer.answers["POST", "/v1/estimates"] = (200, {"total_flops": 1e21})
    answer = await stack.http.post("/v1/estimates", json={"model": {"parameters": 7}}, headers=headers)
    assert answer.json() == {"total_flops": 1e21}
    stack.issuer.answers["POST", "/v1/estimates"] = (
        422,
        {"detail": "no", "errors": [{"pointer": "/model", "detail": "?"}]},
    )
    answer = await stack.http.post("/v1/estimates", json={"model": {"parameters": 7}}, headers=headers)
    assert (answer.status_code, answer.json()["errors"]) == (422, [{"pointer": "/model", "detail": "?"}])
    stack.issuer.answers["POST", "/v1/what-if"] = (200, {"domain": "beijing"})
    assert (await stack.http.post("/v1/what-if", json=task_file(), headers=headers)).json() == {"domain": "beijing"}
    bad = await stack.http.post("/v1/what-if", json=task_file(command=[]), headers=headers)
    assert bad.json()["errors"][0]["pointer"] == "/command"
    # What the network has now refuses no question about another network.
    await stack.bus.publish(image("beijing", cpus=8))
    await eventually(lambda: nodes(stack), lambda found: len(found) == 2)
    large = task_file(resources={"cpus": 64}, placement={"domains": ["lhasa"]})
    assert (await stack.http.post("/v1/what-if", json=large, headers=headers)).status_code == 422
    change = {"domains": [{"domain_id": "lhasa", "nodes": 1, "cpus": 64}]}
    asked = await stack.http.post("/v1/what-if", json={**large, "change": change}, headers=headers)
    assert asked.json() == {"domain": "beijing"}
    stack.issuer.answers["GET", "/v1/identities"] = (200, {"items": [{"identity_id": "a"}], "next_cursor": "a"})
    operator = stack.issuer.headers(scope="operator")
    answer = await stack.http.get("/v1/identities?kind=node&page_size=1", headers=operator)
    assert answer.json() == {"items": [{"identity_id": "a"}], "next_page_token": "a"}
    assert stack.issuer.requests[-1][2]["authorization"] == operator["Authorization"]


async def test_a_plan_meets_what_the_domains_offer(stack: Stack) -> None:
    await stack.bus.publish(image("beijing"))
    headers, operator = stack.issuer.headers(), stack.issuer.headers(scope="operator")
    await eventually(lambda: nodes(stack), lambda found: len(found) == 2)
    stack.issuer.answers["POST", "/v1/waveforms"] = (200, {"best": 0})
    plan: dict[str, Any] = {"jobs": [{"job": task_file(), "copies": 2}]}
    assert (await stack.http.post("/v1/waveforms", json=plan, headers=headers)).json() == {"best": 0}
    sent = json.loads(stack.issuer.requests[-1][3])
    assert sent["offers"] == [
        {
            "domain_id": "beijing",
            "accelerator_type": "Ascend 910B",
            "accelerators": 8,
            "price_micro_units": 1_500_000,
            "currency": "CNY",
        }
    ]
    assert (sent["jobs"][0]["copies"], sent["jobs"][0]["name"]) == (2, task_file()["name"])
    plan["domain"] = "nowhere"
    assert (await stack.http.post("/v1/waveforms", json=plan, headers=headers)).status_code == 404

    stack.issuer.answers["POST", "/v1/domains/beijing/advice"] = (200, {"moves": []})
    assert (await stack.http.get("/v1/domains/beijing/advice", headers=headers)).status_code == 403
    answer = await stack.http.get("/v1/domains/beijing/advice?hours=6", headers=operator)
    assert answer.json() == {"moves": []}
    sent = json.loads(stack.issuer.requests[-1][3])
    assert (sent["hours"], sent["planned"]) == (6.0, [])
    body = {"planned": plan["jobs"], "hours": 2}
    assert (await stack.http.post("/v1/domains/beijing/advice", json=body, headers=operator)).status_code == 200
    assert json.loads(stack.issuer.requests[-1][3])["planned"][0]["copies"] == 2
    assert (await stack.http.get("/v1/domains/nowhere/advice", headers=operator)).status_code == 404


async def test_the_status_page_and_the_contract_are_served(stack: Stack) -> None:
    page = await stack.http.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    document = (await stack.http.get("/openapi.json")).json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            codes = set(operation["responses"])
            assert codes & {"200", "201", "202"}, (method, path)
            assert {"422", "429", "503"} <= codes, (method, path)
            for code, answer in operation["responses"].items():
                if code >= "400":
                    schema = answer["content"]["application/problem+json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/Problem"}, (method, path, code)
