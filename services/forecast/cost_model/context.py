"""Context parallelism: what chips that share a sequence send one another for attention, and how much of it is waited for.

- A ring passes keys and values on while scores are computed, and their gradients on the way back (Liu 2023, arXiv:2310.01889).
- Gathered: all keys and values first, then attention; backward once more, and their gradients are scattered (Llama 3,
  arXiv:2407.21783, section 3.3.2; `context_parallel` of PyTorch with `allgather`). Nothing else is there to compute meanwhile.
- Exchanged: parts of the sequence for parts of the heads and back, all-to-all (DeepSpeed-Ulysses, arXiv:2309.14509).
"""

from __future__ import annotations

from services.forecast.cost_model.kernels import Pass
from services.forecast.cost_model.layout import Context, TrainingLayout
from services.forecast.cost_model.links import Group, Links
from services.forecast.cost_model.shapes import ModelShape

# Of attention, backward over forward.
_BACKWARD = 2.5


def sent_heads(shape: ModelShape, layout: TrainingLayout) -> int:
    """Heads of keys (and of values) that are sent; exchanged, each chip of the sequence gets at least one."""
    if layout.repeated_keys:
        return shape.heads
    return max(shape.kv_heads, layout.tp * layout.cp) if layout.context is Context.EXCHANGE else shape.kv_heads


def exposed(shape: ModelShape, layout: TrainingLayout, links: Links, group: Group, layer: Pass) -> float:
    """Seconds of one layer and micro batch that wait for other parts of the sequence."""
    if layout.cp == 1:
        return 0.0
    heads = sent_heads(shape, layout)
    value = layout.state.weights * layout.micro_batch * layout.sequence * shape.head_size / layout.tp
    again = layout.recompute_share if layout.recompute.value == "full" else 0.0
    if layout.context is Context.EXCHANGE:
        # Queries, keys and values there, what attention gives back.
        own = value / layout.cp * 2 * (shape.heads + heads)
        return (2 + again) * links.exchange(own, group, 1)
    keys = links.gather(2 * value * heads, group)
    if layout.context is Context.GATHER:
        return (1 + again) * keys + 2 * keys
    return (1 + again) * max(0.0, keys - layer.attention) + max(0.0, 2 * keys - _BACKWARD * layer.attention)
