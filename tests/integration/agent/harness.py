"""A small agent for crash tests: `python -m tests.integration.agent.harness DATA_DIR` starts one long run and waits."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agent.engines.base import RunStarted
from agent.engines.local.engine import LocalEngine, LocalEngineSettings
from agent.run_book import RunBook
from meridian.clock import SystemClock
from tests.integration.agent.conftest import request_for

# The rank leaves its session and drops its pipes, so that only its marks can find it.
RUNAWAY = """
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
print("up", flush=True)
time.sleep(600)
"""


async def main(data_dir: Path) -> None:
    """Start, launch, say what was started, wait to be killed."""
    book = RunBook(data_dir / "journal", new_agent_mark=f"harness-{data_dir.name}")
    book.open()
    engine = LocalEngine(LocalEngineSettings("north", ("north/n1", "north/n2"), data_dir), book, SystemClock())
    await engine.start()
    await engine.launch(request_for(RUNAWAY, nodes=("north/n1", "north/n2")))
    async for delivery in engine.events():
        if isinstance(delivery.event, RunStarted):
            await book.durable()
            print("started", flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
