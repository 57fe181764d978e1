"""Between the contract of the two levels (scheduler.proto) and what an engine's own scheduler is told."""

from __future__ import annotations

import math
from collections.abc import Iterable

from agent.engines.base import RankPlacement
from agent.engines.own_scheduler import Constraints, DeviceKind, Held, Room, UnitName
from agent.placing.grant_book import Grant
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.scheduler.v1 import scheduler_pb2


def constraints_of(demand: scheduler_pb2.Demand, time_limit_s: float = 0.0) -> Constraints:
    """What a demand asks of this domain; ``time_limit_s`` 0: none was declared. What only concerns the choice of the domain
    (prices, data, security) has been looked at by who chose it."""
    return Constraints(
        ranks=demand.ranks,
        cpus=demand.cpus,
        memory_bytes=demand.memory_bytes,
        accelerators=demand.accelerators,
        accelerator_types=tuple(demand.accelerator_types),
        accelerator_milli=demand.device_milli or 1000,
        real_accelerators=demand.real_accelerators,
        resources=tuple(sorted(demand.resources.items())),
        topology=demand.topology,
        topology_required=demand.topology_required,
        time_limit_s=time_limit_s or math.inf,
        service_port=demand.service_port,
        labels=frozenset(demand.labels),
        avoid=frozenset(demand.avoid),
        excluded_nodes=frozenset(demand.excluded_nodes),
    )


def rank_messages(ranks: Iterable[RankPlacement], first_rank: int) -> list[run_pb2.AssignedRank]:
    """Ranks numbered from 0 as the shard numbers them."""
    return [
        run_pb2.AssignedRank(
            rank=first_rank + rank.rank,
            node_id=rank.node_id,
            local_rank=rank.local_rank,
            accelerator_indices=rank.accelerator_indices,
            accelerator_milli=rank.accelerator_milli,
        )
        for rank in ranks
    ]


def held_of(holding: scheduler_pb2.Holding) -> Held:
    """A holding as the scheduler takes it, with ranks numbered from 0."""
    first = min((rank.rank for rank in holding.ranks), default=0)
    ranks = tuple(
        RankPlacement(
            rank.rank - first,
            rank.node_id,
            rank.local_rank,
            tuple(rank.accelerator_indices),
            rank.accelerator_milli or 1000,
        )
        for rank in holding.ranks
    )
    return Held(constraints_of(holding.demand), ranks)


def unit_name(name: scheduler_pb2.GrantName) -> UnitName:
    """Unit and epoch."""
    return UnitName(name.job_id, name.unit_index, name.epoch)


def grant_name(name: UnitName) -> scheduler_pb2.GrantName:
    """Unit and epoch as the contract has them."""
    return scheduler_pb2.GrantName(job_id=name.job_id, unit_index=name.unit_index, epoch=name.epoch)


def why_not_granted(order: run_pb2.Assignment, grant: Grant | None) -> str:
    """Why a START is not carried out by a domain that gives its nodes away itself; empty: it holds what it names."""
    if grant is None or grant.name.epoch != order.epoch:
        return "the domain's own scheduler has not given nodes to this run"
    if _places(order.ranks) != _places(grant.holding.ranks):
        return "the order names other nodes than the domain's own scheduler gave"
    return ""


def _places(ranks: Iterable[run_pb2.AssignedRank]) -> set[tuple[int, str, tuple[int, ...]]]:
    return {(rank.rank, rank.node_id, tuple(rank.accelerator_indices)) for rank in ranks}


def summary_message(
    domain_id: str, room: Room, *, sequence: int, term: int, running: int, emulated: bool
) -> scheduler_pb2.DomainSummary:
    """What the domain has free; it tells no rooms of classes, only its scheduler knows what fits."""
    kinds: Iterable[DeviceKind] = room.total
    return scheduler_pb2.DomainSummary(
        domain_id=domain_id,
        sequence=sequence,
        term=term,
        devices=[
            scheduler_pb2.DeviceRoom(
                vendor=kind.vendor,
                model=kind.model,
                total=room.total[kind],
                nodes_by_free=room.nodes_by_free[kind],
                emulated=emulated,
            )
            for kind in kinds
        ],
        free_cpus=room.free_cpus,
        total_cpus=room.total_cpus,
        free_memory_bytes=room.free_memory_bytes,
        running=running,
        own_scheduler=True,
    )
