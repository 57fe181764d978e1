"""Who sees which event of the stream."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from services.gateway.api.stream import visible
from services.gateway.auth import Caller, Scope, expand
from services.gateway.store.stream import StoredEvent

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def event(job_id: str = "", tenant_id: str = "") -> StoredEvent:
    return StoredEvent("DemandForecast", NOW, "/forecast", "topic", "", "id", job_id, tenant_id, "", "{}", 1)


def caller(*scopes: str) -> Caller:
    return Caller("acme", "app", "tok-1", expand(scopes), NOW, NOW)


@pytest.mark.parametrize(
    ("what", "scopes"),
    [
        (event("job-1", "acme"), {Scope.JOBS_READ, Scope.OPERATOR, Scope.ADMIN}),
        (event("job-1", "globex"), {Scope.OPERATOR, Scope.ADMIN}),
        # Of the job nothing is known yet, not even whose it is.
        (event("job-1"), {Scope.OPERATOR, Scope.ADMIN}),
        (event(), {Scope.RESOURCES_READ, Scope.OPERATOR, Scope.ADMIN}),
        (event(tenant_id="acme"), {Scope.RESOURCES_READ, Scope.OPERATOR, Scope.ADMIN}),
        (event(tenant_id="globex"), {Scope.OPERATOR, Scope.ADMIN}),
    ],
)
def test_an_event_is_seen_with_the_scopes_that_it_needs_and_by_its_tenant(what: StoredEvent, scopes: set[str]) -> None:
    assert {scope for scope in Scope if visible(what, caller(scope))} == scopes
