"""Which callers a revocation refuses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from meridian.clock import VirtualClock
from services.gateway.auth import Caller, RevocationList
from services.gateway.store.revocations import Revocation

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def refuses(revocations: list[Revocation], issued_at: datetime) -> bool:
    # Nothing is read: the list is told.
    found = RevocationList(cast("Any", None), VirtualClock(NOW), 1.0)
    for revocation in revocations:
        found.add(revocation)
    return found.refuses(Caller("acme", "app", "tok-1", frozenset(), issued_at, NOW + timedelta(hours=1)))


@pytest.mark.parametrize("identity_id", ["acme", "app"])
def test_what_was_issued_until_the_revocation_is_refused_and_what_came_after_is_not(identity_id: str) -> None:
    revoked = [Revocation(identity_id, "", NOW)]
    assert refuses(revoked, NOW - SECOND)
    assert refuses(revoked, NOW)
    assert not refuses(revoked, NOW + SECOND)


def test_of_several_revocations_the_latest_counts_in_whatever_order_they_are_told() -> None:
    early, late = Revocation("acme", "", NOW - SECOND), Revocation("acme", "", NOW + SECOND)
    for told in ([early, late], [late, early]):
        assert refuses(told, NOW)


def test_a_token_that_was_revoked_alone_takes_no_other_with_it() -> None:
    assert refuses([Revocation("acme", "tok-1", NOW)], NOW + SECOND)
    assert not refuses([Revocation("acme", "tok-2", NOW)], NOW)
    assert not refuses([Revocation("globex", "", NOW)], NOW)
