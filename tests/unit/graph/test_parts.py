"""Observations of reports in parts are one observation for the graph."""

from __future__ import annotations

from meridian.contracts.resource.v1 import resource_pb2
from meridian.contracts.telemetry.v1 import telemetry_pb2
from services.graph.facts import DomainFacts, Readings
from tests.unit.graph.build import NOW_S, link, node, observation


def part(
    report_id: str, number: int, of: int, *node_ids: str, value: float = 0.5, issues: int = 0
) -> telemetry_pb2.ObservationRecorded:
    """One with a reading of each node; ``issues`` 1: the reading of the first was impossible."""
    found = observation(
        [node(node_id) for node_id in node_ids],
        {(node_id, 0, "hw.gpu.utilization"): value for node_id in node_ids[issues:]},
        issues=[
            telemetry_pb2.QualityIssue(
                kind=telemetry_pb2.QUALITY_ISSUE_KIND_OUT_OF_RANGE, node_id=node_id, accelerator_index=0,
                metric="hw.gpu.utilization",
            )
            for node_id in node_ids[:issues]
        ],
        links=[link("hangzhou")],
        at_s=NOW_S,
    )  # fmt: skip
    found.part.CopyFrom(resource_pb2.ReportPart(report_id=report_id, number=number, of=of))
    return found


def facts_after(*observations: telemetry_pb2.ObservationRecorded) -> DomainFacts:
    facts = DomainFacts("beijing")
    for item in observations:
        facts.observe(item, NOW_S)
    return facts


def listed(facts: DomainFacts) -> list[str]:
    assert facts.inventory is not None
    return [item.node_id for item in facts.inventory.nodes]


def used(readings: dict[str, Readings]) -> dict[str, float]:
    return {name: found["hw.gpu.utilization"][0][0] for name, found in readings.items() if found}


def test_parts_add_up() -> None:
    facts = facts_after(part("r1", 1, 2, "a", "b"), part("r1", 2, 2, "c", value=0.9))
    assert listed(facts) == ["a", "b", "c"]
    assert used(facts.readings) == {"a": 0.5, "b": 0.5, "c": 0.9}
    assert facts.inventory is not None
    assert len(facts.inventory.links) == 1


def test_a_node_that_no_part_lists_goes_with_the_last_part_and_not_before() -> None:
    first = (part("r1", 1, 2, "a", "b"), part("r1", 2, 2, "c"))
    assert listed(facts_after(*first, part("r2", 1, 2, "a"))) == ["a", "b", "c"]
    after = facts_after(*first, part("r2", 1, 2, "a"), part("r2", 2, 2, "c"))
    assert listed(after) == ["a", "c"]
    assert set(after.readings) == {"a", "c"}


def test_a_report_of_which_a_part_is_missing_removes_nothing() -> None:
    facts = facts_after(part("r1", 1, 2, "a"), part("r1", 2, 2, "b"), part("r2", 1, 3, "a"), part("r2", 3, 3, "c"))
    assert listed(facts) == ["a", "b", "c"]
    facts.observe(part("r3", 1, 1, "a"), NOW_S)
    assert listed(facts) == ["a"]


def test_an_early_report_changes_its_nodes_alone() -> None:
    facts = facts_after(part("r1", 1, 2, "a"), part("r1", 2, 2, "b"), part("r2", 1, 0, "b", value=0.1))
    assert used(facts.readings) == {"a": 0.5, "b": 0.1}


def test_bad_readings_stay_until_their_node_is_told_of_again() -> None:
    facts = facts_after(part("r1", 1, 2, "a", issues=1), part("r1", 2, 2, "b"))
    assert set(facts.bad_readings) == {"a"}
    facts.observe(part("r2", 1, 2, "a"), NOW_S)
    assert facts.bad_readings == {}


def test_a_whole_observation_after_parts_replaces_everything() -> None:
    facts = facts_after(part("r1", 1, 2, "a"), part("r1", 2, 2, "b"), observation([node("b")]))
    assert listed(facts) == ["b"]


def test_a_part_of_an_accelerator_is_not_the_accelerator() -> None:
    item = observation([node("a")], {("a", 0, "hw.gpu.utilization"): 0.5})
    of_part = item.readings.add()
    of_part.CopyFrom(item.readings[0])
    of_part.value, of_part.part.id = 0.9, "7"
    assert used(facts_after(item).readings) == {"a": 0.5}
