"""Profiles of workloads and the requirement they grade to.

Bytes per parameter: training in mixed precision with Adam keeps weights, gradients, a 32-bit copy and two moments: 2 + 2 +
4 + 4 + 4 = 16 (Rajbhandari and others, ZeRO, 2020, section 3.1); low-rank fine-tuning keeps the frozen weights; inference
keeps the weights. ``HEADROOM`` is for activations and caches. Work of a dense transformer: 6 FLOP per parameter and token
to train, 2 to infer (Kaplan and others, 2020, section 2.1).
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

GIBI = 2.0**30
HEADROOM = 1.2
_TRAINED_BYTES, _FROZEN_BYTES = 16.0, 2.0
_INFERENCE_BYTES: Mapping[str, float] = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
_FLOP_TRAIN, _FLOP_INFER = 6.0, 2.0


class Kind(StrEnum):
    """What is done."""

    TRAINING = "training"
    FINE_TUNING = "fine_tuning"
    BATCH_INFERENCE = "batch_inference"
    REALTIME_INFERENCE = "realtime_inference"
    HPC = "hpc"
    VIDEO = "video"


TRAINED = frozenset({Kind.TRAINING, Kind.FINE_TUNING})


class Workload(BaseModel):
    """What somebody wants to do; what is left out is taken from the profile of its kind."""

    model_config = ConfigDict(extra="forbid")

    kind: Kind
    parameters: float | None = Field(default=None, gt=0, le=1e15, allow_inf_nan=False, description="of the model")
    precision: Annotated[str | None, Field(pattern=r"^(fp64|fp32|tf32|bf16|fp16|fp8|int8)$")] = None
    low_rank: bool = Field(default=False, description="fine-tuning of adapters, the model itself frozen")
    tokens: float | None = Field(default=None, gt=0, le=1e24, allow_inf_nan=False, description="to be processed in all")
    deadline_s: float | None = Field(default=None, ge=1e-3, allow_inf_nan=False)
    memory_bytes: float | None = Field(default=None, gt=0, le=1e24, allow_inf_nan=False, description="in all, if known")
    accelerators: int | None = Field(default=None, ge=1, le=1_000_000)
    max_round_trip_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_price_per_hour: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="of all accelerators")

    @model_validator(mode="after")
    def _sized(self) -> Workload:
        models = {Kind.TRAINING, Kind.FINE_TUNING, Kind.BATCH_INFERENCE, Kind.REALTIME_INFERENCE}
        if self.kind in models and self.parameters is None and self.memory_bytes is None:
            raise ValueError("parameters or memory_bytes is needed for this kind")
        if self.low_rank and self.kind is not Kind.FINE_TUNING:
            raise ValueError(f"low_rank is of fine_tuning only, the kind is {self.kind}")
        return self


@dataclass(frozen=True, slots=True)
class Profile:
    """What a kind asks for unless it is said, and what its ranking weighs."""

    task: str
    """Task family of the compute index."""
    precision: str
    max_round_trip_s: float | None
    weights: Mapping[str, float]
    """Of speed, price, distance and availability, adding up to 1."""


PROFILES: Mapping[Kind, Profile] = {
    Kind.TRAINING: Profile(
        "transformer_step", "bf16", None, {"speed": 0.45, "price": 0.35, "distance": 0.05, "availability": 0.15}
    ),
    Kind.FINE_TUNING: Profile(
        "transformer_step", "bf16", None, {"speed": 0.35, "price": 0.4, "distance": 0.05, "availability": 0.2}
    ),
    Kind.BATCH_INFERENCE: Profile(
        "transformer_step", "bf16", None, {"speed": 0.25, "price": 0.55, "distance": 0.05, "availability": 0.15}
    ),
    Kind.REALTIME_INFERENCE: Profile(
        "memory_bandwidth", "bf16", 0.05, {"speed": 0.3, "price": 0.2, "distance": 0.35, "availability": 0.15}
    ),
    Kind.HPC: Profile("gemm", "fp64", None, {"speed": 0.5, "price": 0.3, "distance": 0.05, "availability": 0.15}),
    Kind.VIDEO: Profile(
        "memory_bandwidth", "fp16", 0.1, {"speed": 0.3, "price": 0.35, "distance": 0.2, "availability": 0.15}
    ),
}
# Upper ends of levels 1 to 4; above is level 5.
MEMORY_LEVELS: Sequence[float] = tuple(size * GIBI for size in (16, 48, 160, 640))
COMPUTE_LEVELS: Sequence[float] = (1e13, 1e14, 1e15, 1e17)
"""FLOP/s sustained."""
LATENCY_LEVELS: Sequence[float] = (0.01, 0.03, 0.1, 0.5)
"""Round trip in s: level 5 is the strictest, up to the first bound."""
SCALE_LEVELS: Sequence[float] = (1, 8, 64, 512)
"""Accelerators that work together."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """What an offer has to have; levels 1 (little) to 5 (much), None where nothing is asked."""

    kind: Kind
    task: str
    precision: str
    memory_bytes: float | None
    flops: float | None
    accelerators: int | None
    max_round_trip_s: float | None
    max_price_per_hour: float | None
    weights: Mapping[str, float]
    levels: Mapping[str, int | None]
    reasons: tuple[str, ...]

    def body(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "kind": str(self.kind),
            "task": self.task,
            "precision": self.precision,
            "memory_bytes": self.memory_bytes,
            "flops": self.flops,
            "accelerators": self.accelerators,
            "max_round_trip_s": self.max_round_trip_s,
            "max_price_per_hour": self.max_price_per_hour,
            "weights": dict(self.weights),
            "levels": dict(self.levels),
            "reasons": list(self.reasons),
        }


def graded(workload: Workload) -> Requirement:
    """The requirement of ``workload``; each derived number is explained in its reasons."""
    profile = PROFILES[workload.kind]
    precision = workload.precision or profile.precision
    reasons: list[str] = []
    memory = workload.memory_bytes
    if memory is None and workload.parameters is not None:
        each = _bytes_per_parameter(workload, precision)
        memory = each * workload.parameters * HEADROOM
        reasons.append(
            f"{workload.parameters:.3g} parameters x {each:g} bytes x {HEADROOM:g} = {memory / GIBI:.1f} GiB of memory"
        )
    flops = None
    if workload.parameters and workload.tokens and workload.deadline_s:
        per_token = _FLOP_TRAIN if workload.kind in TRAINED else _FLOP_INFER
        flops = per_token * workload.parameters * workload.tokens / workload.deadline_s
        reasons.append(
            f"{per_token:g} x {workload.parameters:.3g} parameters x {workload.tokens:.3g} tokens in "
            f"{workload.deadline_s:g} s = {flops:.3g} FLOP/s"
        )
    elif workload.tokens or workload.deadline_s:
        reasons.append("no rate is asked for: that takes parameters, tokens and a deadline together")
    round_trip = workload.max_round_trip_s or profile.max_round_trip_s
    if workload.max_round_trip_s is None and round_trip is not None:
        reasons.append(f"{workload.kind} answers within a round trip of {round_trip * 1e3:g} ms unless said otherwise")
    levels = {
        "memory": _level(MEMORY_LEVELS, memory),
        "compute": _level(COMPUTE_LEVELS, flops),
        "latency": None if round_trip is None else 5 - bisect.bisect_left(LATENCY_LEVELS, round_trip),
        "scale": _level(SCALE_LEVELS, workload.accelerators),
    }
    return Requirement(
        workload.kind,
        profile.task,
        precision,
        memory,
        flops,
        workload.accelerators,
        round_trip,
        workload.max_price_per_hour,
        profile.weights,
        levels,
        tuple(reasons),
    )


def _bytes_per_parameter(workload: Workload, precision: str) -> float:
    if workload.kind is Kind.TRAINING:
        return _TRAINED_BYTES
    if workload.kind is Kind.FINE_TUNING:
        return _FROZEN_BYTES if workload.low_rank else _TRAINED_BYTES
    return _INFERENCE_BYTES.get(precision, _INFERENCE_BYTES["bf16"])


def _level(bounds: Sequence[float], value: float | None) -> int | None:
    return None if value is None else 1 + bisect.bisect_left(bounds, value)
