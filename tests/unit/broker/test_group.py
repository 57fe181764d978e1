"""The group protocol in virtual time: who joins, waits, is dropped, leads and may commit."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from meridian.embedded.broker.errors import BrokerError, ErrorCode
from meridian.embedded.broker.group import Group, GroupState, JoinRequest
from tests.unit.broker.conftest import VirtualTimers

SESSION_S, REBALANCE_S, DELAY_S = 10.0, 30.0, 0.02


@pytest.fixture
def group(timers: VirtualTimers) -> Group:
    numbers = itertools.count()
    return Group("g", timers, lambda prefix: f"{prefix}-{next(numbers)}", DELAY_S)


def request(member_id: str = "", client: str = "c", metadata: bytes = b"", **changes: Any) -> JoinRequest:
    values: dict[str, Any] = {
        "member_id": member_id,
        "instance_id": None,
        "client_id": client,
        "client_host": "h",
        "session_timeout_s": SESSION_S,
        "rebalance_timeout_s": REBALANCE_S,
        "protocol_type": "consumer",
        "protocols": (("range", metadata), ("roundrobin", metadata)),
    }
    return JoinRequest(**(values | changes))


def joined(answer: asyncio.Future[Any]) -> Any:
    assert answer.done(), "the generation has not begun"
    assert answer.result()["error_code"] is ErrorCode.NONE
    return answer.result()


def stable_group_of_two(group: Group, timers: VirtualTimers) -> tuple[str, str]:
    answers = [group.join(request(client=client), id_first=False) for client in "ab"]
    timers.advance(DELAY_S)
    leader, follower = (joined(answer)["member_id"] for answer in answers)
    waiting = group.sync(follower, None, group.generation, {})
    assert not waiting.done()
    group.sync(leader, None, group.generation, {leader: b"L", follower: b"F"})
    assert waiting.result()["assignment"] == b"F"
    assert group.state is GroupState.STABLE
    return leader, follower


def code_of(error: pytest.ExceptionInfo[BrokerError]) -> ErrorCode:
    return error.value.error_code


def test_first_members_wait_only_the_initial_delay(group: Group, timers: VirtualTimers) -> None:
    first = group.join(request(client="a", metadata=b"A"), id_first=False)
    timers.advance(DELAY_S / 2)
    second = group.join(request(client="b", metadata=b"B"), id_first=False)
    assert not first.done()
    timers.advance(DELAY_S / 2)
    leader, follower = joined(first), joined(second)
    assert leader["leader"] == follower["leader"] == leader["member_id"]
    assert [(each["member_id"], each["metadata"]) for each in leader["members"]] == [
        (leader["member_id"], b"A"),
        (follower["member_id"], b"B"),
    ]
    assert follower["members"] == []
    assert leader["generation_id"] == follower["generation_id"] == 1


def test_new_member_is_told_its_id_first(group: Group, timers: VirtualTimers) -> None:
    told = group.join(request(), id_first=True).result()
    assert told["error_code"] is ErrorCode.MEMBER_ID_REQUIRED
    assert group.members == {}
    answer = group.join(request(told["member_id"]), id_first=True)
    timers.advance(DELAY_S)
    assert joined(answer)["member_id"] == told["member_id"]
    with pytest.raises(BrokerError) as caught:
        group.join(request("never-given"), id_first=True)
    assert code_of(caught) is ErrorCode.UNKNOWN_MEMBER_ID


def test_id_given_out_and_never_used_delays_others_only_until_it_expires(group: Group, timers: VirtualTimers) -> None:
    leader, _ = stable_group_of_two(group, timers)
    group.join(request(client="ghost"), id_first=True)
    rejoined = [group.join(request(member, metadata=b"new"), id_first=True) for member in tuple(group.members)]
    assert not any(answer.done() for answer in rejoined)
    timers.advance(SESSION_S)
    assert joined(rejoined[0])["leader"] == leader


def test_rebalance_completes_as_soon_as_all_have_joined_again(group: Group, timers: VirtualTimers) -> None:
    leader, follower = stable_group_of_two(group, timers)
    third = group.join(request(client="c"), id_first=False)
    assert group.heartbeat(leader, None, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    group.join(request(leader), id_first=False)
    assert not third.done()
    group.join(request(follower), id_first=False)
    assert joined(third)["generation_id"] == 2
    assert joined(third)["leader"] == leader


def test_member_that_does_not_join_again_is_dropped_after_the_rebalance_timeout(
    group: Group, timers: VirtualTimers
) -> None:
    leader, follower = stable_group_of_two(group, timers)
    third = group.join(request(client="c"), id_first=False)
    group.join(request(leader), id_first=False)
    for _ in range(int(REBALANCE_S / 5)):
        assert not third.done()
        group.heartbeat(follower, None, 1)
        timers.advance(5)
    assert joined(third)["generation_id"] == 2
    assert follower not in group.members
    with pytest.raises(BrokerError) as caught:
        group.heartbeat(follower, None, 1)
    assert code_of(caught) is ErrorCode.UNKNOWN_MEMBER_ID


def test_silent_member_expires_and_the_rest_goes_on(group: Group, timers: VirtualTimers) -> None:
    leader, follower = stable_group_of_two(group, timers)
    timers.advance(SESSION_S - 1)
    group.heartbeat(leader, None, 1)
    timers.advance(1.5)
    assert list(group.members) == [leader]
    assert group.heartbeat(leader, None, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    answer = group.join(request(leader), id_first=False)
    assert joined(answer)["generation_id"] == 2
    with pytest.raises(BrokerError):
        group.check_commit(follower, None, 1)


def test_member_waiting_for_the_others_does_not_expire(group: Group, timers: VirtualTimers) -> None:
    leader, follower = stable_group_of_two(group, timers)
    waiting = group.join(request(leader, metadata=b"changed"), id_first=False)
    group.heartbeat(leader, None, 1)
    for _ in range(4):
        timers.advance(SESSION_S * 0.6)
        group.heartbeat(follower, None, 1)
    assert not waiting.done()
    group.join(request(follower), id_first=False)
    assert joined(waiting)["generation_id"] == 2


def test_leaving_leader_is_replaced(group: Group, timers: VirtualTimers) -> None:
    leader, follower = stable_group_of_two(group, timers)
    group.leave(leader, None)
    answer = group.join(request(follower), id_first=False)
    assert joined(answer)["leader"] == follower
    group.leave(follower, None)
    assert group.state is GroupState.EMPTY
    assert answer.result()["generation_id"] < group.generation


def test_rebalance_interrupts_a_waiting_sync(group: Group, timers: VirtualTimers) -> None:
    answers = [group.join(request(client=client), id_first=False) for client in "ab"]
    timers.advance(DELAY_S)
    follower = joined(answers[1])["member_id"]
    waiting = group.sync(follower, None, 1, {})
    group.join(request(client="c"), id_first=False)
    assert waiting.result()["error_code"] is ErrorCode.REBALANCE_IN_PROGRESS
    with pytest.raises(BrokerError) as caught:
        group.sync(follower, None, 1, {})
    assert code_of(caught) is ErrorCode.REBALANCE_IN_PROGRESS


def test_follower_that_repeats_its_join_does_not_disturb(group: Group, timers: VirtualTimers) -> None:
    leader, follower = stable_group_of_two(group, timers)
    again = joined(group.join(request(follower), id_first=False))
    assert again["generation_id"] == 1
    assert group.state is GroupState.STABLE
    assert not group.join(request(leader), id_first=False).done(), "the leader wants a rebalance by joining again"
    assert group.state is GroupState.PREPARING


def test_commit_rights(group: Group, timers: VirtualTimers) -> None:
    group.check_commit("", None, -1)
    leader, follower = stable_group_of_two(group, timers)
    group.check_commit(leader, None, 1)
    for member, generation, code in [
        (leader, 0, ErrorCode.ILLEGAL_GENERATION),
        ("nobody", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ]:
        with pytest.raises(BrokerError) as caught:
            group.check_commit(member, None, generation)
        assert code_of(caught) is code
    group.join(request(leader, metadata=b"changed"), id_first=False)
    group.check_commit(follower, None, 1)
    group.join(request(follower), id_first=False)
    with pytest.raises(BrokerError) as caught:
        group.check_commit(follower, None, 2)
    assert code_of(caught) is ErrorCode.REBALANCE_IN_PROGRESS


def test_protocols_must_have_one_in_common(group: Group, timers: VirtualTimers) -> None:
    stable_group_of_two(group, timers)
    for changes in (
        {"protocols": (("sticky", b""),)},
        {"protocol_type": "connect"},
        {"protocols": ()},
        {"protocol_type": ""},
    ):
        with pytest.raises(BrokerError) as caught:
            group.join(request(**changes), id_first=False)
        assert code_of(caught) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    group.join(request(protocols=(("roundrobin", b""),)), id_first=False)
    for member in list(group.members)[:2]:
        group.join(request(member), id_first=False)
    assert group.protocol == "roundrobin"


def test_static_member_takes_over_from_its_former_self(group: Group, timers: VirtualTimers) -> None:
    first = group.join(request(instance_id="i"), id_first=True)
    timers.advance(DELAY_S)
    former = joined(first)["member_id"]
    group.sync(former, "i", 1, {former: b"x"})
    second = group.join(request(instance_id="i"), id_first=True)
    assert joined(second)["member_id"] != former
    with pytest.raises(BrokerError) as caught:
        group.heartbeat(former, "i", 1)
    assert code_of(caught) is ErrorCode.FENCED_INSTANCE_ID
    group.leave("", "i")
    assert group.members == {}
