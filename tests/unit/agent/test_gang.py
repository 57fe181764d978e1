"""The gang's state machine: one verdict, the first cause, and an end only when no rank is left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.engines.base import FailureKind, LaunchRequest, RankPlacement, RunState
from agent.engines.local.gang import Gang, RankEnd, Turn


def _gang(*nodes: str) -> Gang:
    ranks = tuple(RankPlacement(rank, node) for rank, node in enumerate(nodes))
    return Gang(LaunchRequest("r", "j", 0, 1, "acme", ranks, len(ranks), ("true",)))


def _end(rank: int, code: int | None = 0, signal: int | None = None, why: str = "exited") -> RankEnd:
    return RankEnd(rank, code, signal, why, "tail")


def test_it_runs_when_all_ranks_started_and_ends_when_all_ended() -> None:
    gang = _gang("n1", "n2")
    assert gang.rank_started(0) == Turn()
    assert gang.rank_started(1) == Turn(started=True)
    assert gang.rank_ended(_end(0)) == Turn()
    assert gang.rank_ended(_end(1)) == Turn(ended=True)
    assert gang.cause is None


def test_the_first_failure_is_the_verdict() -> None:
    gang = _gang("n1", "n2", "n2")
    for rank in range(3):
        gang.rank_started(rank)
    assert gang.rank_ended(_end(1, 7)) == Turn(stop_the_rest=True)
    assert gang.node_lost("n1", "gone") == Turn()
    assert gang.rank_ended(_end(2, None, 15, "stopped")) == Turn(ended=True)
    assert gang.cause is not None
    assert (gang.cause.kind, gang.cause.rank, gang.cause.exit_code) == (FailureKind.PROGRAM, 1, 7)


def test_a_lost_node_takes_its_ranks() -> None:
    gang = _gang("n1", "n2", "n2")
    assert gang.node_lost("n3", "gone") == Turn()
    assert gang.node_lost("n2", "gone") == Turn(stop_the_rest=True)
    assert gang.live_nodes() == ("n1",)
    assert gang.rank_ended(_end(0, None, 15, "stopped")) == Turn(ended=True)
    assert gang.cause is not None
    assert (gang.cause.kind, gang.cause.rank, gang.cause.node_id) == (FailureKind.NODE_LOST, 1, "n2")


def test_a_stop_is_the_verdict_even_when_the_ranks_end_well() -> None:
    gang = _gang("n1")
    gang.rank_started(0)
    assert gang.stop(FailureKind.STOPPED, "ordered") == Turn(stop_the_rest=True)
    assert gang.rank_ended(_end(0, 0, None, "stopped")) == Turn(ended=True)
    assert gang.cause is not None
    assert gang.cause.kind is FailureKind.STOPPED
    assert gang.stop(FailureKind.STOPPED, "again") == Turn()


def test_a_program_that_ends_well_within_its_grace_after_the_time_limit_still_failed() -> None:
    gang = _gang("n1")
    gang.rank_ended(_end(0, 0, None, "time_limit"))
    assert gang.cause is not None
    assert gang.cause.kind is FailureKind.TIME_LIMIT


HAPPENINGS = st.lists(
    st.tuples(st.sampled_from(["started", "good", "bad", "lost", "stop"]), st.integers(0, 3)), min_size=1, max_size=30
)


@given(HAPPENINGS)
def test_whatever_happens_it_ends_at_most_once(happenings: list[tuple[str, int]]) -> None:
    gang = _gang("n0", "n1", "n1", "n2")
    ends = starts = 0
    for what, number in happenings:
        before = gang.cause
        turn = {
            "started": gang.rank_started,
            "good": lambda n: gang.rank_ended(_end(n)),
            "bad": lambda n: gang.rank_ended(_end(n, 1)),
            "lost": lambda n: gang.node_lost(f"n{n}", "gone"),
            "stop": lambda _: gang.stop(FailureKind.STOPPED, "ordered"),
        }[what](number)
        ends += turn.ended
        starts += turn.started
        assert before is None or gang.cause is before, "the first cause stays"
        assert not (turn.ended and gang.live_nodes())
    assert ends == (gang.state is RunState.ENDED)
    assert starts <= 1
