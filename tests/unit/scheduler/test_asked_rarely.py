"""What a cycle need not ask about it does not ask about, and what it says is as things are now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.deciding.state import State
from services.scheduler.core.fleet import Domain, with_domain
from services.scheduler.core.policy import Policy, policy_from_json
from services.scheduler.core.scores import PackScore
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.view import View
from services.scheduler.core.waiting_unit import PendingUnit
from tests.unit.scheduler.world import a_fleet, a_node

DEMANDS = [Demand(1, cpus=0.01 * number, accelerators=1 + number % 3) for number in range(1, 21)]


def a_unit(name: str, demand: Demand, tenant: str = "lab") -> PendingUnit:
    return PendingUnit(UnitKey(name, 0), tenant, 0, 0.0, demand)


def test_one_demand_with_room_is_enough_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(table_of(a_fleet({"a": 60, "b": 60})), Policy())
    cluster.extend(a_unit(f"job-{number}", DEMANDS[number % len(DEMANDS)]) for number in range(160))
    explained = decide(cluster, cluster.policy, 0.0)
    asked = 0
    has_room = State._has_room

    def noted(self: State, demand: Demand) -> bool:
        nonlocal asked
        asked += 1
        return has_room(self, demand)

    monkeypatch.setattr(State, "_has_room", noted)
    told = decide(cluster, cluster.policy, 0.0, explain=False)
    assert [(item.key, item.ranks) for item in told.placed] == [(item.key, item.ranks) for item in explained.placed]
    # When it begins each of them, then one for each placement; those that are full are asked once more.
    assert asked <= len(told.placed) + 2 * len(DEMANDS)


def test_nodes_of_other_domains_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[int] = []
    node = PackScore.node

    def noted(self: PackScore, view: View, demand: Demand, row: int) -> float:
        judged.append(row)
        return node(self, view, demand, row)

    monkeypatch.setattr(PackScore, "node", noted)
    cluster = Cluster(table_of(a_fleet({"a": 4, "b": 4})), Policy(scores=(("spread", 1.0), ("pack", 1.0))))
    view = cluster.view
    (places,) = cluster.candidates(DEMANDS[0])
    # Domain a is the emptier one: nodes of b were taken from.
    for row in (4, 5, 6):
        view.occupy(row, Demand(1, accelerators=2), (0, 1))
    first = places.choose()
    assert first is not None
    assert (first.domains, judged) == ((0,), [])
    for row in range(4):
        view.occupy(row, Demand(1, accelerators=3), (0, 1, 2))
    second = places.choose()
    assert second is not None
    # The fullest with room, as it is now.
    assert (second.domains, second.rows) == ((1,), ((4, 1),))
    assert sorted(judged) == [4, 5, 6]


def test_explanations_count_every_model_as_it_is_now() -> None:
    """A gang takes one model: who is held back by a limit is told of the room on both, whichever was looked at last."""
    fleet = a_fleet({"a": 3})
    fleet = with_domain(fleet, Domain("b"), [a_node(f"b-{n}", "b", model="H100") for n in range(5)], full_of="b")
    policy = policy_from_json({"name": "p", "limits": ["max_running"], "options": {"max_running": {"default": 1}}})
    pair = a_unit("pair", Demand(2, cpus=1.0, accelerators=4), "red")

    def explained(cluster: Cluster) -> dict[str, Any]:
        found = {item.key.job_id: item.explanation.as_json() for item in decide(cluster, policy, 0.0).waiting}
        return found["pair"]

    def running(cluster: Cluster, name: str, tenant: str, model: str) -> None:
        demand = Demand(1, cpus=1.0, accelerators=4, accelerator_types=(model,))
        cluster.add(a_unit(name, demand, tenant))
        cluster.apply(decide(cluster, policy, 0.0), 0.0)
        assert any(key.job_id == name for key in cluster.running)

    kept, anew = Cluster(table_of(fleet), policy), Cluster(table_of(fleet), policy)
    running(kept, "first", "red", "A100")
    kept.add(pair)
    explained(kept)
    for number, model in enumerate(("A100", "H100", "H100")):
        running(kept, f"other-{number}", f"tenant-{number}", model)
    for item in kept.running.values():
        anew.occupy(replace(item))
    anew.add(pair)
    kept.forget()
    assert explained(kept) == explained(anew)
