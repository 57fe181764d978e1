"""Facts that plugins read by name from `View.facts`, checked where they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.table import Floats
from services.scheduler.core.view import View


def by_domain(view: View, name: str) -> Floats | None:
    """The fact as a value per domain (D); None when it is not known. PolicyError when it has another shape."""
    return _array(view, name, len(view.table.domain_ids), "domain")


def by_node(view: View, name: str) -> Floats | None:
    """The fact as a value per node (N); None when it is not known. PolicyError when it has another shape."""
    return _array(view, name, len(view.table.nodes), "node")


def with_method(view: View, name: str, method: str) -> Any:
    """The fact, an object with this method; None when it is not known. PolicyError when it has no such method."""
    value = view.facts.get(name)
    found: Callable[..., Any] | None = getattr(value, method, None)
    if value is not None and not callable(found):
        raise PolicyError(f"facts.{name}: an object with the method {method} is wanted, not {value!r}")
    return value


def _array(view: View, name: str, size: int, per: str) -> Floats | None:
    value = view.facts.get(name)
    if value is None:
        return None
    values = np.asarray(value, dtype=np.float64)
    if values.shape != (size,):
        raise PolicyError(f"facts.{name}: one value per {per} is wanted ({size}), not the shape {values.shape}")
    return values
