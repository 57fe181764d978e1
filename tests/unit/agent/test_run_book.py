"""The run book: fencing, and the same book after a replay or a compaction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import run_book
from agent.engines.base import (
    Checkpoint,
    FailureKind,
    LaunchRequest,
    RankPlacement,
    RunEvent,
    RunFailed,
    RunFinished,
    RunRefused,
    RunStarted,
)
from agent.engines.event_record import from_record, to_record
from agent.run_book import Admission, ProcessMark, RunBook, next_incarnation

AT = datetime(2026, 5, 1, 12, tzinfo=UTC)
START_S = int(AT.timestamp())


def _request(epoch: int, run_id: str = "", unit_index: int = 0) -> LaunchRequest:
    name = run_id or f"job-1.{unit_index}.{epoch}"
    return LaunchRequest(name, "job-1", unit_index, epoch, "acme", (RankPlacement(0, "n1"),), 1, ("true",))


def _finished(request: LaunchRequest) -> RunFinished:
    return RunFinished(request.run_id, request.job_id, request.unit_index, request.epoch, AT)


def _book(path: Path, boot: str = "boot-1", now_s: float = START_S) -> RunBook:
    return RunBook(path, new_agent_mark="mark", boot=boot, now_s=lambda: now_s)


async def test_a_units_epochs_only_grow(tmp_path: Path) -> None:
    book = _book(tmp_path / "j")
    book.open()
    assert book.admit(_request(3)) is Admission.ACCEPTED
    book.begin(_request(3), AT)
    assert book.admit(_request(3)) is Admission.KNOWN_RUNNING
    assert book.admit(_request(3, "another-run")) is Admission.STALE
    assert book.admit(_request(2)) is Admission.STALE
    assert book.admit(_request(4)) is Admission.ACCEPTED
    assert book.admit(_request(1, unit_index=1)) is Admission.ACCEPTED, "units are fenced apart"
    book.record(_finished(_request(3)))
    assert book.admit(_request(3)) is Admission.KNOWN_ENDED
    book.fence("job-1", 0, 9, AT)
    assert book.admit(_request(9)) is Admission.STALE
    await book.close()


async def test_a_refusal_ends_nothing(tmp_path: Path) -> None:
    book = _book(tmp_path / "j")
    book.open()
    book.begin(_request(3), AT)
    book.record(RunRefused("job-1.0.2", "job-1", 0, 2, AT, 3, "stale"))
    assert ("job-1.0.3", 3) in book.begun
    await book.close()


async def test_a_restart_knows_what_was(tmp_path: Path) -> None:
    book = _book(tmp_path / "j")
    book.open()
    book.node_started("n1", 4, ProcessMark(10, 100))
    book.begin(_request(1), AT)
    book.process_started(("job-1.0.1", 1), ProcessMark(11, 111))
    first, _ = book.record(RunStarted("job-1.0.1", "job-1", 0, 1, AT, ("n1",)))
    book.record(Checkpoint("job-1.0.1", "job-1", 0, 1, AT, 0, 100, "/c", None))
    book.acknowledge(first)
    await book.close()

    again = _book(tmp_path / "j")
    again.open()
    assert again.incarnation == START_S + 1, "greater than the first also within one second"
    assert again.nodes["n1"].incarnation == 4
    assert again.begun["job-1.0.1", 1].processes == [ProcessMark(11, 111)]
    assert again.earlier_processes_live
    assert [type(event) for event in again.pending.values()] == [Checkpoint]
    number, _ = again.record(_finished(_request(1)))
    assert number == 3, "event numbers are never used twice"
    await again.close()

    other_boot = _book(tmp_path / "j", "boot-2")
    other_boot.open()
    assert not other_boot.earlier_processes_live
    await other_boot.close()


@pytest.mark.parametrize("clock_went_s", [-3600.0, 0.0, 0.4, 3600.0])
async def test_incarnations_grow_whatever_the_clock_does(tmp_path: Path, clock_went_s: float) -> None:
    first = _book(tmp_path / "j")
    first.open()
    await first.close()
    second = _book(tmp_path / "j", now_s=START_S + clock_went_s)
    second.open()
    assert second.incarnation > first.incarnation
    await second.close()


async def test_a_fresh_journal_gives_a_greater_incarnation_than_the_one_lost(tmp_path: Path) -> None:
    for _ in range(5):
        lost = _book(tmp_path / "lost")
        lost.open()
        await lost.close()
    fresh = _book(tmp_path / "fresh", now_s=START_S + 60.0)
    fresh.open()
    assert fresh.incarnation > lost.incarnation
    await fresh.close()


def test_a_nodes_incarnation_grows_with_and_without_a_memory_of_it() -> None:
    first = next_incarnation(0, START_S + 0.9)
    assert first == START_S
    assert next_incarnation(first, START_S + 0.95) == first + 1
    assert next_incarnation(0, START_S + 60.0) > first + 1


async def test_old_units_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_book, "KEPT_UNITS", 0)
    book = _book(tmp_path / "j")
    book.open()
    book.begin(_request(1), AT)
    book.record(_finished(_request(1)))
    book.begin(_request(1, unit_index=1), AT)
    book.fence("job-2", 0, 1, AT + timedelta(days=8))
    await book.close()
    again = _book(tmp_path / "j")
    again.open()
    await again.close()
    third = _book(tmp_path / "j")
    third.open()
    assert set(third.units) == {("job-1", 1), ("job-2", 0)}, "a unit that still runs is kept"
    await third.close()


@pytest.mark.parametrize("ahead", [timedelta(days=30), timedelta(days=3000), timedelta(days=-15_000)])
async def test_a_clock_that_is_wrong_for_a_while_makes_no_epoch_forgotten(ahead: timedelta, tmp_path: Path) -> None:
    book = _book(tmp_path / "j")
    book.open()
    book.fence("job-1", 0, 5, AT)
    book.fence("job-2", 0, 7, AT + ahead)
    book.fence("job-3", 0, 1, AT + timedelta(minutes=1))
    for _ in range(3):
        assert book.admit(_request(4)) is Admission.STALE
        assert book.highest_epoch("job-2", 0) == 7
        await book.close()
        book = _book(tmp_path / "j")
        book.open()
    await book.close()


async def test_of_old_units_those_seen_last_are_kept_and_others_go_again_after_the_clock_was_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_book, "KEPT_UNITS", 2)
    book = _book(tmp_path / "j")
    book.open()
    for day in (0, 1, 400, 2, 3, 4):
        book.fence(f"job-{day}", 0, 1, AT + timedelta(days=day))
    book.fence("job-1", 0, 2, AT + timedelta(days=4))
    book.fence("job-20", 0, 1, AT + timedelta(days=20))
    book.fence("job-21", 0, 1, AT + timedelta(days=21))
    # Before the last came: of the future, and the two that were seen last.
    assert list(book.units) == [("job-400", 0), ("job-1", 0), ("job-20", 0), ("job-21", 0)]
    await book.close()


async def test_old_units_are_forgotten_while_the_agent_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_book, "KEPT_UNITS", 0)
    book = _book(tmp_path / "j")
    book.open()
    book.begin(_request(1), AT)
    for day in range(40):
        at = AT + timedelta(days=day)
        for unit in range(5):
            book.begin(_request(1, f"day-{day}-{unit}", unit_index=100 * day + unit + 1), at)
            book.record(RunFinished(f"day-{day}-{unit}", "job-1", 100 * day + unit + 1, 1, at))
    assert ("job-1", 0) in book.units, "a unit that still runs is kept"
    assert len(book.units) <= 5 * 9 + 1
    assert book.highest_epoch("job-1", 3905) == 1
    units = dict(book.units)
    await book.close()
    again = _book(tmp_path / "j")
    again.open()
    assert again.units == units
    await again.close()


@pytest.mark.parametrize(
    "event",
    [
        RunStarted("r", "j", 0, 1, AT, ("n1", "n2")),
        Checkpoint("r", "j", 0, 1, AT, 0, 100, "/c", None),
        Checkpoint("r", "j", 0, 1, AT, 0, 100, "/c", 12),
        RunFinished("r", "j", 0, 1, AT),
        RunFailed("r", "j", 0, 1, AT, FailureKind.NODE_LOST, "gone"),
        RunFailed("r", "j", 0, 1, AT, FailureKind.PROGRAM, "x", 0, "n1", 0, None, "tail"),
        RunRefused("r", "j", 0, 1, AT, 5, "stale"),
    ],
)
def test_events_survive_the_journal(event: RunEvent) -> None:
    assert from_record(to_record(event)) == event


STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "fence", "finish", "fail", "ack"]), st.integers(0, 1), st.integers(1, 4)),
    max_size=25,
)


@settings(deadline=None)  # each example waits for the disk
@given(steps=STEPS)
async def test_a_replay_and_a_compaction_give_the_same_answers(
    steps: list[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("book") / "j"
    book = _book(path)
    book.open()
    for action, unit_index, epoch in steps:
        request = _request(epoch, unit_index=unit_index)
        if action == "begin" and book.admit(request) is Admission.ACCEPTED:
            book.begin(request, AT)
        elif action == "fence":
            book.fence("job-1", unit_index, epoch, AT)
        elif action == "finish" and (request.run_id, epoch) in book.begun:
            book.record(_finished(request))
        elif action == "ack":
            book.acknowledge(epoch)
    requests = [_request(epoch, unit_index=unit) for unit in (0, 1) for epoch in range(1, 6)]
    answers = [book.admit(request) for request in requests]
    await book.close()
    for _ in range(2):  # the first opening replays the file, the second the snapshot that the first wrote
        again = _book(path)
        again.open()
        assert [again.admit(request) for request in requests] == answers
        assert set(again.begun) == set(book.begun)
        assert again.pending == book.pending
        await again.close()
