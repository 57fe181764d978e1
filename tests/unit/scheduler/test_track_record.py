"""Bands that follow how predictions turn out: single steps by hand, coverage in the long run, and over a restart."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.futures.prospect import Prospect
from services.scheduler.core.futures.track_record import TrackRecord
from services.scheduler.core.state import UnitKey


def a_prospect(name: str, now_s: float, low: float, start: float, high: float) -> Prospect:
    return Prospect(UnitKey(name, 0), now_s + start, now_s + low, now_s + high)


def test_single_steps() -> None:
    """Of 0.8 each end may be passed by 0.1: passed, an end moves 0.03 x 0.9 outwards; not passed, 0.03 x 0.1 inwards."""
    record = TrackRecord(0.8)
    said = record.asked(a_prospect("late", 1000.0, 100.0, 200.0, 300.0), 1000.0)
    assert (said.low_s, said.high_s) == pytest.approx((1100.0, 1300.0))
    record.advance(1299.0)
    assert record.counted == 0
    record.advance(1301.0)
    assert (record.lows[0], record.highs[0]) == pytest.approx((0.003, 0.027))
    record.started(UnitKey("late", 0), 9000.0)
    assert record.counted == 1
    record.asked(a_prospect("early", 2000.0, 100.0, 200.0, 300.0), 2000.0)
    record.started(UnitKey("early", 0), 2050.0)
    assert (record.lows[0], record.highs[0]) == pytest.approx((-0.024, 0.024))
    assert record.middles[0] == pytest.approx(0.0)
    moved = record.band(a_prospect("next", 3000.0, 100.0, 200.0, 300.0), 3000.0)
    assert moved.low_s == pytest.approx(3000.0 + 400.0 * math.exp(-0.024) - 300.0)
    assert moved.high_s == pytest.approx(3000.0 + 600.0 * math.exp(0.024) - 300.0)
    assert record.lows[1:] == record.highs[1:] == [0.0, 0.0]


def test_what_leaves_or_has_no_end_does_not_count() -> None:
    record = TrackRecord()
    record.asked(a_prospect("leaves", 0.0, 1.0, 2.0, 3.0), 0.0)
    record.left(UnitKey("leaves", 0))
    open_ended = a_prospect("open", 0.0, 1.0, 2.0, math.inf)
    assert record.asked(open_ended, 0.0).high_s == math.inf
    never = Prospect(UnitKey("never", 0), math.inf, math.inf, math.inf, 5.0, True)
    assert record.asked(never, 0.0) == never
    record.advance(1e9)
    assert (record.counted, record.open) == (0, frozenset())


@pytest.mark.parametrize("coverage", [0.8, 0.9])
@pytest.mark.parametrize("factor", [0.5, 1.0, 4.0])
def test_starts_lie_inside_as_often_as_wanted_however_wrong_predictions_are(coverage: float, factor: float) -> None:
    """Waits of ``factor`` times what is predicted, spread by a factor of e or so: 5,000 counted after 2,000, to 3 points."""
    rng = random.Random(1)
    record = TrackRecord(coverage)
    inside = []
    for number in range(7000):
        now_s = number * 1e6
        start = rng.uniform(5000.0, 10_000.0)
        said = record.asked(a_prospect(f"j{number}", now_s, 0.9 * start, start, 1.1 * start), now_s)
        at_s = now_s + factor * start * math.exp(rng.gauss(0.0, 0.7))
        record.started(said.key, at_s)
        inside.append(said.low_s <= at_s <= said.high_s)
    assert sum(inside[2000:]) / 5000 == pytest.approx(coverage, abs=0.03)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 1e6)), max_size=30))
def test_bands_stay_bands_and_a_restart_changes_nothing(rows: list[tuple[float, float, float, float]]) -> None:
    record, now_s = TrackRecord(), 0.0
    for number, (*waits, after_s) in enumerate(rows):
        low, start, high = sorted(waits)
        said = record.asked(a_prospect(f"j{number}", now_s, low, start, high), now_s)
        assert now_s <= said.low_s <= said.high_s
        if number % 3:
            record.started(UnitKey(f"j{number}", 0), now_s + after_s)
        now_s += 1000.0
        again = TrackRecord.restored(json.loads(json.dumps(record.state())))
        assert again.state() == record.state()
        record.advance(now_s)
        again.advance(now_s)
        assert again.state() == record.state()


def test_what_does_not_read_is_refused() -> None:
    for state in (
        {},
        {"lows": [0.0], "middles": [0.0], "highs": [0.0], "counted": 0, "open": []},
        {**TrackRecord().state(), "open": [1]},
    ):
        with pytest.raises(PolicyError, match="track record"):
            TrackRecord.restored(state)
    with pytest.raises(PolicyError, match="coverage"):
        TrackRecord(1.0)
