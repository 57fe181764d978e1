"""Accelerators counted by what they can do: each weighted by the nominal compute index of its model.

The fact ``index`` maps model names to weights above 0; a model without one counts 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.table import Floats
from services.scheduler.core.view import View


def model_index(view: View) -> Floats:
    """The weight of each device model (M). PolicyError names one that is not above 0 and finite."""
    given = view.facts.get("index") or {}
    if not isinstance(given, Mapping):
        raise PolicyError(f"facts.index: a mapping from models to weights is wanted, not {given!r}")
    weights = [float(given.get(model.model, 1.0)) for model in view.table.models]
    for model, weight in zip(view.table.models, weights, strict=True):
        if not (math.isfinite(weight) and weight > 0):
            raise PolicyError(f"facts.index.{model.model}: must be above 0 and finite, not {weight!r}")
    return np.array(weights, dtype=np.float64)
