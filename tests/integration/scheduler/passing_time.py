"""A live scheduler whose time passes when its test says so: nothing is due before, however busy the machine is."""

from __future__ import annotations

from datetime import UTC, datetime

from meridian.clock import VirtualClock
from services.scheduler.live import LiveScheduler
from tests.harness import RunningService


def clock_of_now() -> VirtualClock:
    """A clock that stands at the present time, so that what others say of their times is not far from it."""
    return VirtualClock(datetime.now(UTC))


def live_of(service: RunningService) -> LiveScheduler:
    """What decides in a service."""
    owner = service.kernel.tasks["cycles"].__self__  # type: ignore[attr-defined]
    assert isinstance(owner, LiveScheduler)
    return owner


def passes(service: RunningService, seconds: float) -> None:
    """So many seconds pass for a service that goes by a virtual clock; its loops sleep by the machine's, so they are woken."""
    clock = service.kernel.clock
    assert isinstance(clock, VirtualClock)
    clock.advance(seconds)
    live = live_of(service)
    live._changed.set()
    live._poked.set()
