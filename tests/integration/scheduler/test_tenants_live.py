"""Tenants look at their front, weigh their objectives themselves, and the next decision follows; over restarts too."""

from __future__ import annotations

from typing import Any

import pytest

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.graph.v1.graph_pb2 import GraphUpdated
from meridian.contracts.job.v1.job_pb2 import JobPlaced
from meridian.contracts.run.v1.run_pb2 import Assignment, RunFinished
from services.scheduler.replay import replay
from tests.harness import environment
from tests.integration.scheduler.messages import graph, report, submission
from tests.integration.scheduler.test_replay_live import caught_up
from tests.integration.scheduler.test_service import starts, until

WEIGHING = "name: weighing\nallocation:\n  scores: {chebyshev: 1}\n"


def accelerators(count: int) -> dict[str, Any]:
    return {"resources": Resources(cpus=1, accelerators=count)}


def idle(weight: float) -> dict[str, Any]:
    return {"weights": {"idle": weight, "completion": 0}}


async def test_a_tenants_own_weights_decide_and_last(database_url: str) -> None:
    async with environment(database_url) as stack:
        bus = stack.bus
        async with stack.service("scheduler") as service:
            # "idle" prefers the domain that is left with the least idle part: the small one.
            await bus.publish(graph("large", 4), graph("small", 1))
            await bus.expect(GraphUpdated, count=2)
            lab = "/v1/tenants/lab/objectives"
            refused = await service.http.put(lab, json=idle(1))
            assert (refused.status_code, refused.json()["code"]) == (409, "CONFLICT")
            assert (await service.http.put("/v1/policy", content=WEIGHING)).status_code == 200
            before = (await service.http.get("/v1/policy")).json()["version"]
            assert (await service.http.get(lab)).json() == {
                "tenant_id": "lab",
                "own": False,
                "in_force": True,
                "weights": {"completion": 0.25, "idle": 0.25, "transfer": 0.25, "energy": 0.25},
                "changed_by": "",
                "changed_at": None,
                "policy_version": before,
            }
            for body, said in (
                ({"weights": {"speed": 1}}, "weights.speed: there is no such objective"),
                ({"weights": {"idle": -1}}, "weights.idle: must be"),
                ({"weights": {"idle": True}}, "weights.idle: must be"),
                ({"weights": {"idle": 0}}, "weights: at least one"),
                ({"weights": []}, "weights: an object"),
                ({"weight": {}}, "weight: there is no such field"),
            ):
                answer = await service.http.put(lab, json=body)
                assert (answer.status_code, said in answer.json()["detail"]) == (422, True), answer.text
            changed = (await service.http.put(f"{lab}?changed_by=lab/ana", json=idle(2))).json()
            version = changed["policy_version"]
            assert (changed["own"], changed["previous_version"], changed["changed_by"]) == (True, before, "lab/ana")
            assert changed["weights"] == {"completion": 0.0, "idle": 1.0, "transfer": 0.0, "energy": 0.0}
            assert version != before
            await bus.publish(submission("job-1", **accelerators(1)))
            placed = await bus.expect(JobPlaced, lambda event: event.job_id == "job-1")
            first = await bus.expect(Assignment, starts("job-1"))
            assert (placed.policy_version, first.domain_id) == (version, "small")
            newest = (await service.http.get("/v1/policy/versions")).json()["items"][0]
            assert (newest["version"], newest["changed_by"], newest["origin"]) == (version, "lab/ana", "api")
        async with stack.service("scheduler") as service:
            assert (await service.http.get("/v1/policy")).json()["version"] == version
            # A new policy does not forget them; one that weighs nothing lets them rest.
            await service.http.put("/v1/policy", content="name: plain\n")
            assert (await service.http.get(lab)).json()["in_force"] is False
            await service.http.put("/v1/policy", content=WEIGHING.replace("weighing", "again"))
            again = (await service.http.get(lab)).json()
            assert (again["own"], again["in_force"], again["weights"]["idle"]) == (True, True, 1.0)
            gone = (await service.http.delete(f"{lab}?changed_by=lab/ana")).json()
            assert (gone["own"], gone["weights"]["idle"]) == (False, 0.25)
            assert "weights" not in (await service.http.get("/v1/policy")).json()["options"].get("chebyshev", {})
            await bus.publish(report(RunFinished, first))
            entries, events = await caught_up(stack, service)
        found = replay(entries, events)
        assert (found.differences, found.placements) == ([], 1)


async def test_the_front_of_what_waits(database_url: str) -> None:
    async with environment(database_url) as stack, stack.service("scheduler") as service:
        bus = stack.bus
        empty = (await service.http.get("/v1/front?tenant_id=lab")).json()
        assert (empty["waiting"], empty["points"], empty["choice"]) == (0, [], None)
        await bus.publish(graph("beijing", 1), graph("shanghai", 1))
        await bus.publish(submission("first", tenant="other", **accelerators(6)))
        await bus.expect(Assignment, starts("first"))
        held = "name: closed\nlimits: [max_running]\noptions: {max_running: {tenants: {lab: 0}}}\n"
        answer = await service.http.put("/v1/policy", content=held)
        assert answer.status_code == 200, answer.text
        await bus.publish(*(submission(f"job-{number}", **accelerators(2 + number)) for number in range(3)))
        await until(service, lambda body: body["units"] == 3)
        body = (await service.http.get("/v1/front?tenant_id=lab")).json()
        assert (body["waiting"], body["looked_at"], body["complete"]) == (3, 3, True)
        assert [item["name"] for item in body["objectives"]] == ["completion", "idle", "money", "energy"]
        assert body["points"]
        for point in body["points"]:
            assert set(point["assignment"]) == {"job-0.0", "job-1.0", "job-2.0"}
        one = (await service.http.get("/v1/front?tenant_id=lab&index=0&job_id=job-1")).json()
        assert (one["looked_at"], one["choice"]["index"]) == (1, 0)
        assert set(one["weights"]) == {"completion", "idle", "transfer", "energy"}
        assert sum(one["weights"].values()) == pytest.approx(1.0, abs=1e-5)
        bad = await service.http.get("/v1/front?tenant_id=lab&index=99")
        assert (bad.status_code, "index must lie between" in bad.json()["detail"]) == (422, True)
        assert (await service.http.get("/v1/front?tenant_id=lab&solves=1000")).status_code == 422
