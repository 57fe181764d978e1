"""How a setting of each kind of reserve is chosen, from figures made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from bench.preallocation import FIGURES, KINDS, PRIORITY, VARIANTS, Variant, choose, interval, mean_over_tenants

OWN, OTHERS = FIGURES.index("wait_mean_h"), FIGURES.index("others_wait_mean_h")


def figures(own: float, others: float) -> np.ndarray:
    row = np.zeros((2, len(FIGURES)))
    row[:, OWN], row[:, OTHERS] = own, others
    return row


def test_the_least_wait_among_those_that_do_not_hurt_the_others_is_chosen() -> None:
    found = {}
    for tenant, factor in (("a", 1.0), ("b", 3.0)):
        found[PRIORITY.name, tenant] = figures(10.0 * factor, 10.0 * factor)
        for variant in VARIANTS:
            found[variant.name, tenant] = figures(9.0 * factor, 12.0 * factor)
        found["headroom 8", tenant] = figures(8.0 * factor, 10.9 * factor)
        found["headroom 16", tenant] = figures(5.0 * factor, 11.1 * factor)
        found["oracle 16", tenant] = figures(2.0 * factor, 9.0 * factor)
    chosen = choose(found, ["a", "b"])
    assert chosen == {"headroom": Variant("headroom", 8.0), "oracle": Variant("oracle", 16.0)}
    assert set(chosen) <= set(KINDS)
    assert mean_over_tenants(found, PRIORITY, ["a", "b"])[0, OWN] == pytest.approx(20.0)


def test_the_interval_is_that_of_the_mean_over_seeds() -> None:
    assert interval(np.full(5, 3.0)) == (3.0, 3.0)
    low, high = interval(np.array([0.0, 0.0, 0.0, 0.0, 10.0]))
    assert low == 0.0
    assert 4.0 <= high <= 8.0
