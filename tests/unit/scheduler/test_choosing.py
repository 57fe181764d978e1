"""Nodes for the ranks of a gang: those that hold most first, of these the best; many at once as one by one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from services.scheduler.core import choosing
from services.scheduler.core.cluster import alternatives
from services.scheduler.core.fleet import Domain, Fleet, with_domain
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand
from services.scheduler.core.table import table_of
from services.scheduler.core.view import View
from tests.unit.scheduler.world import a_node

PACKING = Policy(name="packing", filters=("capacity",), scores=(("pack", 1.0),))


def chosen(sizes: list[int], cpus: list[float], ranks: int) -> tuple[tuple[int, int], ...]:
    """Rows and ranks for a gang of single accelerators on nodes of these sizes; CPUs make their scores differ."""
    nodes = [
        a_node(f"n-{place:04d}", "a", devices=size, cpus=cores)
        for place, (size, cores) in enumerate(zip(sizes, cpus, strict=True))
    ]
    view = View(table_of(with_domain(Fleet(), Domain("a"), nodes, full_of="a")))
    demand = Demand(ranks, cpus=1.0, accelerators=1)
    (candidates,) = alternatives(view, demand, PACKING)
    choice = candidates.choose()
    assert choice is not None
    return choice.rows


@pytest.mark.parametrize("seed", range(8))
def test_many_nodes_at_once_are_those_that_one_by_one_would_be(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(seed)
    sizes = draw.choice([1, 2, 4, 4, 8], 150).tolist()
    cpus = draw.choice([8.0, 16.0, 32.0, 64.0], 150).tolist()
    ranks = int(draw.integers(1, sum(sizes) + 1))
    at_once = chosen(sizes, cpus, ranks)
    monkeypatch.setattr(choosing, "_FEW", len(sizes))
    assert chosen(sizes, cpus, ranks) == at_once
    assert sum(count for _, count in at_once) == ranks
    # Those that hold most first; only the last may be a fuller or a smaller one.
    assert all(before >= after for (_, before), (_, after) in pairwise(at_once[:-1]))


def test_a_gang_of_thousands_does_not_look_at_each_node_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    sort = np.argsort

    def counted(*args: object, **more: object) -> object:
        nonlocal asked
        asked += 1
        return sort(*args, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(np, "argsort", counted)
    rows = chosen([4] * 2000, [8.0] * 2000, 6000)
    assert [count for _, count in rows] == [4] * 1500
    assert [row for row, _ in rows] == list(range(1500))
    assert asked == 1
