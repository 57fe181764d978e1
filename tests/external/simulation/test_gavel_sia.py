"""The planners as policies on the public workloads of Gavel and Sia: what is published, and what ours must reach."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.heterogeneous import Task, gavel_file, gavel_workload, run
from services.scheduler.planners.goodput import Application
from simulation import adaptive
from simulation.domains import read_network
from tests.public_data import public_data

pytestmark = pytest.mark.external
NETWORK = Path(adaptive.__file__).parent / "networks" / "gavel-hetero.yaml"


@pytest.fixture(scope="module")
def data() -> Path:
    return public_data()


@pytest.fixture(scope="module")
def applications(data: Path) -> tuple[dict[str, Application], str]:
    return adaptive.read_applications(data / "sia" / "traces")


def test_a_job_alone_takes_the_measured_time(applications, data: Path) -> None:
    # Epoch by epoch: length over rate at the best batch size, times the authors' slow-down.
    trace = adaptive.load(data / "sia" / "workloads" / "philly" / "workload-1.csv", applications)
    table = trace.throughputs
    assert isinstance(table, adaptive.AdaptiveThroughputs)
    application = applications[0]["cifar10"]
    work, seconds = table.curve("cifar10/2048", 4, "a100", 1)  # type: ignore[misc]
    ends = np.concatenate([[0.0], application.noise.epoch_ends()])
    by_hand = 0.0
    for epoch in range(100):
        goodput = application.best("dgx-ext", 1, 4, epoch).goodput
        by_hand += (ends[epoch + 1] - ends[epoch]) * application.noise.initial_batch / goodput * 1.8
    assert (work.tolist(), seconds[-1]) == (ends.tolist(), pytest.approx(by_hand))


def test_phases_follow_the_work_that_is_left(applications, data: Path) -> None:
    trace = adaptive.load(data / "sia" / "workloads" / "philly" / "workload-1.csv", applications)
    table = trace.throughputs
    assert isinstance(table, adaptive.AdaptiveThroughputs)
    ends = applications[0]["cifar10"].noise.epoch_ends()
    whole = table.work("cifar10")
    assert whole == ends[-1]
    assert [table.phase("cifar10/2048", left) for left in (whole, whole - ends[0], whole - ends[0] / 2, 0.0)] == [
        0,
        1,
        0,
        99,
    ]


def test_the_plan_by_dynamic_programming_is_the_integer_program(data: Path) -> None:
    # The first 25 jobs of a workload, whole runs: the same plans in every round give the same times.
    program, exact = (run(Task("sia", name, "1", 0.0, 25), data) for name in ("sia", "sia (exact plan)"))
    assert exact.mean_h == pytest.approx(program.mean_h, rel=1e-3)
    assert abs(exact.restarts - program.restarts) <= 2


@pytest.mark.parametrize("number", ["2", "6"])
@pytest.mark.timeout(400)
def test_sia_comes_near_its_published_time_and_ours_is_shorter(data: Path, number: str) -> None:
    # Published: 0.6 h over eight workloads. Ours was not chosen on these two.
    sia = run(Task("sia", "sia (exact plan)", number, 0.0, 160), data).mean_h
    ours = run(Task("sia", "elastic-exact", number, 0.0, 160), data).mean_h
    assert 0.45 < sia < 0.75
    assert ours < 0.97 * sia


def test_load_counts_a_chip_by_the_rates_on_it(data: Path) -> None:
    network = read_network(NETWORK)
    trace = gavel_workload(gavel_file(data, "2869ce"), 50, 1.0, network)
    twice = gavel_workload(gavel_file(data, "2869ce"), 50, 2.0, network)
    assert len(trace.jobs) == 50
    assert twice.jobs[-1].submit_s == pytest.approx(trace.jobs[-1].submit_s / 2)


def test_ours_is_shorter_than_gavels_best_where_jobs_wait(data: Path) -> None:
    # A trace that ours was not chosen on, at a load at which jobs wait.
    found = {
        name: run(Task("gavel", name, "2869ce", 1.0, 80), data) for name in ("gavel-sjf", "gavel-las", "completion")
    }
    assert all(item.finished == 80 for item in found.values())
    best = min(found["gavel-sjf"].mean_h, found["gavel-las"].mean_h)
    assert found["completion"].mean_h < best
    assert found["completion"].restarts < found["gavel-sjf"].restarts


def test_a_workload_is_refused_with_its_line(data: Path, applications, tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("name,time,application,num_replicas,batch_size\na,0,cifar10,1,128\nb,0,unknown,1,128\n")
    with pytest.raises(adaptive.TraceError, match="line 3"):
        adaptive.load(bad, applications)


def test_rates_of_gavel_make_the_simulated_times(data: Path) -> None:
    # One job, alone: steps / rate on the chip where it is fastest, from the end of the first round on.
    network = read_network(NETWORK)
    trace = gavel_workload(gavel_file(data, "2869ce"), 50, 1.0, network)
    from simulation.engine import Simulation
    from simulation.policies import setting

    job = replace(trace.jobs[0], submit_s=0.0)
    assert trace.throughputs is not None
    fastest = max(trace.throughputs.rate(job.profile, job.ranks, model) for model in ("v100", "p100", "k80"))
    measures = Simulation(network, replace(trace, jobs=[job]), setting("completion")).run()
    assert measures.jobs[0].finish_s == pytest.approx(360.0 + job.work / fastest)
