import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from meridian.contracts.options.v1 import options_pb2 as _options_pb2
from meridian.contracts.resource.v1 import resource_pb2 as _resource_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class QualityIssueKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    QUALITY_ISSUE_KIND_UNSPECIFIED: _ClassVar[QualityIssueKind]
    QUALITY_ISSUE_KIND_OUT_OF_RANGE: _ClassVar[QualityIssueKind]
    QUALITY_ISSUE_KIND_UNKNOWN_METRIC: _ClassVar[QualityIssueKind]
    QUALITY_ISSUE_KIND_WRONG_UNIT: _ClassVar[QualityIssueKind]
    QUALITY_ISSUE_KIND_STALE: _ClassVar[QualityIssueKind]
    QUALITY_ISSUE_KIND_FROM_FUTURE: _ClassVar[QualityIssueKind]
    QUALITY_ISSUE_KIND_UNKNOWN_DEVICE: _ClassVar[QualityIssueKind]
    QUALITY_ISSUE_KIND_NOT_A_NUMBER: _ClassVar[QualityIssueKind]
    QUALITY_ISSUE_KIND_FROZEN: _ClassVar[QualityIssueKind]
    QUALITY_ISSUE_KIND_DUPLICATE: _ClassVar[QualityIssueKind]
    QUALITY_ISSUE_KIND_SENTINEL: _ClassVar[QualityIssueKind]
    QUALITY_ISSUE_KIND_PLACEHOLDER: _ClassVar[QualityIssueKind]
    QUALITY_ISSUE_KIND_VANISHED: _ClassVar[QualityIssueKind]
    QUALITY_ISSUE_KIND_CLOCK_SKEW: _ClassVar[QualityIssueKind]
    QUALITY_ISSUE_KIND_COUNTER_RESET: _ClassVar[QualityIssueKind]
    QUALITY_ISSUE_KIND_PARTITIONED: _ClassVar[QualityIssueKind]
    QUALITY_ISSUE_KIND_INCONSISTENT: _ClassVar[QualityIssueKind]
    QUALITY_ISSUE_KIND_UNAVAILABLE: _ClassVar[QualityIssueKind]
    QUALITY_ISSUE_KIND_LIMIT_EXCEEDED: _ClassVar[QualityIssueKind]
QUALITY_ISSUE_KIND_UNSPECIFIED: QualityIssueKind
QUALITY_ISSUE_KIND_OUT_OF_RANGE: QualityIssueKind
QUALITY_ISSUE_KIND_UNKNOWN_METRIC: QualityIssueKind
QUALITY_ISSUE_KIND_WRONG_UNIT: QualityIssueKind
QUALITY_ISSUE_KIND_STALE: QualityIssueKind
QUALITY_ISSUE_KIND_FROM_FUTURE: QualityIssueKind
QUALITY_ISSUE_KIND_UNKNOWN_DEVICE: QualityIssueKind
QUALITY_ISSUE_KIND_NOT_A_NUMBER: QualityIssueKind
QUALITY_ISSUE_KIND_FROZEN: QualityIssueKind
QUALITY_ISSUE_KIND_DUPLICATE: QualityIssueKind
QUALITY_ISSUE_KIND_SENTINEL: QualityIssueKind
QUALITY_ISSUE_KIND_PLACEHOLDER: QualityIssueKind
QUALITY_ISSUE_KIND_VANISHED: QualityIssueKind
QUALITY_ISSUE_KIND_CLOCK_SKEW: QualityIssueKind
QUALITY_ISSUE_KIND_COUNTER_RESET: QualityIssueKind
QUALITY_ISSUE_KIND_PARTITIONED: QualityIssueKind
QUALITY_ISSUE_KIND_INCONSISTENT: QualityIssueKind
QUALITY_ISSUE_KIND_UNAVAILABLE: QualityIssueKind
QUALITY_ISSUE_KIND_LIMIT_EXCEEDED: QualityIssueKind

class QualityIssue(_message.Message):
    __slots__ = ("kind", "node_id", "accelerator_index", "metric", "detail")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ACCELERATOR_INDEX_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    kind: QualityIssueKind
    node_id: str
    accelerator_index: int
    metric: str
    detail: str
    def __init__(self, kind: _Optional[_Union[QualityIssueKind, str]] = ..., node_id: _Optional[str] = ..., accelerator_index: _Optional[int] = ..., metric: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class ObservationRecorded(_message.Message):
    __slots__ = ("domain_id", "agent_id", "incarnation", "inventory", "readings", "issues", "observed_at", "part")
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    READINGS_FIELD_NUMBER: _ClassVar[int]
    ISSUES_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_AT_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    domain_id: str
    agent_id: str
    incarnation: int
    inventory: _resource_pb2.DomainInventory
    readings: _containers.RepeatedCompositeFieldContainer[_resource_pb2.Reading]
    issues: _containers.RepeatedCompositeFieldContainer[QualityIssue]
    observed_at: _timestamp_pb2.Timestamp
    part: _resource_pb2.ReportPart
    def __init__(self, domain_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., inventory: _Optional[_Union[_resource_pb2.DomainInventory, _Mapping]] = ..., readings: _Optional[_Iterable[_Union[_resource_pb2.Reading, _Mapping]]] = ..., issues: _Optional[_Iterable[_Union[QualityIssue, _Mapping]]] = ..., observed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., part: _Optional[_Union[_resource_pb2.ReportPart, _Mapping]] = ...) -> None: ...

class ProbeValue(_message.Message):
    __slots__ = ("task", "precision", "accelerators", "throughput", "unit")
    TASK_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    ACCELERATORS_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    task: str
    precision: str
    accelerators: int
    throughput: float
    unit: str
    def __init__(self, task: _Optional[str] = ..., precision: _Optional[str] = ..., accelerators: _Optional[int] = ..., throughput: _Optional[float] = ..., unit: _Optional[str] = ...) -> None: ...

class ProbeReported(_message.Message):
    __slots__ = ("domain_id", "node_id", "run_id", "chip", "program", "software", "results", "measured_at")
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CHIP_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_AT_FIELD_NUMBER: _ClassVar[int]
    domain_id: str
    node_id: str
    run_id: str
    chip: str
    program: str
    software: str
    results: _containers.RepeatedCompositeFieldContainer[ProbeValue]
    measured_at: _timestamp_pb2.Timestamp
    def __init__(self, domain_id: _Optional[str] = ..., node_id: _Optional[str] = ..., run_id: _Optional[str] = ..., chip: _Optional[str] = ..., program: _Optional[str] = ..., software: _Optional[str] = ..., results: _Optional[_Iterable[_Union[ProbeValue, _Mapping]]] = ..., measured_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
