"""What training a transformer needs, by published formulas: parameters, FLOPs, memory per accelerator, traffic.

Sources
  [N21] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC'21,
        arXiv:2104.04473: parameters (eq. 2), pipeline and tensor traffic (sections 3.2 and 3.3).
  [P22] Chowdhery et al., "PaLM", arXiv:2204.02311, appendix B: 6 N + 12 L h s FLOPs per token (attention included).
  [K22] Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv:2205.05198:
        activations (eqs. 1-6), 18 bytes per parameter of mixed-precision Adam with 32-bit gradients.
  [R20] Rajbhandari et al., "ZeRO", arXiv:1910.02054: what each stage divides by the data-parallel size.
  [T23] Touvron et al., "LLaMA", arXiv:2302.13971: gated feed-forward, no biases, separate output embedding.

Everything is a lower bound of a good implementation but the reserve, which is an allowance and no formula.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from meridian.errors import FieldError, InvalidArgumentError

FORMULA = "Narayanan 2021 + PaLM app. B + Korthikanti 2022 + ZeRO"

# Share of the other parts, for buffers of collectives, workspaces and fragmentation.
RESERVE_RATIO = 0.06


class Recompute(StrEnum):
    """Which activations are computed a second time instead of being kept."""

    NONE = "none"
    # Only the core of attention [K22 section 5]; also what an attention kernel without the s x s matrix keeps.
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Model:
    """The shape of a decoder. Zero means unknown; ``parameters`` given wins over the count from the shape."""

    layers: int = 0
    hidden: int = 0
    heads: int = 0
    sequence: int = 0
    vocabulary: int = 0
    parameters: int = 0
    # Zero: 4 x hidden, or (gated) that of [T23].
    ffn_hidden: int = 0
    gated_ffn: bool = False
    # Zero: as many as heads.
    kv_heads: int = 0

    @property
    def has_shape(self) -> bool:
        """Whether layers and hidden size are known."""
        return self.layers > 0 and self.hidden > 0

    @property
    def ffn(self) -> int:
        """Inner size of the feed-forward block."""
        if self.ffn_hidden:
            return self.ffn_hidden
        # [T23]: two thirds of 4 h, rounded up to a multiple of 256.
        return -(-(8 * self.hidden // 3) // 256) * 256 if self.gated_ffn else 4 * self.hidden

    @property
    def kv_ratio(self) -> float:
        """Size of keys (and of values) relative to queries."""
        return self.kv_heads / self.heads if self.kv_heads and self.heads else 1.0


@dataclass(frozen=True, slots=True)
class Layout:
    """How training is laid out over accelerators."""

    global_batch: int = 0
    micro_batch: int = 1
    steps: int = 0
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    # Stages per accelerator of an interleaved pipeline schedule; 1: plain 1F1B.
    virtual_stages: int = 1
    sequence_parallel: bool = False
    zero_stage: int = 0
    precision: str = "bf16"
    recompute: Recompute = Recompute.NONE


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a job needs. FLOPs are those the hardware carries out, recomputation included; zero where unknown."""

    parameters: float
    parameters_per_accelerator: float
    model_flops_per_token: float
    flops_per_token: float
    flops_per_step: float
    total_flops: float
    memory_bytes_per_accelerator: float
    memory_parts_bytes: dict[str, float]
    # Sent by each accelerator in one step.
    traffic_bytes_per_step: dict[str, float]
    accelerators: int
    formula: str = FORMULA
    notes: tuple[str, ...] = field(default=())


# Bytes per parameter: weights, gradients, optimiser (Adam).
# fp8 multiplies in 8 bit and keeps the state of mixed precision.
_MIXED, _SINGLE = (2, 4, 12), (4, 4, 8)
_STATE_BYTES = {
    "mixed": _MIXED,
    "bf16": _MIXED,
    "fp16": _MIXED,
    "fp8": _MIXED,
    "fp32": _SINGLE,
    "tf32": _SINGLE,
    "fp64": (8, 8, 16),
}


def layer_parameters(model: Model) -> float:
    """Parameters of one layer."""
    h, f, kv = model.hidden, model.ffn, model.kv_ratio
    attention = h * h * (2 + 2 * kv)
    if model.gated_ffn:
        # [T23]: three matrices, two norms with a weight each, no biases.
        return attention + 3 * h * f + 2 * h
    # [N21] eq. 2 writes 12 h^2 + 13 h for f = 4 h: biases 4 h + f + h, norms 4 h.
    return attention + 2 * h * f + (2 + 2 * kv) * h + f + h + 4 * h


def embedding_parameters(model: Model) -> tuple[float, float]:
    """Parameters of the input and of the output embedding (zero where it is tied to the input)."""
    if model.vocabulary == 0:
        return 0.0, 0.0
    if model.gated_ffn:
        return float(model.vocabulary * model.hidden), float(model.vocabulary * model.hidden + model.hidden)
    # Learned positions; output tied [N21].
    return float((model.vocabulary + model.sequence) * model.hidden), 0.0


def count_parameters(model: Model) -> float:
    """All parameters: as given, else from the shape."""
    if model.parameters:
        return float(model.parameters)
    return model.layers * layer_parameters(model) + sum(embedding_parameters(model))


def check(model: Model, layout: Layout) -> None:
    """Raise InvalidArgumentError naming every field that makes the request impossible."""
    problems: list[FieldError] = []

    def wrong(name: str, detail: str) -> None:
        problems.append(FieldError(f"/{name}", detail))

    if not model.parameters and not model.has_shape:
        wrong("layers", "layers and hidden, or parameters, must be given")
    if layout.precision.lower() not in _STATE_BYTES:
        wrong("precision", f"{layout.precision!r} is none of {', '.join(_STATE_BYTES)}")
    if model.hidden and model.heads and model.hidden % model.heads:
        wrong("heads", f"hidden size {model.hidden} is not a multiple of {model.heads} heads")
    if model.heads and model.kv_heads and model.heads % model.kv_heads:
        wrong("kv_heads", f"{model.heads} heads are not a multiple of {model.kv_heads} key-value heads")
    tensor, pipeline = layout.tensor_parallel, layout.pipeline_parallel
    if model.heads and model.heads % tensor:
        wrong("tensor_parallel", f"{model.heads} heads cannot be divided by {tensor}")
    stages = pipeline * layout.virtual_stages
    if model.layers and model.layers % stages:
        wrong("pipeline_parallel", f"{model.layers} layers cannot be divided by {stages} stages")
    if layout.virtual_stages > 1 and pipeline == 1:
        wrong("virtual_stages", "an interleaved schedule needs more than one pipeline stage")
    per_pass = layout.micro_batch * layout.data_parallel
    if layout.global_batch and layout.global_batch % per_pass:
        wrong(
            "global_batch",
            f"{layout.global_batch} is not a multiple of micro_batch x data_parallel = {per_pass}",
        )
    if not 0 <= layout.zero_stage <= 3:
        wrong("zero_stage", "must be 0, 1, 2 or 3")
    if problems:
        raise InvalidArgumentError(
            "; ".join(f"{item.pointer[1:]}: {item.detail}" for item in problems), errors=tuple(problems)
        )


def estimate(model: Model, layout: Layout) -> Requirement:
    """The requirement of one job; InvalidArgumentError when the layout is impossible."""
    check(model, layout)
    notes: list[str] = []
    parameters = count_parameters(model)
    local = _local_parameters(model, layout, parameters)
    if not model.has_shape:
        notes.append("layers and hidden are unknown: attention FLOPs and activations are left out")
    model_flops, flops = _flops_per_token(model, layout, parameters)
    tokens = float(layout.global_batch * model.sequence)
    if tokens == 0:
        notes.append("global_batch or sequence is unknown: FLOPs per step are left out")
    if layout.steps == 0:
        notes.append("steps is unknown: total FLOPs are left out")
    parts = {**_state_bytes(layout, local), **_activation_bytes(model, layout)}
    parts["reserve"] = RESERVE_RATIO * sum(parts.values())
    return Requirement(
        parameters=parameters,
        parameters_per_accelerator=local,
        model_flops_per_token=model_flops,
        flops_per_token=flops,
        flops_per_step=flops * tokens,
        total_flops=flops * tokens * layout.steps,
        memory_bytes_per_accelerator=sum(parts.values()),
        memory_parts_bytes=parts,
        traffic_bytes_per_step=_traffic(model, layout, local),
        accelerators=layout.tensor_parallel * layout.pipeline_parallel * layout.data_parallel,
        notes=tuple(notes),
    )


def _local_parameters(model: Model, layout: Layout, parameters: float) -> float:
    """Parameters on an accelerator of the first stage, the fullest one: it holds the input embedding."""
    shards = layout.tensor_parallel * layout.pipeline_parallel
    if not model.has_shape:
        return parameters / shards
    first, last = embedding_parameters(model)
    embeddings = first + (last if layout.pipeline_parallel == 1 else 0.0)
    # A given total is distributed like a counted one.
    in_layers = parameters - first - last
    return in_layers / shards + embeddings / layout.tensor_parallel


def _flops_per_token(model: Model, layout: Layout, parameters: float) -> tuple[float, float]:
    """FLOPs per token of the model [P22], and with recomputation [K22]."""
    attention = 12.0 * model.layers * model.hidden * model.sequence
    plain = 6 * parameters + attention
    match layout.recompute:
        case Recompute.NONE:
            return plain, plain
        case Recompute.SELECTIVE:
            # The forward third of attention's products once more.
            return plain, plain + attention / 3
        case Recompute.FULL:
            # One more forward pass: 4/3 of the whole.
            return plain, plain * 4 / 3


def _state_bytes(layout: Layout, local: float) -> dict[str, float]:
    weights, gradients, optimiser = _STATE_BYTES[layout.precision.lower()]
    shards = layout.data_parallel
    return {
        "parameters": local * weights / (shards if layout.zero_stage >= 3 else 1),
        "gradients": local * gradients / (shards if layout.zero_stage >= 2 else 1),
        "optimizer": local * optimiser / (shards if layout.zero_stage >= 1 else 1),
    }


def _activation_bytes(model: Model, layout: Layout) -> dict[str, float]:
    """Activations on the first stage [K22]; in 1F1B it keeps one micro batch per stage, so the stages cancel out."""
    if not model.has_shape or model.sequence == 0:
        return {"activations": 0.0}
    s, b, h, t = model.sequence, layout.micro_batch, model.hidden, layout.tensor_parallel
    # [K22] counts values of 16 bit.
    scale = _STATE_BYTES[layout.precision.lower()][0] / 2
    shared = 1 if not layout.sequence_parallel else t
    # [K22] section 4: of 34 s b h, 10 are on every accelerator of the tensor group (norms 4, dropout masks 2, inputs of
    # attention and feed-forward 4), 24 are divided (queries and output projection 4, keys and values 4, feed-forward 16).
    feed_forward = (6 if model.gated_ffn else 4) * model.ffn / h
    divided = 4 + 4 * model.kv_ratio + feed_forward
    squares = 5 * model.heads * s / h
    match layout.recompute:
        case Recompute.NONE:
            per_layer = s * b * h * (10 / shared + (divided + squares) / t)
        case Recompute.SELECTIVE:
            per_layer = s * b * h * (10 / shared + divided / t)
        case Recompute.FULL:
            per_layer = s * b * h * 2 / shared
    stages, interleaved = layout.pipeline_parallel, layout.virtual_stages
    in_flight = 1 + (stages - 1) / (stages * interleaved) if interleaved > 1 else 1.0
    parts = {"activations": scale * per_layer * model.layers * in_flight}
    if layout.recompute is Recompute.FULL:
        # The layer that is being recomputed is whole.
        whole = s * b * h * (10 / shared + (divided + squares) / t)
        parts["activations_recomputed_layer"] = scale * whole
    if stages == 1 and model.vocabulary:
        # [K22] section 4.3: last norm, input of the output layer, logits in 32 bit.
        parts["activations_output"] = 4.0 * s * b * (h / shared + model.vocabulary / t)
    return parts


def _traffic(model: Model, layout: Layout, local: float) -> dict[str, float]:
    """Bytes each accelerator sends per step: ring all-reduce sends 2 (n - 1) / n of the data."""
    weights, gradients, _ = _STATE_BYTES[layout.precision.lower()]
    replicas, tensor = layout.data_parallel, layout.tensor_parallel
    ring = 2 * (replicas - 1) / replicas
    # [R20] section 7: stage 3 gathers the parameters once more, half an all-reduce each in forward and backward.
    traffic = {"data_parallel": ring * local * gradients}
    if layout.zero_stage == 3:
        traffic["data_parallel"] = ring * local * (gradients / 2 + weights)
    if layout.global_batch and model.has_shape and model.sequence:
        passes = layout.global_batch / (replicas * layout.micro_batch)
        block = weights * model.sequence * layout.micro_batch * model.hidden
        layers = model.layers / layout.pipeline_parallel
        # [N21] section 3.2: two all-reduces forward and two backward in each layer (and two where all is recomputed).
        reduces = 6 if layout.recompute is Recompute.FULL else 4
        traffic["tensor_parallel"] = passes * layers * reduces * block * 2 * (tensor - 1) / tensor
        # [N21] section 3.3: activations forward, gradients backward, divided over the tensor group by scatter/gather.
        hops = 2 * layout.virtual_stages if layout.pipeline_parallel > 1 else 0
        traffic["pipeline_parallel"] = passes * hops * block / tensor
    return traffic
