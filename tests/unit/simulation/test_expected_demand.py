"""What a simulated scheduler is told of tenants' demand: present demand, the service's methods on it, the truth; and its effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.preallocation import FACT
from simulation.engine import Simulation
from simulation.expected_demand import Forecast, Oracle, Persistence, demand_now
from simulation.model import Network, SimDomain, SimNode, Trace, TraceJob
from simulation.policies import setting
from simulation.setting import with_policy

HOUR = 3600.0


def network(devices: int) -> Network:
    return Network([SimDomain("a", [SimNode("a-0", "a", 64.0, 1 << 40, devices, "v100")])])


def job(name: str, tenant: str, submit_s: float, duration_s: float, devices: int) -> TraceJob:
    return TraceJob(name, submit_s, duration_s, 1, devices, tenant=tenant, restart_cost_s=0.0)


def run(
    jobs: list[TraceJob], told: Callable[[Cluster, Trace], Any] | None, devices: int = 8, **options: Any
) -> dict[str, float]:
    """First starts by job, with up to 4 accelerators held for tenant a."""
    options = {"tenants": ("a",), "most": 4.0, "horizon_s": HOUR, "spare_short": False} | options
    how = with_policy(
        setting("first-fit"),
        limits=("preallocation",),
        options=(("preallocation", tuple(options.items())),),
        interval_s=600.0,
    )
    trace = Trace("by hand", jobs)
    simulation = Simulation(network(devices), trace, how)
    if told is not None:
        simulation.cluster.view.facts[FACT] = told(simulation.cluster, trace)
    simulation.run()
    return {record.job_id: record.first_start_s for record in simulation.measures.jobs}


JOBS = [
    job("b1", "b", 0.0, 10 * HOUR, 4),
    job("b2", "b", 60.0, 10 * HOUR, 4),
    job("a1", "a", 1800.0, HOUR, 4),
]


def test_the_oracle_keeps_room_for_what_comes_within_the_hour() -> None:
    starts = run(JOBS, lambda cluster, trace: Oracle(cluster, trace, ("a",), HOUR))
    assert (starts["a1"], starts["b1"]) == (1800.0, 0.0)
    # Room for a until it holds 4; the other 4 stay with b1, so b2 waits for a1's end.
    assert starts["b2"] == 1800.0 + HOUR
    assert run(JOBS, None)["a1"] == 10 * HOUR


def test_a_headroom_needs_no_forecast() -> None:
    starts = run(JOBS, None, headroom=4.0)
    assert starts["a1"] == 1800.0
    # And it stays when a holds its share: b2 gets what a1 leaves only when b1 has ended.
    assert starts["b2"] == 10 * HOUR


def test_persistence_holds_for_what_waits_and_for_no_more() -> None:
    jobs = [
        job("b1", "b", 0.0, HOUR, 6),
        job("a1", "a", 60.0, HOUR, 4),
        job("b2", "b", 700.0, 10 * HOUR, 2),
    ]
    starts = run(jobs, lambda cluster, _: Persistence(cluster, ("a",), 600.0))
    # a1 waits for b1; what is left is not given to b2 meanwhile.
    assert (starts["a1"], starts["b2"]) == (HOUR, HOUR)
    assert run(jobs, None)["b2"] == 700.0


def test_the_forecast_is_that_of_the_service_on_each_window_of_the_demand() -> None:
    jobs = [job(f"a{i}", "a", i * 1200.0, 100 * HOUR, 1) for i in range(8)]
    how = with_policy(
        setting("first-fit"),
        limits=("preallocation",),
        options=(("preallocation", (("tenants", ("a",)), ("most", 4.0))),),
        interval_s=600.0,
    )
    simulation = Simulation(network(16), Trace("by hand", jobs), how, until_s=30 * HOUR)
    forecast = simulation.cluster.view.facts[FACT] = Forecast(simulation.cluster, ("a", "b"), (HOUR,), 600.0)
    simulation.run()
    outlooks = forecast.at(30 * HOUR)
    assert set(outlooks) == {"a", "b"}
    assert outlooks["b"].demand(HOUR, "high") == 0.0
    # Eight accelerators for a day: the last value or close to it, and a band once errors are known.
    assert outlooks["a"].demand(HOUR, "expected") == pytest.approx(8.0, abs=0.5)
    assert 8.0 <= outlooks["a"].demand(HOUR, "high") + 0.5 < 12.0
    assert forecast.at(30 * HOUR) is outlooks


def test_demand_is_what_runs_and_what_waits() -> None:
    trace = Trace("by hand", JOBS)
    simulation = Simulation(network(8), trace, setting("first-fit"), until_s=1900.0)
    simulation.run()
    assert demand_now(simulation.cluster) == {"a": 4.0, "b": 8.0}
