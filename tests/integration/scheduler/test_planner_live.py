"""Planners in the live service, against a real broker and PostgreSQL: rounds, moves, other sizes, and all of it made again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.graph.v1.graph_pb2 import GraphUpdated
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import DeclaredRate, JobFinished, JobPlaced, JobPreempted, ModelDescription
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import Assignment, RunCheckpointed, RunFailed, RunFinished, RunStarted
from services.scheduler.replay import replay
from tests.harness import PATIENCE_S, Environment, RunningService, environment
from tests.integration.scheduler.messages import START, STOP, graph, report, submission
from tests.integration.scheduler.test_replay_live import begun, caught_up
from tests.integration.scheduler.test_service import live_of, starts, until

PLANNERS = ("gavel", "completion", "sia", "elastic-exact", "deadlines", "rolling-milp")
RULES = "restarts: {least_run_s: 0, restart_cost_s: 0.1}\n"


async def use(service: RunningService, planner: str, interval_s: float, options: str = "") -> None:
    text = f"extends: balanced\nname: {planner}\nplanner: {planner}\ninterval_s: {interval_s}\n{RULES}{options}"
    answer = await service.http.put("/v1/policy", content=text.encode())
    assert answer.status_code == 200, answer.text


def mixed(domain_id: str, models: list[str]) -> GraphUpdated:
    """A domain with a node of two accelerators per model."""
    message = graph(domain_id, len(models), accelerators=2)
    for node, model in zip(message.nodes, models, strict=True):
        for item in node.inventory.accelerators:
            item.model = model
    return message


def job(name: str, ranks: int = 1, **more: Any) -> Any:
    resources = Resources(cpus=1, accelerators=1)
    return submission(name, kind=job_pb2.JOB_KIND_GANG, ranks=ranks, resources=resources, max_restarts=3, **more)


class Programs:
    """What agents and their programs do: each run makes steps, writes a checkpoint when it is told to stop, and finishes after
    so many steps, counted from its checkpoint. ``overlaps`` are units of which two runs were open at once."""

    def __init__(self, stack: Environment, steps: int, may_end: Callable[[], bool] = lambda: True) -> None:
        """No program makes its last step before ``may_end``."""
        self.bus = stack.bus
        self.steps, self.may_end = steps, may_end
        self.running: dict[str, tuple[Assignment, int]] = {}
        self.overlaps: list[str] = []
        self.made: Counter[str] = Counter()
        self.ranks: dict[str, list[int]] = {}
        self._seen: set[tuple[str, int]] = set()

    async def tick(self) -> None:
        messages: list[Any] = []
        for order in self.bus.events(Assignment):
            if (order.run_id, order.action) in self._seen:
                continue
            self._seen.add((order.run_id, order.action))
            if order.action == START:
                if any(item.job_id == order.job_id for item, _ in self.running.values()):
                    self.overlaps.append(order.run_id)
                self.running[order.run_id] = order, order.restore_step
                self.ranks.setdefault(order.job_id, []).append(order.world_size)
                messages.append(report(RunStarted, order))
            elif order.action == STOP and order.run_id in self.running:
                run, step = self.running.pop(order.run_id)
                messages.append(report(RunCheckpointed, run, step=step, path=f"/ckpt/{step}", size_bytes=10))
                messages.append(report(RunFailed, run, kind=run_pb2.RUN_FAILURE_KIND_STOPPED))
        for name, (run, before) in list(self.running.items()):
            step = before + 1
            if step >= self.steps and not self.may_end():
                continue
            self.made[run.job_id] += 1
            self.running[name] = run, step
            if step >= self.steps:
                del self.running[name]
                messages.append(report(RunFinished, run))
        await self.bus.publish(*messages)

    async def until_finished(self, count: int) -> None:
        async with asyncio.timeout(3 * PATIENCE_S):
            while len(self.bus.events(JobFinished)) < count:
                await self.tick()
                await asyncio.sleep(0.1)


async def check_replay(stack: Environment, service: RunningService) -> None:
    entries, events = await caught_up(stack, service)
    found = replay(entries, events)
    assert found.differences == []
    assert found.placements == len(begun(entries))


@pytest.mark.parametrize("planner", PLANNERS)
async def test_every_job_is_run_once_to_its_end_and_every_decision_is_made_again(
    database_url: str, planner: str
) -> None:
    """Six jobs, half of them elastic, on four accelerators of two models: what is taken off goes on where it was."""
    async with environment(database_url) as stack, stack.service("scheduler") as service:
        await use(service, planner, 1.0)
        await stack.bus.publish(mixed("beijing", ["H100", "A100"]))
        await until(service, lambda body: len(body["items"]) == 2, "/v1/nodes")
        rates = [
            DeclaredRate(accelerator_type="H100", ranks=1, rate=4),
            DeclaredRate(accelerator_type="A100", ranks=1, rate=1),
        ]
        for number in range(6):
            more: dict[str, Any] = {"min_ranks": 1, "max_ranks": 2} if number % 2 else {}
            if number < 4:
                more |= {"rates": rates, "model": ModelDescription(steps=40)}
            await stack.bus.publish(job(f"job-{number}", **more))
        programs = Programs(stack, steps=40)
        await programs.until_finished(6)
        ended = stack.bus.events(JobFinished)
        assert {item.outcome for item in ended} == {job_pb2.JOB_OUTCOME_SUCCEEDED}
        assert programs.overlaps == []
        # Nothing was lost: each job made its steps once.
        assert set(programs.made.values()) == {40}
        for item in live_of(service).book.units.values():
            assert (item.failures, item.recoveries) == (0, 0)
        await check_replay(stack, service)


async def test_gavel_takes_turns(database_url: str) -> None:
    """Three jobs of two ranks, two accelerators: each is taken off for another and resumed."""
    async with environment(database_url) as stack, stack.service("scheduler") as service:
        await use(service, "gavel", 1.0)
        await stack.bus.publish(mixed("beijing", ["A100"]))
        for number in range(3):
            await stack.bus.publish(job(f"job-{number}", ranks=2))

        def took_turns() -> bool:
            return len({item.job_id for item in stack.bus.events(JobPreempted)}) >= 2

        programs = Programs(stack, 25, took_turns)
        await programs.until_finished(3)
        assert took_turns()
        assert set(programs.made.values()) == {25}
        resumed = [item for item in stack.bus.events(JobPlaced) if item.epoch > 1]
        assert resumed
        assert all(item.restore_step > 0 for item in resumed)
        found = (await service.http.get(f"/v1/jobs/{resumed[0].job_id}/explanation")).json()
        reasons = [item["explanation"].get("plan", "") for item in found["decisions"]]
        assert any("its turn in Gavel's las round (its rates are not known" in item for item in reasons), reasons
        await check_replay(stack, service)


async def test_an_elastic_job_shrinks_for_another_and_grows_again(database_url: str) -> None:
    async with environment(database_url) as stack, stack.service("scheduler") as service:
        await use(service, "elastic-exact", 1.0)
        bus = stack.bus
        await bus.publish(graph("beijing", 1, accelerators=4))
        programs = Programs(stack, steps=1_000_000)
        await bus.publish(job("long", ranks=2, min_ranks=1, max_ranks=4))
        first = await bus.expect(Assignment, starts("long"))
        assert (first.world_size, len(first.ranks)) == (4, 4)
        await bus.publish(job("late", ranks=2, min_ranks=1, max_ranks=4))
        async with asyncio.timeout(PATIENCE_S):
            while set(programs.ranks) != {"long", "late"} or len(programs.ranks["long"]) < 2:
                await programs.tick()
                await asyncio.sleep(0.1)
        assert programs.ranks == {"long": [4, 2], "late": [2]}
        second = await bus.expect(Assignment, starts("long", 2))
        assert second.restore_step > 0
        late = await bus.expect(Assignment, starts("late"))
        del programs.running[late.run_id]
        await bus.publish(report(RunFinished, late))
        async with asyncio.timeout(PATIENCE_S):
            while len(programs.ranks["long"]) < 3:
                await programs.tick()
                await asyncio.sleep(0.1)
        assert programs.ranks["long"] == [4, 2, 4]
        third = await bus.expect(Assignment, starts("long", 3))
        assert third.restore_step > second.restore_step
        unit = (await service.http.get("/v1/jobs/long/explanation")).json()["units"][0]
        assert (unit["program_failures"], unit["recoveries"], unit["epoch"]) == (0, 0, 3)
        await check_replay(stack, service)


async def test_what_waits_for_a_round_says_so_and_a_restart_plans_at_once(database_url: str) -> None:
    async with environment(database_url) as stack:
        bus = stack.bus
        async with stack.service("scheduler") as service:
            await use(service, "gavel", 600.0)
            await bus.publish(graph("beijing", 1))
            await bus.publish(job("first"))
            await bus.expect(Assignment, starts("first"))
            await bus.publish(job("second"))
            await bus.publish(submission("third", resources=Resources(cpus=1)))
            await bus.expect(Assignment, starts("third"))
            said = "it waits for the next round of the planner gavel, in "
            await until(service, lambda body: [item["reason"].startswith(said) for item in body["items"]] == [True])
        async with stack.service("scheduler"):
            await bus.expect(Assignment, starts("second"))


async def test_the_default_plans_while_rates_differ_by_accelerator_and_says_so(database_url: str) -> None:
    """The job that gains most from the fast chip gets it though it came later; the other goes on with its checkpoint elsewhere.
    When most of what waits declares no rates, each is placed in its turn again."""
    async with environment(database_url) as stack, stack.service("scheduler") as service:
        bus = stack.bus
        assert (await service.http.get("/v1/policy")).json()["follows"]["in_use"] is False
        answer = await service.http.put("/v1/policy", content=f"extends: balanced\n{RULES}".encode())
        assert answer.status_code == 200, answer.text
        await bus.publish(one_each("beijing", ["H100", "A100"]))
        await until(service, lambda body: len(body["items"]) == 2, "/v1/nodes")
        may_end = False
        programs = Programs(stack, 40, lambda: may_end)
        await bus.publish(job("gains-little", rates=rates(1.1, 1.0), model=ModelDescription(steps=100_000)))
        first = await bus.expect(Assignment, starts("gains-little"))
        await programs.tick()
        await bus.publish(job("gains-much", rates=rates(4.0, 1.0), model=ModelDescription(steps=100_000)))
        async with asyncio.timeout(PATIENCE_S):
            while len(programs.ranks.get("gains-little", [])) < 2 or "gains-much" not in programs.ranks:
                await programs.tick()
                await asyncio.sleep(0.1)
        nodes = {
            name: bus.events(Assignment, starts(name, epoch))[0].ranks[0].node_id
            for name, epoch in (("gains-little", 2), ("gains-much", 1))
        }
        assert first.ranks[0].node_id == "beijing-1"
        assert nodes == {"gains-little": "beijing-2", "gains-much": "beijing-1"}
        shown = (await service.http.get("/v1/policy")).json()["follows"]
        assert (shown["planner"], shown["in_use"]) == ("completion", True)
        assert (shown["units_with_accelerators"], shown["units_whose_rates_differ"]) == (2, 2)
        said = (await service.http.get("/v1/jobs/gains-little/explanation")).json()
        assert "rates differ by accelerator" in str(said["decisions"])
        taken = next(item.reason for item in bus.events(JobPreempted))
        assert "the planner completion decides while rates differ by accelerator (2 of 2 units)" in taken

        await bus.publish(*[job(f"plain-{number}") for number in range(9)])
        async with asyncio.timeout(PATIENCE_S):
            while shown["in_use"] or shown["units_with_accelerators"] < 11:
                await programs.tick()
                await asyncio.sleep(0.1)
                shown = (await service.http.get("/v1/policy")).json()["follows"]
        assert shown["units_whose_rates_differ"] == 2
        again = await service.http.put("/v1/policy", json=(await service.http.get("/v1/policy")).json())
        assert again.json()["changes"] == []
        may_end = True
        await programs.until_finished(11)
        assert programs.overlaps == []
        assert set(programs.made.values()) == {40}
        await check_replay(stack, service)


def one_each(domain_id: str, models: list[str]) -> GraphUpdated:
    """A domain with a node of one accelerator per model."""
    message = mixed(domain_id, models)
    for node in message.nodes:
        del node.inventory.accelerators[1:]
    return message


def rates(fast: float, slow: float) -> list[DeclaredRate]:
    """Steps per second of one rank."""
    return [
        DeclaredRate(accelerator_type="H100", ranks=1, rate=fast),
        DeclaredRate(accelerator_type="A100", ranks=1, rate=slow),
    ]
