"""One layer of a transformer, forwards and backwards, in numpy: the probe's training step where there is no torch.

Single-head attention and a two-layer perceptron with residual connections; the loss is half of the mean square of the
output. Gradients are written out, so the step does the work of a training step: about 3 times that of the forward pass.
Source: Vaswani and others, Attention Is All You Need (2017).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
NAMES = ("query", "key", "value", "output", "up", "down")


def initial(width: int, precision: type[np.floating], draws: np.random.Generator) -> dict[str, Array]:
    """Weights of a layer: (width, width) four times, then (width, 4 width) and (4 width, width)."""
    shapes = dict.fromkeys(NAMES[:4], (width, width)) | {"up": (width, 4 * width), "down": (4 * width, width)}
    return {
        name: (draws.standard_normal(shape) / np.sqrt(shape[0])).astype(precision) for name, shape in shapes.items()
    }


def step(x: Array, weights: Mapping[str, Array]) -> tuple[float, dict[str, Array]]:
    """Loss and gradients for ``x`` (batch, length, width)."""
    scale = x.dtype.type(1 / np.sqrt(x.shape[-1]))
    query, key, value = (x @ weights[name] for name in NAMES[:3])
    scores = query @ key.swapaxes(-1, -2) * scale
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    attention = scores / scores.sum(axis=-1, keepdims=True)
    mixed = attention @ value
    middle = x + mixed @ weights["output"]
    hidden = middle @ weights["up"]
    active = np.maximum(hidden, 0)
    out = middle + active @ weights["down"]
    loss = 0.5 * float(np.mean(np.square(out)))

    d_out = out / out.dtype.type(out.size)
    d_active = d_out @ weights["down"].T
    d_hidden = d_active * (hidden > 0)
    d_middle = d_out + d_hidden @ weights["up"].T
    d_mixed = d_middle @ weights["output"].T
    d_attention = d_mixed @ value.swapaxes(-1, -2)
    d_scores = attention * (d_attention - (d_attention * attention).sum(axis=-1, keepdims=True)) * scale
    gradients = {
        "query": _over_tokens(x, d_scores @ key),
        "key": _over_tokens(x, d_scores.swapaxes(-1, -2) @ query),
        "value": _over_tokens(x, attention.swapaxes(-1, -2) @ d_mixed),
        "output": _over_tokens(mixed, d_middle),
        "up": _over_tokens(middle, d_hidden),
        "down": _over_tokens(active, d_out),
    }
    return loss, gradients


def _over_tokens(left: Array, right: Array) -> Array:
    answer: Array = left.reshape(-1, left.shape[-1]).T @ right.reshape(-1, right.shape[-1])
    return answer
