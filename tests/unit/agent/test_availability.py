"""The share of time that machines were up, counted by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.collectors.availability import DAY_S, DAYS, NOT_SEEN, AvailabilityCollector, Look, UpTime
from agent.collectors.base import Reading, Source, Statistic
from agent.collectors.metrics import Metric
from agent.collectors.unknown import UnknownKind

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
BOTH = Look({"a", "b"}, set())
ONE = Look({"a"}, {"b"})
NOBODY = Look(set(), set())


class Machines:
    """A domain of two machines at which a collector looks every ten seconds."""

    def __init__(self, path: Path, now: datetime = NOON) -> None:
        self.look, self.now = BOTH, now
        self.collector = AvailabilityCollector(("a", "b"), lambda: self.look, path)

    def after(self, look: Look, times: int = 1, step_s: float = 10.0) -> dict[str, float | None]:
        readings: list[Reading] = []
        for _ in range(times):
            self.look = look
            readings = self.collector.collect(self.now)
            self.now += timedelta(seconds=step_s)
        assert [item.metric for item in readings] == [Metric.AVAILABILITY] * 3
        return {item.node_id: item.value for item in readings}


def test_availability_is_the_share_of_the_time_seen(tmp_path: Path) -> None:
    machines = Machines(tmp_path / "a.json")
    assert machines.after(BOTH) == {"a": None, "b": None, "": None}
    assert machines.after(BOTH, 6) == {"a": 1.0, "b": 1.0, "": 1.0}
    # 60 s up, then 30 s down.
    assert machines.after(ONE, 3) == {"a": 1.0, "b": pytest.approx(2 / 3), "": pytest.approx(5 / 6)}


def test_what_is_not_known_counts_on_neither_side(tmp_path: Path) -> None:
    machines = Machines(tmp_path / "a.json")
    machines.after(BOTH, 2)
    # Machines that sleep or start are in neither set, and of a pause of ten minutes nothing is known.
    machines.after(NOBODY, 6)
    machines.now += timedelta(minutes=10)
    assert machines.after(ONE) == {"a": 1.0, "b": 1.0, "": 1.0}
    assert machines.after(ONE) == {"a": 1.0, "b": 0.5, "": 0.75}
    machines.now -= timedelta(minutes=5)
    assert machines.after(ONE) == {"a": 1.0, "b": 0.5, "": 0.75}


def test_the_readings_say_where_they_come_from(tmp_path: Path) -> None:
    machines = Machines(tmp_path / "a.json")
    first = machines.collector.collect(NOON)[0]
    assert (first.value, first.kind, first.reason) == (None, UnknownKind.NEEDS_SECOND_SAMPLE, NOT_SEEN)
    second = machines.collector.collect(NOON + timedelta(seconds=10))[0]
    assert (second.source, second.statistic, second.unit) == (Source.AGGREGATION, Statistic.MEAN, "1")


def test_days_leave_after_thirty_and_midnight_parts_a_time() -> None:
    time = UpTime()
    midnight_s = 1000 * DAY_S
    time.add(BOTH, ONE, midnight_s - 10, midnight_s + 30)
    assert time.days == {"a": {999: (10.0, 10.0), 1000: (30.0, 30.0)}, "b": {999: (0.0, 10.0), 1000: (0.0, 30.0)}}
    time.forget((999 + DAYS) * DAY_S)
    assert 999 in time.days["a"]
    time.forget((1000 + DAYS) * DAY_S)
    assert time.days["a"] == {1000: (30.0, 30.0)}
    time.forget((1001 + DAYS) * DAY_S)
    assert time.days == {}


def test_a_restart_forgets_nothing_that_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "agent" / "availability.json"
    machines = Machines(path)
    machines.after(ONE, 8)
    anew = Machines(path, machines.now)
    assert anew.after(BOTH) == {"a": 1.0, "b": 0.0, "": 0.5}


@pytest.mark.parametrize("content", ["", "[]", "[" * 10_000, '{"a": 1}', '{"a": {"1": [9, 5]}}', '{"a": {"1": [1, NaN]}}', '{"a": {"x": [1, 2]}}', '{"a": {"1": [1, 1%s]}}' % ("0" * 400)])  # fmt: skip
def test_a_damaged_file_is_an_empty_one(content: str, tmp_path: Path) -> None:
    path = tmp_path / "availability.json"
    path.write_text(content)
    assert Machines(path).after(BOTH) == {"a": None, "b": None, "": None}


@given(
    st.lists(
        st.tuples(st.sampled_from([BOTH, ONE, NOBODY, Look(set(), {"a", "b"})]), st.floats(-100, 100)), max_size=30
    )
)
def test_a_share_is_a_share_whatever_is_seen(looks: list[tuple[Look, float]]) -> None:
    time, now_s, before = UpTime(), NOON.timestamp(), BOTH
    for look, step_s in looks:
        time.add(before, look, now_s, now_s + step_s)
        now_s, before = now_s + step_s, look
        found = time.share(("a", "b"))
        assert found is None or 0 <= found <= 1
