"""What is stored of the series of a node is what was known, and a search for what is missing is put off only while nothing can be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.telemetry.known_series import DomainSeries
from services.telemetry.reading_check import Limits, Series
from services.telemetry.report_check import check_report
from services.telemetry.series_row import packed, unpacked
from tests.unit.telemetry.reports import NOW_S, node, reading, report

numbers = st.floats(allow_nan=False)
enums = st.integers(-(2**31), 2**31 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
series = st.builds(
    Series, st.none() | numbers, numbers, enums, enums, st.integers(0, 2**31 - 1), numbers, numbers, enums, texts, texts,
    st.integers(0, 2**63 - 1),
)  # fmt: skip
keys = st.tuples(st.integers(-1, 1023), st.sampled_from(["hw.power", "hw.energy", "hw.gpu.utilization#7"]) | texts)


@given(st.dictionaries(keys, series, max_size=6))
def test_what_is_stored_is_what_was_known(found: dict[tuple[int, str], Series]) -> None:
    assert unpacked(*packed(found)) == found


def test_a_number_that_is_none_is_told_from_a_number() -> None:
    names, values = packed(
        {(0, "hw.power"): Series(None, 1.0, 2, 1, reason="no sensor"), (1, "hw.power"): Series(5.0, 1.0, 2, 1)}
    )
    assert names == '[[0, "hw.power", "no sensor", "", 0], [1, "hw.power"]]'
    assert len(values) == 2 * 48
    assert [item.value for item in unpacked(names, values).values()] == [None, 5.0]


METRICS = ("hw.power", "hw.gpu.memory.limit", "hw.energy")
steps = st.lists(
    st.tuples(
        st.floats(0.5, 45.0),  # seconds since the report before
        st.lists(st.tuples(st.integers(0, 1), st.sampled_from(METRICS), st.floats(0.0, 59.0)), max_size=4),
    ),
    min_size=3,
    max_size=30,
)


@given(steps)
def test_nothing_is_missed_later_because_the_search_was_put_off(
    history: list[tuple[float, list[tuple[int, str, float]]]],
) -> None:
    limits = Limits(5.0, 3, 600.0)
    units = {"hw.power": "W", "hw.gpu.memory.limit": "By", "hw.energy": "J"}
    lazy, eager = DomainSeries(), DomainSeries()
    now_s = NOW_S
    for apart_s, read in history:
        now_s += apart_s
        readings = [
            reading(metric, now_s - age_s, units[metric], node_id=f"n{place}", at_s=now_s - age_s)
            for place, metric, age_s in read
        ]
        message = report(readings, [node("n0"), node("n1")])
        found = []
        for domain, quiet_until_s in ((lazy, lazy.quiet_until_s), (eager, 0.0)):
            verdict = check_report(message, domain.nodes, {}, None, now_s, limits, 15.0, quiet_until_s)
            domain.take({name: dict(items) for name, items in verdict.changed.items()}, verdict.quiet_until_s)
            found.append(verdict.issues)
        assert found[0] == found[1]
    assert lazy.nodes == eager.nodes


def test_a_clock_that_was_set_back_is_no_reason_to_put_it_off() -> None:
    limits = Limits(5.0, 3, 600.0)
    known = {"beijing-1": {(0, "hw.power"): Series(300.0, NOW_S - 100.0, 2, 1)}}
    later_s = NOW_S + 3600.0
    assert len(check_report(report(), known, {}, None, NOW_S, limits, 15.0, later_s).issues) == 1
    assert check_report(report(), known, {}, None, NOW_S, limits, 15.0, NOW_S + 1.0).issues == ()


@pytest.mark.parametrize("value", [1e305, float("inf")])
def test_a_number_that_no_unit_can_hold_is_set_aside(value: float) -> None:
    verdict = check_report(
        report([reading("hw.energy", value, "kW.h")]), {}, {}, None, NOW_S, Limits(5.0, 3, 600.0), 15.0
    )
    assert len(verdict.issues) == 1
    assert verdict.observation is not None
    assert not verdict.observation.readings
