"""The series of a node as two values of a row: JSON of what they are, and their numbers packed, one after the other.

Writing a float as text and reading it again costs a hundred times what copying its eight bytes does, and every report brings all
of them anew.

``names``: one list a series: accelerator index (-1: the node), metric, and where there are any, reason, profile and memory of the
part. ``numbers``, little-endian, 48 bytes a series: value (NaN unknown), time of the reading, source, statistic, reports unchanged,
time in the history, unchanged since, kind of the unknown.

The release before kept the same as JSON in a column of its own, which rows written by this one have empty: what stands there was
written last, by a process of that release.
"""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from math import isnan, nan

from services.telemetry.reading_check import Series, SeriesKey, SeriesOfNode

_NUMBERS = "ddiiiddi"
_FIELDS = len(_NUMBERS)
_NO_TEXTS = ("", "", 0)
_FIELDS_BEFORE = (
    "value", "observed_at_s", "source", "statistic", "reason", "unchanged_reports", "history_at_s", "unchanged_since_s",
    "unknown_kind", "part_profile", "part_memory_bytes",
)  # fmt: skip


@lru_cache(maxsize=4096)
def _form(count: int) -> struct.Struct:
    return struct.Struct("<" + _NUMBERS * count)


@lru_cache(maxsize=4096)
def _plain(keys: tuple[SeriesKey, ...]) -> str:
    """``names`` of series without texts: nodes of one kind have the same."""
    return json.dumps(keys)


def packed(found: SeriesOfNode) -> tuple[str, bytes]:
    """``names`` and ``numbers`` of the series of a node."""
    numbers = [number for series in found.values() for number in series[:_FIELDS]]
    texts = [series[_FIELDS:] for series in found.values()]
    if texts.count(_NO_TEXTS) == len(texts):
        names = _plain(tuple(found))
    else:
        names = json.dumps(
            [(*key, *(text if text != _NO_TEXTS else ())) for key, text in zip(found, texts, strict=True)]
        )
    form = _form(len(found))
    try:
        return names, form.pack(*numbers)
    except struct.error:  # an unknown value is None
        return names, form.pack(*[nan if number is None else number for number in numbers])


def unpacked(names: str, numbers: bytes, before: str | None = None) -> SeriesOfNode:
    """What `packed` was given. ``before``: JSON that a process of the release before wrote since, {metric: {index: fields}}."""
    if before:
        return {
            (int(index), metric): Series(**dict(zip(_FIELDS_BEFORE, fields, strict=False)))
            for metric, by_index in json.loads(before).items()
            for index, fields in by_index.items()
        }
    found: SeriesOfNode = {}
    for name, fields in zip(json.loads(names), struct.iter_unpack("<" + _NUMBERS, numbers), strict=True):
        index, metric, *texts = name
        value, *rest = fields
        found[index, metric] = Series(None if isnan(value) else value, *rest, *texts)
    return found
