"""What a training job needs, from what its owner states: as much as the cost model knows, and a note for what is missing.

With layers and hidden size the cost model answers (`cost_model/`): parameters, FLOPs, memory in parts, traffic. With the
number of parameters alone, what follows from it does: 6 N FLOPs per token (Chowdhery et al., "PaLM", arXiv:2204.02311,
appendix B) and the state of the optimiser (Rajbhandari et al., "ZeRO", arXiv:1910.02054).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meridian.errors import FieldError, InvalidArgumentError
from services.forecast.cost_model.layout import Gradients, Recompute, TrainingLayout, check, precision_named
from services.forecast.cost_model.memory import Memory, local_parameters, memory_of, state_memory
from services.forecast.cost_model.shapes import ModelShape, shape_of
from services.forecast.cost_model.traffic import volumes

FORMULA = "Narayanan 2021 + PaLM app. B + Korthikanti 2022 + ZeRO"

_FIELDS = {
    "/tp": "/tensor_parallel",
    "/pp": "/pipeline_parallel",
    "/vpp": "/virtual_stages",
    "/dp": "/data_parallel",
    "/cp": "/context_parallel",
    "/ep": "/expert_parallel",
    "/gbs": "/global_batch",
    "/zero": "/zero_stage",
    "/gradients": "/gradient_precision",
}
_KINDS = {
    "dp": "data_parallel",
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "cp": "context_parallel",
    "ep": "expert_parallel",
}


@dataclass(frozen=True, slots=True)
class Model:
    """What is stated of a decoder; zero means unknown. The shape, where stated, counts more than ``parameters``."""

    layers: int = 0
    hidden: int = 0
    heads: int = 0
    sequence: int = 0
    vocabulary: int = 0
    parameters: int = 0
    ffn_hidden: int = 0
    gated_ffn: bool = False
    kv_heads: int = 0
    # Of a mixture: experts of a layer, those that a token visits, inner size of one.
    experts: int = 0
    top_k: int = 0
    expert_ffn_hidden: int = 0
    # The shape of a well-known model; the fields above are not looked at then, but the sequence.
    known: ModelShape | None = None

    @property
    def has_shape(self) -> bool:
        """Whether layers and hidden size are known."""
        return self.known is not None or (self.layers > 0 and self.hidden > 0)

    def shape(self) -> ModelShape:
        """The shape, what is not stated derived; InvalidArgumentError names the field that makes it impossible."""
        if self.known is not None:
            return self.known
        return shape_of(
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            ffn=self.ffn_hidden,
            gated=self.gated_ffn,
            vocabulary=self.vocabulary,
            experts=self.experts,
            top_k=self.top_k,
            expert_ffn=self.expert_ffn_hidden,
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """What is stated of how training is laid out over accelerators; a batch of zero is unknown."""

    global_batch: int = 0
    micro_batch: int = 1
    steps: int = 0
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    # Model chunks per accelerator of an interleaved pipeline schedule; 1: plain 1F1B.
    virtual_stages: int = 1
    sequence_parallel: bool = False
    zero_stage: int = 0
    precision: str = "bf16"
    recompute: Recompute = Recompute.NONE
    # Of the layers; the others keep everything.
    recompute_share: float = 1.0
    context_parallel: int = 1
    expert_parallel: int = 1
    fused_attention: bool = True
    # Of machines that compile a step.
    fused_loss: bool = False
    # None: as is usual with the precision.
    gradients: Gradients | None = None
    # Of each pipeline stage; empty: as even as can be.
    stage_layers: tuple[int, ...] = ()

    def training(self, sequence: int) -> TrainingLayout:
        """The layout for the cost model; where sequence or batch is unknown, the smallest that the groups allow."""
        return TrainingLayout(
            sequence=sequence or self.context_parallel,
            global_batch=self.global_batch or self.micro_batch * self.data_parallel,
            micro_batch=self.micro_batch,
            tp=self.tensor_parallel,
            pp=self.pipeline_parallel,
            vpp=self.virtual_stages,
            dp=self.data_parallel,
            cp=self.context_parallel,
            ep=self.expert_parallel,
            sequence_parallel=self.sequence_parallel,
            zero=self.zero_stage,
            precision=precision_named(self.precision),
            recompute=self.recompute,
            recompute_share=self.recompute_share,
            fused_attention=self.fused_attention,
            fused_loss=self.fused_loss,
            gradients=self.gradients,
            stage_layers=self.stage_layers,
        )


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
    # Of the buffers: what an allocator holds beyond what is in use, and gives back under pressure.
    memory_reserve_bytes: float
    # Sent by each accelerator in one step; zero by kinds that the layout does not have or that are unknown.
    traffic_bytes_per_step: dict[str, float]
    accelerators: int
    formula: str = FORMULA
    notes: tuple[str, ...] = field(default=())


def estimate(model: Model, layout: Layout) -> Requirement:
    """The requirement of one job; InvalidArgumentError names every field that makes it impossible."""
    if not model.parameters and not model.has_shape:
        detail = "layers and hidden, or parameters, must be given"
        raise InvalidArgumentError(f"layers: {detail}", errors=(FieldError("/layers", detail),))
    training = layout.training(model.sequence)
    shape = model.shape() if model.has_shape else None
    _check(shape, training)
    notes = []
    if shape is None:
        parameters = float(model.parameters)
        local = parameters / (training.tp * training.pp)
        memory = state_memory(training, local)
        plain = 6 * parameters
        traffic = {"data_parallel": 2 * (training.dp - 1) / training.dp * local * training.state.gradients}
        notes.append("layers and hidden are unknown: attention FLOPs and activations are left out")
    else:
        parameters = float(shape.parameters)
        local = sum(local_parameters(shape, training))
        memory = memory_of(shape, training)
        plain = shape.flops_per_token(model.sequence)
        traffic = {name: volumes(shape, training)[kind] for kind, name in _KINDS.items()}
        notes += _what_is_left_out(model, shape)
    if not (model.sequence and layout.global_batch):
        notes.append("global_batch or sequence is unknown: FLOPs and traffic per step are left out")
        traffic = dict.fromkeys(traffic, 0.0)
    if not layout.steps:
        notes.append("steps is unknown: total FLOPs are left out")
    flops = _with_recomputation(plain, shape, training, model.sequence)
    parts = _parts(memory, known=shape is not None and model.sequence > 0)
    tokens = float(layout.global_batch * model.sequence)
    return Requirement(
        parameters=parameters,
        parameters_per_accelerator=local,
        model_flops_per_token=plain,
        flops_per_token=flops,
        flops_per_step=flops * tokens,
        total_flops=flops * tokens * layout.steps,
        memory_bytes_per_accelerator=sum(parts.values()),
        memory_parts_bytes=parts,
        memory_reserve_bytes=min(memory.reserve, parts["buffers"]),
        traffic_bytes_per_step=traffic,
        accelerators=training.accelerators,
        notes=tuple(notes),
    )


def _check(shape: ModelShape | None, layout: TrainingLayout) -> None:
    try:
        check(shape, layout)
    except InvalidArgumentError as error:
        raise with_stated_names(error) from None


def with_stated_names(error: InvalidArgumentError) -> InvalidArgumentError:
    """An error of the cost model under the names of the fields here."""
    fields = tuple(FieldError(_FIELDS.get(item.pointer, item.pointer), item.detail) for item in error.errors)
    return InvalidArgumentError("; ".join(f"{item.pointer[1:]}: {item.detail}" for item in fields), errors=fields)


def _what_is_left_out(model: Model, shape: ModelShape) -> list[str]:
    notes = []
    if not model.sequence:
        notes.append("sequence is unknown: activations and attention FLOPs are left out")
    if model.parameters and abs(shape.parameters / model.parameters - 1) > 0.02:
        notes.append(f"the shape has {shape.parameters:,} parameters, not the {model.parameters:,} that are stated")
    if model.known is not None:
        stated = {
            "layers": (model.layers, shape.layers),
            "hidden": (model.hidden, shape.hidden),
            "heads": (model.heads, shape.heads),
            "kv_heads": (model.kv_heads, shape.kv_heads),
            "ffn_hidden": (model.ffn_hidden, shape.ffn),
            "vocabulary": (model.vocabulary, shape.vocabulary),
            "experts": (model.experts, shape.experts),
            "top_k": (model.top_k, shape.top_k),
            "expert_ffn_hidden": (model.expert_ffn_hidden, shape.expert_ffn),
        }
        notes += [
            f"{name} = {size} is not looked at: the model that is named has {own}"
            for name, (size, own) in stated.items()
            if size and size != own
        ]
    return notes


def _parts(memory: Memory, *, known: bool) -> dict[str, float]:
    parts = memory.parts()
    return parts if known else {**parts, "activations": 0.0}


def _with_recomputation(plain: float, shape: ModelShape | None, layout: TrainingLayout, sequence: int) -> float:
    """FLOPs per token that the hardware carries out (Korthikanti et al. 2022, arXiv:2205.05198, section 5)."""
    share = layout.recompute_share
    match layout.recompute:
        case Recompute.SELECTIVE if shape is not None:
            # The forward third of attention's products once more.
            return plain + share * 4.0 * shape.layers * shape.query_width * sequence * shape.attended(sequence)
        case Recompute.PRODUCTS if shape is not None:
            routed = shape.expert_layers / shape.layers
            inner = (1 - routed) * shape.ffn + routed * (shape.top_k * shape.expert_ffn + shape.shared_ffn)
            again = shape.hidden * (shape.head_size * (shape.heads + shape.kv_heads) + inner)
            return plain + share * 2.0 * shape.layers * again
        case Recompute.FULL:
            return plain * (1 + share / 3)
        case _:
            return plain
