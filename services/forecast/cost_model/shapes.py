"""The shape of a decoder, dense or with experts: what its matrices are, and so its parameters and FLOPs.

Sources: Narayanan et al. 2021 (arXiv:2104.04473) eq. 2 for GPT; Touvron et al. 2023 (arXiv:2302.13971) for the gated
feed-forward; Jiang et al. 2024 (arXiv:2401.04088) for experts; DeepSeek-V3 (arXiv:2412.19437) for latent attention,
shared experts and leading dense layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meridian.errors import FieldError, InvalidArgumentError

MOST_LAYERS = 100_000
"""Of a model; each is held in memory by its pipeline stage."""
_PREDICTING = "layers that predict further tokens ({}) are not counted"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder. ``ffn`` is the inner size of a dense feed-forward, ``expert_ffn`` that of one expert."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    gated: bool
    vocabulary: int
    # Input and output embedding share their weights.
    tied: bool
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    # Inner size of the experts that every token visits, together.
    shared_ffn: int = 0
    # Layers without experts, of a model that has experts.
    dense_layers: int = 0
    # Weights of the attention matrices of one layer where heads do not tell them (latent attention); 0: they do.
    attention_weights: int = 0
    # Queries and keys of each head are normed (Qwen3, arXiv:2505.09388 section 2; Gemma 3, arXiv:2503.19786 section 2).
    head_norms: bool = False
    # Layers that predict further tokens (DeepSeek-V3 section 2.2); they fill a place in a pipeline, and count for nothing else.
    predicting_layers: int = 0
    # Layers whose tokens see the last ``window`` tokens alone.
    windowed_layers: int = 0
    window: int = 0
    # What the model has beyond this, in words.
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def expert_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def ffn_matrices(self) -> int:
        """Matrices of a feed-forward block: three when gated."""
        return 3 if self.gated else 2

    @property
    def query_width(self) -> int:
        """Width of all heads' queries."""
        return self.heads * self.head_size

    @property
    def attention_matrix_weights(self) -> int:
        """Weights of queries, keys, values and output of one layer."""
        if self.attention_weights:
            return self.attention_weights
        return self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)

    @property
    def dense_ffn_weights(self) -> int:
        """Weights of the feed-forward of a layer without experts."""
        return self.ffn_matrices * self.hidden * self.ffn

    @property
    def expert_weights(self) -> int:
        """Weights of all experts of one layer, those shared left out."""
        return self.experts * self.ffn_matrices * self.hidden * self.expert_ffn

    @property
    def shared_weights(self) -> int:
        """Weights of a layer with experts that every token uses: router and shared experts."""
        return self.hidden * self.experts + self.ffn_matrices * self.hidden * self.shared_ffn

    @property
    def small_weights(self) -> int:
        """Norms and (GPT) biases of one layer, eq. 2 of Narayanan 2021: 13 h for f = 4 h."""
        if self.gated:
            return 2 * self.hidden
        return 4 * self.hidden + 2 * self.hidden + self.head_size * (self.heads + 2 * self.kv_heads) + self.ffn

    @property
    def embedding_weights(self) -> int:
        """One embedding table."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters (positions left out)."""
        dense = (self.layers - self.expert_layers) * self.dense_ffn_weights
        with_experts = self.expert_layers * (self.expert_weights + self.shared_weights)
        body = self.layers * (self.attention_matrix_weights + self.small_weights) + dense + with_experts
        return body + self.embedding_weights * (1 if self.tied else 2)

    @property
    def active_matrix_weights(self) -> float:
        """Weights that multiply each token, output layer included: 6 FLOPs per token each in training."""
        dense = (self.layers - self.expert_layers) * self.dense_ffn_weights
        chosen = self.top_k * self.ffn_matrices * self.hidden * self.expert_ffn
        with_experts = self.expert_layers * (chosen + self.shared_weights)
        return self.layers * self.attention_matrix_weights + dense + with_experts + self.embedding_weights

    def attended(self, sequence: int, rounded: int = 0) -> float:
        """Share of a causal sequence's pairs of tokens that a layer takes in, on average; windows ``rounded`` up by so many."""
        if not self.windowed_layers:
            return 1.0
        seen = min(self.window + rounded, sequence) / max(1, sequence)
        return 1 - self.windowed_layers / self.layers * (1 - seen) ** 2

    def flops_per_token(self, sequence: int) -> float:
        """Training FLOPs of the model per token, without recomputation; attention counted whole (not causal)."""
        attention = 12.0 * self.layers * self.query_width * sequence * self.attended(sequence)
        return 6.0 * self.active_matrix_weights + attention


def gated_ffn_of(hidden: int) -> int:
    """Inner size where it is not stated: two thirds of 4 h, rounded up to a multiple of 256 (LLaMA)."""
    return -(-(8 * hidden // 3) // 256) * 256


def shape_of(
    *,
    layers: int,
    hidden: int,
    heads: int = 0,
    kv_heads: int = 0,
    head_size: int = 0,
    ffn: int = 0,
    gated: bool = False,
    vocabulary: int = 0,
    tied: bool | None = None,
    experts: int = 0,
    top_k: int = 0,
    expert_ffn: int = 0,
    shared_ffn: int = 0,
    dense_layers: int = 0,
    attention_weights: int = 0,
    head_norms: bool = False,
    predicting_layers: int = 0,
    windowed_layers: int = 0,
    window: int = 0,
) -> ModelShape:
    """A shape from what is stated; zero means unknown and is derived.

    Heads of 128 (64 below a hidden size of 1,024), feed-forward 4 h or that of LLaMA, vocabulary 51,200 (gated: 32,000),
    experts as large as the feed-forward, two per token. InvalidArgumentError names the field that is impossible.
    """
    problems = [
        FieldError(f"/{name}", "must be given")
        for name, value in (("layers", layers), ("hidden", hidden))
        if value <= 0
    ]
    if layers > MOST_LAYERS:
        problems.append(FieldError("/layers", f"must be at most {MOST_LAYERS:,}"))
    if problems:
        raise _invalid(problems)
    if not heads:
        heads = max(1, hidden // (128 if hidden >= 1024 else 64))
    kv_heads = kv_heads or heads
    if not head_size:
        if hidden % heads:
            problems.append(FieldError("/heads", f"hidden size {hidden} is not a multiple of {heads} heads"))
        head_size = hidden // heads
    if heads % kv_heads:
        problems.append(FieldError("/kv_heads", f"{heads} heads are not a multiple of {kv_heads} key-value heads"))
    if experts == 1:
        experts = 0
    if experts and not top_k:
        top_k = 2
    if top_k > experts and experts:
        problems.append(FieldError("/top_k", f"{top_k} of {experts} experts"))
    for name, some in (("dense_layers", dense_layers), ("windowed_layers", windowed_layers)):
        if some > layers:
            problems.append(FieldError(f"/{name}", f"{some} of {layers} layers"))
    ffn = ffn or (gated_ffn_of(hidden) if gated else 4 * hidden)
    if problems:
        raise _invalid(problems)
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        ffn=ffn,
        gated=gated,
        vocabulary=vocabulary or (32_000 if gated else 51_200),
        tied=(not gated) if tied is None else tied,
        experts=experts,
        top_k=top_k if experts else 0,
        expert_ffn=(expert_ffn or ffn) if experts else 0,
        shared_ffn=shared_ffn if experts else 0,
        dense_layers=dense_layers if experts else 0,
        attention_weights=attention_weights,
        head_norms=head_norms,
        predicting_layers=predicting_layers,
        windowed_layers=windowed_layers if window else 0,
        window=window,
        notes=(_PREDICTING.format(predicting_layers),) if predicting_layers else (),
    )


def _invalid(problems: list[FieldError]) -> InvalidArgumentError:
    return InvalidArgumentError(
        "; ".join(f"{item.pointer[1:]}: {item.detail}" for item in problems), errors=tuple(problems)
    )
