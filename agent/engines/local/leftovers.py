"""Ends what an earlier incarnation of the agent left running, so that nothing ever runs twice.

Nodes end by themselves when their agent dies; this does not rely on it. Processes are found in three ways: sessions of
recorded nodes, groups of recorded ranks, and the agent's mark in the environment (which programs inherit by default).
"""

from __future__ import annotations

import signal
from functools import partial

from agent.engines.local.environment import AGENT_MARK
from agent.node import proc
from agent.run_book import RunBook


def end_leftovers(book: RunBook) -> int:
    """Kill them; returns how many processes were hit. Blocking, some milliseconds per hundred processes."""
    hit = 0
    if book.earlier_processes_live:
        for node in book.nodes.values():
            mark = node.process
            if mark is not None and proc.start_ticks(mark.pid) == mark.start_ticks:
                proc.kill_process(mark.pid, signal.SIGKILL)
                hit += 1 + proc.kill_until_gone(partial(proc.session_members, mark.pid))
        for run in book.begun.values():
            for process in run.processes:
                if proc.start_ticks(process.pid) == process.start_ticks:
                    proc.kill_group(process.pid, signal.SIGKILL)
                    hit += 1
    marker = f"{AGENT_MARK}={book.agent_mark}".encode()
    return hit + proc.kill_until_gone(lambda: proc.marked_processes(marker))
