"""What the coordinator remembers over a restart, and the journal it remembers with."""

from __future__ import annotations

from pathlib import Path

import pytest

from meridian.embedded.broker import journal as journal_module
from meridian.embedded.broker.coordinator import Coordinator
from meridian.embedded.broker.errors import BrokerError, ErrorCode
from meridian.embedded.broker.group import CommittedOffset, GroupState
from meridian.embedded.broker.journal import Journal
from tests.unit.broker.conftest import VirtualTimers, files_limited_to
from tests.unit.broker.test_group import DELAY_S, SESSION_S, joined, request


def opened(path: Path, timers: VirtualTimers) -> Coordinator:
    coordinator = Coordinator(path / "groups.journal", timers, DELAY_S)
    coordinator.open()
    return coordinator


def test_members_go_on_in_their_generation_after_a_restart(tmp_path: Path, timers: VirtualTimers) -> None:
    coordinator = opened(tmp_path, timers)
    group = coordinator.group("g")
    answer = group.join(request(metadata=b"\x00\xff"), id_first=False)
    timers.advance(DELAY_S)
    member_id = joined(answer)["member_id"]
    group.sync(member_id, None, 1, {member_id: b"part"})
    coordinator.commit(group, {("t", 0): CommittedOffset(41, 0, "note", 5)})

    again = opened(tmp_path, timers).group("g")
    assert (again.state, again.generation, again.leader_id) == (GroupState.STABLE, 1, member_id)
    assert again.offsets == {("t", 0): CommittedOffset(41, 0, "note", 5)}
    assert again.heartbeat(member_id, None, 1) is ErrorCode.NONE
    again.check_commit(member_id, None, 1)
    assert again.sync(member_id, None, 1, {}).result()["assignment"] == b"part"
    assert again.members[member_id].metadata("range") == b"\x00\xff"
    timers.advance(SESSION_S)
    assert again.members == {}, "a member that does not come back expires"

    last = opened(tmp_path, timers).group("g")
    assert (last.state, last.members) == (GroupState.EMPTY, {})
    assert last.offsets[("t", 0)].offset == 41


def test_members_that_do_not_come_back_after_a_restart_expire(tmp_path: Path, timers: VirtualTimers) -> None:
    coordinator = opened(tmp_path, timers)
    group = coordinator.group("g")
    answer = group.join(request(), id_first=False)
    timers.advance(DELAY_S)
    group.sync(joined(answer)["member_id"], None, 1, {})
    group.stop()
    again = opened(tmp_path, timers).group("g")
    timers.advance(SESSION_S - 0.1)
    assert len(again.members) == 1
    timers.advance(0.2)
    assert (again.members, again.state) == ({}, GroupState.EMPTY)


def test_full_disk_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    list(journal.open())
    journal.append([{"n": 1}])
    with files_limited_to(journal.path.stat().st_size + 20), pytest.raises(OSError, match="File too large"):
        journal.append([{"n": 2, "text": "x" * 100}])
    journal.append([{"n": 3}])
    journal.close()
    assert list(Journal(journal.path).open()) == [{"n": 1}, {"n": 3}]


def test_offsets_of_a_deleted_topic_and_old_offsets_are_forgotten(tmp_path: Path, timers: VirtualTimers) -> None:
    coordinator = opened(tmp_path, timers)
    group = coordinator.group("g")
    offsets = {("old", 0): CommittedOffset(1, committed_at_ms=10), ("gone", 0): CommittedOffset(2, committed_at_ms=99)}
    coordinator.commit(group, offsets)
    coordinator.forget_topic("gone")
    assert list(group.offsets) == [("old", 0)]
    coordinator.expire_offsets(before_ms=10)
    assert list(opened(tmp_path, timers).group("g").offsets) == [("old", 0)]
    coordinator.expire_offsets(before_ms=11)
    assert "g" not in coordinator.groups
    assert "g" not in opened(tmp_path, timers).groups


def test_members_keep_their_offsets_though_there_was_long_nothing_to_commit(
    tmp_path: Path, timers: VirtualTimers
) -> None:
    """Time 1: it commits. Its last member leaves at 50. Kafka counts from then on (KIP-211)."""
    clock_ms = [1]
    coordinator = Coordinator(tmp_path / "groups.journal", timers, DELAY_S, lambda: clock_ms[0])
    coordinator.open()
    group = coordinator.group("g")
    answer = group.join(request(), id_first=False)
    timers.advance(DELAY_S)
    member_id = joined(answer)["member_id"]
    group.sync(member_id, None, 1, {})
    coordinator.commit(group, {("t", 0): CommittedOffset(7, committed_at_ms=1)})
    clock_ms[0] = 50
    group.leave(member_id, None)
    assert group.state is GroupState.EMPTY
    coordinator.expire_offsets(before_ms=50)
    again = opened(tmp_path, timers)
    again.expire_offsets(before_ms=50)
    assert again.group("g").offsets[("t", 0)].offset == 7
    again.expire_offsets(before_ms=51)
    assert "g" not in again.groups


def test_groups_that_never_committed_are_forgotten(tmp_path: Path, timers: VirtualTimers) -> None:
    coordinator = Coordinator(tmp_path / "groups.journal", timers, DELAY_S, lambda: 10)
    coordinator.open()
    for number in range(3):
        group = coordinator.group(f"once-{number}")
        answer = group.join(request(), id_first=False)
        timers.advance(DELAY_S)
        group.leave(joined(answer)["member_id"], None)
    waiting = coordinator.group("waiting")
    waiting.join(request(), id_first=True)
    coordinator.expire_offsets(before_ms=11)
    assert list(coordinator.groups) == ["waiting"]
    assert not [name for name in opened(tmp_path, timers).groups if name.startswith("once")]


def test_zeros_at_the_end_of_the_journal_are_cut_off(tmp_path: Path) -> None:
    """What a file system may leave of a write that the death of the machine interrupted."""
    journal = Journal(tmp_path / "journal")
    list(journal.open())
    journal.append([{"n": 1}])
    journal.close()
    with journal.path.open("ab") as file:
        file.write(bytes(64))
    again = Journal(journal.path)
    assert list(again.open()) == [{"n": 1}]
    again.append([{"n": 2}])
    again.close()
    assert list(Journal(journal.path).open()) == [{"n": 1}, {"n": 2}]


def test_the_journal_does_not_grow_from_start_to_start(
    tmp_path: Path, timers: VirtualTimers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "MIN_REWRITE_BYTES", 4000)
    for start in range(10):
        coordinator = opened(tmp_path, timers)
        for offset in range(30):
            coordinator.commit(coordinator.group("g"), {("t", 0): CommittedOffset(1000 * start + offset)})
        coordinator.close()
    assert (tmp_path / "groups.journal").stat().st_size < 8000


def test_unknown_groups(tmp_path: Path, timers: VirtualTimers) -> None:
    coordinator = opened(tmp_path, timers)
    with pytest.raises(BrokerError) as caught:
        coordinator.known("never")
    assert caught.value.error_code is ErrorCode.UNKNOWN_MEMBER_ID
    with pytest.raises(BrokerError) as caught:
        coordinator.group("")
    assert caught.value.error_code is ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("torn_bytes", [1, 7, 9, 15])
def test_torn_journal_entry_is_cut_off(tmp_path: Path, torn_bytes: int) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    assert list(journal.open()) == []
    journal.append([{"n": 1}, {"n": 2}])
    good_bytes = path.stat().st_size
    journal.append([{"n": 3, "text": "äöü"}])
    journal.close()
    with path.open("r+b") as file:
        file.truncate(good_bytes + torn_bytes)
    again = Journal(path)
    assert list(again.open()) == [{"n": 1}, {"n": 2}]
    again.append([{"n": 4}])
    again.close()
    assert list(Journal(path).open()) == [{"n": 1}, {"n": 2}, {"n": 4}]


def test_overgrown_journal_is_rewritten(tmp_path: Path, timers: VirtualTimers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MIN_REWRITE_BYTES", 4000)
    coordinator = opened(tmp_path, timers)
    group = coordinator.group("g")
    for offset in range(2000):
        coordinator.commit(group, {("t", offset % 3): CommittedOffset(offset)})
    assert coordinator.journal.path.stat().st_size < 6000
    again = opened(tmp_path, timers).group("g")
    assert sorted(offset.offset for offset in again.offsets.values()) == [1997, 1998, 1999]
