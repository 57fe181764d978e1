"""All consumer groups of the broker, and their memory: groups and committed offsets survive a restart.

Members survive as well, with a fresh session timeout, so that a broker that comes back within it is no reason for a
rebalance: heartbeats and commits go on in the same generation.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from meridian.embedded.broker.errors import BrokerError, ErrorCode
from meridian.embedded.broker.group import CommittedOffset, Group, GroupState, Member, Timers
from meridian.embedded.broker.journal import Entry, Journal


def new_member_id(prefix: str) -> str:
    """A member id that no one can guess or meet twice."""
    return f"{prefix}-{uuid.uuid4()}"


class Coordinator:
    """The groups by id, and the journal behind them."""

    def __init__(
        self,
        path: Path,
        timers: Timers,
        initial_rebalance_delay_s: float,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.groups: dict[str, Group] = {}
        self.journal = Journal(path)
        self._timers = timers
        self._initial_rebalance_delay_s = initial_rebalance_delay_s
        self._now_ms = now_ms

    def open(self) -> None:
        """Read the journal and take up the groups where they were."""
        for entry in self.journal.open():
            self._apply(entry)
        if self.journal.is_large:
            self.journal.rewrite(self._snapshot())
        for group in self.groups.values():
            group.resume()

    def close(self) -> None:
        """Stop all groups, keeping their members for the next start."""
        for group in self.groups.values():
            group.stop()
        self.journal.close()

    def group(self, group_id: str) -> Group:
        """The group, created if it is new; raises ``BrokerError`` INVALID_GROUP_ID."""
        if not group_id:
            raise BrokerError(ErrorCode.INVALID_GROUP_ID)
        if group_id not in self.groups:
            self.groups[group_id] = Group(
                group_id,
                self._timers,
                new_member_id,
                self._initial_rebalance_delay_s,
                self._changed,
            )
        return self.groups[group_id]

    def known(self, group_id: str) -> Group:
        """The group, if it exists; raises ``BrokerError`` UNKNOWN_MEMBER_ID: without a group there are no members."""
        if not group_id:
            raise BrokerError(ErrorCode.INVALID_GROUP_ID)
        if group_id not in self.groups:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        return self.groups[group_id]

    def commit(self, group: Group, offsets: dict[tuple[str, int], CommittedOffset]) -> None:
        """Store offsets that the group has been checked to be allowed to commit; raises ``BrokerError`` if the disk fails."""
        try:
            self._record([_offset_entry(group.group_id, where, offset) for where, offset in offsets.items()])
        except OSError as error:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        group.offsets.update(offsets)

    def forget_topic(self, topic: str) -> None:
        """Drop the committed offsets of a topic that is deleted."""
        for group in self.groups.values():
            self._forget(group, [where for where in group.offsets if where[0] == topic])

    def expire_offsets(self, before_ms: int) -> None:
        """Drop what groups that have had no members since ``before_ms`` committed before that, and groups of which nothing is
        left. Members keep their offsets, however long there is nothing to read and to commit (KIP-211)."""
        for group in list(self.groups.values()):
            if group.state is not GroupState.EMPTY or group.expects_members or group.changed_at_ms >= before_ms:
                continue
            self._forget(group, [where for where, at in group.offsets.items() if at.committed_at_ms < before_ms])
            if not group.offsets:
                self._record([{"kind": "gone", "group": group.group_id}])
                del self.groups[group.group_id]

    def _changed(self, group: Group) -> None:
        group.changed_at_ms = self._now_ms()
        self._record([_group_entry(group)])

    def _forget(self, group: Group, where: Iterable[tuple[str, int]]) -> None:
        entries = []
        for topic, partition in where:
            del group.offsets[topic, partition]
            entries.append({"kind": "offset", "group": group.group_id, "topic": topic, "partition": partition})
        if entries:
            self._record(entries)

    def _record(self, entries: list[Entry]) -> None:
        self.journal.append(entries)
        if self.journal.overgrown:
            self.journal.rewrite(self._snapshot())

    def _snapshot(self) -> Iterator[Entry]:
        for group in self.groups.values():
            yield _group_entry(group)
            for where, offset in group.offsets.items():
                yield _offset_entry(group.group_id, where, offset)

    def _apply(self, entry: Entry) -> None:
        applying: dict[str, Callable[[Entry], None]] = {
            "offset": self._apply_offset,
            "group": self._apply_group,
            "gone": self._apply_gone,
        }
        applying[entry["kind"]](entry)

    def _apply_gone(self, entry: Entry) -> None:
        self.groups.pop(entry["group"], None)

    def _apply_offset(self, entry: Entry) -> None:
        where = (entry["topic"], entry["partition"])
        offsets = self.group(entry["group"]).offsets
        if "offset" in entry:
            offsets[where] = CommittedOffset(entry["offset"], entry["epoch"], entry["metadata"], entry["at_ms"])
        else:
            offsets.pop(where, None)

    def _apply_group(self, entry: Entry) -> None:
        group = self.group(entry["group"])
        group.changed_at_ms = entry.get("at_ms", 0)
        group.generation = entry["generation"]
        group.protocol_type = entry["protocol_type"]
        group.protocol = entry["protocol"]
        group.leader_id = entry["leader"]
        group.members = {member["member_id"]: _member_from(member) for member in entry["members"]}
        group.state = GroupState.STABLE if group.members else GroupState.EMPTY


def _offset_entry(group_id: str, where: tuple[str, int], offset: CommittedOffset) -> Entry:
    return {
        "kind": "offset",
        "group": group_id,
        "topic": where[0],
        "partition": where[1],
        "offset": offset.offset,
        "epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "at_ms": offset.committed_at_ms,
    }


def _group_entry(group: Group) -> Entry:
    """The group as of its last complete generation; one that is just rebalancing begins anew after a restart."""
    stable = group.state is GroupState.STABLE
    return {
        "kind": "group",
        "group": group.group_id,
        "at_ms": group.changed_at_ms,
        "generation": group.generation,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "leader": group.leader_id,
        "members": [_member_entry(member) for member in group.members.values()] if stable else [],
    }


def _member_entry(member: Member) -> Entry:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "session_timeout_s": member.session_timeout_s,
        "rebalance_timeout_s": member.rebalance_timeout_s,
        "protocols": [[name, base64.b64encode(metadata).decode()] for name, metadata in member.protocols],
        "assignment": base64.b64encode(member.assignment).decode(),
    }


def _member_from(entry: Entry) -> Member:
    return Member(
        entry["member_id"],
        entry["instance_id"],
        entry["client_id"],
        entry["client_host"],
        entry["session_timeout_s"],
        entry["rebalance_timeout_s"],
        tuple((name, base64.b64decode(metadata)) for name, metadata in entry["protocols"]),
        base64.b64decode(entry["assignment"]),
    )
