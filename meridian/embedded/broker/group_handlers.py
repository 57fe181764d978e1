"""Answers to the requests of consumer groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from meridian.embedded.broker.coordinator import Coordinator
from meridian.embedded.broker.errors import BrokerError, ErrorCode
from meridian.embedded.broker.group import NO_GENERATION, CommittedOffset, GroupState, JoinRequest
from meridian.embedded.broker.requests import Answer, Request
from meridian.embedded.broker.stream_handlers import NODE_ID, Address
from meridian.embedded.broker.topics import TopicStore
from meridian.embedded.broker.wire import Message

GROUP_KEY = 0
MIN_SESSION_TIMEOUT_MS, MAX_SESSION_TIMEOUT_MS = 100, 30 * 60 * 1000
MAX_METADATA_BYTES = 4096
NO_OFFSET = -1


class GroupHandlers:
    """Membership, committed offsets, and what an administrator may ask about groups."""

    def __init__(
        self,
        coordinator: Coordinator,
        topics: TopicStore,
        address: Callable[[], Address],
        now_ms: Callable[[], int],
        sync: Callable[[list[int]], Awaitable[None]] | None,
    ) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._address = address
        self._now_ms = now_ms
        self._sync = sync

    def find_coordinator(self, request: Request) -> Answer:
        """Always this node; none for transactions, which are not served."""
        body = request.body
        keys = body["keys"] if request.version >= 4 else [body["key"]]
        address = self._address()
        found: Message = {"error_code": ErrorCode.NONE, "node_id": NODE_ID, "host": address.host, "port": address.port}
        if body["key_type"] != GROUP_KEY:
            reason = "transactions are not served"
            found = {"error_code": ErrorCode.UNSUPPORTED_VERSION, "error_message": reason, "node_id": -1, "port": -1}
        return found | {"coordinators": [found | {"key": key} for key in keys]}

    # --- membership --------------------------------------------------------------------------------------------------

    def join(self, request: Request) -> Answer:
        """JoinGroup: the answer comes when the next generation begins."""
        body = request.body
        try:
            if not MIN_SESSION_TIMEOUT_MS <= body["session_timeout_ms"] <= MAX_SESSION_TIMEOUT_MS:
                raise BrokerError(ErrorCode.INVALID_SESSION_TIMEOUT)
            group = self._coordinator.group(body["group_id"])
            return group.join(_join_request(request), id_first=request.version >= 4)
        except BrokerError as error:
            return {"error_code": error.error_code, "member_id": body["member_id"]}

    def sync(self, request: Request) -> Answer:
        """SyncGroup: the member's part of the assignment."""
        body = request.body
        assignments = {item["member_id"]: bytes(item["assignment"]) for item in body["assignments"]}
        try:
            group = self._coordinator.known(body["group_id"])
            return group.sync(body["member_id"], body["group_instance_id"], body["generation_id"], assignments)
        except BrokerError as error:
            return {"error_code": error.error_code}

    def heartbeat(self, request: Request) -> Answer:
        """Heartbeat."""
        body = request.body
        try:
            group = self._coordinator.known(body["group_id"])
            return {"error_code": group.heartbeat(body["member_id"], body["group_instance_id"], body["generation_id"])}
        except BrokerError as error:
            return {"error_code": error.error_code}

    def leave(self, request: Request) -> Answer:
        """LeaveGroup, of one member or (from version 3) of several."""
        body = request.body
        leaving = body["members"] if request.version >= 3 else [{"member_id": body["member_id"]}]
        members = [self._leave(body["group_id"], item["member_id"], item.get("group_instance_id")) for item in leaving]
        single = members[0]["error_code"] if request.version < 3 else ErrorCode.NONE
        return {"error_code": single, "members": members}

    def _leave(self, group_id: str, member_id: str, instance_id: str | None) -> Message:
        answer: Message = {"member_id": member_id, "group_instance_id": instance_id, "error_code": ErrorCode.NONE}
        try:
            self._coordinator.known(group_id).leave(member_id, instance_id)
        except BrokerError as error:
            answer["error_code"] = error.error_code
        return answer

    # --- offsets -----------------------------------------------------------------------------------------------------

    def commit(self, request: Request) -> Answer:
        """OffsetCommit: all or, where the member may not, none."""
        body = request.body
        accepted: dict[tuple[str, int], CommittedOffset] = {}
        topics: list[Message] = []
        outside = body["generation_id"] == NO_GENERATION and not body["member_id"]
        code = ErrorCode.NONE
        try:
            group = (self._coordinator.group if outside else self._coordinator.known)(body["group_id"])
            group.check_commit(body["member_id"], body["group_instance_id"], body["generation_id"])
            topics = [{"name": topic["name"], "partitions": self._take(topic, accepted)} for topic in body["topics"]]
            self._coordinator.commit(group, accepted)
        except BrokerError as error:
            code = error.error_code
        if code is not ErrorCode.NONE:
            topics = [
                {
                    "name": topic["name"],
                    "partitions": [{"index": part["index"], "error_code": code} for part in topic["partitions"]],
                }
                for topic in body["topics"]
            ]
        answer: Message = {"topics": topics}
        if self._sync is None or not accepted:
            return answer
        return self._committed(answer)

    async def _committed(self, answer: Message) -> Message:
        assert self._sync is not None
        await self._sync(self._coordinator.journal.unsynced_copies())
        return answer

    def _take(self, topic: Message, accepted: dict[tuple[str, int], CommittedOffset]) -> list[Message]:
        answers = []
        for part in topic["partitions"]:
            code = ErrorCode.NONE
            metadata = part["metadata"] or ""
            if len(metadata.encode()) > MAX_METADATA_BYTES:
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            elif not self._topics.has(topic["name"], part["index"]):
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                accepted[topic["name"], part["index"]] = CommittedOffset(
                    part["offset"], part["leader_epoch"], metadata, self._now_ms()
                )
            answers.append({"index": part["index"], "error_code": code})
        return answers

    def fetch_offsets(self, request: Request) -> Answer:
        """OffsetFetch, of one group or (from version 8) of several."""
        body = request.body
        if request.version >= 8:
            return {"groups": [self._fetched(item["group_id"], item["topics"]) for item in body["groups"]]}
        return self._fetched(body["group_id"], body["topics"])

    def _fetched(self, group_id: str, wanted: list[Message] | None) -> Message:
        group = self._coordinator.groups.get(group_id)
        offsets = group.offsets if group is not None else {}
        if wanted is None:
            partitions: dict[str, list[int]] = {}
            for topic, partition in sorted(offsets):
                partitions.setdefault(topic, []).append(partition)
        else:
            partitions = {item["name"]: item["partitions"] for item in wanted}
        return {
            "group_id": group_id,
            "error_code": ErrorCode.NONE,
            "topics": [
                {"name": topic, "partitions": [_committed(offsets, topic, index) for index in indexes]}
                for topic, indexes in partitions.items()
            ],
        }

    # --- for administrators ------------------------------------------------------------------------------------------

    def describe(self, request: Request) -> Answer:
        """DescribeGroups."""
        return {"groups": [self._described(group_id) for group_id in request.body["groups"]]}

    def _described(self, group_id: str) -> Message:
        group = self._coordinator.groups.get(group_id)
        if group is None:
            return {"error_code": ErrorCode.NONE, "group_id": group_id, "group_state": GroupState.DEAD}
        stable = group.state is GroupState.STABLE
        return {
            "error_code": ErrorCode.NONE,
            "group_id": group_id,
            "group_state": group.state,
            "protocol_type": group.protocol_type or "",
            "protocol_data": (group.protocol or "") if stable else "",
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.instance_id,
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "member_metadata": member.metadata(group.protocol) if stable else b"",
                    "member_assignment": member.assignment,
                }
                for member in group.members.values()
            ],
        }

    def list(self, request: Request) -> Answer:
        """ListGroups, all or those in certain states."""
        states = request.body["states_filter"]
        return {
            "error_code": ErrorCode.NONE,
            "groups": [
                {"group_id": group.group_id, "protocol_type": group.protocol_type or "", "group_state": group.state}
                for group in self._coordinator.groups.values()
                if not states or group.state in states
            ],
        }


def _join_request(request: Request) -> JoinRequest:
    body = request.body
    rebalance_ms: Any = body["rebalance_timeout_ms"]
    return JoinRequest(
        body["member_id"],
        body["group_instance_id"],
        request.client_id,
        request.client_host,
        body["session_timeout_ms"] / 1000,
        (rebalance_ms if rebalance_ms > 0 else body["session_timeout_ms"]) / 1000,
        body["protocol_type"],
        tuple((item["name"], bytes(item["metadata"])) for item in body["protocols"]),
    )


def _committed(offsets: dict[tuple[str, int], CommittedOffset], topic: str, index: int) -> Message:
    known = offsets.get((topic, index))
    if known is None:
        return {"index": index, "offset": NO_OFFSET, "metadata": ""}
    return {"index": index, "offset": known.offset, "leader_epoch": known.leader_epoch, "metadata": known.metadata}
