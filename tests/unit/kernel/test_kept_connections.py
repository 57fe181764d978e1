"""A server must not close an idle connection over which a client may be sending: it would be told of a connection that was reset."""

from __future__ import annotations

import httpx
import pytest

import agent.app
import meridian.service
from meridian.leadership import _CONFIRM_S, _HANGS_AFTER_S


@pytest.mark.parametrize("kept_s", [meridian.service.KEEP_ALIVE_S, agent.app.KEEP_ALIVE_S])
def test_servers_keep_idle_connections_longer_than_our_clients_use_them_again(kept_s: float) -> None:
    client_s = httpx.Limits().keepalive_expiry
    assert client_s is not None
    # A process that stands still for half a minute finds the request before its own time for the connection is over.
    assert kept_s >= client_s + 30.0


def test_a_leader_does_not_give_up_for_a_database_that_stands_still_for_some_seconds() -> None:
    assert _HANGS_AFTER_S >= 10 * _CONFIRM_S
