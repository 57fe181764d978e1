"""What others hold, laid over a shard's copy of its cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.scheduler.core.apart.others import lay_over
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, JobKind, JobSpec, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.two_level import Assignment, place_in_domain, summarise
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.what_if import answer
from tests.unit.scheduler.world import a_fleet

POLICY = Policy()
FLEET = a_fleet({"east": 3, "west": 1})
EAST = a_fleet({"east": 3})


def a_cluster(*held: tuple[str, Demand], east_only: bool = False) -> Cluster:
    cluster = Cluster(table_of(EAST if east_only else FLEET), POLICY)
    pinned = [(name, replace(demand, domains=frozenset({"east"}))) for name, demand in held]
    units = [PendingUnit(UnitKey(name, 0), "lab", 0, 0.0, demand) for name, demand in pinned]
    begun, refused = place_in_domain(cluster, [Assignment(unit, "east") for unit in units], 0.0)
    assert len(begun) == len(held), refused
    return cluster


MINE = ("mine", Demand(1, cpus=2.0, accelerators=3))


def test_as_many_nodes_have_so_many_devices_as_was_told() -> None:
    # 4 devices a node. The domain tells of all of it: mine, and others' 4, 2 and 1 on whatever nodes.
    domain = a_cluster(
        MINE, ("a", Demand(1, cpus=1.0, accelerators=4)), ("b", Demand(1, accelerators=2)), east_only=True
    )
    told = summarise(domain, ())
    shard = a_cluster(MINE)
    lay_over(shard, {"east": told}, 100.0)
    seen = sorted(shard.view.free_devices[:3].sum(axis=1).tolist())
    assert seen == sorted(domain.view.free_devices.sum(axis=1).tolist())
    assert float(shard.view.free_cpus[:3].sum()) == pytest.approx(float(domain.view.free_cpus.sum()))
    assert int(shard.view.free_devices[3:].sum()) == 4, "west has told nothing"
    # What the shard itself holds is where it was.
    assert shard.running[UnitKey("mine", 0)].ranks[0].devices == (0, 1, 2)


def test_less_room_than_was_told_stays_as_the_shard_knows_it() -> None:
    # Told before the shard's own unit began: nothing is laid over where it is.
    told = summarise(a_cluster(east_only=True), ())
    shard = a_cluster(MINE)
    before = shard.view.free_devices.copy()
    lay_over(shard, {"east": told}, 100.0)
    assert (shard.view.free_devices == before).all()


def test_a_question_does_not_count_on_what_others_hold() -> None:
    full = [(f"other-{number}", Demand(1, cpus=1.0, accelerators=4)) for number in range(3)]
    told = summarise(a_cluster(*full, east_only=True), ())
    job = JobSpec(JobKind.TASK, Demand(1, cpus=1.0, accelerators=4, domains=frozenset({"east"})), command=("run",))
    shard = a_cluster()
    assert answer(shard, POLICY, job, "lab", 0.0)["placeable"]
    lay_over(shard, {"east": told}, 0.0)
    assert not answer(shard, POLICY, job, "lab", 0.0)["placeable"]
