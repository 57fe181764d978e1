"""How often an agent beats, on a loop whose time passes only while everything waits."""

from __future__ import annotations

import asyncio
import selectors
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import MessageSizeTooLargeError

from agent.heartbeats import SUSPECTED_AFTER_S, Heartbeats
from agent.lease import Lease
from agent.settings import AgentSettings, Domain, Node
from meridian.contracts.resource.v1.resource_pb2 import Heartbeat
from services.failover.beliefs import Thresholds

START = datetime(2026, 1, 1, tzinfo=UTC)


class _Time(selectors.SelectSelector):
    """Whoever would wait has waited already. ``now_s`` is also the agent's clock."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now_s += max(timeout or 0.0, 0.0)
        return super().select(0)

    def now(self) -> datetime:
        return START + timedelta(seconds=self.now_s)

    def monotonic_s(self) -> float:
        return self.now_s


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, passing: _Time) -> None:
        self._passing = passing
        super().__init__(passing)

    def time(self) -> float:
        return self._passing.now_s


class _Bus:
    """Takes every heartbeat at once; stands still for ``stall_s`` at the ``stall_at``-th."""

    def __init__(self, passing: _Time, stall_at: int, stall_s: float) -> None:
        self._passing = passing
        self._stall = (stall_at, stall_s)
        self.sent: list[Heartbeat] = []

    async def send(self, message: Heartbeat, **_: Any) -> asyncio.Future[None]:
        self.sent.append(message)
        if len(self.sent) == self._stall[0]:
            self._passing.now_s += self._stall[1]
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        taken.set_result(None)
        return taken


class _Idle:
    """An engine without nodes."""

    lost = 0

    def nodes(self) -> tuple[()]:
        return ()

    def in_contact(self) -> None:
        return

    def lease_regained(self) -> None:
        return

    async def lease_lost(self) -> None:
        self.lost += 1


def beats_within(
    seconds: float, tmp_path: Path, *, stall_at: int = 0, stall_s: float = 0.0, heartbeat_hz: float = 5.0
) -> tuple[list[float], int]:
    """Times (s) at which heartbeats were sent, and how often the lease was lost meanwhile."""
    passing = _Time()
    bus, engine = _Bus(passing, stall_at, stall_s), _Idle()
    settings = AgentSettings(
        domain=Domain(domain_id="north", nodes=(Node(node_id="n"),)),
        kafka_bootstrap_servers="none",
        data_dir=tmp_path,
        heartbeat_hz=heartbeat_hz,
    )
    lease = Lease(settings.lease_s, 2.0, 0.0)
    heartbeats = Heartbeats(settings, engine, bus, lease, passing, incarnation=1)  # type: ignore[arg-type]

    async def beat() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(heartbeats.run(), seconds)

    with asyncio.Runner(loop_factory=lambda: _Loop(passing)) as runner:
        runner.run(beat())
    assert [item.sequence for item in bus.sent] == list(range(1, len(bus.sent) + 1))
    return [(item.sent_at.ToDatetime(UTC) - START).total_seconds() for item in bus.sent], engine.lost


def test_five_beats_in_a_second_and_never_more(tmp_path: Path) -> None:
    at_s, lost = beats_within(10.1, tmp_path)
    assert len(at_s) == 51
    assert all(later - earlier == pytest.approx(0.2, abs=1e-5) for earlier, later in pairwise(at_s))
    assert lost == 0


def test_after_a_standstill_one_beat_is_made_up_for_and_no_more(tmp_path: Path) -> None:
    at_s, lost = beats_within(10.1, tmp_path, stall_at=10, stall_s=5.0)
    gaps_s = [later - earlier for earlier, later in pairwise(at_s)]
    assert max(gaps_s) == pytest.approx(5.0, abs=0.21)
    assert sum(gap_s < 0.19 for gap_s in gaps_s) <= 1
    assert len(at_s) == pytest.approx(26, abs=2)
    assert lost == 0


def test_a_standstill_longer_than_the_lease_ends_the_runs(tmp_path: Path) -> None:
    _, lost = beats_within(20.0, tmp_path, stall_at=10, stall_s=9.0)
    assert lost == 1


class _SmallBus(_Bus):
    """Takes no heartbeat: each is larger than its topic takes."""

    async def send(self, message: Heartbeat, **_: Any) -> asyncio.Future[None]:
        taken = await super().send(message)
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused.set_exception(MessageSizeTooLargeError("too large"))
        return taken if len(self.sent) == self._stall[0] else refused


def test_a_heartbeat_that_is_too_large_is_told_and_not_five_times_a_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A domain of too many nodes never beats, and nobody would know why."""
    monkeypatch.setattr(sys.modules[__name__], "_Bus", _SmallBus)
    beats_within(130.0, tmp_path)
    told = [record.getMessage() for record in caplog.records if "larger" in record.getMessage()]
    assert len(told) == 3, "at once, and once a minute"
    assert told[0].startswith("heartbeats of 0 nodes are larger than their topic takes")


def test_heartbeats_too_seldom_for_failover_as_it_is_set_by_default_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert Thresholds().suspect_after_s == SUSPECTED_AFTER_S
    beats_within(1.0, tmp_path, heartbeat_hz=2.0)
    assert "heartbeat_hz" not in caplog.text
    beats_within(1.0, tmp_path, heartbeat_hz=1.5)
    assert "heartbeat_hz: with 1.5 heartbeats a second" in caplog.text
    assert "at least 2 are needed" in caplog.text
