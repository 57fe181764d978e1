"""Load as it is defined, and traces brought to a load; and that a month of a large cluster costs little per line."""

from __future__ import annotations

import math
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType

import pytest

from simulation.made_networks import uniform
from simulation.model import Trace, TraceJob
from simulation.traces import TraceError, days, limited, load, offered_load, scaled


def _trace() -> Trace:
    jobs = [
        TraceJob("a", 100.0, 50.0, ranks=2, accelerators=4, deadline_s=200.0),
        TraceJob("b", 150.0, 100.0, accelerators=1, device_share=0.5),
        TraceJob("c", 200.0, 30.0, accelerators=5, deadline_s=240.0),
    ]
    return Trace("t", jobs)


def test_offered_load_by_hand() -> None:
    # 2 x 4 x 50 + 0.5 x 100 + 5 x 30 = 600 accelerator-seconds in 100 s on 2 x 1 x 8 accelerators.
    assert offered_load(_trace(), uniform(2, 1, 8)) == pytest.approx(600 / 1600)


def test_offered_load_of_cpu_jobs() -> None:
    jobs = [TraceJob("a", 0.0, 50.0, ranks=2, cpus=1.0), TraceJob("b", 10.0, 20.0, cpus=4.0)]
    # 2 x 50 + 4 x 20 = 180 CPU-seconds in 10 s on 36 CPUs.
    assert offered_load(Trace("t", jobs), uniform(1, 9, 0, cpus=4)) == pytest.approx(0.5)


def test_scaled() -> None:
    network = uniform(2, 1, 8)
    trace = _trace()
    denser = scaled(trace, network, 0.75)
    assert offered_load(denser, network) == pytest.approx(0.75)
    assert [job.submit_s for job in denser.jobs] == pytest.approx([100.0, 125.0, 150.0])
    assert denser.jobs[0].deadline_s == pytest.approx(200.0)
    assert denser.jobs[2].deadline_s == pytest.approx(190.0), "40 s after the submission, as before"
    assert math.isnan(denser.jobs[1].deadline_s)
    assert [job.duration_s for job in denser.jobs] == [50.0, 100.0, 30.0]
    assert [job.submit_s for job in trace.jobs] == [100.0, 150.0, 200.0], "the given trace stays as it is"


def test_limited() -> None:
    trace = _trace()
    assert [job.job_id for job in limited(trace, 2).jobs] == ["a", "b"]
    assert len(limited(trace, 99).jobs) == 3
    with pytest.raises(TraceError, match="0 jobs"):
        limited(trace, jobs=0)


def test_days_count_from_the_first_submission() -> None:
    lines = (("a", 100.0), ("b", 86_499.0), ("c", 86_500.0), ("d", 3 * 86_400.0 + 100.0))
    trace = Trace("t", [TraceJob(name, at_s, 10.0, accelerators=1) for name, at_s in lines])
    for first, last, kept in ((0, 0, "ab"), (1, 1, "c"), (1, 9, "cd"), (0, 3, "abcd")):
        assert "".join(job.job_id for job in days(trace, first, last).jobs) == kept
    assert [job.submit_s for job in days(trace, 1, 3).jobs] == [86_500.0, 259_300.0]
    with pytest.raises(TraceError, match="no job was submitted on the days 2 to 2"):
        days(trace, 2, 2)
    for first, last in ((2, 1), (-1, 1)):
        with pytest.raises(TraceError, match="no range of days"):
            days(trace, first, last)


@pytest.mark.parametrize("load_wanted", [0.0, -1.0, math.nan, math.inf])
def test_impossible_loads(load_wanted: float) -> None:
    with pytest.raises(TraceError, match="load must be positive"):
        scaled(_trace(), uniform(1, 1, 8), load_wanted)


def test_load_needs_a_span_and_devices() -> None:
    with pytest.raises(TraceError, match="two submission times"):
        offered_load(limited(_trace(), 1), uniform(1, 1, 8))
    with pytest.raises(TraceError, match="0 devices"):
        offered_load(_trace(), uniform(1, 1, 0))


def philly(path: Path, jobs: int) -> Path:
    begin = datetime(2017, 10, 1, tzinfo=UTC)
    lines = ["timestamp,duration,num_gpus,gpu_time,cluster"]
    lines += [f"{begin + timedelta(seconds=i)},{i % 900 + 1}.0,{i % 8 + 1},1.0,c{i % 5}" for i in range(jobs)]
    path.write_text("\n".join(lines))
    return path


def calls_to_read(path: Path) -> int:
    """Functions called, of Python and of C: work that is the same on every machine."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        load(path, "philly")
    finally:
        sys.setprofile(before)
    return calls


def test_eighty_thousand_jobs_are_read_and_a_line_costs_few_calls(tmp_path: Path) -> None:
    assert len(load(philly(tmp_path / "large.csv", 80_000), "philly").jobs) == 80_000
    few, more = (calls_to_read(philly(tmp_path / "small.csv", jobs)) for jobs in (1000, 3000))
    # It takes 42.
    assert (more - few) / 2000 < 85
