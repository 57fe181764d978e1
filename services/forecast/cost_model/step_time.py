"""The time of one training step, split into what causes it.

Pipeline: of m micro batches of time t over p stages in v chunks, a step takes (m + (p - 1) / v) t (Narayanan 2021,
section 2.2); the fullest stage sets the pace. Transfers count as far as computation does not hide them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from services.forecast.cost_model.context import exposed
from services.forecast.cost_model.efficiency import Efficiency
from services.forecast.cost_model.kernels import Kernels, Pass
from services.forecast.cost_model.layout import TrainingLayout
from services.forecast.cost_model.links import Links, groups
from services.forecast.cost_model.machine import Machine
from services.forecast.cost_model.memory import local_parameters
from services.forecast.cost_model.shapes import ModelShape
from services.forecast.cost_model.stages import layers_of_stages


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step on the busiest chip; the parts add up to ``total_s``."""

    compute_s: float
    recompute_s: float
    exposed_s: dict[str, float]
    bubble_s: float
    optimiser_s: float
    data_s: float
    # Waiting for the slowest node.
    straggling_s: float

    @property
    def total_s(self) -> float:
        """The step."""
        return (
            self.compute_s
            + self.recompute_s
            + sum(self.exposed_s.values())
            + self.bubble_s
            + self.optimiser_s
            + self.data_s
            + self.straggling_s
        )


def step_time(shape: ModelShape, layout: TrainingLayout, machine: Machine, efficiency: Efficiency) -> StepTime:
    """The step time of a possible layout."""
    kernels, links = Kernels(machine, efficiency, layout), Links(machine, efficiency)
    dense = kernels.layer(shape, experts=False) if shape.expert_layers < shape.layers else Pass(0.0, 0.0)
    routed = kernels.layer(shape, experts=True) if shape.expert_layers else Pass(0.0, 0.0)
    routed_share = shape.expert_layers / shape.layers
    layer = _mix(dense, routed, routed_share)
    output = kernels.output(shape)
    m = layout.micro_batches
    stages = layers_of_stages(shape, layout)
    comm = per_micro_batch(shape, layout, links, efficiency, layer, routed_share)
    again = _mix_recomputed(dense, routed, routed_share, layout)
    each = layer.forward + layer.backward + again + comm["tp"] + comm["cp"] + comm["ep"]
    # The fullest stage sets the pace; the last has the output layer, so fewer layers there may be as much.
    times = [layers * each for layers in stages]
    times[-1] += output.forward + output.backward
    slowest = max(range(len(stages)), key=lambda stage: times[stage])
    layers = stages[slowest]
    at_the_end = output.forward + output.backward if slowest == layout.pp - 1 else 0.0
    # Once through all the other stages.
    through = sum(times) - times[slowest] + (layout.pp - 1) * comm["pp"] / layout.vpp
    waited = {
        "tp": m * layers * comm["tp"],
        "cp": m * layers * comm["cp"],
        "ep": m * layers * comm["ep"],
        "pp": m * comm["pp"],
        "dp": data_parallel(shape, layout, links, efficiency, layers * each, m),
    }
    dense_local, expert_local = local_parameters(shape, layout)
    shards = layout.replicas if layout.zero >= 1 else 1
    expert_shards = max(1, layout.replicas * layout.tp // layout.ep) if layout.zero >= 1 else 1
    found = StepTime(
        compute_s=m * (layers * (layer.forward + layer.backward) + at_the_end),
        recompute_s=m * layers * again,
        exposed_s=waited,
        bubble_s=through / layout.vpp,
        optimiser_s=kernels.optimiser(dense_local / shards + expert_local / expert_shards),
        data_s=efficiency.step_s,
        straggling_s=0.0,
    )
    nodes = layout.accelerators / machine.node_size
    return replace(found, straggling_s=found.total_s * efficiency.straggling * math.log2(max(1.0, nodes)))


def _mix(dense: Pass, routed: Pass, share: float) -> Pass:
    return Pass(
        (1 - share) * dense.forward + share * routed.forward,
        (1 - share) * dense.backward + share * routed.backward,
        (1 - share) * dense.attention + share * routed.attention,
        (1 - share) * dense.summing + share * routed.summing,
        (1 - share) * dense.unneeded + share * routed.unneeded,
        (1 - share) * dense.between + share * routed.between,
    )


def _mix_recomputed(dense: Pass, routed: Pass, share: float, layout: TrainingLayout) -> float:
    return (1 - share) * dense.recomputed(layout) + share * routed.recomputed(layout)


def per_micro_batch(
    shape: ModelShape,
    layout: TrainingLayout,
    links: Links,
    efficiency: Efficiency,
    layer: Pass,
    routed_share: float,
) -> dict[str, float]:
    """Exposed seconds of one micro batch by kind: of one layer, but of the stage for ``pp``."""
    group = groups(layout)
    tokens = layout.micro_batch * layout.sequence / layout.cp
    block = layout.state.weights * tokens * shape.hidden
    passes = 2 + (layout.recompute_share if layout.recompute.value == "full" else 0.0)
    tensor = _tensor_parallel(layout, links, efficiency, layer, passes - 1, routed_share, block)
    expert = 0.0
    if layout.ep > 1:
        sent = layout.state.weights * tokens / layout.tp * shape.top_k * shape.hidden
        each = links.exchange(sent, group["ep"], shape.top_k, once=layout.dispatch_once)
        expert = routed_share * 2 * passes * each
        if layout.expert_overlap:
            expert -= efficiency.overlap_gradients * min(expert, layer.forward + layer.backward)
    pipeline = 2 * layout.vpp * links.send(block / layout.tp, group["pp"])
    if layout.vpp > 1:
        # Interleaving sends ahead while another chunk computes.
        pipeline *= 1 - efficiency.overlap_gradients
    return {"tp": tensor, "cp": exposed(shape, layout, links, group["cp"], layer), "ep": expert, "pp": pipeline}


def _tensor_parallel(
    layout: TrainingLayout,
    links: Links,
    efficiency: Efficiency,
    layer: Pass,
    forward_passes: float,
    routed_share: float,
    block: float,
) -> float:
    """Exposed seconds of one layer: two all-reduces (or a gather and a scatter each) per pass (Shoeybi 2019).

    Backward, those of the input's gradient go on while gradients of weights are computed; with sequence parallelism the
    gathers of the output's gradient do not (Korthikanti 2022, section 4.2.2). Experts have one per pass.
    """
    if layout.tp == 1:
        return 0.0
    each = links.gather(block, groups(layout)["tp"])
    blocks = 2 - routed_share if layout.ep > 1 else 2.0
    forward = forward_passes * 2 * blocks * each
    backward = max(0.0, 2 * blocks * each - layer.summing)
    if not layout.sequence_parallel:
        return forward + backward
    # Gathers and scatters can be cut into chunks that move while others multiply; an all-reduce cannot.
    return (forward + blocks * each + backward) * (1 - efficiency.overlap_tensor)


def data_parallel(
    shape: ModelShape, layout: TrainingLayout, links: Links, efficiency: Efficiency, stage: float, micro_batches: int
) -> float:
    """Exposed seconds of summing gradients and, with ZeRO, of gathering parameters."""
    group = groups(layout)["dp"]
    if group.size == 1:
        return 0.0
    dense, expert = local_parameters(shape, layout)
    # Experts are summed over fewer ranks; they lie apart as far.
    local = dense + (expert if layout.replicas * layout.tp > layout.ep else 0.0)
    gather = links.gather(local * layout.state.weights, group)
    scatter = links.gather(local * layout.state.gradients, group)
    if layout.zero == 3:
        # Gathered forward and backward, and scattered, in every micro batch: who keeps a part of the gradients has no place
        # for the sum of the others (deepspeedai/DeepSpeed issue 2252; pytorch/pytorch pull request 126166).
        moved = micro_batches * (2 * gather + scatter)
        return moved - efficiency.overlap_shards * min(moved, micro_batches * stage)
    if layout.zero == 0:
        # One all-reduce after the last backward pass.
        return 2 * scatter
    # Gradients scattered during the last backward pass (of parts, during each), parameters gathered during the next forward pass.
    rounds = micro_batches if layout.zero == 2 else 1
    moved = rounds * scatter + gather
    return moved - efficiency.overlap_gradients * min(moved, rounds * stage)
