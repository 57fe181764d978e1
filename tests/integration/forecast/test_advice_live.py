"""Waveforms and advice over HTTP, with the ledger, the capacity and the terms of jobs as they come from a real bus and database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.graph.v1.graph_pb2 import GraphNode, GraphUpdated
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import (
    DeclaredRate,
    JobFinished,
    JobPlaced,
    JobSpec,
    JobSubmitted,
    ModelDescription,
    PlacedRank,
)
from meridian.contracts.resource.v1.resource_pb2 import Accelerator, NodeInventory
from tests.harness import PATIENCE_S, Environment, RunningService, environment

CHIP = "A100-80G"


@pytest.fixture
async def stack(database_url: str) -> AsyncIterator[Environment]:
    async with environment(database_url) as stack:
        yield stack


def submitted(job: str, now: datetime, *, ranks: int, hours: float, deadline_h: float = 0.0) -> JobSubmitted:
    spec = JobSpec(
        name=job,
        kind=job_pb2.JOB_KIND_GANG,
        command=["secret"],
        ranks=ranks,
        resources=Resources(cpus=1, accelerators=1),
        model=ModelDescription(steps=round(hours * 3600)),
        rates=[DeclaredRate(accelerator_type=CHIP, ranks=ranks, rate=1.0)],
    )
    spec.placement.domains.append("north")
    if deadline_h:
        spec.deadline.FromDatetime(now + timedelta(hours=deadline_h))
    message = JobSubmitted(job_id=job, tenant_id="acme", spec=spec)
    message.submitted_at.FromDatetime(now)
    return message


async def advice(service: RunningService, jobs: int, **body: Any) -> dict[str, Any]:
    """The advice once it knows of so many waiting jobs."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = await service.http.post("/v1/domains/north/advice", json={"accelerator_type": CHIP, **body})
            if answer.status_code == 200:
                found: dict[str, Any] = answer.json()
                waiting = [item for item in (*found["moves"], *found["fixed"]) if not item["planned"]]
                known = all(item["run_time_s"] for item in waiting)
                if sum(found["as_submitted"]["load"][:1]) > 0 and known and found["capacity_accelerators"]:
                    load = found["as_submitted"]["load"][0] - found["expected"][0]
                    if load >= jobs:
                        return found
            await asyncio.sleep(0.05)


async def test_waiting_and_planned_jobs_are_advised_apart(stack: Environment) -> None:
    now = datetime.now(UTC)
    async with stack.service("forecast", {"MERIDIAN_FORECAST_WINDOW_S": "2"}) as service:
        unknown = await service.http.get("/v1/domains/north/advice")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "NOT_FOUND")
        graph = GraphUpdated(domain_id="north", version=1, full=True)
        chips = [Accelerator(model=CHIP, memory_bytes=80 * 2**30)] * 16
        graph.nodes.append(GraphNode(inventory=NodeInventory(node_id="north-1", cpus=64, accelerators=chips)))
        await stack.bus.publish(graph)
        await stack.bus.publish(
            submitted("rigid", now, ranks=12, hours=2.0),
            submitted("soft", now, ranks=8, hours=2.0, deadline_h=12),
        )
        found = await advice(service, 20, hours=12, price_micro_units=2_000_000, currency="EUR")
        assert found["capacity_accelerators"] == 16
        assert found["history_days"] == 0
        [move] = found["moves"]
        assert (move["job_id"], move["tenant_id"], move["rests_on"]) == ("soft", "acme", "declared rates")
        assert move["delay_s"] == 7200
        [fixed] = found["fixed"]
        assert fixed["job_id"] == "rigid"
        assert "no deadline" in fixed["reason"]
        # 20 on 16 for two hours, for the price of 8 accelerator-hours.
        assert found["as_submitted"]["peak_accelerators"] == 20
        assert found["as_advised"]["peak_accelerators"] == 12
        assert found["saves"] == {
            "peak_accelerators": 8.0,
            "above_capacity_accelerator_hours": 8.0,
            "micro_units": 16_000_000,
            "currency": "EUR",
        }
        planned = {
            "name": "next",
            "spec": {"kind": "JOB_KIND_GANG", "ranks": 10, "resources": {"accelerators": 1}, "max_run_time_s": 3600.0},
            "start": (now + timedelta(hours=1)).isoformat(),
        }
        found = await advice(service, 20, hours=12, planned=[planned])
        assert [item["reason"] for item in found["fixed"] if item["planned"]] == [
            "it has no deadline: how long it may wait is not said"
        ]
        assert found["as_submitted"]["peak_accelerators"] == 30
        bad = await service.http.post(
            "/v1/domains/north/advice", json={"planned": [{**planned, "spec": {"ranks": "x"}}]}
        )
        assert (bad.status_code, bad.json()["errors"][0]["pointer"]) == (422, "/planned/0/spec")

        await stack.bus.publish(JobFinished(job_id="soft", tenant_id="acme"))
        async with asyncio.timeout(PATIENCE_S):
            while (await advice(service, 12))["moves"]:
                await asyncio.sleep(0.05)
        assert not stack.bus.dead_letters


async def test_what_runs_and_waits_at_this_moment_is_the_load(stack: Environment) -> None:
    """Whether or not a window of demand was closed since."""
    now = datetime.now(UTC)
    async with stack.service("forecast", {"MERIDIAN_FORECAST_WINDOW_S": "3600"}) as service:
        graph = GraphUpdated(domain_id="north", version=1, full=True)
        chips = [Accelerator(model=CHIP, memory_bytes=80 * 2**30)] * 16
        graph.nodes.append(GraphNode(inventory=NodeInventory(node_id="north-1", cpus=64, accelerators=chips)))
        await stack.bus.publish(graph)
        await stack.bus.publish(submitted("a", now, ranks=12, hours=2.0), submitted("b", now, ranks=8, hours=2.0))
        assert (await advice(service, 20))["expected"][0] == 0
        placed = JobPlaced(job_id="a", tenant_id="acme", epoch=1)
        placed.ranks.extend(
            PlacedRank(rank=rank, domain_id="north", node_id="north-1", accelerator_indices=[rank])
            for rank in range(12)
        )
        placed.placed_at.FromDatetime(now)
        await stack.bus.publish(placed)
        async with asyncio.timeout(PATIENCE_S):
            while (found := await advice(service, 8))["expected"][0] != 12:
                await asyncio.sleep(0.05)
        assert found["as_submitted"]["load"][0] == 20
        await stack.bus.publish(JobFinished(job_id="a", tenant_id="acme"))
        async with asyncio.timeout(PATIENCE_S):
            while (found := await advice(service, 8))["expected"][0] != 0:
                await asyncio.sleep(0.05)
        assert found["as_submitted"]["load"][0] == 8
        assert not stack.bus.dead_letters


async def test_a_plan_is_told_on_every_offer(stack: Environment) -> None:
    async with stack.service("forecast") as service:
        job = {
            "kind": "JOB_KIND_GANG",
            "ranks": 8,
            "resources": {"accelerators": 1},
            "model": {"layers": 32, "hidden": 4096, "heads": 32, "sequence": 2048, "vocabulary": 32000, "global_batch": 64,
                      "steps": 2000, "precision": "bf16"},
        }  # fmt: skip
        offers: list[dict[str, Any]] = [
            {"domain_id": "north", "accelerator_type": CHIP, "accelerators": 8, "price_micro_units": 2_000_000, "currency": "EUR"},
            {"domain_id": "south", "accelerator_type": "H100", "accelerators": 8, "price_micro_units": 3_000_000, "currency": "EUR"},
            {"domain_id": "west", "accelerator_type": "X1", "accelerators": 8},
        ]  # fmt: skip
        plan = {
            "jobs": [{"name": "pre", "spec": job}, {"name": "post", "spec": job, "after": ["pre"]}],
            "offers": offers,
        }
        found = (await service.http.post("/v1/waveforms", json=plan)).json()
        north, south, west = found["offers"]
        assert south["end_s"]["expected"] < north["end_s"]["expected"]
        assert "X1" in west["unknown"][0]["reason"]
        assert (west["cost_micro_units"], west["peak_accelerators"]) == (None, None)
        assert found["best"] == (
            0 if north["cost_micro_units"]["expected"] < south["cost_micro_units"]["expected"] else 1
        )
        for offer in (north, south):
            cost, hours = offer["cost_micro_units"], offer["accelerator_hours"]
            assert cost["low"] < cost["expected"] < cost["high"]
            assert cost["expected"] == pytest.approx(hours["expected"] * offer["price_micro_units"])
        best = found["offers"][found["best"]]
        assert found["curve"][-1]["cost_micro_units"]["expected"] == pytest.approx(
            best["cost_micro_units"]["expected"], rel=0.02
        )
        twice = await service.http.post("/v1/waveforms", json={**plan, "jobs": [plan["jobs"][0]] * 2})
        assert (twice.status_code, twice.json()["errors"][0]["pointer"]) == (422, "/jobs/1/name")
