"""The two buses that the conformance suite runs on, behind one small form: start, kill, start again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from deploy.kafka.kafka import KafkaNode
from tests.fixtures_embedded import free_port

REPOSITORY = Path(__file__).resolve().parents[2]


class BusUnderTest(Protocol):
    """A broker process on 127.0.0.1 that keeps port and records over ``kill`` and ``start``."""

    @property
    def bootstrap_servers(self) -> str:
        """What clients connect to."""

    def start(self) -> None:
        """Start and wait until it answers."""

    def kill(self) -> None:
        """End at once (SIGKILL)."""

    def stop(self) -> None:
        """End cleanly (SIGTERM)."""


class EmbeddedBus:
    """``python -m meridian.embedded.broker`` in a process of its own."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        self.data_dir = data_dir
        self.port = free_port("broker")
        self._options = options
        self._process: subprocess.Popen[str] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "meridian.embedded.broker", "--port", str(self.port)]
        self._process = subprocess.Popen(
            [*command, "--data-dir", str(self.data_dir), *self._options],
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        assert self._process.stdout is not None
        notice = self._process.stdout.readline()
        assert notice.startswith("embedded broker: single node, not for production"), notice

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, with_signal: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(with_signal)
            self._process.wait(60)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


__all__ = ["BusUnderTest", "EmbeddedBus", "KafkaNode"]
