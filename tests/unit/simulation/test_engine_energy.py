"""Sleeping nodes in the simulator: every expected time and joule is worked out by hand.

A node draws 100 W, 50 W more per busy accelerator, 10 W asleep; it wakes in 60 s, drawing 100 W. Idle nodes sleep after 600 s.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from services.scheduler.core.policy import Policy
from services.scheduler.core.table import table_of
from services.scheduler.core.view import View
from simulation.engine import Simulation
from simulation.failures import NodeEvent
from simulation.fleet import fleet_of
from simulation.measures import JobRecord
from simulation.model import Network, SimDomain, SimNode, Trace, TraceJob
from simulation.policies import setting
from simulation.setting import Setting
from simulation.sleeping import may_sleep

SLEEPY = replace(setting("first-fit"), sleep_after_s=600.0)


def node(node_id: str, devices: int = 4, **more: object) -> SimNode:
    watts = {"idle_watts": 100.0, "busy_watts_per_accelerator": 50.0, "sleep_watts": 10.0, "wake_s": 60.0} | more
    return SimNode(node_id, node_id[0], 64.0, 1 << 40, devices, "v100", **watts)  # type: ignore[arg-type]


def network(*names: str, **more: Any) -> Network:
    """Nodes by name; the first letter is their domain."""
    found: dict[str, list[SimNode]] = {}
    for name in names:
        found.setdefault(name[0], []).append(node(name, **more))
    return Network([SimDomain(name, members) for name, members in found.items()])


def job(job_id: str, submit_s: float, duration_s: float, accelerators: int = 1, **more: object) -> TraceJob:
    fields = {"restart_cost_s": 10.0} | more
    return TraceJob(job_id, submit_s, duration_s, accelerators=accelerators, **fields)  # type: ignore[arg-type]


def simulation(where: Network, jobs: list[TraceJob], how: Setting = SLEEPY, **more: object) -> Simulation:
    return Simulation(where, Trace("by hand", jobs), how, **more)  # type: ignore[arg-type]


def finished(run: Simulation) -> dict[str, JobRecord]:
    run.run()
    return {record.job_id: record for record in run.measures.jobs}


def joules(run: Simulation) -> float:
    return sum(item.joules for item in run.measures.energy.values())


def scored(*scores: tuple[str, float]) -> Setting:
    return Setting("scored", Policy(name="scored", scores=scores, order=("age",)), sleep_after_s=600.0)


def test_a_node_sleeps_and_wakes() -> None:
    """Busy to 100, awake to 700, asleep to 1000, waking to 1060, busy to 1160:
    15000 + 60000 + 3000 + 6000 + 15000 J."""
    run = simulation(network("a0"), [job("one", 0, 100), job("two", 1000, 100)])
    two = finished(run)["two"]
    assert two.first_start_s == 1000
    assert two.finish_s == pytest.approx(1160)
    assert two.overhead_s == pytest.approx(60)
    assert joules(run) == pytest.approx(99_000)


def test_without_sleeping_it_idles() -> None:
    """15000 + 90000 + 15000 J, and the job is not delayed."""
    run = simulation(network("a0"), [job("one", 0, 100), job("two", 1000, 100)], setting("first-fit"))
    assert finished(run)["two"].finish_s == 1100
    assert joules(run) == pytest.approx(120_000)


@pytest.mark.parametrize("more", [{"sleep_watts": 0.0, "wake_s": 0.0}, {"sleep_watts": 100.0}])
def test_nodes_that_say_nothing_of_sleep_stay_awake(more: dict[str, float]) -> None:
    """Neither told how, or nothing to gain."""
    run = simulation(network("a0", **more), [job("one", 0, 100), job("two", 1000, 100)])
    assert not may_sleep(run.network.nodes[0])
    assert finished(run)["two"].finish_s == 1100


def test_a_node_that_wakes_at_once_delays_nobody() -> None:
    """15000 + 60000 + 3000 + 15000 J."""
    run = simulation(network("a0", wake_s=0.0), [job("one", 0, 100), job("two", 1000, 100)])
    assert finished(run)["two"].finish_s == 1100
    assert joules(run) == pytest.approx(93_000)


def test_a_node_never_used_sleeps_from_the_beginning() -> None:
    """a0 is busy for 1000 s: 150000 J; a1 idles for 600 s and sleeps for 400: 64000 J. Time begins with the first job."""
    run = simulation(network("a0", "a1"), [job("one", 5000, 1000)])
    assert finished(run)["one"].finish_s == 6000
    assert joules(run) == pytest.approx(150_000 + 64_000)


def test_sleep_does_not_prolong_the_run() -> None:
    run = simulation(network("a0", "a1"), [job("one", 0, 100)])
    finished(run)
    assert run.now_s == 100
    assert joules(run) == pytest.approx(15_000 + 10_000)


def test_a_job_without_accelerators_keeps_its_node_awake() -> None:
    """Nothing is busy for the power, but the node is in use to 1000: then the next job is not delayed."""
    run = simulation(network("a0"), [job("cpu", 0, 1000, 0, cpus=8.0), job("two", 1100, 100)])
    assert finished(run)["two"].finish_s == 1200
    assert joules(run) == pytest.approx(110_000 + 15_000)


def test_a_node_sleeps_when_its_last_job_has_left() -> None:
    """One of two jobs leaves at 100, the other, without accelerators, at 1000."""
    jobs = [job("one", 0, 100), job("cpu", 0, 1000, 0, cpus=8.0), job("three", 1100, 100)]
    assert finished(simulation(network("a0"), jobs))["three"].finish_s == 1200


def test_a_woken_node_counts_as_awake() -> None:
    """a0 is held. a2, woken at 700, is idle since 860; a1 was left at 800 and sleeps since 1400. At 1430 a2 is the one awake."""
    jobs = [
        job("hold", 0, 3000, 4),
        job("one", 0, 800, 4),
        job("two", 700, 100, 4),
        job("three", 1430, 100, 4),
    ]
    found = finished(simulation(network("a0", "a1", "a2"), jobs, scored(("energy", 1.0))))
    assert found["two"].finish_s == pytest.approx(860)
    assert found["three"].finish_s == 1530


def test_two_jobs_on_a_waking_node_both_wait() -> None:
    """Woken at 1000; the second comes at 1030 and waits 30 s. 15000 + 60000 + 3000 + 6000 J, two busy for 100 s: 20000 J."""
    run = simulation(network("a0"), [job("one", 0, 100), job("two", 1000, 100), job("three", 1030, 100)])
    found = finished(run)
    assert found["two"].finish_s == pytest.approx(1160)
    assert found["three"].finish_s == pytest.approx(1160)
    assert found["three"].overhead_s == pytest.approx(30)
    assert joules(run) == pytest.approx(84_000 + 20_000)


@pytest.mark.parametrize("score", ["pack", "least_loaded"])
def test_a_gang_waits_for_its_last_node(score: str) -> None:
    """a0 is awake, a1 asleep: both ranks begin when a1 is ready, whichever is first; a0 counts as busy at once."""
    jobs = [job("one", 0, 1000), job("gang", 800, 100, 3, ranks=2)]
    run = simulation(network("a0", "a1"), jobs, scored((score, 1.0)))
    assert finished(run)["gang"].finish_s == pytest.approx(960)
    # a0: 800 s x 150, 160 s x 300, 40 s x 150; a1: 600 x 100, 200 x 10, 60 x 100, 100 x 250, 40 x 100.
    assert joules(run) == pytest.approx(120_000 + 48_000 + 6_000 + 60_000 + 2_000 + 6_000 + 25_000 + 4_000)


def test_node_fails_while_it_wakes() -> None:
    """Woken at 1000, failed at 1030, up at 1040: the restart takes until 1050, waking until 1060, work until 1160. It is on all
    the time: the same joules as undisturbed."""
    events = [NodeEvent(1030.0, "a0", "down"), NodeEvent(1040.0, "a0", "up")]
    run = simulation(network("a0"), [job("one", 0, 100), job("two", 1000, 100)], failures=events)
    two = finished(run)["two"]
    assert two.finish_s == pytest.approx(1160)
    assert two.overhead_s == pytest.approx(30 + 20)
    assert joules(run) == pytest.approx(99_000)


def test_sleeps_again_after_a_cut_waking() -> None:
    """Woken at 1000, failed at 1030 for long: asleep from 1630 on. Repaired at 3000, woken, ready at 3060."""
    events = [NodeEvent(1030.0, "a0", "down"), NodeEvent(3000.0, "a0", "up")]
    run = simulation(network("a0"), [job("one", 0, 100), job("two", 1000, 100)], failures=events)
    assert finished(run)["two"].finish_s == pytest.approx(3160)
    # 15000, 600 x 100, 300 x 10, 630 x 100, 1370 x 10, 60 x 100, 100 x 150
    assert joules(run) == pytest.approx(15_000 + 60_000 + 3_000 + 63_000 + 13_700 + 6_000 + 15_000)


def test_the_score_prefers_nodes_that_are_awake() -> None:
    """a0 is in use, a1 sleeps since 600: a job at 700 goes to a0 by energy, to the emptier a1 by load."""
    jobs = [job("one", 0, 1000), job("two", 700, 100)]
    by_energy = simulation(network("a0", "a1"), jobs, scored(("energy", 1.0)))
    by_load = simulation(network("a0", "a1"), jobs, scored(("least_loaded", 1.0)))
    assert finished(by_energy)["two"].finish_s == 800
    assert finished(by_load)["two"].finish_s == pytest.approx(860)
    assert joules(by_energy) < joules(by_load)


def test_the_idle_node_that_is_awake_comes_before_the_sleeping_one() -> None:
    """a1 idles since 500 and sleeps at 1100; a0, a2 never worked and sleep since 600. At 700 a job that needs a whole node goes to
    a1, and at 1500 it must wake one."""
    jobs = [job("hold", 0, 2000, 4), job("short", 0, 500, 4), job("two", 700, 100, 4), job("three", 1500, 100, 4)]
    found = finished(simulation(network("a0", "a1", "a2"), jobs, scored(("energy", 1.0))))
    assert found["two"].finish_s == 800
    assert found["three"].finish_s == pytest.approx(1660)


def test_the_domain_whose_nodes_are_awake_comes_first() -> None:
    """b is empty and sleeps; by load it would be chosen."""
    jobs = [job("one", 0, 1000), job("two", 700, 100)]
    awake = simulation(network("a0", "b0"), jobs, scored(("awake", 1.0), ("spread", 0.5), ("energy", 1.0)))
    assert finished(awake)["two"].finish_s == 800
    loaded = simulation(network("a0", "b0"), jobs, scored(("spread", 1.0)))
    assert finished(loaded)["two"].finish_s == pytest.approx(860)


def test_full_nodes_wake_others() -> None:
    """Sleeping costs time, not room."""
    jobs = [job("one", 0, 1000, 4), job("two", 700, 100, 4)]
    assert finished(simulation(network("a0", "a1"), jobs, scored(("energy", 1.0))))["two"].finish_s == pytest.approx(
        860
    )


def test_carbon_of_a_run_begins_with_its_first_job() -> None:
    """1 kW from 3000 s on: 600 s in the hour of 100 g/kWh and 600 s in that of 300 are 100 / 6 + 300 / 6 g."""
    where = network("a0", idle_watts=1000.0, busy_watts_per_accelerator=0.0)
    where.domains[0].carbon_g_per_kwh = (100.0, 300.0, *[0.0] * 22)
    run = simulation(where, [job("one", 3000, 1200)])
    finished(run)
    assert run.measures.figures()["carbon_kg"] == pytest.approx(400 / 6 / 1000)
    assert run.measures.figures()["energy_kwh"] == pytest.approx(1200 / 3600)


def test_shares_of_a_device_add_up_exactly() -> None:
    """Ten shares of 0.1 are one device, neither more nor less: 150 W."""
    jobs = [job(f"{index}", 0, 100, device_share=0.1) for index in range(10)]
    run = simulation(network("a0", devices=1), jobs)
    assert len(finished(run)) == 10
    assert joules(run) == pytest.approx(15_000)


def test_view_is_told_who_sleeps() -> None:
    view = View(table_of(fleet_of(network("a0", "a1"))))
    view.set_asleep([1], asleep=True)
    np.testing.assert_array_equal(view.facts["asleep"], [0.0, 1.0])
    assert view.taken == [1]
    other = view.copy()
    other.set_asleep([0], asleep=True)
    other.set_asleep([1], asleep=False)
    np.testing.assert_array_equal(view.facts["asleep"], [0.0, 1.0])
    np.testing.assert_array_equal(other.facts["asleep"], [1.0, 0.0])


def test_registered_settings() -> None:
    """The settings differ in what they are to be compared by, and in nothing else."""
    ours, same, base = (setting(name) for name in ("meridian-energy", "meridian-sleeping", "meridian"))
    assert {name for name, _ in ours.policy.scores} >= {"energy", "awake", "carbon", "electricity"}
    assert math.isinf(base.sleep_after_s)
    assert ours.sleep_after_s == same.sleep_after_s < math.inf
    assert replace(ours.policy, name="x", scores=()) == replace(same.policy, name="x", scores=())
    assert (ours.knowledge, ours.refresh, ours.baseline) == (base.knowledge, base.refresh, False)
    for name in ("first-fit", "least-loaded"):
        assert setting(f"{name}-sleeping").policy == replace(setting(name).policy, name=f"{name}-sleeping")
        assert setting(f"{name}-sleeping").baseline
