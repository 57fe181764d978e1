"""One layout on one machine: time, memory, traffic and verdict together."""

from __future__ import annotations

import math
from dataclasses import dataclass

from services.forecast.cost_model.calibration import corrections, traits_of
from services.forecast.cost_model.efficiency import Efficiency, fitted
from services.forecast.cost_model.layout import TrainingLayout, check
from services.forecast.cost_model.machine import Machine
from services.forecast.cost_model.memory import Memory, Verdict, memory_of, verdict
from services.forecast.cost_model.shapes import ModelShape
from services.forecast.cost_model.stages import is_even, layers_of_stages
from services.forecast.cost_model.step_time import StepTime, step_time
from services.forecast.cost_model.traffic import Traffic, traffic_of

# Standard normal quantile of the ends of the band.
_NORMAL_90 = 1.2816
BAND_PROBABILITY = 0.8


@dataclass(frozen=True, slots=True)
class Band:
    """Seconds of a step between which a first measurement lies with ``BAND_PROBABILITY``."""

    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a layout takes."""

    step: StepTime
    memory: Memory
    verdict: Verdict
    traffic: Traffic
    parameters: int
    # Of the model, without recomputation.
    model_flops_per_step: float
    # Model FLOPs over peak FLOPs of all chips.
    utilisation: float
    tokens_per_s: float
    assumptions: tuple[str, ...]


def estimate(
    shape: ModelShape, layout: TrainingLayout, machine: Machine, efficiency: Efficiency | None = None
) -> Estimate:
    """Estimate a layout; InvalidArgumentError names the fields that make it impossible."""
    check(shape, layout)
    step = step_time(shape, layout, machine, efficiency or fitted())
    memory = memory_of(shape, layout)
    tokens = layout.global_batch * layout.sequence
    flops = shape.flops_per_token(layout.sequence) * tokens
    peak = machine.peak(layout.precision) * layout.accelerators
    return Estimate(
        step=step,
        memory=memory,
        verdict=verdict(memory, machine.memory_bytes),
        traffic=traffic_of(shape, layout, machine),
        parameters=shape.parameters,
        model_flops_per_step=flops,
        utilisation=flops / (step.total_s * peak),
        tokens_per_s=tokens / step.total_s,
        assumptions=assumptions_of(shape, layout, machine),
    )


def band_of(shape: ModelShape, layout: TrainingLayout, machine: Machine, efficiency: Efficiency | None = None) -> Band:
    """The band of an estimate of which no run was measured: the spread that calibration starts from, log-normal."""
    used = efficiency or fitted()
    traits = traits_of(shape, layout, machine, used)
    wide = math.exp(_NORMAL_90 * corrections([], [], [], [traits])[0].spread)
    expected = step_time(shape, layout, machine, used).total_s
    return Band(expected / wide, expected * wide)


def assumptions_of(shape: ModelShape, layout: TrainingLayout, machine: Machine) -> tuple[str, ...]:
    """What an estimate takes for granted, and what it leaves out."""
    notes = [*machine.assumptions, *shape.notes]
    instead = machine.multiplies_in(layout.precision)
    if instead != layout.precision:
        notes.append(f"{machine.chip} has no stated peak for {layout.precision}: that for {instead} is taken")
    stages = layers_of_stages(shape, layout)
    if not layout.stage_layers and not is_even(stages):
        notes.append(f"stages of {', '.join(map(str, stages))} layers assumed; the fullest sets the pace")
    return tuple(notes)
