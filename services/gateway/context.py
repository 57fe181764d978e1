"""What the routes of one process work with, and who calls them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import OAuth2, SecurityScopes
from limits import RateLimitItem

from meridian.service import Kernel
from services.gateway.auth import Authority, Caller, Scope
from services.gateway.capacity import DomainCapacity
from services.gateway.feed import Feed
from services.gateway.rates import RateLimiter, RateLimitError, Standing
from services.gateway.schedulers import Schedulers
from services.gateway.settings import GatewaySettings
from services.gateway.store import network
from services.gateway.upstream import Upstream

_CAPACITY_AGE_S = 1.0


class Capacities:
    """What the domains have, read again when it changed and otherwise at most once a second."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._read_s: float | None = None
        self._known: dict[str, DomainCapacity] = {}

    def invalidate(self) -> None:
        """The network changed."""
        self._read_s = None

    async def get(self) -> dict[str, DomainCapacity]:
        """Domains by id."""
        now_s = self._kernel.clock.monotonic_s()
        if self._read_s is None or now_s - self._read_s > _CAPACITY_AGE_S:
            async with self._kernel.database.reading() as connection:
                self._known = await network.capacities(connection)
            self._read_s = now_s
        return self._known


@dataclass(frozen=True, slots=True)
class Gateway:
    """The parts, wired in `app.build`."""

    kernel: Kernel
    settings: GatewaySettings
    authority: Authority
    limiter: RateLimiter
    limit: RateLimitItem
    login_limit: RateLimitItem
    capacities: Capacities
    feed: Feed
    identity: Upstream
    scheduler: Schedulers
    forecast: Upstream
    telemetry: Upstream
    graph: Upstream
    http: Any


def gateway(request: Request) -> Gateway:
    """The parts of the process that serves this request."""
    found: Gateway = request.app.state.gateway
    return found


Parts = Annotated[Gateway, Depends(gateway)]

_SCOPES = {
    Scope.JOBS_READ: "see one's jobs",
    Scope.JOBS_WRITE: "submit and cancel jobs",
    Scope.RESOURCES_READ: "see domains, nodes, incidents and forecasts",
    Scope.OPERATOR: "see and steer everything",
    Scope.ADMIN: "manage tenants",
}
_oauth2 = OAuth2(
    flows={
        "clientCredentials": {
            "tokenUrl": "/v1/tokens",
            "scopes": {str(scope): text for scope, text in _SCOPES.items()},
        }
    },
    scheme_name="meridian",
    auto_error=False,
)


def note_standing(request: Request, standing: Standing) -> None:
    """Tell the caller its limit in the headers of whatever answer follows; RateLimitError when it is used up."""
    request.state.headers = standing.headers()
    if not standing.allowed:
        raise RateLimitError(f"more than {standing.limit} requests in {standing.window_s} s", standing.reset_s)


async def _caller(
    request: Request,
    parts: Parts,
    scopes: SecurityScopes,
    authorization: Annotated[str | None, Depends(_oauth2)],
) -> Caller:
    caller = await parts.authority.check_header(authorization)
    note_standing(request, await parts.limiter.hit(parts.limit, "tenant", caller.tenant_id))
    if scopes.scopes:
        caller.require(*scopes.scopes)
    return caller


JobReader = Annotated[Caller, Security(_caller, scopes=[Scope.JOBS_READ])]
JobWriter = Annotated[Caller, Security(_caller, scopes=[Scope.JOBS_WRITE])]
ResourceReader = Annotated[Caller, Security(_caller, scopes=[Scope.RESOURCES_READ])]
Operator = Annotated[Caller, Security(_caller, scopes=[Scope.OPERATOR])]
# Either of the two is enough.
Listener = Annotated[Caller, Security(_caller, scopes=[Scope.JOBS_READ, Scope.RESOURCES_READ])]
