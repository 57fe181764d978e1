"""Room per class on two levels: what is kept up where something was touched is what counting everything anew gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.fleet import Domain, Fleet, with_domain
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import DeviceModel, table_of
from services.scheduler.core.two_level import ANY, Assignment, DomainSummary, Tally, place_in_domain
from services.scheduler.core.two_level.rooms import Rooms
from services.scheduler.core.view import View
from services.scheduler.core.waiting_unit import PendingUnit
from tests.unit.scheduler.world import GIB, a_fleet, a_node

POLICY = Policy(order=("priority", "age"))
MODELS = DeviceModel("NVIDIA", "A100", False), DeviceModel("NVIDIA", "H100", False)
CLASSES = (
    Demand(1, cpus=1.0),
    Demand(1, cpus=0.3, memory_bytes=7 * GIB),
    Demand(1),
    Demand(1, cpus=1.0, accelerators=1),
    Demand(2, cpus=0.5, accelerators=3),
    Demand(1, accelerators=2, accelerator_types=("H100",)),
    Demand(1, cpus=0.1, accelerators=1, device_milli=300),
    Demand(1, cpus=1.0, service_port=8000),
    Demand(1, cpus=1.0, labels=frozenset({"web"}), avoid=frozenset({"web"})),
    Demand(1, cpus=1.0, resources=(("licence", 1.0),)),
    Demand(1, accelerators=1, excluded_domains=frozenset({"b"})),
    Demand(3, cpus=1.0, accelerators=1, cross_domain=True),
)

numbers = st.integers(0, 1000)


def one_domain() -> Cluster:
    """Six nodes of four accelerators, half of each model, on addresses of their own."""
    nodes = [
        a_node(f"n-{n}", "a", model="A100" if n % 2 else "H100", address=f"10.0.0.{n}", resources={"licence": 2.0})
        for n in range(6)
    ]
    return Cluster(table_of(with_domain(Fleet(), Domain("a"), nodes, full_of="a")), POLICY)


@settings(max_examples=60, deadline=None)
@given(acts=st.lists(st.tuples(st.integers(0, 3), numbers, st.sets(st.sampled_from(CLASSES), min_size=1)), max_size=12))
def test_what_a_domain_keeps_up_of_its_room_is_what_it_would_count_anew(
    acts: list[tuple[int, int, set[Demand]]],
) -> None:
    cluster, tally = one_domain(), Tally()
    for number, (act, drawn, asked) in enumerate(acts):
        if act:
            unit = PendingUnit(UnitKey("job", number), "lab", 0, 0.0, CLASSES[drawn % len(CLASSES)])
            place_in_domain(cluster, [Assignment(unit, "a")], 0.0)
        elif cluster.running:
            cluster.release(sorted(cluster.running)[drawn % len(cluster.running)], 1.0)
        classes = sorted(asked, key=CLASSES.index)
        assert tally.ranks(cluster, classes) == Tally().ranks(cluster, classes)
    assert tally.ranks(cluster, CLASSES) == Tally().ranks(cluster, CLASSES)


def test_room_of_a_domain_by_hand() -> None:
    """Six nodes of 8 cpus, 64 GiB and 4 accelerators; one of them gives 3 accelerators, 1 cpu and 7 GiB."""
    cluster, tally = one_domain(), Tally()
    tally.ranks(cluster, CLASSES)
    taken = Demand(1, cpus=1.0, memory_bytes=7 * GIB, accelerators=3, accelerator_types=("H100",))
    place_in_domain(cluster, [Assignment(PendingUnit(UnitKey("job", 0), "lab", 0, 0.0, taken), "a")], 0.0)
    found = tally.ranks(cluster, CLASSES)
    assert found[CLASSES[0]] == {ANY: 5 * 8 + 7}
    assert found[CLASSES[1]] == {ANY: 5 * 9 + 8}
    assert found[CLASSES[3]] == {ANY: 5 * 4 + 1}
    assert found[CLASSES[4]] == {MODELS[0]: 3, MODELS[1]: 2}
    assert found[CLASSES[5]] == {ANY: 2 * 2}
    assert found[CLASSES[7]] == {ANY: 6}
    assert found[CLASSES[9]] == {ANY: 6 * 2}


def the_rooms(told: Mapping[str, DomainSummary]) -> Rooms:
    view = View(table_of(a_fleet(dict.fromkeys(told, 1))))
    table = replace(view.table, models=MODELS, devices=view.table.devices.repeat(2, axis=1))
    return Rooms(View(table), told, POLICY, replace(POLICY, filters=("domain", "security")))


def a_summary(name: str, sequence: int, drawn: int, *, own: bool = False) -> DomainSummary:
    """Of a domain with so much room as the number says; it tells of every second or third class."""
    blocks = {model: tuple((drawn // (k + 2) + size) % 4 for size in range(9)) for k, model in enumerate(MODELS)}
    ranks: dict[Demand, dict[DeviceModel | None, int]] = {
        demand: dict.fromkeys((ANY, *MODELS), (drawn + n) % 9)
        for n, demand in enumerate(CLASSES)
        if not own and n % (2 + drawn % 2)
    }
    return DomainSummary(
        name,
        sequence,
        ranks,
        blocks,
        dict.fromkeys(MODELS, 99),
        float(drawn % 50),
        64.0,
        drawn % 90 * GIB,
        8,
        0,
        own_scheduler=own,
    )


@settings(max_examples=60, deadline=None)
@given(acts=st.lists(st.tuples(st.integers(0, 3), numbers, numbers), max_size=25))
def test_what_the_network_keeps_up_of_domains_is_what_it_would_count_anew(acts: list[tuple[int, int, int]]) -> None:
    told = {name: a_summary(name, 0, 7 * n + 30, own=name == "c") for n, name in enumerate("abc")}
    often, once = the_rooms(told), the_rooms(told)
    for rooms in (often, once):
        rooms.keep(CLASSES)
    for number, (act, drawn, other) in enumerate(acts):
        row = drawn % 3
        name = "abc"[row]
        demand = CLASSES[other % len(CLASSES)]
        if not act:
            told[name] = a_summary(name, number, other, own=name == "c")
        for rooms in (often, once):
            if act:
                room = rooms.of(demand)[drawn % len(rooms.of(demand))]
                if room.most[row] >= 1 + drawn % 2:
                    rooms.take(demand, room, row, 1 + drawn % 2)
            else:
                rooms.read(told[name])
        for room in often.of(demand):
            often.fits(demand, room, most=True)
            often.fits(demand, room, most=False)
    for demand in CLASSES:
        for kept, new in zip(often.of(demand), once.of(demand), strict=True):
            for most in (True, False):
                assert often.fits(demand, kept, most=most).tolist() == once.fits(demand, new, most=most).tolist()
            assert (kept.least <= kept.most).all()
    missing = any(demand not in item.ranks for demand in CLASSES for item in told.values() if not item.own_scheduler)
    assert often.keep(CLASSES) == missing


def test_room_of_domains_by_hand() -> None:
    """Domain "a" has one node with 8 free accelerators of each model, 20 cpus; it told of one class that 5 ranks of it fit."""
    pair, single = Demand(1, cpus=1.0, accelerators=2), Demand(1, cpus=1.0, accelerators=1)
    blocks = dict.fromkeys(MODELS, (0,) * 8 + (1,))
    told = {"a": DomainSummary("a", 1, {pair: {ANY: 5}}, blocks, dict.fromkeys(MODELS, 8), 20.0, 64.0, 2**40, 8, 0)}
    rooms = the_rooms(told)
    assert rooms.keep([pair, single])
    (of_pairs,), (of_singles,) = rooms.of(pair), rooms.of(single)
    assert rooms.fits(pair, of_pairs, most=True).tolist() == [5]
    assert (of_singles.least.tolist(), rooms.fits(single, of_singles, most=True).tolist()) == ([0.0], [16])
    rooms.take(single, of_singles, 0, 1)
    # One accelerator less may cost one pair, and with the rest of its block does: 3 + 4 pairs are more than the 5 of before.
    assert of_pairs.least.tolist() == [4.0]
    assert rooms.fits(pair, of_pairs, most=False).tolist() == [5]
    rooms.take(pair, of_pairs, 0, 3)
    assert (of_pairs.least.tolist(), rooms.fits(pair, of_pairs, most=True).tolist()) == ([1.0], [2])
