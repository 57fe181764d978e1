"""Processes that take no signal for a while, as one does that hangs in the kernel: they hold up nothing but their own runs."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from agent.engines.base import FailureKind, NodeState, RunFailed, RunFinished
from agent.engines.local import node_link
from agent.node import proc
from tests.integration.agent.conftest import PATIENCE_S, Domain, MakeDomain, request_for

SLEEP = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)"


async def _pid_of_rank(domain: Domain) -> int:
    path = domain.settings.log_path("job-1.0.1", 0)
    async with asyncio.timeout(PATIENCE_S):
        while not path.exists() or not path.read_text().endswith("\n"):
            await asyncio.sleep(0.02)
    return int(path.read_text().split()[1])


async def test_a_process_that_hangs_in_the_kernel_holds_up_nobody_else(
    make_domain: MakeDomain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits for a device or a file server takes no signal until that answers: here none reaches it."""
    domain = await make_domain(restart_after_s=600)
    await domain.engine.launch(request_for(SLEEP))
    hanging = await _pid_of_rank(domain)
    kill, tried = proc.kill_process, asyncio.Event()

    def hang(pid: int, number: int) -> None:
        if pid == hanging:
            tried.set()
        else:
            kill(pid, number)

    monkeypatch.setattr(proc, "kill_process", hang)
    try:
        await domain.engine.kill_node("north/n1")
        await asyncio.wait_for(tried.wait(), PATIENCE_S)
        await domain.engine.launch(
            request_for("print('there')", run_id="job-2.0.1", job_id="job-2", nodes=("north/n2",))
        )
        assert isinstance(await domain.end_of("job-2.0.1"), RunFinished)
        assert domain.engine.nodes()[1].state is NodeState.RUNNING
        assert not domain.of(RunFailed, "job-1.0.1"), "it may still do something"
        assert domain.engine.nodes()[0].state is not NodeState.EXITED
    finally:
        monkeypatch.undo()
        kill(hanging, signal.SIGKILL)
    failed = await domain.end_of("job-1.0.1")
    assert isinstance(failed, RunFailed)
    assert failed.kind is FailureKind.NODE_LOST
    assert domain.engine.nodes()[0].state is NodeState.EXITED


async def test_a_node_whose_process_does_not_end_is_given_up(
    make_domain: MakeDomain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_link, "PATIENCE_S", 0.1)
    domain = await make_domain(restart_after_s=600)
    await domain.engine.launch(request_for(SLEEP))
    await _pid_of_rank(domain)
    leader = domain.engine._links["north/n1"].pid
    kill = proc.kill_process
    monkeypatch.setattr(proc, "kill_process", lambda pid, number: None if pid == leader else kill(pid, number))
    os.kill(leader, signal.SIGSTOP)
    try:
        await domain.engine.kill_node("north/n1")
        failed = await domain.end_of("job-1.0.1")
        assert isinstance(failed, RunFailed)
        assert failed.kind is FailureKind.NODE_LOST
        assert "hangs in the kernel" in failed.reason
    finally:
        monkeypatch.undo()
        kill(leader, signal.SIGKILL)
