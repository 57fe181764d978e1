"""The local engine's own scheduler: hand-computed placements, refusals, and that nothing is ever given twice."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.engines.base import RankPlacement
from agent.engines.local.first_fit import FirstFit, Limits, NodeFacts
from agent.engines.own_scheduler import Constraints, DeviceKind, Held, Refusal, UnitName

A100, ASCEND = DeviceKind("NVIDIA", "A100-SXM4-80GB"), DeviceKind("Huawei", "Ascend 910B")
NODES = (
    NodeFacts("n1", 8, 64, (A100,) * 4, "10.0.0.1", {"rack": "r1"}),
    NodeFacts("n2", 8, 64, (A100,) * 2 + (ASCEND,) * 2, "10.0.0.2", {"rack": "r1"}),
    NodeFacts("n3", 16, 64, (ASCEND,) * 4, "10.0.0.3", {"rack": "r2"}),
)
UP = {"n1", "n2", "n3"}


NO_LIMITS = Limits()


def scheduler(limits: Limits = NO_LIMITS, up: set[str] = UP, emulated: bool = False, **amounts: float) -> FirstFit:
    return FirstFit(NODES, limits, lambda: up, lambda: {"n2": amounts}, emulated=emulated)


def name(number: int, epoch: int = 1) -> UnitName:
    return UnitName(f"job-{number}", 0, epoch)


def ask(found: FirstFit, number: int, wanted: Constraints) -> list[tuple[str, tuple[int, ...]]] | str:
    answer = asyncio.run(found.place(name(number), wanted))
    if isinstance(answer, Refusal):
        return answer.reason
    assert [rank.rank for rank in answer] == list(range(wanted.ranks))
    return [(rank.node_id, rank.accelerator_indices) for rank in answer]


def test_ranks_are_packed_on_the_first_nodes_with_one_model() -> None:
    found = scheduler()
    assert ask(found, 1, Constraints(2, cpus=2, accelerators=2)) == [("n1", (0, 1)), ("n1", (2, 3))]
    assert ask(found, 2, Constraints(2, cpus=2, accelerators=2)) == [("n2", (2, 3)), ("n3", (0, 1))]
    assert ask(found, 3, Constraints(2, accelerators=2, accelerator_types=("a100",))) == (
        "the domain's own scheduler has room for 1 of 2 ranks now, each with 2 accelerators of a100"
    )
    asyncio.run(found.release(name(1)))
    asyncio.run(found.release(name(1)))
    assert ask(found, 3, Constraints(2, accelerators=2, accelerator_types=("a100",))) == [
        ("n1", (0, 1)),
        ("n1", (2, 3)),
    ]


def test_a_unit_asked_for_again_gets_the_same() -> None:
    found = scheduler()
    first = asyncio.run(found.place(name(1), Constraints(1, accelerators=1)))
    assert asyncio.run(found.place(name(1), Constraints(1, accelerators=1))) == first
    assert len(found.held) == 1


def test_parts_of_an_accelerator_share_it_while_it_lasts() -> None:
    found = scheduler()
    part = Constraints(1, accelerators=1, accelerator_milli=400)
    assert [ask(found, number, part) for number in range(3)] == [[("n1", (0,))], [("n1", (0,))], [("n1", (1,))]]
    assert found.room().nodes_by_free[A100] == (1, 0, 2), "n3 has none, n1 and n2 have two whole ones"


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        (Constraints(2, cpus=8, topology="rack"), [("n1", ()), ("n2", ())]),
        (Constraints(3, cpus=8, topology="rack"), [("n1", ()), ("n2", ()), ("n3", ())]),
        (
            Constraints(5, cpus=8, topology="rack", topology_required=True),
            "the domain's own scheduler has room for 2 of 5 ranks now in one rack",
        ),
        (Constraints(2, cpus=16), "the domain's own scheduler has room for 1 of 2 ranks now"),
        (Constraints(1, memory_bytes=65), "the domain's own scheduler has room for 0 of 1 ranks now"),
        (Constraints(1, resources=(("fpga", 1.0),)), [("n2", ())]),
        (Constraints(2, resources=(("fpga", 1.0),)), "the domain's own scheduler has room for 1 of 2 ranks now"),
        (Constraints(1, excluded_nodes=frozenset({"n1", "n2"})), [("n3", ())]),
        (Constraints(2, service_port=80), [("n1", ()), ("n2", ())]),
    ],
)
def test_constraints_are_kept(wanted: Constraints, given: object) -> None:
    assert ask(scheduler(fpga=1.5), 1, wanted) == given


def test_units_that_avoid_each_other_share_no_node() -> None:
    found = scheduler()
    ask(found, 1, Constraints(1, labels=frozenset({"training"})))
    assert ask(found, 2, Constraints(1, avoid=frozenset({"training"}))) == [("n2", ())]
    assert ask(found, 3, Constraints(1, labels=frozenset({"training"}))) == [("n1", ())]


def test_what_is_over_a_limit_of_the_domain_is_refused() -> None:
    found = scheduler(Limits(most_units=1, most_time_s=60))
    assert ask(found, 1, Constraints(1, time_limit_s=61)) == (
        "the domain runs nothing longer than 60 s, and 61 s is asked for"
    )
    assert ask(found, 1, Constraints(1)) == "the domain runs nothing longer than 60 s, and no limit is declared"
    assert ask(found, 1, Constraints(1, time_limit_s=60)) == [("n1", ())]
    assert ask(found, 2, Constraints(1, time_limit_s=60)) == "the domain takes 1 units at once, and has them"
    declared = scheduler(emulated=True)
    assert "emulated" in str(ask(declared, 1, Constraints(1, accelerators=1, real_accelerators=True)))


def test_a_node_that_is_down_takes_nothing_and_keeps_what_it_has() -> None:
    up = {"n1", "n2", "n3"}
    found = scheduler(up=up)
    ask(found, 1, Constraints(1, cpus=5))
    up.discard("n1")
    assert ask(found, 2, Constraints(1, cpus=1)) == [("n2", ())]
    assert (found.room().free_cpus, found.room().total_cpus, found.room().total[A100]) == (23, 24, 2)
    up.add("n1")
    assert found.room().free_cpus == 26
    assert ask(found, 3, Constraints(1, cpus=4)) == [("n2", ())]


def test_what_is_restored_and_adopted_is_not_free() -> None:
    found = scheduler()
    held = Held(Constraints(1, cpus=8, accelerators=4), (RankPlacement(0, "n1", 0, (0, 1, 2, 3)),))
    asyncio.run(found.restore({name(1): held}))
    assert ask(found, 2, Constraints(1, cpus=1)) == [("n2", ())]
    asyncio.run(found.adopt(name(3), Held(Constraints(1, cpus=7), (RankPlacement(0, "n2"),))))
    assert ask(found, 4, Constraints(1, cpus=1)) == [("n3", ())]


UNITS = st.builds(
    Constraints,
    ranks=st.integers(1, 4),
    cpus=st.integers(0, 6).map(float),
    memory_bytes=st.integers(0, 40),
    accelerators=st.integers(0, 3),
    accelerator_milli=st.sampled_from([1000, 500, 300]),
    topology_required=st.booleans(),
    topology=st.sampled_from(["", "rack"]),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), UNITS), max_size=25))
def test_no_node_is_ever_given_more_than_it_has(steps: list[tuple[bool, int, Constraints]]) -> None:
    found = scheduler()
    for release, number, wanted in steps:
        if release:
            asyncio.run(found.release(name(number)))
        else:
            ask(found, number, found.held[name(number)].constraints if name(number) in found.held else wanted)
        cpus: Counter[str] = Counter()
        memory: Counter[str] = Counter()
        devices: Counter[tuple[str, int]] = Counter()
        for held in found.held.values():
            assert len(held.ranks) == held.constraints.ranks
            for rank in held.ranks:
                cpus[rank.node_id] += held.constraints.cpus  # type: ignore[assignment]
                memory[rank.node_id] += held.constraints.memory_bytes
                assert len(set(rank.accelerator_indices)) == held.constraints.accelerators
                for index in rank.accelerator_indices:
                    devices[rank.node_id, index] += held.constraints.accelerator_milli
        for node in NODES:
            assert cpus[node.node_id] <= node.cpus
            assert memory[node.node_id] <= node.memory_bytes
        assert all(part <= 1000 for part in devices.values())
        room = found.room()
        assert math.isclose(room.free_cpus, 32 - sum(cpus.values()))
