"""AdamW (Loshchilov and Hutter 2019) on one flat vector, with linear warm-up and cosine decay."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from layers import Array


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning rate per step: linear to `peak` over `warmup_steps`, then a cosine down to a tenth of it."""

    peak: float
    warmup_steps: int
    total_steps: int

    def learning_rate(self, step: int) -> float:
        """Rate of update number `step`, counted from 1."""
        if step <= self.warmup_steps:
            return self.peak * step / self.warmup_steps
        remaining = max(1, self.total_steps - self.warmup_steps)
        fraction = min(1.0, (step - self.warmup_steps) / remaining)
        return self.peak * (0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * fraction)))


@dataclass(frozen=True, slots=True)
class AdamW:
    """Decoupled weight decay only where `decay_mask` is 1; the moments belong to the caller, who checkpoints them."""

    decay_mask: Array
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-8

    def update(self, parameters: Array, gradient: Array, first: Array, second: Array, step: int, rate: float) -> None:
        """Apply update number `step` (from 1) in place to the parameters and both moments."""
        first *= self.beta1
        first += (1.0 - self.beta1) * gradient
        second *= self.beta2
        second += (1.0 - self.beta2) * gradient * gradient
        denominator = np.sqrt(second / (1.0 - self.beta2**step))
        denominator += self.epsilon
        parameters -= (rate * self.weight_decay) * self.decay_mask * parameters
        parameters -= (rate / (1.0 - self.beta1**step)) * first / denominator


def clip_by_norm(gradient: Array, limit: float) -> float:
    """Scale the gradient in place so that its Euclidean norm is at most `limit`; returns the norm before."""
    norm = math.sqrt(float(np.square(gradient, dtype=np.float64).sum()))
    if norm > limit:
        gradient *= limit / norm
    return norm
