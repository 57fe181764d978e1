"""Which nodes hold something for a while: against the definition, segment by segment."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from services.scheduler.core.segments import cuts, least, packed, parts, throughout, unpacked, with_any
from services.scheduler.core.table import Floats, Ints


def _ends(draw: st.DrawFn, size: int) -> Ints:
    spans = draw(st.lists(st.integers(0, size), min_size=size, max_size=size))
    return np.minimum(np.arange(size) + np.array(spans, dtype=np.int64), size)


@st.composite
def _counts(draw: st.DrawFn) -> tuple[Floats, Ints]:
    shape = draw(st.tuples(st.integers(1, 20), st.sampled_from([1, 7, 8, 63, 64, 65, 130])))
    table = draw(arrays.arrays(np.float64, shape, elements=st.integers(0, 3).map(float), fill=st.just(2.0)))
    return table, _ends(draw, shape[0])


@settings(max_examples=80, deadline=None)
@given(_counts())
def test_what_holds_throughout_is_what_holds_in_each_segment(case: tuple[Floats, Ints]) -> None:
    table, ends = case
    holds = table >= 2
    found = unpacked(throughout(packed(holds), ends), holds.shape[1])
    for first in range(len(ends)):
        assert unpacked(throughout(packed(holds), ends[:first]), holds.shape[1]).tolist() == found[:first].tolist()
    for start, end in enumerate(ends.tolist()):
        assert found[start].tolist() == holds[start:end].all(axis=0).tolist()


@settings(max_examples=80, deadline=None)
@given(_counts(), st.sampled_from([1.0, 10.0]))
def test_the_least_is_that_of_each_segment_of_the_span(case: tuple[Floats, Ints], times: float) -> None:
    """Counts up to 3 are looked at one by one, those up to 30 are not."""
    table, ends = case[0] * times, np.maximum(case[1], np.arange(len(case[0])) + 1)
    found = least(table, ends)
    for first in range(len(ends)):
        assert least(table, ends[:first]).tolist() == found[:first].tolist()
    for start, end in enumerate(ends.tolist()):
        assert found[start].tolist() == table[start:end].min(axis=0).tolist()


@pytest.mark.parametrize("nodes", [1, 8, 64, 65])
def test_what_was_packed_is_unpacked(nodes: int) -> None:
    holds = np.arange(5 * nodes).reshape(5, nodes) % 3 == 0
    words = packed(holds)
    assert words.shape == (5, -(-nodes // 64))
    assert unpacked(words, nodes).tolist() == holds.tolist()
    assert unpacked(words[3], nodes).tolist() == holds[3].tolist()


@pytest.mark.parametrize("width", [0, 1, 3])
def test_rows_with_any_come_in_order_and_once(width: int) -> None:
    hits = np.zeros((6, width), dtype=np.bool_)
    hits[[1, 2, 5]] = True
    hits[3, 1:2] = True
    assert list(with_any(hits)) == ([] if not width else [1, 2, 5] if width == 1 else [1, 2, 3, 5])
    assert list(with_any(hits.T.copy().T)) == list(with_any(hits)), "whatever lies beside what"


def test_ends_beyond_the_most_begin_no_segment_of_their_own() -> None:
    times, segments = cuts(np.array([30.0, 10.0, np.inf, 20.0, 10.0]), 2)
    assert times.tolist() == [10.0, 30.0]
    assert segments.tolist() == [2, 1, -1, 2, 1], "20 is put off to 30, and what never ends has no segment"


def test_parts_grow_and_end_where_all_do() -> None:
    """64 beginnings, then 128, and so on; where spans reach far beyond four times as many, all that are left."""
    short = np.arange(1000) + 1
    assert list(parts(short)) == [64, 192, 448, 960, 1000]
    assert list(parts(np.full(1000, 1000))) == [1000]
    assert list(parts(np.minimum(short + 200, 1000))) == [1000]
    assert list(parts(np.minimum(short + 192, 1000))) == [64, 192, 448, 960, 1000]
    assert list(parts(short[:0])) == []
