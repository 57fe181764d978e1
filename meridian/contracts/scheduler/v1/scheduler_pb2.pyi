import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from meridian.contracts.options.v1 import options_pb2 as _options_pb2
from meridian.contracts.run.v1 import run_pb2 as _run_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Demand(_message.Message):
    __slots__ = ("ranks", "cpus", "memory_bytes", "accelerators", "accelerator_types", "domains", "excluded_domains", "min_security_level", "real_accelerators", "cross_domain", "service_port", "excluded_nodes", "checkpoint_domain", "checkpoint_bytes", "device_milli", "resources", "topology", "topology_required", "labels", "avoid", "profile", "data_bytes", "traffic_bytes_per_s")
    class ResourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class DataBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RANKS_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACCELERATORS_FIELD_NUMBER: _ClassVar[int]
    ACCELERATOR_TYPES_FIELD_NUMBER: _ClassVar[int]
    DOMAINS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_DOMAINS_FIELD_NUMBER: _ClassVar[int]
    MIN_SECURITY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    REAL_ACCELERATORS_FIELD_NUMBER: _ClassVar[int]
    CROSS_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    SERVICE_PORT_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_NODES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_MILLI_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    AVOID_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    ranks: int
    cpus: float
    memory_bytes: int
    accelerators: int
    accelerator_types: _containers.RepeatedScalarFieldContainer[str]
    domains: _containers.RepeatedScalarFieldContainer[str]
    excluded_domains: _containers.RepeatedScalarFieldContainer[str]
    min_security_level: int
    real_accelerators: bool
    cross_domain: bool
    service_port: int
    excluded_nodes: _containers.RepeatedScalarFieldContainer[str]
    checkpoint_domain: str
    checkpoint_bytes: int
    device_milli: int
    resources: _containers.ScalarMap[str, float]
    topology: str
    topology_required: bool
    labels: _containers.RepeatedScalarFieldContainer[str]
    avoid: _containers.RepeatedScalarFieldContainer[str]
    profile: str
    data_bytes: _containers.ScalarMap[str, float]
    traffic_bytes_per_s: float
    def __init__(self, ranks: _Optional[int] = ..., cpus: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., accelerators: _Optional[int] = ..., accelerator_types: _Optional[_Iterable[str]] = ..., domains: _Optional[_Iterable[str]] = ..., excluded_domains: _Optional[_Iterable[str]] = ..., min_security_level: _Optional[int] = ..., real_accelerators: _Optional[bool] = ..., cross_domain: _Optional[bool] = ..., service_port: _Optional[int] = ..., excluded_nodes: _Optional[_Iterable[str]] = ..., checkpoint_domain: _Optional[str] = ..., checkpoint_bytes: _Optional[int] = ..., device_milli: _Optional[int] = ..., resources: _Optional[_Mapping[str, float]] = ..., topology: _Optional[str] = ..., topology_required: _Optional[bool] = ..., labels: _Optional[_Iterable[str]] = ..., avoid: _Optional[_Iterable[str]] = ..., profile: _Optional[str] = ..., data_bytes: _Optional[_Mapping[str, float]] = ..., traffic_bytes_per_s: _Optional[float] = ...) -> None: ...

class DemandClass(_message.Message):
    __slots__ = ("number", "demand")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    number: int
    demand: Demand
    def __init__(self, number: _Optional[int] = ..., demand: _Optional[_Union[Demand, _Mapping]] = ...) -> None: ...

class WantedUnit(_message.Message):
    __slots__ = ("job_id", "unit_index", "epoch", "tenant_id", "class_number", "demand", "first_rank", "whole", "time_limit_s", "wake", "least_milli")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    UNIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    CLASS_NUMBER_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    FIRST_RANK_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    WAKE_FIELD_NUMBER: _ClassVar[int]
    LEAST_MILLI_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    unit_index: int
    epoch: int
    tenant_id: str
    class_number: int
    demand: Demand
    first_rank: int
    whole: bool
    time_limit_s: float
    wake: bool
    least_milli: int
    def __init__(self, job_id: _Optional[str] = ..., unit_index: _Optional[int] = ..., epoch: _Optional[int] = ..., tenant_id: _Optional[str] = ..., class_number: _Optional[int] = ..., demand: _Optional[_Union[Demand, _Mapping]] = ..., first_rank: _Optional[int] = ..., whole: _Optional[bool] = ..., time_limit_s: _Optional[float] = ..., wake: _Optional[bool] = ..., least_milli: _Optional[int] = ...) -> None: ...

class GrantName(_message.Message):
    __slots__ = ("job_id", "unit_index", "epoch")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    UNIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    unit_index: int
    epoch: int
    def __init__(self, job_id: _Optional[str] = ..., unit_index: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Holding(_message.Message):
    __slots__ = ("name", "tenant_id", "demand", "ranks", "since", "waking", "least_milli", "asked_milli")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    WAKING_FIELD_NUMBER: _ClassVar[int]
    LEAST_MILLI_FIELD_NUMBER: _ClassVar[int]
    ASKED_MILLI_FIELD_NUMBER: _ClassVar[int]
    name: GrantName
    tenant_id: str
    demand: Demand
    ranks: _containers.RepeatedCompositeFieldContainer[_run_pb2.AssignedRank]
    since: _timestamp_pb2.Timestamp
    waking: bool
    least_milli: int
    asked_milli: int
    def __init__(self, name: _Optional[_Union[GrantName, _Mapping]] = ..., tenant_id: _Optional[str] = ..., demand: _Optional[_Union[Demand, _Mapping]] = ..., ranks: _Optional[_Iterable[_Union[_run_pb2.AssignedRank, _Mapping]]] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., waking: _Optional[bool] = ..., least_milli: _Optional[int] = ..., asked_milli: _Optional[int] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("name", "accelerator_milli")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ACCELERATOR_MILLI_FIELD_NUMBER: _ClassVar[int]
    name: GrantName
    accelerator_milli: int
    def __init__(self, name: _Optional[_Union[GrantName, _Mapping]] = ..., accelerator_milli: _Optional[int] = ...) -> None: ...

class PlacementRequest(_message.Message):
    __slots__ = ("domain_id", "shard", "term", "session", "round", "begins", "complete", "holdings", "released", "classes", "dropped_classes", "wanted", "waiting", "asked_at", "own_scheduler", "waiting_classes", "parts")
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    HOLDINGS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_CLASSES_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_FIELD_NUMBER: _ClassVar[int]
    OWN_SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    WAITING_CLASSES_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    domain_id: str
    shard: str
    term: int
    session: int
    round: int
    begins: bool
    complete: bool
    holdings: _containers.RepeatedCompositeFieldContainer[Holding]
    released: _containers.RepeatedCompositeFieldContainer[GrantName]
    classes: _containers.RepeatedCompositeFieldContainer[DemandClass]
    dropped_classes: _containers.RepeatedScalarFieldContainer[int]
    wanted: _containers.RepeatedCompositeFieldContainer[WantedUnit]
    waiting: bool
    asked_at: _timestamp_pb2.Timestamp
    own_scheduler: bool
    waiting_classes: _containers.RepeatedScalarFieldContainer[int]
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, domain_id: _Optional[str] = ..., shard: _Optional[str] = ..., term: _Optional[int] = ..., session: _Optional[int] = ..., round: _Optional[int] = ..., begins: _Optional[bool] = ..., complete: _Optional[bool] = ..., holdings: _Optional[_Iterable[_Union[Holding, _Mapping]]] = ..., released: _Optional[_Iterable[_Union[GrantName, _Mapping]]] = ..., classes: _Optional[_Iterable[_Union[DemandClass, _Mapping]]] = ..., dropped_classes: _Optional[_Iterable[int]] = ..., wanted: _Optional[_Iterable[_Union[WantedUnit, _Mapping]]] = ..., waiting: _Optional[bool] = ..., asked_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., own_scheduler: _Optional[bool] = ..., waiting_classes: _Optional[_Iterable[int]] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class ClassRoom(_message.Message):
    __slots__ = ("class_number", "vendor", "model", "ranks", "emulated", "any_model")
    CLASS_NUMBER_FIELD_NUMBER: _ClassVar[int]
    VENDOR_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    EMULATED_FIELD_NUMBER: _ClassVar[int]
    ANY_MODEL_FIELD_NUMBER: _ClassVar[int]
    class_number: int
    vendor: str
    model: str
    ranks: int
    emulated: bool
    any_model: bool
    def __init__(self, class_number: _Optional[int] = ..., vendor: _Optional[str] = ..., model: _Optional[str] = ..., ranks: _Optional[int] = ..., emulated: _Optional[bool] = ..., any_model: _Optional[bool] = ...) -> None: ...

class DeviceRoom(_message.Message):
    __slots__ = ("vendor", "model", "total", "nodes_by_free", "emulated")
    VENDOR_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NODES_BY_FREE_FIELD_NUMBER: _ClassVar[int]
    EMULATED_FIELD_NUMBER: _ClassVar[int]
    vendor: str
    model: str
    total: int
    nodes_by_free: _containers.RepeatedScalarFieldContainer[int]
    emulated: bool
    def __init__(self, vendor: _Optional[str] = ..., model: _Optional[str] = ..., total: _Optional[int] = ..., nodes_by_free: _Optional[_Iterable[int]] = ..., emulated: _Optional[bool] = ...) -> None: ...

class DomainSummary(_message.Message):
    __slots__ = ("domain_id", "sequence", "term", "rooms", "devices", "free_cpus", "total_cpus", "free_memory_bytes", "running", "own_scheduler", "at")
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ROOMS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    FREE_CPUS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_CPUS_FIELD_NUMBER: _ClassVar[int]
    FREE_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    OWN_SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    domain_id: str
    sequence: int
    term: int
    rooms: _containers.RepeatedCompositeFieldContainer[ClassRoom]
    devices: _containers.RepeatedCompositeFieldContainer[DeviceRoom]
    free_cpus: float
    total_cpus: float
    free_memory_bytes: int
    running: int
    own_scheduler: bool
    at: _timestamp_pb2.Timestamp
    def __init__(self, domain_id: _Optional[str] = ..., sequence: _Optional[int] = ..., term: _Optional[int] = ..., rooms: _Optional[_Iterable[_Union[ClassRoom, _Mapping]]] = ..., devices: _Optional[_Iterable[_Union[DeviceRoom, _Mapping]]] = ..., free_cpus: _Optional[float] = ..., total_cpus: _Optional[float] = ..., free_memory_bytes: _Optional[int] = ..., running: _Optional[int] = ..., own_scheduler: _Optional[bool] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class PlacedUnit(_message.Message):
    __slots__ = ("name", "ranks", "handed", "explanation", "wake_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    HANDED_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    WAKE_S_FIELD_NUMBER: _ClassVar[int]
    name: GrantName
    ranks: _containers.RepeatedCompositeFieldContainer[_run_pb2.AssignedRank]
    handed: bool
    explanation: str
    wake_s: float
    def __init__(self, name: _Optional[_Union[GrantName, _Mapping]] = ..., ranks: _Optional[_Iterable[_Union[_run_pb2.AssignedRank, _Mapping]]] = ..., handed: _Optional[bool] = ..., explanation: _Optional[str] = ..., wake_s: _Optional[float] = ...) -> None: ...

class RefusedUnit(_message.Message):
    __slots__ = ("name", "reason", "explanation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    name: GrantName
    reason: str
    explanation: str
    def __init__(self, name: _Optional[_Union[GrantName, _Mapping]] = ..., reason: _Optional[str] = ..., explanation: _Optional[str] = ...) -> None: ...

class PlacementAnswer(_message.Message):
    __slots__ = ("shard", "domain_id", "term", "session", "round", "domain_term", "placed", "refused", "summary", "begin_again", "asleep", "parts")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_TERM_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    BEGIN_AGAIN_FIELD_NUMBER: _ClassVar[int]
    ASLEEP_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    shard: str
    domain_id: str
    term: int
    session: int
    round: int
    domain_term: int
    placed: _containers.RepeatedCompositeFieldContainer[PlacedUnit]
    refused: _containers.RepeatedCompositeFieldContainer[RefusedUnit]
    summary: DomainSummary
    begin_again: bool
    asleep: DomainSummary
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, shard: _Optional[str] = ..., domain_id: _Optional[str] = ..., term: _Optional[int] = ..., session: _Optional[int] = ..., round: _Optional[int] = ..., domain_term: _Optional[int] = ..., placed: _Optional[_Iterable[_Union[PlacedUnit, _Mapping]]] = ..., refused: _Optional[_Iterable[_Union[RefusedUnit, _Mapping]]] = ..., summary: _Optional[_Union[DomainSummary, _Mapping]] = ..., begin_again: _Optional[bool] = ..., asleep: _Optional[_Union[DomainSummary, _Mapping]] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class DomainShare(_message.Message):
    __slots__ = ("domain_id", "given_accelerator_s", "held_accelerators", "projected_accelerator_s", "following_accelerator_s")
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    GIVEN_ACCELERATOR_S_FIELD_NUMBER: _ClassVar[int]
    HELD_ACCELERATORS_FIELD_NUMBER: _ClassVar[int]
    PROJECTED_ACCELERATOR_S_FIELD_NUMBER: _ClassVar[int]
    FOLLOWING_ACCELERATOR_S_FIELD_NUMBER: _ClassVar[int]
    domain_id: str
    given_accelerator_s: float
    held_accelerators: float
    projected_accelerator_s: float
    following_accelerator_s: float
    def __init__(self, domain_id: _Optional[str] = ..., given_accelerator_s: _Optional[float] = ..., held_accelerators: _Optional[float] = ..., projected_accelerator_s: _Optional[float] = ..., following_accelerator_s: _Optional[float] = ...) -> None: ...

class ShardShares(_message.Message):
    __slots__ = ("shard", "window_s", "window", "at", "domains")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    DOMAINS_FIELD_NUMBER: _ClassVar[int]
    shard: str
    window_s: float
    window: int
    at: _timestamp_pb2.Timestamp
    domains: _containers.RepeatedCompositeFieldContainer[DomainShare]
    def __init__(self, shard: _Optional[str] = ..., window_s: _Optional[float] = ..., window: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., domains: _Optional[_Iterable[_Union[DomainShare, _Mapping]]] = ...) -> None: ...
