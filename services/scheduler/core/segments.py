"""Which nodes hold something for a while, asked for all beginnings at once: arithmetic over segments of time.

What nodes hold in a segment is a row of bits, 64 nodes a word. A node holds it from one segment up to another when its bit is
set in the conjunction of their words. Conjunctions over 1, 2, 4 ... segments are made by doubling, and two of them that
overlap cover any span (the sparse table of Bender and Farach-Colton, "The LCA Problem Revisited", LATIN 2000).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from services.scheduler.core.table import Bools, Floats, Ints

Words = npt.NDArray[np.uint64]

_BITS = 64
_EVERY = np.uint64(2**_BITS - 1)
_MOST_LEVELS = 16
"""Counts per node up to which `least` looks at each count at once for all segments."""
_FIRST, _MOST_OVERLAP = 64, 4


def packed(holds: Bools) -> Words:
    """Truth values by segment and node (S, N) as words (S, W)."""
    size, nodes = holds.shape
    width = max(-(-nodes // _BITS), 1)
    wide = np.zeros((size, width * _BITS), dtype=np.bool_)
    wide[:, :nodes] = holds
    words: Words = np.packbits(wide.reshape(-1)).view(np.uint64).reshape(size, width)
    return words


def unpacked(words: Words, nodes: int) -> Bools:
    """The truth values (..., N) of words (..., W)."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    holds: Bools = np.unpackbits(octets, axis=-1, count=nodes).view(np.bool_)
    return holds


def throughout(words: Words, ends: Ints) -> Words:
    """What holds (S, W) in all segments from each of the first B up to its end (B; exclusive, at most S): (B, W). A span
    without a segment (its end is its beginning) is held everywhere."""
    size, width = words.shape
    starts = np.arange(len(ends))
    spans = ends - starts
    levels = np.frexp(spans)[1] - 1
    longest = int(spans.max(initial=0))
    table = np.empty((max(longest.bit_length(), 1), size, width), dtype=np.uint64)
    table[0] = words
    for level in range(1, len(table)):
        # Where fewer segments are left than the level has, nothing is read later.
        before, step = table[level - 1], 1 << (level - 1)
        np.bitwise_and(before[: size - step], before[step:], out=table[level, : size - step])
    places = levels * size
    flat = table.reshape(-1, width)
    held: Words = flat.take(places + starts, axis=0, mode="clip")
    np.bitwise_and(held, flat.take(places + ends - (1 << np.maximum(levels, 0)), axis=0, mode="clip"), out=held)
    if np.count_nonzero(spans) < len(spans):
        held[spans == 0] = _EVERY
    return held


def least(table: Floats, ends: Ints) -> Floats:
    """The least count of each node (S, N) over the segments from each of the first B up to its end (B; exclusive): (B, N)."""
    most = int(table.max(initial=0.0))
    if most > _MOST_LEVELS:
        return np.array([table[start : max(end, start + 1)].min(axis=0) for start, end in enumerate(ends.tolist())])
    out = np.zeros_like(table[: len(ends)])
    for level in range(1, most + 1):
        out += unpacked(throughout(packed(table >= level), ends), table.shape[1])
    return out


def parts(ends: Ints) -> Iterator[int]:
    """Where to go on after a part of the beginnings, whose spans end at ``ends`` (S; growing): few at first, as one of the first
    mostly does, then more; all at once where spans are so long that parts would overlap by far."""
    first, count = 0, _FIRST
    while first < len(ends):
        last = min(first + count, len(ends))
        if ends[last - 1] - first > _MOST_OVERLAP * count:
            last = len(ends)
        yield last
        first, count = last, 2 * count


def with_any(hits: npt.NDArray[Any]) -> Iterator[int]:
    """The rows of truth values (S, K) in which one is true, in order: found one after the other, as the first mostly does."""
    width = hits.shape[1]
    flat = np.ascontiguousarray(hits).reshape(-1)
    at = 0
    while at < len(flat):
        at += int(flat[at:].argmax())
        if not flat[at]:
            return
        row = at // width
        yield row
        at = (row + 1) * width


def ratio(free: Any, amount: float, slack: float = 0.0) -> Any:
    """How often an amount goes into what is free, and a little more."""
    out = free + slack
    out /= amount
    return np.floor(out, out=out)


def cuts(ends: Floats, most: int) -> tuple[Floats, Ints]:
    """Times at which segments begin, and the segment of each end; -1 for ends that never come. Where there are more ends than
    ``most``, some begin no segment."""
    finite = np.isfinite(ends)
    times = np.unique(ends[finite])
    if len(times) > most:
        times = times[np.linspace(0, len(times) - 1, most).astype(np.int64)]
    segments = np.where(finite, np.searchsorted(times, np.where(finite, ends, 0.0), side="left") + 1, -1)
    return times, segments.astype(np.int64)
