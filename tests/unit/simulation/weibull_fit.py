"""The Weibull law of greatest likelihood, to compare drawn and public failures with."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def fit_weibull(intervals_s: NDArray[np.float64]) -> tuple[float, float]:
    """Shape and mean of the Weibull law of greatest likelihood for ``intervals_s``, shape (n,), all above 0.

    The shape k solves ``sum(t^k ln t) / sum(t^k) - 1/k = mean(ln t)``, whose left side rises in k (bisection between 0.01
    and 100); the mean is ``scale x gamma(1 + 1/k)`` with ``scale = mean(t^k)^(1/k)``. Errors: fewer than two, equal ones.
    """
    times = np.asarray(intervals_s, dtype=np.float64)
    if times.ndim != 1 or len(times) < 2 or not (times > 0).all() or not np.isfinite(times).all():
        raise ValueError("intervals_s: at least two finite values above 0 are needed")
    greatest = float(times.max())
    if float(times.min()) == greatest:
        raise ValueError("intervals_s: all values are equal")
    logs = np.log(times / greatest)
    low, high = 0.01, 100.0
    for _ in range(80):
        shape = math.sqrt(low * high)
        powers = np.exp(shape * logs)
        if float(powers @ logs / powers.sum()) - 1 / shape > float(logs.mean()):
            high = shape
        else:
            low = shape
    shape = math.sqrt(low * high)
    scale = greatest * float(np.exp(shape * logs).mean()) ** (1 / shape)
    return shape, scale * math.gamma(1 + 1 / shape)
