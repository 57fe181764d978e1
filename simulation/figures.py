"""The figures of simulated runs: values by name and slice, with their intervals, or the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from simulation.compare import Figure, job_intervals, missing, over_seeds
from simulation.experiment import Run
from simulation.measures import JobRecord, Measures
from simulation.model import Network

_OF_ALL_JOBS = frozenset({"fairness_jain", "deadline_miss_share"})
MOST_TENANTS = 200
"""Slices by tenant are written for at most so many tenants."""

Cell = tuple[str, str]
"""Name of a figure, slice."""


def currency(network: Network) -> str:
    """The one currency of the network in lower case; empty when there are several."""
    found = {domain.currency.lower() for domain in network.domains}
    return found.pop() if len(found) == 1 else ""


def unknowable(network: Network) -> dict[str, str]:
    """Figures that this network says nothing about, with the reason."""
    domains = network.domains
    reasons: dict[str, str] = {}
    if not any(domain.price_micro_units for domain in domains):
        reasons["accelerator_money"] = "the network gives no prices of accelerators"
    if not any(node.idle_watts or node.busy_watts_per_accelerator for node in network.nodes):
        for name in ("energy_kwh", "carbon_kg", "electricity_money"):
            reasons[name] = "the network gives no watts"
    if not any(any(domain.carbon_g_per_kwh) for domain in domains):
        reasons.setdefault("carbon_kg", "the network gives no carbon intensity")
    if not any(domain.electricity_micro_units_per_kwh for domain in domains):
        reasons.setdefault("electricity_money", "the network gives no prices of electricity")
    if not currency(network):
        for name in ("accelerator_money", "wan_money", "electricity_money"):
            reasons[name] = "the domains of the network have different currencies"
    return reasons


def _why_missing(name: str, measures: Measures) -> str:
    if name.startswith("decision"):
        return "no decision was made"
    if name.startswith("deadline"):
        return "no finished job has a deadline"
    if name == "allocated_share":
        kind = "processor" if measures.processors else "accelerator"
        return f"no {kind} was up while jobs arrived, or all arrived at one time"
    if not measures.jobs:
        return "no job finished"
    return "it has no value here"


def _hours(measures: Measures) -> str:
    return "cpu_hours" if measures.processors else "accelerator_hours"


def _sliced(jobs: Sequence[JobRecord], hours: str) -> dict[str, float]:
    jct = np.array([job.jct_s for job in jobs])
    return {
        "jobs": float(len(jobs)),
        "jct_mean_h": float(jct.mean()) / 3600.0,
        "jct_p99_h": float(np.quantile(jct, 0.99)) / 3600.0,
        "wait_mean_h": sum(job.wait_s for job in jobs) / len(jobs) / 3600.0,
        "slowdown_mean": sum(job.slowdown for job in jobs) / len(jobs),
        hours: sum(job.held_device_s for job in jobs) / 3600.0,
    }


def values_of(run: Run, network: Network, unknown: Mapping[str, str]) -> dict[Cell, Figure]:
    """All figures of one run, without intervals."""
    measures = run.measures
    found: dict[Cell, Figure] = {}
    for name, value in measures.figures().items():
        if name in unknown:
            found[name, "all"] = missing(unknown[name])
        elif value is None or not math.isfinite(value):
            found[name, "all"] = missing(_why_missing(name, measures))
        else:
            found[name, "all"] = Figure(value)
    if measures.wan_bytes and not any(link.price_micro_units_per_gib for link in network.links):
        found["wan_money", "all"] = missing("the network gives no prices of links")
    by_tenant: dict[str, list[JobRecord]] = {}
    for job in measures.jobs:
        by_tenant.setdefault(job.tenant, []).append(job)
    if len(by_tenant) == 1:
        found["fairness_jain", "all"] = missing("all jobs are of one tenant")
    if 1 < len(by_tenant) <= MOST_TENANTS:
        for tenant, jobs in sorted(by_tenant.items()):
            for name, number in _sliced(jobs, _hours(measures)).items():
                found[name, f"tenant={tenant}"] = Figure(number, n=len(jobs))
    if len(network.domains) > 1:
        for domain, device_s in measures.held_by_domain.items():
            found[_hours(measures), f"domain={domain}"] = Figure(device_s / 3600.0)
    return found


def of_one_seed(run: Run, values: dict[Cell, Figure], seed: int) -> dict[Cell, Figure]:
    """The values of the one run with intervals over its jobs, where a figure has one."""
    intervals = job_intervals(run.measures.jobs, seed)
    jobs = len(run.measures.jobs)
    found = dict(values)
    for (name, part), figure in values.items():
        if part != "all" or figure.value is None:
            continue
        if name in intervals:
            found[name, part] = Figure(figure.value, *intervals[name], n=jobs)
        elif name in _OF_ALL_JOBS:
            found[name, part] = Figure(figure.value, n=jobs)
        elif name.startswith("decision"):
            found[name, part] = Figure(figure.value, n=len(run.measures.decision_s))
    return found


def of_seeds(values: Sequence[dict[Cell, Figure]], seed: int) -> dict[Cell, Figure]:
    """Means over seeds; a figure that is missing for a seed is missing."""
    found: dict[Cell, Figure] = {}
    for cell in dict.fromkeys(cell for each in values for cell in each):
        figures = [each.get(cell, missing("no job of this slice finished with some of the seeds")) for each in values]
        numbers = [figure.value for figure in figures if figure.value is not None]
        if len(numbers) < len(figures):
            found[cell] = next(figure for figure in figures if figure.value is None)
        else:
            found[cell] = Figure(sum(numbers) / len(numbers), *over_seeds(numbers, seed), n=len(numbers))
    return found
