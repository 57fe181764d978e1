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

class JobKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_KIND_UNSPECIFIED: _ClassVar[JobKind]
    JOB_KIND_TASK: _ClassVar[JobKind]
    JOB_KIND_ARRAY: _ClassVar[JobKind]
    JOB_KIND_GANG: _ClassVar[JobKind]
    JOB_KIND_WORKFLOW: _ClassVar[JobKind]
    JOB_KIND_SERVICE: _ClassVar[JobKind]

class JobOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_OUTCOME_UNSPECIFIED: _ClassVar[JobOutcome]
    JOB_OUTCOME_SUCCEEDED: _ClassVar[JobOutcome]
    JOB_OUTCOME_FAILED: _ClassVar[JobOutcome]
    JOB_OUTCOME_CANCELLED: _ClassVar[JobOutcome]
JOB_KIND_UNSPECIFIED: JobKind
JOB_KIND_TASK: JobKind
JOB_KIND_ARRAY: JobKind
JOB_KIND_GANG: JobKind
JOB_KIND_WORKFLOW: JobKind
JOB_KIND_SERVICE: JobKind
JOB_OUTCOME_UNSPECIFIED: JobOutcome
JOB_OUTCOME_SUCCEEDED: JobOutcome
JOB_OUTCOME_FAILED: JobOutcome
JOB_OUTCOME_CANCELLED: JobOutcome

class WorkflowTask(_message.Message):
    __slots__ = ("name", "command", "depends_on", "ranks", "resources")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    DEPENDS_ON_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    name: str
    command: _containers.RepeatedScalarFieldContainer[str]
    depends_on: _containers.RepeatedScalarFieldContainer[str]
    ranks: int
    resources: _types_pb2.Resources
    def __init__(self, name: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., depends_on: _Optional[_Iterable[str]] = ..., ranks: _Optional[int] = ..., resources: _Optional[_Union[_types_pb2.Resources, _Mapping]] = ...) -> None: ...

class ModelDescription(_message.Message):
    __slots__ = ("parameters", "layers", "hidden", "heads", "sequence", "vocabulary", "global_batch", "precision", "steps", "tensor_parallel", "pipeline_parallel", "recompute", "warm_up_steps", "batch_ramp_start", "batch_ramp_increment", "batch_ramp_samples", "evaluate_every_steps", "evaluation_s", "checkpoint_s")
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_BATCH_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_FIELD_NUMBER: _ClassVar[int]
    WARM_UP_STEPS_FIELD_NUMBER: _ClassVar[int]
    BATCH_RAMP_START_FIELD_NUMBER: _ClassVar[int]
    BATCH_RAMP_INCREMENT_FIELD_NUMBER: _ClassVar[int]
    BATCH_RAMP_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_EVERY_STEPS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_S_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_S_FIELD_NUMBER: _ClassVar[int]
    parameters: int
    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    global_batch: int
    precision: str
    steps: int
    tensor_parallel: int
    pipeline_parallel: int
    recompute: bool
    warm_up_steps: int
    batch_ramp_start: int
    batch_ramp_increment: int
    batch_ramp_samples: int
    evaluate_every_steps: int
    evaluation_s: float
    checkpoint_s: float
    def __init__(self, parameters: _Optional[int] = ..., layers: _Optional[int] = ..., hidden: _Optional[int] = ..., heads: _Optional[int] = ..., sequence: _Optional[int] = ..., vocabulary: _Optional[int] = ..., global_batch: _Optional[int] = ..., precision: _Optional[str] = ..., steps: _Optional[int] = ..., tensor_parallel: _Optional[int] = ..., pipeline_parallel: _Optional[int] = ..., recompute: _Optional[bool] = ..., warm_up_steps: _Optional[int] = ..., batch_ramp_start: _Optional[int] = ..., batch_ramp_increment: _Optional[int] = ..., batch_ramp_samples: _Optional[int] = ..., evaluate_every_steps: _Optional[int] = ..., evaluation_s: _Optional[float] = ..., checkpoint_s: _Optional[float] = ...) -> None: ...

class PlacementConstraints(_message.Message):
    __slots__ = ("domains", "exclude_domains", "min_security_level", "require_real_accelerators")
    DOMAINS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_DOMAINS_FIELD_NUMBER: _ClassVar[int]
    MIN_SECURITY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_REAL_ACCELERATORS_FIELD_NUMBER: _ClassVar[int]
    domains: _containers.RepeatedScalarFieldContainer[str]
    exclude_domains: _containers.RepeatedScalarFieldContainer[str]
    min_security_level: int
    require_real_accelerators: bool
    def __init__(self, domains: _Optional[_Iterable[str]] = ..., exclude_domains: _Optional[_Iterable[str]] = ..., min_security_level: _Optional[int] = ..., require_real_accelerators: _Optional[bool] = ...) -> None: ...

class DeclaredRate(_message.Message):
    __slots__ = ("accelerator_type", "ranks", "rate")
    ACCELERATOR_TYPE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    accelerator_type: str
    ranks: int
    rate: float
    def __init__(self, accelerator_type: _Optional[str] = ..., ranks: _Optional[int] = ..., rate: _Optional[float] = ...) -> None: ...

class ReplicaScaling(_message.Message):
    __slots__ = ("min_replicas", "max_replicas", "target", "metric", "tolerance", "down_after_s", "cooldown_s")
    MIN_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MAX_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    DOWN_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    COOLDOWN_S_FIELD_NUMBER: _ClassVar[int]
    min_replicas: int
    max_replicas: int
    target: float
    metric: str
    tolerance: float
    down_after_s: float
    cooldown_s: float
    def __init__(self, min_replicas: _Optional[int] = ..., max_replicas: _Optional[int] = ..., target: _Optional[float] = ..., metric: _Optional[str] = ..., tolerance: _Optional[float] = ..., down_after_s: _Optional[float] = ..., cooldown_s: _Optional[float] = ...) -> None: ...

class JobSpec(_message.Message):
    __slots__ = ("name", "kind", "command", "working_dir", "env", "resources", "ranks", "allow_cross_domain", "array_size", "replicas", "service_port", "tasks", "checkpoint_interval_s", "max_restarts", "priority", "max_run_time_s", "model", "placement", "min_ranks", "max_ranks", "rates", "deadline", "scaling")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    WORKING_DIR_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_CROSS_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    ARRAY_SIZE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    SERVICE_PORT_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    MAX_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MAX_RUN_TIME_S_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    MIN_RANKS_FIELD_NUMBER: _ClassVar[int]
    MAX_RANKS_FIELD_NUMBER: _ClassVar[int]
    RATES_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    SCALING_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: JobKind
    command: _containers.RepeatedScalarFieldContainer[str]
    working_dir: str
    env: _containers.ScalarMap[str, str]
    resources: _types_pb2.Resources
    ranks: int
    allow_cross_domain: bool
    array_size: int
    replicas: int
    service_port: int
    tasks: _containers.RepeatedCompositeFieldContainer[WorkflowTask]
    checkpoint_interval_s: float
    max_restarts: int
    priority: int
    max_run_time_s: float
    model: ModelDescription
    placement: PlacementConstraints
    min_ranks: int
    max_ranks: int
    rates: _containers.RepeatedCompositeFieldContainer[DeclaredRate]
    deadline: _timestamp_pb2.Timestamp
    scaling: ReplicaScaling
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[JobKind, str]] = ..., command: _Optional[_Iterable[str]] = ..., working_dir: _Optional[str] = ..., env: _Optional[_Mapping[str, str]] = ..., resources: _Optional[_Union[_types_pb2.Resources, _Mapping]] = ..., ranks: _Optional[int] = ..., allow_cross_domain: _Optional[bool] = ..., array_size: _Optional[int] = ..., replicas: _Optional[int] = ..., service_port: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[WorkflowTask, _Mapping]]] = ..., checkpoint_interval_s: _Optional[float] = ..., max_restarts: _Optional[int] = ..., priority: _Optional[int] = ..., max_run_time_s: _Optional[float] = ..., model: _Optional[_Union[ModelDescription, _Mapping]] = ..., placement: _Optional[_Union[PlacementConstraints, _Mapping]] = ..., min_ranks: _Optional[int] = ..., max_ranks: _Optional[int] = ..., rates: _Optional[_Iterable[_Union[DeclaredRate, _Mapping]]] = ..., deadline: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., scaling: _Optional[_Union[ReplicaScaling, _Mapping]] = ...) -> None: ...

class JobSubmitted(_message.Message):
    __slots__ = ("job_id", "tenant_id", "spec", "submitted_at")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    tenant_id: str
    spec: JobSpec
    submitted_at: _timestamp_pb2.Timestamp
    def __init__(self, job_id: _Optional[str] = ..., tenant_id: _Optional[str] = ..., spec: _Optional[_Union[JobSpec, _Mapping]] = ..., submitted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class JobCancelRequested(_message.Message):
    __slots__ = ("job_id", "tenant_id", "reason", "requested_at")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_AT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    tenant_id: str
    reason: str
    requested_at: _timestamp_pb2.Timestamp
    def __init__(self, job_id: _Optional[str] = ..., tenant_id: _Optional[str] = ..., reason: _Optional[str] = ..., requested_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class JobQueued(_message.Message):
    __slots__ = ("job_id", "tenant_id", "units", "queued_at", "unit_index", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_AT_FIELD_NUMBER: _ClassVar[int]
    UNIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    tenant_id: str
    units: int
    queued_at: _timestamp_pb2.Timestamp
    unit_index: int
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., tenant_id: _Optional[str] = ..., units: _Optional[int] = ..., queued_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., unit_index: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class PlacedRank(_message.Message):
    __slots__ = ("rank", "domain_id", "node_id", "accelerator_indices", "accelerator_milli")
    RANK_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ACCELERATOR_INDICES_FIELD_NUMBER: _ClassVar[int]
    ACCELERATOR_MILLI_FIELD_NUMBER: _ClassVar[int]
    rank: int
    domain_id: str
    node_id: str
    accelerator_indices: _containers.RepeatedScalarFieldContainer[int]
    accelerator_milli: int
    def __init__(self, rank: _Optional[int] = ..., domain_id: _Optional[str] = ..., node_id: _Optional[str] = ..., accelerator_indices: _Optional[_Iterable[int]] = ..., accelerator_milli: _Optional[int] = ...) -> None: ...

class JobPlaced(_message.Message):
    __slots__ = ("job_id", "tenant_id", "unit_index", "run_id", "epoch", "ranks", "restore_from", "restore_step", "decision_id", "policy_version", "reason", "placed_at", "accelerators")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    UNIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FROM_FIELD_NUMBER: _ClassVar[int]
    RESTORE_STEP_FIELD_NUMBER: _ClassVar[int]
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PLACED_AT_FIELD_NUMBER: _ClassVar[int]
    ACCELERATORS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    tenant_id: str
    unit_index: int
    run_id: str
    epoch: int
    ranks: _containers.RepeatedCompositeFieldContainer[PlacedRank]
    restore_from: str
    restore_step: int
    decision_id: str
    policy_version: str
    reason: str
    placed_at: _timestamp_pb2.Timestamp
    accelerators: int
    def __init__(self, job_id: _Optional[str] = ..., tenant_id: _Optional[str] = ..., unit_index: _Optional[int] = ..., run_id: _Optional[str] = ..., epoch: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[PlacedRank, _Mapping]]] = ..., restore_from: _Optional[str] = ..., restore_step: _Optional[int] = ..., decision_id: _Optional[str] = ..., policy_version: _Optional[str] = ..., reason: _Optional[str] = ..., placed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., accelerators: _Optional[int] = ...) -> None: ...

class JobPreempted(_message.Message):
    __slots__ = ("job_id", "tenant_id", "unit_index", "run_id", "epoch", "reason", "preempted_at")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    UNIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_AT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    tenant_id: str
    unit_index: int
    run_id: str
    epoch: int
    reason: str
    preempted_at: _timestamp_pb2.Timestamp
    def __init__(self, job_id: _Optional[str] = ..., tenant_id: _Optional[str] = ..., unit_index: _Optional[int] = ..., run_id: _Optional[str] = ..., epoch: _Optional[int] = ..., reason: _Optional[str] = ..., preempted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class JobFinished(_message.Message):
    __slots__ = ("job_id", "tenant_id", "outcome", "reason", "restarts", "finished_at")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    tenant_id: str
    outcome: JobOutcome
    reason: str
    restarts: int
    finished_at: _timestamp_pb2.Timestamp
    def __init__(self, job_id: _Optional[str] = ..., tenant_id: _Optional[str] = ..., outcome: _Optional[_Union[JobOutcome, str]] = ..., reason: _Optional[str] = ..., restarts: _Optional[int] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
