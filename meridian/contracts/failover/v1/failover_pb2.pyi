import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from meridian.contracts.options.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeSuspected(_message.Message):
    __slots__ = ("domain_id", "node_id", "incident_id", "reason", "at", "silence_s")
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    SILENCE_S_FIELD_NUMBER: _ClassVar[int]
    domain_id: str
    node_id: str
    incident_id: str
    reason: str
    at: _timestamp_pb2.Timestamp
    silence_s: float
    def __init__(self, domain_id: _Optional[str] = ..., node_id: _Optional[str] = ..., incident_id: _Optional[str] = ..., reason: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., silence_s: _Optional[float] = ...) -> None: ...

class NodeFailed(_message.Message):
    __slots__ = ("domain_id", "node_id", "incident_id", "reason", "at", "last_seen_at", "incarnation", "run_ids")
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RUN_IDS_FIELD_NUMBER: _ClassVar[int]
    domain_id: str
    node_id: str
    incident_id: str
    reason: str
    at: _timestamp_pb2.Timestamp
    last_seen_at: _timestamp_pb2.Timestamp
    incarnation: int
    run_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, domain_id: _Optional[str] = ..., node_id: _Optional[str] = ..., incident_id: _Optional[str] = ..., reason: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_seen_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., incarnation: _Optional[int] = ..., run_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class NodeRecovered(_message.Message):
    __slots__ = ("domain_id", "node_id", "incident_id", "reason", "at", "incarnation")
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    domain_id: str
    node_id: str
    incident_id: str
    reason: str
    at: _timestamp_pb2.Timestamp
    incarnation: int
    def __init__(self, domain_id: _Optional[str] = ..., node_id: _Optional[str] = ..., incident_id: _Optional[str] = ..., reason: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., incarnation: _Optional[int] = ...) -> None: ...

class NodeForgotten(_message.Message):
    __slots__ = ("domain_id", "node_id", "incident_id", "reason", "at", "incarnation")
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    domain_id: str
    node_id: str
    incident_id: str
    reason: str
    at: _timestamp_pb2.Timestamp
    incarnation: int
    def __init__(self, domain_id: _Optional[str] = ..., node_id: _Optional[str] = ..., incident_id: _Optional[str] = ..., reason: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., incarnation: _Optional[int] = ...) -> None: ...

class DomainUnreachable(_message.Message):
    __slots__ = ("domain_id", "incident_id", "reason", "at", "last_seen_at")
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    domain_id: str
    incident_id: str
    reason: str
    at: _timestamp_pb2.Timestamp
    last_seen_at: _timestamp_pb2.Timestamp
    def __init__(self, domain_id: _Optional[str] = ..., incident_id: _Optional[str] = ..., reason: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_seen_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DomainReachable(_message.Message):
    __slots__ = ("domain_id", "incident_id", "at")
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    domain_id: str
    incident_id: str
    at: _timestamp_pb2.Timestamp
    def __init__(self, domain_id: _Optional[str] = ..., incident_id: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DomainForgotten(_message.Message):
    __slots__ = ("domain_id", "incident_id", "reason", "at")
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    domain_id: str
    incident_id: str
    reason: str
    at: _timestamp_pb2.Timestamp
    def __init__(self, domain_id: _Optional[str] = ..., incident_id: _Optional[str] = ..., reason: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class RecoveryPlanned(_message.Message):
    __slots__ = ("domain_id", "incident_id", "job_id", "unit_index", "run_id", "epoch", "restore_from", "restore_step", "exclude_node_ids", "reason", "at")
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    UNIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FROM_FIELD_NUMBER: _ClassVar[int]
    RESTORE_STEP_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    domain_id: str
    incident_id: str
    job_id: str
    unit_index: int
    run_id: str
    epoch: int
    restore_from: str
    restore_step: int
    exclude_node_ids: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    at: _timestamp_pb2.Timestamp
    def __init__(self, domain_id: _Optional[str] = ..., incident_id: _Optional[str] = ..., job_id: _Optional[str] = ..., unit_index: _Optional[int] = ..., run_id: _Optional[str] = ..., epoch: _Optional[int] = ..., restore_from: _Optional[str] = ..., restore_step: _Optional[int] = ..., exclude_node_ids: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
