import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from meridian.contracts.options.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IdentityKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IDENTITY_KIND_UNSPECIFIED: _ClassVar[IdentityKind]
    IDENTITY_KIND_AGENT: _ClassVar[IdentityKind]
    IDENTITY_KIND_NODE: _ClassVar[IdentityKind]
    IDENTITY_KIND_DEVICE: _ClassVar[IdentityKind]
    IDENTITY_KIND_SERVICE: _ClassVar[IdentityKind]
    IDENTITY_KIND_TENANT: _ClassVar[IdentityKind]
IDENTITY_KIND_UNSPECIFIED: IdentityKind
IDENTITY_KIND_AGENT: IdentityKind
IDENTITY_KIND_NODE: IdentityKind
IDENTITY_KIND_DEVICE: IdentityKind
IDENTITY_KIND_SERVICE: IdentityKind
IDENTITY_KIND_TENANT: IdentityKind

class IdentityIssued(_message.Message):
    __slots__ = ("identity_id", "kind", "spiffe_id", "domain_id", "node_id", "accelerator_index", "serial", "issued_at", "expires_at", "evidence_level")
    IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SPIFFE_ID_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ACCELERATOR_INDEX_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    ISSUED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    identity_id: str
    kind: IdentityKind
    spiffe_id: str
    domain_id: str
    node_id: str
    accelerator_index: int
    serial: str
    issued_at: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    evidence_level: int
    def __init__(self, identity_id: _Optional[str] = ..., kind: _Optional[_Union[IdentityKind, str]] = ..., spiffe_id: _Optional[str] = ..., domain_id: _Optional[str] = ..., node_id: _Optional[str] = ..., accelerator_index: _Optional[int] = ..., serial: _Optional[str] = ..., issued_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., evidence_level: _Optional[int] = ...) -> None: ...

class IdentityRevoked(_message.Message):
    __slots__ = ("identity_id", "kind", "domain_id", "node_id", "serial", "reason", "revoked_at", "token_id", "token_expires_at")
    IDENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REVOKED_AT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    identity_id: str
    kind: IdentityKind
    domain_id: str
    node_id: str
    serial: str
    reason: str
    revoked_at: _timestamp_pb2.Timestamp
    token_id: str
    token_expires_at: _timestamp_pb2.Timestamp
    def __init__(self, identity_id: _Optional[str] = ..., kind: _Optional[_Union[IdentityKind, str]] = ..., domain_id: _Optional[str] = ..., node_id: _Optional[str] = ..., serial: _Optional[str] = ..., reason: _Optional[str] = ..., revoked_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., token_id: _Optional[str] = ..., token_expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
