"""Logs in pieces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.run_logs import RunLogs
from meridian.errors import NotFoundError


def _logs(tmp_path: Path, text: str) -> RunLogs:
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / "rank-0.log").write_text(text)
    return RunLogs(tmp_path)


@pytest.mark.parametrize("limit_bytes", [4, 5, 6, 7, 100])
def test_pieces_make_the_whole_and_cut_no_character(tmp_path: Path, limit_bytes: int) -> None:
    text = "aé€😀" * 50
    logs = _logs(tmp_path, text)
    found, offset = "", 0
    for _ in range(1000):
        piece = logs.read("run-1", 0, offset, limit_bytes)
        found, offset = found + piece.text, piece.next_offset
        if offset == piece.size_bytes:
            break
    assert found == text


def test_beyond_the_end_there_is_nothing(tmp_path: Path) -> None:
    piece = _logs(tmp_path, "abc").read("run-1", 0, 10, 100)
    assert (piece.offset, piece.next_offset, piece.text) == (3, 3, "")


@pytest.mark.parametrize("run_id", ["..", "../run-1", "run-1/../run-1", "", "run-2"])
def test_what_is_not_there_is_not_found(tmp_path: Path, run_id: str) -> None:
    logs = _logs(tmp_path, "abc")
    with pytest.raises(NotFoundError):
        logs.read(run_id, 0, 0, 10)


def test_a_known_run_that_printed_nothing_is_empty(tmp_path: Path) -> None:
    assert RunLogs(tmp_path).read("run-1", 0, 5, 10, may_be_empty=True).size_bytes == 0


def test_old_logs_are_removed(tmp_path: Path) -> None:
    logs = _logs(tmp_path, "abc")
    (tmp_path / "run-2").mkdir()
    for path in (tmp_path / "run-1" / "rank-0.log", tmp_path / "run-1"):
        os.utime(path, (1, 1))
    assert logs.remove_older_than(3600) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run-2"]


def test_a_link_to_nowhere_among_the_logs_is_no_harm(tmp_path: Path) -> None:
    """Nor is a file that is replaced between the list and the look at it."""
    logs = _logs(tmp_path, "abc")
    (tmp_path / "run-1" / "rank-1.log").symlink_to(tmp_path / "gone")
    assert logs.remove_older_than(3600) == 0


def test_the_log_of_a_run_that_has_been_silent_for_long_is_kept(tmp_path: Path) -> None:
    logs = _logs(tmp_path, "abc")
    for path in (tmp_path / "run-1" / "rank-0.log", tmp_path / "run-1"):
        os.utime(path, (1, 1))
    assert logs.remove_older_than(3600, {"run-1"}) == 0
    assert logs.read("run-1", 0, 0, 10).text == "abc"
    assert logs.remove_older_than(3600, {"run-2"}) == 1
