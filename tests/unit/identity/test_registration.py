"""Which compute id a node or accelerator gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meridian.errors import ConflictError, InvalidArgumentError
from services.identity.records import LIVE, Kind, Status
from services.identity.registration import (
    Action,
    ClaimedDevice,
    ClaimedNode,
    Known,
    Plan,
    decide,
    exclusive_aliases,
)


def node(node_id: str, *uuids: str, emulated: bool = False) -> ClaimedNode:
    devices = tuple(
        ClaimedDevice(index, emulated=emulated, aliases={"gpu_uuid": uuid} if uuid else {})
        for index, uuid in enumerate(uuids)
    )
    return ClaimedNode(node_id, emulated, devices=devices)


@dataclass
class Registry:
    """A store in memory: applies plans as `Enrolment` does."""

    known: dict[str, Known] = field(default_factory=dict)
    live: dict[str, bool] = field(default_factory=dict)
    minted: set[str] = field(default_factory=set)
    numbers: count[int] = field(default_factory=count)

    def mint(self) -> str:
        found = f"id{next(self.numbers):04d}"
        self.minted.add(found)
        return found

    def view(self) -> list[Known]:
        return [
            Known(
                **{name: getattr(item, name) for name in item.__slots__}
                | {"agent_live": self.live.get(item.agent_id, False)}
            )
            for item in self.known.values()
            if item.status is not Status.RETIRED
        ]

    def register(self, agent_id: str, domain_id: str, nodes: Sequence[ClaimedNode]) -> Plan:
        self.live.setdefault(agent_id, True)
        plan = decide(agent_id, domain_id, nodes, self.view(), self.mint)
        for identity_id, reason in plan.retire.items():
            self.change(identity_id, Status.RETIRED, reason)
        for identity_id, reason in plan.quarantine.items():
            self.change(identity_id, Status.QUARANTINED, reason)
        for entry in plan.nodes:
            for claim, item in ((entry.claim, entry.node), *entry.devices):
                if item.action is Action.REFUSE:
                    continue
                before = self.known.get(item.identity_id)
                aliases = claim.exclusive | (before.aliases if before else frozenset())
                self.known[item.identity_id] = Known(
                    item.identity_id, item.kind, domain_id, item.node_id, item.index, agent_id, True, item.status,
                    item.reason, item.evidence_level, aliases,
                )  # fmt: skip
        return plan

    def change(self, identity_id: str, status: Status, reason: str) -> None:
        item = self.known[identity_id]
        values = {name: getattr(item, name) for name in item.__slots__}
        self.known[identity_id] = Known(**values | {"status": status, "reason": reason})


def ids(plan: Plan) -> dict[tuple[str, int | None], str]:
    found: dict[tuple[str, int | None], str] = {}
    for entry in plan.nodes:
        found[entry.claim.node_id, None] = entry.node.identity_id
        found |= {(entry.claim.node_id, claim.index): item.identity_id for claim, item in entry.devices}
    return found


def actions(plan: Plan) -> list[Action]:
    return [item.action for entry in plan.nodes for item in (entry.node, *(item for _, item in entry.devices))]


def test_the_same_claims_give_the_same_ids() -> None:
    registry = Registry()
    nodes = [node("a", "u1", "u2"), node("b", "", "")]
    first = registry.register("agent", "beijing", nodes)
    assert set(actions(first)) == {Action.MINT}
    second = registry.register("agent", "beijing", nodes)
    assert set(actions(second)) == {Action.KEEP}
    assert ids(first) == ids(second)
    assert not any(item.announce for entry in second.nodes for item in (entry.node, *(d for _, d in entry.devices)))


def test_a_chip_keeps_its_id_when_it_moves() -> None:
    registry = Registry()
    first = ids(registry.register("agent", "beijing", [node("a", "u1", "u2"), node("b", "u3")]))
    plan = registry.register("agent", "beijing", [node("a", "u3", "u1"), node("b", "u2")])
    second = ids(plan)
    assert second["a", 1] == first["a", 0]
    assert second["b", 0] == first["a", 1]
    assert second["a", 0] == first["b", 0]
    assert plan.retire == {}


def test_a_chip_that_another_live_key_of_the_domain_holds_is_not_taken_from_it() -> None:
    registry = Registry()
    first = ids(registry.register("one", "beijing", [node("a", "u1")]))
    plan = registry.register("two", "beijing", [node("b", "u1")])
    [(_, device)] = plan.nodes[0].devices
    assert (device.action, device.status) == (Action.MINT, Status.QUARANTINED)
    assert device.identity_id != first["a", 0]
    assert list(plan.quarantine) == [first["a", 0]]
    held = registry.known[first["a", 0]]
    assert (held.agent_id, held.node_id, held.status) == ("one", "a", Status.QUARANTINED)


def test_another_chip_in_a_slot_is_another_identity() -> None:
    registry = Registry()
    first = ids(registry.register("agent", "beijing", [node("a", "u1")]))
    plan = registry.register("agent", "beijing", [node("a", "u9")])
    [(_, device)] = plan.nodes[0].devices
    assert device.identity_id != first["a", 0]
    assert device.replaces == first["a", 0]
    assert list(plan.retire) == [first["a", 0]]


def test_vendor_ids_of_one_chip_that_turn_up_on_two_do_not_share_its_identity() -> None:
    registry = Registry()
    chip = ClaimedDevice(0, aliases={"gpu-uuid": "u1", "serial": "s1"})
    first = ids(registry.register("agent", "beijing", [ClaimedNode("a", devices=(chip,))]))
    split = (ClaimedDevice(0, aliases={"gpu-uuid": "u1"}), ClaimedDevice(1, aliases={"serial": "s1"}))
    second = ids(registry.register("agent", "beijing", [ClaimedNode("a", devices=split)]))
    assert second["a", 0] == first["a", 0]
    assert second["a", 1] != first["a", 0]


def test_a_node_passes_to_the_next_key_only_when_the_last_is_dead() -> None:
    registry = Registry()
    first = ids(registry.register("old", "beijing", [node("a", "u1")]))
    with pytest.raises(ConflictError):
        registry.register("new", "beijing", [node("a", "u1")])
    registry.live["old"] = False
    plan = registry.register("new", "beijing", [node("a", "u1")])
    assert ids(plan) == first
    assert set(actions(plan)) == {Action.TAKE_OVER}


def test_a_vendor_id_of_two_live_agents_quarantines_both() -> None:
    registry = Registry()
    first = ids(registry.register("one", "beijing", [node("a", "u1")]))
    plan = registry.register("two", "hangzhou", [node("b", "u1", "u2")])
    assert [item.status for _, item in plan.nodes[0].devices] == [Status.QUARANTINED, Status.ISSUED]
    assert list(plan.quarantine) == [first["a", 0]]
    again = registry.register("one", "beijing", [node("a", "u1")])
    assert again.nodes[0].devices[0][1].status is Status.QUARANTINED


def test_emulated_parts_prove_nothing_and_contradict_nobody() -> None:
    registry = Registry()
    registry.register("one", "beijing", [node("a", "u1", emulated=True)])
    plan = registry.register("two", "hangzhou", [node("b", "u1", emulated=True)])
    assert plan.nodes[0].devices[0][1].status is Status.ISSUED
    assert plan.nodes[0].node.evidence_level == 0


def test_a_revoked_identity_is_refused_under_its_key_and_replaced_under_another() -> None:
    registry = Registry()
    first = ids(registry.register("old", "beijing", [node("a", "u1")]))
    registry.change(first["a", None], Status.REVOKED, "tampered")
    plan = registry.register("old", "beijing", [node("a", "u1")])
    assert (plan.nodes[0].node.action, plan.nodes[0].node.reason) == (Action.REFUSE, "tampered")
    registry.live["old"] = False
    other = registry.register("new", "beijing", [node("a", "u1")])
    assert other.nodes[0].node.identity_id != first["a", None]


def test_claims_that_contradict_each_other_are_named() -> None:
    cases = {
        "/nodes/1/node_id": [node("a"), node("a")],
        "/nodes/0/accelerators/1/index": [ClaimedNode("a", devices=(ClaimedDevice(0), ClaimedDevice(0)))],
        "/nodes/1/accelerators/0/aliases": [node("a", "u1"), node("b", "U1")],
    }
    for pointer, nodes in cases.items():
        with pytest.raises(InvalidArgumentError) as caught:
            decide("agent", "beijing", nodes, [], lambda: "x")
        assert [error.pointer for error in caught.value.errors] == [pointer]


def test_placeholders_are_no_vendor_ids() -> None:
    blanks = {"serial": "0", "uuid": "00000000-0000-0000-0000-000000000000", "sn": " N/A ", "gpu-uuid": ""}
    assert exclusive_aliases(blanks | {"pci": "0000:01:00.0", "machine-id": "abc"}) == frozenset()
    assert exclusive_aliases({"GPU_UUID": "GPU-AB", "Serial": "X1"}) == {("gpu-uuid", "gpu-ab"), ("serial", "x1")}


uuids = st.sampled_from(["", "u1", "u2", "u3", "u4"])
claims = st.lists(
    st.builds(lambda name, found, emulated: node(name, *found, emulated=emulated), st.sampled_from("abc"), st.lists(uuids, max_size=3), st.booleans()),
    max_size=3,
)  # fmt: skip
steps = st.lists(
    st.tuples(
        st.sampled_from([("one", "beijing"), ("two", "beijing"), ("three", "hangzhou")]), claims, st.integers(0, 4)
    ),
    max_size=8,
)


@given(steps)
def test_ids_are_unique_never_used_again_and_stable(
    script: list[tuple[tuple[str, str], list[ClaimedNode], int]],
) -> None:
    registry = Registry()
    for (agent_id, domain_id), nodes, chance in script:
        if chance == 0:
            registry.live[agent_id] = not registry.live.get(agent_id, True)
        before = dict(registry.known)
        try:
            plan = registry.register(agent_id, domain_id, nodes)
        except (InvalidArgumentError, ConflictError):
            assert registry.known == before
            continue
        given_ids = list(ids(plan).values())
        assert len(set(given_ids)) == len(given_ids)
        for identity_id, item in before.items():
            after = registry.known[identity_id]
            assert after.kind is item.kind
            assert after.domain_id == item.domain_id
            if item.status not in LIVE:
                assert after.status is item.status
        for entry in plan.nodes:
            assert registry.known[entry.node.identity_id].kind is Kind.NODE
            for _, device in entry.devices:
                assert (before.get(device.identity_id) is None) == (device.action is Action.MINT)
        assert ids(registry.register(agent_id, domain_id, nodes)) == ids(plan)
    places = [
        (item.domain_id, item.node_id)
        for item in registry.known.values()
        if item.kind is Kind.NODE and item.status in LIVE
    ]
    assert len(set(places)) == len(places)
