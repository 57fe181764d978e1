"""What a node passes on of the reports of its ranks: all of an honest program, of one that floods the newest."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.node import wire
from agent.node.machine import Machine
from agent.node.rank import CHECKPOINT_BURST, Limits, Rank
from agent.node.rank_output import Report


@pytest.fixture
def machine() -> Iterator[Machine]:
    here, there = socket.socketpair()
    with here, there:
        yield Machine(here, "n1", 1, beat_s=60.0, silence_s=0.0)


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    process = Rank(
        ("r", 1, 0),
        argv=["/bin/true"],
        env={},
        cwd=str(tmp_path),
        log_path=str(tmp_path / "log"),
        limits=Limits({}),
        now=time.monotonic(),
    )
    yield process
    process.process.wait()
    for pipe in list(process.open_pipes):
        process.close_pipe(pipe)


def _checkpoints(machine: Machine) -> list[dict[str, Any]]:
    return [message for message in wire.LineDecoder().feed(bytes(machine._unsent)) if message["ev"] == "checkpoint"]


def test_a_program_that_floods_with_checkpoints_is_heard_in_part_and_to_its_last_one(
    machine: Machine, rank: Rank, tmp_path: Path
) -> None:
    """A hundred thousand lines in some seconds: a few hundred are passed on, on a machine that is ten times slower as well."""
    machine._ranks[rank.key] = rank
    path = tmp_path / "c"
    path.write_bytes(b"x" * 7)
    for step in range(100_000):
        machine._forward(rank, Report("checkpoint", {"step": step, "path": str(path)}))
    before = _checkpoints(machine)
    assert [message["step"] for message in before[:CHECKPOINT_BURST]] == list(range(CHECKPOINT_BURST))
    assert len(before) < 10_000
    _, status, usage = os.wait4(rank.pid, 0)
    rank.reaped(status, usage, time.monotonic())
    machine._finish(rank)
    last = _checkpoints(machine)[-1]
    assert (last["step"], last["size_bytes"]) == (99_999, 7)
    assert len(_checkpoints(machine)) <= len(before) + 1


def test_what_was_held_back_is_passed_on_when_its_time_has_come(machine: Machine, rank: Rank) -> None:
    now = rank.checkpoints_earned_at
    for step in range(CHECKPOINT_BURST):
        rank.newest_checkpoint = {"ev": "checkpoint", "step": step, "path": "/none"}
        machine._send_checkpoint(rank, now)
    rank.newest_checkpoint = {"ev": "checkpoint", "step": 999, "path": "/none"}
    machine._send_checkpoint(rank, now + 0.05)
    assert len(_checkpoints(machine)) == CHECKPOINT_BURST
    machine._send_checkpoint(rank, now + 0.15)
    last = _checkpoints(machine)[-1]
    assert (last["step"], last["size_bytes"]) == (999, None)
    assert rank.newest_checkpoint is None
