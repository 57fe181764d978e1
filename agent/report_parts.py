"""A report that is too large for one message, in parts. Pure."""

from __future__ import annotations

from collections.abc import Collection

from meridian.contracts.resource.v1 import resource_pb2 as pb

# Half of what a topic takes by itself: the observation made of a part has issues too.
PART_BYTES = 512 * 1024
# Tag and length of a field, at most.
_FRAME_BYTES = 6


def in_parts(
    report: pb.ResourceReported,
    report_id: str,
    *,
    only: Collection[str] | None = None,
    limit_bytes: int = PART_BYTES,
) -> list[pb.ResourceReported]:
    """The report itself when it has at most ``limit_bytes``, else parts of that size.

    Steps: (1) the facts of the domain with its links stand in every part, (2) nodes follow in their order, each with its
    readings, (3) a node whose readings do not fit goes on in the next part, where it is listed again, (4) readings of the
    domain, and of nodes that are not listed, stand in the first parts. A part is larger than the limit only where the facts
    of the domain with one node and one reading are.

    :param only: when the report is parted, tell of these nodes alone; all others stay as they were told.
    """
    if report.ByteSize() <= limit_bytes:
        return [report]
    listed = {node.node_id for node in report.inventory.nodes}
    by_node: dict[str, list[pb.Reading]] = {}
    for reading in report.readings:
        by_node.setdefault(reading.node_id if reading.node_id in listed else "", []).append(reading)
    packing = _Packing(report, report_id, limit_bytes)
    if "" in by_node:
        packing.add(None, by_node[""])
    for node in report.inventory.nodes:
        if only is None or node.node_id in only:
            packing.add(node, by_node.get(node.node_id, ()))
    for number, part in enumerate(packing.parts, 1):
        part.part.number = number
        part.part.of = len(packing.parts) if only is None else 0
    return packing.parts


class _Packing:
    def __init__(self, report: pb.ResourceReported, report_id: str, limit_bytes: int) -> None:
        self._empty = pb.ResourceReported(
            domain_id=report.domain_id,
            agent_id=report.agent_id,
            incarnation=report.incarnation,
            reported_at=report.reported_at,
            part=pb.ReportPart(report_id=report_id, number=2**31 - 1, of=2**31 - 1),
        )
        self._empty.inventory.CopyFrom(report.inventory)
        del self._empty.inventory.nodes[:]
        # The inventory's own length grows with its nodes.
        self._empty_bytes = self._empty.ByteSize() + _FRAME_BYTES
        self._limit_bytes = limit_bytes
        self.parts: list[pb.ResourceReported] = []
        self._begin()

    def _begin(self) -> None:
        part = pb.ResourceReported()
        part.CopyFrom(self._empty)
        self.parts.append(part)
        self._bytes = self._empty_bytes

    def add(self, node: pb.NodeInventory | None, readings: Collection[pb.Reading]) -> None:
        """A node, None for the domain, with its readings."""
        node_bytes = node.ByteSize() + _FRAME_BYTES if node is not None else 0
        sizes = [reading.ByteSize() + _FRAME_BYTES for reading in readings]
        if self._bytes + node_bytes + sum(sizes) > self._limit_bytes and self._bytes > self._empty_bytes:
            self._begin()
        self._list(node, node_bytes)
        # Not even one reading: the part would be begun again for ever.
        alone_bytes = self._bytes
        for reading, size in zip(readings, sizes, strict=True):
            if self._bytes + size > self._limit_bytes and self._bytes > alone_bytes:
                self._begin()
                self._list(node, node_bytes)
                alone_bytes = self._bytes
            self.parts[-1].readings.append(reading)
            self._bytes += size

    def _list(self, node: pb.NodeInventory | None, node_bytes: int) -> None:
        if node is not None:
            self.parts[-1].inventory.nodes.append(node)
            self._bytes += node_bytes
