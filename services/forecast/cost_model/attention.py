"""Fused attention: the share of a chip's peak that a generation of kernels reaches, from published benchmarks.

Asymptotes for causal attention with heads of 128 and long sequences, forward:

- FlashAttention-2 on H100 335 of 989 TFLOP/s, cuDNN 9 there 539 and FlashAttention-3 616 (Shah 2024, arXiv:2407.08608,
  figure 5); FlashAttention-2 on A100 two thirds of 312 (Dao 2023, arXiv:2307.08691, section 4.1).
- The first FlashAttention, and kernels in Triton of its time, on A100 30-50 % of the peak forward (Dao 2023, section 1);
  on H100 taken to lose as much as FlashAttention-2 does.
- Elsewhere half of the peak is assumed.

Backward runs at 0.87 of the forward rate (figures 5 and 6 of Shah 2024: 322 / 370, 516 / 595, 561 / 648), and 2.5 times
the FLOPs. Short sequences and small heads run slower, by half at 320 tokens (figure 5: FlashAttention-2 191 of 335 at
512, 260 at 1,024, 298 at 2,048; cuDNN 315, 410, 484 of 539) and by a fifth for heads of 64 (335 and 299, 539 and 388,
616 and 473).
"""

from __future__ import annotations

from services.forecast.cost_model.machine import Machine

# Backward over forward time.
BACKWARD = 2.5 / 0.87
_HALF_SEQUENCE = 320.0
_HALF_HEAD = 40.0
_REFERENCE_HEAD = 128.0
_UNKNOWN = 0.5
_HOPPER, _AMPERE = 2022, 2020
# By year of the chip's architecture, newest first, then by generation of the kernel.
_NVIDIA = {
    _HOPPER: {1: 0.19, 2: 0.34, 3: 0.56},
    _AMPERE: {1: 0.38, 2: 0.66},
    0: {1: 0.30},
}


def reached_share(machine: Machine, generation: int, sequence: float, head_size: float) -> float:
    """Share of the peak of causal attention forward; ``generation`` 1 to 3 of FlashAttention, 0: the newest for the chip."""
    best = _UNKNOWN
    if machine.vendor == "nvidia":
        by_generation = next(table for year, table in _NVIDIA.items() if machine.year >= year)
        best = by_generation.get(generation or max(by_generation), by_generation[max(by_generation)])
    head = head_size / (head_size + _HALF_HEAD) * (_REFERENCE_HEAD + _HALF_HEAD) / _REFERENCE_HEAD
    return best * head * sequence / (sequence + _HALF_SEQUENCE)
