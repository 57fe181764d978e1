"""Bytes that one chip sends in a step, by kind of parallelism and by the link they take.

A ring all-reduce of n members sends 2 (n - 1) / n of the data (Thakur et al. 2005); volumes per layer: Shoeybi 2019,
Narayanan 2021 section 3; ZeRO: Rajbhandari 2020 section 7.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.forecast.cost_model.context import sent_heads
from services.forecast.cost_model.efficiency import PRIOR
from services.forecast.cost_model.layout import Context, TrainingLayout
from services.forecast.cost_model.links import Links, groups, sent_away
from services.forecast.cost_model.machine import Machine
from services.forecast.cost_model.memory import local_parameters
from services.forecast.cost_model.shapes import ModelShape
from services.forecast.cost_model.stages import layers_of_stages


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes per chip and step."""

    by_kind: dict[str, float]
    # "node": links within a node, "fabric": between nodes.
    by_link: dict[str, float]


def volumes(shape: ModelShape, layout: TrainingLayout) -> dict[str, float]:
    """Bytes per chip of the fullest stage and step of a possible layout, by kind of parallelism."""
    m = layout.micro_batches
    layers = max(layers_of_stages(shape, layout))
    tokens = layout.micro_batch * layout.sequence / layout.cp
    block = layout.state.weights * tokens * shape.hidden
    passes = 2 + (layout.recompute_share if layout.recompute.value == "full" else 0.0)
    routed_share = shape.expert_layers / shape.layers
    dense, expert = local_parameters(shape, layout)
    # Experts that are spread over chips are summed over fewer.
    alike = layout.replicas * layout.tp / layout.ep if layout.ep > 1 else layout.replicas
    local = dense * _away(layout.replicas) + expert * _away(alike)
    gathered, scattered = layout.state.weights * local, layout.state.gradients * local
    sent = layout.state.weights * tokens / layout.tp * shape.top_k * shape.hidden
    # Tokens for experts that are spread over chips are divided over the tensor group already.
    blocks = 2 - routed_share if layout.ep > 1 else 2.0
    return {
        "tp": m * layers * passes * 2 * blocks * block * _away(layout.tp),
        "pp": m * 2 * layout.vpp * block / layout.tp if layout.pp > 1 else 0.0,
        "dp": _sharing(layout, gathered, scattered),
        "cp": m * layers * _context(shape, layout) * _away(layout.cp),
        "ep": m * layers * routed_share * 2 * passes * sent * _exchanged(shape, layout),
    }


def _context(shape: ModelShape, layout: TrainingLayout) -> float:
    """Bytes of one layer and micro batch that a chip sends and keeps of what a sequence's chips share."""
    heads = sent_heads(shape, layout)
    value = layout.state.weights * layout.micro_batch * layout.sequence * shape.head_size / layout.tp
    if layout.context is Context.EXCHANGE:
        return 2 * value / layout.cp * 2 * (shape.heads + heads)
    return 3 * 2 * value * heads


def _sharing(layout: TrainingLayout, gathered: float, scattered: float) -> float:
    match layout.zero:
        case 3:
            return layout.micro_batches * (2 * gathered + scattered)
        case 2:
            return gathered + layout.micro_batches * scattered
        case 0:
            return 2 * scattered
        case _:
            return gathered + scattered


def traffic_of(shape: ModelShape, layout: TrainingLayout, machine: Machine) -> Traffic:
    """Traffic of a possible layout."""
    by_kind = volumes(shape, layout)
    group = groups(layout)
    links = Links(machine, PRIOR)
    by_link = {"node": 0.0, "fabric": 0.0}
    for kind, size in by_kind.items():
        by_link["fabric" if links.crosses(group[kind]) else "node"] += size
    return Traffic(by_kind, by_link)


def _exchanged(shape: ModelShape, layout: TrainingLayout) -> float:
    """Share of the copies of tokens for experts that leave the chip."""
    if layout.ep == 1:
        return 0.0
    return sent_away(layout.ep, shape.top_k, once=layout.dispatch_once) / shape.top_k


def _away(members: float) -> float:
    return (members - 1) / members
