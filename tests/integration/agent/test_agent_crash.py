"""An agent killed with -9 in the middle of a run: nothing of it lives on, nothing runs twice, the loss is reported."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.engines.base import FailureKind, RunFailed, RunFinished, RunRefused, RunStarted
from agent.node import proc
from tests.integration.agent.conftest import PATIENCE_S, MakeDomain, request_for

ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def _harness(data_dir: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.agent.harness", str(data_dir), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            assert await process.stdout.readline() == b"started\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("nodes_survive", [False, True])
async def test_a_killed_agent_starts_again(make_domain: MakeDomain, tmp_path: Path, nodes_survive: bool) -> None:
    marker = f"MERIDIAN_AGENT=harness-{tmp_path.name}".encode()
    async with _harness(tmp_path) as agent:
        async with asyncio.timeout(PATIENCE_S):  # two nodes, two ranks, two children that left their session
            while len(proc.marked_processes(marker)) < 6:
                await asyncio.sleep(0.02)
        frozen = [
            pid for pid in proc.marked_processes(marker) if b"agent.node" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        if nodes_survive:  # they cannot see that their agent is gone
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)
        agent.kill()
        await agent.wait()
        if not nodes_survive:
            async with asyncio.timeout(PATIENCE_S):  # the nodes end their sessions themselves
                while len(proc.marked_processes(marker)) > 2:
                    await asyncio.sleep(0.02)

    domain = await make_domain()
    alive = set(proc.marked_processes(marker))
    assert len(alive) == 2, "only the new nodes"
    assert not alive & set(frozen)
    failed = await domain.end_of("job-1.0.1")
    assert isinstance(failed, RunFailed)
    assert failed.kind is FailureKind.AGENT_RESTARTED
    assert domain.of(RunStarted, "job-1.0.1"), "an event that was never acknowledged is delivered by the next agent"

    await domain.engine.launch(request_for("print('twice')", nodes=("north/n1", "north/n2")))
    await domain.wait_for(lambda _: len(domain.of(RunFailed, "job-1.0.1")) == 2)
    assert "twice" not in domain.log("job-1.0.1")
    await domain.engine.launch(request_for("pass", run_id="job-1.0.1b"))
    await domain.wait_for(lambda e: isinstance(e, RunRefused) and e.run_id == "job-1.0.1b")
    await domain.engine.launch(request_for("pass", run_id="job-1.0.2", epoch=2))
    assert isinstance(await domain.end_of("job-1.0.2"), RunFinished)
