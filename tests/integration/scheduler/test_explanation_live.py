"""Explanations of the live scheduler: who holds what, predicted starts, counterfactuals, what-if with a changed network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import Event
from typing import Any

import pytest
from google.protobuf import json_format

from meridian.cli.explanation import MOST_LINES, lines
from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.run.v1.run_pb2 import Assignment, RunStarted
from services.gateway.job_spec import to_spec
from services.gateway.jobfile import JobFile
from services.scheduler import outlook
from services.scheduler.core.explaining.explanation import rederive
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.policy import Policy
from services.scheduler.hypothesis import Hypothesis, hypothesis
from tests.harness import Environment, RunningService, environment
from tests.integration.scheduler.messages import graph, report, submission
from tests.integration.scheduler.test_service import starts, until

SPEC = {"kind": "gang", "ranks": 2, "command": ["x"], "resources": {"accelerators": 8}}


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer ends early because the machine is busy."""
    for name in ("FOLLOWED_S", "DECIDED_S"):
        monkeypatch.setattr(f"services.scheduler.answer_time.{name}", 3600.0)


@asynccontextmanager
async def scheduler(database_url: str) -> AsyncIterator[tuple[Environment, RunningService]]:
    async with environment(database_url) as stack, stack.service("scheduler") as service:
        yield stack, service


async def explained(service: RunningService, job_id: str, **parameters: str | int) -> dict[str, Any]:
    answer = await service.http.get(f"/v1/jobs/{job_id}/explanation", params=parameters)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_a_waiting_job_is_told_who_holds_what_and_when_it_may_start(database_url: str) -> None:
    async with scheduler(database_url) as (stack, service):
        bus = stack.bus
        await bus.publish(graph("beijing", 1), graph("shanghai", 1, accelerators=4))
        eight = Resources(cpus=1, accelerators=8)
        await bus.publish(submission("holder", tenant="lab", resources=eight, max_run_time_s=600))
        first = await bus.expect(Assignment, starts("holder"))
        await bus.publish(report(RunStarted, first))
        await bus.publish(submission("waits", tenant="other", resources=eight, max_run_time_s=600))
        await until(service, lambda body: [item.get("position") for item in body["items"]] == [1])

        unit = (await explained(service, "waits", counterfactuals="true"))["units"][0]
        waiting = unit["waiting"]
        assert waiting["explanation"]["stage"] == "capacity"
        assert waiting["ahead"] == {"units": 0, "accelerators": 0.0}
        holder = waiting["blocked_by"]["holders"][0]
        assert (holder["unit"], holder["tenant_id"], holder["accelerators"]) == ("holder.0", "lab", 8.0)
        # It starts when the holder ends, which may be earlier or later than thought.
        prediction = waiting["prediction"]
        assert prediction["low"] <= prediction["start"] <= prediction["high"]
        assert prediction["low"] < holder["until"]
        short = {item["domain_id"]: item["nodes_short_of"] for item in waiting["blocked_by"]["shortages"]}
        assert short["beijing"] == {"accelerators": 1}
        flips = {item["field"]: item for item in unit["counterfactuals"]}
        assert (flips["accelerators"]["new"], flips["accelerators"]["place"]) == (4, "shanghai")
        assert flips["units.holder.0"]["place"] == "beijing"
        text = lines(await explained(service, "waits", counterfactuals="true"))
        assert len(text) <= MOST_LINES
        assert any("held by holder.0 (lab): 8 accelerators until" in line for line in text)
        assert any("if: It would start now in shanghai if it asked for 4 accelerators" in line for line in text)

        placed = (await explained(service, "holder"))["units"][0]
        assert rederive(placed["placement"]).place == "beijing" == placed["placement"]["chosen"]["place"]
        assert placed["sentences"][0].startswith("Beijing: score")
        assert "counterfactuals" not in placed
        assert len(lines(await explained(service, "holder"))) <= MOST_LINES


async def test_one_unit_of_many_can_be_asked_about(database_url: str) -> None:
    async with scheduler(database_url) as (stack, service):
        await stack.bus.publish(graph("beijing", 1, accelerators=2))
        from meridian.contracts.job.v1 import job_pb2

        array = submission(
            "many", kind=job_pb2.JOB_KIND_ARRAY, array_size=30, resources=Resources(cpus=1, accelerators=1)
        )
        await stack.bus.publish(array)
        await until(service, lambda body: body["units"] == 28)
        found = await explained(service, "many", unit=29)
        assert [unit["unit_index"] for unit in found["units"]] == [29]
        assert found["units"][0]["waiting"]["ahead"]["units"] == 27
        assert len(lines(await explained(service, "many"))) <= MOST_LINES


async def test_what_if_the_network_or_the_policy_were_another(database_url: str) -> None:
    async with scheduler(database_url) as (stack, service):
        await stack.bus.publish(graph("beijing", 2), graph("shanghai", 2))
        await until(service, lambda body: len(body["items"]) == 4, "/v1/nodes")

        async def ask(change: dict[str, Any], **spec: Any) -> dict[str, Any]:
            answer = await service.http.post("/v1/what-if", json={"spec": {**SPEC, **spec}, "change": change})
            assert answer.status_code == 200, answer.text
            body: dict[str, Any] = answer.json()
            return body

        async def place(change: dict[str, Any], **spec: Any) -> set[str]:
            items = (await ask(change, **spec))["items"]
            return {rank["domain_id"] for rank in items[0].get("ranks", [])}

        first = await place({})
        assert len(first) == 1
        other = {"beijing", "shanghai"} - first
        down = [f"{first.copy().pop()}-1"]
        assert await place({"nodes_down": down}) == other
        assert await place({}, ranks=3) == set()
        extra = {"domain_id": "lhasa", "nodes": 3, "accelerators": 8, "cpus": 64}
        assert await place({"domains": [extra]}, ranks=3) == {"lhasa"}
        prices = {name: 100 if name in first else 1 for name in ("beijing", "shanghai")}
        assert await place({"prices": prices, "weights": {"price": 100}}) == other
        assert (await ask({"policy": "name: other\nselection:\n  order: [age]\n"}))["policy_version"].startswith(
            "other-"
        )
        # Nothing of it is kept.
        assert await place({}) == first
        assert len((await service.http.get("/v1/nodes")).json()["items"]) == 4
        assert (await service.http.get("/v1/queue")).json()["units"] == 0

        wrong: list[tuple[dict[str, Any], str]] = [
            ({"nodes_down": ["nowhere"]}, "change.nodes_down[0]"),
            ({"prices": {"mars": 1}}, "change.prices.mars"),
            ({"weights": {"price": -1}}, "change.weights.price"),
            ({"weights": {"beauty": 1}}, "beauty"),
            ({"domains": [{"domain_id": "beijing"}]}, "change.domains[0].domain_id"),
            ({"luck": 1}, "change.luck"),
        ]
        for change, named in wrong:
            problem = await service.http.post("/v1/what-if", json={"spec": SPEC, "change": change})
            assert problem.status_code == 422
            assert named in problem.json()["detail"]


async def test_cycles_go_on_while_a_question_reads_a_large_document(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The document is read in a thread: a job that comes meanwhile is placed before the answer."""
    reads, placed = Event(), Event()

    def read(change: dict[str, Any], fleet: Fleet, policy: Policy) -> Hypothesis:
        reads.set()
        assert placed.wait(60)
        return hypothesis(change, fleet, policy)

    monkeypatch.setattr(outlook, "hypothesis", read)
    async with scheduler(database_url) as (stack, service):
        bus = stack.bus
        await bus.publish(graph("beijing", 1))
        await until(service, lambda body: len(body["items"]) == 1, "/v1/nodes")
        body = {"spec": {**SPEC, "ranks": 1}, "change": {"policy": "name: other\n"}}
        answer = asyncio.create_task(service.http.post("/v1/what-if", json=body))
        assert await asyncio.to_thread(reads.wait, 60)
        await bus.publish(submission("came", resources=Resources(cpus=1, accelerators=8)))
        await bus.expect(Assignment, starts("came"))
        placed.set()
        # About things as they were when it was asked: the node was free.
        assert (await answer).json()["placeable"]


async def test_what_if_says_when_and_what_it_would_displace(database_url: str) -> None:
    async with scheduler(database_url) as (stack, service):
        bus = stack.bus
        await bus.publish(graph("beijing", 1))
        eight = Resources(cpus=1, accelerators=8)
        await bus.publish(submission("holder", resources=eight, max_run_time_s=600))
        await bus.publish(report(RunStarted, await bus.expect(Assignment, starts("holder"))))
        body = {"spec": {**SPEC, "ranks": 1, "priority": 5}}
        found = (await service.http.post("/v1/what-if", json=body)).json()
        assert not found["placeable"]
        assert found["items"][0]["prediction"]["start"], found
        document = "name: pushy\nselection:\n  order: [priority, age]\npreemptions: [priority]\n"
        answer = await service.http.post("/v1/what-if", json={**body, "change": {"policy": document}})
        assert answer.status_code == 200, answer.text
        assert answer.json()["placeable"]
        assert [item["unit"] for item in answer.json()["displaces"]["preempted"]] == ["holder.0"]
        await until(service, lambda body: body["units"][0]["state"] == "running", "/v1/jobs/holder/explanation")


async def test_the_scheduler_reads_what_the_gateway_sends(database_url: str) -> None:
    file = JobFile.model_validate({"name": "g", "kind": "gang", "command": ["x"], "gang": {"ranks": 2}})
    spec = json_format.MessageToDict(to_spec(file), preserving_proto_field_name=True)
    async with scheduler(database_url) as (stack, service):
        await stack.bus.publish(graph("beijing", 1))
        await until(service, lambda body: len(body["items"]) == 1, "/v1/nodes")
        answer = await service.http.post("/v1/what-if", json={"spec": spec, "change": {}}, params={"tenant_id": "lab"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["units"] == 1


async def test_without_time_left_it_is_said_what_was_not_searched(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scheduler(database_url) as (stack, service):
        await stack.bus.publish(graph("beijing", 1))
        for name in ("holder", "waits"):
            eight = Resources(cpus=1, accelerators=8)
            await stack.bus.publish(submission(name, resources=eight, max_run_time_s=600))
        await until(service, lambda body: [item.get("position") for item in body["items"]] == [1])
        (whole,) = (await explained(service, "waits", counterfactuals="true"))["units"]
        assert whole["counterfactuals_search"]["complete"]
        monkeypatch.setattr("services.scheduler.answer_time.DECIDED_S", 0.0)
        found = await explained(service, "waits", counterfactuals="true")
        assert found["units"][0]["counterfactuals"] == []
        ended = {"complete": False, "decisions": 0, "not_searched": ["all"]}
        assert found["units"][0]["counterfactuals_search"] == ended
        assert "  not searched further: all (time for 0 decisions)" in lines(found)
        answer = await service.http.post("/v1/what-if", json=SPEC)
        assert answer.status_code == 503
        assert "what would be decided takes longer than 6 s (2 units wait with it" in answer.json()["detail"]
