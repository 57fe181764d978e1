"""Capacity held for a tenant's forecast in the live service: the forecast comes over a real broker and survives a restart."""

from __future__ import annotations

import asyncio

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.forecast.v1 import forecast_pb2
from meridian.contracts.forecast.v1.forecast_pb2 import DemandForecast, ForecastPoint
from meridian.contracts.run.v1.run_pb2 import Assignment
from tests.harness import PATIENCE_S, RunningService, environment
from tests.integration.scheduler.messages import graph, submission
from tests.integration.scheduler.test_service import live_of, starts, until

HELD = """
extends: balanced
name: held
selection:
  limits:
    - preallocation: {tenants: [speech], most: 16, horizon_s: 3600, spare_short: false}
"""


def forecast(expected: float) -> DemandForecast:
    message = DemandForecast(
        subject_kind=forecast_pb2.FORECAST_SUBJECT_KIND_TENANT,
        subject_id="speech",
        points=[
            ForecastPoint(horizon_s=600.0, expected=0.0, low=0.0, high=0.0, has_band=True),
            ForecastPoint(horizon_s=3600.0, expected=expected, low=0.0, high=16.0, has_band=True),
        ],
    )
    message.made_at.GetCurrentTime()
    return message


async def heard(service: RunningService) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while "tenant/speech/3600/expected" not in live_of(service).book.fleet.expected_demand:
            await asyncio.sleep(0.02)


async def test_others_leave_what_the_tenant_is_forecast_to_ask_for(database_url: str) -> None:
    eight = {"resources": Resources(cpus=1, accelerators=8)}
    async with environment(database_url) as stack:
        async with stack.service("scheduler") as service:
            answer = await service.http.put("/v1/policy", content=HELD.encode())
            assert answer.status_code == 200, answer.text
            await stack.bus.publish(graph("beijing", 3), forecast(8.0))
            await heard(service)
            await stack.bus.publish(submission("one", tenant="vision", **eight))
            await stack.bus.expect(Assignment, starts("one"))
            await stack.bus.publish(submission("two", tenant="vision", **eight))
            await stack.bus.expect(Assignment, starts("two"))
            await stack.bus.publish(submission("three", tenant="vision", **eight))
            await until(service, lambda body: any("preallocation: 8 of 8" in item["reason"] for item in body["items"]))
        async with stack.service("scheduler") as service:
            await until(service, lambda body: any("preallocation: 8 of 8" in item["reason"] for item in body["items"]))
            await stack.bus.publish(submission("own", tenant="speech", **eight))
            own = await stack.bus.expect(Assignment, starts("own"))
            assert len(own.ranks[0].accelerator_indices) == 8
            assert not stack.bus.events(Assignment, starts("three"))
        assert not stack.bus.dead_letters


async def test_what_was_held_is_given_when_less_is_forecast(database_url: str) -> None:
    eight = {"resources": Resources(cpus=1, accelerators=8)}
    async with environment(database_url) as stack, stack.service("scheduler") as service:
        await service.http.put("/v1/policy", content=HELD.encode())
        await stack.bus.publish(graph("beijing", 2), forecast(8.0))
        await heard(service)
        await stack.bus.publish(submission("one", tenant="vision", **eight))
        await stack.bus.expect(Assignment, starts("one"))
        await stack.bus.publish(submission("two", tenant="vision", **eight))
        await until(service, lambda body: any("preallocation" in item["reason"] for item in body["items"]))
        await stack.bus.publish(forecast(0.0))
        await stack.bus.expect(Assignment, starts("two"))


async def test_a_horizon_that_is_not_forecast_any_more_does_not_come_back_with_a_restart(database_url: str) -> None:
    later = forecast(8.0)
    del later.points[0]
    async with environment(database_url) as stack:
        async with stack.service("scheduler") as service:
            await service.http.put("/v1/policy", content=HELD.encode())
            await stack.bus.publish(graph("beijing", 1), forecast(8.0))
            await heard(service)
            await stack.bus.publish(later)
            async with asyncio.timeout(PATIENCE_S):
                while "tenant/speech/600/expected" in live_of(service).book.fleet.expected_demand:
                    await asyncio.sleep(0.02)
            known = dict(live_of(service).book.fleet.expected_demand)
        async with stack.service("scheduler") as service:
            assert live_of(service).book.fleet.expected_demand == known
