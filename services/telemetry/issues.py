"""What can be wrong with a report, as values; the kinds are those of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from meridian.contracts.resource.v1 import resource_pb2
from meridian.contracts.telemetry.v1 import telemetry_pb2 as pb

WHOLE_NODE = -1


class IssueKind(IntEnum):
    """Numbers of ``QualityIssueKind``."""

    OUT_OF_RANGE = pb.QUALITY_ISSUE_KIND_OUT_OF_RANGE
    UNKNOWN_METRIC = pb.QUALITY_ISSUE_KIND_UNKNOWN_METRIC
    WRONG_UNIT = pb.QUALITY_ISSUE_KIND_WRONG_UNIT
    STALE = pb.QUALITY_ISSUE_KIND_STALE
    FROM_FUTURE = pb.QUALITY_ISSUE_KIND_FROM_FUTURE
    UNKNOWN_DEVICE = pb.QUALITY_ISSUE_KIND_UNKNOWN_DEVICE
    NOT_A_NUMBER = pb.QUALITY_ISSUE_KIND_NOT_A_NUMBER
    FROZEN = pb.QUALITY_ISSUE_KIND_FROZEN
    DUPLICATE = pb.QUALITY_ISSUE_KIND_DUPLICATE
    SENTINEL = pb.QUALITY_ISSUE_KIND_SENTINEL
    PLACEHOLDER = pb.QUALITY_ISSUE_KIND_PLACEHOLDER
    VANISHED = pb.QUALITY_ISSUE_KIND_VANISHED
    CLOCK_SKEW = pb.QUALITY_ISSUE_KIND_CLOCK_SKEW
    COUNTER_RESET = pb.QUALITY_ISSUE_KIND_COUNTER_RESET
    PARTITIONED = pb.QUALITY_ISSUE_KIND_PARTITIONED
    INCONSISTENT = pb.QUALITY_ISSUE_KIND_INCONSISTENT
    UNAVAILABLE = pb.QUALITY_ISSUE_KIND_UNAVAILABLE
    LIMIT_EXCEEDED = pb.QUALITY_ISSUE_KIND_LIMIT_EXCEEDED


# What an agent found wrong itself. Kinds that are not here are no fault: not exported, a second sample or a figure is missing.
FAULTS: Mapping[int, IssueKind] = {
    resource_pb2.UNKNOWN_KIND_UNAVAILABLE: IssueKind.UNAVAILABLE,
    resource_pb2.UNKNOWN_KIND_LIMIT_EXCEEDED: IssueKind.LIMIT_EXCEEDED,
    resource_pb2.UNKNOWN_KIND_SENTINEL: IssueKind.SENTINEL,
    resource_pb2.UNKNOWN_KIND_NOT_A_NUMBER: IssueKind.NOT_A_NUMBER,
    resource_pb2.UNKNOWN_KIND_UNKNOWN_STATE: IssueKind.OUT_OF_RANGE,
    resource_pb2.UNKNOWN_KIND_OUT_OF_RANGE: IssueKind.OUT_OF_RANGE,
    resource_pb2.UNKNOWN_KIND_WRONG_UNIT: IssueKind.WRONG_UNIT,
    resource_pb2.UNKNOWN_KIND_PLACEHOLDER: IssueKind.PLACEHOLDER,
    resource_pb2.UNKNOWN_KIND_DUPLICATE: IssueKind.DUPLICATE,
    resource_pb2.UNKNOWN_KIND_INCONSISTENT: IssueKind.INCONSISTENT,
    resource_pb2.UNKNOWN_KIND_STALE: IssueKind.STALE,
    resource_pb2.UNKNOWN_KIND_FROM_FUTURE: IssueKind.FROM_FUTURE,
    resource_pb2.UNKNOWN_KIND_CLOCK_SKEW: IssueKind.CLOCK_SKEW,
    resource_pb2.UNKNOWN_KIND_FROZEN: IssueKind.FROZEN,
    resource_pb2.UNKNOWN_KIND_COUNTER_RESET: IssueKind.COUNTER_RESET,
    resource_pb2.UNKNOWN_KIND_VANISHED: IssueKind.VANISHED,
    resource_pb2.UNKNOWN_KIND_PARTITIONED: IssueKind.PARTITIONED,
    resource_pb2.UNKNOWN_KIND_UNKNOWN_DEVICE: IssueKind.UNKNOWN_DEVICE,
}


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing that was set aside, and why. ``accelerator_index`` -1: the node as a whole."""

    kind: IssueKind
    node_id: str
    accelerator_index: int
    metric: str
    detail: str

    def message(self) -> pb.QualityIssue:
        """The issue as the contract has it."""
        return pb.QualityIssue(
            kind=self.kind.value,
            node_id=self.node_id,
            accelerator_index=None if self.accelerator_index == WHOLE_NODE else self.accelerator_index,
            metric=self.metric,
            detail=self.detail,
        )
