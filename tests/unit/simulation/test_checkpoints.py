"""What stopped jobs keep and pay."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meridian.errors import InvalidArgumentError
from simulation.checkpoints import (
    Checkpoints,
    default_restart_s,
    kept_work,
    transfer_restart_s,
)
from simulation.model import TraceJob


def job(**values) -> TraceJob:
    return TraceJob("j", 0.0, values.pop("duration_s", 10_000.0), **values)


@pytest.mark.parametrize(
    ("done", "interval", "phase", "kept"),
    [
        (0.0, 600.0, None, 0.0),
        (599.0, 600.0, None, 0.0),
        (600.0, 600.0, None, 600.0),
        (1799.0, 600.0, None, 1200.0),
        (99.0, 600.0, 100.0, 0.0),
        (100.0, 600.0, 100.0, 100.0),
        (1299.0, 600.0, 100.0, 700.0),
        (5.0, 0.0, None, 5.0),
        (5.0, math.inf, None, 0.0),
        (50.0, math.inf, 40.0, 40.0),
        (50.0, 0.0, 60.0, 0.0),
        (0.3, 0.1, None, 0.3),
    ],
)
def test_progress_is_rounded_down_to_the_last_checkpoint(done, interval, phase, kept) -> None:
    assert kept_work(done, interval, phase) == pytest.approx(kept)


@given(st.floats(0, 1e7), st.floats(1e-3, 1e5), st.one_of(st.none(), st.floats(0, 1e5)))
def test_what_is_kept_is_a_checkpoint_not_more_than_one_interval_back(done, interval, phase) -> None:
    kept = kept_work(done, interval, phase)
    first = interval if phase is None else phase
    assert 0 <= kept <= done
    assert done - kept <= max(interval, first) * (1 + 1e-6)
    if kept > 0 and kept != done:
        steps = (kept - first) / interval
        assert steps == pytest.approx(round(steps), abs=1e-5)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1e-3, 1e5))
def test_more_done_never_keeps_less(one, other, interval) -> None:
    less, more = sorted((one, other))
    assert kept_work(less, interval) <= kept_work(more, interval) + 1e-6 * interval


def test_default_restart_by_size_as_in_helios() -> None:
    assert [default_restart_s(count) for count in (0, 0.5, 1, 2, 8, 9, 512)] == [7, 7, 7, 30, 30, 60, 60]


def test_restart_by_transfer() -> None:
    # 20 s and 14 GB over 500 Mbit/s: 20 + 14e9 / 62.5e6 = 244 s.
    assert transfer_restart_s(20.0, 14e9, 62.5e6) == pytest.approx(244.0)
    assert transfer_restart_s(20.0, 0.0, 0.0) == 20.0
    assert transfer_restart_s(20.0, 1.0, 0.0) == math.inf


def test_a_failed_job_resumes_from_its_checkpoint_and_pays() -> None:
    rules = Checkpoints(default_interval_s=600.0)
    resumed = rules.resume(job(ranks=2, accelerators=4), 1500.0, 5000.0)
    assert (resumed.kept_work, resumed.lost_work, resumed.restart_s, resumed.working_from_s) == (
        1200.0,
        300.0,
        30.0,
        5030.0,
    )
    rules.resume(job(ranks=2, accelerators=4), 1900.0, 9000.0)
    tally = rules.tallies["j"]
    assert (tally.restarts, tally.lost_work, tally.restart_s) == (2, 400.0, 60.0)


def test_a_job_with_work_units_counts_its_interval_in_them() -> None:
    # 20,000 steps in 10,000 s: an interval of 600 s is 1,200 steps.
    rules = Checkpoints()
    assert rules.kept(job(work=20_000.0, profile="p", checkpoint_interval_s=600.0), 3000.0) == pytest.approx(2400.0)


def test_rules_of_the_job_go_before_those_of_the_simulation() -> None:
    rules = Checkpoints(default_interval_s=600.0, fixed_s=10.0, checkpoint_bytes=1e9, bandwidth_bytes_per_s=1e8)
    assert rules.restart_s(job(accelerators=1)) == pytest.approx(20.0)
    assert rules.restart_s(job(accelerators=1, restart_cost_s=3.0)) == 3.0
    assert rules.kept(job(checkpoint_interval_s=1000.0), 1999.0) == 1000.0
    assert Checkpoints(default_interval_s=600.0, phase_s=100.0).kept(job(), 1299.0) == 700.0


def test_without_checkpoints_everything_is_lost_but_after_notice_nothing() -> None:
    rules = Checkpoints()
    assert rules.resume(job(), 900.0, 0.0).lost_work == 900.0
    assert rules.resume(job(), 900.0, 0.0, saved=True).kept_work == 900.0


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: kept_work(-1.0, 1.0), "done_work: -1.0"),
        (lambda: kept_work(1.0, math.nan), "interval_work: nan"),
        (lambda: kept_work(1.0, 1.0, -1.0), "phase_work: -1.0"),
        (lambda: Checkpoints(default_interval_s=-1.0), "default_interval_s"),
        (lambda: Checkpoints(checkpoint_bytes=1.0), "both or neither"),
        (lambda: Checkpoints().kept(job(checkpoint_interval_s=-5.0), 1.0), "checkpoint_interval_s: -5.0 of job 'j'"),
        (lambda: Checkpoints().restart_s(job(restart_cost_s=-1.0)), "restart_cost_s of job 'j'"),
        (lambda: Checkpoints(600.0).kept(job(work=5.0, duration_s=0.0), 1.0), "duration_s: 0.0 of job 'j'"),
    ],
)
def test_bad_input_names_the_field(call, names) -> None:
    with pytest.raises(InvalidArgumentError, match=names):
        call()
