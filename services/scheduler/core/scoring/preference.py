"""Which devices of a node a rank gets, where a score of nodes has chosen the node for one of them.

A node score may have a method ``devices(view, demand, columns, row)``: the device indices that one rank is to get on the
node, of the models ``columns``, all of them with room; empty leaves it to the view (least model that suffices, fullest
devices first). Of several such scores the one with the greatest weight decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from services.scheduler.core.scores import NodeScore
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Ints
from services.scheduler.core.view import View


@runtime_checkable
class DevicePreference(Protocol):
    """See the module."""

    def devices(self, view: View, demand: Demand, columns: Ints, row: int) -> tuple[int, ...]:
        """Device indices for one rank on the node ``row``, as many as it asks for; empty for no preference."""
        ...


def device_preference(scores: Iterable[tuple[NodeScore, float]]) -> DevicePreference | None:
    """The weightiest of the scores that choose devices; None when none does."""
    found = [(score, weight) for score, weight in scores if isinstance(score, DevicePreference) and weight > 0]
    return max(found, key=lambda pair: pair[1])[0] if found else None
