"""A whole network for tests: all servers, services and agents as real processes, driven by the public client."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from meridian.client import Client
from meridian.embedded import stack
from meridian.embedded.state import ProcessState, StackState

PATIENCE_S = 120.0
# Nothing is taken for dead because the machine is busy: nodes that are killed are known by their processes' ends, at once.
PATIENT = {
    "MERIDIAN_FAILOVER_SUSPECT_AFTER_S": "30",
    "MERIDIAN_FAILOVER_FAILED_AFTER_S": "60",
    "MERIDIAN_FAILOVER_UNREACHABLE_AFTER_S": "60",
}
LEASE_S = 120.0
T = TypeVar("T")


@dataclass(slots=True)
class Network:
    """A running network; ``folder`` is a place that jobs may write to."""

    data_dir: Path
    folder: Path
    client: Client

    @property
    def state(self) -> StackState:
        """What runs now."""
        found = stack.status(self.data_dir)
        assert found is not None
        return found

    def kill(self, process: str) -> int:
        """kill -9 one of the network's processes; returns its pid."""
        pid = next(item.pid for item in self.state.processes if item.name == process)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return pid

    def until(self, condition: Callable[[], T | None], what: str, timeout_s: float = PATIENCE_S) -> T:
        """What a look gives, once it gives something: an event on one topic says nothing of those on others."""
        deadline_s = time.monotonic() + timeout_s
        while not (found := condition()):
            assert time.monotonic() < deadline_s, f"waited {timeout_s:g} s for {what}"
            time.sleep(0.1)
        return found

    def trace_with(self, job_id: str, *kinds: str) -> dict[str, Any]:
        """A job's trace, once it has events of these types (as many as named)."""

        def whole() -> dict[str, Any] | None:
            trace = self.client.trace(job_id)
            seen = Counter(event["type"] for event in trace["events"])
            return trace if Counter(kinds) <= seen else None

        return self.until(whole, f"{', '.join(kinds)} of {job_id}")

    def wait_until_back(self, process: str, killed_pid: int, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the supervisor has started a killed process again and it is ready."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            item = next(item for item in self.state.processes if item.name == process)
            if item.pid != killed_pid and item.state is ProcessState.READY:
                return
            time.sleep(0.05)
        raise AssertionError(f"{process} did not come back within {timeout_s} s")

    def wait_for_domains(self, count: int = 5, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the gateway knows nodes of so many domains."""
        deadline_s = time.monotonic() + timeout_s
        while len({node["domain_id"] for node in self.client.nodes()}) < count:
            if time.monotonic() > deadline_s:
                raise AssertionError(f"not {count} domains within {timeout_s} s: {self.client.nodes()}")
            time.sleep(0.1)


@contextlib.contextmanager
def network(*, compact: bool = False, domains_file: Path | None = None) -> Iterator[Network]:
    """Start a network in a temporary directory; afterwards nothing of it is left."""
    with tempfile.TemporaryDirectory(prefix="meridian-network-") as name:
        root = Path(name)
        root.chmod(0o755)
        data_dir, folder = root / "data", root / "jobs"
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in PATIENT.items():
                patch.setenv(variable, value)
            stack.start_detached(stack.StackOptions(data_dir, compact, domains_file, lease_s=LEASE_S))
        try:
            with Client.from_environment(data_dir, patience_s=PATIENCE_S) as client:
                running = Network(data_dir, folder, client)
                running.wait_for_domains()
                yield running
        finally:
            stack.stop(data_dir)
            deadline_s = time.monotonic() + PATIENCE_S
            while left := processes_below(root):  # one that was killed ends when it gets the processor
                assert time.monotonic() < deadline_s, f"processes were left: {left}"
                time.sleep(0.05)


def processes_below(root: Path) -> list[str]:
    """Command lines of processes that mention a folder: what a stopped network has left."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(root) in line and process.pid != os.getpid():
            found.append(f"{process.pid}: {line}")
    return found


def seeded(name: str) -> random.Random:
    """Randomness that repeats per test name."""
    return random.Random(name)
