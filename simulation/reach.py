"""Whether what must move between domains can: found before a simulation begins, and not when a job is sent there."""

from __future__ import annotations

from collections.abc import Sequence

from meridian.errors import InvalidArgumentError
from simulation.model import Network, SimDomain, Trace, TraceJob
from simulation.setting import Setting


def check_reach(network: Network, trace: Trace, settings: Sequence[Setting]) -> None:
    """Every job's data lie in a domain of the network, from which a link leads to each domain that may be chosen for the job;
    domains that a gang may be spread over are linked both ways.

    Raises `InvalidArgumentError` with the job's name and the domains.
    """
    domains = {domain.domain_id: domain for domain in network.domains}
    links = {(link.from_domain, link.to_domain) for link in network.links}
    pooled = not all(setting.isolated for setting in settings)
    known: dict[tuple[object, ...], list[str]] = {}
    for job in trace.jobs:
        data = job.data_bytes >= 1 and bool(job.data_domain)
        spread = pooled and job.cross_domain and job.ranks > 1 and job.traffic_bytes_per_s > 0
        if not data and not spread:
            continue
        if data and job.data_domain not in domains:
            raise InvalidArgumentError(f"job {job.job_id}: data_domain: the network has no domain {job.data_domain!r}")
        home = "" if pooled else job.home_domain
        kind = job.accelerators, job.accelerator_types, home
        places = known.get(kind)
        if places is None:
            places = known[kind] = [name for name, item in domains.items() if home in {"", name} and _takes(item, job)]
        pairs = [(job.data_domain, place) for place in places if place != job.data_domain] if data else []
        pairs += [(one, other) for one in places for other in places if one != other] if spread else []
        for one, other in pairs:
            if (one, other) not in links:
                what = "its data lie in" if (one, data) == (job.data_domain, True) else "its ranks may be in"
                raise InvalidArgumentError(
                    f"job {job.job_id}: {what} {one!r}, and no link of the network leads from there to {other!r}"
                )


def _takes(domain: SimDomain, job: TraceJob) -> bool:
    """Whether a node of the domain has the accelerators that a rank of the job asks for."""
    return any(
        node.accelerators >= job.accelerators
        and (not job.accelerators or not job.accelerator_types or node.model in job.accelerator_types)
        for node in domain.nodes
    )
