from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Audience(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUDIENCE_UNSPECIFIED: _ClassVar[Audience]
    AUDIENCE_INTERNAL: _ClassVar[Audience]
    AUDIENCE_PARTNER: _ClassVar[Audience]

class Cleanup(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLEANUP_UNSPECIFIED: _ClassVar[Cleanup]
    CLEANUP_DELETE: _ClassVar[Cleanup]
    CLEANUP_COMPACT: _ClassVar[Cleanup]
AUDIENCE_UNSPECIFIED: Audience
AUDIENCE_INTERNAL: Audience
AUDIENCE_PARTNER: Audience
CLEANUP_UNSPECIFIED: Cleanup
CLEANUP_DELETE: Cleanup
CLEANUP_COMPACT: Cleanup
TOPICS_FIELD_NUMBER: _ClassVar[int]
topics: _descriptor.FieldDescriptor
EVENT_FIELD_NUMBER: _ClassVar[int]
event: _descriptor.FieldDescriptor

class Topic(_message.Message):
    __slots__ = ("name", "summary", "audience", "cleanup", "retention_ms", "partitions", "max_message_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    AUDIENCE_FIELD_NUMBER: _ClassVar[int]
    CLEANUP_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    summary: str
    audience: Audience
    cleanup: Cleanup
    retention_ms: int
    partitions: int
    max_message_bytes: int
    def __init__(self, name: _Optional[str] = ..., summary: _Optional[str] = ..., audience: _Optional[_Union[Audience, str]] = ..., cleanup: _Optional[_Union[Cleanup, str]] = ..., retention_ms: _Optional[int] = ..., partitions: _Optional[int] = ..., max_message_bytes: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("topic", "key", "summary")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    summary: str
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., summary: _Optional[str] = ...) -> None: ...
