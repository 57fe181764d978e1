"""Forecast against a real broker and PostgreSQL: exact windows, published forecasts, requirements, HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from meridian.catalogue import catalogue
from meridian.clock import VirtualClock
from meridian.codec import Envelope
from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.forecast.v1 import forecast_pb2
from meridian.contracts.forecast.v1.forecast_pb2 import DemandForecast, JobRequirementEstimated
from meridian.contracts.graph.v1.graph_pb2 import GraphNode, GraphUpdated
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import (
    JobFinished,
    JobPlaced,
    JobSpec,
    JobSubmitted,
    ModelDescription,
    PlacedRank,
)
from meridian.contracts.resource.v1.resource_pb2 import Accelerator, NodeInventory
from meridian.contracts.run.v1.run_pb2 import RunFinished, RunProgress
from services.forecast.events import keep_capacity
from tests.harness import PATIENCE_S, Environment, environment

WINDOW_S, LATENESS_S = 2.0, 1.5
IMPOSSIBLE = 'meridian_forecast_requirements_total{outcome="impossible"} 1.0'
QUICK = {
    "MERIDIAN_FORECAST_WINDOW_S": str(WINDOW_S),
    "MERIDIAN_FORECAST_LATENESS_S": str(LATENESS_S),
    "MERIDIAN_FORECAST_HORIZONS_S": "[2, 8]",
    "MERIDIAN_FORECAST_STRUCTURE_HORIZONS_S": "[3600]",
    "MERIDIAN_FORECAST_REPEAT_WINDOWS": "2",
}


@pytest.fixture
async def stack(database_url: str) -> AsyncIterator[Environment]:
    async with environment(database_url) as stack:
        yield stack


async def rows(stack: Environment, sql: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(stack.database_url.replace("+asyncpg", ""))
    try:
        await connection.execute("SET search_path TO forecast")
        return list(await connection.fetch(sql))
    finally:
        await connection.close()


async def until(stack: Environment, sql: str, count: int = 1) -> list[asyncpg.Record]:
    async with asyncio.timeout(PATIENCE_S):
        while len(found := await rows(stack, sql)) < count:
            await asyncio.sleep(0.05)
    return found


def submitted(job: str, ranks: int, accelerators: int, at: datetime, **fields: object) -> JobSubmitted:
    spec = JobSpec(
        name=job,
        kind=job_pb2.JOB_KIND_GANG,
        ranks=ranks,
        resources=Resources(cpus=2, accelerators=accelerators),
        **fields,  # type: ignore[arg-type]
    )
    message = JobSubmitted(job_id=job, tenant_id="acme", spec=spec)
    message.submitted_at.FromDatetime(at)
    return message


def placed(job: str, at: datetime, *domains: str) -> JobPlaced:
    message = JobPlaced(
        job_id=job,
        tenant_id="acme",
        run_id=f"{job}.0.1",
        epoch=1,
        ranks=[
            PlacedRank(rank=rank, domain_id=domain, node_id=f"{domain}-1", accelerator_indices=[0, 1])
            for rank, domain in enumerate(domains)
        ],
    )
    message.placed_at.FromDatetime(at)
    return message


def clock_of_now() -> VirtualClock:
    """A clock that stands near the end of the present window: the first one closes with the first that passes."""
    return VirtualClock(datetime.fromtimestamp(time.time() // WINDOW_S * WINDOW_S + 1.8, UTC))


async def close_windows(stack: Environment, clock: VirtualClock, count: int) -> None:
    """So many windows pass and are closed; there is demand in each of them."""
    for _ in range(count):
        clock.advance(WINDOW_S)
        newest_s = (clock.now().timestamp() - LATENESS_S) // WINDOW_S * WINDOW_S - WINDOW_S
        await until(stack, f"SELECT * FROM windows WHERE window_start = to_timestamp({newest_s})")


async def test_windows_are_exact_means_and_forecasts_follow(stack: Environment) -> None:
    # Everything is published when its time has passed.
    clock = clock_of_now()
    start_s = clock.now().timestamp() // WINDOW_S * WINDOW_S
    async with stack.service("forecast", QUICK, clock=clock) as service:
        await until(stack, "SELECT * FROM sampling")

        def at(offset_s: float) -> datetime:
            return datetime.fromtimestamp(start_s + offset_s, UTC)

        finished = RunFinished(run_id="job-a.0.1", job_id="job-a", epoch=1, domain_id="north")
        finished.at.FromDatetime(at(1.5))
        await stack.bus.publish(submitted("job-a", 2, 2, at(0.5)))
        await until(stack, "SELECT * FROM units")
        await stack.bus.publish(placed("job-a", at(1.0), "north", "south"))
        await until(stack, "SELECT * FROM units WHERE state = 'held'")
        await stack.bus.publish(finished)
        await until(stack, "SELECT * FROM changes WHERE subject_id = 'north' AND accelerators < 0")
        await close_windows(stack, clock, 1)
        found = await until(stack, f"SELECT * FROM windows WHERE window_start = to_timestamp({start_s})", 3)
        means = {row["subject_id"]: (row["accelerators"], row["cpus"]) for row in found}
        # acme asks for 4 from 0.5 s and holds them from 1 s; north lets go of its 2 at 1.5 s. A rank has 2 processors.
        assert means["acme"] == pytest.approx((2.5, 2.5))
        assert means["north"] == pytest.approx((0.5, 0.5))
        assert means["south"] == pytest.approx((1.0, 1.0))

        await close_windows(stack, clock, 2)
        forecast = await stack.bus.expect(
            DemandForecast,
            lambda event: event.subject_id == "south" and event.current == 2 and event.history_windows > 1,
        )
        assert forecast.subject_kind == forecast_pb2.FORECAST_SUBJECT_KIND_DOMAIN
        assert [point.horizon_s for point in forecast.points] == [2.0, 8.0, 3600.0]
        # Nothing is known of errors yet: the structure speaks, with its own band.
        assert "structure" in forecast.method
        assert forecast.window_s == WINDOW_S
        assert forecast.points[0].expected == pytest.approx(2, abs=0.2)
        assert forecast.points[0].has_band
        assert forecast.points[0].structure_share > 0
        # Said again every two windows though nothing changes.
        repeats = len(stack.bus.events(DemandForecast, lambda event: event.subject_id == "south"))
        await close_windows(stack, clock, 2)
        await stack.bus.expect(DemandForecast, lambda event: event.subject_id == "south", count=repeats + 1)

        graph = GraphUpdated(domain_id="south", version=1, full=True)
        graph.nodes.append(
            GraphNode(inventory=NodeInventory(node_id="south-1", cpus=8, accelerators=[Accelerator()] * 2))
        )
        await stack.bus.publish(graph)
        await until(stack, "SELECT * FROM capacity")
        page = (await service.http.get("/v1/forecasts", params={"subject_kind": "domain"})).json()["forecasts"]
        south = next(item for item in page if item["subject_id"] == "south")
        assert (south["current"], south["capacity_accelerators"], south["capacity_cpus"]) == (2, 2, 8)
        assert south["points"][0]["low"] <= south["points"][0]["expected"] <= south["points"][0]["high"]
        assert south["points"][0]["skill"] is None or south["points"][0]["past_errors"] > 0

        await stack.bus.publish(JobFinished(job_id="job-a", tenant_id="acme"))
        await until(stack, "SELECT * FROM changes WHERE subject_id = 'acme' AND accelerators < 0")
        clock.advance(2 * WINDOW_S)
        await until(stack, "SELECT * FROM levels WHERE subject_id = 'acme' AND accelerators = 0 AND cpus = 0")
        assert "meridian_forecast_windows_closed_total" in (await service.http.get("/metrics")).text
        assert not stack.bus.dead_letters


async def test_demand_survives_a_restart_and_missed_windows_are_closed(stack: Environment) -> None:
    clock = clock_of_now()
    async with stack.service("forecast", QUICK, clock=clock):
        await until(stack, "SELECT * FROM sampling")
        await stack.bus.publish(submitted("job-a", 1, 3, clock.now()))
        await until(
            stack, "SELECT * FROM changes UNION ALL SELECT 0, subject_kind, subject_id, now(), 0, 0 FROM levels"
        )
    clock.advance(5 * WINDOW_S)
    async with stack.service("forecast", QUICK, clock=clock) as service:
        found = await until(stack, "SELECT * FROM windows WHERE subject_id = 'acme' AND accelerators = 3", 3)
        starts = [row["window_start"] for row in found]
        assert len(set(starts)) == len(starts)
        await stack.bus.expect(DemandForecast, lambda event: event.subject_id == "acme")
        page = (await service.http.get("/v1/forecasts", params={"subject_id": "acme"})).json()["forecasts"]
        assert page[0]["current"] == 3
        assert page[0]["history_windows"] >= 3


async def test_progress_tells_when_a_run_lets_go_of_its_accelerators(stack: Environment) -> None:
    clock = clock_of_now()
    async with stack.service("forecast", QUICK, clock=clock) as service:
        await until(stack, "SELECT * FROM sampling")
        graph = GraphUpdated(domain_id="north", version=1, full=True)
        chips = [Accelerator(model="A100-80G", memory_bytes=80 * 2**30)] * 2
        graph.nodes.append(GraphNode(inventory=NodeInventory(node_id="north-1", accelerators=chips)))
        await stack.bus.publish(graph)
        await until(stack, "SELECT * FROM capacity WHERE chip = 'A100-80G'")
        began = clock.now().timestamp() - 1000
        for job, total in (("near", 1000 + 60), ("far", 10**9)):
            await stack.bus.publish(submitted(job, 1, 2, datetime.fromtimestamp(began, UTC)))
            await stack.bus.publish(placed(job, datetime.fromtimestamp(began, UTC), "north"))
            # A step per second; 10, or very many, minutes are left at the second report.
            for step in (0, 400, 800, 1000):
                report = RunProgress(
                    run_id=f"{job}.0.1", job_id=job, epoch=1, domain_id="north", step=step, total_steps=total
                )
                report.at.FromDatetime(datetime.fromtimestamp(began + step, UTC))
                await stack.bus.publish(report)
        await until(stack, "SELECT * FROM run_progress WHERE (body->>'reports')::int = 4", 2)
        await until(stack, "SELECT * FROM units WHERE state = 'held'", 2)
        await close_windows(stack, clock, 2)

        def points(event: DemandForecast) -> list[float]:
            return [round(point.expected) for point in event.points]

        for kind, name, wanted in (
            (forecast_pb2.FORECAST_SUBJECT_KIND_JOB, "near", [2, 2, 0]),
            (forecast_pb2.FORECAST_SUBJECT_KIND_JOB, "far", [2, 2, 2]),
        ):
            found = await stack.bus.expect(
                DemandForecast,
                lambda event, name=name, wanted=wanted: event.subject_id == name and points(event) == wanted,  # type: ignore[misc]
            )
            assert found.subject_kind == kind
        for kind, name in (
            (forecast_pb2.FORECAST_SUBJECT_KIND_DOMAIN, "north"),
            (forecast_pb2.FORECAST_SUBJECT_KIND_CHIP, "A100-80G"),
        ):
            found = await stack.bus.expect(
                DemandForecast,
                lambda event, name=name: event.subject_id == name and points(event)[0] == 4,  # type: ignore[misc]
            )
            assert found.subject_kind == kind
            # Whatever may come, one of the two is expected to be gone.
            assert found.points[2].expected < found.points[0].expected
        page = (await service.http.get("/v1/forecasts", params={"subject_kind": "job"})).json()["forecasts"]
        assert {item["subject_id"] for item in page} == {"near", "far"}

        await stack.bus.publish(JobFinished(job_id="far", tenant_id="acme"))
        await until(stack, "SELECT * FROM ended_runs")
        await close_windows(stack, clock, 2)
        async with asyncio.timeout(PATIENCE_S):
            while [item["subject_id"] for item in page] != ["near"]:
                await asyncio.sleep(0.1)
                page = (await service.http.get("/v1/forecasts", params={"subject_kind": "job"})).json()["forecasts"]
        (ended,) = await rows(stack, "SELECT * FROM ended_runs")
        assert (ended["owner"], ended["accelerators"], ended["by_itself"]) == ("acme", 2, True)

        # What waits counts for the model that its type means, as what runs does.
        wish = submitted("wish", 1, 2, clock.now())
        wish.spec.resources.accelerator_types.append("a100")
        await stack.bus.publish(wish)
        await until(stack, "SELECT * FROM units WHERE job_id = 'wish' AND only_chip = 'A100-80G'")
        assert not stack.bus.dead_letters


async def test_a_domain_that_joins_is_forecast_before_its_first_window(stack: Environment) -> None:
    # Windows of a minute, as they are by default: the first forecast does not wait for one.
    async with stack.service("forecast", {}, clock=VirtualClock(datetime.now(UTC))):
        await until(stack, "SELECT * FROM sampling")
        graph = GraphUpdated(domain_id="west", version=1, full=True)
        graph.nodes.append(GraphNode(inventory=NodeInventory(node_id="west-1", accelerators=[Accelerator(model="X")])))
        await stack.bus.publish(graph)
        found = await stack.bus.expect(DemandForecast, lambda event: event.subject_id == "west")
        assert not await rows(stack, "SELECT * FROM windows")
        assert [(point.horizon_s, point.expected, point.has_band) for point in found.points] == [
            (600.0, 0.0, True),
            (3600.0, 0.0, True),
            (86_400.0, 0.0, True),
        ]
        assert len(await rows(stack, "SELECT * FROM levels WHERE subject_id = 'west'")) == 1


async def test_requirements_of_submitted_jobs(stack: Environment) -> None:
    now = datetime.now(UTC)
    model = ModelDescription(
        layers=96, hidden=12288, heads=96, sequence=2048, vocabulary=51200, global_batch=64, steps=10,
        tensor_parallel=8, pipeline_parallel=8,
    )  # fmt: skip
    impossible = ModelDescription(layers=10, hidden=1024, heads=7, tensor_parallel=2)
    async with stack.service("forecast", QUICK) as service:
        await stack.bus.publish(
            submitted("plain", 1, 1, now),
            submitted("impossible", 1, 2, now, model=impossible),
        )
        await stack.bus.publish(submitted("shape", 8, 1, now, model=ModelDescription(layers=32, hidden=4096, steps=10)))
        shape = await stack.bus.expect(JobRequirementEstimated)
        # Without a sequence no FLOPs; the state of the optimiser is known.
        assert (shape.job_id, shape.flops_per_step) == ("shape", 0)
        assert shape.memory_parts_bytes["optimiser"] > 0
        await stack.bus.publish(submitted("gpt3", 64, 1, now, model=model))
        found = await stack.bus.expect(JobRequirementEstimated, where=lambda event: event.job_id == "gpt3")
        assert found.job_id == "gpt3"
        assert found.parameters == pytest.approx(174.6e9, rel=0.001)
        assert found.total_flops == pytest.approx(found.flops_per_step * 10)
        assert found.memory_bytes_per_accelerator == pytest.approx(sum(found.memory_parts_bytes.values()))
        async with asyncio.timeout(PATIENCE_S):
            # Another job, so it may be read later.
            while IMPOSSIBLE not in (await service.http.get("/metrics")).text:
                await asyncio.sleep(0.05)
        assert len(stack.bus.events(JobRequirementEstimated)) == 2
        assert not stack.bus.dead_letters


async def test_estimates_over_http(stack: Environment) -> None:
    llama = {"layers": 32, "hidden": 4096, "heads": 32, "sequence": 2048, "vocabulary": 32000, "gated_ffn": True}
    async with stack.service("forecast", QUICK) as service:

        async def estimate(model: dict[str, object], **others: object) -> dict[str, Any]:
            answer = await service.http.post("/v1/estimates", json={"model": {**llama, **model}, **others})
            assert answer.status_code == 200, answer.text
            return answer.json()

        alone = await estimate({"global_batch": 8}, memory_bytes_per_accelerator=80 * 10**9)
        assert alone["parameters"] == pytest.approx(6_738_415_616, rel=1e-6)
        assert alone["verdict"]["fits"] is False
        assert "optimiser" in alone["verdict"]["reason"]

        graph = GraphUpdated(domain_id="north", version=1, full=True)
        chips = [Accelerator(model="A100-80G", memory_bytes=80 * 2**30)]
        graph.nodes.append(GraphNode(inventory=NodeInventory(node_id="north-1", accelerators=chips)))
        await stack.bus.publish(graph)
        await until(stack, "SELECT * FROM chips")
        sharded = {"global_batch": 8, "zero_stage": 3, "recompute": "full"}
        found = await estimate(sharded, accelerators=8, accelerator_type="A100-80G")
        assert found["verdict"]["fits"] is True
        assert found["accelerators"] == 8
        unknown = await estimate(sharded, accelerators=8, accelerator_type="X1")
        assert unknown["verdict"] is None
        assert any("X1" in note for note in unknown["notes"])
        assert unknown["step_time"] is None
        step = found["step_time"]
        whole = ("step_s", "low_s", "high_s", "exposed_s")
        parts = [value for name, value in step.items() if name.endswith("_s") and name not in whole]
        assert step["low_s"] < step["step_s"] < step["high_s"]
        assert step["step_s"] == pytest.approx(sum(parts) + sum(step["exposed_s"].values()))
        assert step["recompute_s"] > 0
        assert step["chip"] == "a100-sxm4-80gb"
        assert alone["step_time"] is None
        # The gateway's defaults: nothing divided, one accelerator.
        assert (await estimate({"tensor_parallel": 0, "precision": ""}, accelerators=1))["accelerators"] == 1

        for model, others, pointer in [
            ({"tensor_parallel": 5}, {}, "/model/tensor_parallel"),
            ({"pipeline_parallel": 64}, {}, "/model/pipeline_parallel"),
            ({"pipeline_parallel": 4, "stage_layers": [8, 8, 8]}, {}, "/model/stage_layers"),
            ({"zero_stage": 9}, {}, "/model/zero_stage"),
            ({"precision": "int8"}, {}, "/model/precision"),
            ({"layres": 3}, {}, "/model/layres"),
            ({"tensor_parallel": 4}, {"accelerators": 6}, "/accelerators"),
        ]:
            answer = await service.http.post("/v1/estimates", json={"model": {**llama, **model}, **others})
            assert answer.status_code == 422
            assert answer.json()["code"] == "INVALID_ARGUMENT"
            assert answer.json()["errors"][0]["pointer"] == pointer


async def test_a_node_that_comes_back_or_moves_is_capacity(stack: Environment) -> None:
    def update(domain_id: str, version: int, *, listed: str = "", removed: str = "") -> Envelope:
        nodes = [GraphNode(inventory=NodeInventory(node_id=listed, cpus=8))] if listed else []
        message = GraphUpdated(
            domain_id=domain_id, version=version, nodes=nodes, removed_node_ids=[removed] if removed else []
        )
        kind = catalogue().event_of(message)
        return Envelope(f"{domain_id}-{version}", kind, "graph", datetime.now(UTC), domain_id, message)

    async with stack.service("forecast", QUICK) as service:

        async def heard(*envelopes: Envelope) -> list[tuple[str, str]]:
            async with service.kernel.outbox.transaction() as transaction:
                await keep_capacity(transaction, envelopes)
            found = await rows(stack, "SELECT domain_id, node_id FROM capacity ORDER BY node_id")
            return [(row["domain_id"], row["node_id"]) for row in found]

        await heard(update("north", 1, listed="a"))
        # Away for a moment, and both are heard together.
        assert await heard(update("north", 2, removed="a"), update("north", 3, listed="a")) == [("north", "a")]
        # Events of two domains come in no order.
        assert await heard(update("south", 5, listed="a"), update("north", 4, removed="a")) == [("south", "a")]
        assert await heard(update("south", 6, listed="b"), update("south", 7, removed="b")) == [("south", "a")]
