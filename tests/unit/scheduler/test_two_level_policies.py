"""Domains that decide by a policy of their own: what they tell is understood by a network with another one."""

from __future__ import annotations

import pytest

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.pending import Pending
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.two_level import InterDomain, LocalDomain, coordinate
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit
from tests.unit.scheduler.world import a_fleet


@pytest.mark.parametrize("apart", [False, True])
def test_a_domain_that_says_otherwise_about_models_in_gangs_is_understood(apart: bool) -> None:
    """The network lets gangs use several models and the domain does not, or the other way round."""
    mine, its = (Policy(one_accelerator_model_per_gang=one) for one in (apart, not apart))
    fleet = a_fleet({"a": 2})
    gang = PendingUnit(UnitKey("gang", 0), "lab", 0, 0.0, Demand(2, cpus=1.0, accelerators=4))
    pending = Pending(())
    pending.add(gang)
    domain = LocalDomain(Cluster(table_of(fleet), its))
    inter = InterDomain(fleet, [domain.summary([gang.demand])], mine)
    context = OrderContext(Cluster(table_of(fleet), mine).shares())
    done = coordinate(inter, pending, {"a": domain}, context, 0.0)
    assert {rank.node_id for rank in done.placed[gang.key]} == {"a-0", "a-1"}
