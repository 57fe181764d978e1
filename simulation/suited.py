"""A setting that serves unlike workloads by unlike policies: which one a trace on a network takes.

An order with a place for each unit when its turn comes is what workloads need in which a unit runs equally fast wherever it is
put. Where rates differ from chip to chip, or with the number of ranks, who runs on what has to be planned together.
"""

from __future__ import annotations

from dataclasses import replace

from services.scheduler.core.unlike import LEAST_RATIO
from simulation.model import Network, Trace, TraceJob
from simulation.policies import setting as setting_named
from simulation.setting import Setting, Suits


def suited(setting: Setting, network: Network, trace: Trace) -> Setting:
    """The setting as it runs this trace on this network: itself, or under its name the one that it has for such workloads.

    What half of the jobs with accelerators are decides: *elastic* if their rates are known and they run on different numbers
    of ranks, else *unlike* if their known rates differ between the accelerator models of the network that they accept.
    """
    chosen = _chosen(setting.suits, network, trace)
    if not chosen:
        return setting
    other = setting_named(chosen)
    return replace(setting, policy=other.policy, knowledge=other.knowledge, refresh=other.refresh, follows=chosen)


def _chosen(suits: Suits | None, network: Network, trace: Trace) -> str:
    jobs = [job for job in trace.jobs if job.accelerators]
    if suits is None or trace.throughputs is None or not jobs:
        return ""
    models = {node.model for node in network.nodes if node.accelerators}
    known = [job for job in jobs if job.profile and job.work > 0]
    if 2 * sum(0 < job.min_ranks < max(job.max_ranks, job.ranks) for job in known) >= len(jobs):
        return suits.elastic
    unlike: dict[tuple[object, ...], bool] = {}
    count = 0
    for job in known:
        shape = job.profile, job.ranks, job.accelerator_types
        if shape not in unlike:
            unlike[shape] = _unlike(trace, job, models)
        count += unlike[shape]
    return suits.unlike if 2 * count >= len(jobs) else ""


def _unlike(trace: Trace, job: TraceJob, models: set[str]) -> bool:
    assert trace.throughputs is not None
    accepted = models & set(job.accelerator_types) if job.accelerator_types else models
    rates = [trace.throughputs.rate(job.profile, job.ranks, model) for model in accepted]
    return bool(rates) and max(rates) > LEAST_RATIO * min(rates)
