"""What the gateway asks of the agent of a domain: logs of runs, and the death of an emulated node."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx

from meridian.errors import ConflictError, NotFoundError
from services.gateway.upstream import Upstream


class Agent:
    """The agent of one domain at its address; ConflictError when the domain named none."""

    def __init__(self, http: httpx.AsyncClient, token: str, domain_id: str, url: str) -> None:
        if not url:
            raise ConflictError(f"the agent of domain {domain_id!r} cannot be reached from here")
        self._upstream = Upstream(http, f"agent of domain {domain_id!r}", url)
        # Without a token the agent refuses, and says why.
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def log(self, run_id: str, rank: int, offset: int) -> dict[str, Any]:
        """Output of a rank from byte ``offset`` on: text, next_offset, complete."""
        try:
            return await self._upstream.ask(
                "GET",
                f"/logs/{quote(run_id, safe='')}",
                params={"rank": rank, "offset": offset},
                headers=self._headers,
            )
        except NotFoundError:
            raise NotFoundError(f"rank {rank} of run {run_id!r} has no log") from None

    async def kill(self, node_id: str) -> None:
        """End an emulated node as if its power failed."""
        await self._upstream.ask("POST", f"/nodes/{quote(node_id, safe='')}/kill", headers=self._headers)
