"""Phases of training runs against a real broker and PostgreSQL: events, a restart in the middle, bad reports, HTTP."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.forecast.v1 import forecast_pb2 as pb
from meridian.contracts.forecast.v1.forecast_pb2 import TrainingPhaseChanged
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import JobFinished, JobSpec, JobSubmitted, ModelDescription
from meridian.contracts.run.v1.run_pb2 import RunProgress
from tests.harness import PATIENCE_S, Environment, RunningService, environment

LENGTH, CORNER, WARM_UP = 1200, 300, 60
WARM, FAST, STABLE, UNKNOWN = (
    pb.TRAINING_PHASE_WARM_UP,
    pb.TRAINING_PHASE_FAST,
    pb.TRAINING_PHASE_STABLE,
    pb.TRAINING_PHASE_UNKNOWN,
)


@pytest.fixture
async def stack(database_url: str) -> AsyncIterator[Environment]:
    async with environment(database_url) as stack:
        yield stack


def submitted(job: str) -> JobSubmitted:
    model = ModelDescription(
        parameters=10**9, sequence=1024, global_batch=64, steps=LENGTH, warm_up_steps=WARM_UP, batch_ramp_start=16,
        batch_ramp_increment=16, batch_ramp_samples=1920, evaluate_every_steps=100, evaluation_s=30.0, checkpoint_s=6.0,
    )  # fmt: skip
    spec = JobSpec(
        name=job,
        kind=job_pb2.JOB_KIND_GANG,
        ranks=64,
        resources=Resources(cpus=2, accelerators=1),
        model=model,
        checkpoint_interval_s=600,
    )
    return JobSubmitted(job_id=job, tenant_id="acme", spec=spec)


def progress(
    job: str, steps: Iterable[int], *, epoch: int = 1, total: int = LENGTH, spoilt: bool = False
) -> list[RunProgress]:
    found = []
    for step in steps:
        x, corner = math.log(step + 1), math.log(CORNER + 1)
        loss = math.nan if spoilt else 12 - min(x, corner) - 0.02 * max(x - corner, 0.0)
        message = RunProgress(
            run_id=f"{job}.0.{epoch}",
            job_id=job,
            epoch=epoch,
            domain_id="north",
            step=step,
            total_steps=total,
            metrics={"loss": loss, "learning_rate": min(1.0, (step + 1) / WARM_UP), "tokens_per_s": 1.0},
        )
        message.at.FromSeconds(1_700_000_000 + 2 * step)
        found.append(message)
    return found


async def expect(stack: Environment, job: str, phase: int, count: int = 1) -> TrainingPhaseChanged:
    found: TrainingPhaseChanged = await stack.bus.expect(
        TrainingPhaseChanged, lambda event: event.job_id == job and event.phase == phase, count=count
    )
    return found


async def reported(service: RunningService, job: str, reports: int) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = await service.http.get(f"/v1/jobs/{job}/phases")
            if answer.status_code == 200:
                body: dict[str, Any] = answer.json()
                if any(unit["reports"] + unit["reports_left_aside"] >= reports for unit in body["units"]):
                    return body
            await asyncio.sleep(0.05)


async def test_phases_are_told_across_a_restart_with_what_they_ask_for(stack: Environment) -> None:
    async with stack.service("forecast") as service:
        await stack.bus.publish(submitted("gpt"))
        async with asyncio.timeout(PATIENCE_S):
            while (await service.http.get("/v1/jobs/gpt/phases")).status_code != 200:
                await asyncio.sleep(0.05)
        body = (await service.http.get("/v1/jobs/gpt/phases")).json()
        assert (body["schedule_known"], body["units"]) == (True, [])
        await stack.bus.publish(*progress("gpt", range(200)))
        warm = await expect(stack, "gpt", WARM)
        assert (warm.tenant_id, warm.before, warm.run_id, warm.total_steps) == ("acme", UNKNOWN, "gpt.0.1", LENGTH)
        # 40 steps of 16 sequences make the first third of 1,920 samples; 64 replicas, of which 16 have work.
        assert warm.demand == pb.PhaseDemand(
            global_batch=16, flops_per_step=warm.demand.flops_per_step, busy_share=0.25, until_step=40
        )
        assert warm.demand.flops_per_step == pytest.approx(6e9 * 1024 * 16, rel=1e-6)
        # Raised until step 74 (40 x 16, 20 x 32, 14 x 48), after the learning rate's 60.
        fast = await expect(stack, "gpt", FAST)
        assert 74 <= fast.step <= 80
        assert (fast.before, fast.demand.busy_share, fast.at.seconds) == (WARM, 1.0, 1_700_000_000 + 2 * fast.step)
        await reported(service, "gpt", 200)

    async with stack.service("forecast") as service:
        # The run is restarted from a checkpoint at 150 meanwhile.
        await stack.bus.publish(*progress("gpt", range(150, LENGTH), epoch=2))
        stable = await expect(stack, "gpt", STABLE)
        assert stable.before == FAST
        assert stable.epoch == 2
        assert CORNER < stable.step < CORNER * math.exp(0.6) + 0.1 * LENGTH
        body = await reported(service, "gpt", LENGTH)
        [unit] = body["units"]
        assert (unit["phase"], unit["step"], unit["reports"]) == ("stable", LENGTH - 1, LENGTH)
        assert [item["phase"] for item in unit["changes"]] == ["warm_up", "fast", "stable"]
        needs = {need["phase"]: need for need in unit["demand"]}
        assert needs["warm_up"]["busy_accelerators"] == 48
        assert needs["fast"]["busy_accelerators"] == 64
        assert needs["stable"]["end_step"] == LENGTH
        held = needs["stable"]["end_step"] - needs["stable"]["first_step"]
        assert needs["stable"]["training_s"] == pytest.approx(2.0 * held, abs=4)
        assert needs["stable"]["checkpoint_s"] == pytest.approx(2.0 * held / 600 * 6, rel=0.02)
        assert needs["stable"]["evaluation_s"] == needs["stable"]["evaluations"] * 30
        metrics = (await service.http.get("/metrics")).text
        assert 'meridian_forecast_phase_changes_total{phase="stable"} 1.0' in metrics
        await stack.bus.publish(JobFinished(job_id="gpt", tenant_id="acme"))
        assert not stack.bus.dead_letters
    assert len(stack.bus.events(TrainingPhaseChanged, lambda event: event.job_id == "gpt")) == 3


async def test_bad_reports_are_unknown_and_never_a_wrong_phase(stack: Environment) -> None:
    async with stack.service("forecast") as service:
        steady = range(200)
        # Numbers that are none, steps that go backwards, four steps that stand still (64 reports of each are left out), a beginning that was not seen.
        await stack.bus.publish(*progress("none", steady, spoilt=True))
        await stack.bus.publish(*progress("backwards", range(200, 0, -1)))
        await stack.bus.publish(*progress("still", [step for step in range(4) for _ in range(200)]))
        await stack.bus.publish(*progress("late", range(700, 900)))
        await stack.bus.publish(*progress("longer", range(100)), *progress("longer", range(100, 200), total=9000))
        for job, reports in (("none", 200), ("backwards", 200), ("still", 544), ("late", 200), ("longer", 200)):
            body = await reported(service, job, reports)
            [unit] = body["units"]
            assert unit["phase"] == "unknown", job
            assert unit["reason"], job
            assert body["schedule_known"] is False
        last = await expect(stack, "longer", UNKNOWN)
        assert "total_steps was 1200 and is 9000" in last.reason
        wrong = stack.bus.events(TrainingPhaseChanged, lambda event: event.phase in (FAST, STABLE))
        assert {event.job_id for event in wrong} <= {"longer"}
        # A program that reports no loss is no training run.
        await stack.bus.publish(RunProgress(run_id="task.0.1", job_id="task", epoch=1, step=5, metrics={"done": 1.0}))
        await stack.bus.publish(*progress("after", [0]))
        await reported(service, "after", 1)
        answer = await service.http.get("/v1/jobs/task/phases")
        assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")
        assert not stack.bus.dead_letters
