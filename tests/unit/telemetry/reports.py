"""Reports for tests."""

from __future__ import annotations

from collections.abc import Iterable

from meridian.contracts.resource.v1 import resource_pb2 as pb
from services.telemetry.known_series import DomainSeries
from services.telemetry.reading_check import SeriesOfNode
from services.telemetry.report_check import Verdict

NOW_S = 1_800_000_000.0
Nodes = dict[str, SeriesOfNode]


def after(known: Nodes, verdict: Verdict) -> Nodes:
    """What is known of a domain once a report was taken."""
    domain = DomainSeries({node_id: dict(series) for node_id, series in known.items()})
    domain.take(verdict.changed, verdict.quiet_until_s)
    return domain.nodes


def node(node_id: str, accelerators: int = 1) -> pb.NodeInventory:
    """A node that can be."""
    chips = [
        pb.Accelerator(index=index, vendor="nvidia", model="H100", memory_bytes=80 << 30)
        for index in range(accelerators)
    ]
    return pb.NodeInventory(node_id=node_id, cpus=8, memory_bytes=32 << 30, accelerators=chips)


def reading(
    metric: str,
    value: float | None,
    unit: str,
    *,
    node_id: str = "beijing-1",
    index: int | None = 0,
    at_s: float = NOW_S,
    reason: str = "",
) -> pb.Reading:
    """A reading."""
    item = pb.Reading(
        node_id=node_id, accelerator_index=index, metric=metric, value=value, unit=unit, reason=reason,
        source=pb.READING_SOURCE_DIRECTLY_MEASURED, statistic=pb.READING_STATISTIC_CURRENT,
    )  # fmt: skip
    item.observed_at.FromNanoseconds(int(at_s * 1e9))
    return item


def report(
    readings: Iterable[pb.Reading] = (),
    nodes: Iterable[pb.NodeInventory] = (),
    *,
    domain_id: str = "beijing",
    incarnation: int = 1,
) -> pb.ResourceReported:
    """A report of a domain with one node, unless others are given."""
    inventory = pb.DomainInventory(domain_id=domain_id, nodes=list(nodes) or [node(f"{domain_id}-1")])
    return pb.ResourceReported(
        domain_id=domain_id, agent_id="agent", incarnation=incarnation, inventory=inventory, readings=list(readings)
    )
