"""How training is divided: parallelism, micro batches, what is recomputed, in which precision; and what is impossible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from meridian.errors import FieldError, InvalidArgumentError
from services.forecast.cost_model.shapes import ModelShape


class Recompute(StrEnum):
    """Which activations are computed a second time instead of being kept."""

    NONE = "none"
    SELECTIVE = "selective"
    """Only the core of attention (Korthikanti 2022, section 5)."""
    PRODUCTS = "products"
    """All but the core of attention and every second matrix product (keys, attention's output, the second of a gated
    feed-forward are computed again): torchtitan's selective checkpoints by operator (`_apply_ac_to_transformer_block`)."""
    FULL = "full"


class Gradients(StrEnum):
    """In which precision gradients are kept and summed where weights are in 16 bit.

    Megatron-Core: `grad_reduce_in_fp32` (its default is 32 bit; NeMo's performance recipes say 16) and
    `use_precision_aware_optimizer`; PaddlePaddle: `amp_master_grad`.
    """

    FP32 = "fp32"
    HALF_AND_FP32 = "bf16+fp32"
    """16 bit, and each shard in 32 bit for the optimiser's step."""
    HALF = "bf16"
    """16 bit, which the optimiser reads as they are."""
    BOTH = "both"
    """32 bit, and beside them those of the backward pass in 16 (`BF16_Optimizer` of DeepSpeed)."""


class Context(StrEnum):
    """How chips that share a sequence come to the keys and values of the others (``context``)."""

    RING = "ring"
    GATHER = "gather"
    EXCHANGE = "exchange"


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes per parameter: weights as they multiply, gradients as they are summed, optimiser (Adam; master weights included)."""

    weights: int
    gradients: int
    optimiser: int
    # Of gradients that are kept beside those.
    beside: int = 0


_MIXED = StateBytes(2, 4, 12)
_STATE = {
    "bf16": _MIXED,
    # Gradients in 16 bit (Rajbhandari 2020, section 3.1), and in 32 bit beside the optimiser's state for its step.
    "fp16": StateBytes(2, 2, 16),
    # 8-bit and 4-bit formats multiply; the state is that of mixed precision.
    "fp8": _MIXED,
    "fp4": _MIXED,
    "tf32": StateBytes(4, 4, 8),
    "fp32": StateBytes(4, 4, 8),
    "fp64": StateBytes(8, 8, 16),
}
# Where gradients are stated: weights in 16 bit, and the optimiser's 12 bytes.
_STATE_WITH = {
    Gradients.FP32: _MIXED,
    Gradients.HALF_AND_FP32: StateBytes(2, 2, 16),
    Gradients.HALF: StateBytes(2, 2, 12),
    Gradients.BOTH: StateBytes(2, 4, 12, 2),
}
PRECISIONS = tuple(_STATE)
_PRECISION_NAMES = {
    "amp_bf16": "bf16",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "mixed": "bf16",
    "amp": "bf16",
    "amp_fp8": "fp8",
    "mxfp8": "fp8",
    "fp8-mx": "fp8",
    "fp8-cs": "fp8",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
    "float32": "fp32",
}
_GRADIENT_NAMES = {
    "float32": Gradients.FP32,
    "fp16+fp32": Gradients.HALF_AND_FP32,
    "fp16": Gradients.HALF,
    "bfloat16": Gradients.HALF,
    **{each.value: each for each in Gradients},
}
_CONTEXT_NAMES = {
    "p2p": Context.RING,
    **dict.fromkeys(("allgather", "all-gather", "all_gather"), Context.GATHER),
    **dict.fromkeys(("ulysses", "all-to-all", "alltoall", "a2a"), Context.EXCHANGE),
    **{each.value: each for each in Context},
}
_RECOMPUTE_NAMES = {
    "": Recompute.NONE,
    "none": Recompute.NONE,
    "no": Recompute.NONE,
    "false": Recompute.NONE,
    "0": Recompute.NONE,
    "selective": Recompute.SELECTIVE,
    "selective+sp": Recompute.SELECTIVE,
    "products": Recompute.PRODUCTS,
    "selective_op": Recompute.PRODUCTS,
    "full": Recompute.FULL,
    "true": Recompute.FULL,
    "yes": Recompute.FULL,
    "1": Recompute.FULL,
}


def _no_such(field: str, detail: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{field}: {detail}", errors=(FieldError(f"/{field}", detail),))


def precision_named(name: str) -> str:
    """The precision that ``name`` means; InvalidArgumentError when none."""
    key = name.strip().lower()
    key = _PRECISION_NAMES.get(key, key)
    if key not in _STATE:
        raise _no_such("precision", f"{name!r} is none of {', '.join(PRECISIONS)}")
    return key


def recompute_named(name: str) -> Recompute:
    """What ``name`` recomputes; InvalidArgumentError when it is no such word."""
    found = _RECOMPUTE_NAMES.get(name.strip().lower())
    if found is None:
        raise _no_such("recompute", f"{name!r} is none of {', '.join(Recompute)}")
    return found


def gradients_named(name: str) -> Gradients:
    """How ``name`` says that gradients are kept; InvalidArgumentError when it is no such word."""
    found = _GRADIENT_NAMES.get(name.strip().lower())
    if found is None:
        raise _no_such("gradients", f"{name!r} is none of {', '.join(Gradients)}")
    return found


def context_named(name: str) -> Context:
    """The kind of context parallelism that ``name`` means; InvalidArgumentError when it is no such word."""
    found = _CONTEXT_NAMES.get(name.strip().lower())
    if found is None:
        raise _no_such("context", f"{name!r} is none of {', '.join(Context)}")
    return found


@dataclass(frozen=True, slots=True)
class TrainingLayout:
    """One way to train. Sizes are group sizes; ``ep`` divides experts within the data- and context-parallel ranks."""

    sequence: int
    global_batch: int
    micro_batch: int = 1
    tp: int = 1
    pp: int = 1
    # Model chunks per pipeline stage; 1: plain 1F1B.
    vpp: int = 1
    # Layers of each pipeline stage, where they are stated (`stages.layers_of_stages` derives them).
    stage_layers: tuple[int, ...] = ()
    dp: int = 1
    cp: int = 1
    context: Context = Context.RING
    # Keys and values are repeated for all heads before they are sent (torchtitan: `repeat_kv` before attention).
    repeated_keys: bool = False
    ep: int = 1
    sequence_parallel: bool = False
    # 3 is fully sharded data parallelism.
    zero: int = 0
    precision: str = "bf16"
    # None: in 32 bit; with fp16 in 16, and each shard in 32 bit for the optimiser's step.
    gradients: Gradients | None = None
    recompute: Recompute = Recompute.NONE
    # Of the layers; the others keep everything.
    recompute_share: float = 1.0
    # An attention kernel that never writes the matrix of scores.
    fused_attention: bool = True
    # Of FlashAttention, where attention is fused; 0: the newest for the chip.
    attention_generation: int = 0
    # Norms, rotary embedding and activation run as the separate small kernels of a framework that fuses none of them.
    eager: bool = False
    # The loss is one kernel, or compiled: the logits and their gradient are held in 16 bit and nothing between.
    fused_loss: bool = False
    # The whole step is one captured graph (CUDA graphs of full iterations): the host starts no kernels.
    captured: bool = False
    # The exchange with experts of one micro batch moves while another computes (DualPipe of DeepSeek-V3, section 3.2.1;
    # `overlap_moe_expert_parallel_comm` of Megatron-Core).
    expert_overlap: bool = False
    # A token goes once to each chip, and between nodes once to each node, that has experts for it (DeepEP, HybridEP);
    # else a copy goes to each of its experts (all-to-all).
    dispatch_once: bool = True
    # One kernel for an expert's products, its activation and the casts between them (CuTeDSL grouped MLP of cuDNN).
    fused_experts: bool = False

    @property
    def accelerators(self) -> int:
        """Accelerators in use."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def micro_batches(self) -> int:
        """Micro batches that each pipeline handles in a step."""
        return max(1, self.global_batch // (self.micro_batch * self.dp))

    @property
    def state(self) -> StateBytes:
        """Bytes per parameter."""
        usual = _STATE[self.precision]
        if self.gradients is None or usual.weights != _MIXED.weights:
            return usual
        return _STATE_WITH[self.gradients]

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters: gradients are summed over them."""
        return self.dp * self.cp


def check(shape: ModelShape | None, layout: TrainingLayout, accelerators: int | None = None) -> None:
    """Raise InvalidArgumentError naming every field that makes the layout impossible; without a shape, in itself."""
    problems: list[FieldError] = []

    def wrong(name: str, detail: str) -> None:
        problems.append(FieldError(f"/{name}", detail))

    for name in ("sequence", "global_batch", "micro_batch", "tp", "pp", "vpp", "dp", "cp", "ep"):
        if getattr(layout, name) < 1:
            wrong(name, "must be at least 1")
    if layout.precision not in _STATE:
        wrong("precision", f"{layout.precision!r} is none of {', '.join(PRECISIONS)}")
    elif layout.gradients not in {None, Gradients.FP32} and _STATE[layout.precision].weights != _MIXED.weights:
        wrong("gradients", f"weights in {layout.precision} have gradients in no less than fp32")
    if not 0 <= layout.zero <= 3:
        wrong("zero", "must be 0, 1, 2 or 3")
    if not 0 <= layout.recompute_share <= 1:
        wrong("recompute_share", "must be between 0 and 1")
    if not problems:
        _check_batch(layout, wrong)
        if shape is not None:
            _check_division(shape, layout, wrong)
        if accelerators is not None and accelerators != layout.accelerators:
            wrong("n_accel", f"{accelerators} is not tp x pp x dp x cp = {layout.accelerators}")
    if problems:
        raise InvalidArgumentError(
            "; ".join(f"{item.pointer[1:]}: {item.detail}" for item in problems), errors=tuple(problems)
        )


def _check_batch(layout: TrainingLayout, wrong: Callable[[str, str], None]) -> None:
    if layout.vpp > 1 and layout.pp == 1:
        wrong("vpp", "an interleaved schedule needs more than one pipeline stage")
    per_pass = layout.micro_batch * layout.dp
    if layout.global_batch % per_pass:
        wrong("gbs", f"{layout.global_batch} is not a multiple of mbs x dp = {per_pass}")
    if layout.sequence % layout.cp:
        wrong("cp", f"a sequence of {layout.sequence} cannot be divided by cp = {layout.cp}")


def _check_division(shape: ModelShape, layout: TrainingLayout, wrong: Callable[[str, str], None]) -> None:
    if shape.heads % layout.tp:
        wrong("tp", f"{shape.heads} heads cannot be divided by tp = {layout.tp}")
    elif not divides_heads(shape, layout.tp):
        wrong("tp", f"{shape.kv_heads} key-value heads can be neither divided by tp = {layout.tp} nor repeated for it")
    elif layout.context is Context.EXCHANGE and shape.heads % (layout.tp * layout.cp):
        wrong("cp", f"{shape.heads} heads cannot be exchanged among tp x cp = {layout.tp * layout.cp}")
    _check_stages(shape, layout, wrong)
    if layout.ep > 1 and not shape.experts:
        wrong("ep", "the model has no experts")
    elif shape.experts and shape.experts % layout.ep:
        wrong("ep", f"{shape.experts} experts cannot be divided by ep = {layout.ep}")
    elif layout.ep > 1 and (layout.tp * layout.replicas) % layout.ep:
        wrong("ep", f"tp x dp x cp = {layout.tp * layout.replicas} is not a multiple of ep = {layout.ep}")


def _check_stages(shape: ModelShape, layout: TrainingLayout, wrong: Callable[[str, str], None]) -> None:
    """Stages may differ, and may hold the embedding or the output layer alone; none may be empty."""
    places = shape.layers + 2 + shape.predicting_layers
    if layout.pp > 1 and layout.pp * layout.vpp > places:
        wrong("pp", f"{shape.layers} layers leave some of pp x vpp = {layout.pp * layout.vpp} stages empty")
    if not layout.stage_layers:
        return
    if len(layout.stage_layers) != layout.pp:
        wrong("stage_layers", f"{len(layout.stage_layers)} stages are stated, not pp = {layout.pp}")
    elif min(layout.stage_layers) < 0:
        wrong("stage_layers", "every stage must have at least 0 layers")
    elif sum(layout.stage_layers) != shape.layers:
        wrong("stage_layers", f"all stages have {sum(layout.stage_layers)} layers, the model has {shape.layers}")


def divides_heads(shape: ModelShape, tp: int) -> bool:
    """Whether each tensor rank has as many heads, and whole heads of keys and values: some each, or one for several ranks.

    Megatron-Core refuses other sizes (`num_query_groups` has to be a multiple of the tensor-parallel size, or divide it).
    """
    return shape.heads % tp == 0 and (shape.kv_heads % tp == 0 or tp % shape.kv_heads == 0)


def places_beside(shape: ModelShape, stages: int) -> int | None:
    """How many of embedding, output layer and layers that predict further tokens have to count as a layer each for the layers
    to fill the stages evenly; None where they do not even so.

    Llama 3.1 405B has 126 layers for that (arXiv:2407.21783), BLOOM 70 on 12 stages (arXiv:2211.05100); DeepSeek-V3 is
    trained on 16 stages with 61 layers and one that predicts (arXiv:2412.19437 sections 3.2 and 4.2).
    """
    return next((n for n in range(3 + shape.predicting_layers) if (shape.layers + n) % stages == 0), None)
