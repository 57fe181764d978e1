"""Reports in parts: nothing is lost, nothing is too large, order is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.report_parts import in_parts
from meridian.contracts.resource.v1 import resource_pb2 as pb


def report(readings_of: list[int], *, of_domain: int = 0) -> pb.ResourceReported:
    """Nodes with so many readings each."""
    message = pb.ResourceReported(domain_id="north", agent_id="agent", incarnation=3)
    message.inventory.domain_id, message.inventory.name = "north", "North"
    message.inventory.links.add(from_domain_id="north", to_domain_id="south", rtt_s=0.1)
    for _ in range(of_domain):
        message.readings.add(metric="cpn.queue.depth", value=1, unit="{run}")
    for number, count in enumerate(readings_of):
        node = message.inventory.nodes.add(node_id=f"n{number}", cpus=8, site="hall")
        node.accelerators.add(index=0, vendor="v", model="m")
        for index in range(count):
            message.readings.add(node_id=f"n{number}", accelerator_index=index, metric="hw.power", value=1.5, unit="W")
    return message


def test_a_small_report_is_one_message_as_before() -> None:
    message = report([2, 2])
    assert in_parts(message, "r1") == [message]
    assert not message.HasField("part")


@given(st.lists(st.integers(0, 30), min_size=1, max_size=30), st.integers(0, 20), st.integers(300, 2000))
def test_parts_have_all_in_order_and_keep_the_limit(counts: list[int], of_domain: int, limit_bytes: int) -> None:
    whole = report(counts, of_domain=of_domain)
    parts = in_parts(whole, "r1", limit_bytes=limit_bytes)
    if whole.ByteSize() <= limit_bytes:
        assert parts == [whole]
        return
    assert all(part.ByteSize() <= limit_bytes for part in parts)
    assert [reading for part in parts for reading in part.readings] == list(whole.readings)
    listed = [node.node_id for part in parts for node in part.inventory.nodes]
    assert list(dict.fromkeys(listed)) == [node.node_id for node in whole.inventory.nodes]
    for number, part in enumerate(parts, 1):
        assert part.part == pb.ReportPart(report_id="r1", number=number, of=len(parts))
        assert (part.domain_id, part.agent_id, part.incarnation) == ("north", "agent", 3)
        assert part.inventory.name == "North"
        assert list(part.inventory.links) == list(whole.inventory.links)
        here = {node.node_id for node in part.inventory.nodes}
        assert {reading.node_id for reading in part.readings} - {""} <= here


def test_a_node_that_is_larger_than_a_part_goes_on_in_the_next() -> None:
    parts = in_parts(report([1, 40, 1]), "r1", limit_bytes=600)
    of_one = [sum(reading.node_id == "n1" for reading in part.readings) for part in parts]
    assert sum(of_one) == 40
    assert sum(count > 0 for count in of_one) > 1


def test_readings_of_nodes_that_are_not_listed_are_passed_on() -> None:
    message = report([3, 3, 3])
    message.readings.add(node_id="gone", metric="hw.power", value=1, unit="W")
    parts = in_parts(message, "r1", limit_bytes=400)
    assert [reading.node_id for part in parts for reading in part.readings].count("gone") == 1


def test_an_early_report_of_a_large_domain_tells_of_its_nodes_alone() -> None:
    message = report([0, 2, 0, 0, 0, 0, 0])
    (part,) = in_parts(message, "r2", only={"n1"}, limit_bytes=300)
    assert part.part == pb.ReportPart(report_id="r2", number=1, of=0)
    assert [node.node_id for node in part.inventory.nodes] == ["n1"]
    assert len(part.readings) == 2
