"""User-defined resources through the public interface: operators define them, everybody who may look sees what there is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest_asyncio

from meridian.contracts.resource.v1.resource_pb2 import ResourceDefined
from tests.harness import Environment, environment
from tests.integration.gateway.issuer import Issuer, serving

RESOURCE = {"description": "seats", "value": 20.0, "shareable": True, "scope": ["domain:beijing"]}


@dataclass
class Found:
    environment: Environment
    http: httpx.AsyncClient
    issuer: Issuer


@pytest_asyncio.fixture
async def found(database_url: str, redis_url: str) -> AsyncIterator[Found]:
    with serving() as issuer:
        async with (
            environment(database_url, redis_url=redis_url, identity_url=issuer.url, scheduler_url=issuer.url) as env,
            env.service("telemetry") as telemetry,
        ):
            env.settings["telemetry_url"] = telemetry.base_url
            async with env.service("gateway", {"MERIDIAN_GATEWAY_AGENT_TOKEN": "secret"}) as gateway:
                yield Found(env, gateway.http, issuer)


async def test_operators_define_and_all_see(found: Found) -> None:
    operator, reader = found.issuer.headers("operator"), found.issuer.headers("resources:read")
    answer = await found.http.put("/v1/resources/licences", json={"name": "licences", **RESOURCE}, headers=operator)
    assert answer.status_code == 201, answer.text
    assert answer.json()["value"] == 20
    assert (
        await found.http.put("/v1/resources/licences", json={"name": "licences", "value": 3}, headers=operator)
    ).status_code == 200
    event = await found.environment.bus.expect(ResourceDefined, count=2)
    assert event.definition.value == 3
    # The path has the name.
    assert (await found.http.put("/v1/resources/licences", json={"value": 4}, headers=operator)).status_code == 200
    assert (await found.http.put("/v1/resources/licences", json={"value": 3}, headers=operator)).json()["value"] == 3
    assert (await found.http.put("/v1/resources/gpu", json={"value": 4}, headers=operator)).status_code == 422
    nameless = {"name": None, "value": 4}
    assert (await found.http.put("/v1/resources/licences", json=nameless, headers=operator)).status_code == 422
    shown = (await found.http.get("/v1/resources", headers=reader)).json()["items"]
    assert [(item["name"], item["value"]) for item in shown] == [("licences", 3)]
    assert "defined_by" not in shown[0]
    assert (await found.http.get("/v1/resources/licences", headers=operator)).json()["nodes"] == []
    assert (await found.http.delete("/v1/resources/licences", headers=reader)).status_code == 403
    assert (await found.http.delete("/v1/resources/licences", headers=operator)).status_code == 200
    assert (await found.http.get("/v1/resources/licences", headers=operator)).status_code == 404


async def test_a_wrong_definition_is_refused_by_field_and_changes_nothing(found: Found) -> None:
    operator = found.issuer.headers("operator")
    for content, words in (
        ({"name": "x", "value": -1}, "value"),
        ({"name": "x", "dynamic": True}, "command"),
        ({"name": "x", "value": 1, "colour": "red"}, "colour"),
        ({"name": "gpu", "value": 1}, "name"),
    ):
        answer = await found.http.put("/v1/resources/x", json=content, headers=operator)
        assert answer.status_code in {400, 422}, answer.text
        assert words in answer.text
    assert (
        await found.http.put("/v1/resources/x", json={"name": "y", "value": 1}, headers=operator)
    ).status_code == 409
    assert (await found.http.get("/v1/resources", headers=operator)).json()["items"] == []
