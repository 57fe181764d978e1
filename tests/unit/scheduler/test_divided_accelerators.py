"""Accelerators that are divided, from a report to a placement: telemetry, graph, scheduler, forecast and gateway see the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import json_format

from meridian.contracts.resource.v1 import resource_pb2 as pb
from services.forecast.events import models_offered
from services.gateway.capacity import AcceleratorCapacity, DomainCapacity, NodeCapacity, impossibilities, kinds_of
from services.gateway.jobfile import JobFile
from services.graph.facts import DomainFacts
from services.graph.image import build_image
from services.graph.node_state import Thresholds
from services.scheduler.core.decide import Snapshot, decide
from services.scheduler.core.fleet import Fleet, Node
from services.scheduler.core.ledger import Ledger
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.wire import node_from
from services.telemetry.issues import IssueKind
from services.telemetry.reading_check import Limits
from services.telemetry.report_check import check_report

NOW_S = 1_800_000_000.0
GIB = 2**30
SMALL, LARGE = "H100 part 1g.10gb", "H100 part 3g.40gb"


def _report(*changes: tuple[str, Any]) -> pb.ResourceReported:
    """A node with one whole accelerator and one of two parts; ``changes`` are made to the second part."""
    parts = [
        pb.AcceleratorPart(id="2", profile="3g.40gb", memory_bytes=40 * GIB, index=34, peak_flops=3e14),
        pb.AcceleratorPart(id="7", profile="1g.10gb", memory_bytes=10 * GIB, index=39, peak_flops=1e14),
    ]
    for name, value in changes:
        setattr(parts[1], name, value)
    chips = [
        pb.Accelerator(
            index=0, vendor="nvidia", model="H100", aliases={"uuid": "GPU-aa"}, partitioned=True, parts=parts
        ),
        pb.Accelerator(index=1, vendor="nvidia", model="H100"),
    ]
    node = pb.NodeInventory(node_id="n1", cpus=16, memory_bytes=64 * GIB, accelerators=chips)
    report = pb.ResourceReported(domain_id="d", agent_id="a", incarnation=1)
    report.inventory.domain_id = "d"
    report.inventory.nodes.append(node)
    for metric, unit, part_id in (("hw.power", "W", ""), ("hw.gpu.utilization", "1", "7")):
        item = report.readings.add(node_id="n1", accelerator_index=0, metric=metric, value=0.5, unit=unit)
        item.observed_at.FromNanoseconds(int(NOW_S * 1e9))
        if part_id:
            item.part.id = part_id
    return report


def _observed(report: pb.ResourceReported) -> Any:
    return check_report(report, {}, {}, None, NOW_S, Limits(5.0, 3, 86400.0), 60.0)


def _node(report: pb.ResourceReported | None = None) -> Node:
    facts = DomainFacts("d")
    facts.observe(_observed(report or _report()).observation, NOW_S)
    image, _ = build_image(facts, NOW_S, Thresholds())
    return node_from(image.nodes["n1"], "d")


def _placed(*demands: Demand, report: pb.ResourceReported | None = None) -> list[tuple[int, ...]]:
    fleet = Fleet(nodes={"n1": _node(report)})
    pending = [PendingUnit(UnitKey("job", n), "lab", 0, float(n), demand) for n, demand in enumerate(demands)]
    decisions = decide(Snapshot(table_of(fleet), Ledger(), pending), Policy())
    return [rank.devices for item in sorted(decisions.placed, key=lambda item: item.key) for rank in item.ranks]


def _capacities(report: pb.ResourceReported | None = None) -> tuple[AcceleratorCapacity, ...]:
    """What the gateway counts of the node, from the form in which it keeps nodes."""
    body = json_format.MessageToDict(
        (report or _report()).inventory.nodes[0],
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
    return kinds_of(body["accelerators"])


def _refused(report: pb.ResourceReported | None = None, **resources: Any) -> list[str]:
    """Pointers to what the gateway says can never be had of the node."""
    network = {"d": DomainCapacity("d", 0, (NodeCapacity("n1", 16, 64 * GIB, _capacities(report)),))}
    job = JobFile.model_validate({"name": "n", "kind": "task", "command": ["x"], "resources": resources})
    return [error.pointer for error in impossibilities(job, network)]


def test_the_graph_keeps_the_accelerator_once_with_its_parts_and_the_readings_of_the_whole() -> None:
    verdict = _observed(_report())
    assert not verdict.issues
    facts = DomainFacts("d")
    facts.observe(verdict.observation, NOW_S)
    assert facts.readings["n1"] == {"hw.power": {0: (0.5, NOW_S)}}
    image, _ = build_image(facts, NOW_S, Thresholds())
    chips = image.nodes["n1"].inventory.accelerators
    assert [chip.index for chip in chips] == [0, 1]
    assert chips[0].aliases["uuid"] == "GPU-aa"
    assert [part.id for part in chips[0].parts] == ["2", "7"]


def test_the_scheduler_has_the_parts_in_place_of_the_whole() -> None:
    devices = {device.index: device.model for device in _node().devices}
    assert devices == {1: "H100", 34: LARGE, 39: SMALL}


def test_a_part_is_given_to_who_asks_for_its_profile_and_to_nobody_else() -> None:
    anything, named = Demand(1, accelerators=1), Demand(1, accelerators=1, accelerator_types=("H100",))
    assert _placed(anything, anything) == [(1,)]
    assert _placed(named, named) == [(1,)]
    assert _placed(Demand(1, accelerators=1, accelerator_types=(SMALL,))) == [(39,)]
    assert _placed(Demand(1, accelerators=1, accelerator_types=("3g.40gb",))) == [(34,)]
    half = Demand(1, accelerators=1, accelerator_types=(SMALL,), device_milli=500)
    assert _placed(half, half, half) == [(39,), (39,)]
    assert _placed(Demand(1, accelerators=2)) == []


def test_a_rank_gets_one_part_at_most_as_a_program_sees_no_more() -> None:
    both = Demand(1, accelerators=2, accelerator_types=(SMALL, LARGE))
    twins = _report(("profile", "3g.40gb"))
    facts = DomainFacts("d")
    facts.observe(_observed(twins).observation, NOW_S)
    node = node_from(build_image(facts, NOW_S, Thresholds())[0].nodes["n1"], "d")
    pair = replace(both, accelerator_types=(LARGE,))
    for demand, has in ((both, _node()), (pair, node)):
        pending = [PendingUnit(UnitKey("job", 0), "lab", 0, 0.0, demand)]
        decisions = decide(Snapshot(table_of(Fleet(nodes={"n1": has})), Ledger(), pending), Policy())
        assert not decisions.placed
        assert "a rank is given one part at most" in str(decisions.waiting[0].explanation.as_json())
    ranks = Demand(2, accelerators=1, accelerator_types=(LARGE,))
    pending = [PendingUnit(UnitKey("job", 0), "lab", 0, 0.0, ranks)]
    decisions = decide(Snapshot(table_of(Fleet(nodes={"n1": node})), Ledger(), pending), Policy())
    assert [rank.devices for rank in decisions.placed[0].ranks] == [(34,), (39,)]


def test_a_divided_accelerator_of_which_no_part_is_known_takes_nothing() -> None:
    report = _report()
    del report.inventory.nodes[0].accelerators[0].parts[:]
    facts = DomainFacts("d")
    facts.observe(_observed(report).observation, NOW_S)
    image, _ = build_image(facts, NOW_S, Thresholds())
    assert [device.index for device in node_from(image.nodes["n1"], "d").devices] == [1]


def test_parts_that_take_no_work_are_in_nobody_s_way_whatever_comes_first() -> None:
    report = _report(("index", 0))
    chips = report.inventory.nodes[0].accelerators
    chips[0].index, chips[1].index = 1, 0
    verdict = _observed(report)
    assert not verdict.issues
    assert [chip.index for chip in verdict.observation.inventory.nodes[0].accelerators] == [1, 0]


def test_the_gateway_counts_what_the_scheduler_gives() -> None:
    assert [kind.model for kind in _capacities()] == [LARGE, SMALL, "H100"]
    refused = _refused
    assert refused(accelerators=1) == []
    assert refused(accelerators=2) == ["/resources/accelerators"]
    assert refused(accelerators=1, accelerator_types=[SMALL]) == []
    assert refused(accelerators=2, accelerator_types=[SMALL, LARGE]) == ["/resources/accelerators"]
    assert refused(accelerators=2, accelerator_types=[SMALL, "H100"]) == ["/resources/accelerators"]


@pytest.mark.parametrize("accelerators", [1, 2])
@pytest.mark.parametrize(
    "types",
    [
        (),
        ("3g.40gb",),
        ("H100 3G.40GB",),
        ("nvidia 1g.10gb",),
        ("2g.20gb",),
        ("part",),
        ("h100",),
        ("NVIDIA-H100",),
        ("nvidia",),
        ("A100",),
        ("H100-80GB",),
        ("---",),
        ("A100", "H100"),
        ("A100", "3g.40gb"),
        ("A100", "B200"),
        (SMALL, LARGE),
        (LARGE, "h100"),
    ],
)
def test_the_gateway_refuses_exactly_the_types_of_which_the_scheduler_has_none(
    types: tuple[str, ...], accelerators: int
) -> None:
    twin = _report()
    third = twin.inventory.nodes[0].accelerators.add()
    third.CopyFrom(twin.inventory.nodes[0].accelerators[1])
    third.index = 2
    placed = _placed(Demand(1, accelerators=accelerators, accelerator_types=types), report=twin)
    assert bool(_refused(twin, accelerators=accelerators, accelerator_types=list(types))) == (placed == [])


def test_the_forecast_has_room_for_what_the_scheduler_gives() -> None:
    assert models_offered(_report().inventory.nodes[0]) == [LARGE, SMALL, "H100"]
    assert models_offered(_report(("index", 0)).inventory.nodes[0]) == [LARGE, "H100"]


def test_a_part_that_cannot_be_takes_its_node_out_with_the_field_named() -> None:
    cases = (
        ("index", 1, IssueKind.DUPLICATE, "inventory.accelerators.parts.index"),
        ("index", 34, IssueKind.DUPLICATE, "inventory.accelerators.parts.index"),
        ("index", 2000, IssueKind.OUT_OF_RANGE, "inventory.accelerators.parts.index"),
        ("id", "2", IssueKind.DUPLICATE, "inventory.accelerators.parts.id"),
        ("id", "", IssueKind.UNKNOWN_DEVICE, "inventory.accelerators.parts.id"),
        ("memory_bytes", -1, IssueKind.OUT_OF_RANGE, "inventory.accelerators.parts"),
        ("peak_flops", float("nan"), IssueKind.OUT_OF_RANGE, "inventory.accelerators.parts"),
    )
    for name, value, kind, field in cases:
        verdict = _observed(_report((name, value)))
        assert not verdict.observation.inventory.nodes
        assert (kind, field) in {(issue.kind, issue.metric) for issue in verdict.issues}, name
    assert _observed(_report(("index", 0))).observation.inventory.nodes
