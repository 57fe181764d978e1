"""An instance that stands by hears everything, and keeps no list of what nobody takes from it."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from meridian.clock import VirtualClock
from meridian.codec import Envelope, decode, encode
from meridian.contracts.resource.v1.resource_pb2 import Heartbeat
from services.failover.metrics import FailoverMetrics
from services.failover.settings import FailoverSettings
from services.failover.watch import MOST_UNTOLD, Watch


def _beat(clock: VirtualClock, sequence: int, interval_s: float = 0.2) -> Envelope:
    """Each beat names another lease, which a leader would tell."""
    lease_s = 10.0 + sequence % 2
    message = Heartbeat(domain_id="north", agent_id="a", sequence=sequence, interval_s=interval_s, lease_s=lease_s)
    message.sent_at.FromDatetime(clock.now())
    record = encode(message, event_id=str(sequence), source="/a", time=clock.now())
    return decode(record.value, record.headers)


async def test_what_nobody_takes_does_not_grow_while_standing_by() -> None:
    clock = VirtualClock(datetime(2026, 5, 1, tzinfo=UTC))
    watch = Watch(cast("Any", SimpleNamespace(clock=clock)), FailoverSettings(), FailoverMetrics(CollectorRegistry()))
    heard: list[int] = []
    for sequence in range(1, 3 * MOST_UNTOLD):
        clock.advance(0.2)
        await watch.hear([_beat(clock, sequence)])
        heard.append(watch.detector.untold)
    assert max(heard) == MOST_UNTOLD
    assert watch.detector.domains["north"].sequence == 3 * MOST_UNTOLD - 1, "its ears are warm"
    watch._stands_by = False
    for sequence in range(3 * MOST_UNTOLD, 5 * MOST_UNTOLD):
        clock.advance(0.2)
        await watch.hear([_beat(clock, sequence)])
    assert watch.detector.untold >= 2 * MOST_UNTOLD, "a leader tells everything"


async def test_an_agent_that_beats_too_seldom_for_the_suspicion_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock(datetime(2026, 5, 1, tzinfo=UTC))
    settings = FailoverSettings(suspect_after_s=1.0, failed_after_s=4.0)
    watch = Watch(cast("Any", SimpleNamespace(clock=clock)), settings, FailoverMetrics(CollectorRegistry()))
    told = []
    for sequence, interval_s in enumerate((0.5, 0.8, 0.8, 0.5, 2.0, 0.0), start=1):
        clock.advance(interval_s)
        caplog.clear()
        await watch.hear([_beat(clock, sequence, interval_s)])
        told.append([record.getMessage() for record in caplog.records])
    words = "heartbeat_hz: the agent of domain north sends %s heartbeats a second; with suspect_after_s 1 at least 2 are needed"
    assert told == [[], [words % "1.25"], [], [], [words % "0.5"], []]
