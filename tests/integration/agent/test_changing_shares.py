"""A rank that shares its accelerator reads what part of it has, also after that changed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from agent.engines.base import AdjustRequest, FailureKind, RankPlacement, RunFailed, RunStarted
from tests.integration.agent.conftest import PATIENCE_S, Domain, MakeDomain, request_for

PROGRAM = """
import os, time
path = os.environ.get("MERIDIAN_DEVICE_SHARE_FILE", "")
while True:
    print(open(path).read().strip() if path else "whole", flush=True)
    time.sleep(0.05)
"""


async def printed(domain: Domain, text: str) -> None:
    path = domain.settings.log_path("job-1.0.1", 0)
    async with asyncio.timeout(PATIENCE_S):
        while not path.exists() or text not in path.read_text().split():
            await asyncio.sleep(0.02)


async def test_a_rank_reads_its_part_and_the_one_that_it_gets_later(make_domain: MakeDomain) -> None:
    domain = await make_domain()
    request = request_for(PROGRAM)
    placement = replace(request.ranks[0], accelerator_indices=(0,), accelerator_milli=700)
    await domain.engine.launch(replace(request, ranks=(placement,)))
    await printed(domain, "0.7")
    order = AdjustRequest("job-1.0.1", 1, (replace(placement, accelerator_milli=250),))
    assert await domain.engine.adjust(order)
    await printed(domain, "0.25")
    assert set(domain.log("job-1.0.1").split()) <= {"0.7", "0.25"}
    assert not await domain.engine.adjust(AdjustRequest("job-1.0.1", 2, (placement,))), "another epoch"


async def test_a_rank_with_whole_accelerators_has_no_such_file(make_domain: MakeDomain) -> None:
    domain = await make_domain()
    request = request_for(PROGRAM)
    whole = RankPlacement(0, "north/n1", 0, (0,))
    await domain.engine.launch(replace(request, ranks=(whole,)))
    await printed(domain, "whole")


async def test_a_part_that_cannot_be_written_down_costs_its_run_only(make_domain: MakeDomain) -> None:
    """The file system of logs is not the journal's; the agent would end, all runs with it, and come to the same order again."""
    domain = await make_domain()
    request = request_for(PROGRAM)
    placement = replace(request.ranks[0], accelerator_indices=(0,), accelerator_milli=700)
    folder = domain.settings.log_path("job-1.0.1", 0).parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("no folder")
    await domain.engine.launch(replace(request, ranks=(placement,)))
    failed = await domain.end_of("job-1.0.1")
    assert isinstance(failed, RunFailed)
    assert failed.kind is FailureKind.NOT_STARTABLE
    assert str(folder) in failed.reason
    assert not domain.engine.list_runs()
    folder.unlink()
    await domain.engine.launch(replace(request, run_id="job-1.0.2", epoch=2, ranks=(placement,)))
    await domain.wait_for(lambda event: isinstance(event, RunStarted))
    log = domain.settings.log_path("job-1.0.2", 0)
    log.with_suffix(".share").unlink()
    log.with_suffix(".share.new").mkdir()
    assert not await domain.engine.adjust(AdjustRequest("job-1.0.2", 2, (placement,)))
    assert domain.engine.list_runs()
