"""A cluster of few accelerators, and runs over it, small enough to follow by hand."""

from __future__ import annotations

from collections.abc import Mapping

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.policy import Policy
from services.scheduler.core.table import table_of
from services.scheduler.plans.catalogue import register_all
from simulation.engine import Simulation
from simulation.fleet import fleet_of
from simulation.model import Network, SimDomain, SimNode, Throughputs, Trace, TraceJob
from simulation.policies_planned import planned
from simulation.setting import Setting

register_all()


def network(sizes: Mapping[str, int]) -> Network:
    """A domain with one node per accelerator model."""
    return Network([SimDomain(m, [SimNode(m, m, 64.0, 1 << 40, n, m, "NVIDIA")]) for m, n in sizes.items()])


def rates(table: Mapping[str, Mapping[str, float]]) -> Throughputs:
    """Rates of one rank by profile and model."""
    found = Throughputs()
    for profile, models in table.items():
        found.rates[profile, 1] = dict(models)
    return found


def job(name: str, work: float, *, profile: str = "", submit_s: float = 0.0, **more: object) -> TraceJob:
    """A job of one accelerator whose profile has its own name."""
    return TraceJob(name, submit_s, max(work, 1.0), accelerators=1, profile=profile or name, work=work, **more)  # type: ignore[arg-type]


def policy(planner: str, interval_s: float, **options: object) -> Policy:
    """A policy that follows a planner."""
    return planned(planner, planner, interval_s, **options)


def run(
    sizes: Mapping[str, int], jobs: list[TraceJob], throughputs: Throughputs, chosen: Policy, knowledge: str = "exact"
) -> dict[str, float]:
    """Seconds at which each job ends."""
    measures = Simulation(network(sizes), Trace("small", jobs, throughputs), Setting("small", chosen, knowledge)).run()
    return {item.job_id: item.finish_s for item in measures.jobs}


def cluster(sizes: Mapping[str, int], chosen: Policy, throughputs: Throughputs | None = None) -> Cluster:
    """An empty cluster."""
    facts = {} if throughputs is None else {"throughputs": throughputs}
    return Cluster(table_of(fleet_of(network(sizes))), chosen, facts=facts)
