"""Memory of one chip, in parts, and whether it fits.

State: 2 bytes of weights, 4 of gradients, 12 of optimiser per parameter (Rajbhandari 2020, arXiv:1910.02054), divided as
the stage of ZeRO says. Activations: Korthikanti 2022 (arXiv:2205.05198) eqs. 1-6, with the actual width of the
feed-forward, of keys and values, and of chosen experts. Buffers: collectives, gathered layers, workspaces of kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from services.forecast.cost_model.layout import TrainingLayout
from services.forecast.cost_model.shapes import ModelShape
from services.forecast.cost_model.stages import layers_of_stages

# Context of the device (A100: 1,573 MiB, BigScience chronicles), libraries and their workspaces.
CONTEXT_BYTES = 1.6 * 2**30
# Buffers of collectives, where there are any.
_COLLECTIVE_BYTES = 0.75 * 2**30
# What an allocator holds beyond what is in use, as a share of state and of activations: blocks that it cannot hand out
# again, and copies that live shortly (GMLake, ASPLOS 2024, section 2.3: a tenth to a third of what is reserved).
STATE_RESERVE = 0.10
FRAGMENTATION = 0.15
# Standard deviation of ln(actual / estimated), for the confidence of the verdict.
LOG_ERROR = 0.10


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the fullest chip."""

    parameters: float
    gradients: float
    optimiser: float
    activations: float
    buffers: float
    # Of ``buffers``: what an allocator gives back under pressure.
    reserve: float = 0.0

    @property
    def total(self) -> float:
        """All parts."""
        return self.parameters + self.gradients + self.optimiser + self.activations + self.buffers

    @property
    def needed(self) -> float:
        """All parts without the reserve: with less it does not run."""
        return self.total - self.reserve

    def parts(self) -> dict[str, float]:
        """Parts by name."""
        return {
            "parameters": self.parameters,
            "gradients": self.gradients,
            "optimiser": self.optimiser,
            "activations": self.activations,
            "buffers": self.buffers,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the layout fits; ``confidence`` is the probability of the verdict, 0.5 to 1.

    What an allocator holds in reserve it gives back when there is no more, so a layout fits without it; ``margin_bytes`` is
    what is left beyond.
    """

    fits: bool
    confidence: float
    margin_bytes: float
    largest_part: str


def verdict(memory: Memory, offered_bytes: float) -> Verdict:
    """The verdict for chips of ``offered_bytes``; errors of estimates are taken as log-normal."""
    margin = offered_bytes - memory.needed
    parts = memory.parts()
    distance = abs(math.log(offered_bytes / memory.needed)) / LOG_ERROR
    confidence = 0.5 * (1 + math.erf(distance / math.sqrt(2)))
    return Verdict(margin >= 0, confidence, margin, max(parts, key=lambda name: parts[name]))


def local_parameters(shape: ModelShape, layout: TrainingLayout, stage: int | None = None) -> tuple[float, float]:
    """Parameters on a chip of a stage before ZeRO: those all ranks have alike, and those of experts.

    ``stage`` counts from 0; None: the one that has the most.
    """
    if stage is None:
        found = (local_parameters(shape, layout, each) for each in _fullest(layers_of_stages(shape, layout)))
        return max(found, key=sum)
    layers = layers_of_stages(shape, layout)[stage]
    expert_share = shape.expert_layers / shape.layers
    shared = shape.attention_matrix_weights + (1 - expert_share) * shape.dense_ffn_weights
    shared += expert_share * shape.shared_weights
    tables = (stage == 0) + (stage == layout.pp - 1 and not (shape.tied and layout.pp == 1))
    embeddings = tables * shape.embedding_weights
    dense = (layers * shared + embeddings) / layout.tp + layers * shape.small_weights
    expert = layers * expert_share * shape.expert_weights / (layout.ep if layout.ep > 1 else layout.tp)
    return dense, expert


def _fullest(stages: tuple[int, ...]) -> list[int]:
    """The stages of which one has the most of everything: the first, the last, and of those between the first with most layers."""
    between = max(range(len(stages)), key=lambda stage: (0 < stage < len(stages) - 1, stages[stage], -stage))
    return sorted({0, between, len(stages) - 1})


def memory_of(shape: ModelShape, layout: TrainingLayout) -> Memory:
    """Memory of the fullest chip of a possible layout."""
    stages = layers_of_stages(shape, layout)
    return max(
        (_of_stage(shape, layout, each, stages[each]) for each in _fullest(stages)), key=lambda found: found.total
    )


def _of_stage(shape: ModelShape, layout: TrainingLayout, stage: int, layers: int) -> Memory:
    dense, expert = local_parameters(shape, layout, stage)
    state = layout.state
    activations = _activations(shape, layout, stage, layers)
    gathered = 0.0
    if layout.zero == 3 and layers:
        # Two layers are whole at a time: the one that computes and the one that is fetched.
        per_layer = (dense + expert) / layers
        gathered = 2 * per_layer * (state.weights + state.gradients / 2)
    held = state_memory(layout, dense, expert)
    reserve = STATE_RESERVE * (held.parameters + held.gradients + held.optimiser) + FRAGMENTATION * activations
    return replace(
        held,
        activations=activations,
        buffers=common_buffers(shape, layout) + gathered + reserve,
        reserve=reserve,
    )


def common_buffers(shape: ModelShape, layout: TrainingLayout) -> float:
    """Bytes of buffers that every chip has, whatever its stage: context, collectives, gathered sequences."""
    shared = _COLLECTIVE_BYTES if layout.accelerators > 1 else 0.0
    if layout.sequence_parallel:
        # The whole sequence, gathered for a product, and its gradient (Korthikanti 2022, section 4.2.2).
        tokens = layout.micro_batch * layout.sequence / layout.cp
        shared += 2 * layout.state.weights * tokens * shape.hidden
    return CONTEXT_BYTES + shared


def state_memory(layout: TrainingLayout, dense: float, expert: float = 0.0) -> Memory:
    """Weights, gradients and optimiser of so many parameters on a chip (those all ranks have alike, those of experts)."""
    shards = float(layout.replicas)
    expert_shards = max(1.0, layout.replicas * layout.tp / layout.ep) if layout.ep > 1 else shards
    state = layout.state

    def held(bytes_each: int, from_stage: int) -> float:
        if layout.zero >= from_stage:
            return bytes_each * (dense / shards + expert / expert_shards)
        return bytes_each * (dense + expert)

    return Memory(
        parameters=held(state.weights, 3),
        gradients=held(state.gradients + state.beside, 2),
        optimiser=held(state.optimiser, 1),
        activations=0.0,
        buffers=CONTEXT_BYTES,
    )


def layer_activations(shape: ModelShape, layout: TrainingLayout) -> tuple[float, float]:
    """Bytes of one layer and micro batch: kept, and when it is whole (equal unless recomputed)."""
    tokens = layout.micro_batch * layout.sequence / layout.cp
    h, tp = shape.hidden, layout.tp
    shared = 1 if not layout.sequence_parallel else tp
    expert_share = shape.expert_layers / shape.layers
    # Korthikanti 2022 section 4: of 34 s b h 10 are on every tensor rank, 8 in queries, keys, values and output, 16 in the
    # feed-forward of width 4 h (input and output of the activation: 4 bytes per inner value; gated: 6). Where nothing is
    # fused, autograd keeps of each norm its input in 32 bit and what it is before and after it is weighed, and of a gate what
    # leaves its activation (`RMSNorm` and `FeedForward` of the reference code of Llama 2).
    unfused = layout.eager and shape.gated
    per_inner = (6 if shape.gated else 4) + (2 if unfused else 0)
    inner = (1 - expert_share) * shape.ffn + expert_share * (shape.top_k * shape.expert_ffn + shape.shared_ffn)
    routed = expert_share * shape.top_k * h * 4
    dropout = 0 if shape.gated else 2
    common = (8 + dropout + (12 if unfused else 0)) * h / shared
    projections = shape.head_size * (4 * shape.heads + 4 * shape.kv_heads) / tp
    divided = projections + (per_inner * inner + routed) / tp
    scores = 0.0 if layout.fused_attention else 5 * shape.heads * layout.sequence / tp
    scale = tokens * layout.state.weights / 2
    whole = scale * (common + divided + scores)
    match layout.recompute.value:
        case "full":
            kept = scale * 2 * h / shared
        case "selective":
            kept = scale * (common + divided)
        case "products":
            # The layer's input and output of the feed-forward; queries, values and what attention gives; one inner product.
            heads = shape.head_size * (4 * shape.heads + 2 * shape.kv_heads)
            kept = scale * (4 * h / shared + (heads + 2 * inner + routed / 2) / tp)
        case _:
            kept = whole
    return layout.recompute_share * kept + (1 - layout.recompute_share) * whole, whole


def _activations(shape: ModelShape, layout: TrainingLayout, stage: int, layers: int) -> float:
    """Bytes of all that a stage keeps; on the last one with the logits."""
    kept, whole = layer_activations(shape, layout)
    again = whole - kept if layout.recompute.value != "none" else 0.0
    logits = logits_bytes(shape, layout) if stage == layout.pp - 1 else 0.0
    return kept * layers * in_flight(layout, stage) + again + logits


def in_flight(layout: TrainingLayout, stage: int) -> float:
    """Micro batches that a stage keeps at a time.

    1F1B: as many as there are stages from it to the last. In v chunks, interleaved: 2 (stages after it) + (v - 1) p + 1 chunks
    (Megatron-Core, `get_forward_backward_func`), which on the first is (p - 1) / v more than p (Korthikanti 2022, section
    4.2.3).
    """
    after = layout.pp - 1 - stage
    most = after + 1.0 if layout.vpp == 1 else (2 * after + (layout.vpp - 1) * layout.pp + 1) / layout.vpp
    return min(most, layout.micro_batches)


def logits_bytes(shape: ModelShape, layout: TrainingLayout) -> float:
    """Bytes of a micro batch's logits on a chip of the last stage."""
    tokens = layout.micro_batch * layout.sequence / layout.cp
    # In 32 bit, their gradient, and in 16 bit (eq. 6 keeps 4 bytes; frameworks hold the copies).
    return (4.0 if layout.fused_loss else 10.0) * tokens * shape.vocabulary / layout.tp
