"""Ids sort by time and do not repeat; a virtual clock moves only forward and only when told."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meridian.clock import SystemClock, VirtualClock
from meridian.ids import new_id


def test_ids_are_unique_and_well_formed() -> None:
    ids = [new_id("job") for _ in range(5000)]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"job-[0-9a-hjkmnp-tv-z]{26}", one) for one in ids)


def test_ids_of_later_milliseconds_sort_behind() -> None:
    ids = []
    for _ in range(20):
        ids.append(new_id("evt"))
        before = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 == before:
            pass
    assert ids == sorted(ids)


def test_an_id_carries_the_time_of_its_making() -> None:
    alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
    before = time.time_ns() // 1_000_000
    digits = new_id("x").removeprefix("x-")
    after = time.time_ns() // 1_000_000
    value = 0
    for digit in digits:
        value = value * 32 + alphabet.index(digit)
    assert before <= value >> 82 <= after


@given(st.lists(st.floats(0, 1e6), max_size=20))
def test_both_times_of_a_virtual_clock_move_together(steps: list[float]) -> None:
    start = datetime(2026, 5, 1, tzinfo=UTC)
    clock = VirtualClock(start)
    for step in steps:
        clock.advance(step)
    assert clock.monotonic_s() == pytest.approx(sum(steps))
    # timedelta rounds each step to microseconds.
    assert abs((clock.now() - start).total_seconds() - sum(steps)) <= 1e-6 * (len(steps) + 1) + 1e-9 * sum(steps)


def test_a_virtual_clock_stands_still_and_never_goes_back() -> None:
    clock = VirtualClock()
    before = clock.now()
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(-0.001)
    assert clock.now() == before
    assert clock.monotonic_s() == 0


def test_the_system_clock_is_in_utc() -> None:
    before = datetime.now(UTC)
    now = SystemClock().now()
    assert now.utcoffset() == timedelta(0)
    assert before <= now <= datetime.now(UTC)
    assert SystemClock().monotonic_s() <= SystemClock().monotonic_s()
