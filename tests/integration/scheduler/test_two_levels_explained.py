"""What a shard answers on two levels: why a job waits or runs there, and what if, with what it knows of all domains."""

from __future__ import annotations

import asyncio
from typing import Any

from meridian.contracts.job.v1.job_pb2 import JobPlaced
from meridian.sharding import shard_of_tenant
from services.scheduler.core.explaining.explanation import rederive
from tests.harness import PATIENCE_S, RunningService, environment
from tests.integration.scheduler.two_levels import ANSWER_LIMIT_S, Parts, graph, submission

TENANTS = {shard_of_tenant(name, 2): name for name in ("lab", "works", "school", "mill")}
FIRST = {
    "MERIDIAN_SCHEDULER_LEVELS": "two",
    "MERIDIAN_SCHEDULER_SHARDS": "2",
    "MERIDIAN_SCHEDULER_SHARD": "0",
    "MERIDIAN_SCHEDULER_ANSWER_LIMIT_S": str(ANSWER_LIMIT_S),
}


async def explained(service: RunningService, job_id: str) -> dict[str, Any]:
    answer = await service.http.get(f"/v1/jobs/{job_id}/explanation")
    assert answer.status_code == 200, answer.text
    unit: dict[str, Any] = answer.json()["units"][0]
    return unit


async def what_if(service: RunningService, accelerators: int) -> dict[str, Any]:
    body = {"kind": "task", "command": ["x"], "resources": {"accelerators": accelerators}}
    answer = await service.http.post("/v1/what-if", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def by_domain(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["place"]: row for row in rows}


async def test_a_shard_tells_what_it_knows_of_all_domains(database_url: str) -> None:
    async with environment(database_url) as stack:
        parts, bus = Parts(stack, shards=2), stack.bus
        await parts.prepare()
        await bus.publish(graph("beijing", 1), graph("shanghai", 1, accelerators=4))
        with parts.decider(), parts.shard(1):
            # A tenant of the other shard takes all of beijing.
            await bus.publish(submission("theirs", TENANTS[1], accelerators=8))
            await bus.expect(JobPlaced, lambda event: event.job_id == "theirs")
            async with stack.service("scheduler", FIRST) as service:
                await bus.publish(submission("large", TENANTS[0], accelerators=8))
                async with asyncio.timeout(PATIENCE_S):
                    # Summaries of before are read first.
                    while told_free(waiting := await waits(service, "large")) != {"beijing": 0, "shanghai": 4}:
                        await asyncio.sleep(0.05)
                rows = by_domain(waiting["domains"])
                assert [rows[name]["ranks_that_fit"] for name in ("beijing", "shanghai")] == [0, 0]
                assert rows["beijing"]["told"]["running"] == 1
                assert waiting["ahead"] == {"units": 0, "accelerators": 0.0, "among": "tenants of scheduler_0"}
                assert "units of other shards stay" in waiting["prediction"]["assumes"]
                assert waiting["prediction"]["never"] is False
                holders = waiting["blocked_by"]["tenants"]
                assert [(item["tenant_id"], item["accelerators"], item["until"]) for item in holders] == [
                    ("(others)", 8.0, None)
                ]

                assert "too_large" not in waiting
                await bus.publish(submission("larger", TENANTS[0], accelerators=9))
                async with asyncio.timeout(PATIENCE_S):
                    while "too_large" not in (waiting := await waits(service, "larger")):
                        await asyncio.sleep(0.05)
                assert "the most that a qualifying node has is 8" in waiting["too_large"]

                large, small = await what_if(service, 8), await what_if(service, 4)
                assert (large["placeable"], small["placeable"]) == (False, True)
                assert {rank["domain_id"] for rank in small["items"][0]["ranks"]} == {"shanghai"}
                assert by_domain(small["domains"])["shanghai"]["ranks_that_fit"] == 1
                assert "units of other shards stay" in small["assumes"]

                await bus.publish(submission("small", TENANTS[0], accelerators=2))
                placed = await bus.expect(JobPlaced, lambda event: event.job_id == "small")
                unit = await explained(service, "small")
                placement = unit["placement"]
                assert placement["chosen"]["place"] == placed.ranks[0].domain_id == "shanghai"
                assert set(by_domain(placement["domains"])) == {"shanghai"}, "beijing has no room to be compared"
                assert list(placement["said_by"]) == ["shanghai"]
                found = rederive(placement)
                assert [node for node, _ in found.nodes] == [rank["node_id"] for rank in unit["run"]["ranks"]]
                assert unit["sentences"]
        assert not bus.dead_letters


async def test_questions_follow_no_planner_as_two_levels_do_not(database_url: str) -> None:
    """The default policy plans together while rates differ by accelerator; on two levels each unit is placed in its turn, and said so."""
    async with environment(database_url) as stack:
        parts, bus = Parts(stack), stack.bus
        await parts.prepare()
        fast, slow = graph("beijing", 1), graph("shanghai", 1)
        for accelerator in slow.nodes[0].inventory.accelerators:
            accelerator.model = "V100"
        await bus.publish(fast, slow)
        with parts.decider():
            async with stack.service("scheduler", {"MERIDIAN_SCHEDULER_LEVELS": "two"}) as service:
                async with asyncio.timeout(PATIENCE_S):
                    while len((await service.http.get("/v1/nodes")).json()["items"]) < 2:
                        await asyncio.sleep(0.05)
                rates = [
                    {"accelerator_type": model, "ranks": 1, "rate": rate} for model, rate in (("A100", 3), ("V100", 1))
                ]
                body = {
                    "kind": "array",
                    "array_size": 3,
                    "command": ["x"],
                    "resources": {"accelerators": 8},
                    "rates": rates,
                }
                answer = await service.http.post("/v1/what-if", json=body)
                assert answer.status_code == 200, answer.text
                (waiting,) = [unit["explanation"] for unit in answer.json()["items"] if not unit["placeable"]]
                assert (waiting["stage"], "plan" in waiting["reason"]) == ("capacity", False), waiting["reason"]
                # What could not be applied there is no question either.
                change = {"policy": "extends: easy-backfill\nname: other"}
                answer = await service.http.post("/v1/what-if", json={"spec": body, "change": change})
                (error,) = answer.json()["errors"]
                assert (answer.status_code, error["pointer"]) == (422, "/change/policy")
                assert "'easy' looks at all nodes at once" in answer.json()["detail"]
                policy = (await service.http.get("/v1/policy")).json()
                assert (policy["version"], policy["follows"]["in_use"]) == (waiting["policy_version"], False)


def told_free(waiting: dict[str, Any]) -> dict[str, int]:
    """Free accelerators by domain, as the domains told."""
    return {row["place"]: row["told"]["accelerators_free"] for row in waiting.get("domains", []) if row.get("told")}


async def waits(service: RunningService, job_id: str) -> dict[str, Any]:
    """Why a job waits; empty as long as the shard has not heard of it."""
    if (await service.http.get(f"/v1/jobs/{job_id}/explanation")).status_code == 404:
        return {}
    waiting: dict[str, Any] = (await explained(service, job_id)).get("waiting", {})
    return waiting
