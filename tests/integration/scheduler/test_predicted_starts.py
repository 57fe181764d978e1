"""The track record of predicted starts in the running service: who waits is predicted unasked, and a restart forgets nothing."""

from __future__ import annotations

from typing import Any

import pytest

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.run.v1.run_pb2 import Assignment, RunFinished, RunStarted
from services.scheduler.core.state import UnitKey
from services.scheduler.predicted_starts import PredictedStarts
from tests.harness import Environment, RunningService, environment
from tests.integration.scheduler.messages import graph, report, submission
from tests.integration.scheduler.test_service import starts, until


def predicted_starts(service: RunningService) -> PredictedStarts:
    owners = [getattr(step, "__self__", None) for step in service.kernel.before_start]
    return next(owner for owner in owners if isinstance(owner, PredictedStarts))


async def test_a_waiting_unit_is_counted_when_it_starts_and_a_restart_knows(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The test says when to look.
    monkeypatch.setattr("services.scheduler.predicted_starts._LOOK_EVERY_S", 3600.0)
    async with environment(database_url) as stack:
        async with stack.service("scheduler") as service:
            said = await counted(stack, service)
        async with stack.service("scheduler") as service:
            assert predicted_starts(service).record.state() == said


async def test_what_nobody_asks_is_thought_about_no_longer_than_what_somebody_asks(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.scheduler.predicted_starts._LOOK_EVERY_S", 3600.0)
    monkeypatch.setattr(
        "services.scheduler.predicted_starts.next_asked", lambda cluster, *_: next(iter(cluster.pending))
    )
    async with environment(database_url) as stack, stack.service("scheduler") as service:
        policy = "name: p\nselection: {order: [priority, age], preemption: [priority]}"
        assert (await service.http.put("/v1/policy", content=policy)).status_code == 200
        eight = Resources(cpus=1, accelerators=8)
        await stack.bus.publish(graph("beijing", 1), submission("holder", resources=eight, max_run_time_s=600))
        await stack.bus.publish(report(RunStarted, await stack.bus.expect(Assignment, starts("holder"))))
        await stack.bus.publish(submission("waits", resources=eight, max_run_time_s=600))
        await until(service, lambda body: [item.get("position") for item in body["items"]] == [1])
        known = predicted_starts(service)
        monkeypatch.setattr("services.scheduler.answer_time.FOLLOWED_S", 0.0)
        await known.look()
        assert known.record.open == frozenset()
        monkeypatch.setattr("services.scheduler.answer_time.FOLLOWED_S", 3600.0)
        await known.look()
        assert known.record.open == {UnitKey("waits", 0)}


async def counted(stack: Environment, service: RunningService) -> dict[str, Any]:
    """One waits behind another, and starts when that has ended; the record's state then."""
    bus = stack.bus
    eight = Resources(cpus=1, accelerators=8)
    await bus.publish(graph("beijing", 1), submission("holder", resources=eight, max_run_time_s=600))
    first = await bus.expect(Assignment, starts("holder"))
    await bus.publish(report(RunStarted, first))
    await bus.publish(submission("waits", resources=eight, max_run_time_s=600))
    await until(service, lambda body: [item.get("position") for item in body["items"]] == [1])
    known = predicted_starts(service)
    await known.look()
    assert known.record.open == {UnitKey("waits", 0)}

    await bus.publish(report(RunFinished, first))
    await bus.expect(Assignment, starts("waits"))
    await until(service, lambda body: not body["items"])
    await known.look()
    assert (known.record.counted, known.record.open) == (1, frozenset())
    return known.record.state()
