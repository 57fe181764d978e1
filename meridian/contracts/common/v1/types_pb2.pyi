from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Money(_message.Message):
    __slots__ = ("micro_units", "currency")
    MICRO_UNITS_FIELD_NUMBER: _ClassVar[int]
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    micro_units: int
    currency: str
    def __init__(self, micro_units: _Optional[int] = ..., currency: _Optional[str] = ...) -> None: ...

class Resources(_message.Message):
    __slots__ = ("cpus", "memory_bytes", "accelerators", "accelerator_types", "accelerator_milli", "user_resources", "min_accelerator_milli", "max_accelerator_milli")
    class UserResourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACCELERATORS_FIELD_NUMBER: _ClassVar[int]
    ACCELERATOR_TYPES_FIELD_NUMBER: _ClassVar[int]
    ACCELERATOR_MILLI_FIELD_NUMBER: _ClassVar[int]
    USER_RESOURCES_FIELD_NUMBER: _ClassVar[int]
    MIN_ACCELERATOR_MILLI_FIELD_NUMBER: _ClassVar[int]
    MAX_ACCELERATOR_MILLI_FIELD_NUMBER: _ClassVar[int]
    cpus: float
    memory_bytes: int
    accelerators: int
    accelerator_types: _containers.RepeatedScalarFieldContainer[str]
    accelerator_milli: int
    user_resources: _containers.ScalarMap[str, float]
    min_accelerator_milli: int
    max_accelerator_milli: int
    def __init__(self, cpus: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., accelerators: _Optional[int] = ..., accelerator_types: _Optional[_Iterable[str]] = ..., accelerator_milli: _Optional[int] = ..., user_resources: _Optional[_Mapping[str, float]] = ..., min_accelerator_milli: _Optional[int] = ..., max_accelerator_milli: _Optional[int] = ...) -> None: ...
