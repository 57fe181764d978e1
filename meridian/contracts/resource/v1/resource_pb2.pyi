import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from meridian.contracts.common.v1 import types_pb2 as _types_pb2
from meridian.contracts.options.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReadingSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    READING_SOURCE_UNSPECIFIED: _ClassVar[ReadingSource]
    READING_SOURCE_NOMINAL: _ClassVar[ReadingSource]
    READING_SOURCE_DIRECTLY_MEASURED: _ClassVar[ReadingSource]
    READING_SOURCE_ESTIMATION: _ClassVar[ReadingSource]
    READING_SOURCE_AGGREGATION: _ClassVar[ReadingSource]
    READING_SOURCE_NORMALIZATION: _ClassVar[ReadingSource]

class ReadingStatistic(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    READING_STATISTIC_UNSPECIFIED: _ClassVar[ReadingStatistic]
    READING_STATISTIC_CURRENT: _ClassVar[ReadingStatistic]
    READING_STATISTIC_MEAN: _ClassVar[ReadingStatistic]
    READING_STATISTIC_MAX: _ClassVar[ReadingStatistic]
    READING_STATISTIC_MIN: _ClassVar[ReadingStatistic]

class UnknownKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN_KIND_UNSPECIFIED: _ClassVar[UnknownKind]
    UNKNOWN_KIND_NOT_EXPORTED: _ClassVar[UnknownKind]
    UNKNOWN_KIND_NEEDS_SECOND_SAMPLE: _ClassVar[UnknownKind]
    UNKNOWN_KIND_NO_REFERENCE: _ClassVar[UnknownKind]
    UNKNOWN_KIND_UNAVAILABLE: _ClassVar[UnknownKind]
    UNKNOWN_KIND_LIMIT_EXCEEDED: _ClassVar[UnknownKind]
    UNKNOWN_KIND_SENTINEL: _ClassVar[UnknownKind]
    UNKNOWN_KIND_NOT_A_NUMBER: _ClassVar[UnknownKind]
    UNKNOWN_KIND_UNKNOWN_STATE: _ClassVar[UnknownKind]
    UNKNOWN_KIND_OUT_OF_RANGE: _ClassVar[UnknownKind]
    UNKNOWN_KIND_WRONG_UNIT: _ClassVar[UnknownKind]
    UNKNOWN_KIND_PLACEHOLDER: _ClassVar[UnknownKind]
    UNKNOWN_KIND_DUPLICATE: _ClassVar[UnknownKind]
    UNKNOWN_KIND_INCONSISTENT: _ClassVar[UnknownKind]
    UNKNOWN_KIND_STALE: _ClassVar[UnknownKind]
    UNKNOWN_KIND_FROM_FUTURE: _ClassVar[UnknownKind]
    UNKNOWN_KIND_CLOCK_SKEW: _ClassVar[UnknownKind]
    UNKNOWN_KIND_FROZEN: _ClassVar[UnknownKind]
    UNKNOWN_KIND_COUNTER_RESET: _ClassVar[UnknownKind]
    UNKNOWN_KIND_VANISHED: _ClassVar[UnknownKind]
    UNKNOWN_KIND_PARTITIONED: _ClassVar[UnknownKind]
    UNKNOWN_KIND_UNKNOWN_DEVICE: _ClassVar[UnknownKind]

class NodeProcessState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_PROCESS_STATE_UNSPECIFIED: _ClassVar[NodeProcessState]
    NODE_PROCESS_STATE_RUNNING: _ClassVar[NodeProcessState]
    NODE_PROCESS_STATE_EXITED: _ClassVar[NodeProcessState]
READING_SOURCE_UNSPECIFIED: ReadingSource
READING_SOURCE_NOMINAL: ReadingSource
READING_SOURCE_DIRECTLY_MEASURED: ReadingSource
READING_SOURCE_ESTIMATION: ReadingSource
READING_SOURCE_AGGREGATION: ReadingSource
READING_SOURCE_NORMALIZATION: ReadingSource
READING_STATISTIC_UNSPECIFIED: ReadingStatistic
READING_STATISTIC_CURRENT: ReadingStatistic
READING_STATISTIC_MEAN: ReadingStatistic
READING_STATISTIC_MAX: ReadingStatistic
READING_STATISTIC_MIN: ReadingStatistic
UNKNOWN_KIND_UNSPECIFIED: UnknownKind
UNKNOWN_KIND_NOT_EXPORTED: UnknownKind
UNKNOWN_KIND_NEEDS_SECOND_SAMPLE: UnknownKind
UNKNOWN_KIND_NO_REFERENCE: UnknownKind
UNKNOWN_KIND_UNAVAILABLE: UnknownKind
UNKNOWN_KIND_LIMIT_EXCEEDED: UnknownKind
UNKNOWN_KIND_SENTINEL: UnknownKind
UNKNOWN_KIND_NOT_A_NUMBER: UnknownKind
UNKNOWN_KIND_UNKNOWN_STATE: UnknownKind
UNKNOWN_KIND_OUT_OF_RANGE: UnknownKind
UNKNOWN_KIND_WRONG_UNIT: UnknownKind
UNKNOWN_KIND_PLACEHOLDER: UnknownKind
UNKNOWN_KIND_DUPLICATE: UnknownKind
UNKNOWN_KIND_INCONSISTENT: UnknownKind
UNKNOWN_KIND_STALE: UnknownKind
UNKNOWN_KIND_FROM_FUTURE: UnknownKind
UNKNOWN_KIND_CLOCK_SKEW: UnknownKind
UNKNOWN_KIND_FROZEN: UnknownKind
UNKNOWN_KIND_COUNTER_RESET: UnknownKind
UNKNOWN_KIND_VANISHED: UnknownKind
UNKNOWN_KIND_PARTITIONED: UnknownKind
UNKNOWN_KIND_UNKNOWN_DEVICE: UnknownKind
NODE_PROCESS_STATE_UNSPECIFIED: NodeProcessState
NODE_PROCESS_STATE_RUNNING: NodeProcessState
NODE_PROCESS_STATE_EXITED: NodeProcessState

class Accelerator(_message.Message):
    __slots__ = ("index", "compute_id", "vendor", "model", "memory_bytes", "peak_flops", "emulated", "aliases", "partitioned", "parts")
    class AliasesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    INDEX_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_ID_FIELD_NUMBER: _ClassVar[int]
    VENDOR_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_FLOPS_FIELD_NUMBER: _ClassVar[int]
    EMULATED_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONED_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    index: int
    compute_id: str
    vendor: str
    model: str
    memory_bytes: int
    peak_flops: float
    emulated: bool
    aliases: _containers.ScalarMap[str, str]
    partitioned: bool
    parts: _containers.RepeatedCompositeFieldContainer[AcceleratorPart]
    def __init__(self, index: _Optional[int] = ..., compute_id: _Optional[str] = ..., vendor: _Optional[str] = ..., model: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., peak_flops: _Optional[float] = ..., emulated: _Optional[bool] = ..., aliases: _Optional[_Mapping[str, str]] = ..., partitioned: _Optional[bool] = ..., parts: _Optional[_Iterable[_Union[AcceleratorPart, _Mapping]]] = ...) -> None: ...

class NodeInventory(_message.Message):
    __slots__ = ("node_id", "compute_id", "cpus", "memory_bytes", "accelerators", "labels", "site", "address", "wake_s", "user_resources")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_ID_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACCELERATORS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WAKE_S_FIELD_NUMBER: _ClassVar[int]
    USER_RESOURCES_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    compute_id: str
    cpus: float
    memory_bytes: int
    accelerators: _containers.RepeatedCompositeFieldContainer[Accelerator]
    labels: _containers.ScalarMap[str, str]
    site: str
    address: str
    wake_s: float
    user_resources: _containers.RepeatedCompositeFieldContainer[ResourceAmount]
    def __init__(self, node_id: _Optional[str] = ..., compute_id: _Optional[str] = ..., cpus: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., accelerators: _Optional[_Iterable[_Union[Accelerator, _Mapping]]] = ..., labels: _Optional[_Mapping[str, str]] = ..., site: _Optional[str] = ..., address: _Optional[str] = ..., wake_s: _Optional[float] = ..., user_resources: _Optional[_Iterable[_Union[ResourceAmount, _Mapping]]] = ...) -> None: ...

class ResourceDefinition(_message.Message):
    __slots__ = ("name", "description", "dynamic", "consumable", "shareable", "value", "command", "interval_s", "scope")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    DYNAMIC_FIELD_NUMBER: _ClassVar[int]
    CONSUMABLE_FIELD_NUMBER: _ClassVar[int]
    SHAREABLE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    dynamic: bool
    consumable: bool
    shareable: bool
    value: float
    command: _containers.RepeatedScalarFieldContainer[str]
    interval_s: int
    scope: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., dynamic: _Optional[bool] = ..., consumable: _Optional[bool] = ..., shareable: _Optional[bool] = ..., value: _Optional[float] = ..., command: _Optional[_Iterable[str]] = ..., interval_s: _Optional[int] = ..., scope: _Optional[_Iterable[str]] = ...) -> None: ...

class ResourceAmount(_message.Message):
    __slots__ = ("name", "value", "consumable", "shareable", "dynamic", "attributes", "unknown_kind", "reason")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CONSUMABLE_FIELD_NUMBER: _ClassVar[int]
    SHAREABLE_FIELD_NUMBER: _ClassVar[int]
    DYNAMIC_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    consumable: bool
    shareable: bool
    dynamic: bool
    attributes: _containers.ScalarMap[str, str]
    unknown_kind: UnknownKind
    reason: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ..., consumable: _Optional[bool] = ..., shareable: _Optional[bool] = ..., dynamic: _Optional[bool] = ..., attributes: _Optional[_Mapping[str, str]] = ..., unknown_kind: _Optional[_Union[UnknownKind, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class ResourceDefined(_message.Message):
    __slots__ = ("name", "definition", "removed", "actor_id", "at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    definition: ResourceDefinition
    removed: bool
    actor_id: str
    at: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., definition: _Optional[_Union[ResourceDefinition, _Mapping]] = ..., removed: _Optional[bool] = ..., actor_id: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Link(_message.Message):
    __slots__ = ("from_domain_id", "to_domain_id", "rtt_s", "bandwidth_bytes_per_s", "price_per_gb", "emulated", "loss", "measured_at")
    FROM_DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    TO_DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    RTT_S_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    PRICE_PER_GB_FIELD_NUMBER: _ClassVar[int]
    EMULATED_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_AT_FIELD_NUMBER: _ClassVar[int]
    from_domain_id: str
    to_domain_id: str
    rtt_s: float
    bandwidth_bytes_per_s: float
    price_per_gb: _types_pb2.Money
    emulated: bool
    loss: float
    measured_at: _timestamp_pb2.Timestamp
    def __init__(self, from_domain_id: _Optional[str] = ..., to_domain_id: _Optional[str] = ..., rtt_s: _Optional[float] = ..., bandwidth_bytes_per_s: _Optional[float] = ..., price_per_gb: _Optional[_Union[_types_pb2.Money, _Mapping]] = ..., emulated: _Optional[bool] = ..., loss: _Optional[float] = ..., measured_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DomainInventory(_message.Message):
    __slots__ = ("domain_id", "name", "region", "owner", "emulated", "security_level", "price_per_accelerator_hour", "carbon_g_per_kwh", "nodes", "links", "agent_url", "own_scheduler")
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    EMULATED_FIELD_NUMBER: _ClassVar[int]
    SECURITY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    PRICE_PER_ACCELERATOR_HOUR_FIELD_NUMBER: _ClassVar[int]
    CARBON_G_PER_KWH_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    AGENT_URL_FIELD_NUMBER: _ClassVar[int]
    OWN_SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    domain_id: str
    name: str
    region: str
    owner: str
    emulated: bool
    security_level: int
    price_per_accelerator_hour: _types_pb2.Money
    carbon_g_per_kwh: float
    nodes: _containers.RepeatedCompositeFieldContainer[NodeInventory]
    links: _containers.RepeatedCompositeFieldContainer[Link]
    agent_url: str
    own_scheduler: bool
    def __init__(self, domain_id: _Optional[str] = ..., name: _Optional[str] = ..., region: _Optional[str] = ..., owner: _Optional[str] = ..., emulated: _Optional[bool] = ..., security_level: _Optional[int] = ..., price_per_accelerator_hour: _Optional[_Union[_types_pb2.Money, _Mapping]] = ..., carbon_g_per_kwh: _Optional[float] = ..., nodes: _Optional[_Iterable[_Union[NodeInventory, _Mapping]]] = ..., links: _Optional[_Iterable[_Union[Link, _Mapping]]] = ..., agent_url: _Optional[str] = ..., own_scheduler: _Optional[bool] = ...) -> None: ...

class AcceleratorPart(_message.Message):
    __slots__ = ("id", "profile", "memory_bytes", "index", "peak_flops")
    ID_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PEAK_FLOPS_FIELD_NUMBER: _ClassVar[int]
    id: str
    profile: str
    memory_bytes: int
    index: int
    peak_flops: float
    def __init__(self, id: _Optional[str] = ..., profile: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., index: _Optional[int] = ..., peak_flops: _Optional[float] = ...) -> None: ...

class Reading(_message.Message):
    __slots__ = ("node_id", "accelerator_index", "metric", "value", "unit", "source", "statistic", "observed_at", "reason", "unknown_kind", "part")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ACCELERATOR_INDEX_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STATISTIC_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_AT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_KIND_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    accelerator_index: int
    metric: str
    value: float
    unit: str
    source: ReadingSource
    statistic: ReadingStatistic
    observed_at: _timestamp_pb2.Timestamp
    reason: str
    unknown_kind: UnknownKind
    part: AcceleratorPart
    def __init__(self, node_id: _Optional[str] = ..., accelerator_index: _Optional[int] = ..., metric: _Optional[str] = ..., value: _Optional[float] = ..., unit: _Optional[str] = ..., source: _Optional[_Union[ReadingSource, str]] = ..., statistic: _Optional[_Union[ReadingStatistic, str]] = ..., observed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[str] = ..., unknown_kind: _Optional[_Union[UnknownKind, str]] = ..., part: _Optional[_Union[AcceleratorPart, _Mapping]] = ...) -> None: ...

class ReportPart(_message.Message):
    __slots__ = ("report_id", "number", "of")
    REPORT_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    report_id: str
    number: int
    of: int
    def __init__(self, report_id: _Optional[str] = ..., number: _Optional[int] = ..., of: _Optional[int] = ...) -> None: ...

class ResourceReported(_message.Message):
    __slots__ = ("domain_id", "agent_id", "incarnation", "inventory", "readings", "reported_at", "part")
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    READINGS_FIELD_NUMBER: _ClassVar[int]
    REPORTED_AT_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    domain_id: str
    agent_id: str
    incarnation: int
    inventory: DomainInventory
    readings: _containers.RepeatedCompositeFieldContainer[Reading]
    reported_at: _timestamp_pb2.Timestamp
    part: ReportPart
    def __init__(self, domain_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., inventory: _Optional[_Union[DomainInventory, _Mapping]] = ..., readings: _Optional[_Iterable[_Union[Reading, _Mapping]]] = ..., reported_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., part: _Optional[_Union[ReportPart, _Mapping]] = ...) -> None: ...

class NodeBeat(_message.Message):
    __slots__ = ("node_id", "incarnation", "age_s", "state", "run_ids")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RUN_IDS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    incarnation: int
    age_s: float
    state: NodeProcessState
    run_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., age_s: _Optional[float] = ..., state: _Optional[_Union[NodeProcessState, str]] = ..., run_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("domain_id", "agent_id", "incarnation", "sequence", "sent_at", "nodes", "interval_s", "lease_s")
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    domain_id: str
    agent_id: str
    incarnation: int
    sequence: int
    sent_at: _timestamp_pb2.Timestamp
    nodes: _containers.RepeatedCompositeFieldContainer[NodeBeat]
    interval_s: float
    lease_s: float
    def __init__(self, domain_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., sent_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., nodes: _Optional[_Iterable[_Union[NodeBeat, _Mapping]]] = ..., interval_s: _Optional[float] = ..., lease_s: _Optional[float] = ...) -> None: ...
