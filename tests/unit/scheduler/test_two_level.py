"""Two levels: the same choices as one, never more than a domain has, one feedback, constraints for foreign schedulers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.contracts.account import ShareAccount
from services.scheduler.core.contracts.contract import tell
from services.scheduler.core.contracts.plan import SharePlan
from services.scheduler.core.decide import decide
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.pending import Pending
from services.scheduler.core.plugins import plugins_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.two_level import (
    Assignment,
    Coordinated,
    HandingDomain,
    InterDomain,
    LocalDomain,
    coordinate,
    dispatch,
    greatest_drop,
    place_in_domain,
    summarise,
)
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit
from tests.unit.scheduler.world import GIB, a_fleet

POLICY = Policy(order=("priority", "age"))


def parted(fleet: Fleet, policy: Policy = POLICY) -> dict[str, LocalDomain]:
    """Every domain with a cluster of its own."""
    return {
        name: LocalDomain(
            Cluster(
                table_of(
                    Fleet({name: domain}, {key: node for key, node in fleet.nodes.items() if node.domain_id == name})
                ),
                policy,
            )
        )
        for name, domain in fleet.domains.items()
    }


def unit(number: int, demand: Demand, tenant: str = "lab") -> PendingUnit:
    return PendingUnit(UnitKey("job", number), tenant, 0, float(number), demand)


def waiting(units: Sequence[PendingUnit], policy: Policy = POLICY) -> Pending:
    pending = Pending(plugins_of(policy).order)
    for item in units:
        pending.add(item)
    return pending


def classes_of(units: Sequence[PendingUnit]) -> list[Demand]:
    return list(dict.fromkeys(item.demand for item in units))


class Network:
    """Both ways to schedule on the same fleet."""

    def __init__(self, fleet: Fleet, policy: Policy = POLICY) -> None:
        self.fleet, self.policy = fleet, policy
        self.whole = Cluster(table_of(fleet), policy)
        self.domains = parted(fleet, policy)

    def inter(self, units: Sequence[PendingUnit]) -> InterDomain:
        summaries = [domain.summary(classes_of(units)) for domain in self.domains.values()]
        return InterDomain(self.fleet, summaries, self.policy)

    def two(self, units: Sequence[PendingUnit], inter: InterDomain | None = None) -> Coordinated:
        pending = waiting(units, self.policy)
        context = OrderContext(Cluster(table_of(self.fleet), self.policy).shares())
        return coordinate(inter or self.inter(units), pending, self.domains, context, 0.0)

    def one(self, units: Sequence[PendingUnit]) -> dict[UnitKey, tuple[PlacedRank, ...]]:
        self.whole.extend(units)
        decisions = decide(self.whole, self.policy, 0.0)
        return {item.key: item.ranks for item in decisions.placed}

    def check_capacity(self) -> None:
        """Nothing is given twice: every device once, no node beyond its cpus and memory."""
        for domain in self.domains.values():
            view = domain.cluster.view
            assert (view.free_cpus >= -1e-6).all()
            assert (view.free_memory_bytes >= 0).all()
            assert (view.device_milli[view.table.device_columns >= 0] >= 0).all()
            held = [
                (rank.node_id, device)
                for run in domain.cluster.running.values()
                if run.unit.demand.device_milli == 1000
                for rank in run.ranks
                for device in rank.devices
            ]
            assert len(held) == len(set(held))


def some_units(seed: int, count: int, first: int = 0) -> list[PendingUnit]:
    source = random.Random(seed)
    shapes = [
        Demand(1, cpus=1.0, accelerators=1),
        Demand(1, cpus=2.0, accelerators=2),
        Demand(1, cpus=1.0, accelerators=4),
        Demand(2, cpus=1.0, accelerators=2),
        Demand(3, cpus=1.0, accelerators=4),
        Demand(1, cpus=3.0),
        Demand(4, cpus=1.0, memory_bytes=2 * GIB),
        Demand(6, cpus=1.0, accelerators=2, cross_domain=True),
    ]
    weights = [8, 4, 2, 2, 1, 3, 2, 1]
    return [
        replace(unit(first + n, demand, f"tenant-{n % 3}"), priority=source.randrange(2))
        for n, demand in enumerate(source.choices(shapes, weights, k=count))
    ]


def domains_of(ranks: tuple[PlacedRank, ...] | None) -> frozenset[str]:
    return frozenset(rank.domain_id for rank in ranks or ())


# -- the same as one level ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [POLICY, Policy(), replace(POLICY, scores=(("pack", 1.0), ("spread", 0.01)))])
def test_with_fresh_summaries_at_least_95_percent_of_the_units_go_where_one_level_would_send_them(
    policy: Policy,
) -> None:
    same = total = 0
    for seed in range(25):
        source = random.Random(seed)
        fleet = a_fleet({name: source.randrange(2, 7) for name in "abcde"})
        network = Network(fleet, policy)
        units = some_units(seed, source.randrange(20, 70))
        one, found = network.one(units), network.two(units)
        two = found.placed
        network.check_capacity()
        total += len(units)
        same += sum(domains_of(one.get(item.key)) == domains_of(two.get(item.key)) for item in units)
    assert same / total >= 0.95, f"{same} of {total}"


def test_with_one_domain_both_ways_give_the_same_nodes() -> None:
    for seed in range(20):
        network = Network(a_fleet({"only": 6}))
        units = [item for item in some_units(seed, 40) if not item.demand.cross_domain]
        one, two = network.one(units), network.two(units)
        assert two.placed == one
        assert set(two.waiting) == {item.key for item in units} - set(one)


def test_capacity_holds_whatever_the_order_of_cycles_and_ends() -> None:
    source = random.Random(5)
    network = Network(a_fleet({"a": 3, "b": 2, "c": 4}))
    number = 0
    for step in range(40):
        units = some_units(step, 12, number)
        number += len(units)
        network.two(units)
        network.check_capacity()
        for domain in network.domains.values():
            ending = [key for key in domain.cluster.running if source.random() < 0.4]
            domain.give_back(ending, float(step))
    for domain in network.domains.values():
        domain.give_back(list(domain.cluster.running), 99.0)
        assert domain.cluster.view.free_device_totals.sum() == domain.cluster.table.device_totals.sum()


# -- old summaries, feedback -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [1, 5, 20])
def test_old_summaries_cause_feedback_never_overcommitment(behind: int) -> None:
    fed_back = 0
    for seed in range(10):
        network = Network(a_fleet({"a": 3, "b": 3, "c": 3}))
        units = some_units(seed, 40)
        old = network.inter(units)
        # Others take room that the summaries still show.
        taken = [unit(1000 + n, Demand(1, cpus=1.0, accelerators=2)) for n in range(behind)]
        for item in taken:
            place = random.Random(item.key.unit_index).choice(sorted(network.domains))
            place_in_domain(network.domains[place].cluster, [Assignment(item, place)], 0.0)
        found = network.two(units, old)
        network.check_capacity()
        fed_back += found.feedback
        assert not set(found.placed) & set(found.waiting)
        assert len(found.placed) + len(found.waiting) == len(units)
    assert fed_back > 0 or behind == 1


def test_a_refused_unit_goes_elsewhere_once_and_says_why() -> None:
    network = Network(a_fleet({"a": 1, "b": 1}), replace(POLICY, scores=(("pack", 1.0), ("spread", 1.0))))
    wanted = unit(0, Demand(1, accelerators=4))
    old = network.inter([wanted])
    place_in_domain(network.domains["a"].cluster, [Assignment(unit(9, Demand(1, accelerators=1)), "a")], 0.0)
    found = network.two([wanted], old)
    assert domains_of(found.placed[wanted.key]) == {"b"}
    assert (found.feedback, found.rounds) == (1, 2)
    assert found.reasons[wanted.key][0].startswith("a: waiting for capacity: 1 ranks wanted")


def test_after_two_refusals_a_unit_waits() -> None:
    network = Network(a_fleet({"a": 1, "b": 1, "c": 1}))
    wanted = unit(0, Demand(1, accelerators=4))
    old = network.inter([wanted])
    for name in ("a", "b"):
        place_in_domain(network.domains[name].cluster, [Assignment(unit(9, Demand(1, accelerators=1)), name)], 0.0)
    # "a" and "b" come before "c" where all scores are equal.
    found = network.two([wanted], old)
    assert found.waiting == [wanted.key]
    assert not found.placed
    assert len(found.reasons[wanted.key]) == 2


def test_a_split_has_all_its_parts_or_none() -> None:
    network = Network(a_fleet({"a": 1, "b": 1}))
    gang = unit(0, Demand(6, accelerators=1, cross_domain=True))
    found = network.two([gang])
    ranks = found.placed[gang.key]
    assert [rank.rank for rank in ranks] == [0, 1, 2, 3, 4, 5]
    assert domains_of(ranks) == {"a", "b"}
    other = Network(a_fleet({"a": 1, "b": 1}))
    old = other.inter([gang])
    place_in_domain(other.domains["b"].cluster, [Assignment(unit(9, Demand(1, accelerators=4)), "b")], 0.0)
    found = other.two([gang], old)
    assert found.waiting == [gang.key]
    assert not other.domains["a"].cluster.running
    assert other.domains["a"].cluster.view.free_device_totals.sum() == 4


def test_an_older_summary_does_not_replace_a_newer_one() -> None:
    network = Network(a_fleet({"a": 1, "b": 1}))
    wanted = unit(0, Demand(1, accelerators=4))
    inter = network.inter([wanted])
    before = inter.summaries["a"]
    inter.update(replace(before, sequence=3, largest_block=0))
    assert not inter.update(before)
    assert inter.summaries["a"].sequence == 3


def test_the_dispatcher_keeps_a_share_contract_from_summaries_alone() -> None:
    policy = replace(POLICY, scores=(("share_deficit", 1.0), ("pack", 1.0)))
    network = Network(a_fleet({"a": 4, "b": 4}), policy)
    units = [unit(number, Demand(1, accelerators=1)) for number in range(8)]
    inter = network.inter(units)
    plan = SharePlan(((("a", 3.0), ("b", 1.0)),))
    account = ShareAccount(plan, inter.view.table.domain_ids, inter.view.table.domain_devices, 0.0)
    tell(inter, account, 10.0)
    placed = network.two(units, inter).placed
    # Three of four to a: 6 and 2.
    assert sum(domains_of(ranks) == {"a"} for ranks in placed.values()) == 6


def test_what_a_rank_takes_from_the_room_of_others_is_bounded() -> None:
    """Random nodes: placing one rank never lowers the room of another class by more than the bound."""
    source = random.Random(8)
    for _ in range(200):
        cluster = Cluster(table_of(a_fleet({"a": 1}, cpus=source.choice([8.0, 16.0]), devices=8)), POLICY)

        def some_demand() -> Demand:
            return Demand(
                1,
                cpus=source.choice([0.0, 0.5, 1.0, 3.0]),
                memory_bytes=source.choice([0, 1, 3, 7]) * GIB,
                accelerators=(count := source.choice([0, 1, 2, 3])),
                device_milli=source.choice([1000, 1000, 300, 500]) if count == 1 else 1000,
            )

        for number in range(source.randrange(4)):
            place_in_domain(cluster, [Assignment(unit(number, some_demand()), "a")], 0.0)
        taken, other = some_demand(), some_demand()
        columns = cluster.view.columns(other)
        before = int(cluster.view.ranks_that_fit(other, columns)[0])
        if not place_in_domain(cluster, [Assignment(unit(99, taken), "a")], 0.0)[0] or before >= 1_000_000:
            continue
        after = int(cluster.view.ranks_that_fit(other, columns)[0])
        assert before - after <= greatest_drop(taken, other), (taken, other)


# -- summaries ---------------------------------------------------------------------------------------------------------


def test_a_summary_tells_room_blocks_and_totals() -> None:
    network = Network(a_fleet({"a": 3}))
    domain = network.domains["a"]
    three = Demand(1, accelerators=3)
    place_in_domain(domain.cluster, [Assignment(unit(0, Demand(1, cpus=2.0, accelerators=3)), "a")], 0.0)
    told = summarise(domain.cluster, [three], sequence=7)
    (model,) = told.blocks
    # One node has 1 of 4 devices left, two have all 4.
    assert told.blocks[model] == (0, 1, 0, 0, 2)
    assert told.free_devices == {model: 9}
    assert told.total_devices == {model: 12}
    assert told.ranks[three] == {None: 2}
    assert (told.largest_block, told.free_cpus, told.running, told.sequence) == (4, 22.0, 1, 7)


def test_a_summary_is_of_one_domain() -> None:
    with pytest.raises(PolicyError, match="not one of 2 domains"):
        summarise(Network(a_fleet({"a": 1, "b": 1})).whole, [])


def test_classes_that_a_summary_does_not_tell_are_estimated_from_blocks() -> None:
    network = Network(a_fleet({"a": 2, "b": 1}))
    place_in_domain(
        network.domains["a"].cluster,
        [Assignment(unit(n, Demand(1, accelerators=2)), "a") for n in range(1)],
        0.0,
    )
    summaries = [domain.summary([]) for domain in network.domains.values()]
    wanted = [unit(10 + n, Demand(1, accelerators=4)) for n in range(3)]
    context = OrderContext(network.whole.shares())
    found = dispatch(network.fleet, summaries, waiting(wanted), POLICY, context)
    # a has one whole node left, b one: the third has no block of four anywhere.
    assert sorted(item.domain_id for item in found.assigned) == ["a", "b"]
    assert [item.key.unit_index for item in found.waiting] == [12]


# -- schedulers of their own -------------------------------------------------------------------------------------------


def test_a_domain_with_its_own_scheduler_gets_constraints_instead_of_nodes() -> None:
    network = Network(a_fleet({"slurm": 2}))
    told = network.domains["slurm"].summary([])
    foreign = HandingDomain(told)
    asked = replace(
        unit(0, Demand(4, cpus=2.0, accelerators=1, accelerator_types=("A100",), topology="rack")), limit_s=600.0
    )
    inter = InterDomain(network.fleet, [foreign.summary], POLICY)
    pending = waiting([asked])
    found = coordinate(inter, pending, {"slurm": foreign}, OrderContext(network.whole.shares()), 0.0)
    ((name, constraints),) = found.handed[asked.key]
    assert name == "slurm"
    assert (constraints.ranks, constraints.cpus, constraints.accelerators) == (4, 2.0, 1)
    assert (constraints.accelerator_types, constraints.topology) == (("A100",), "rack")
    assert constraints.time_limit_s == 600.0
    assert not hasattr(constraints, "node_id")
    assert not found.placed
    assert not len(pending)
    assert foreign.rejected(asked.key) == asked
    assert not foreign.accepted(asked.key)


# -- what two levels do not do -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"discipline": "easy"}, "discipline"),
        ({"preemptions": ("priority",)}, "preemptions"),
        ({"planner": "gavel"}, "planner"),
    ],
)
def test_what_looks_at_all_nodes_at_once_is_refused(changes: dict[str, object], field: str) -> None:
    network = Network(a_fleet({"a": 1}))
    with pytest.raises(PolicyError, match=field):
        InterDomain(network.fleet, [network.domains["a"].summary([])], replace(POLICY, **changes))  # type: ignore[arg-type]


def test_limits_hold_units_back_between_domains() -> None:
    policy = replace(POLICY, limits=("max_running",), options=(("max_running", (("default", 2),)),))
    network = Network(a_fleet({"a": 2, "b": 2}), policy)
    pending = waiting([unit(n, Demand(1, accelerators=1)) for n in range(4)], policy)
    facts = {"running": {}, "cluster": network.whole}
    context = OrderContext(network.whole.shares(), 0.0, facts)
    found = coordinate(network.inter(list(pending)), pending, network.domains, context, 0.0)
    assert len(found.placed) == 2
    assert len(found.waiting) == len(pending) == 2
