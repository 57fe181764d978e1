"""What becomes of readings: good ones stand, bad ones are set aside with the right kind."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meridian.contracts.resource.v1 import resource_pb2 as pb
from services.telemetry.issues import IssueKind
from services.telemetry.metric_catalogue import METRICS, Dimension
from services.telemetry.reading_check import Limits
from services.telemetry.report_check import Verdict, check_report
from services.telemetry.units import CONVERSIONS, convert
from tests.unit.telemetry.reports import NOW_S, Nodes, after, node, reading, report

LIMITS = Limits(clock_skew_s=5.0, frozen_after_reports=3, forget_series_after_s=600.0)


def check(readings: Sequence[pb.Reading], known: Nodes | None = None, now_s: float = NOW_S) -> Verdict:
    return check_report(report(readings), known or {}, {}, None, now_s, LIMITS, 15.0)


def kinds(verdict: Verdict) -> list[IssueKind]:
    return [issue.kind for issue in verdict.issues]


def readings_of(verdict: Verdict) -> list[pb.Reading]:
    assert verdict.observation is not None
    return list(verdict.observation.readings)


def test_the_catalogue_has_twelve_core_metrics_in_four_dimensions() -> None:
    assert {spec.core for spec in METRICS.values()} - {0} == set(range(1, 13))
    core = {spec.core: spec.dimension for spec in METRICS.values() if spec.core}
    assert [list(core.values()).count(dimension) for dimension in Dimension] == [3, 3, 3, 3]
    assert all(spec.unit in CONVERSIONS for spec in METRICS.values())


def test_a_good_reading_stands_in_its_canonical_unit() -> None:
    verdict = check([reading("hw.gpu.utilization", 37.5, "%"), reading("hw.gpu.memory.usage", 2.0, "GiBy")])
    assert kinds(verdict) == []
    assert [(item.value, item.unit) for item in readings_of(verdict)] == [(0.375, "1"), (2.0 * 2**30, "By")]
    assert len(verdict.history) == 2


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        (reading("hw.gpu.brightness", 1, "1"), IssueKind.UNKNOWN_METRIC),
        (reading("hw.gpu.utilization", 1.5, "1"), IssueKind.OUT_OF_RANGE),
        (reading("hw.gpu.utilization", -0.01, "1"), IssueKind.OUT_OF_RANGE),
        (reading("hw.gpu.memory.usage", 9223372036854775794, "By"), IssueKind.OUT_OF_RANGE),
        (reading("hw.temperature", 9223372036854775794, "Cel"), IssueKind.OUT_OF_RANGE),
        (reading("hw.gpu.utilization", float("nan"), "1"), IssueKind.NOT_A_NUMBER),
        (reading("hw.power", float("inf"), "W"), IssueKind.NOT_A_NUMBER),
        (reading("hw.power", 300, "By"), IssueKind.WRONG_UNIT),
        (reading("hw.power", 300, ""), IssueKind.WRONG_UNIT),
        (reading("hw.power", 300, "W", at_s=NOW_S - 61), IssueKind.STALE),
        (reading("hw.power", 300, "W", at_s=0), IssueKind.STALE),
        (reading("hw.power", 300, "W", at_s=NOW_S + 6), IssueKind.FROM_FUTURE),
        (reading("hw.power", 300, "W", index=1), IssueKind.UNKNOWN_DEVICE),
        (reading("hw.power", 300, "W", node_id="beijing-9"), IssueKind.UNKNOWN_DEVICE),
        (reading("system.cpu.utilization", 0.5, "1", index=0), IssueKind.UNKNOWN_DEVICE),
    ],
)
def test_a_bad_reading_is_set_aside_with_its_kind(item: pb.Reading, kind: IssueKind) -> None:
    verdict = check([item, reading("cpn.health", 1, "1")])
    assert kinds(verdict) == [kind]
    assert [found.metric for found in readings_of(verdict)] == ["cpn.health"]
    assert verdict.issues[0].detail


def test_a_reading_without_time_is_not_taken() -> None:
    item = reading("hw.power", 300, "W")
    item.ClearField("observed_at")
    assert kinds(check([item])) == [IssueKind.STALE]


def test_the_second_reading_of_the_same_is_a_duplicate() -> None:
    verdict = check([reading("hw.power", 300, "W"), reading("hw.power", 310, "W")])
    assert kinds(verdict) == [IssueKind.DUPLICATE]
    assert [item.value for item in readings_of(verdict)] == [300]


def test_the_unknown_stays_unknown_and_says_why() -> None:
    verdict = check([reading("hw.power", None, "W", reason="no sensor"), reading("cpn.health", None, "1")])
    assert kinds(verdict) == []
    assert [(item.HasField("value"), item.reason) for item in readings_of(verdict)] == [
        (False, "no sensor"),
        (False, "unknown, no reason given"),
    ]
    assert verdict.history == ()


def test_more_used_than_there_is_is_out_of_range() -> None:
    used, limit = reading("hw.gpu.memory.usage", 81, "GiBy"), reading("hw.gpu.memory.limit", 80, "GiBy")
    assert kinds(check([used, limit])) == [IssueKind.OUT_OF_RANGE]
    assert kinds(check([reading("hw.gpu.memory.usage", 80, "GiBy"), limit])) == []


def test_a_value_older_than_the_known_one_is_stale_and_the_same_is_no_news() -> None:
    known = after({}, check([reading("hw.power", 300, "W")]))
    assert kinds(check([reading("hw.power", 290, "W", at_s=NOW_S - 1)], known)) == [IssueKind.STALE]
    again = check([reading("hw.power", 300, "W")], known)
    assert kinds(again) == []
    assert again.history == ()


def _run(values: Sequence[float], utilization: float) -> list[list[IssueKind]]:
    known: Nodes = {}
    found = []
    for step, value in enumerate(values):
        at_s = NOW_S + 5 * step
        readings = [
            reading("hw.energy", value, "J", at_s=at_s),
            reading("hw.gpu.utilization", utilization, "1", at_s=at_s),
        ]
        verdict = check(readings, known, at_s)
        known = after(known, verdict)
        found.append(kinds(verdict))
    return found


def test_a_counter_that_stands_still_while_the_device_works_is_frozen_until_it_moves() -> None:
    frozen = [IssueKind.FROZEN]
    assert _run([10, 20, 20, 20, 20, 20, 30], 0.9) == [[], [], [], [], frozen, frozen, []]


def test_a_reading_that_is_reported_again_is_no_counter_that_stands_still() -> None:
    known: Nodes = {}
    for _ in range(8):
        verdict = check([reading("hw.energy", 20, "J"), reading("hw.gpu.utilization", 0.9, "1")], known)
        known = after(known, verdict)
        assert kinds(verdict) == []


def test_a_counter_may_stand_still_on_an_idle_device() -> None:
    assert _run([20] * 8, 0.0) == [[]] * 8


def test_a_device_that_is_listed_but_no_longer_read_is_missed_for_a_while() -> None:
    known = after({}, check([reading("hw.power", 300, "W")]))
    assert kinds(check([], known, NOW_S + 60)) == []
    missed = check([], known, NOW_S + 61)
    assert kinds(missed) == [IssueKind.STALE]
    assert "although the device is listed" in missed.issues[0].detail
    assert kinds(check([], known, NOW_S + 601)) == []
    gone = check_report(report([], [node("beijing-2")]), known, {}, None, NOW_S + 61, LIMITS, 15.0)
    assert kinds(gone) == []


def test_a_series_whose_value_was_unknown_is_not_missed() -> None:
    known = after({}, check([reading("hw.power", None, "W", reason="the exporter does not answer")]))
    assert [series.value for series in known["beijing-1"].values()] == [None]
    assert kinds(check([], known, NOW_S + 61)) == []


def test_the_history_takes_one_value_per_interval() -> None:
    known: Nodes = {}
    taken = []
    for step in range(10):
        at_s = NOW_S + 5 * step
        verdict = check([reading("hw.power", 300 + step, "W", at_s=at_s)], known, at_s)
        known = after(known, verdict)
        taken += [row.observed_at_s - NOW_S for row in verdict.history]
    assert taken == [0, 15, 30, 45]


any_value = st.none() | st.floats() | st.floats(-1e3, 1e3) | st.just(9223372036854775794.0)
any_metric = st.sampled_from([*METRICS, "hw.nothing", ""])
any_unit = st.sampled_from(sorted({unit for units in CONVERSIONS.values() for unit in units} | {"", "furlong"}))


@given(
    st.lists(
        st.builds(
            reading,
            any_metric,
            any_value,
            any_unit,
            node_id=st.sampled_from(["beijing-1", "beijing-2", ""]),
            index=st.none() | st.integers(0, 2),
            at_s=st.floats(NOW_S - 1000, NOW_S + 100),
        ),
        max_size=20,
    )
)
def test_what_stands_is_always_sound_and_nothing_is_lost(items: list[pb.Reading]) -> None:
    verdict = check(items)
    standing = readings_of(verdict)
    assert len(standing) + len(verdict.issues) == len(items)
    for item in standing:
        spec = METRICS[item.metric]
        assert item.unit == spec.unit
        assert NOW_S - spec.stale_after_s <= item.observed_at.ToNanoseconds() / 1e9 + 1e-3
        assert item.node_id in {"beijing-1", ""}
        if item.HasField("value"):
            assert spec.minimum <= item.value <= spec.maximum
        else:
            assert item.reason


@given(st.floats(1e-6, 1e12), st.sampled_from(sorted(CONVERSIONS)))
def test_conversion_keeps_the_order_of_values(value: float, canonical: str) -> None:
    for unit in CONVERSIONS[canonical]:
        small, large = convert(value, unit, canonical), convert(value * 2, unit, canonical)
        assert small is not None
        assert large is not None
        assert small < large
    assert convert(value, canonical, canonical) == value


def of_part(part_id: str, value: float, index: int | None = 0) -> pb.Reading:
    found = reading("hw.gpu.utilization", value, "1", index=index)
    found.part.CopyFrom(pb.AcceleratorPart(id=part_id, profile="1g.10gb", memory_bytes=10 << 30))
    return found


def test_parts_of_an_accelerator_are_series_of_their_own() -> None:
    verdict = check([reading("hw.gpu.utilization", 0.1, "1"), of_part("7", 0.2), of_part("8", 0.3), of_part("8", 0.4)])
    assert kinds(verdict) == [IssueKind.DUPLICATE]
    changed = verdict.changed["beijing-1"]
    assert {metric: series.value for (_, metric), series in changed.items()} == {
        "hw.gpu.utilization": 0.1, "hw.gpu.utilization#7": 0.2, "hw.gpu.utilization#8": 0.3,
    }  # fmt: skip
    described = changed[0, "hw.gpu.utilization#7"]
    assert (described.part_profile, described.part_memory_bytes) == ("1g.10gb", 10 << 30)
    assert [item.part.id for item in readings_of(verdict)] == ["", "7", "8"]


def test_a_part_that_cannot_be_or_has_an_impossible_value_is_set_aside() -> None:
    verdict = check([of_part("", 0.2), of_part("a#b", 0.2), of_part("7", 0.2, index=None), of_part("7", 1.5)])
    assert kinds(verdict) == [IssueKind.UNKNOWN_DEVICE] * 3 + [IssueKind.OUT_OF_RANGE]
    assert verdict.changed == {}


def test_an_unknown_value_of_a_part_stays_unknown() -> None:
    item = of_part("7", 0.2)
    item.ClearField("value")
    item.reason = "blank"
    verdict = check([item])
    (series,) = verdict.changed["beijing-1"].values()
    assert (series.value, series.reason, series.part_profile) == (None, "blank", "1g.10gb")
