"""Composition root of the gateway."""

from __future__ import annotations

import httpx
from starlette.routing import Route

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
from services.gateway.retention import keep_forgetting
from services.gateway.schedulers import Schedulers
from services.gateway.settings import GatewaySettings
from services.gateway.upstream import Upstream

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

    authority = Authority(keys, revoked, kernel.clock, settings.audience)
    kernel.http.state.gateway = Gateway(
        kernel=kernel,
        settings=settings,
        authority=authority,
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
        check=authority.check_header,
    )

    Handlers(Signals(feed.wake, capacities.invalidate, revoked.wake)).subscribe(kernel.bus)
    kernel.before_start += [feed.open, revoked.load]
    kernel.add_task("feed", feed.run)
    kernel.add_task("revocations", revoked.run)
    kernel.add_task("retention", lambda: keep_forgetting(kernel.database, kernel.clock, settings))


def _methods(path: str) -> set[str]:
    """What may be done with a path; a router alone names the methods of the first route that fits."""
    return {
        method
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, Route) and route.path_regex.match(path)
        for method in route.methods or ()
    }
