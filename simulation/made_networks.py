"""Networks for a simulation, made by a rule: equal domains, or domains in proportion to the demand of a trace."""

from __future__ import annotations

from simulation.domains import GIB, NetworkError, pairs_of
from simulation.model import Network, SimDomain, SimLink, SimNode, Trace, TraceJob


def _mesh(domains: list[SimDomain], bandwidth_bytes_per_s: float, rtt_s: float, price_per_gib: int) -> list[SimLink]:
    return [
        SimLink(one.domain_id, other.domain_id, bandwidth_bytes_per_s, rtt_s, price_per_gib)
        for one, other in pairs_of(domains)
    ]


def _check_at_least_one(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise NetworkError(f"{name} must be at least 1, not {value}")


def uniform(
    domains: int,
    nodes: int,
    accelerators: int,
    *,
    cpus: float = 64.0,
    memory_bytes: int = 512 * GIB,
    model: str = "v100",
    bandwidth_bytes_per_s: float = 1.25e9,
    rtt_s: float = 0.03,
    price_micro_units_per_gib: int = 0,
) -> Network:
    """So many equal domains ``domain-0``... of so many equal nodes each, every domain linked with every other.

    Raises `NetworkError`: fewer than one domain or node, a negative number.
    """
    _check_at_least_one(domains=domains, nodes=nodes)
    if accelerators < 0 or cpus < 0 or memory_bytes < 0 or bandwidth_bytes_per_s <= 0 or rtt_s < 0:
        raise NetworkError("sizes of a node and of its links cannot be negative")
    made = [
        _plain_domain(f"domain-{index}", nodes, accelerators, cpus, memory_bytes, model) for index in range(domains)
    ]
    return Network(made, _mesh(made, bandwidth_bytes_per_s, rtt_s, price_micro_units_per_gib), name="uniform")


def least_nodes(job: TraceJob, node_size: int, cpus: float, memory_bytes: int) -> int:
    """How many empty nodes of this size a job needs at least, if one of its ranks fits on a node."""
    needs = ((job.accelerators, node_size), (job.cpus, cpus), (job.memory_bytes, memory_bytes))
    per_node = min((int(size // need) for need, size in needs if need), default=job.ranks)
    return -(-job.ranks // max(per_node, 1))


def _plain_domain(
    domain_id: str, nodes: int, accelerators: int, cpus: float, memory_bytes: int, model: str
) -> SimDomain:
    chip = model if accelerators else ""
    made = [
        SimNode(f"{domain_id}-{index}", domain_id, cpus, memory_bytes, accelerators, chip) for index in range(nodes)
    ]
    return SimDomain(domain_id, made)


def philly_network(
    trace: Trace,
    accelerators: int = 176,
    node_size: int = 8,
    *,
    cpus: float = 64.0,
    memory_bytes: int = 512 * GIB,
    model: str = "v100",
    bandwidth_bytes_per_s: float = 1.25e9,
    rtt_s: float = 0.03,
    price_micro_units_per_gib: int = 21475,
) -> Network:
    """One domain per home domain of the trace, nodes in proportion to its demand (accelerator-seconds).

    1. Every domain gets the nodes that its greatest job needs, so that it could also stand alone.
    2. Each further node goes to the domain with the greatest demand per node had (largest quotient, as D'Hondt's method).
    3. Accelerators that are less than a node are one smaller node, with so much less of CPUs and memory.

    The default price is 0.02 USD per GB. Raises `NetworkError`: too few accelerators.
    """
    _check_at_least_one(accelerators=accelerators, node_size=node_size)
    demand: dict[str, float] = {}
    nodes: dict[str, int] = {}
    greatest = ""
    for job in trace.jobs:
        home = job.home_domain or "default"
        if job.accelerators > node_size:
            where = trace.place(job.job_id)
            raise NetworkError(
                f"{where}job {job.job_id} has ranks of {job.accelerators} accelerators: nodes have {node_size}"
            )
        demand[home] = demand.get(home, 0.0) + job.devices * job.duration_s
        needed = least_nodes(job, node_size, cpus, memory_bytes)
        if needed > max(nodes.values(), default=0):
            greatest = f"{trace.place(job.job_id)}job {job.job_id} needs {needed}"
        nodes[home] = max(nodes.get(home, 1), needed)
    total, rest = divmod(accelerators, node_size)
    if sum(nodes.values()) > total:
        raise NetworkError(
            f"the greatest jobs need {sum(nodes.values())} nodes, each domain for its own, but {accelerators} accelerators are "
            f"{total} of {node_size}; {greatest}"
        )

    def neediest() -> str:
        return max(sorted(demand), key=lambda home: demand[home] / (nodes[home] + 1))

    for _ in range(total - sum(nodes.values())):
        nodes[neediest()] += 1
    made = {home: _plain_domain(home, nodes[home], node_size, cpus, memory_bytes, model) for home in sorted(nodes)}
    if rest:
        home, part = neediest(), rest / node_size
        made[home].nodes.append(
            SimNode(f"{home}-{nodes[home]}", home, cpus * part, int(memory_bytes * part), rest, model)
        )
    domains = list(made.values())
    links = _mesh(domains, bandwidth_bytes_per_s, rtt_s, price_micro_units_per_gib)
    return Network(domains, links, name=f"{trace.name}-{accelerators}")
