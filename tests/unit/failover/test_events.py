"""What is taken of messages that are not as they should be, or are of a newer release."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from meridian.catalogue import catalogue
from meridian.codec import Envelope
from meridian.contracts.resource.v1.resource_pb2 import Heartbeat, NodeBeat
from meridian.contracts.run.v1.run_pb2 import RunFailed
from services.failover.events import _sort, summary_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("name", ["", "a\x00b", "a\nb", "x" * 201])
def test_what_has_no_name_is_not_watched(name: str) -> None:
    assert summary_of(Heartbeat(domain_id=name)) is None
    found = summary_of(Heartbeat(domain_id="d", nodes=[NodeBeat(node_id=name), NodeBeat(node_id="n")]))
    assert found is not None
    assert [beat.node_id for beat in found.beats] == ["n"]


@pytest.mark.parametrize("lease_s", [math.inf, math.nan])
def test_a_lease_without_end_is_none(lease_s: float) -> None:
    found = summary_of(Heartbeat(domain_id="d", lease_s=lease_s))
    assert found is not None
    assert found.lease_s == 0.0


def test_a_failure_of_a_kind_that_this_release_does_not_know_ends_the_run() -> None:
    """Agents are brought up to date on their own; what a newer one says of an end is an end."""
    message = RunFailed(run_id="r", job_id="j", epoch=3)
    envelope = Envelope("1", catalogue().event_of(message), "/agent", NOW, "j", message)
    message.kind = 99  # type: ignore[assignment]
    [ending] = _sort([envelope], NOW).endings
    assert (ending.run_id, ending.epoch, ending.reason) == ("r", 3, "99")
