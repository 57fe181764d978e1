"""The job file: what a tenant may ask for, with the bounds of every field.

Numbers are strict (no ``"3"``, no ``true``, no NaN), unknown fields are refused. What one field alone can show stands in
the models; what several fields show together in `services.gateway.job_checks`; how the contract says it in
`services.gateway.job_spec`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from meridian.resource_model import MAX_AMOUNT, NAME, RESERVED

_NO_NUL = r"^[^\x00]*$"

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", max_length=128)]
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$", max_length=128)]
Word = Annotated[str, StringConstraints(pattern=_NO_NUL, max_length=32768)]
Command = Annotated[list[Word], Field(max_length=256)]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$", max_length=128)]
TypeName = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f]{1,128}$", min_length=1, max_length=128)]
Path = Annotated[str, StringConstraints(pattern=_NO_NUL, max_length=4096)]


def in_utc(text: str) -> str:
    """A time as RFC 3339 in UTC, to the microsecond; ValueError without an offset."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("a time needs its offset from UTC, as in 2026-03-01T09:00:00Z")
    try:
        at = at.astimezone(UTC)
    except OverflowError:
        raise ValueError("out of range") from None
    return at.isoformat().replace("+00:00", "Z")


Time = Annotated[str, StringConstraints(max_length=40), AfterValidator(in_utc)]

JobKindName = Literal["task", "array", "gang", "workflow", "service"]


class Section(BaseModel):
    """Base of all parts of the job file."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


def _not_reserved(name: str) -> str:
    if name.lower() in RESERVED:
        raise ValueError(f"{name!r} is asked for in a field of its own")
    return name


ResourceName = Annotated[str, StringConstraints(pattern=NAME), AfterValidator(_not_reserved)]
ResourceAmount = Annotated[float, Field(gt=0, le=MAX_AMOUNT, allow_inf_nan=False)]


class ResourcesSection(Section):
    """What each rank needs; ``accelerator_milli`` thousandths of its accelerator, which it shares with others."""

    cpus: float = Field(default=1.0, gt=0, le=4096)
    memory_bytes: int = Field(default=1 << 30, ge=1 << 20, le=1 << 50)
    accelerators: int = Field(default=0, ge=0, le=1024)
    accelerator_types: list[TypeName] = Field(default=[], max_length=32)
    accelerator_milli: int = Field(default=1000, ge=1, le=1000)
    # Bounds of the part while it runs; none: it stays as it is.
    min_accelerator_milli: int | None = Field(default=None, ge=1, le=999)
    max_accelerator_milli: int | None = Field(default=None, ge=1, le=1000)
    # Amounts of resources that users define.
    user_resources: dict[ResourceName, ResourceAmount] = Field(default={}, max_length=32)


class GangSection(Section):
    """Ranks that start together or not at all; with ``min_ranks`` or ``max_ranks`` a policy may run it smaller or larger."""

    ranks: int = Field(ge=1, le=10_000)
    allow_cross_domain: bool = False
    min_ranks: int | None = Field(default=None, ge=1, le=10_000)
    max_ranks: int | None = Field(default=None, ge=1, le=10_000)


class ArraySection(Section):
    """Many tasks that differ in their index."""

    size: int = Field(ge=1, le=100_000)


class ScalingSection(Section):
    """Between which numbers of replicas a service runs, by the load that each reports as ``metric`` of its progress."""

    min_replicas: int = Field(default=1, ge=1, le=10_000)
    max_replicas: int = Field(ge=1, le=10_000)
    target: float = Field(gt=0, description="the load that a replica should have")
    metric: str = Field(default="load", pattern=_NO_NUL, min_length=1, max_length=128)
    tolerance: float = Field(default=0.1, ge=0, lt=1)
    down_after_s: float = Field(default=300.0, ge=0)
    cooldown_s: float = Field(default=15.0, ge=0)


class ServiceSection(Section):
    """Replicas that run until the job is cancelled; port 0 is none. With ``scaling`` they follow their load."""

    replicas: int = Field(default=1, ge=1, le=10_000)
    port: int = Field(default=0, ge=0, le=65_535)
    scaling: ScalingSection | None = None


class WorkflowTaskSection(Section):
    """One step of a workflow; without resources it needs what the job names."""

    name: Name
    command: Command = Field(min_length=1)
    depends_on: list[Name] = Field(default=[], max_length=1000)
    ranks: int = Field(default=1, ge=1, le=10_000)
    resources: ResourcesSection | None = None


class WorkflowSection(Section):
    """Steps that wait for one another."""

    tasks: list[WorkflowTaskSection] = Field(min_length=1, max_length=1000)


class CheckpointSection(Section):
    """How often the program is asked to write a checkpoint; 0 leaves it to the program."""

    interval_s: float = Field(default=0.0, ge=0, le=7 * 86400)


class ModelSection(Section):
    """The model a training job trains, for the forecast; 0 is unknown."""

    parameters: int = Field(default=0, ge=0, le=10**16)
    layers: int = Field(default=0, ge=0, le=100_000)
    hidden: int = Field(default=0, ge=0, le=10_000_000)
    heads: int = Field(default=0, ge=0, le=1_000_000)
    sequence: int = Field(default=0, ge=0, le=100_000_000)
    vocabulary: int = Field(default=0, ge=0, le=100_000_000)
    global_batch: int = Field(default=0, ge=0, le=100_000_000)
    precision: Literal["", "fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"] = ""
    steps: int = Field(default=0, ge=0, le=10**12)
    tensor_parallel: int = Field(default=0, ge=0, le=10_000)
    pipeline_parallel: int = Field(default=0, ge=0, le=10_000)
    recompute: bool = False
    # The schedule, from which follows what each phase of the run asks for.
    warm_up_steps: int = Field(default=0, ge=0, le=10**12)
    batch_ramp_start: int = Field(default=0, ge=0, le=100_000_000)
    batch_ramp_increment: int = Field(default=0, ge=0, le=100_000_000)
    batch_ramp_samples: int = Field(default=0, ge=0, le=10**15)
    evaluate_every_steps: int = Field(default=0, ge=0, le=10**12)
    evaluation_s: float = Field(default=0.0, ge=0, le=7 * 86400)
    checkpoint_s: float = Field(default=0.0, ge=0, le=7 * 86400)


class RateSection(Section):
    """Steps per second of the whole job with so many ranks on an accelerator type; 0: it does not run there."""

    accelerator_type: TypeName
    ranks: int = Field(default=1, ge=1, le=10_000)
    rate: float = Field(ge=0, le=1e15)


class PlacementSection(Section):
    """Where the job may run; no domains means any."""

    domains: list[Identifier] = Field(default=[], max_length=1000)
    exclude_domains: list[Identifier] = Field(default=[], max_length=1000)
    min_security_level: int = Field(default=0, ge=0, le=100)
    require_real_accelerators: bool = False


class JobFile(Section):
    """A job as a tenant asks for it."""

    name: Name
    kind: JobKindName
    command: Command = []
    working_dir: Path = ""
    env: dict[EnvName, Word] = Field(default={}, max_length=512)
    resources: ResourcesSection = ResourcesSection()
    gang: GangSection | None = None
    array: ArraySection | None = None
    service: ServiceSection | None = None
    workflow: WorkflowSection | None = None
    checkpoint: CheckpointSection = CheckpointSection()
    max_restarts: int = Field(default=3, ge=0, le=1000)
    priority: int = Field(default=0, ge=-1000, le=1000)
    max_run_time_s: float = Field(default=0.0, ge=0, le=10 * 366 * 86400)
    model: ModelSection | None = None
    placement: PlacementSection = PlacementSection()
    rates: list[RateSection] = Field(default=[], max_length=256)
    deadline: Time | None = None

    @property
    def units(self) -> int:
        """How many units the job consists of; a service that follows its load of as many replicas as it may have."""
        if self.array is not None:
            return self.array.size
        if self.workflow is not None:
            return len(self.workflow.tasks)
        if self.service is not None:
            return self.service.scaling.max_replicas if self.service.scaling is not None else self.service.replicas
        return 1
