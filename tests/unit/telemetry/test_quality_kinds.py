"""What agents found wrong is published by kind; counters that rest or go back; series that are kept between batches."""

from __future__ import annotations

import pytest

from agent.collectors.unknown import UnknownKind
from meridian.contracts.resource.v1 import resource_pb2 as pb
from services.telemetry.issues import FAULTS, IssueKind
from services.telemetry.known_series import DomainSeries, KnownSeries
from services.telemetry.reading_check import Limits
from services.telemetry.report_check import Verdict, check_report
from tests.unit.telemetry.reports import NOW_S, Nodes, after, reading, report

LIMITS = Limits(clock_skew_s=5.0, frozen_after_reports=3, forget_series_after_s=600.0, frozen_after_s=75.0)
NO_FAULT = {UnknownKind.NOT_EXPORTED, UnknownKind.NEEDS_SECOND_SAMPLE, UnknownKind.NO_REFERENCE}


def _check(readings: list[pb.Reading], known: Nodes | None = None, now_s: float = NOW_S) -> Verdict:
    return check_report(report(readings), known or {}, {}, None, now_s, LIMITS, 15.0)


def test_every_kind_of_the_agent_has_its_number_in_the_contract() -> None:
    numbers = {kind: pb.UnknownKind.Value(f"UNKNOWN_KIND_{kind.name}") for kind in UnknownKind}
    assert len(set(numbers.values())) == len(pb.UnknownKind.values()) - 1
    assert {kind for kind, number in numbers.items() if number not in FAULTS} == NO_FAULT


@pytest.mark.parametrize(("kind", "issue"), [(kind, issue) for kind, issue in FAULTS.items()])
def test_a_fault_is_an_issue_and_the_reading_stays_unknown(kind: int, issue: IssueKind) -> None:
    item = reading("hw.power", None, "W", reason="as the agent says")
    item.unknown_kind = kind  # type: ignore[assignment]
    verdict = _check([item])
    assert [(found.kind, found.detail) for found in verdict.issues] == [(issue, "as the agent says")]
    assert verdict.observation is not None
    (passed,) = verdict.observation.readings
    assert not passed.HasField("value")
    assert passed.unknown_kind == kind
    assert not verdict.history


def test_what_is_not_exported_is_no_issue() -> None:
    item = reading("hw.power", None, "", reason="not exported")
    item.unknown_kind = pb.UNKNOWN_KIND_NOT_EXPORTED
    verdict = _check([item])
    assert verdict.issues == ()
    assert verdict.observation is not None
    assert [found.unit for found in verdict.observation.readings] == ["W"]


def test_a_counter_may_rest_between_two_collections_of_its_exporter_but_not_for_longer() -> None:
    known: Nodes = {}
    found = []
    for at_s in range(0, 95, 5):
        now_s = NOW_S + at_s
        verdict = _check(
            [reading("hw.energy", 1000, "J", at_s=now_s), reading("hw.gpu.utilization", 0.9, "1", at_s=now_s)],
            known,
            now_s,
        )
        known = after(known, verdict)
        found.append([issue.kind for issue in verdict.issues])
    assert found == [[]] * 15 + [[IssueKind.FROZEN]] * 4
    moved = [reading("hw.energy", 1001, "J", at_s=NOW_S + 95), reading("hw.gpu.utilization", 0.9, "1", at_s=NOW_S + 95)]
    assert _check(moved, known, NOW_S + 95).issues == ()


def test_a_counter_that_went_back_is_told_and_its_new_value_stands() -> None:
    known = after({}, _check([reading("hw.energy", 1000, "J")]))
    verdict = _check([reading("hw.energy", 3, "J", at_s=NOW_S + 5)], known, NOW_S + 5)
    assert [issue.kind for issue in verdict.issues] == [IssueKind.COUNTER_RESET]
    assert verdict.observation is not None
    assert [item.value for item in verdict.observation.readings] == [3]


def test_what_is_kept_is_believed_in_its_version_only_and_taken_once() -> None:
    held = KnownSeries()
    known = {"a": DomainSeries(), "b": DomainSeries()}
    held.put(known, {"a": 3, "b": 1})
    assert held.take(["a", "b", "c"], {"a": 3, "b": 2}) == {"a": DomainSeries()}
    assert held.take(["a"], {"a": 3}) == {}, "a batch that fails leaves nothing behind"
    held.put(known, {"a": 4})
    held.drop()
    assert held.take(["a"], {"a": 4}) == {}


def test_an_agent_whose_clock_is_ahead_is_named_once() -> None:
    message = report([reading("cpn.health", 1, "1", at_s=NOW_S)])
    message.reported_at.FromNanoseconds(int((NOW_S + 60) * 1e9))
    verdict = check_report(message, {}, {}, None, NOW_S, LIMITS, 15.0)
    assert [(issue.kind, issue.node_id) for issue in verdict.issues] == [(IssueKind.CLOCK_SKEW, "")]
