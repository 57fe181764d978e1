"""Starts example programs the way an agent does: real processes, the documented environment, output read line by line."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.fixtures_embedded import free_port as choose_free_port

EXAMPLES = Path(__file__).parents[3] / "examples"
MARKER = "@meridian "


@dataclass
class Rank:
    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait(self, timeout_s: float = 240.0) -> int:
        code = self.process.wait(timeout_s)
        self._reader.join(60.0)
        return code

    def messages(self, kind: str) -> list[dict]:
        reports = [json.loads(line[len(MARKER) :]) for line in list(self.lines) if line.startswith(MARKER)]
        return [report[kind] for report in reports if kind in report]

    def losses(self) -> dict[int, float]:
        return {entry["step"]: entry["metrics"]["loss"] for entry in self.messages("progress")}

    def last_step(self) -> int:
        return max(self.losses(), default=0)


class Launcher:
    def __init__(self) -> None:
        self.started: list[Rank] = []

    def rank(self, example: str, arguments: list[str], environment: dict[str, str]) -> Rank:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MERIDIAN_")}
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=EXAMPLES / example,
            env=inherited | {"MERIDIAN_JOB_ID": "job-test", "MERIDIAN_RUN_ID": "run-test"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        rank = Rank(process)
        self.started.append(rank)
        return rank

    def gang(
        self, world_size: int, arguments: list[str], *, started: int | None = None, **environment: str
    ) -> list[Rank]:
        """The ranks of a gang, or the first ``started`` of them: the others never come."""
        port = str(choose_free_port())
        return [
            self.rank(
                "train_transformer",
                ["train.py", *arguments],
                environment
                | {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(world_size),
                    "LOCAL_RANK": str(rank),
                    "LOCAL_WORLD_SIZE": str(world_size),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                },
            )
            for rank in range(world_size if started is None else started)
        ]

    def end(self) -> None:
        for rank in self.started:
            if rank.process.poll() is None:
                rank.process.send_signal(signal.SIGKILL)
                rank.process.wait()


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.end()


@pytest.fixture
def free_port() -> int:
    return choose_free_port()


@pytest.fixture
def until() -> Callable[..., None]:
    return wait_until
