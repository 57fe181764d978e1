"""Which shard of the scheduler the gateway asks."""

from __future__ import annotations

import httpx
import pytest

from meridian.errors import ConfigurationError, PreconditionFailedError
from meridian.sharding import organisation_of, shard_of, shard_of_tenant
from services.gateway.schedulers import Schedulers


def schedulers(asked: list[str], refusing: str = "") -> Schedulers:
    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url}")
        if refusing and refusing in str(request.url):
            return httpx.Response(412, json={"detail": "another policy is in force"})
        return httpx.Response(200, json={"from": request.url.host})

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return Schedulers(http, "http://a, http://b/,http://c")


def test_parts_are_the_same_in_every_process() -> None:
    # printf beijing-lab | sha256sum begins with these 8 bytes.
    assert shard_of("beijing-lab", 7) == 0x286A3BBFFB43FF3D % 7
    assert shard_of("anything", 1) == 0
    assert {shard_of(f"tenant-{number}", 3) for number in range(50)} == {0, 1, 2}


def test_tenants_of_one_organisation_lie_in_one_shard() -> None:
    assert [organisation_of(name) for name in ("acme", "acme.vision", "acme.vision.night")] == ["acme"] * 3
    assert shard_of_tenant("acme.vision", 7) == shard_of_tenant("acme.speech", 7) == shard_of("acme", 7)


async def test_a_tenant_has_one_shard_and_a_change_goes_to_all() -> None:
    asked: list[str] = []
    found = schedulers(asked)
    for tenant in ("lab", "works", "school", "school.physics"):
        answer = await found.of(tenant).ask("GET", "/v1/queue")
        assert answer["from"] == "abc"[shard_of(tenant.removesuffix(".physics"), 3)]
    asked.clear()
    assert await found.change("PUT", "/v1/policy") == {"from": "a"}
    assert asked == ["PUT http://a/v1/policy", "PUT http://b/v1/policy", "PUT http://c/v1/policy"]


async def test_a_change_that_a_shard_refuses_is_refused() -> None:
    asked: list[str] = []
    with pytest.raises(PreconditionFailedError):
        await schedulers(asked, refusing="http://b").change("PUT", "/v1/policy")
    assert len(asked) == 2


def test_an_empty_address_is_named() -> None:
    with pytest.raises(ConfigurationError, match="MERIDIAN_SCHEDULER_URL"):
        Schedulers(httpx.AsyncClient(), "http://a,,http://c")
