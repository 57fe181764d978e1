"""The ranks of one run in this domain succeed or fail together: a pure state machine, fed with what happened.

States: starting -> running (all ranks started) -> ended; stopping in between when a rank failed, a node was lost or a
stop was ordered. The first cause is the verdict; the run has ended only when no rank is left.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.engines.base import FailureKind, LaunchRequest, RunState


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a run does not succeed."""

    kind: FailureKind
    reason: str
    rank: int | None = None
    node_id: str = ""
    exit_code: int | None = None
    signal: int | None = None
    log_tail: str = ""


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How a rank ended, as its node reported it; ``why`` is the node's word (exited, time_limit, out_of_memory, stopped)."""

    rank: int
    exit_code: int | None
    signal: int | None
    why: str
    log_tail: str

    @property
    def good(self) -> bool:
        """Ended by itself with exit code 0."""
        return self.exit_code == 0 and self.why == "exited"


@dataclass(frozen=True, slots=True)
class Turn:
    """What has to be done after something happened."""

    started: bool = False
    stop_the_rest: bool = False
    ended: bool = False


class Gang:
    """The ranks of ``request`` and what is known of each."""

    def __init__(self, request: LaunchRequest) -> None:
        self.request = request
        self.state = RunState.STARTING
        self.cause: Cause | None = None
        self._node_of = {placement.rank: placement.node_id for placement in request.ranks}
        self._to_start = set(self._node_of)
        self._left = set(self._node_of)

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Nodes the run was placed on, in the order of the ranks."""
        return tuple(dict.fromkeys(self._node_of.values()))

    def node_of(self, rank: int) -> str:
        """The node of a rank. KeyError: not a rank of this run."""
        return self._node_of[rank]

    def live_nodes(self) -> tuple[str, ...]:
        """Nodes on which ranks are left."""
        return tuple(dict.fromkeys(self._node_of[rank] for rank in sorted(self._left)))

    def rank_started(self, rank: int) -> Turn:
        """A rank is running."""
        self._to_start.discard(rank)
        if self.state is RunState.STARTING and not self._to_start:
            self.state = RunState.RUNNING
            return Turn(started=True)
        return Turn()

    def rank_not_started(self, rank: int, error: str) -> Turn:
        """A rank could not be started."""
        return self._gone({rank}, Cause(FailureKind.NOT_STARTABLE, error, rank, self._node_of[rank]))

    def rank_ended(self, end: RankEnd) -> Turn:
        """A rank has ended."""
        return self._gone({end.rank}, None if end.good else self._cause_of(end))

    def node_lost(self, node_id: str, reason: str) -> Turn:
        """A node is gone and its ranks with it."""
        ranks = {rank for rank in self._left if self._node_of[rank] == node_id}
        if not ranks:
            return Turn()
        return self._gone(ranks, Cause(FailureKind.NODE_LOST, reason, min(ranks), node_id))

    def stop(self, kind: FailureKind, reason: str) -> Turn:
        """The run is to end; with no rank left it already has."""
        if self.state is RunState.ENDED:
            return Turn()
        if self.cause is None:
            self.cause = Cause(kind, reason)
        self.state = RunState.STOPPING
        return Turn(stop_the_rest=True)

    def kind_of(self, end: RankEnd) -> FailureKind | None:
        """The failure that a rank's end is by itself, None for a good end or one that was ordered."""
        if end.good or end.why == "stopped":
            return None
        return self._cause_of(end).kind

    def _cause_of(self, end: RankEnd) -> Cause:
        place = (end.rank, self._node_of[end.rank], end.exit_code, end.signal, end.log_tail)
        if end.why == "time_limit":
            limit_s = self.request.limits.max_run_time_s
            return Cause(FailureKind.TIME_LIMIT, f"rank {end.rank} ran longer than {limit_s:g} s", *place)
        if end.why == "out_of_memory":
            limit_bytes = self.request.limits.memory_bytes
            return Cause(
                FailureKind.OUT_OF_MEMORY, f"rank {end.rank} used more than {limit_bytes} bytes of memory", *place
            )
        if end.why == "stopped":
            return Cause(FailureKind.STOPPED, f"rank {end.rank} was stopped", *place)
        how = f"by signal {end.signal}" if end.signal is not None else f"with exit code {end.exit_code}"
        return Cause(FailureKind.PROGRAM, f"rank {end.rank} ended {how}", *place)

    def _gone(self, ranks: set[int], cause: Cause | None) -> Turn:
        if self.state is RunState.ENDED:
            return Turn()
        self._left -= ranks
        self._to_start -= ranks
        first = cause is not None and self.cause is None
        if first:
            self.cause = cause
            self.state = RunState.STOPPING
        if not self._left:
            self.state = RunState.ENDED
            return Turn(ended=True)
        return Turn(stop_the_rest=first)
