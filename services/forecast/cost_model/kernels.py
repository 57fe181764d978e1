"""Times of the kernels of one layer: matrix products and attention by roofline, the rest by the bytes it moves.

Roofline: Williams et al. 2009; rounding of tiles to whole waves of units: NVIDIA, Matrix Multiplication Background;
bytes of norms, dropout and activations: Korthikanti 2022 (arXiv:2205.05198) section 4; fused attention: ``attention``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from services.forecast.cost_model.attention import backward_ratio, reached_share
from services.forecast.cost_model.efficiency import Efficiency
from services.forecast.cost_model.layout import Context, TrainingLayout
from services.forecast.cost_model.machine import Machine
from services.forecast.cost_model.shapes import ModelShape

_TILE = 128
# Kernels that a layer starts forward beside its matrix products: two norms, four biases, an activation, two dropouts, two
# sums with the residual, three copies of heads.
_SMALL_KERNELS = 14
_COLLECTIVE_KERNELS = 2
# A router, its loss, and the order of tokens by expert; beside them two products of each expert on the chip are started.
_ROUTING_KERNELS = 40
_HEAD_NORM_KERNELS = 2
_SCORE_BYTES = 8
# Bytes per logit that the loss moves, forward and backward, counted one by one. In kernels of its own (`VocabParallelCrossEntropy`
# of Megatron-LM, where `cross_entropy_loss_fusion` is not set): converted to 32 bit (2 + 4), the greatest (4), subtracted (8),
# exponentials (8), their sum (4), divided by it (8); backward times the gradient of the loss (8) and converted (4 + 2). Fused or
# compiled: from 6 (one kernel, gradients in place) to 30 by code; what code keeps metrics of while it trains passes once more.
_LOSS_BYTES, _FUSED_LOSS_BYTES = 52.0, 24.0
# What an 8-bit product takes is read in 16 bit and written in 8, and once more transposed for the gradient of the weights
# (`cast_transpose` of Transformer Engine: 8-bit products of Hopper take one order of operands only, scales by block of Blackwell
# go along one). Half of an input's the kernel before does with its own work (norm, activation), of a gradient nothing, but in
# compiled programs. Grouped products of experts cast by themselves what was permuted, unless their kernels are fused.
_CAST_BYTES, _FUSED, _UNFUSED = 4.0, 0.5, 1.0
# Values that a gated layer moves forward beyond fused kernels where nothing is fused, by the reference code of Llama 2
# (`RMSNorm`, `apply_rotary_emb`, `FeedForward`), in values of 16 bit: a norm converts to 32 bit, squares, averages, scales,
# converts back and weighs (18 where 2 would do); a rotation converts, multiplies and converts back (10 for 2), of queries
# and keys; the activation is written and read again.
_EAGER_NORMS, _EAGER_ROTATION, _EAGER_INNER = 32, 8, 2


@dataclass(frozen=True, slots=True)
class Pass:
    """One layer (or the output layer), one micro batch, one chip: seconds forward and backward."""

    forward: float
    backward: float
    # The part of ``forward`` that selective recomputation repeats.
    attention: float = 0.0
    # The part of ``backward`` in which the gradient of the input is summed over tensor ranks at the same time: gradients
    # of the weights of column-parallel matrices (Korthikanti 2022, section 4.2.2).
    summing: float = 0.0
    # The part of ``forward`` at its end that recomputation leaves out, where it stops as soon as the backward pass has
    # what it needs.
    unneeded: float = 0.0
    # The part of ``forward`` that is computed again where attention and every second product are kept.
    between: float = 0.0

    def recomputed(self, layout: TrainingLayout) -> float:
        """Seconds of computing again what was not kept."""
        match layout.recompute.value:
            case "full":
                return layout.recompute_share * (self.forward - self.unneeded)
            case "products":
                return layout.recompute_share * self.between
            case "selective":
                # A kernel that keeps no scores repeats them in its own backward pass already.
                return 0.0 if layout.fused_attention else layout.recompute_share * self.attention
            case _:
                return 0.0


class Kernels:
    """Kernel times of one chip at one precision."""

    def __init__(self, machine: Machine, efficiency: Efficiency, layout: TrainingLayout) -> None:
        self._e = efficiency
        self._machine = machine
        self._layout = layout
        wide = layout.precision if layout.precision in {"fp32", "tf32"} else "bf16"
        self._product_rate = machine.reached(layout.precision) * efficiency.matmul
        self._wide_peak = machine.peak(wide)
        self._wide_rate = machine.reached(wide) * efficiency.matmul
        self._bytes_per_s = machine.memory_bytes_per_s * efficiency.memory
        self._value_bytes = layout.state.weights
        self._casts = layout.precision in {"fp8", "fp4"}
        # Checkpoints of fully sharded training in PyTorch (not reentrant) stop when all that was not kept is there again
        # (`torch.utils.checkpoint.set_checkpoint_early_stop`), and XLA drops what nobody reads: the product that leads out
        # of the feed-forward is not repeated. Megatron-LM, DeepSpeed and PaddlePaddle repeat the whole layer.
        self._stops_early = layout.zero == 3 or machine.compiled

    def product(
        self, rows: float, columns: float, depth: float, count: float = 1.0, *, wide: bool = False, cast: float = _FUSED
    ) -> float:
        """Seconds of ``count`` matrix products rows x depth times depth x columns that run side by side.

        ``cast``: share of the bytes of casting the input to 8 bit that no kernel before it moves anyway.
        """
        rate = self._wide_rate if wide else self._product_rate
        tiles = math.ceil(rows / _TILE) * math.ceil(columns / _TILE) * count
        units = self._machine.units
        share: float = (tiles / (math.ceil(tiles / units) * units)) ** self._e.wave
        fill: float = (rows / (math.ceil(rows / _TILE) * _TILE)) ** self._e.wave
        flops = 2.0 * count * rows * columns * depth
        compute = flops / (rate * share * fill * depth / (depth + self._e.half_depth))
        moved = self._value_bytes * count * (rows * columns + rows * depth + columns * depth)
        casting = 0.0
        if self._casts and not wide:
            casting = cast * _CAST_BYTES * count * rows * depth / self._bytes_per_s
        return max(compute, moved / self._bytes_per_s) + casting + self._e.gap_s

    def matrix(
        self, rows: float, columns: float, depth: float, count: float = 1.0, *, wide: bool = False, cast: float = _FUSED
    ) -> Pass:
        """A weight matrix, forward and backward (gradient of the input, gradient of the weights)."""
        of_gradients = cast if self._layout.fused_experts or self._machine.compiled else _UNFUSED
        forward = self.product(rows, columns, depth, count, wide=wide, cast=cast)
        inputs = self.product(rows, depth, columns, count, wide=wide, cast=of_gradients)
        # Both of its operands were cast for the others.
        weights = self.product(depth, columns, rows, count, wide=wide, cast=0.0)
        return Pass(forward, inputs + weights, summing=weights)

    def moving(self, moved_bytes: float) -> float:
        """Seconds of kernels that only move data."""
        return self._e.elementwise * moved_bytes / self._bytes_per_s

    def attention(self, shape: ModelShape) -> Pass:
        """The core of attention of one layer."""
        layout = self._layout
        heads = shape.heads / layout.tp
        rows = layout.sequence / layout.cp
        flops = 4.0 * layout.micro_batch * heads * rows * layout.sequence * shape.head_size
        if layout.fused_attention:
            # Of windows, whole tiles.
            flops *= shape.attended(layout.sequence, _TILE)
            # Causal: half of the scores.
            # Each step of a ring is a kernel over the part of the sequence that a chip has (Liu 2023); exchanged, heads have it whole.
            length = layout.sequence if layout.context is Context.EXCHANGE else rows
            share = reached_share(self._machine, layout.attention_generation, length, shape.head_size)
            forward = flops / 2 / (self._wide_peak * share * self._e.attention) + layout.cp * self._e.gap_s
            return Pass(forward, backward_ratio(self._machine, layout.attention_generation) * forward, forward)
        depth = shape.head_size / (shape.head_size + self._e.half_depth)
        compute = flops / (self._wide_rate * depth)
        scores = layout.micro_batch * heads * rows * layout.sequence
        forward = compute + self.moving(_SCORE_BYTES * scores) + 5 * self._e.gap_s
        return Pass(forward, 2 * forward, forward)

    def layer(self, shape: ModelShape, *, experts: bool) -> Pass:
        """One layer of the decoder."""
        layout, tp = self._layout, self._layout.tp
        tokens = layout.micro_batch * layout.sequence / layout.cp
        matrices = [
            self.matrix(tokens, shape.head_size * (shape.heads + 2 * shape.kv_heads) / tp, shape.hidden),
            self.matrix(tokens, shape.hidden, shape.query_width / tp),
        ]
        if shape.attention_weights:
            factor = shape.attention_weights / (shape.hidden * shape.head_size * (2 * shape.heads + 2 * shape.kv_heads))
            matrices = [Pass(p.forward * factor, p.backward * factor, summing=p.summing * factor) for p in matrices]
        widths = 3 if shape.gated else 2
        first = 2 if shape.gated else 1
        if experts:
            matrices += self._experts(shape, tokens)
            inner = tokens * (shape.top_k * shape.expert_ffn + shape.shared_ffn) / tp
            # Permutation of tokens to experts and back.
            routed = 4 * tokens * shape.top_k * shape.hidden / tp
        else:
            matrices.append(self.matrix(tokens, first * shape.ffn / tp, shape.hidden))
            matrices.append(self.matrix(tokens, shape.hidden, shape.ffn / tp))
            inner = tokens * shape.ffn / tp
            routed = 0.0
        core = self.attention(shape)
        shared = tokens * shape.hidden / (tp if layout.sequence_parallel else 1)
        values = 10 * shared + widths * inner + 2 * tokens * shape.query_width / tp + routed
        turned = tokens * shape.head_size * (shape.heads + shape.kv_heads) / tp
        if shape.head_norms:
            values += 2 * turned
        if layout.eager and shape.gated and not self._machine.compiled:
            values += _EAGER_NORMS * shared + _EAGER_ROTATION * turned + _EAGER_INNER * inner
        moved = self._value_bytes * values
        gaps = _SMALL_KERNELS + (_ROUTING_KERNELS if experts else 0) + (_HEAD_NORM_KERNELS if shape.head_norms else 0)
        small = self.moving(moved) + gaps * self._e.gap_s
        forward = sum(p.forward for p in matrices) + core.forward + small
        backward = sum(p.backward for p in matrices) + core.backward + 1.5 * small
        kernels = len(matrices) + gaps + (1 if layout.fused_attention else 5)
        if tp > 1:
            kernels += _COLLECTIVE_KERNELS
        if experts:
            kernels += 2 * math.ceil(shape.experts / layout.ep)
        start = 0.0 if self._machine.compiled or layout.captured else kernels * self._e.dispatch_s
        # Queries, keys and values, and what leads into the feed-forward, are column-parallel.
        summing = matrices[0].summing + matrices[2].summing
        unneeded = 0.0 if experts or not self._stops_early else min(matrices[-1].forward, max(0.0, forward - start))
        # Keys, attention's output, and the second of a gated feed-forward (or the only other one), with all that is small.
        keys = shape.kv_heads / (shape.heads + 2 * shape.kv_heads)
        second = matrices[2].forward / 2 if shape.gated else matrices[3].forward
        between = small + keys * matrices[0].forward + matrices[1].forward + second
        return Pass(max(forward, start), max(backward, 1.5 * start), core.forward, summing, unneeded, between)

    def _experts(self, shape: ModelShape, tokens: float) -> list[Pass]:
        """Products of a layer's experts, equally loaded; with ep > 1 experts are whole, else divided like the rest."""
        layout = self._layout
        first = 2 if shape.gated else 1
        if layout.ep > 1:
            local = shape.experts / layout.ep
            rows, width = tokens / layout.tp * shape.top_k / local, float(shape.expert_ffn)
        else:
            local = float(shape.experts)
            rows, width = tokens * shape.top_k / local, shape.expert_ffn / layout.tp
        cast = _FUSED if layout.fused_experts else _UNFUSED
        found = [
            self.matrix(rows, first * width, shape.hidden, local, cast=cast),
            self.matrix(rows, shape.hidden, width, local, cast=cast),
        ]
        if shape.shared_ffn:
            found.append(self.matrix(tokens, first * shape.shared_ffn / layout.tp, shape.hidden))
            found.append(self.matrix(tokens, shape.hidden, shape.shared_ffn / layout.tp))
        return found

    def output(self, shape: ModelShape) -> Pass:
        """The output layer and the loss, in 32 bit."""
        tokens = self._layout.micro_batch * self._layout.sequence / self._layout.cp
        found = self.matrix(tokens, shape.vocabulary / self._layout.tp, shape.hidden, wide=True)
        logits = tokens * shape.vocabulary / self._layout.tp
        each = _FUSED_LOSS_BYTES if self._layout.fused_loss else _LOSS_BYTES
        # Half of it forward.
        loss = each / 2 * logits / self._bytes_per_s
        return Pass(found.forward + loss, found.backward + loss)

    def optimiser(self, parameters: float) -> float:
        """Adam over ``parameters``: reads and writes all state, reads the gradients, writes the weights."""
        state = self._layout.state
        moved = parameters * (2 * state.optimiser + 2 * state.gradients + state.weights)
        return moved / self._bytes_per_s + 20 * self._e.gap_s
