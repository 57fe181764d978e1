"""Every policy that is known by name runs the shipped trace to its end, in bounded work and always alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.domains import read_network
from simulation.engine import Simulation
from simulation.policies import SETTINGS
from simulation.traces import limited, load, scaled

ROOT = Path(__file__).parents[3]
JOBS = 60
NAMES = [name for name, setting in SETTINGS.items() if not setting.policy.planner and not name.startswith("isolated-")]


def run(name: str) -> Simulation:
    network = read_network(ROOT / "simulation" / "networks" / "small.yaml")
    trace = load(ROOT / "examples" / "traces" / "synthetic.csv", "csv")
    simulation = Simulation(network, scaled(limited(trace, jobs=JOBS), network, 1.2), SETTINGS[name])
    simulation.run()
    return simulation


@pytest.mark.parametrize("name", NAMES)
def test_all_jobs_end_in_bounded_work(name: str) -> None:
    simulation = run(name)
    figures = simulation.measures.figures()
    assert (figures["jobs"], figures["unfinished"]) == (JOBS, 0)
    # Units that push each other out without making progress would take thousands of cycles.
    assert len(simulation.decision_s) < 40 * JOBS
    # What is held is the work, restarts and staging, and nothing else.
    work = sum(job.duration_s * job.devices for job in simulation.measures.jobs) / 3600.0
    wasted = (figures["lost_accelerator_hours"] or 0.0) + (figures["overhead_accelerator_hours"] or 0.0)
    assert figures["accelerator_hours"] == pytest.approx(work + wasted, rel=1e-6)


def test_equal_inputs_give_equal_outcomes() -> None:
    first, second = (run("meridian").measures for _ in range(2))
    assert [(job.job_id, job.finish_s) for job in first.jobs] == [(job.job_id, job.finish_s) for job in second.jobs]
