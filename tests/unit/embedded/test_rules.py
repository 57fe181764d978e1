"""The decisions of the supervisor and the launchers that need no process."""

from __future__ import annotations

from pathlib import Path

import pytest

from meridian.embedded.child import BackOff
from meridian.embedded.postgres import PostgresServer, choose_server, may_pass
from meridian.embedded.process import ProcessSpec, RunAs, log_tail
from meridian.embedded.state import (
    Failure,
    ProcessRecord,
    ProcessRef,
    ProcessState,
    StackPhase,
    StackState,
    read_state,
    write_state,
)
from meridian.embedded.supervisor import stop_order
from meridian.errors import ConfigurationError


def spec(name: str, *needed: str) -> ProcessSpec:
    return ProcessSpec(name, ("true",), Path("/dev/null"), depends_on=needed)


def test_back_off_doubles_up_to_its_limit_and_begins_anew_after_a_stable_period() -> None:
    back_off = BackOff(first_s=0.1, limit_s=1.0, stable_s=10.0)
    assert [back_off.delay_s(failures) for failures in (1, 2, 3, 4, 5, 99)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert back_off.failures_after(4, ready_for_s=9.9) == 5
    assert back_off.failures_after(4, ready_for_s=10.0) == 1


def test_dependents_are_known_and_wrong_graphs_refused() -> None:
    assert stop_order([spec("a"), spec("b", "a"), spec("c", "a", "b")]) == {"a": ("b", "c"), "b": ("c",), "c": ()}
    with pytest.raises(ConfigurationError, match="circular dependency among a, b"):
        stop_order([spec("a", "b"), spec("b", "a"), spec("c")])
    with pytest.raises(ConfigurationError, match="unknown dependency: x"):
        stop_order([spec("a", "x")])
    with pytest.raises(ConfigurationError, match="twice"):
        stop_order([spec("a"), spec("a")])


def test_the_server_of_a_cluster_is_the_one_of_its_version() -> None:
    old, new = (PostgresServer("system", Path("/old"), 15), PostgresServer("wheel", Path("/new"), 18))
    assert choose_server([new, old], None) is new
    assert choose_server([new, old], 15) is old
    with pytest.raises(ConfigurationError, match=r"made by PostgreSQL 16; installed: 18, 15"):
        choose_server([new, old], 16)
    with pytest.raises(ConfigurationError, match="install"):
        choose_server([], None)


def test_an_account_passes_only_where_every_directory_lets_it(tmp_path: Path) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    outsider = RunAs("outsider", 4_242, 4_242)
    owner = RunAs("owner", inner.stat().st_uid, inner.stat().st_gid)
    inner.chmod(0o700)
    assert may_pass(inner, owner)
    assert not may_pass(inner, outsider)
    assert may_pass(Path("/"), outsider)


def test_log_tail_shows_the_last_lines_of_this_attempt(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("earlier\n")
    start = log.stat().st_size
    with log.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(100))
    assert log_tail(log, from_byte=start, lines=2) == "line 98\nline 99"
    assert log_tail(log, from_byte=log.stat().st_size) == ""
    assert log_tail(tmp_path / "none") == ""


def test_the_state_is_read_as_it_was_written_and_is_private(tmp_path: Path) -> None:
    record = ProcessRecord("a", ProcessState.BACK_OFF, "/log", 7, 1.5, 2, "t0", None, "signal 9")
    state = StackState(
        "id", StackPhase.FAILED, ProcessRef(1, 2.5), "t", {"a": 1}, {"a": "u"}, (record,), Failure("a", "r", "l")
    )
    assert read_state(tmp_path) is None
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state
    assert (tmp_path / "stack.json").stat().st_mode & 0o777 == 0o600
