"""Whether what must move between domains can: found before a simulation begins, and not when a job is sent there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from meridian.errors import InvalidArgumentError
from simulation.model import Network, SimNode, Trace, TraceJob
from simulation.setting import Setting

_Size = tuple[int, str, float, int, frozenset[tuple[str, float]]]
"""Of a node: accelerators, their model, processors, bytes of memory, other resources."""


def check_reach(network: Network, trace: Trace, settings: Sequence[Setting]) -> None:
    """Every job's data lie in a domain of the network, from which a link leads to each domain that may be chosen for the job;
    domains that a gang may be spread over are linked both ways.

    Raises `InvalidArgumentError` with the job's place in its file, its name and the domains.
    """
    domains = {domain.domain_id: Counter(map(_size, domain.nodes)) for domain in network.domains}
    links = {(link.from_domain, link.to_domain) for link in network.links}
    pooled = not all(setting.isolated for setting in settings)
    known: dict[tuple[object, ...], list[str]] = {}
    for job in trace.jobs:
        data = job.data_bytes >= 1 and bool(job.data_domain)
        spread = pooled and job.cross_domain and job.ranks > 1 and job.traffic_bytes_per_s > 0
        if not data and not spread:
            continue
        if data and job.data_domain not in domains:
            raise InvalidArgumentError(
                f"{trace.place(job.job_id)}job {job.job_id}: data_domain: the network has no domain {job.data_domain!r}"
            )
        home = "" if pooled else job.home_domain
        # One rank of a gang that may be spread is enough to send it there.
        least = 1 if pooled and job.cross_domain else job.min_ranks or job.ranks
        kind = *_need(job), job.accelerators, job.accelerator_types, least, home
        places = known.get(kind)
        if places is None:
            places = known[kind] = [
                name for name, nodes in domains.items() if home in {"", name} and _ranks_in(nodes, job) >= least
            ]
        pairs = [(job.data_domain, place) for place in places if place != job.data_domain] if data else []
        pairs += [(one, other) for one in places for other in places if one != other] if spread else []
        for one, other in pairs:
            if (one, other) not in links:
                what = "its data lie in" if (one, data) == (job.data_domain, True) else "its ranks may be in"
                raise InvalidArgumentError(
                    f"{trace.place(job.job_id)}job {job.job_id}: {what} {one!r}, and no link of the network leads from there"
                    f" to {other!r}"
                )


def _size(node: SimNode) -> _Size:
    return node.accelerators, node.model, node.cpus, node.memory_bytes, frozenset(node.resources.items())


def _need(job: TraceJob) -> tuple[float, float, int, frozenset[tuple[str, float]]]:
    """What a rank holds: accelerators, processors, bytes of memory, other resources."""
    return job.accelerators * job.device_share, job.cpus, job.memory_bytes, frozenset(job.resources.items())


def _ranks_in(nodes: Counter[_Size], job: TraceJob) -> int:
    """How many ranks of the job the empty nodes of a domain hold by their amounts; never fewer than a scheduler finds."""
    devices, processors, memory, others = _need(job)
    found = 0
    for (accelerators, model, cpus, memory_bytes, resources), count in nodes.items():
        if accelerators < job.accelerators or (
            job.accelerators and job.accelerator_types and model not in job.accelerator_types
        ):
            continue
        there = dict(resources)
        needs = [(devices, accelerators), (processors, cpus), (memory, memory_bytes)]
        needs += [(amount, there.get(name, 0.0)) for name, amount in others]
        # A quotient of shares may miss by its rounding.
        found += count * min((math.floor(size / need + 1e-9) for need, size in needs if need), default=job.ranks)
    return found
