"""What the simulator adds for planned jobs: rates that change as a job goes on, resizes in the accounts, first starts that cost."""

from __future__ import annotations

import numpy as np
import pytest

from simulation.engine import Simulation
from simulation.measures import Measures
from simulation.model import Throughputs, Trace, TraceJob
from simulation.setting import Setting
from tests.unit.scheduler.plans.small import job, network, policy, rates


class TwoPhases(Throughputs):
    """100 units at 1 per second, then 200 at 2; on two ranks twice as fast, for Sia's planner."""

    def __init__(self) -> None:
        super().__init__()
        for count in (1, 2):
            self.rates["p", count] = {"v100": float(count)}

    def curve(self, profile: str, ranks: int, model: str, nodes: int) -> tuple[np.ndarray, np.ndarray]:
        return np.array([0.0, 100.0, 300.0]), np.array([0.0, 100.0, 200.0]) / ranks


def simulate(jobs: list[TraceJob], table: Throughputs, planner: str, sizes: dict[str, int], **more: bool) -> Measures:
    setting = Setting("small", policy(planner, 60.0), "exact")
    return Simulation(network(sizes), Trace("small", jobs, table), setting, **more).run()  # type: ignore[arg-type]


@pytest.mark.parametrize(("charged", "finish_s"), [(False, 260.0), (True, 270.0)])
def test_a_rate_that_changes_and_a_first_start_that_costs(charged: bool, finish_s: float) -> None:
    # From 60, after 10 s of start if that costs: 100 s and 100 s.
    one = job("a", 300.0, profile="p", restart_cost_s=10.0)
    found = simulate([one], TwoPhases(), "completion", {"v100": 1}, charge_first_start=charged)
    assert found.jobs[0].finish_s == pytest.approx(finish_s)


def test_progress_is_kept_in_the_middle_of_a_phase() -> None:
    # Sia: 1 rank from 60 (60 units by 120), then 2 after 10 s: 40 units in 20 s, 200 in 50 s: 200.
    one = job("a", 300.0, profile="p", restart_cost_s=10.0, min_ranks=1, max_ranks=2)
    found = simulate([one], TwoPhases(), "sia", {"v100": 2})
    assert found.jobs[0].finish_s == pytest.approx(200.0)
    assert (found.jobs[0].interruptions, found.jobs[0].overhead_s) == (1, 10.0)


def test_a_resize_is_no_queueing() -> None:
    one = job("a", 300.0, profile="p", restart_cost_s=10.0, min_ranks=1, max_ranks=2)
    found = simulate([one], TwoPhases(), "sia", {"v100": 2})
    assert (found.queued, found.queued_devices, found.held) == (0, 0.0, 0.0)


def test_time_ends_with_the_last_job_not_with_a_run_that_was_stopped() -> None:
    # The long job leaves the slow chip, where it would have ended later, for the fast one.
    same = {"v100": 1.0, "k80": 0.1}
    jobs = [job("long", 3600.0), job("short", 600.0)]
    found = simulate(jobs, rates({"long": same, "short": same}), "completion", {"k80": 1, "v100": 1})
    # Short: 60 to 660. Long: 60 units by then on the K80, 7 s of restart, 3540 s.
    assert {item.job_id: item.finish_s for item in found.jobs} == {
        "short": pytest.approx(660.0),
        "long": pytest.approx(660.0 + 7.0 + 3540.0),
    }
    # The next round is the last thing that happens; on the K80 the long job would have run until 36,060.
    assert found.now_s == pytest.approx(4260.0)


@pytest.mark.parametrize("planner", ["sia", "greedy-elastic", "elastic-exact", "gavel"])
def test_rounds_that_change_nothing_are_not_made(planner: str) -> None:
    # Two run from 60 to 6,060; the third waits for them, and the fourth comes in between.
    jobs = [job(name, 6000.0) for name in ("a", "b")] + [job("c", 600.0), job("d", 600.0, submit_s=3000.0)]
    setting = Setting("small", policy(planner, 60.0), "exact")
    simulation = Simulation(network({"v100": 3}), Trace("small", jobs), setting)
    found = simulation.run()
    assert len(found.jobs) == 4
    assert len(found.series) > 100, "time still goes from round to round"
    assert len(simulation.decision_s) < 20
