"""Composition root of the gateway."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import httpx
from starlette.routing import Route

from meridian.database import is_passing
from meridian.service import Kernel
from meridian.settings import load
from services.gateway.api import (
    compute,
    graph,
    jobs,
    network,
    plans,
    policy,
    promises,
    resources,
    status_page,
    stream,
    tokens,
)
from services.gateway.auth import Authority, KeyCache, RevocationList
from services.gateway.context import Capacities, Gateway
from services.gateway.edge import Edge
from services.gateway.events import Handlers, Signals
from services.gateway.feed import Feed
from services.gateway.openapi import install_openapi
from services.gateway.rates import RateLimiter, parse_limit
from services.gateway.schedulers import Schedulers
from services.gateway.settings import GatewaySettings
from services.gateway.store import revocations, submissions
from services.gateway.store import stream as event_table
from services.gateway.upstream import Upstream

log = logging.getLogger(__name__)

ROUTERS = (
    tokens.router,
    jobs.router,
    graph.router,
    network.router,
    plans.router,
    policy.router,
    promises.router,
    resources.router,
    compute.router,
    stream.router,
    status_page.router,
)
_FORGET_EVERY_S = 300.0


def build(kernel: Kernel) -> None:
    """Wire the gateway."""
    settings = load(GatewaySettings)
    kernel.http_settings = settings
    addresses = kernel.settings

    http = httpx.AsyncClient(timeout=settings.upstream_timeout_s, follow_redirects=False, trust_env=False)
    kernel.after_stop.append(http.aclose)
    keys = KeyCache(http, f"{addresses.identity_url}/.well-known/jwks.json", kernel.clock, settings.jwks_max_age_s)
    revoked = RevocationList(kernel.database, kernel.clock, settings.revocation_poll_s)
    feed = Feed(kernel.database, settings.feed_events)
    capacities = Capacities(kernel)

    kernel.http.state.gateway = Gateway(
        kernel=kernel,
        settings=settings,
        authority=Authority(keys, revoked, kernel.clock, settings.audience),
        limiter=RateLimiter(addresses.redis_url, kernel.clock),
        limit=parse_limit(settings.rate_limit),
        login_limit=parse_limit(settings.login_rate_limit),
        capacities=capacities,
        feed=feed,
        identity=Upstream(http, "identity service", addresses.identity_url),
        scheduler=Schedulers(http, addresses.scheduler_url),
        forecast=Upstream(http, "forecast service", addresses.forecast_url),
        telemetry=Upstream(http, "telemetry service", addresses.telemetry_url),
        graph=Upstream(http, "graph service", addresses.graph_url),
        http=http,
    )
    for router in ROUTERS:
        kernel.http.include_router(router)
    install_openapi(kernel.http)
    kernel.http.add_middleware(
        Edge,
        max_body_bytes=settings.max_body_bytes,
        larger={"/v1/jobs:batch": settings.max_batch_body_bytes},
        allowed=_methods,
    )

    Handlers(Signals(feed.wake, capacities.invalidate, revoked.wake)).subscribe(kernel.bus)
    kernel.before_start += [feed.open, revoked.load]
    kernel.add_task("feed", feed.run)
    kernel.add_task("revocations", revoked.run)
    kernel.add_task("retention", lambda: _forget(kernel, settings))


def _methods(path: str) -> set[str]:
    """What may be done with a path; a router alone names the methods of the first route that fits."""
    return {
        method
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, Route) and route.path_regex.match(path)
        for method in route.methods or ()
    }


async def _forget(kernel: Kernel, settings: GatewaySettings) -> None:
    while True:
        now = kernel.clock.now()
        try:
            async with kernel.database.transaction() as connection:
                await event_table.forget_before(connection, now - timedelta(seconds=settings.event_retention_s))
            async with kernel.database.transaction() as connection:
                age = timedelta(seconds=settings.idempotency_retention_s)
                await submissions.forget_answers_before(connection, now - age)
            async with kernel.database.transaction() as connection:
                await revocations.forget_expired(connection, now)
        except Exception as error:
            if not is_passing(error):
                raise
            log.warning("old rows could not be removed", extra={"error": repr(error)})
        await asyncio.sleep(_FORGET_EVERY_S)
