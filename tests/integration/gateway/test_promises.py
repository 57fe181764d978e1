"""Shares, service levels, fronts and objectives through the gateway and on the command line, answered by a real scheduler."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from meridian.cli.main import main
from meridian.client import ApiError, Client
from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.graph.v1.graph_pb2 import GraphUpdated
from meridian.contracts.run.v1.run_pb2 import Assignment
from tests.harness import environment
from tests.integration.gateway.issuer import serving
from tests.integration.scheduler.messages import graph, submission
from tests.integration.scheduler.test_service import starts, until

POLICY = """
name: promising
selection:
  limits: [max_running]
allocation:
  scores: {share_deficit: 1, chebyshev: 1}
shares:
  planned: {beijing: 1, shanghai: 1}
service_levels:
  lab: [{kind: average_wait, target: 3600, window_s: 3600, penalty_micro_units: 2000000, currency: CNY}]
  other: [{kind: throughput, target: 1, window_s: 3600}]
options:
  max_running: {tenants: {lab: 1}}
"""


async def test_tenants_see_and_set_their_own(database_url: str, redis_url: str) -> None:
    with serving() as issuer:
        async with (
            environment(database_url, redis_url=redis_url, identity_url=issuer.url) as stack,
            stack.service("scheduler") as service,
            stack.service("gateway", scheduler_url=service.base_url) as gateway,
        ):
            assert (await service.http.put("/v1/policy", content=POLICY)).status_code == 200
            await stack.bus.publish(graph("beijing", 1), graph("shanghai", 1))
            await stack.bus.expect(GraphUpdated, count=2)
            one: dict[str, Any] = {"resources": Resources(cpus=1, accelerators=1)}
            await stack.bus.publish(submission("first", **one))
            await stack.bus.expect(Assignment, starts("first"))
            await stack.bus.publish(*(submission(f"job-{number}", **one) for number in range(3)))
            await until(service, lambda body: body["units"] == 3)
            operator, lab = issuer.token(scope="operator", tenant="ops"), issuer.token(tenant="lab")
            reader = issuer.token(scope="jobs:read", tenant="lab")
            await asyncio.to_thread(by_client, gateway.base_url, operator, lab, reader)
            await asyncio.to_thread(by_command_line, gateway.base_url, lab, operator)
            versions = (await service.http.get("/v1/policy/versions")).json()["items"]
            assert {item["changed_by"] for item in versions[:-2]} == {"lab/client-of-lab", "ops/client-of-ops"}
            for path in ("/v1/shares", "/v1/service-levels", "/v1/front", "/v1/tenants/lab/objectives"):
                assert (await gateway.http.get(path)).status_code == 401


def refused(network: Client, call: str, *arguments: Any, **more: Any) -> int:
    with pytest.raises(ApiError) as error:
        getattr(network, call)(*arguments, **more)
    return error.value.status


def by_client(url: str, operator: str, lab: str, reader: str) -> None:
    with Client(url, token=lab) as network:
        found = network.shares()
        assert found["plan"] == {"kind": "fraction", "window_s": 3600.0, "tolerance": 0.05, "plan": "standing"}
        assert {row["domain_id"] for row in found["windows"][0]["domains"]} == {"beijing", "shanghai"}
        assert {row["promised_share"] for row in found["windows"][0]["domains"]} == {0.5}
        levels = network.service_levels()["items"]
        assert [(item["tenant_id"], item["observations"]) for item in levels] == [("lab", 1)]
        assert refused(network, "service_levels", "other") == 403
        front = network.front()
        assert (front["tenant"], front["waiting"], front["complete"]) == ("lab", 3, True)
        assert network.front(jobs=["job-1"])["looked_at"] == 1
        assert refused(network, "front", tenant="other") == 403
        assert refused(network, "front", index=99_999) == 422
        picked = network.front(index=0)["weights"]
        assert network.put_objectives("lab", picked)["own"]
        assert network.objectives("lab")["weights"] == pytest.approx(picked, abs=1e-5)
        assert refused(network, "put_objectives", "other", {"idle": 1}) == 403
        assert refused(network, "put_objectives", "default", {"idle": 1}) == 403
        with pytest.raises(ApiError) as error:
            network.put_objectives("lab", {"idle": -1})
        assert error.value.problem["errors"][0]["pointer"] == "/weights/idle"
        assert network.delete_objectives("lab")["own"] is False
    with Client(url, token=reader) as network:
        assert refused(network, "put_objectives", "lab", {"idle": 1}) == 403
        assert network.objectives("lab")["own"] is False
    with Client(url, token=operator) as network:
        assert [item["tenant_id"] for item in network.service_levels()["items"]] == ["lab", "other"]
        assert [item["kind"] for item in network.service_levels("other")["items"]] == ["throughput"]
        assert network.front()["points"] == []
        assert network.front(tenant="lab")["waiting"] == 3
        assert network.put_objectives("lab a", {"idle": 1, "energy": 3})["weights"]["energy"] == 0.75


def by_command_line(url: str, lab: str, operator: str) -> None:
    def run(*arguments: str, token: str = lab) -> Result:
        return CliRunner().invoke(main, list(arguments), env={"MERIDIAN_URL": url, "MERIDIAN_TOKEN": token})

    shares = run("shares").output
    assert all(word in shares for word in ("PROMISED", "DEVIATION", "beijing", "50.0%", "open"))
    levels = run("service-levels", token=operator).output
    assert all(word in levels for word in ("average_wait", "0.00 CNY", "throughput"))
    assert run("service-levels", "--tenant", "other").exit_code == 4
    front = run("front")
    assert "COMPLETION" in front.output
    assert "Point 0" in run("front", "--explain", "0").output
    picked = run("front", "--pick", "0")
    assert (picked.exit_code, "lab weighs" in picked.output, "its own" in picked.output) == (0, True, True)
    assert run("front", "--pick", "0", "--explain", "0").exit_code == 2
    assert run("front", "--pick", "0", token=operator).exit_code == 2
    assert run("objectives", "lab", "--set", "idle").exit_code == 2
    assert run("objectives", "lab", "--set", "speed=1").exit_code == 2
    changed = json.loads(run("objectives", "lab", "--set", "idle=1", "--set", "energy=3", "--json").stdout)
    assert changed["weights"] == {"completion": 0.0, "idle": 0.25, "transfer": 0.0, "energy": 0.75}
    assert "the policy's" in run("objectives", "lab", "--reset").output
    assert "energy 0.25" in run("objectives", "lab").output
