"""One consumer group: who its members are, which generation they form, who reads what, and how far they have read.

The life of a group, as in Apache Kafka's classic protocol:

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable -> PreparingRebalance ... -> Empty

1. A member joins, leaves, changes its subscription or goes silent: the group prepares a rebalance and tells the others
   (REBALANCE_IN_PROGRESS on their next heartbeat).
2. When all known members have joined again, or the longest rebalance timeout has passed (those missing are dropped), a new
   generation begins; one member, the leader, gets the list of members.
3. The leader sends the assignment; each member gets its part; the group is stable.

Whoever acts with an old generation or an unknown member id is refused: a zombie cannot commit. Time comes from ``Timers``,
ids from ``new_member_id``; answers that must wait are futures.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from meridian.embedded.broker.errors import BrokerError, ErrorCode
from meridian.embedded.broker.wire import Message

NO_GENERATION = -1


class TimerHandle(Protocol):
    """A call that is to come."""

    def cancel(self) -> None:
        """Do not make the call."""


class Timers(Protocol):
    """What a group needs of an event loop."""

    def call_later(self, delay: float, callback: Callable[..., object], /, *args: Any) -> TimerHandle:
        """Call ``callback`` after ``delay`` seconds."""

    def create_future(self) -> asyncio.Future[Any]:
        """A new future."""


class GroupState(StrEnum):
    """Names as Apache Kafka reports them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What a client says when it joins; timeouts in seconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_s: float
    rebalance_timeout_s: float
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(slots=True)
class Member:
    """A member and the answers it waits for."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_s: float
    rebalance_timeout_s: float
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    joining: asyncio.Future[Message] | None = None
    syncing: asyncio.Future[Message] | None = None
    expiry: TimerHandle | None = None

    def metadata(self, protocol: str | None) -> bytes:
        """The subscription it sent for ``protocol``."""
        return dict(self.protocols).get(protocol or "", b"")


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """How far a group has read in one partition: the next offset to read."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_at_ms: int = 0


@dataclass(slots=True)
class Group:
    """See the module."""

    group_id: str
    timers: Timers
    new_member_id: Callable[[str], str]
    initial_rebalance_delay_s: float = 0.02
    on_change: Callable[[Group], None] = lambda _group: None
    """Called when members, generation or assignment have changed for good: Stable or Empty."""

    state: GroupState = GroupState.EMPTY
    changed_at_ms: int = 0
    """When `on_change` was last called, as its caller notes: an empty group has had no members since; 0: never had any."""
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    offsets: dict[tuple[str, int], CommittedOffset] = field(default_factory=dict)
    _pending: dict[str, TimerHandle] = field(default_factory=dict)
    """Ids given out to clients that have not come back with them yet."""
    _rebalance_timer: TimerHandle | None = None
    _held_open: bool = False
    """The first rebalance of an empty group waits a moment for more members."""

    @property
    def expects_members(self) -> bool:
        """Whether ids are given out to clients that may still come with them."""
        return bool(self._pending)

    # --- joining -----------------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, *, id_first: bool) -> asyncio.Future[Message]:
        """Take part in the next generation; the answer comes when it begins. Raises ``BrokerError``.

        ``id_first``: a new member is first told its id and must come again with it (KIP-394), so that a client which
        gives up in between leaves no ghost behind.
        """
        self._check_protocols(request)
        member_id = request.member_id
        if not member_id:
            return self._join_new(request, id_first=id_first)
        if member_id in self._pending:
            self._pending.pop(member_id).cancel()
            return self._add(member_id, request)
        member = self._known(member_id, request.instance_id)
        return self._rejoin(member, request)

    def _join_new(self, request: JoinRequest, *, id_first: bool) -> asyncio.Future[Message]:
        member_id = self.new_member_id(request.instance_id or request.client_id)
        if request.instance_id is not None:
            former = self._static_member(request.instance_id)
            if former is not None:
                self._fence(former)
                return self._add(member_id, request)
        elif id_first:
            self._pending[member_id] = self.timers.call_later(
                request.session_timeout_s, self._forget_pending, member_id
            )
            return self._answered({"error_code": ErrorCode.MEMBER_ID_REQUIRED, "member_id": member_id})
        return self._add(member_id, request)

    def _static_member(self, instance_id: str) -> Member | None:
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)

    def _fence(self, former: Member) -> None:
        """A new process took over a static member's name: the old one must not go on."""
        del self.members[former.member_id]
        self._stop(former, ErrorCode.FENCED_INSTANCE_ID)
        if self.leader_id == former.member_id:
            self.leader_id = None

    def _check_protocols(self, request: JoinRequest) -> None:
        if not request.protocol_type or not request.protocols:
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "a member needs a protocol type and a protocol")
        others = [member for member in self.members.values() if member.member_id != request.member_id]
        if not others:
            return
        common = set.intersection(*({name for name, _ in member.protocols} for member in others))
        if self.protocol_type != request.protocol_type or not common & {name for name, _ in request.protocols}:
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocol in common with the other members")

    def _add(self, member_id: str, request: JoinRequest) -> asyncio.Future[Message]:
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_s,
            request.rebalance_timeout_s,
            request.protocols,
            joining=self.timers.create_future(),
        )
        self.protocol_type = request.protocol_type
        self.members[member_id] = member
        assert member.joining is not None
        answer = member.joining
        self._prepare()
        return answer

    def _rejoin(self, member: Member, request: JoinRequest) -> asyncio.Future[Message]:
        unchanged = member.protocols == request.protocols
        if unchanged and (
            self.state is GroupState.COMPLETING
            or (self.state is GroupState.STABLE and member.member_id != self.leader_id)
        ):
            self._touch(member)
            return self._answered(self._join_answer(member))
        member.protocols = request.protocols
        member.session_timeout_s = request.session_timeout_s
        member.rebalance_timeout_s = request.rebalance_timeout_s
        if member.joining is not None and not member.joining.done():
            member.joining.set_result({"error_code": ErrorCode.REBALANCE_IN_PROGRESS, "member_id": member.member_id})
        member.joining = answer = self.timers.create_future()
        self._rest(member)
        self._prepare()
        return answer

    # --- rebalancing -------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Begin a rebalance, or see whether the present one is complete."""
        if self.state is not GroupState.PREPARING:
            for member in self.members.values():
                if member.syncing is not None and not member.syncing.done():
                    member.syncing.set_result({"error_code": ErrorCode.REBALANCE_IN_PROGRESS})
                member.syncing = None
            self._held_open = self.state is GroupState.EMPTY
            self.state = GroupState.PREPARING
            delay_s = (
                self.initial_rebalance_delay_s
                if self._held_open
                else max((member.rebalance_timeout_s for member in self.members.values()), default=0.0)
            )
            self._rebalance_timer = self.timers.call_later(delay_s, self._rebalance_timed_out)
        self._complete_if_all_joined()

    def _complete_if_all_joined(self) -> None:
        if self.state is not GroupState.PREPARING or self._held_open or self._pending:
            return
        if all(member.joining is not None for member in self.members.values()):
            self._begin_generation()

    def _rebalance_timed_out(self) -> None:
        if self._held_open:
            self._held_open = False
            longest_s = max((member.rebalance_timeout_s for member in self.members.values()), default=0.0)
            self._rebalance_timer = self.timers.call_later(longest_s, self._rebalance_timed_out)
            self._complete_if_all_joined()
            return
        for member in [member for member in self.members.values() if member.joining is None]:
            del self.members[member.member_id]
            self._stop(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._begin_generation()

    def _begin_generation(self) -> None:
        if self._rebalance_timer is not None:
            self._rebalance_timer.cancel()
            self._rebalance_timer = None
        self.generation += 1
        if not self.members:
            self._become_empty()
            return
        self.state = GroupState.COMPLETING
        self.protocol = self._chosen_protocol()
        if self.leader_id not in self.members:
            self.leader_id = next(iter(self.members))
        for member in tuple(self.members.values()):
            member.assignment = b""
            answer, member.joining = member.joining, None
            self._touch(member)
            if answer is not None and not answer.done():
                answer.set_result(self._join_answer(member))

    def _chosen_protocol(self) -> str:
        """Each member votes for the first it lists of those that all support."""
        members = self.members.values()
        common = set.intersection(*({name for name, _ in member.protocols} for member in members))
        votes = Counter(next(name for name, _ in member.protocols if name in common) for member in members)
        return votes.most_common(1)[0][0]

    def _join_answer(self, member: Member) -> Message:
        everyone = self.members.values() if member.member_id == self.leader_id else ()
        return {
            "error_code": ErrorCode.NONE,
            "generation_id": self.generation,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "leader": self.leader_id,
            "member_id": member.member_id,
            "members": [
                {
                    "member_id": each.member_id,
                    "group_instance_id": each.instance_id,
                    "metadata": each.metadata(self.protocol),
                }
                for each in everyone
            ],
        }

    def sync(
        self, member_id: str, instance_id: str | None, generation: int, assignments: dict[str, bytes]
    ) -> asyncio.Future[Message]:
        """The member's part of the assignment; for the leader, which brings it, at once. Raises ``BrokerError``."""
        member = self._current(member_id, instance_id, generation)
        if self.state is GroupState.PREPARING:
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._touch(member)
        if self.state is GroupState.STABLE:
            return self._answered(self._sync_answer(member))
        member.syncing = answer = self.timers.create_future()
        if member_id == self.leader_id:
            self._assign(assignments)
        return answer

    def _assign(self, assignments: dict[str, bytes]) -> None:
        self.state = GroupState.STABLE
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self.on_change(self)
        for member in self.members.values():
            answer, member.syncing = member.syncing, None
            if answer is not None and not answer.done():
                answer.set_result(self._sync_answer(member))

    def _sync_answer(self, member: Member) -> Message:
        return {
            "error_code": ErrorCode.NONE,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "assignment": member.assignment,
        }

    # --- staying and leaving -----------------------------------------------------------------------------------------

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Note that the member is alive; tells it when it must join again. Raises ``BrokerError``."""
        self._touch(self._current(member_id, instance_id, generation))
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else ErrorCode.NONE

    def leave(self, member_id: str, instance_id: str | None) -> None:
        """Take the member out and rebalance the rest. Raises ``BrokerError``."""
        if member_id in self._pending:
            self._forget_pending(member_id)
            return
        if not member_id and instance_id is not None:
            static = self._static_member(instance_id)
            member_id = static.member_id if static is not None else ""
        self._remove(self._known(member_id, instance_id))

    def _remove(self, member: Member) -> None:
        del self.members[member.member_id]
        self._stop(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if self.leader_id == member.member_id:
            self.leader_id = None
        if not self.members and not self._pending and self.state is not GroupState.PREPARING:
            self.generation += 1
            self._become_empty()
        else:
            self._prepare()

    def _become_empty(self) -> None:
        self.state = GroupState.EMPTY
        self.protocol = self.leader_id = None
        self.on_change(self)

    def _forget_pending(self, member_id: str) -> None:
        handle = self._pending.pop(member_id, None)
        if handle is not None:
            handle.cancel()
        self._complete_if_all_joined()

    def _expire(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is not None:
            self._remove(member)

    def _touch(self, member: Member) -> None:
        """Start the session timeout anew; a member that waits for the next generation is not asked to show itself."""
        self._rest(member)
        if member.joining is None:
            member.expiry = self.timers.call_later(member.session_timeout_s, self._expire, member.member_id)

    @staticmethod
    def _rest(member: Member) -> None:
        if member.expiry is not None:
            member.expiry.cancel()
            member.expiry = None

    def _stop(self, member: Member, reason: ErrorCode) -> None:
        self._rest(member)
        for answer in (member.joining, member.syncing):
            if answer is not None and not answer.done():
                answer.set_result({"error_code": reason, "member_id": member.member_id})

    def _known(self, member_id: str, instance_id: str | None) -> Member:
        member = self.members.get(member_id)
        if member is None:
            if instance_id is not None and self._static_member(instance_id) is not None:
                raise BrokerError(ErrorCode.FENCED_INSTANCE_ID)
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def _current(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        member = self._known(member_id, instance_id)
        if generation != self.generation:
            raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
        return member

    def _answered(self, answer: Message) -> asyncio.Future[Message]:
        future: asyncio.Future[Message] = self.timers.create_future()
        future.set_result(answer)
        return future

    # --- offsets -----------------------------------------------------------------------------------------------------

    def check_commit(self, member_id: str, instance_id: str | None, generation: int) -> None:
        """Raise ``BrokerError`` unless this member, in this generation, may commit offsets now.

        A client outside any generation (an administrator, a consumer that assigns itself) may while there are no members.
        """
        if generation == NO_GENERATION and not member_id:
            if self.members:
                raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
            return
        member = self._current(member_id, instance_id, generation)
        if self.state is GroupState.COMPLETING:
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._touch(member)

    # --- stopping and starting again ---------------------------------------------------------------------------------

    def resume(self) -> None:
        """After a restart with members from the journal: give each a full session timeout to be heard of."""
        for member in self.members.values():
            self._touch(member)

    def stop(self) -> None:
        """Cancel all timers and waiting answers (the broker stops)."""
        for handle in self._pending.values():
            handle.cancel()
        if self._rebalance_timer is not None:
            self._rebalance_timer.cancel()
        for member in self.members.values():
            self._rest(member)
            for answer in (member.joining, member.syncing):
                if answer is not None:
                    answer.cancel()
