"""What phases ask for by the declared schedule: stages by hand, pauses, and a published batch ramp."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.job.v1.job_pb2 import JobSpec, ModelDescription
from services.forecast.phases.curve import Phase
from services.forecast.phases.declared import from_body, schedule_of, to_body
from services.forecast.phases.demand import BatchRamp, InvalidScheduleError
from services.forecast.phases.schedule import PhaseStretch, TrainingSchedule, needs, stretches

# 64 replicas; the batch goes 16, 32, 48 over 1,920 samples: 40, 20 and (640 / 48) 14 steps, then 64 to step 1,200.
RAMPED = TrainingSchedule(
    steps=1200, global_batch=64, flops_per_sample=2.0, replicas=64, accelerators=64.0, warm_up_steps=60,
    ramp=BatchRamp(16, 16, 1920), evaluate_every_steps=100, evaluation_s=30.0, checkpoint_every_s=600.0, checkpoint_s=6.0,
)  # fmt: skip


def test_stages_end_with_the_declared_steps() -> None:
    found = RAMPED.stages()
    assert [(stage.first_step, stage.end_step, stage.global_batch) for stage in found] == [
        (0, 40, 16),
        (40, 60, 32),
        (60, 74, 48),
        (74, 1200, 64),
    ]
    assert [stage.busy_share for stage in found] == [0.25, 0.5, 0.75, 1.0]
    assert RAMPED.for_detector().warm_up_steps == 74


def test_a_run_that_ends_within_its_ramp_has_only_stages_of_it() -> None:
    short = replace(RAMPED, steps=50)
    assert [(stage.first_step, stage.end_step) for stage in short.stages()] == [(0, 40), (40, 50)]


def test_the_ramp_of_bloom_is_over_after_its_published_steps() -> None:
    # BLOOM-176B: --rampup-batch-size 192 16 9_765_625, global batch 2048.
    bloom = TrainingSchedule(95_000, 2048, 1.0, replicas=8, ramp=BatchRamp(192, 16, 9_765_625))
    found = bloom.stages()
    assert len(found) == 117
    assert (found[0].global_batch, found[1].global_batch, found[-1].global_batch) == (192, 208, 2048)
    assert found[-1].end_step == 95_000
    # 116 equal shares of 84,187 samples at 192 + 16 i sequences: the sum of 84,187 / (192 + 16 i) is 12,369.
    assert found[-1].first_step == pytest.approx(sum(9_765_625 / 116 / (192 + 16 * i) for i in range(116)), rel=0.005)


def test_phases_told_are_followed_by_what_the_schedule_says() -> None:
    told = [(0, None), (1, Phase.WARM_UP), (76, Phase.FAST)]
    assert stretches(told, 1200, 74, 300) == [
        PhaseStretch(None, 0, 1, told=True),
        PhaseStretch(Phase.WARM_UP, 1, 76, told=True),
        PhaseStretch(Phase.FAST, 76, 300, told=True),
        PhaseStretch(Phase.FAST, 300, 1200, told=False),
    ]
    assert stretches([], 1200, 74, 0) == [
        PhaseStretch(Phase.WARM_UP, 0, 74, told=False),
        PhaseStretch(None, 74, 1200, told=False),
    ]


def test_what_a_phase_asks_for() -> None:
    warm, fast = needs(
        RAMPED,
        [PhaseStretch(Phase.WARM_UP, 20, 74, told=True), PhaseStretch(Phase.FAST, 74, 474, told=False)],
        {Phase.FAST: 3.0},
    )
    # 20 steps of 16, 20 of 32, 14 of 48 sequences.
    assert warm.flops == pytest.approx(2.0 * (20 * 16 + 20 * 32 + 14 * 48))
    assert warm.busy_accelerators == 48
    assert warm.mean_busy_share == pytest.approx((20 * 0.25 + 20 * 0.5 + 14 * 0.75) / 54)
    assert (warm.training_s, warm.checkpoint_s, warm.evaluations) == (None, None, 0)
    assert (fast.training_s, fast.checkpoint_s) == (1200.0, 12.0)
    assert (fast.evaluations, fast.evaluation_s) == (4, 120.0)


def test_a_job_file_is_read_as_its_schedule() -> None:
    model = ModelDescription(
        parameters=10**9, sequence=1024, global_batch=64, steps=1200, tensor_parallel=2, warm_up_steps=60,
        batch_ramp_start=16, batch_ramp_increment=16, batch_ramp_samples=1920,
    )  # fmt: skip
    spec = JobSpec(ranks=16, resources=Resources(accelerators=8), model=model, checkpoint_interval_s=600)
    found = schedule_of(spec)
    assert (found.replicas, found.accelerators, found.checkpoint_every_s) == (64, 128.0, 600.0)
    assert found.flops_per_sample == pytest.approx(6e9 * 1024)
    assert found.ramp == BatchRamp(16, 16, 1920)
    assert from_body(to_body(found)) == found
    model.batch_ramp_increment = 7
    assert schedule_of(JobSpec(ranks=16, model=model)).ramp is None
    assert not schedule_of(JobSpec(ranks=16)).is_known


def test_a_schedule_without_a_sequence_is_read() -> None:
    model = ModelDescription(layers=32, hidden=4096, global_batch=64, steps=10)
    found = schedule_of(JobSpec(ranks=8, resources=Resources(accelerators=1), model=model))
    assert (found.steps, found.global_batch, found.replicas, found.flops_per_sample) == (10, 64, 8, 0.0)


def test_a_schedule_with_fields_that_a_later_release_adds_is_read() -> None:
    """While replicas are replaced one by one, the newer write what the older read."""
    kept = to_body(RAMPED)
    later = {**kept, "of_a_later_release": 1, "ramp": {**kept["ramp"], "shape": "cosine"}}
    assert from_body(later) == RAMPED


def test_a_schedule_without_fields_that_this_release_added_is_read() -> None:
    assert from_body({"steps": 5, "global_batch": 2, "flops_per_sample": 1.0}) == TrainingSchedule(5, 2, 1.0)


def test_a_ramp_that_leads_nowhere_is_refused() -> None:
    with pytest.raises(InvalidScheduleError, match=r"ramp\.increment"):
        replace(RAMPED, ramp=BatchRamp(16, 7, 1920)).stages()


def test_a_ramp_of_too_many_steps_is_refused() -> None:
    """One of 99,999,999, which a job file could declare, took all memory."""
    model = ModelDescription(
        steps=1000, global_batch=10_001, batch_ramp_start=1, batch_ramp_increment=1, batch_ramp_samples=10
    )
    assert schedule_of(JobSpec(ranks=1, model=model)).ramp == BatchRamp(1, 1, 10)
    model.global_batch += 1
    assert schedule_of(JobSpec(ranks=1, model=model)).ramp is None
    with pytest.raises(InvalidScheduleError, match=r"ramp\.increment: the batch grows 10001 times, at most 10000"):
        replace(RAMPED, global_batch=10_002, ramp=BatchRamp(1, 1, 10)).stages()
