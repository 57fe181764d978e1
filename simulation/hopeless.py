"""Jobs that nodes fail too often for: said before the simulation, with what can be set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulation.model import Network, SimDomain, Trace, TraceJob
from simulation.setting import Setting
from simulation.world import DEFAULT_CHECKPOINT_S

_MOST_EXPONENT = 700.0


@dataclass(frozen=True, slots=True)
class Hopeless:
    """``job`` loses ``losses`` runs on average before it ends, at the least: on ``nodes`` nodes of ``domain``. ``count`` jobs lose more
    than the ``most`` that a policy allows."""

    job: TraceJob
    losses: float
    nodes: int
    domain: SimDomain
    count: int
    most: int

    def text(self, jobs: int) -> str:
        """For people, of so many jobs of the trace."""
        interval_s = self.job.checkpoint_interval_s
        kept_s = DEFAULT_CHECKPOINT_S if math.isnan(interval_s) else interval_s
        kept = f"checkpoints every {kept_s / 3600.0:g} h" if kept_s < self.job.duration_s else "no checkpoints"
        losses = f"{self.losses:,.0f}" if self.losses < 1e6 else "over a million"
        return (
            f"{self.count} of {jobs} jobs lose more than {self.most} runs to failures of nodes on average before they end, and are given up"
            f" then (unfinished), such as {self.job.job_id}: {self.job.duration_s / 3600.0:.3g} h with {kept} on {self.nodes} nodes of"
            f" domain {self.domain.domain_id}, each of which fails every {self.domain.mtbf_node_s / 3600.0:.3g} h, lose {losses}; what"
            " counts is checkpoint_interval_s of the job, mtbf_node_s of the domain, and restarts: max_recoveries of a policy file"
        )


def hopeless(network: Network, trace: Trace, settings: Sequence[Setting]) -> Hopeless | None:
    """The job that loses most runs, if on average it loses more than a policy of ``settings`` allows even in the domain that suits it
    best; None where there is none, or nodes never fail.

    A node fails at random with the mean ``mtbf_node_s``. A run must get from one checkpoint to the next (or the end) on n nodes without
    a failure of one: with k such pieces of t seconds and restarts of r seconds k (e^(n (t + r) / mtbf) - 1) runs are lost.
    """
    most = min(setting.policy.restarts.max_recoveries for setting in settings)
    if not any(domain.mtbf_node_s > 0 for domain in network.domains):
        return None
    known: dict[tuple[object, ...], list[tuple[int, SimDomain]]] = {}
    found: list[tuple[float, TraceJob, int, SimDomain]] = []
    for job in trace.jobs:
        shape = job.ranks, job.min_ranks, job.accelerators, job.cpus, job.accelerator_types
        places = known.get(shape)
        if places is None:
            places = known[shape] = [(n, domain) for domain in network.domains if (n := _nodes(job, domain))]
        each = [(_losses(job, _least_s(job, domain, trace), n, domain.mtbf_node_s), n, domain) for n, domain in places]
        losses, nodes, domain = min(each, key=lambda item: item[0], default=(0.0, 0, network.domains[0]))
        if losses > most:
            found.append((losses, job, nodes, domain))
    if not found:
        return None
    losses, job, nodes, domain = max(found, key=lambda item: item[0])
    return Hopeless(job, losses, nodes, domain, len(found), most)


def _least_s(job: TraceJob, domain: SimDomain, trace: Trace) -> float:
    """How long the job runs undisturbed at the least: on the best chip of the domain and with most ranks."""
    if trace.throughputs is None or not job.profile or job.work <= 0:
        return job.duration_s
    rates = [
        trace.throughputs.rate(job.profile, ranks, model)
        for model in {node.model for node in domain.nodes}
        for ranks in {job.ranks, job.max_ranks or job.ranks}
    ]
    return job.work / max(rates) if max(rates, default=0.0) > 0 else job.duration_s


def _losses(job: TraceJob, length_s: float, nodes: int, mtbf_s: float) -> float:
    if math.isnan(mtbf_s):
        return 0.0
    interval_s = DEFAULT_CHECKPOINT_S if math.isnan(job.checkpoint_interval_s) else job.checkpoint_interval_s
    piece_s = min(max(interval_s, 1.0), length_s)
    restart_s = 0.0 if math.isnan(job.restart_cost_s) else job.restart_cost_s
    if piece_s <= 0:
        return 0.0
    exponent = min(nodes * (piece_s + restart_s) / mtbf_s, _MOST_EXPONENT)
    return length_s / piece_s * math.expm1(exponent)


def _nodes(job: TraceJob, domain: SimDomain) -> int:
    """On how many nodes of the domain the job runs at the least, 0 where no node takes one of its ranks."""
    most = 0.0
    for node in domain.nodes:
        if job.accelerators and job.accelerator_types and node.model not in job.accelerator_types:
            continue
        needs = [(job.accelerators * job.device_share, node.accelerators), (job.cpus, node.cpus)]
        most = max(most, min((size / need for need, size in needs if need), default=float(job.ranks)))
    ranks = job.min_ranks or job.ranks
    return math.ceil(ranks / math.floor(most)) if most >= 1 else 0
