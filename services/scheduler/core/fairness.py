"""Indices by which fairness is measured: Mahajan et al., NSDI 2020 (Themis: finish-time fairness); Jain, Chiu and Hawe,
DEC-TR-301, 1984."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meridian.errors import InvalidArgumentError
from services.scheduler.core.share_tree import Floats, checked_amounts


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


def finish_time_fairness(shared_s: npt.ArrayLike, alone_s: npt.ArrayLike) -> Floats:
    """Themis' rho (J,): the time from arrival to finish in the shared system / the same with 1/N of the system for itself
    alone. Above 1: sharing cost the job time. Times (J,) above 0."""
    shared, alone = checked_amounts("shared_s", shared_s), checked_amounts("alone_s", alone_s)
    if not np.all(alone > 0):
        raise InvalidArgumentError("alone_s must be above 0")
    rho: Floats = shared / alone
    return rho
