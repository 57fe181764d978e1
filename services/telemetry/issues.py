"""What can be wrong with a report, as values; the kinds are those of the contract."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

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
