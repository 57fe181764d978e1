"""What is said of rejected nodes while capacity is taken and given is what asking every filter about every node would say."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from services.scheduler.core.explaining.explanation import Rejection
from services.scheduler.core.filters import FILTERS
from services.scheduler.core.fleet import Domain, with_domain
from services.scheduler.core.placement import Candidates
from services.scheduler.core.policy import Policy
from services.scheduler.core.rejecting import applies
from services.scheduler.core.state import Demand
from services.scheduler.core.table import table_of
from services.scheduler.core.view import View
from tests.unit.scheduler.world import a_fleet, a_node

GIB = 2**30
DEMANDS = (
    Demand(1, cpus=2.0),
    Demand(2, cpus=1.0, memory_bytes=8 * GIB, accelerators=1),
    Demand(1, cpus=1.0, accelerators=3),
    Demand(1, cpus=1.0, accelerators=1, device_milli=400),
    Demand(1, cpus=1.0, accelerators=1, accelerator_types=("H100",)),
    Demand(1, cpus=1.0, labels=frozenset({"loud"})),
    Demand(1, cpus=1.0, avoid=frozenset({"loud"})),
    Demand(1, cpus=1.0, service_port=8080),
    Demand(1, cpus=1.0, domains=frozenset({"a", "c"}), excluded_nodes=frozenset({"a-1"})),
    Demand(2, cpus=1.0, accelerators=1, topology="rack", topology_required=True),
    Demand(1, cpus=1.0, accelerators=1, real_accelerators=True),
)
ORDERS = {
    "as shipped": Policy().filters,
    "capacity first": ("capacity", "anti_affinity", "port", "accelerator", "up", "domain", "excluded_node"),
    "capacity between": ("up", "port", "capacity", "domain", "excluded_node", "anti_affinity"),
}


def plain(view: View, demand: Demand, policy: Policy) -> tuple[Rejection, ...]:
    """Every filter asked about every node."""
    left = np.ones(len(view.table.nodes), dtype=np.bool_)
    found = []
    for item in [FILTERS[name] for name in policy.filters]:
        passes = item.passes(view, demand, slice(None)) if applies(item, demand) else np.ones_like(left)
        rows = np.flatnonzero(left & ~passes).tolist()
        shown = [(view.table.nodes[row].node_id, item.why(view, demand, row)) for row in rows[: policy.shown_nodes]]
        found.append(Rejection(item.name, len(rows), tuple(shown)))
        left = left & passes
    return tuple(found)


def a_view() -> View:
    fleet = a_fleet({"a": 7, "b": 5}, devices=3, topology={"rack": "r"})
    others = [a_node(f"c-{number}", "c", devices=2, model="H100", cpus=4.0) for number in range(4)]
    return View(table_of(with_domain(fleet, Domain("c"), others, full_of="c")))


def move(view: View, held: list[tuple[int, Demand, tuple[int, ...]]], source: random.Random, steps: int) -> None:
    """Take and give at random; what does not fit is left."""
    for _ in range(steps):
        if held and source.random() < 0.4:
            view.give(*held.pop(source.randrange(len(held))))
            continue
        row, demand = source.randrange(len(view.table.nodes)), source.choice(DEMANDS)
        columns = view.columns(demand)
        if int(view.ranks_that_fit(demand, columns, np.array([row]))[0]) > 0:
            held.append((row, demand, view.take(row, demand, columns)))


def check(candidates: Sequence[Candidates], view: View, policy: Policy) -> None:
    for item in candidates:
        assert item.rejections == plain(view, item.demand, policy), item.demand


@pytest.mark.parametrize("shown", [0, 1, 3, 50])
@pytest.mark.parametrize("order", ORDERS)
def test_what_is_kept_up_to_date_is_what_all_filters_say(order: str, shown: int) -> None:
    policy = replace(Policy(), filters=ORDERS[order], shown_nodes=shown)
    source = random.Random(f"{order} {shown}")
    view = a_view()
    candidates = [Candidates(view, demand, view.columns(demand), policy) for demand in DEMANDS]
    # As for a gang, which takes one model for all ranks.
    candidates += [Candidates(view, DEMANDS[1], view.columns(DEMANDS[1])[:1], policy)]
    held: list[tuple[int, Demand, tuple[int, ...]]] = []
    for steps in (0, 1, 1, 2, 30, 3, 1, 40, 2, 1):
        move(view, held, source, steps)
        check(candidates, view, policy)
    view.begin()
    move(view, list(held), source, 9)
    check(candidates, view, policy)
    view.rollback()
    check(candidates, view, policy)
    other = view.copy()
    copies = [item.on(other) for item in candidates]
    move(other, list(held), source, 12)
    check(copies, other, policy)
    check(candidates, view, policy)
    move(view, held, source, 12)
    check(candidates, view, policy)
    check(copies, other, policy)


def test_reasons_of_nodes_that_nothing_touched_are_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    view, demand = a_view(), Demand(1, cpus=8.0)
    asked: list[int] = []
    capacity = FILTERS["capacity"]
    why = capacity.why

    def noted(view: View, demand: Demand, row: int) -> str:
        asked.append(row)
        return why(view, demand, row)

    monkeypatch.setattr(capacity, "why", noted, raising=False)
    candidates = Candidates(view, demand, view.columns(demand), Policy())
    # The four nodes of domain c are too small.
    for more, row in enumerate((5, 2), 1):
        view.occupy(row, Demand(1, cpus=1.0), ())
        assert candidates.rejections[-1].rejected == 4 + more
    assert sorted(asked) == [2, 5, 12, 13, 14, 15]
    view.occupy(2, Demand(1, cpus=1.0), ())
    assert candidates.rejections[-1].examples[0] == (view.table.nodes[2].node_id, "6 of 8 cpus free, 8 wanted")
    assert sorted(asked) == [2, 2, 5, 12, 13, 14, 15]
