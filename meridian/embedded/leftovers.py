"""Finding and ending processes that belong to a stack, and never one that does not.

A process belongs to a stack if a state file names it by pid and creation time, if it descends from such a process, or if it
carries the stack's mark in its environment. The mark finds what a dead parent left; the descent finds servers
that overwrite their environment.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable

import psutil

from meridian.embedded.state import ProcessRef, StackState

MARK = "MERIDIAN_STACK_ID"
KILL_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.01
CLOCK_TOLERANCE_S = 1.0
"""Two readings of one creation time may differ by the steps of the system clock, from which Linux derives it."""


def alive(ref: ProcessRef) -> psutil.Process | None:
    """The process that ``ref`` names, if it still runs and is the same one."""
    try:
        process = psutil.Process(ref.pid)
        same = abs(process.create_time() - ref.create_time) <= CLOCK_TOLERANCE_S
    except psutil.NoSuchProcess:
        return None
    return process if same and runs(process) else None


def descendants(pid: int) -> list[psutil.Process]:
    """Everything that descends from the process ``pid`` now."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def marked(stack_id: str) -> list[psutil.Process]:
    """Every process that carries the mark of ``stack_id``, but for us and those we descend from."""
    ourselves = psutil.Process()
    exempt = {ourselves.pid, *(parent.pid for parent in ourselves.parents())}
    found = []
    for process in psutil.process_iter():
        if process.pid in exempt:
            continue
        try:
            if process.environ().get(MARK) == stack_id:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # ended meanwhile, or not ours to look at
    return found


def session(leader_pid: int, stack_id: str) -> list[psutil.Process]:
    """What still runs of the session that the process ``leader_pid`` of the stack opened when it started."""
    found = []
    for process in marked(stack_id):
        try:
            if os.getsid(process.pid) == leader_pid:
                found.append(process)
        except ProcessLookupError:
            continue
    return found


def members(state: StackState) -> list[psutil.Process]:
    """Every process of the stack that runs now, without its supervisor."""
    named = [alive(record.ref) for record in state.processes if record.ref is not None]
    found = {p.pid: p for root in named if root is not None for p in (root, *descendants(root.pid))}
    found |= {process.pid: process for process in marked(state.stack_id)}
    return list(found.values())


def end(processes: Iterable[psutil.Process], *, grace_s: float) -> None:
    """SIGTERM, and SIGKILL to those that still run after ``grace_s`` seconds (0: at once)."""
    remaining = list(processes)
    if grace_s > 0:
        signal_all(remaining, signal.SIGTERM)
        remaining = wait(remaining, timeout_s=grace_s)
    signal_all(remaining, signal.SIGKILL)
    wait(remaining, timeout_s=KILL_TIMEOUT_S)


def wait(processes: Iterable[psutil.Process], *, timeout_s: float) -> list[psutil.Process]:
    """Wait until all have ended, and return those that have not after ``timeout_s`` seconds.

    Reaps nothing, and counts what nobody has reaped yet as ended, unlike ``psutil.wait_procs``.
    """
    deadline_s = time.monotonic() + timeout_s
    remaining = [process for process in processes if runs(process)]
    while remaining and time.monotonic() < deadline_s:
        time.sleep(POLL_INTERVAL_S)
        remaining = [process for process in remaining if runs(process)]
    return remaining


def runs(process: psutil.Process) -> bool:
    """Whether ``process`` is still the same one and has not ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def signal_all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send ``number`` to each of ``processes``; psutil refuses a pid that meanwhile belongs to another."""
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
