"""Processes that are killed: who asks for it is answered when they are gone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from agent.node import proc


@pytest.fixture
def victim() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()


def test_a_process_that_takes_long_to_end_is_waited_for(victim: int) -> None:
    """On a busy machine one that was killed is found many times more: it ends when it gets the processor."""
    found = [[victim]] * 100

    def find() -> list[int]:
        return found.pop() if found else []

    assert proc.kill_until_gone(find) == 1
    assert found == []


def test_one_that_hangs_in_the_kernel_is_not_waited_for_without_end(victim: int) -> None:
    calls: list[int] = []

    def find() -> list[int]:
        calls.append(victim)
        return [victim]

    assert proc.kill_until_gone(find, patience_s=0.0) == 1
    assert calls


def test_nothing_to_kill_is_nothing_done() -> None:
    assert proc.kill_until_gone(list) == 0
