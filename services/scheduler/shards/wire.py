"""Between scheduler.proto and the values of core/apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.scheduler.v1 import scheduler_pb2
from services.scheduler.core.apart.messages import Asleep, GrantName, Holding, Reply, Request, Session, Wanted
from services.scheduler.core.apart.resting import Woken
from services.scheduler.core.apart.shares import DomainShare, ShardShares
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.table import DeviceModel
from services.scheduler.core.two_level import ANY, DomainSummary
from services.scheduler.wire import seconds, timestamp

Rooms = Mapping[int, Mapping[DeviceModel | None, int]]


# -- requests ----------------------------------------------------------------------------------------------------------


def request_message(request: Request, at_s: float) -> scheduler_pb2.PlacementRequest:
    """The event of a request."""
    return scheduler_pb2.PlacementRequest(
        domain_id=request.domain_id,
        shard=request.shard,
        term=request.session.term,
        session=request.session.number,
        round=request.round,
        begins=request.begins,
        complete=request.holdings is not None,
        holdings=[
            scheduler_pb2.Holding(
                name=_name(item.name),
                tenant_id=item.tenant_id,
                demand=demand_message(item.demand),
                ranks=rank_messages(item.ranks),
                since=timestamp(item.since_s),
                waking=item.waking,
                least_milli=item.least_milli,
                asked_milli=item.asked_milli,
            )
            for item in request.holdings or ()
        ],
        released=[_name(name) for name in request.released],
        classes=[
            scheduler_pb2.DemandClass(number=number, demand=demand_message(demand))
            for number, demand in request.classes
        ],
        dropped_classes=request.dropped_classes,
        wanted=[
            scheduler_pb2.WantedUnit(
                job_id=item.name.key.job_id,
                unit_index=item.name.key.unit_index,
                epoch=item.name.epoch,
                tenant_id=item.tenant_id,
                class_number=item.class_number,
                demand=None if item.demand is None else demand_message(item.demand),
                first_rank=item.first_rank,
                whole=item.whole,
                time_limit_s=item.time_limit_s if math.isfinite(item.time_limit_s) else 0.0,
                wake=item.wake,
                least_milli=item.least_milli,
            )
            for item in request.wanted
        ],
        waiting=request.waiting,
        asked_at=timestamp(at_s),
        own_scheduler=request.own_scheduler,
        waiting_classes=request.waiting_classes,
        parts=_part_messages(request.parts),
    )


def request_from(message: scheduler_pb2.PlacementRequest) -> Request:
    """A request."""
    name = message.domain_id
    holdings = tuple(
        Holding(
            _name_from(item.name),
            item.tenant_id,
            demand_from(item.demand),
            ranks_from(item.ranks, name),
            seconds(item.since, 0.0),
            item.waking,
            item.least_milli,
            item.asked_milli,
        )
        for item in message.holdings
    )
    return Request(
        name,
        message.shard,
        Session(message.term, message.session),
        message.round,
        message.begins,
        holdings if message.complete else None,
        tuple(_name_from(item) for item in message.released),
        tuple((item.number, demand_from(item.demand)) for item in message.classes),
        tuple(message.dropped_classes),
        tuple(
            Wanted(
                GrantName(UnitKey(item.job_id, item.unit_index), item.epoch),
                item.tenant_id,
                item.class_number,
                demand_from(item.demand) if item.HasField("demand") else None,
                item.first_rank,
                item.whole,
                item.time_limit_s or math.inf,
                item.wake,
                item.least_milli,
            )
            for item in message.wanted
        ),
        message.waiting,
        message.own_scheduler,
        tuple(message.waiting_classes),
        tuple((_name_from(item.name), item.accelerator_milli) for item in message.parts),
    )


def woken_message(woken: Woken, at_s: float) -> run_pb2.Assignment:
    """What an agent is told about nodes that a grant waits for."""
    return run_pb2.Assignment(
        domain_id=woken.domain_id,
        action=run_pb2.ASSIGNMENT_ACTION_WAKE,
        job_id=woken.name.key.job_id,
        unit_index=woken.name.key.unit_index,
        tenant_id=woken.tenant_id,
        node_ids=woken.node_ids,
        reason=woken.reason,
        assigned_at=timestamp(at_s),
    )


# -- answers -----------------------------------------------------------------------------------------------------------


def answer_message(reply: Reply, at_s: float) -> scheduler_pb2.PlacementAnswer:
    """The event of an answer."""
    return scheduler_pb2.PlacementAnswer(
        shard=reply.shard,
        domain_id=reply.domain_id,
        term=reply.session.term,
        session=reply.session.number,
        round=reply.round,
        domain_term=reply.domain_term,
        placed=[
            scheduler_pb2.PlacedUnit(
                name=_name(name),
                ranks=rank_messages(ranks),
                explanation=reply.explanations.get(name, ""),
                wake_s=reply.wake_s.get(name, 0.0),
            )
            for name, ranks in reply.placed
        ],
        refused=[
            scheduler_pb2.RefusedUnit(name=_name(name), reason=reason, explanation=reply.explanations.get(name, ""))
            for name, reason in reply.refused
        ],
        summary=summary_message(reply.summary, reply.domain_term, at_s, reply.rooms),
        begin_again=reply.begin_again,
        asleep=_asleep_message(reply, at_s),
        parts=_part_messages(reply.parts),
    )


def answer_from(message: scheduler_pb2.PlacementAnswer) -> Reply:
    """An answer."""
    return Reply(
        message.shard,
        message.domain_id,
        Session(message.term, message.session),
        message.round,
        message.domain_term,
        tuple((_name_from(item.name), ranks_from(item.ranks, message.domain_id)) for item in message.placed),
        tuple((_name_from(item.name), item.reason) for item in message.refused),
        summary_from(message.summary),
        _rooms_from(message.summary.rooms),
        message.begin_again,
        {
            **{_name_from(item.name): item.explanation for item in message.placed if item.explanation},
            **{_name_from(item.name): item.explanation for item in message.refused if item.explanation},
        },
        {_name_from(item.name): item.wake_s for item in message.placed if item.wake_s},
        Asleep(summary_from(message.asleep), _rooms_from(message.asleep.rooms)) if message.HasField("asleep") else None,
        tuple((_name_from(item.name), item.accelerator_milli) for item in message.parts),
    )


def _part_messages(parts: Iterable[tuple[GrantName, int]]) -> list[scheduler_pb2.Part]:
    return [scheduler_pb2.Part(name=_name(name), accelerator_milli=milli) for name, milli in parts]


def _asleep_message(reply: Reply, at_s: float) -> scheduler_pb2.DomainSummary | None:
    asleep = reply.asleep
    return None if asleep is None else summary_message(asleep.summary, reply.domain_term, at_s, asleep.rooms)


def summary_message(
    summary: DomainSummary, term: int, at_s: float, rooms: Rooms | None = None
) -> scheduler_pb2.DomainSummary:
    """A domain's summary, with the rooms of a shard's classes."""
    return scheduler_pb2.DomainSummary(
        domain_id=summary.domain_id,
        sequence=summary.sequence,
        term=term,
        rooms=[
            scheduler_pb2.ClassRoom(
                class_number=number,
                vendor=model.vendor if model else "",
                model=model.model if model else "",
                emulated=bool(model and model.emulated),
                any_model=model is ANY,
                ranks=ranks,
            )
            for number, room in (rooms or {}).items()
            for model, ranks in room.items()
        ],
        devices=[
            scheduler_pb2.DeviceRoom(
                vendor=model.vendor,
                model=model.model,
                emulated=model.emulated,
                total=total,
                nodes_by_free=summary.blocks.get(model, ()),
            )
            for model, total in summary.total_devices.items()
        ],
        free_cpus=summary.free_cpus,
        total_cpus=summary.total_cpus,
        free_memory_bytes=summary.free_memory_bytes,
        running=summary.running,
        own_scheduler=summary.own_scheduler,
        at=timestamp(at_s),
    )


def summary_from(message: scheduler_pb2.DomainSummary) -> DomainSummary:
    """A summary without rooms of classes, which stand in an answer by the shard's numbers."""
    models = {DeviceModel(item.vendor, item.model, item.emulated): item for item in message.devices}
    blocks = {model: tuple(item.nodes_by_free) for model, item in models.items()}
    return DomainSummary(
        message.domain_id,
        message.sequence,
        {},
        blocks,
        {model: item.total for model, item in models.items()},
        message.free_cpus,
        message.total_cpus,
        message.free_memory_bytes,
        max((size for counts in blocks.values() for size, count in enumerate(counts) if count), default=0),
        message.running,
        own_scheduler=message.own_scheduler,
    )


def _rooms_from(messages: Iterable[scheduler_pb2.ClassRoom]) -> Rooms:
    rooms: dict[int, dict[DeviceModel | None, int]] = {}
    for item in messages:
        model = ANY if item.any_model else DeviceModel(item.vendor, item.model, item.emulated)
        rooms.setdefault(item.class_number, {})[model] = item.ranks
    return rooms


# -- shares ------------------------------------------------------------------------------------------------------------


def shares_message(shares: ShardShares) -> scheduler_pb2.ShardShares:
    """The event of what domains give to a shard's tenants."""
    return scheduler_pb2.ShardShares(
        shard=shares.shard,
        window_s=shares.window_s,
        window=shares.window,
        at=timestamp(shares.at_s),
        domains=[
            scheduler_pb2.DomainShare(
                domain_id=name,
                given_accelerator_s=item.given,
                held_accelerators=item.held,
                projected_accelerator_s=item.projected,
                following_accelerator_s=item.following,
            )
            for name, item in shares.domains.items()
        ],
    )


def shares_from(message: scheduler_pb2.ShardShares) -> ShardShares:
    """What a shard told."""
    domains = {
        item.domain_id: DomainShare(
            item.given_accelerator_s,
            item.held_accelerators,
            item.projected_accelerator_s,
            item.following_accelerator_s,
        )
        for item in message.domains
    }
    return ShardShares(message.shard, seconds(message.at, 0.0), message.window_s, message.window, domains)


# -- parts -------------------------------------------------------------------------------------------------------------


def demand_message(demand: Demand) -> scheduler_pb2.Demand:
    """A demand as the contracts have it."""
    return scheduler_pb2.Demand(
        ranks=demand.ranks,
        cpus=demand.cpus,
        memory_bytes=demand.memory_bytes,
        accelerators=demand.accelerators,
        accelerator_types=demand.accelerator_types,
        domains=sorted(demand.domains),
        excluded_domains=sorted(demand.excluded_domains),
        min_security_level=demand.min_security_level,
        real_accelerators=demand.real_accelerators,
        cross_domain=demand.cross_domain,
        service_port=demand.service_port,
        excluded_nodes=sorted(demand.excluded_nodes),
        checkpoint_domain=demand.checkpoint_domain,
        checkpoint_bytes=demand.checkpoint_bytes,
        device_milli=demand.device_milli,
        resources=dict(demand.resources),
        topology=demand.topology,
        topology_required=demand.topology_required,
        labels=sorted(demand.labels),
        avoid=sorted(demand.avoid),
        profile=demand.profile,
        data_bytes=dict(demand.data),
        traffic_bytes_per_s=demand.traffic_bytes_per_s,
    )


def demand_from(message: scheduler_pb2.Demand) -> Demand:
    """A demand; built anew, as its hash is good for one process only."""
    return Demand(
        ranks=message.ranks,
        cpus=message.cpus,
        memory_bytes=message.memory_bytes,
        accelerators=message.accelerators,
        accelerator_types=tuple(message.accelerator_types),
        domains=frozenset(message.domains),
        excluded_domains=frozenset(message.excluded_domains),
        min_security_level=message.min_security_level,
        real_accelerators=message.real_accelerators,
        cross_domain=message.cross_domain,
        service_port=message.service_port,
        excluded_nodes=frozenset(message.excluded_nodes),
        checkpoint_domain=message.checkpoint_domain,
        checkpoint_bytes=message.checkpoint_bytes,
        device_milli=message.device_milli or 1000,
        resources=tuple(sorted(message.resources.items())),
        topology=message.topology,
        topology_required=message.topology_required,
        labels=frozenset(message.labels),
        avoid=frozenset(message.avoid),
        profile=message.profile,
        data=tuple(sorted(message.data_bytes.items())),
        traffic_bytes_per_s=message.traffic_bytes_per_s,
    )


def rank_messages(ranks: Iterable[PlacedRank]) -> list[run_pb2.AssignedRank]:
    """Placed ranks of one domain."""
    return [
        run_pb2.AssignedRank(
            rank=rank.rank,
            node_id=rank.node_id,
            local_rank=rank.local_rank,
            accelerator_indices=rank.devices,
            accelerator_milli=rank.device_milli,
        )
        for rank in ranks
    ]


def ranks_from(messages: Iterable[run_pb2.AssignedRank], domain_id: str) -> tuple[PlacedRank, ...]:
    """Placed ranks of a domain."""
    return tuple(
        PlacedRank(
            item.rank,
            domain_id,
            item.node_id,
            item.local_rank,
            tuple(item.accelerator_indices),
            item.accelerator_milli or 1000,
        )
        for item in messages
    )


def _name(name: GrantName) -> scheduler_pb2.GrantName:
    return scheduler_pb2.GrantName(job_id=name.key.job_id, unit_index=name.key.unit_index, epoch=name.epoch)


def _name_from(message: scheduler_pb2.GrantName) -> GrantName:
    return GrantName(UnitKey(message.job_id, message.unit_index), message.epoch)
