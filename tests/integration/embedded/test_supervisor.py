"""The supervisor with real, tiny processes: order, restarts, failures, stopping, and what a killed one leaves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from meridian.embedded import control, leftovers
from meridian.embedded.child import BackOff, StackStartError
from meridian.embedded.process import ProcessSpec, Restart
from meridian.embedded.stack import import_path
from meridian.embedded.state import ProcessRecord, ProcessState, StackPhase, read_state, write_state
from meridian.embedded.supervisor import StackRunningError, Supervisor, claimed

SLEEP = "import time; time.sleep(600)"
QUICK = BackOff(first_s=0.02, limit_s=0.1, stable_s=5.0, start_attempts=3)


def child(directory: Path, name: str, code: str = SLEEP, **options: object) -> ProcessSpec:
    """A Python process that notes its start and its SIGTERM in ``events``, and then runs ``code``."""
    preamble = f"""
import os, signal, sys
def note(what): os.write(events, f"{{what}} {name}\\n".encode())
events = os.open({str(directory / "events")!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
signal.signal(signal.SIGTERM, lambda *_: (note("stop"), os._exit(0)))
note("start")
open({str(directory / name)!r}, "w").close()
"""

    async def ready() -> bool:
        return (directory / name).exists()

    arguments: dict[str, object] = {"ready": ready, "stop_timeout_s": 60.0} | options
    argv = (sys.executable, "-S", "-c", preamble + code)
    return ProcessSpec(name, argv, directory / f"{name}.log", **arguments)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def supervised(directory: Path, *specs: ProcessSpec) -> AsyncIterator[Supervisor]:
    with claimed(directory) as stack_id:
        supervisor = Supervisor(specs, state_dir=directory, stack_id=stack_id, back_off=QUICK)
        await supervisor.start()
        try:
            yield supervisor
        finally:
            await supervisor.stop()
            assert leftovers.marked(stack_id) == []


def record(directory: Path, name: str) -> ProcessRecord:
    state = read_state(directory)
    assert state is not None
    return next(found for found in state.processes if found.name == name)


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and leftovers.runs(psutil.Process(pid))


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "did not happen in time"
        await asyncio.sleep(0.01)


def events(directory: Path) -> list[str]:
    return (directory / "events").read_text().splitlines()


async def test_starts_in_the_order_of_dependencies_and_stops_the_other_way_round(tmp_path: Path) -> None:
    specs = (
        child(tmp_path, "service", depends_on=("step",)),
        child(tmp_path, "step", "sys.exit(0)", one_shot=True, restart=Restart.NEVER, depends_on=("database",)),
        child(tmp_path, "database"),
    )
    async with supervised(tmp_path, *specs):
        assert events(tmp_path) == ["start database", "start step", "start service"]
        assert [record(tmp_path, s.name).state for s in specs] == ["ready", "done", "ready"]
        state = read_state(tmp_path)
        assert state is not None
        assert state.phase is StackPhase.READY
        assert state.supervisor.pid == os.getpid()
    assert events(tmp_path)[3:] == ["stop service", "stop database"]
    state = read_state(tmp_path)
    assert state is not None
    assert state.phase is StackPhase.STOPPED


async def test_independent_processes_start_at_the_same_time(tmp_path: Path) -> None:
    """Each of the two is ready only once the other one runs."""

    def ready_with(other: str) -> Callable[[], object]:
        async def ready() -> bool:
            return (tmp_path / other).exists()

        return ready

    async with supervised(
        tmp_path, child(tmp_path, "a", ready=ready_with("b")), child(tmp_path, "b", ready=ready_with("a"))
    ):
        assert sorted(events(tmp_path)) == ["start a", "start b"]


async def test_a_killed_process_is_started_again(tmp_path: Path) -> None:
    async with supervised(tmp_path, child(tmp_path, "a"), child(tmp_path, "b", depends_on=("a",))):
        first = record(tmp_path, "a")
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: record(tmp_path, "a").restarts == 1 and record(tmp_path, "a").state is ProcessState.READY)
        second = record(tmp_path, "a")
        assert second.pid != first.pid
        assert second.last_exit == "signal 9"
        assert record(tmp_path, "b").restarts == 0


async def test_a_restart_ends_the_session_of_the_dead_process_but_not_what_left_it(tmp_path: Path) -> None:
    code = f"""
import subprocess, time
inside = subprocess.Popen([sys.executable, "-S", "-c", {SLEEP!r}])
outside = subprocess.Popen([sys.executable, "-S", "-c", {SLEEP!r}], start_new_session=True)
open({str(tmp_path / "pids")!r}, "a").write(f"{{inside.pid}} {{outside.pid}}\\n")
time.sleep(600)
"""

    def pids() -> list[list[int]]:
        file = tmp_path / "pids"
        return [[int(pid) for pid in line.split()] for line in file.read_text().splitlines()] if file.exists() else []

    async with supervised(tmp_path, child(tmp_path, "a", code)):
        await until(lambda: len(pids()) == 1)
        first = record(tmp_path, "a").pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: len(pids()) == 2)
        (inside, outside), (_, second_outside) = pids()
        assert not runs(inside)
        assert runs(outside)
    for pid in (outside, second_outside):
        assert not runs(pid)


async def test_a_crash_loop_backs_off_and_is_reported(tmp_path: Path) -> None:
    crashes = f"""
import time
if len(open({str(tmp_path / "events")!r}).readlines()) > 1: sys.exit(3)
time.sleep(600)
"""
    async with supervised(tmp_path, child(tmp_path, "a", crashes)):
        (tmp_path / "a").unlink()
        first = record(tmp_path, "a").pid
        assert first is not None
        began = time.monotonic()
        os.kill(first, signal.SIGKILL)
        await until(lambda: record(tmp_path, "a").restarts >= 5)
        waited_s = sum(QUICK.delay_s(failures) for failures in range(1, 6))
        assert time.monotonic() - began >= waited_s
        await until(lambda: record(tmp_path, "a").state is ProcessState.BACK_OFF)
        assert record(tmp_path, "a").last_exit == "exit code 3"


async def test_a_failing_start_names_the_process_and_shows_its_log_and_leaves_nothing(tmp_path: Path) -> None:
    failing = child(tmp_path, "b", "print('no such table'); sys.exit(3)", ready=None)
    (tmp_path / "b.log").write_text("from yesterday\n")

    async def never() -> bool:
        return False

    specs = (
        child(tmp_path, "a"),
        ProcessSpec("b", failing.argv, failing.log_path, ready=never, depends_on=("a",)),
        child(tmp_path, "c", depends_on=("b",)),
    )
    with pytest.raises(StackStartError, match=r"b: exit code 3\nno such table$"):
        async with supervised(tmp_path, *specs):
            pass
    assert events(tmp_path) == ["start a", "start b", "start b", "start b", "stop a"]
    state = read_state(tmp_path)
    assert state is not None
    assert state.phase is StackPhase.FAILED
    assert state.failure is not None
    assert state.failure.process == "b"
    assert leftovers.members(state) == []


async def test_a_process_that_does_not_become_ready_fails_the_start(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    with pytest.raises(StackStartError, match=r"a: not ready after 0\.3 s"):
        async with supervised(tmp_path, child(tmp_path, "a", ready=never, ready_timeout_s=0.3)):
            pass


async def test_a_program_that_does_not_exist_fails_the_start(tmp_path: Path) -> None:
    with pytest.raises(StackStartError, match="no-such-program"):
        async with supervised(tmp_path, ProcessSpec("a", ("no-such-program",), tmp_path / "log")):
            pass


async def test_a_process_that_will_not_end_is_killed_with_its_descendants(tmp_path: Path) -> None:
    code = f"""
import subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
other = subprocess.Popen(
    [sys.executable, "-S", "-c", {SLEEP!r}], env={{}}, start_new_session=True)
open({str(tmp_path / "pid")!r}, "w").write(str(other.pid))
time.sleep(600)
"""
    async with supervised(tmp_path, child(tmp_path, "a", code, stop_timeout_s=0.3)):
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
        pid = record(tmp_path, "a").pid
        assert pid is not None
    assert not runs(pid)
    assert not runs(int((tmp_path / "pid").read_text()))


def test_a_directory_has_one_supervisor(tmp_path: Path) -> None:
    with claimed(tmp_path), pytest.raises(StackRunningError), claimed(tmp_path):
        pass
    with claimed(tmp_path):
        pass


STACK = """
import asyncio, signal, sys
from pathlib import Path
from meridian.embedded.process import ProcessSpec
from meridian.embedded.supervisor import Supervisor, claimed

directory = Path(sys.argv[1])
SLEEP = "import time; time.sleep(600)"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {SLEEP!r}], start_new_session=True)"

async def main():
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with claimed(directory) as stack_id:
        specs = [ProcessSpec(n, (sys.executable, "-S", "-c", PARENT), directory / "log") for n in ("a", "b")]
        await Supervisor(specs, state_dir=directory, stack_id=stack_id).run(stop)

asyncio.run(main())
"""


def start_stack(directory: Path) -> list[int]:
    """A supervisor in the background with two processes, each with a descendant; the pids of these four."""
    argv = [sys.executable, "-c", STACK, str(directory)]
    env = {**os.environ, "PYTHONPATH": import_path()}
    log = directory / "supervisor.log"
    state = control.spawn_and_wait(argv, env=env, state_dir=directory, log_path=log, timeout_s=120.0)
    deadline_s = time.monotonic() + 60.0
    while len(found := [process.pid for process in leftovers.members(state)]) < 4:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_supervisor_stops_everything(tmp_path: Path, number: signal.Signals) -> None:
    pids = start_stack(tmp_path)
    state = read_state(tmp_path)
    assert state is not None
    os.kill(state.supervisor.pid, number)
    os.waitpid(state.supervisor.pid, 0)
    assert not any(runs(pid) for pid in pids)
    assert control.stop(tmp_path) is False


def test_stop_stops_everything(tmp_path: Path) -> None:
    pids = start_stack(tmp_path)
    assert control.stop(tmp_path) is True
    assert not any(runs(pid) for pid in pids)
    state = read_state(tmp_path)
    assert state is not None
    assert state.phase is StackPhase.STOPPED
    assert not control.is_running(state)


def test_the_next_start_ends_what_a_killed_supervisor_left_and_nothing_else(tmp_path: Path) -> None:
    pids = start_stack(tmp_path)
    state = read_state(tmp_path)
    assert state is not None
    foreign = subprocess.Popen([sys.executable, "-S", "-c", SLEEP])
    os.kill(state.supervisor.pid, signal.SIGKILL)
    os.waitpid(state.supervisor.pid, 0)
    assert all(runs(pid) for pid in pids)
    recycled = replace(state.processes[0], pid=foreign.pid, create_time=psutil.Process(foreign.pid).create_time() - 60)
    write_state(tmp_path, replace(state, processes=(recycled, *state.processes[1:])))  # the system gave its pid away
    fresh = start_stack(tmp_path)
    assert not any(runs(pid) for pid in pids)
    assert foreign.poll() is None
    foreign.kill()
    foreign.wait()
    assert control.stop(tmp_path) is True
    assert not any(runs(pid) for pid in fresh)


def test_stop_ends_what_a_killed_supervisor_left(tmp_path: Path) -> None:
    pids = start_stack(tmp_path)
    state = read_state(tmp_path)
    assert state is not None
    os.kill(state.supervisor.pid, signal.SIGKILL)
    assert control.stop(tmp_path) is True
    assert not any(runs(pid) for pid in pids)


async def test_a_state_that_cannot_be_written_starts_nothing_twice(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with claimed(tmp_path) as stack_id:
        (tmp_path / "stack.json").mkdir()
        supervisor = Supervisor([child(tmp_path, "a")], state_dir=tmp_path, stack_id=stack_id, back_off=QUICK)
        await supervisor.start()
        assert len(leftovers.marked(stack_id)) == 1
        await supervisor.stop()
        assert leftovers.marked(stack_id) == []
    assert events(tmp_path) == ["start a", "stop a"]
    assert "the state of the stack could not be written" in capfd.readouterr().err


async def test_the_log_of_a_process_that_lives_long_is_of_bounded_size(tmp_path: Path) -> None:
    """It begins with the newest lines; what went stands beside it."""
    limit_bytes = 64 * 1024
    code = """
import time
number = 0
while not os.path.exists(sys.argv[0] + "end"):
    for _ in range(100):
        number += 1
        print("%099d" % number, flush=True)
    time.sleep(0.01)
note(f"last {number}")
time.sleep(600)
"""
    writing = child(
        tmp_path, "a", code.replace('sys.argv[0] + "end"', repr(str(tmp_path / "end"))), log_limit_bytes=limit_bytes
    )
    former = tmp_path / "a.log.1"
    async with supervised(tmp_path, writing):
        await until(former.exists)
        first = former.stat().st_ino
        await until(lambda: former.stat().st_ino != first)
        (tmp_path / "end").touch()
        await until(lambda: any(event.startswith("last") for event in events(tmp_path)))
        await until(lambda: (tmp_path / "a.log").stat().st_size <= limit_bytes)
        last = int(next(event for event in events(tmp_path) if event.startswith("last")).split()[1])
    numbers = [int(line) for line in (former.read_bytes() + (tmp_path / "a.log").read_bytes()).split()]
    assert numbers[1:] == list(range(numbers[1], last + 1))


async def test_a_failure_shows_the_log_of_its_life_though_the_one_before_was_long(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    code = "print('no such disk', flush=True); sys.exit(3)"
    failing = child(tmp_path, "a", code, ready=never, restart=Restart.NEVER, log_limit_bytes=64 * 1024)
    failing.log_path.write_bytes(b"of an earlier life\n" * 5000)
    with pytest.raises(StackStartError, match="no such disk"):
        async with supervised(tmp_path, failing):
            pass
