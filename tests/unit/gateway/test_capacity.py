"""What can never run is refused, what could run is not."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.capacity import (
    AcceleratorCapacity,
    DomainCapacity,
    NodeCapacity,
    amounts_of,
    impossibilities,
)
from services.gateway.jobfile import JobFile

GIB = 1 << 30


def domain(
    name: str, nodes: int, cpus: float = 8, accelerators: int = 4, model: str = "A", level: int = 1
) -> DomainCapacity:
    kinds = (AcceleratorCapacity(model, emulated=True, count=accelerators),)
    return DomainCapacity(
        name, level, tuple(NodeCapacity(f"{name}-{index}", cpus, 16 * GIB, kinds) for index in range(nodes))
    )


NETWORK = {item.domain_id: item for item in (domain("one", 2), domain("two", 3, model="B", level=3))}


def pointers(network: dict[str, DomainCapacity] | None = None, **changes: Any) -> list[str]:
    body = {"name": "n", "kind": "task", "command": ["x"], **changes}
    found = impossibilities(JobFile.model_validate(body), NETWORK if network is None else network)
    return [error.pointer for error in found]


def test_without_any_node_nothing_is_refused() -> None:
    assert pointers({}, resources={"cpus": 4000}) == []
    assert pointers({"empty": DomainCapacity("empty", 0, ())}, placement={"domains": ["typo"]}) == []


def test_each_limit_is_exact() -> None:
    assert pointers(resources={"cpus": 8, "memory_bytes": 16 * GIB, "accelerators": 4}) == []
    assert pointers(resources={"cpus": 8.01}) == ["/resources/cpus"]
    assert pointers(resources={"memory_bytes": 16 * GIB + 1}) == ["/resources/memory_bytes"]
    assert pointers(resources={"accelerators": 5}) == ["/resources/accelerators"]


def test_a_gang_must_fit_into_one_domain_unless_it_may_cross() -> None:
    per_rank = {"cpus": 1, "accelerators": 2}
    assert pointers(kind="gang", gang={"ranks": 6}, resources=per_rank) == []
    assert pointers(kind="gang", gang={"ranks": 7}, resources=per_rank) == ["/gang/ranks"]
    assert pointers(kind="gang", gang={"ranks": 10, "allow_cross_domain": True}, resources=per_rank) == []
    assert pointers(kind="gang", gang={"ranks": 11, "allow_cross_domain": True}, resources=per_rank) == ["/gang/ranks"]
    one_type = {**per_rank, "accelerator_types": ["A"]}
    assert pointers(kind="gang", gang={"ranks": 5, "allow_cross_domain": True}, resources=one_type) == ["/gang/ranks"]


def test_types_are_alternatives_named_by_words() -> None:
    """What the scheduler would place is not refused; when nobody has any of them, each is told."""
    network = {
        "d": domain("d", 1, model="A100-SXM4-80GB"),
        "e": domain("e", 1, model="H100 part 3g.40gb", accelerators=1),
    }
    for types in (["a100-80gb"], ["B200", "A100"], ["3g.40gb"]):
        assert pointers(network, resources={"accelerators": 1, "accelerator_types": types}) == []
    assert pointers(network, resources={"accelerators": 1, "accelerator_types": ["B200", "H100", "A10"]}) == [
        f"/resources/accelerator_types/{index}" for index in range(3)
    ]


def test_resources_must_come_together_on_one_node() -> None:
    network = {
        "a": DomainCapacity("a", 0, (NodeCapacity("cpu", 64, 8 * GIB), NodeCapacity("memory", 2, 512 * GIB))),
    }
    assert pointers(network, resources={"cpus": 64, "memory_bytes": 512 * GIB}) == ["/resources"]


def test_constraints_narrow_the_domains() -> None:
    assert pointers(placement={"min_security_level": 3}, resources={"accelerators": 1, "accelerator_types": ["A"]}) == [
        "/resources/accelerator_types/0"
    ]
    assert pointers(placement={"require_real_accelerators": True}) == []
    assert pointers(placement={"require_real_accelerators": True}, resources={"accelerators": 1}) == [
        "/resources/accelerators"
    ]


@given(
    ranks=st.integers(1, 40), cpus=st.floats(0.25, 10), accelerators=st.integers(0, 5), cross=st.booleans(),
    nodes=st.lists(st.integers(0, 5), min_size=1, max_size=4),
)  # fmt: skip
def test_a_gang_is_refused_exactly_when_packing_it_into_empty_nodes_fails(
    ranks: int, cpus: float, accelerators: int, cross: bool, nodes: list[int]
) -> None:
    network = {f"d{index}": domain(f"d{index}", count) for index, count in enumerate(nodes)}
    refused = pointers(
        network,
        kind="gang",
        gang={"ranks": ranks, "allow_cross_domain": cross},
        resources={"cpus": cpus, "accelerators": accelerators, "memory_bytes": GIB},
    )
    per_node = 0
    while (per_node + 1) * cpus <= 8 + 1e-6 and (per_node + 1) * accelerators <= 4 and per_node < 16:
        per_node += 1
    room = per_node * (sum(nodes) if cross else max(nodes))
    assert bool(refused) == (sum(nodes) > 0 and ranks > room)


def test_ranks_that_share_need_an_accelerator_for_several_of_them() -> None:
    """Four thirds do not fit on one accelerator beside each other; four quarters do."""
    domain = DomainCapacity("d", 1, (NodeCapacity("n", 64.0, 1 << 40, (AcceleratorCapacity("A100", False, 1),)),))

    def refused(milli: int) -> list[str]:
        body = {"name": "n", "kind": "gang", "command": ["x"], "gang": {"ranks": 4}}
        body |= {"resources": {"accelerators": 1, "accelerator_milli": milli}}
        return [error.pointer for error in impossibilities(JobFile.model_validate(body), {"d": domain})]

    assert refused(250) == []
    assert refused(334) == ["/gang/ranks"]


def test_a_rank_has_accelerators_of_one_model() -> None:
    """Two A100 and two H100 on a node take two ranks of two, no rank of four and none of three."""
    kinds = (AcceleratorCapacity("A100", False, 2), AcceleratorCapacity("H100", False, 2))
    network = {"d": DomainCapacity("d", 1, (NodeCapacity("n", 64.0, 1 << 40, kinds),))}

    def refused(ranks: int, accelerators: int, *types: str) -> list[str]:
        resources = {"accelerators": accelerators, "accelerator_types": list(types)}
        return pointers(network, kind="gang", gang={"ranks": ranks}, resources=resources)

    assert refused(2, 2) == refused(1, 2, "A100") == []
    assert refused(3, 2) == refused(2, 2, "A100") == ["/gang/ranks"]
    assert refused(1, 3) == refused(1, 4, "A100", "H100") == ["/resources/accelerators"]


def _with_licences(*amounts: float, name: str = "one", **more: bool) -> DomainCapacity:
    told = [
        {"name": "licence", "consumable": True, "dynamic": False, "shareable": False, "value": amount, **more}
        for amount in amounts
    ]
    nodes = tuple(
        NodeCapacity(f"{name}-{place}", 8, 16 * GIB, (), amounts_of([item])) for place, item in enumerate(told)
    )
    return DomainCapacity(name, 1, nodes)


def test_fixed_amounts_of_user_defined_resources_bound_a_rank_and_a_gang() -> None:
    network = {"one": _with_licences(2, 2, 1, shareable=True), "two": domain("two", 3)}

    def found(amount: float, **changes: Any) -> list[str]:
        body = {"name": "n", "kind": "task", "command": ["x"], **changes}
        body["resources"] = {"user_resources": {"licence": amount}}
        return [f"{error.pointer}: {error.detail}" for error in impossibilities(JobFile.model_validate(body), network)]

    assert found(2) == []
    shared = "no permitted node has more than 2 licence: the 5 of domain one are parted among its nodes"
    assert found(3) == [f"/resources/user_resources/licence: {shared}"]
    elsewhere = "/resources/user_resources/licence: no permitted node has more than 0 licence"
    assert found(1, placement={"domains": ["two"]}) == [elsewhere]
    assert found(1, kind="gang", gang={"ranks": 5}) == []
    assert found(1, kind="gang", gang={"ranks": 6}) == [
        "/gang/ranks: the largest permitted domain has room for 5 such ranks, not 6"
    ]


def test_amounts_that_may_come_or_are_not_used_up_refuse_nobody() -> None:
    asks = {"user_resources": {"licence": 7}}
    assert pointers(resources=asks) == [], "nobody has it yet"
    for more in ({"dynamic": True}, {"consumable": False}, {"value": None}):
        assert pointers({"one": _with_licences(2, **more)}, resources=asks) == [], more  # type: ignore[arg-type]
    mixed = {"one": _with_licences(2), "two": _with_licences(2, name="two", dynamic=True)}
    assert pointers(mixed, resources=asks) == []
    assert pointers(mixed, resources=asks, placement={"domains": ["one"]}) == ["/resources/user_resources/licence"]
