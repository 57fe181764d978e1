"""Who is predicted unasked, and how a record hears what became of them: on a small cluster, by hand."""

from __future__ import annotations

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.futures.asked_starts import EVERY_S, follow, next_asked
from services.scheduler.core.futures.prospect import prospects
from services.scheduler.core.futures.track_record import TrackRecord
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import PendingUnit
from tests.unit.scheduler.world import a_fleet


def a_unit(name: str, at_s: float) -> PendingUnit:
    demand = Demand(1, accelerators=4)
    return PendingUnit(UnitKey(name, 0), "lab", 0, at_s, demand, expected_s=100.0, low_s=50.0, high_s=200.0)


def a_full_cluster() -> Cluster:
    cluster = Cluster(table_of(a_fleet({"a": 1})), Policy(order=("age",)))
    cluster.add(a_unit("holder", 0.0))
    cluster.apply(decide(cluster, cluster.policy, 0.0), 0.0)
    return cluster


def test_the_newest_is_asked_about_once_in_a_while() -> None:
    cluster = a_full_cluster()
    assert next_asked(cluster, -EVERY_S, 0.0) is None
    cluster.extend([a_unit("first", 100.0), a_unit("second", 110.0)])
    found = next_asked(cluster, 0.0, 120.0)
    assert found is not None
    assert found.key.job_id == "second"
    assert next_asked(cluster, 120.0, 120.0 + EVERY_S - 1) is None
    # Nobody came since.
    assert next_asked(cluster, 120.0, 120.0 + EVERY_S) is None


def test_a_record_hears_of_starts_and_of_those_that_left() -> None:
    cluster = a_full_cluster()
    cluster.extend([a_unit("starts", 1.0), a_unit("leaves", 2.0), a_unit("late", 3.0)])
    record = TrackRecord()
    for name in ("starts", "leaves", "late"):
        key = UnitKey(name, 0)
        record.asked(prospects(cluster, cluster.policy, 10.0, [key])[key], 10.0)
    cluster.release(UnitKey("holder", 0), 90.0)
    cluster.withdraw(UnitKey("leaves", 0))
    cluster.apply(decide(cluster, cluster.policy, 90.0), 90.0)
    follow(record, cluster, 95.0)
    assert record.open == {UnitKey("late", 0)}
    assert record.counted == 1
    follow(record, cluster, 1e9)
    assert (record.open, record.counted) == (frozenset(), 2)
