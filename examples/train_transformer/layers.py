"""The differentiable pieces of the transformer, each as a forward and a backward function.

Kept apart from the model so that every derivative can be checked on its own against finite differences. All functions
follow the dtype of their input: float32 for training, float64 for the checks. B is rows of the batch, T positions,
C channels, H heads, V the vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_NORM_EPSILON = 1e-5
_GELU_SCALE = math.sqrt(2.0 / math.pi)
_GELU_CUBIC = 0.044715


def layer_norm(x: Array, gain: Array, bias: Array) -> tuple[Array, tuple[Array, Array]]:
    """Normalise the last axis (Ba et al. 2016); returns the result and what the backward pass needs."""
    centred = x - x.mean(axis=-1, keepdims=True)
    inverse_deviation = 1.0 / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + _NORM_EPSILON)
    normalised = centred * inverse_deviation
    return normalised * gain + bias, (normalised, inverse_deviation)


def layer_norm_backward(dy: Array, gain: Array, saved: tuple[Array, Array]) -> tuple[Array, Array, Array]:
    """Gradients with respect to the input, the gain and the bias."""
    normalised, inverse_deviation = saved
    channels = dy.shape[-1]
    dgain = (dy * normalised).reshape(-1, channels).sum(axis=0)
    dbias = dy.reshape(-1, channels).sum(axis=0)
    scaled = dy * gain
    dx = scaled - scaled.mean(axis=-1, keepdims=True)
    dx -= normalised * (scaled * normalised).mean(axis=-1, keepdims=True)
    dx *= inverse_deviation
    return dx, dgain, dbias


def linear(x: Array, weight: Array, bias: Array) -> Array:
    """x (B, T, in) @ weight (in, out) + bias as one matrix product over all positions."""
    flat = x.reshape(-1, x.shape[-1]) @ weight
    flat += bias
    return flat.reshape(*x.shape[:-1], weight.shape[1])


def linear_backward(dy: Array, x: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Gradients with respect to the input, the weight and the bias."""
    flat_dy = dy.reshape(-1, dy.shape[-1])
    dx = (flat_dy @ weight.T).reshape(x.shape)
    return dx, x.reshape(-1, x.shape[-1]).T @ flat_dy, flat_dy.sum(axis=0)


def gelu(x: Array) -> tuple[Array, tuple[Array, Array]]:
    """Gaussian error linear unit in its tanh form (Hendrycks and Gimpel 2016)."""
    tanh = np.tanh(_GELU_SCALE * (x + _GELU_CUBIC * x * x * x))
    return 0.5 * x * (1.0 + tanh), (x, tanh)


def gelu_backward(dy: Array, saved: tuple[Array, Array]) -> Array:
    x, tanh = saved
    slope = _GELU_SCALE * (1.0 + 3.0 * _GELU_CUBIC * x * x)
    return dy * (0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope)


def causal_attention(qkv: Array, heads: int) -> tuple[Array, tuple[Array, Array]]:
    """Scaled dot-product attention in which a position sees itself and what came before.

    qkv (B, T, 3C) holds queries, keys and values side by side; the result is (B, T, C).
    """
    rows, positions, width = qkv.shape
    split = qkv.reshape(rows, positions, 3, heads, width // (3 * heads)).transpose(2, 0, 3, 1, 4)
    query, key, value = split[0], split[1], split[2]
    weights = query @ key.swapaxes(-1, -2)
    weights *= 1.0 / math.sqrt(query.shape[-1])
    weights[..., _future(positions)] = -np.inf
    weights -= weights.max(axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = (weights @ value).transpose(0, 2, 1, 3).reshape(rows, positions, width // 3)
    return mixed, (split, weights)


def causal_attention_backward(dmixed: Array, saved: tuple[Array, Array]) -> Array:
    """Gradient with respect to qkv, in the same (B, T, 3C) arrangement."""
    split, weights = saved
    query, key, value = split[0], split[1], split[2]
    rows, heads, positions, size = query.shape
    dout = dmixed.reshape(rows, positions, heads, size).transpose(0, 2, 1, 3)
    dscores = dout @ value.swapaxes(-1, -2)
    dscores -= (dscores * weights).sum(axis=-1, keepdims=True)
    dscores *= weights
    dscores *= 1.0 / math.sqrt(size)
    dsplit = np.empty((3, rows, heads, positions, size), dtype=dmixed.dtype)
    np.matmul(dscores, key, out=dsplit[0])
    np.matmul(dscores.swapaxes(-1, -2), query, out=dsplit[1])
    np.matmul(weights.swapaxes(-1, -2), dout, out=dsplit[2])
    return dsplit.transpose(1, 3, 0, 2, 4).reshape(rows, positions, 3 * heads * size)


def cross_entropy(logits: Array, targets: NDArray[np.int64]) -> tuple[float, Array]:
    """Summed negative log-likelihood in nats of the targets (N,) under logits (N, V), and its gradient."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    totals = exponentials.sum(axis=-1, keepdims=True)
    rows = np.arange(len(targets))
    losses = np.log(totals[:, 0]) - shifted[rows, targets]
    dlogits = exponentials / totals
    dlogits[rows, targets] -= 1.0
    return float(losses.sum(dtype=np.float64)), dlogits


def _future(positions: int) -> NDArray[np.bool_]:
    return np.triu(np.ones((positions, positions), dtype=np.bool_), k=1)
