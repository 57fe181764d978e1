"""A decoder-only transformer whose parameters and gradients each live in one flat vector.

Flat storage is what the rest of the program wants: the all-reduce sums one vector, AdamW updates one vector, a
checkpoint stores one vector. The model works on named views into it. Architecture: pre-norm blocks, learned positions,
output projection tied to the token embedding (Radford et al. 2019).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from layers import (
    Array,
    causal_attention,
    causal_attention_backward,
    cross_entropy,
    gelu,
    gelu_backward,
    layer_norm,
    layer_norm_backward,
    linear,
    linear_backward,
)
from numpy.typing import DTypeLike, NDArray

_INITIAL_DEVIATION = 0.02
_PARAMETER_STREAM = 0x9A12  # separates the random numbers of the initial parameters from those of the batches

Views = dict[str, Array]


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """The shape of the model. `sequence` is the longest context in tokens; the vocabulary is the 256 bytes."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int = 256

    def __post_init__(self) -> None:
        if min(self.layers, self.hidden, self.heads, self.sequence, self.vocabulary) < 1:
            raise ValueError("layers, hidden, heads, sequence and vocabulary must be at least 1")
        if self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")


def parameter_shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, in the order in which they lie in the flat vector."""
    width = config.hidden
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (config.vocabulary, width),
        "positions": (config.sequence, width),
    }
    for layer in range(config.layers):
        shapes |= {
            f"{layer}.attention_norm.gain": (width,),
            f"{layer}.attention_norm.bias": (width,),
            f"{layer}.qkv.weight": (width, 3 * width),
            f"{layer}.qkv.bias": (3 * width,),
            f"{layer}.attention_out.weight": (width, width),
            f"{layer}.attention_out.bias": (width,),
            f"{layer}.mlp_norm.gain": (width,),
            f"{layer}.mlp_norm.bias": (width,),
            f"{layer}.mlp_in.weight": (width, 4 * width),
            f"{layer}.mlp_in.bias": (4 * width,),
            f"{layer}.mlp_out.weight": (4 * width, width),
            f"{layer}.mlp_out.bias": (width,),
        }
    return shapes | {"final_norm.gain": (width,), "final_norm.bias": (width,)}


def parameter_count(config: TransformerConfig) -> int:
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())


def named_views(flat: Array, config: TransformerConfig) -> Views:
    """Views into `flat`, one per parameter; writing to a view writes to the vector."""
    views: Views = {}
    offset = 0
    for name, shape in parameter_shapes(config).items():
        size = math.prod(shape)
        views[name] = flat[offset : offset + size].reshape(shape)
        offset += size
    if offset != flat.size:
        raise ValueError(f"the model has {offset} parameters, the vector {flat.size}")
    return views


def initial_parameters(config: TransformerConfig, seed: int, dtype: DTypeLike = np.float32) -> Array:
    """Normal weights (deviation 0.02, residual outputs divided by sqrt(2 layers)), unit gains, zero biases."""
    rng = np.random.default_rng([seed, _PARAMETER_STREAM])
    flat: Array = np.zeros(parameter_count(config), dtype=dtype)
    for name, view in named_views(flat, config).items():
        if name.endswith(".gain"):
            view[...] = 1.0
        elif view.ndim == 2:
            residual = name.endswith(("attention_out.weight", "mlp_out.weight"))
            deviation = _INITIAL_DEVIATION / math.sqrt(2 * config.layers) if residual else _INITIAL_DEVIATION
            view[...] = rng.normal(0.0, deviation, view.shape)
    return flat


def weight_decay_mask(config: TransformerConfig) -> Array:
    """1.0 for matrices, which decay; 0.0 for gains and biases, which do not."""
    flat: Array = np.zeros(parameter_count(config), dtype=np.float32)
    for view in named_views(flat, config).values():
        view[...] = 1.0 if view.ndim == 2 else 0.0
    return flat


def loss_and_gradient(
    parameters: Views,
    gradients: Views,
    config: TransformerConfig,
    tokens: NDArray[np.int64],
    targets: NDArray[np.int64],
    scale: float,
) -> float:
    """Summed loss in nats over tokens (B, T); `gradients` is overwritten with the gradient of scale * loss.

    With scale = 1 / (tokens in the global batch) the sum of the gradients of all ranks is the gradient of the mean
    loss, however the rows are divided among the ranks.
    """
    hidden, saved = _run_blocks(parameters, config, tokens)
    normalised, norm_saved = layer_norm(hidden, parameters["final_norm.gain"], parameters["final_norm.bias"])
    flat = normalised.reshape(-1, config.hidden)
    loss, dlogits = cross_entropy(flat @ parameters["embedding"].T, targets.reshape(-1))
    dlogits *= scale
    np.matmul(dlogits.T, flat, out=gradients["embedding"])
    dx = (dlogits @ parameters["embedding"]).reshape(hidden.shape)
    dx = _store_norm(gradients, "final_norm", layer_norm_backward(dx, parameters["final_norm.gain"], norm_saved))
    for layer in reversed(range(config.layers)):
        dx = _block_backward(parameters, gradients, str(layer), saved[layer], dx)
    _embedding_backward(gradients, tokens, dx)
    return loss


def next_token_logits(parameters: Views, config: TransformerConfig, tokens: NDArray[np.int64]) -> Array:
    """Logits (V,) of the token that follows tokens (T,), T at most `config.sequence`."""
    hidden, _ = _run_blocks(parameters, config, tokens[np.newaxis, :])
    last, _ = layer_norm(hidden[0, -1], parameters["final_norm.gain"], parameters["final_norm.bias"])
    logits: Array = parameters["embedding"] @ last
    return logits


def _run_blocks(
    parameters: Views, config: TransformerConfig, tokens: NDArray[np.int64]
) -> tuple[Array, list[dict[str, Any]]]:
    x = parameters["embedding"][tokens] + parameters["positions"][: tokens.shape[1]]
    saved: list[dict[str, Any]] = []
    for layer in range(config.layers):
        x, kept = _block(parameters, str(layer), config.heads, x)
        saved.append(kept)
    return x, saved


def _block(p: Views, layer: str, heads: int, x: Array) -> tuple[Array, dict[str, Any]]:
    kept: dict[str, Any] = {}
    kept["normed"], kept["attention_norm"] = layer_norm(
        x, p[f"{layer}.attention_norm.gain"], p[f"{layer}.attention_norm.bias"]
    )
    qkv = linear(kept["normed"], p[f"{layer}.qkv.weight"], p[f"{layer}.qkv.bias"])
    kept["mixed"], kept["attention"] = causal_attention(qkv, heads)
    x = x + linear(kept["mixed"], p[f"{layer}.attention_out.weight"], p[f"{layer}.attention_out.bias"])
    kept["mlp_normed"], kept["mlp_norm"] = layer_norm(x, p[f"{layer}.mlp_norm.gain"], p[f"{layer}.mlp_norm.bias"])
    inner = linear(kept["mlp_normed"], p[f"{layer}.mlp_in.weight"], p[f"{layer}.mlp_in.bias"])
    kept["activated"], kept["gelu"] = gelu(inner)
    x = x + linear(kept["activated"], p[f"{layer}.mlp_out.weight"], p[f"{layer}.mlp_out.bias"])
    return x, kept


def _block_backward(p: Views, g: Views, layer: str, kept: dict[str, Any], dx: Array) -> Array:
    dactivated = _store_linear(
        g, f"{layer}.mlp_out", linear_backward(dx, kept["activated"], p[f"{layer}.mlp_out.weight"])
    )
    dinner = gelu_backward(dactivated, kept["gelu"])
    dnormed = _store_linear(
        g, f"{layer}.mlp_in", linear_backward(dinner, kept["mlp_normed"], p[f"{layer}.mlp_in.weight"])
    )
    dx = dx + _store_norm(
        g, f"{layer}.mlp_norm", layer_norm_backward(dnormed, p[f"{layer}.mlp_norm.gain"], kept["mlp_norm"])
    )
    dmixed = _store_linear(
        g, f"{layer}.attention_out", linear_backward(dx, kept["mixed"], p[f"{layer}.attention_out.weight"])
    )
    dqkv = causal_attention_backward(dmixed, kept["attention"])
    dnormed = _store_linear(g, f"{layer}.qkv", linear_backward(dqkv, kept["normed"], p[f"{layer}.qkv.weight"]))
    return dx + _store_norm(
        g,
        f"{layer}.attention_norm",
        layer_norm_backward(dnormed, p[f"{layer}.attention_norm.gain"], kept["attention_norm"]),
    )


def _embedding_backward(gradients: Views, tokens: NDArray[np.int64], dx: Array) -> None:
    gradients["positions"][...] = 0.0
    gradients["positions"][: dx.shape[1]] = dx.sum(axis=0)
    vocabulary = gradients["embedding"].shape[0]
    one_hot = (np.arange(vocabulary)[:, np.newaxis] == tokens.reshape(-1)).astype(dx.dtype)
    gradients["embedding"] += one_hot @ dx.reshape(-1, dx.shape[-1])


def _store_linear(gradients: Views, name: str, derived: tuple[Array, Array, Array]) -> Array:
    dx, gradients[f"{name}.weight"][...], gradients[f"{name}.bias"][...] = derived
    return dx


def _store_norm(gradients: Views, name: str, derived: tuple[Array, Array, Array]) -> Array:
    dx, gradients[f"{name}.gain"][...], gradients[f"{name}.bias"][...] = derived
    return dx
