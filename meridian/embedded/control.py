"""Starting a stack in the background, asking how it is, and stopping it: what a command line does from outside."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from meridian.embedded import leftovers
from meridian.embedded.child import StackStartError
from meridian.embedded.process import log_tail
from meridian.embedded.state import Failure, ProcessState, StackPhase, StackState, read_state

POLL_INTERVAL_S = 0.05
SETTLED = frozenset({ProcessState.READY, ProcessState.DONE, ProcessState.WAITING})


def is_running(state: StackState) -> bool:
    """Whether the supervisor that wrote ``state`` still runs."""
    return leftovers.alive(state.supervisor) is not None


def spawn_and_wait(
    argv: Sequence[str],
    *,
    state_dir: Path,
    log_path: Path,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    now_s: Callable[[], float] = time.monotonic,
) -> StackState:
    """Start a supervisor in a session of its own and return its state once everything is ready.

    Raises StackStartError, with nothing left running, when it fails or ``timeout_s`` pass before, on the clock ``now_s``. Whoever
    is told to end meanwhile leaves nothing running either.
    """
    log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        log_start = log.tell()
        supervisor = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    deadline_s = now_s() + timeout_s
    try:
        while now_s() < deadline_s:
            ended = supervisor.poll() is not None
            state = read_state(state_dir)
            if state is not None and state.supervisor.pid == supervisor.pid:
                if state.failure is not None and ended:
                    raise StackStartError(state.failure)
                if state.phase is StackPhase.READY:
                    return state
            if ended:
                reason = f"exit code {supervisor.returncode}"
                raise StackStartError(Failure("supervisor", reason, log_tail(log_path, from_byte=log_start)))
            time.sleep(POLL_INTERVAL_S)
    except (KeyboardInterrupt, SystemExit):
        supervisor.terminate()
        supervisor.wait()
        raise
    late = _latecomer(read_state(state_dir), f"not ready after {timeout_s:g} s")
    supervisor.terminate()
    stop(state_dir)
    raise StackStartError(late)


def stop(state_dir: Path, *, timeout_s: float = 60.0) -> bool:
    """Stop the stack of ``state_dir`` and return when nothing of it runs any more; False if nothing ran.

    The supervisor stops its processes in order. One that is dead, or not done after ``timeout_s``, is made up for.
    """
    state = read_state(state_dir)
    if state is None:
        return False
    supervisor = leftovers.alive(state.supervisor)
    if supervisor is not None:
        leftovers.end([supervisor], grace_s=timeout_s)
    remaining = leftovers.members(read_state(state_dir) or state)
    leftovers.end(remaining, grace_s=3.0)
    return supervisor is not None or bool(remaining)


def _latecomer(state: StackState | None, reason: str) -> Failure:
    """The first process that is neither ready nor waiting for another one."""
    for record in state.processes if state is not None else ():
        if record.state not in SETTLED:
            return Failure(record.name, reason, log_tail(Path(record.log)))
    return Failure("supervisor", reason, "")
