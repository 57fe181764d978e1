"""The index by which fairness is measured: Jain, Chiu and Hawe, DEC-TR-301, 1984."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meridian.errors import InvalidArgumentError
from services.scheduler.core.entitlement.share_tree import checked_amounts


def jain_index(values: npt.ArrayLike) -> float:
    """(sum x)^2 / (n sum x^2): 1 when all are equal, 1/n when one has everything; 1 when nobody has anything."""
    x = checked_amounts("values", values).ravel()
    if not x.size:
        raise InvalidArgumentError("values must not be empty")
    top = float(x.max())
    if not top:
        return 1.0
    x = x / top  # so that squares neither overflow nor vanish
    return float(x.sum() ** 2 / (x.size * np.sum(x * x)))
