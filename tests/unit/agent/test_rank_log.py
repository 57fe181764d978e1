"""A rank's log: lazily opened, capped, with its tail at hand."""

from __future__ import annotations

from pathlib import Path

from agent.node.rank_log import TAIL_BYTES, RankLog


def test_no_output_makes_no_file(tmp_path: Path) -> None:
    log = RankLog(str(tmp_path / "run" / "rank-0.log"), 100)
    log.write(b"")
    log.close()
    assert not (tmp_path / "run").exists()


def test_the_cap_is_kept_and_said_once(tmp_path: Path) -> None:
    path = tmp_path / "run" / "rank-0.log"
    log = RankLog(str(path), 10)
    for _ in range(5):
        log.write(b"123456\n")
    log.close()
    assert path.read_bytes() == b"123456\n123\n[meridian: log truncated after 10 bytes]\n"
    assert log.truncated
    assert log.discarded_bytes == 25


def test_the_tail_goes_on_after_the_cap(tmp_path: Path) -> None:
    log = RankLog(str(tmp_path / "a.log"), 10)
    log.write(b"x" * 20_000)
    log.write(b"the cause\n")
    assert log.tail().endswith("xxthe cause\n")
    assert len(log.tail()) == TAIL_BYTES


def test_a_disk_that_refuses_does_not_end_the_run() -> None:
    log = RankLog("/proc/no/such/place.log", 100)
    log.write(b"text\n")
    assert log.truncated
    assert log.tail() == "text\n"
