"""Away from neighbours that slow a unit down, or that it would slow down, by measured pairs of profiles.

Who runs where is known by labels: a unit with a profile bears `profile_label`. Slow-downs come from the fact ``interference``,
an object with the method of `Interference`; without it all nodes are alike (1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from services.scheduler.core.scoring.facts import with_method
from services.scheduler.core.scoring.shared import indices
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Floats
from services.scheduler.core.view import View

_PREFIX = "profile:"
Profile = tuple[str, int]


class Interference(Protocol):
    """How much profiles, as (name, ranks), slow each other down on shared devices."""

    def rate(self, profile: Any, neighbours: Sequence[Any], model: str = "") -> float:
        """The rate that a profile keeps beside others on a model, relative to running alone: 0-1."""
        ...


def profile_label(name: str, ranks: int = 1) -> str:
    """The label of units with this profile: ``profile:NAME:RANKS``."""
    return f"{_PREFIX}{name}:{ranks}"


def profile_of(label: str) -> Profile | None:
    """(name, ranks) of a `profile_label`; ``profile:NAME`` means one rank. None for other labels."""
    if not label.startswith(_PREFIX):
        return None
    text = label.removeprefix(_PREFIX)
    name, _, ranks = text.rpartition(":")
    return (name, int(ranks)) if name and ranks.isdecimal() else (text, 1)


class InterferenceScore:
    """The least rate that the unit or one of the profiles on the node keeps when they share a device, pair by pair.

    1 beside nobody, and for units that take whole devices: the pairs are measured on shared ones. A node's units may be on
    other devices of it than the unit will get, so with several devices the value is on the careful side. On a node with
    devices of several models the first one's pairs count.
    """

    name = "interference"
    dynamic = True

    def nodes(self, view: View, demand: Demand, rows: Any) -> Floats:
        table = view.table
        index = indices(view, rows)
        values = np.ones(len(index))
        known: Interference | None = with_method(view, "interference", "rate")
        if known is None or not demand.profile or not demand.accelerators or demand.device_milli >= 1000:
            return values
        own = (demand.profile, demand.ranks)
        first = table.device_columns[index, 0] if table.device_columns.shape[1] else np.full(len(index), -1)
        for label, holders in view.labels.items():
            other = profile_of(label)
            if other is None or not holders:
                continue
            if len(index) < len(holders):
                here = np.array([row in holders for row in index.tolist()], dtype=np.bool_)
            else:
                here = np.isin(index, np.fromiter(holders, dtype=np.int64, count=len(holders)))
            for column in np.unique(first[here]).tolist():
                model = table.models[column].model if column >= 0 else ""
                rate = min(known.rate(own, [other], model), known.rate(other, [own], model))
                places = here & (first == column)
                values[places] = np.minimum(values[places], min(max(rate, 0.0), 1.0))
        return values
