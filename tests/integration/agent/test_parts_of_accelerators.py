"""A program that was given a part of an accelerator sees that part and no other; one that is gone starts nothing."""

from __future__ import annotations

from dataclasses import replace

from agent.engines.base import FailureKind, RankPlacement, RunFailed, RunFinished
from agent.parts import Part
from tests.integration.agent.conftest import MakeDomain, request_for

SEEN = 'import os; print(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["MERIDIAN_ACCELERATORS"])'
PART = Part("7", "1g.10gb", 39, 10 << 30, "MIG-GPU-aa/7/0")
VISIBLE = {"north/n1": "CUDA_VISIBLE_DEVICES"}


async def test_a_program_sees_its_part_by_the_maker_s_name(make_domain: MakeDomain) -> None:
    domain = await make_domain(device_variables=VISIBLE)
    assert domain.engine.know_parts({"north/n1": {39: PART}})
    request = request_for(SEEN)
    await domain.engine.launch(replace(request, ranks=(RankPlacement(0, "north/n1", 0, (39,)),)))
    assert isinstance(await domain.end_of("job-1.0.1"), RunFinished)
    assert domain.log("job-1.0.1").split() == ["MIG-GPU-aa/7/0", "39"]


async def test_an_order_for_a_part_that_is_gone_is_refused_and_starts_nothing(make_domain: MakeDomain) -> None:
    domain = await make_domain(device_variables=VISIBLE)
    domain.engine.know_parts({"north/n1": {39: PART}})
    domain.engine.know_parts({})
    request = request_for(SEEN)
    await domain.engine.launch(replace(request, ranks=(RankPlacement(0, "north/n1", 0, (39,)),)))
    ended = await domain.end_of("job-1.0.1")
    assert isinstance(ended, RunFailed)
    assert (ended.kind, ended.reason) == (
        FailureKind.REFUSED,
        "part 39 of an accelerator of node north/n1 is not there any more",
    )
