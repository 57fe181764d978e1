"""Nodes of the local engine are put to sleep and woken; those with work are left awake."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent.engines.base import RunFinished, RunStarted
from tests.integration.agent.conftest import PATIENCE_S, MakeDomain, request_for


async def test_a_node_with_work_stays_awake_and_one_that_sleeps_wakes_after_its_time(
    make_domain: MakeDomain, tmp_path: Path
) -> None:
    domain = await make_domain(can_sleep={"north/n1": 0.2, "north/n2": 0.2})
    engine = domain.engine
    end = tmp_path / "end"
    program = f"import os, time\nwhile not os.path.exists({str(end)!r}): time.sleep(0.05)"
    await engine.launch(request_for(program, nodes=("north/n1",)))
    await domain.wait_for(lambda event: isinstance(event, RunStarted))
    assert await engine.put_to_sleep(["north/n1", "north/n2", "north/n9"]) == {"north/n2"}
    assert engine.asleep() == {"north/n2"}
    assert engine.power_changed.is_set()
    assert await engine.put_to_sleep(["north/n2"]) == {"north/n2"}
    end.touch()
    assert isinstance(await domain.end_of("job-1.0.1"), RunFinished)
    assert await engine.put_to_sleep(["north/n1"]) == {"north/n1"}
    await engine.wake(["north/n2"])
    async with asyncio.timeout(PATIENCE_S):
        while engine.asleep() != {"north/n1"}:
            await asyncio.sleep(0.02)


async def test_nodes_that_cannot_sleep_stay_awake(make_domain: MakeDomain) -> None:
    domain = await make_domain()
    assert await domain.engine.put_to_sleep(["north/n1"]) == frozenset()
    assert domain.engine.asleep() == frozenset()
