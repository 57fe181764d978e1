"""Fused attention: the share of a chip's peak that a generation of kernels reaches, from published benchmarks.

Asymptotes for causal attention with heads of 128 and long sequences, forward:

- FlashAttention-2 on H100 335 of 989 TFLOP/s, cuDNN 9 there 539 and FlashAttention-3 616 (Shah 2024, arXiv:2407.08608,
  figure 5); FlashAttention-2 on A100 two thirds of 312 (Dao 2023, arXiv:2307.08691, section 4.1).
- cuDNN 9.13 on B200 1,240 of 2,250 (FlashAttention-4 reaches 1,613 and 1.3 times as much: Zadouri 2026, arXiv:2603.05451);
  FlashAttention-2 there 379 with heads of 64 (Dao-AILab/flash-attention, issue 1589).
- The first FlashAttention, and kernels in Triton of its time, on A100 30-50 % of the peak forward (Dao 2023, section 1);
  on H100 taken to lose as much as FlashAttention-2 does.
- Elsewhere half of the peak is assumed.

Backward runs at 0.87 of the forward rate (figures 5 and 6 of Shah 2024: 322 / 370, 516 / 595, 561 / 648), and 2.5 times
the FLOPs. Short sequences and small heads run slower, by half at 320 tokens (figure 5: FlashAttention-2 191 of 335 at
512, 260 at 1,024, 298 at 2,048; cuDNN 315, 410, 484 of 539) and by a fifth for heads of 64 (335 and 299, 539 and 388,
616 and 473).

On Blackwell nobody states the backward rate. It multiplies twice as much per clock and unit as Hopper; its shared memory (128
bytes per clock and unit), which paces backward, and its exponentials (16) are as fast as there (Zadouri 2026). So what a kernel
spends beside its products on Hopper, where they take 0.49 of its time (0.56 x 0.87), is taken to last as many clocks:
1 / (1 + 2 x (1 / 0.49 - 1)) = 0.32 of the peak, 0.58 of the forward rate. Blackwell Ultra has twice the exponentials (NVIDIA,
"Making Softmax More Efficient with NVIDIA Blackwell Ultra"): a tile of 128 x 128 scores waits for them 512 clocks less, a fifth of
the 2,560 of its products with heads of 128: 0.34 of the peak, 0.63 of the forward rate.
"""

from __future__ import annotations

from services.forecast.cost_model.machine import AMPERE, BLACKWELL, BLACKWELL_ULTRA, HOPPER, Machine

_BACKWARD_FLOPS = 2.5
_HALF_SEQUENCE = 320.0
_HALF_HEAD = 40.0
_REFERENCE_HEAD = 128.0
_UNKNOWN = 0.5
# By year of the chip's architecture, newest first, then by generation of the kernel.
_NVIDIA = {
    BLACKWELL: {1: 0.21, 2: 0.21, 3: 0.55},
    HOPPER: {1: 0.19, 2: 0.34, 3: 0.56},
    AMPERE: {1: 0.38, 2: 0.66},
    0: {1: 0.30},
}
_BACKWARD_RATE = 0.87
# Of the third generation.
_BACKWARD_RATES = {BLACKWELL_ULTRA: 0.63, BLACKWELL: 0.58}


def reached_share(machine: Machine, generation: int, sequence: float, head_size: float) -> float:
    """Share of the peak of causal attention forward; ``generation`` 1 to 3 of FlashAttention, 0: the newest for the chip."""
    best = _UNKNOWN
    if machine.vendor == "nvidia":
        by_generation = _by_generation(machine)
        best = by_generation.get(generation or max(by_generation), by_generation[max(by_generation)])
    head = head_size / (head_size + _HALF_HEAD) * (_REFERENCE_HEAD + _HALF_HEAD) / _REFERENCE_HEAD
    return best * head * sequence / (sequence + _HALF_SEQUENCE)


def backward_ratio(machine: Machine, generation: int) -> float:
    """Time of the backward pass of attention over that of the forward pass."""
    rate = _BACKWARD_RATE
    if machine.vendor == "nvidia" and (generation or max(_by_generation(machine))) not in {1, 2}:
        rate = _BACKWARD_RATES.get(machine.year, rate)
    return _BACKWARD_FLOPS / rate


def _by_generation(machine: Machine) -> dict[int, float]:
    return next(table for year, table in _NVIDIA.items() if machine.year >= year)
