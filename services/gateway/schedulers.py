"""The scheduler as the gateway asks it: one, or a shard for each part of the tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx

from meridian.errors import ConfigurationError
from meridian.sharding import shard_of_tenant
from services.gateway.upstream import Upstream


class Schedulers:
    """Questions about a tenant go to its shard; the policy is the same in all of them and is changed in all of them."""

    def __init__(self, http: httpx.AsyncClient, urls: str) -> None:
        """``urls``: the addresses of all shards, in their order, separated by commas; ConfigurationError when one is empty."""
        addresses = [url.strip() for url in urls.split(",")]
        if not all(addresses):
            raise ConfigurationError("MERIDIAN_SCHEDULER_URL: an address between commas is empty")
        self.shards: Sequence[Upstream] = [Upstream(http, "scheduler", url) for url in addresses]

    def of(self, tenant_id: str) -> Upstream:
        """The shard of a tenant."""
        return self.shards[shard_of_tenant(tenant_id, len(self.shards))]

    async def ask(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        """Ask the first shard, for what is the same in all of them."""
        return await self.shards[0].ask(method, path, **request)

    async def ask_all(self, method: str, path: str, **request: Any) -> list[dict[str, Any]]:
        """Ask every shard, at once; the answers in their order. An error of one is the error of all."""
        return list(await asyncio.gather(*(shard.ask(method, path, **request) for shard in self.shards)))

    async def change(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        """Ask all shards, in their order, to change; the answer of the first. An error of one ends it: the same change asked
        for again finds those that have changed already unchanged."""
        answers = [await shard.ask(method, path, **request) for shard in self.shards]
        return answers[0]
