"""The compute index over HTTP: served, moved by probe results, the ground of recommendations; through the gateway too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from meridian.contracts.telemetry.v1.telemetry_pb2 import ProbeReported
from tests.harness import PATIENCE_S, Environment, RunningService, environment
from tests.integration.gateway.conftest import image
from tests.integration.gateway.issuer import Issuer, serving
from tests.integration.gateway.test_jobs import placed


@pytest_asyncio.fixture
async def issuer() -> AsyncIterator[Issuer]:
    with serving() as found:
        yield found


@pytest_asyncio.fixture
async def stack(database_url: str, redis_url: str, issuer: Issuer) -> AsyncIterator[Environment]:
    async with environment(database_url, redis_url=redis_url, identity_url=issuer.url) as found:
        yield found


@pytest_asyncio.fixture
async def telemetry(stack: Environment) -> AsyncIterator[RunningService]:
    async with stack.service("telemetry") as service:
        yield service


def result(chip: str, throughput: float, run_id: str = "run-1") -> dict[str, Any]:
    return {
        "run_id": run_id,
        "chip": chip,
        "measured_at": "2026-01-01T00:00:00Z",
        "software": "torch 2.9",
        "results": [{"task": "transformer_step", "precision": "bf16", "throughput": throughput, "unit": "{token}/s"}],
    }


async def entry(telemetry: RunningService, chip: str) -> tuple[dict[str, Any], str]:
    params = {"chip": chip, "task": "transformer_step", "precision": "bf16"}
    body = (await telemetry.http.get("/v1/index", params=params)).json()
    return body["items"][0], body["version"]


async def test_probe_results_enter_the_fit(telemetry: RunningService) -> None:
    before, version = await entry(telemetry, "NVIDIA L40S")
    assert before["chip_id"] == "l40s"
    assert before["low"] < before["index"] < before["high"]
    for number, (chip, throughput) in enumerate((("A100-SXM4-80GB", 1000.0), ("NVIDIA L40S", 2400.0))):
        answer = await telemetry.http.post("/v1/probes", json=result(chip, throughput, f"run-{number}"))
        assert answer.status_code == 201
        assert answer.json()["added"] == 1
    after, newer = await entry(telemetry, "NVIDIA L40S")
    assert version != newer
    assert abs(after["index"] - 2.4) < abs(before["index"] - 2.4)
    assert after["basis"] == "this chip measured on this task and precision"
    assert after["evidence"][0] | {"measured_at": None} == {
        "task": "transformer_step", "precision": "bf16", "n_accel": 1, "throughput": 2400.0, "origin": "probe",
        "source": "meridian probe", "software": "torch 2.9", "measured_at": None,
    }  # fmt: skip
    again = await telemetry.http.post("/v1/probes", json=result("NVIDIA L40S", 9.0, "run-1"))
    assert again.json() == {"chip_id": "l40s", "added": 0, "index_version": newer}, "a run counts once"


async def test_agents_report_probe_runs_over_the_bus(stack: Environment, telemetry: RunningService) -> None:
    for chip, throughput in (("A100-SXM4-80GB", 1000.0), ("NVIDIA L40S", 2400.0), ("Mystery 9", 5.0)):
        event = ProbeReported(domain_id="north", node_id="north-1", run_id=f"run of {chip}", chip=chip, program="p/1")
        event.results.add(task="transformer_step", precision="bf16", accelerators=1, throughput=throughput)
        event.results.add(task="transformer_step", precision="fp32", accelerators=1, throughput=float("nan"))
        event.measured_at.GetCurrentTime()
        await stack.bus.publish(event)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found, _ = await entry(telemetry, "NVIDIA L40S")
            if found["evidence"]:
                break
            await asyncio.sleep(0.05)
    assert [item["source"] for item in found["evidence"]] == ["agent of domain north"]
    assert found["evidence"][0]["throughput"] == 2400.0
    fp32 = {"chip": "NVIDIA L40S", "task": "transformer_step", "precision": "fp32"}
    body = (await telemetry.http.get("/v1/index", params=fp32)).json()
    assert body["items"][0]["basis"] == "this chip measured on other tasks", "a number that is none is not used"


async def test_bad_input_changes_nothing(telemetry: RunningService) -> None:
    for body in (
        result("Mystery 9", 1.0),
        result("TPU", 1.0),
        result("T4", -1.0),
        result("T4", 1.0) | {"results": []},
        result("T4", 1.0) | {"surprise": 1},
        result("T4", 1.0) | {"measured_at": "yesterday"},
    ):
        answer = await telemetry.http.post("/v1/probes", json=body)
        assert answer.status_code in {400, 422}, body
        assert answer.json()["errors"], body
    assert "tpu-v3" in (await telemetry.http.post("/v1/probes", json=result("TPU", 1.0))).json()["detail"]
    unknown = await telemetry.http.get("/v1/index", params={"chip": "Mystery 9"})
    assert unknown.status_code in {400, 422}
    assert "Mystery 9" in unknown.json()["detail"]
    everything = (await telemetry.http.get("/v1/index")).json()
    assert all(item["origin"] == "catalogue" for each in everything["items"] for item in each["evidence"])


async def test_recommendations_go_through_the_gateway(
    stack: Environment, telemetry: RunningService, issuer: Issuer
) -> None:
    stack.settings["telemetry_url"] = telemetry.base_url
    async with stack.service("gateway") as gateway:
        await stack.bus.publish(image("beijing", model="Ascend 910B3"))
        await stack.bus.publish(image("guiyang", model="T4", accelerator_memory_bytes=1 << 34))
        reader = {"authorization": f"Bearer {issuer.token(scope='resources:read')}"}
        question = {"workload": {"kind": "training", "parameters": 7e9}, "from_domain": "beijing"}
        async with asyncio.timeout(PATIENCE_S):
            while True:
                answer = await gateway.http.post("/v1/recommendations", json=question, headers=reader)
                if len(answer.json().get("items", [])) == 2:
                    break
                await asyncio.sleep(0.05)
        first, last = answer.json()["items"]
        assert answer.json()["requirement"]["levels"]["memory"] == 3
        assert (first["domain_id"], first["fits"], first["price_per_hour"]) == ("beijing", True, 4.5)
        assert any("125.2 GiB fit on 3 x Ascend 910B3" in reason for reason in first["reasons"])
        assert (last["domain_id"], last["fits"]) == ("guiyang", False)
        assert "9 accelerators are needed" in last["reasons"][0]
        # Two of its eight are held by a run from now on: one of seven is short.
        await stack.bus.publish(placed("job-1"))
        question["workload"] = {"kind": "training", "parameters": 22e9}
        async with asyncio.timeout(PATIENCE_S):
            while True:
                answer = await gateway.http.post("/v1/recommendations", json=question, headers=reader)
                [beijing] = [item for item in answer.json()["items"] if item["domain_id"] == "beijing"]
                if not beijing["fits"]:
                    break
                await asyncio.sleep(0.05)
        assert beijing["reasons"][0] == "7 accelerators are needed, 6 of 8 are free now"
        bad = await gateway.http.post("/v1/recommendations", json={"workload": {"kind": "knitting"}}, headers=reader)
        assert bad.status_code == 422
        lost = await gateway.http.post("/v1/recommendations", json=question | {"from_domain": "bejing"}, headers=reader)
        assert (lost.status_code, lost.json()["detail"]) == (422, "there is no domain 'bejing'")
        index = await gateway.http.get("/v1/index", params={"chip": ["T4", "L4"]}, headers=reader)
        assert [item["chip_id"] for item in index.json()["items"]] == ["t4", "l4"]
        refused = await gateway.http.post("/v1/probes", json=result("T4", 1.0), headers=reader)
        assert refused.status_code == 403
        operator = {"authorization": f"Bearer {issuer.token(scope='operator')}"}
        taken = await gateway.http.post("/v1/probes", json=result("T4", 1.0), headers=operator)
        assert taken.status_code == 201, taken.text
        assert (await gateway.http.get("/v1/index")).status_code == 401
