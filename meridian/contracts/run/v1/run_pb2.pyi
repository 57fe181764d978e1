import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from meridian.contracts.options.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AssignmentAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ASSIGNMENT_ACTION_UNSPECIFIED: _ClassVar[AssignmentAction]
    ASSIGNMENT_ACTION_START: _ClassVar[AssignmentAction]
    ASSIGNMENT_ACTION_STOP: _ClassVar[AssignmentAction]
    ASSIGNMENT_ACTION_WAKE: _ClassVar[AssignmentAction]
    ASSIGNMENT_ACTION_SLEEP: _ClassVar[AssignmentAction]
    ASSIGNMENT_ACTION_ADJUST: _ClassVar[AssignmentAction]

class RunFailureKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_FAILURE_KIND_UNSPECIFIED: _ClassVar[RunFailureKind]
    RUN_FAILURE_KIND_PROGRAM: _ClassVar[RunFailureKind]
    RUN_FAILURE_KIND_NODE_LOST: _ClassVar[RunFailureKind]
    RUN_FAILURE_KIND_TIME_LIMIT: _ClassVar[RunFailureKind]
    RUN_FAILURE_KIND_OUT_OF_MEMORY: _ClassVar[RunFailureKind]
    RUN_FAILURE_KIND_STOPPED: _ClassVar[RunFailureKind]
    RUN_FAILURE_KIND_REFUSED: _ClassVar[RunFailureKind]
    RUN_FAILURE_KIND_NOT_STARTABLE: _ClassVar[RunFailureKind]
    RUN_FAILURE_KIND_AGENT_RESTARTED: _ClassVar[RunFailureKind]
    RUN_FAILURE_KIND_LEASE_EXPIRED: _ClassVar[RunFailureKind]
ASSIGNMENT_ACTION_UNSPECIFIED: AssignmentAction
ASSIGNMENT_ACTION_START: AssignmentAction
ASSIGNMENT_ACTION_STOP: AssignmentAction
ASSIGNMENT_ACTION_WAKE: AssignmentAction
ASSIGNMENT_ACTION_SLEEP: AssignmentAction
ASSIGNMENT_ACTION_ADJUST: AssignmentAction
RUN_FAILURE_KIND_UNSPECIFIED: RunFailureKind
RUN_FAILURE_KIND_PROGRAM: RunFailureKind
RUN_FAILURE_KIND_NODE_LOST: RunFailureKind
RUN_FAILURE_KIND_TIME_LIMIT: RunFailureKind
RUN_FAILURE_KIND_OUT_OF_MEMORY: RunFailureKind
RUN_FAILURE_KIND_STOPPED: RunFailureKind
RUN_FAILURE_KIND_REFUSED: RunFailureKind
RUN_FAILURE_KIND_NOT_STARTABLE: RunFailureKind
RUN_FAILURE_KIND_AGENT_RESTARTED: RunFailureKind
RUN_FAILURE_KIND_LEASE_EXPIRED: RunFailureKind

class AssignedRank(_message.Message):
    __slots__ = ("rank", "node_id", "local_rank", "accelerator_indices", "accelerator_milli")
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    ACCELERATOR_INDICES_FIELD_NUMBER: _ClassVar[int]
    ACCELERATOR_MILLI_FIELD_NUMBER: _ClassVar[int]
    rank: int
    node_id: str
    local_rank: int
    accelerator_indices: _containers.RepeatedScalarFieldContainer[int]
    accelerator_milli: int
    def __init__(self, rank: _Optional[int] = ..., node_id: _Optional[str] = ..., local_rank: _Optional[int] = ..., accelerator_indices: _Optional[_Iterable[int]] = ..., accelerator_milli: _Optional[int] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("domain_id", "action", "run_id", "job_id", "unit_index", "epoch", "tenant_id", "ranks", "world_size", "command", "env", "working_dir", "cpus", "memory_bytes", "max_run_time_s", "restore_from", "restore_step", "master_addr", "master_port", "array_index", "service_port", "reason", "grace_s", "assigned_at", "unit_name", "node_ids")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    UNIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    WORKING_DIR_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_RUN_TIME_S_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FROM_FIELD_NUMBER: _ClassVar[int]
    RESTORE_STEP_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDR_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    ARRAY_INDEX_FIELD_NUMBER: _ClassVar[int]
    SERVICE_PORT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_AT_FIELD_NUMBER: _ClassVar[int]
    UNIT_NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    domain_id: str
    action: AssignmentAction
    run_id: str
    job_id: str
    unit_index: int
    epoch: int
    tenant_id: str
    ranks: _containers.RepeatedCompositeFieldContainer[AssignedRank]
    world_size: int
    command: _containers.RepeatedScalarFieldContainer[str]
    env: _containers.ScalarMap[str, str]
    working_dir: str
    cpus: float
    memory_bytes: int
    max_run_time_s: float
    restore_from: str
    restore_step: int
    master_addr: str
    master_port: int
    array_index: int
    service_port: int
    reason: str
    grace_s: float
    assigned_at: _timestamp_pb2.Timestamp
    unit_name: str
    node_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, domain_id: _Optional[str] = ..., action: _Optional[_Union[AssignmentAction, str]] = ..., run_id: _Optional[str] = ..., job_id: _Optional[str] = ..., unit_index: _Optional[int] = ..., epoch: _Optional[int] = ..., tenant_id: _Optional[str] = ..., ranks: _Optional[_Iterable[_Union[AssignedRank, _Mapping]]] = ..., world_size: _Optional[int] = ..., command: _Optional[_Iterable[str]] = ..., env: _Optional[_Mapping[str, str]] = ..., working_dir: _Optional[str] = ..., cpus: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., max_run_time_s: _Optional[float] = ..., restore_from: _Optional[str] = ..., restore_step: _Optional[int] = ..., master_addr: _Optional[str] = ..., master_port: _Optional[int] = ..., array_index: _Optional[int] = ..., service_port: _Optional[int] = ..., reason: _Optional[str] = ..., grace_s: _Optional[float] = ..., assigned_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., unit_name: _Optional[str] = ..., node_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class RunStarted(_message.Message):
    __slots__ = ("run_id", "job_id", "unit_index", "epoch", "domain_id", "at", "node_ids")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    UNIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    job_id: str
    unit_index: int
    epoch: int
    domain_id: str
    at: _timestamp_pb2.Timestamp
    node_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run_id: _Optional[str] = ..., job_id: _Optional[str] = ..., unit_index: _Optional[int] = ..., epoch: _Optional[int] = ..., domain_id: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., node_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class RunProgress(_message.Message):
    __slots__ = ("run_id", "job_id", "unit_index", "epoch", "domain_id", "at", "step", "total_steps", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    UNIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    job_id: str
    unit_index: int
    epoch: int
    domain_id: str
    at: _timestamp_pb2.Timestamp
    step: int
    total_steps: int
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, run_id: _Optional[str] = ..., job_id: _Optional[str] = ..., unit_index: _Optional[int] = ..., epoch: _Optional[int] = ..., domain_id: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., step: _Optional[int] = ..., total_steps: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class RunCheckpointed(_message.Message):
    __slots__ = ("run_id", "job_id", "unit_index", "epoch", "domain_id", "at", "step", "path", "size_bytes")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    UNIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    job_id: str
    unit_index: int
    epoch: int
    domain_id: str
    at: _timestamp_pb2.Timestamp
    step: int
    path: str
    size_bytes: int
    def __init__(self, run_id: _Optional[str] = ..., job_id: _Optional[str] = ..., unit_index: _Optional[int] = ..., epoch: _Optional[int] = ..., domain_id: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., step: _Optional[int] = ..., path: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class RunFinished(_message.Message):
    __slots__ = ("run_id", "job_id", "unit_index", "epoch", "domain_id", "at")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    UNIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    job_id: str
    unit_index: int
    epoch: int
    domain_id: str
    at: _timestamp_pb2.Timestamp
    def __init__(self, run_id: _Optional[str] = ..., job_id: _Optional[str] = ..., unit_index: _Optional[int] = ..., epoch: _Optional[int] = ..., domain_id: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class RunFailed(_message.Message):
    __slots__ = ("run_id", "job_id", "unit_index", "epoch", "domain_id", "at", "kind", "reason", "rank", "node_id", "exit_code", "signal", "log_tail")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    UNIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    LOG_TAIL_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    job_id: str
    unit_index: int
    epoch: int
    domain_id: str
    at: _timestamp_pb2.Timestamp
    kind: RunFailureKind
    reason: str
    rank: int
    node_id: str
    exit_code: int
    signal: int
    log_tail: str
    def __init__(self, run_id: _Optional[str] = ..., job_id: _Optional[str] = ..., unit_index: _Optional[int] = ..., epoch: _Optional[int] = ..., domain_id: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kind: _Optional[_Union[RunFailureKind, str]] = ..., reason: _Optional[str] = ..., rank: _Optional[int] = ..., node_id: _Optional[str] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., log_tail: _Optional[str] = ...) -> None: ...
