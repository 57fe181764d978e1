"""What Linux tells about processes in /proc: sessions, start times, memory, environment markers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _stat_fields(pid: int) -> list[bytes] | None:
    """Fields of /proc/PID/stat from the state (field 3) on; None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return file.read().rpartition(b") ")[2].split()
    except OSError:
        return None


def start_ticks(pid: int) -> int | None:
    """Start time in clock ticks since boot: with the pid it names one process for good. None: gone or a zombie."""
    fields = _stat_fields(pid)
    return None if fields is None or fields[0] in {b"Z", b"X"} else int(fields[19])


def all_pids() -> Iterator[int]:
    """Every process of the machine that is visible here."""
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            yield int(name)


def session_members(session: int) -> list[int]:
    """Live processes whose session is ``session``."""
    found: list[int] = []
    for pid in all_pids():
        fields = _stat_fields(pid)
        if fields is not None and fields[0] not in {b"Z", b"X"} and int(fields[3]) == session:
            found.append(pid)
    return found


def marked_processes(marker: bytes) -> list[int]:
    """Live processes started with the environment entry ``marker`` (``NAME=value``)."""
    found: list[int] = []
    entry = b"\0" + marker + b"\0"
    for pid in all_pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
                if entry in b"\0" + file.read() + b"\0":
                    found.append(pid)
        except OSError:
            continue
    return found


def kill_until_gone(find: Callable[[], list[int]], patience_s: float = 30.0) -> int:
    """SIGKILL what ``find`` finds, again until it finds nothing: processes fork meanwhile, and one that was killed lives until it gets
    the processor to end with. Blocking, for at most ``patience_s`` (a process may hang in the kernel). Returns how many it hit."""
    hit: set[int] = set()
    own = os.getpid()
    ends_at = time.monotonic() + patience_s
    pause_s = 0.0
    while pids := [pid for pid in find() if pid != own]:
        for pid in pids:
            hit.add(pid)
            kill_process(pid, signal.SIGKILL)
        if time.monotonic() > ends_at:
            break
        time.sleep(pause_s)
        pause_s = min(pause_s + 0.001, 0.02)
    return len(hit)


def kill_process(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone already."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_group(group: int, number: int) -> None:
    """Send a signal to a process group that may be gone already."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants; 0 when it is gone."""
    total = 0
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        try:
            with open(f"/proc/{current}/statm", "rb") as file:  # noqa: PTH123
                total += int(file.read().split()[1]) * PAGE_BYTES
            with open(f"/proc/{current}/task/{current}/children", "rb") as file:  # noqa: PTH123
                waiting.extend(int(child) for child in file.read().split())
        except (OSError, IndexError):
            continue
    return total
