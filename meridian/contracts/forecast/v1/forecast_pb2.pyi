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

class ForecastSubjectKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FORECAST_SUBJECT_KIND_UNSPECIFIED: _ClassVar[ForecastSubjectKind]
    FORECAST_SUBJECT_KIND_DOMAIN: _ClassVar[ForecastSubjectKind]
    FORECAST_SUBJECT_KIND_TENANT: _ClassVar[ForecastSubjectKind]
    FORECAST_SUBJECT_KIND_CHIP: _ClassVar[ForecastSubjectKind]
    FORECAST_SUBJECT_KIND_JOB: _ClassVar[ForecastSubjectKind]

class TrainingPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRAINING_PHASE_UNSPECIFIED: _ClassVar[TrainingPhase]
    TRAINING_PHASE_UNKNOWN: _ClassVar[TrainingPhase]
    TRAINING_PHASE_WARM_UP: _ClassVar[TrainingPhase]
    TRAINING_PHASE_FAST: _ClassVar[TrainingPhase]
    TRAINING_PHASE_STABLE: _ClassVar[TrainingPhase]
FORECAST_SUBJECT_KIND_UNSPECIFIED: ForecastSubjectKind
FORECAST_SUBJECT_KIND_DOMAIN: ForecastSubjectKind
FORECAST_SUBJECT_KIND_TENANT: ForecastSubjectKind
FORECAST_SUBJECT_KIND_CHIP: ForecastSubjectKind
FORECAST_SUBJECT_KIND_JOB: ForecastSubjectKind
TRAINING_PHASE_UNSPECIFIED: TrainingPhase
TRAINING_PHASE_UNKNOWN: TrainingPhase
TRAINING_PHASE_WARM_UP: TrainingPhase
TRAINING_PHASE_FAST: TrainingPhase
TRAINING_PHASE_STABLE: TrainingPhase

class ForecastPoint(_message.Message):
    __slots__ = ("horizon_s", "expected", "low", "high", "has_band", "skill", "structure_share")
    HORIZON_S_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    HAS_BAND_FIELD_NUMBER: _ClassVar[int]
    SKILL_FIELD_NUMBER: _ClassVar[int]
    STRUCTURE_SHARE_FIELD_NUMBER: _ClassVar[int]
    horizon_s: float
    expected: float
    low: float
    high: float
    has_band: bool
    skill: float
    structure_share: float
    def __init__(self, horizon_s: _Optional[float] = ..., expected: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., has_band: _Optional[bool] = ..., skill: _Optional[float] = ..., structure_share: _Optional[float] = ...) -> None: ...

class DemandForecast(_message.Message):
    __slots__ = ("subject_kind", "subject_id", "made_at", "method", "current", "points", "history_windows", "window_s", "tenant_id")
    SUBJECT_KIND_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    MADE_AT_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_WINDOWS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    subject_kind: ForecastSubjectKind
    subject_id: str
    made_at: _timestamp_pb2.Timestamp
    method: str
    current: float
    points: _containers.RepeatedCompositeFieldContainer[ForecastPoint]
    history_windows: int
    window_s: float
    tenant_id: str
    def __init__(self, subject_kind: _Optional[_Union[ForecastSubjectKind, str]] = ..., subject_id: _Optional[str] = ..., made_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., method: _Optional[str] = ..., current: _Optional[float] = ..., points: _Optional[_Iterable[_Union[ForecastPoint, _Mapping]]] = ..., history_windows: _Optional[int] = ..., window_s: _Optional[float] = ..., tenant_id: _Optional[str] = ...) -> None: ...

class PhaseDemand(_message.Message):
    __slots__ = ("global_batch", "flops_per_step", "busy_share", "until_step")
    GLOBAL_BATCH_FIELD_NUMBER: _ClassVar[int]
    FLOPS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    BUSY_SHARE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_STEP_FIELD_NUMBER: _ClassVar[int]
    global_batch: int
    flops_per_step: float
    busy_share: float
    until_step: int
    def __init__(self, global_batch: _Optional[int] = ..., flops_per_step: _Optional[float] = ..., busy_share: _Optional[float] = ..., until_step: _Optional[int] = ...) -> None: ...

class TrainingPhaseChanged(_message.Message):
    __slots__ = ("job_id", "tenant_id", "unit_index", "run_id", "epoch", "step", "total_steps", "phase", "before", "reason", "reports", "demand", "at")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    UNIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    tenant_id: str
    unit_index: int
    run_id: str
    epoch: int
    step: int
    total_steps: int
    phase: TrainingPhase
    before: TrainingPhase
    reason: str
    reports: int
    demand: PhaseDemand
    at: _timestamp_pb2.Timestamp
    def __init__(self, job_id: _Optional[str] = ..., tenant_id: _Optional[str] = ..., unit_index: _Optional[int] = ..., run_id: _Optional[str] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ..., total_steps: _Optional[int] = ..., phase: _Optional[_Union[TrainingPhase, str]] = ..., before: _Optional[_Union[TrainingPhase, str]] = ..., reason: _Optional[str] = ..., reports: _Optional[int] = ..., demand: _Optional[_Union[PhaseDemand, _Mapping]] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class JobRequirementEstimated(_message.Message):
    __slots__ = ("job_id", "tenant_id", "parameters", "flops_per_step", "total_flops", "memory_bytes_per_accelerator", "memory_parts_bytes", "formula", "estimated_at")
    class MemoryPartsBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    FLOPS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FLOPS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_PER_ACCELERATOR_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PARTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    FORMULA_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_AT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    tenant_id: str
    parameters: float
    flops_per_step: float
    total_flops: float
    memory_bytes_per_accelerator: float
    memory_parts_bytes: _containers.ScalarMap[str, float]
    formula: str
    estimated_at: _timestamp_pb2.Timestamp
    def __init__(self, job_id: _Optional[str] = ..., tenant_id: _Optional[str] = ..., parameters: _Optional[float] = ..., flops_per_step: _Optional[float] = ..., total_flops: _Optional[float] = ..., memory_bytes_per_accelerator: _Optional[float] = ..., memory_parts_bytes: _Optional[_Mapping[str, float]] = ..., formula: _Optional[str] = ..., estimated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
