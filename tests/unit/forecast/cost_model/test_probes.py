"""Which runs tell most of the others: by hand, and by trying all sets."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.forecast.cost_model.calibration import Likeness, Prior, Traits, corrections
from services.forecast.cost_model.probes import Telling

WIDTHS = Prior(amplitude=0.06, reach=4.0, noise=0.03)
RUN = Traits((10.0,), ("a100", "bf16"), (1.0,))


def _at(*sizes: float) -> list[Traits]:
    return [replace(RUN, sizes=(size,)) for size in sizes]


def test_the_middle_first_then_the_sides() -> None:
    telling = Telling.of(_at(0, 4, 8, 12, 16), WIDTHS)
    assert telling.most(1, range(5)) == [2]
    assert telling.most(3, range(5)) == [2, 0, 4]
    # Of equals the first that is available; all when there are no more.
    assert telling.most(1, [0, 4]) == [0]
    assert telling.most(9, [4, 0]) == [4, 0]
    assert telling.most(0, range(5)) == []


def test_of_runs_that_are_alike_one_is_enough() -> None:
    """Ten runs of one kind and two of another that tell nothing of them: the second to measure is of the other kind."""
    runs = [*[RUN] * 10, *[replace(RUN, kinds=("h100", "fp8"))] * 2]
    first, second = Telling.of(runs, replace(WIDTHS, kind=50.0)).most(2, range(12))
    assert (first, second) == (0, 10)


def test_by_hand() -> None:
    """Runs at 0, 1 and 3 steps with a reach of four: what each takes off the sum of the variances."""
    runs = _at(0, 1, 3)
    near = {(a, b): 0.0036 * np.exp(-abs(a - b) / 4) for a, b in itertools.product((0, 1, 3), repeat=2)}
    off = [sum(near[a, b] ** 2 for a in (0, 1, 3)) / (0.0036 + 0.0009) for b in (0, 1, 3)]
    assert int(np.argmax(off)) == 1
    assert Telling.of(runs, WIDTHS).most(1, range(3)) == [1]
    assert Telling.of(runs, WIDTHS).most(1, [0, 2]) == [(0, 1, 2)[int(np.argmax([off[0], -1, off[2]]))]]


RUNS = st.lists(
    st.builds(
        Traits,
        sizes=st.tuples(st.integers(0, 8).map(float), st.integers(0, 8).map(float)),
        kinds=st.tuples(st.sampled_from(["a100", "h100"])),
        waits=st.tuples(st.floats(0.1, 1)),
    ),
    min_size=2,
    max_size=7,
)


@given(RUNS, st.integers(1, 3))
def test_different_runs_and_none_alone_tells_more(runs: list[Traits], count: int) -> None:
    telling = Telling.of(runs, WIDTHS)
    chosen = telling.most(count, range(len(runs)))
    assert len(set(chosen)) == len(chosen) == min(count, len(runs))
    near = Likeness.of(runs, runs).near(WIDTHS)
    alone = (near**2).sum(axis=0) / (np.diag(near) + WIDTHS.noise**2)
    assert alone[chosen[0]] == pytest.approx(alone.max())


@given(RUNS)
def test_what_is_measured_narrows_the_others(runs: list[Traits]) -> None:
    chosen = Telling.of(runs, WIDTHS).most(1, range(len(runs)))
    before = corrections([], [], [], runs, WIDTHS)
    after = corrections([runs[at] for at in chosen], [1.0], [1.0], runs, WIDTHS)
    assert all(now.spread <= then.spread + 1e-12 for now, then in zip(after, before, strict=True))
