"""The log of a pod: times in front of lines, reports between them, and picking it up again."""

from __future__ import annotations

from pathlib import Path

from agent.engines.kubernetes.pod_log import PodLog, sortable
from agent.node.rank_log import RankLog


def log_at(path: Path, position: str = "") -> PodLog:
    found = PodLog("/pods/p", RankLog(str(path), 10_000), position)
    found.known_until = position
    return found


def test_lines_lose_their_times_and_reports_are_told(tmp_path: Path) -> None:
    log = log_at(tmp_path / "rank-0.log")
    text = (
        b'2026-11-23T01:00:00.1Z first\n2026-11-23T01:00:00.2Z @meridian {"progress": {"step": 1}}\n'
        b"2026-11-23T01:00:00.2Z second at the same time\n2026-11-23T01:00:01Z no en"
    )
    reports = [report for cut in range(0, len(text), 7) for report in log.feed(text[cut : cut + 7])]
    assert [(report.kind, report.body["step"]) for report in reports] == [("progress", 1)]
    assert log.position == "2026-11-23T01:00:00.200000000Z"
    log.finish()
    assert (tmp_path / "rank-0.log").read_text() == "first\nsecond at the same time\nno en"


def test_what_was_read_before_is_passed_over(tmp_path: Path) -> None:
    log = log_at(tmp_path / "rank-0.log", "2026-11-23T01:00:00.200000000Z")
    log.feed(b"2026-11-23T01:00:00.1Z a\n2026-11-23T01:00:00.2Z b\n2026-11-23T01:00:00.200000001Z c\n")
    log.finish()
    assert (tmp_path / "rank-0.log").read_text() == "c\n"


def test_a_line_without_a_time_is_text(tmp_path: Path) -> None:
    log = log_at(tmp_path / "rank-0.log")
    log.feed(b"2026-11-23T01:00:00.1Z a\nunable to retrieve container logs\n\n2026-13-23T01:00:00Z odd\n")
    log.finish()
    assert (tmp_path / "rank-0.log").read_text() == "a\nunable to retrieve container logs\n\n2026-13-23T01:00:00Z odd\n"
    assert log.position == "2026-11-23T01:00:00.100000000Z"


def test_times_of_all_zones_sort() -> None:
    assert sortable("2026-11-23T09:00:00.5+08:00") == "2026-11-23T01:00:00.500000000Z"
    assert sortable("2026-11-23T01:00:00Z") < sortable("2026-11-23T01:00:00.000000001Z")
    for odd in ("", "first", "2026-11-23", "2026-11-23T25:00:00Z", "0001-01-01T00:00:00+10:00"):
        assert sortable(odd) == ""
