"""Inventories and whole reports."""

from __future__ import annotations

from math import nan

from hypothesis import given
from hypothesis import strategies as st

from meridian.contracts.resource.v1 import resource_pb2 as pb
from services.telemetry.inventory_check import check_inventory
from services.telemetry.issues import IssueKind
from services.telemetry.reading_check import Limits, Series
from services.telemetry.report_check import check_report
from tests.unit.telemetry.reports import NOW_S, node, report

LIMITS = Limits(5.0, 3, 600.0)


def checked(*nodes: pb.NodeInventory, links: tuple[pb.Link, ...] = ()) -> tuple[list[str], list[tuple[IssueKind, str]]]:
    inventory = pb.DomainInventory(domain_id="beijing", nodes=nodes, links=links)
    clean, issues = check_inventory(inventory, "beijing", {})
    return [item.node_id for item in clean.nodes], [(issue.kind, issue.metric) for issue in issues]


def test_a_sound_inventory_stays_as_it_is() -> None:
    link = pb.Link(from_domain_id="beijing", to_domain_id="hangzhou", rtt_s=0.03, bandwidth_bytes_per_s=1e9)
    inventory = pb.DomainInventory(domain_id="beijing", nodes=[node("a", 2), node("b", 0)], links=[link])
    clean, issues = check_inventory(inventory, "beijing", {})
    assert clean == inventory
    assert issues == []


def test_nodes_that_cannot_be_are_left_out() -> None:
    negative, many, twice, sleeper = node("negative"), node("many"), node("twice", 2), node("sleeper")
    negative.memory_bytes = -1
    many.cpus = nan
    sleeper.wake_s = nan
    twice.accelerators[1].index = 0
    chip = node("chip")
    chip.accelerators[0].peak_flops = -1
    kept, issues = checked(node("good"), negative, many, sleeper, twice, chip, pb.NodeInventory(cpus=1))
    assert kept == ["good"]
    assert issues == [
        (IssueKind.OUT_OF_RANGE, "inventory.memory_bytes"),
        (IssueKind.OUT_OF_RANGE, "inventory.cpus"),
        (IssueKind.OUT_OF_RANGE, "inventory.wake_s"),
        (IssueKind.DUPLICATE, "inventory.accelerators.index"),
        (IssueKind.OUT_OF_RANGE, "inventory.accelerators.peak_flops"),
        (IssueKind.UNKNOWN_DEVICE, "inventory.node_id"),
    ]


def test_of_a_node_that_stands_twice_the_first_stays() -> None:
    kept, issues = checked(node("a", 2), node("a", 4))
    assert kept == ["a"]
    assert issues == [(IssueKind.DUPLICATE, "inventory.node_id")]


def test_a_node_that_another_domain_lists_is_left_out() -> None:
    inventory = pb.DomainInventory(nodes=[node("a"), node("b")])
    clean, issues = check_inventory(inventory, "beijing", {"a": "hangzhou"})
    assert [item.node_id for item in clean.nodes] == ["b"]
    assert "hangzhou" in issues[0].detail


def test_links_of_others_and_impossible_ones_are_left_out() -> None:
    good = pb.Link(from_domain_id="beijing", to_domain_id="x", rtt_s=0.1)
    foreign = pb.Link(from_domain_id="hangzhou", to_domain_id="x")
    negative = pb.Link(from_domain_id="beijing", to_domain_id="x", rtt_s=-1)
    lossy = pb.Link(from_domain_id="beijing", to_domain_id="x", loss=1.5)
    inventory = pb.DomainInventory(links=[good, foreign, negative, lossy])
    clean, issues = check_inventory(inventory, "beijing", {})
    assert list(clean.links) == [good]
    assert len(issues) == 3


def refused(message: pb.ResourceReported, newest: int | None = None) -> str:
    verdict = check_report(message, {}, {}, newest, NOW_S, LIMITS, 15.0)
    assert verdict.observation is None
    assert not verdict.changed
    return verdict.issues[0].metric


def test_reports_that_are_refused_as_a_whole() -> None:
    assert refused(report(incarnation=4), newest=5) == "report.incarnation"
    without = report()
    without.ClearField("inventory")
    assert refused(without) == "report.inventory"
    foreign = report()
    foreign.inventory.domain_id = "hangzhou"
    assert refused(foreign) == "report.inventory.domain_id"


def test_the_same_and_a_newer_incarnation_are_taken() -> None:
    for incarnation in (5, 6):
        assert check_report(report(incarnation=incarnation), {}, {}, 5, NOW_S, LIMITS, 15.0).observation is not None


nodes = st.builds(
    lambda name, cpus, memory, indices: pb.NodeInventory(
        node_id=name, cpus=cpus, memory_bytes=memory, accelerators=[pb.Accelerator(index=index) for index in indices]
    ),
    st.sampled_from(["", "a", "b", "c"]),
    st.floats(),
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.integers(-2, 3), max_size=4),
)


@given(st.lists(nodes, max_size=8))
def test_what_stays_is_sound_and_what_goes_is_named(items: list[pb.NodeInventory]) -> None:
    clean, issues = check_inventory(pb.DomainInventory(nodes=items), "beijing", {})
    names = [item.node_id for item in clean.nodes]
    assert len(set(names)) == len(names)
    assert "" not in names
    for item in clean.nodes:
        assert item.cpus >= 0
        assert item.memory_bytes >= 0
        indices = [chip.index for chip in item.accelerators]
        assert len(set(indices)) == len(indices)
        assert min(indices, default=0) >= 0
    assert bool(issues) == (len(clean.nodes) < len(items))


def test_parts_are_judged_by_their_own_nodes_and_wrongs_of_the_whole_are_said_once() -> None:
    observed_s = NOW_S - 120.0
    known = {
        node_id: {(index, metric): Series(1.0, observed_s, 2, 1)}
        for node_id, index, metric in (("a", 0, "hw.power"), ("b", 0, "hw.power"), ("", -1, "cpn.queue.depth"))
    }

    def issues(number: int, node_id: str, incarnation: int = 1) -> list[tuple[str, str]]:
        message = report([], [node(node_id)], incarnation=incarnation)
        message.part.CopyFrom(pb.ReportPart(report_id="r", number=number, of=2))
        message.reported_at.FromNanoseconds(int((NOW_S + 60) * 1e9))
        verdict = check_report(message, known, {}, 2 if incarnation == 1 else None, NOW_S, LIMITS, 15.0)
        if verdict.observation is not None:
            assert verdict.observation.part == message.part
        return [(issue.node_id, issue.metric) for issue in verdict.issues]

    assert issues(1, "a", 2) == [("a", "hw.power"), ("", "cpn.queue.depth"), ("", "report.reported_at")]
    assert issues(2, "b", 2) == [("b", "hw.power")]
    assert issues(1, "a") == [("", "report.incarnation")]
    assert issues(2, "b") == []
