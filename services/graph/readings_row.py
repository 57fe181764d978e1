"""The readings of a node as two values of a row: JSON of what they are, and their numbers packed, one after the other.

Written anew with every observation: as text the numbers would cost twenty times as much.

``names``: of each metric its name and the accelerators it is known of (-1: the node). ``numbers``, little-endian, 16 bytes each, in
the same order: value, and its time in seconds since 1970.

The release before kept the same as JSON in a column of its own, which rows written by this one have empty: what stands there was
written last, by a process of that release.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache

from services.graph.facts import Readings

_PAIR = "<dd"


@lru_cache(maxsize=4096)
def _form(count: int) -> struct.Struct:
    return struct.Struct(f"<{2 * count}d")


@lru_cache(maxsize=4096)
def _names(places: tuple[tuple[str, tuple[int, ...]], ...]) -> str:
    """Nodes of one kind have the same."""
    return json.dumps(places)


def packed(found: Readings) -> tuple[str, bytes]:
    """``names`` and ``numbers`` of the readings of a node."""
    names = _names(tuple([(metric, tuple(series)) for metric, series in found.items()]))
    numbers = [number for series in found.values() for pair in series.values() for number in pair]
    return names, _form(len(numbers) // 2).pack(*numbers)


def unpacked(names: str, numbers: bytes, before: Mapping[str, Mapping[str, Sequence[float]]] | None = None) -> Readings:
    """What `packed` was given. ``before``: what a process of the release before wrote since, {metric: {index: [value, time]}}."""
    if before:
        return {
            metric: {int(index): (value, at_s) for index, (value, at_s) in series.items()}
            for metric, series in before.items()
        }
    pairs = struct.iter_unpack(_PAIR, numbers)
    return {metric: {index: next(pairs) for index in indices} for metric, indices in json.loads(names)}
