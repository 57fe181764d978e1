"""Which rank is where, from where the pods of a Job were bound. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from agent.engines.base import RankPlacement
from agent.engines.kubernetes.words import Job, Pod
from agent.engines.own_scheduler import Constraints


class PlacesError(Exception):
    """Kubernetes gave what the run cannot use; the text says what."""


def all_bound(pods: Sequence[Pod], ranks: int) -> bool:
    """Whether each rank has a pod with a node."""
    return {pod.rank for pod in pods if pod.node} >= set(range(ranks))


def rank_places(
    constraints: Constraints,
    pods: Sequence[Pod],
    node_id_of: Callable[[str], str | None],
    in_use: Mapping[str, Collection[int]],
) -> tuple[RankPlacement, ...]:
    """Ranks by their pods' indices. Kubernetes counts accelerators and does not number them: a rank is told the first numbers of its
    node that are not ``in_use`` by other runs of this domain (by Meridian's node names).

    :raises PlacesError: a node that the domain does not declare, a rank without a node.
    """
    by_rank = {pod.rank: pod for pod in pods if pod.node}
    taken = {node_id: set(indices) for node_id, indices in in_use.items()}
    local: dict[str, int] = {}
    ranks: list[RankPlacement] = []
    for rank in range(constraints.ranks):
        pod = by_rank.get(rank)
        if pod is None:
            raise PlacesError(f"rank {rank} has no node")
        node_id = node_id_of(pod.node)
        if node_id is None:
            raise PlacesError(f"the domain does not declare Kubernetes' node {pod.node}")
        mine = taken.setdefault(node_id, set())
        indices: list[int] = []
        number = 0
        while len(indices) < constraints.accelerators:
            if number not in mine:
                indices.append(number)
            number += 1
        mine.update(indices)
        ranks.append(RankPlacement(rank, node_id, local.get(node_id, 0), tuple(indices), constraints.accelerator_milli))
        local[node_id] = local.get(node_id, 0) + 1
    return tuple(ranks)


def why_not_yet(job: Job | None, pods: Sequence[Pod], complaint: str) -> str:
    """Why not all ranks of a Job have nodes, in Kubernetes' own words as far as there are any."""
    if job is None:
        return "Kubernetes does not show the Job yet"
    if job.suspended:
        said = f": {job.suspension[1]}" if job.suspension[1] else ""
        return f"the Job is suspended and waits to be admitted{said}"
    reasons = list(dict.fromkeys(pod.unschedulable for pod in pods if pod.unschedulable))
    if reasons:
        return "; ".join(reasons[:3])
    if len(pods) < job.ranks:
        return complaint or f"{len(pods)} of {job.ranks} pods were made"
    return f"{sum(bool(pod.node) for pod in pods)} of {job.ranks} pods have a node"
