"""Between the agent's own values and the messages of the contracts (`proto/meridian/run`, `proto/meridian/resource`)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from google.protobuf.message import Message

from agent.collectors.base import Reading, Source, Statistic
from agent.collectors.metrics import Metric
from agent.collectors.unknown import UnknownKind
from agent.engines.base import (
    USUAL_GRACE_S,
    AdjustRequest,
    Checkpoint,
    FailureKind,
    LaunchRequest,
    NodeState,
    NodeStatus,
    Progress,
    RankExited,
    RankPlacement,
    RunEvent,
    RunFailed,
    RunFinished,
    RunLimits,
    RunRefused,
    RunStarted,
    StopRequest,
)
from agent.parts import Divided, Part
from agent.probing.estimates import LinkMeasurement
from agent.settings import POWER_STATE_LABEL, AgentSettings, Domain, Link
from agent.user_resources import Amount
from meridian.contracts.common.v1 import types_pb2
from meridian.contracts.resource.v1 import resource_pb2
from meridian.contracts.run.v1 import run_pb2
from meridian.hardware.parts import compute_share

_FAILURE_KINDS = {kind: f"RUN_FAILURE_KIND_{kind.name}" for kind in FailureKind}
_SOURCES = {source: f"READING_SOURCE_{source.name}" for source in Source}
_STATISTICS = {item: f"READING_STATISTIC_{item.name}" for item in Statistic}
_UNKNOWN_KINDS = {kind: f"UNKNOWN_KIND_{kind.name}" for kind in UnknownKind}
_NODE_STATES = {
    NodeState.STARTING: resource_pb2.NODE_PROCESS_STATE_UNSPECIFIED,
    NodeState.RUNNING: resource_pb2.NODE_PROCESS_STATE_RUNNING,
    NodeState.EXITED: resource_pb2.NODE_PROCESS_STATE_EXITED,
}

MeasuredLink = tuple[LinkMeasurement, datetime]
"""What probes found of a link, and when."""

ComputeIds = Mapping[tuple[str, int | None], str]
"""Compute id by node and accelerator index (None: the node itself)."""


def launch_request(order: run_pb2.Assignment, checkpoints: Path) -> LaunchRequest:
    """A START as an engine takes it; checkpoints of a unit lie below ``checkpoints``.

    :raises InvalidArgumentError: the order cannot be carried out.
    """
    return LaunchRequest(
        run_id=order.run_id,
        job_id=order.job_id,
        unit_index=order.unit_index,
        epoch=order.epoch,
        tenant=order.tenant_id,
        ranks=_placements(order),
        world_size=order.world_size or len(order.ranks),
        command=tuple(order.command),
        env=dict(order.env),
        working_dir=order.working_dir,
        limits=RunLimits(order.cpus, order.memory_bytes, order.max_run_time_s),
        checkpoint_dir=str(checkpoints / order.job_id / str(order.unit_index)),
        restore_from=order.restore_from,
        restore_step=order.restore_step,
        master_addr=order.master_addr or "127.0.0.1",
        master_port=order.master_port,
        array_index=order.array_index if order.HasField("array_index") else None,
        service_port=order.service_port,
    )


def _placements(order: run_pb2.Assignment) -> tuple[RankPlacement, ...]:
    return tuple(
        RankPlacement(
            item.rank,
            item.node_id,
            item.local_rank,
            tuple(item.accelerator_indices),
            item.accelerator_milli or 1000,
        )
        for item in order.ranks
    )


def stop_request(order: run_pb2.Assignment) -> StopRequest:
    """A STOP as an engine takes it; one whose grace is no time is carried out with the usual one."""
    reason = order.reason or "stop was ordered"
    grace_s = order.grace_s if 0 <= order.grace_s < math.inf else USUAL_GRACE_S
    return StopRequest(order.run_id, order.job_id, order.unit_index, order.epoch, grace_s, reason)


def adjust_request(order: run_pb2.Assignment) -> AdjustRequest:
    """An ADJUST as an engine takes it."""
    return AdjustRequest(order.run_id, order.epoch, _placements(order))


def run_event(event: RunEvent, domain_id: str) -> Message | None:
    """The event as its contract, None for one that only concerns this domain."""
    message = _run_event(event)
    if message is not None:
        message.run_id = event.run_id
        message.job_id = event.job_id
        message.unit_index = event.unit_index
        message.epoch = event.epoch
        message.domain_id = domain_id
        message.at.FromDatetime(event.at)
    return message


MOST_TEXT_CHARACTERS = 2000
"""Of each text of a report that is cut."""


def cut_to_size(message: Message) -> bool:
    """Leave out of a report of a run what can make it larger than its topic takes; False when it says nothing without that."""
    if isinstance(message, run_pb2.RunStarted):
        message.ClearField("node_ids")
    elif isinstance(message, run_pb2.RunFailed):
        if len(message.reason) > MOST_TEXT_CHARACTERS:
            cut = f"... (cut, it had {len(message.reason)} characters)"
            message.reason = message.reason[:MOST_TEXT_CHARACTERS] + cut
        message.log_tail = message.log_tail[-MOST_TEXT_CHARACTERS:]
    else:
        return False
    return True


_RunMessage = (
    run_pb2.RunStarted | run_pb2.RunProgress | run_pb2.RunCheckpointed | run_pb2.RunFinished | run_pb2.RunFailed
)


def _run_event(event: RunEvent) -> _RunMessage | None:
    match event:
        case RunStarted():
            return run_pb2.RunStarted(node_ids=event.node_ids)
        case Progress():
            return run_pb2.RunProgress(step=event.step, total_steps=event.total_steps or 0, metrics=event.metrics)
        case Checkpoint():
            return run_pb2.RunCheckpointed(step=event.step, path=event.path, size_bytes=event.size_bytes or 0)
        case RunFinished():
            return run_pb2.RunFinished()
        case RunFailed():
            return run_pb2.RunFailed(
                kind=_FAILURE_KINDS[event.kind],
                reason=event.reason,
                rank=event.rank,
                node_id=event.node_id,
                exit_code=event.exit_code,
                signal=event.signal,
                log_tail=event.log_tail,
            )
        case RunRefused():
            return run_pb2.RunFailed(kind=run_pb2.RUN_FAILURE_KIND_REFUSED, reason=event.reason)
        case RankExited():
            return None
        case _:
            raise TypeError(f"no contract for {type(event).__name__}")


def node_beat(status: NodeStatus) -> resource_pb2.NodeBeat:
    """One line of a heartbeat."""
    return resource_pb2.NodeBeat(
        node_id=status.node_id,
        incarnation=status.incarnation,
        age_s=status.last_beat_age_s,
        state=_NODE_STATES[status.state],
        run_ids=status.run_ids,
    )


def reading(item: Reading) -> resource_pb2.Reading:
    """A reading as its contract."""
    message = resource_pb2.Reading(
        node_id=item.node_id,
        accelerator_index=item.accelerator_index,
        metric=item.metric,
        value=item.value,
        unit=item.unit,
        source=_SOURCES[item.source],
        statistic=_STATISTICS[item.statistic],
        reason=item.reason,
        unknown_kind=_UNKNOWN_KINDS[item.kind] if item.kind is not None else None,
    )
    if item.partition:
        message.part.id, message.part.profile = item.partition, item.profile
    message.observed_at.FromDatetime(item.observed_at)
    return message


def add_amounts(inventory: resource_pb2.DomainInventory, amounts: Mapping[str, Iterable[Amount]]) -> None:
    """Say in an inventory what its nodes have of user-defined resources."""
    for node in inventory.nodes:
        for amount in amounts.get(node.node_id, ()):
            node.user_resources.add(
                name=amount.resource.name,
                value=amount.value,
                consumable=amount.resource.consumable,
                shareable=amount.resource.shareable,
                dynamic=amount.resource.dynamic,
                attributes=amount.attributes,
                unknown_kind=_UNKNOWN_KINDS[amount.kind] if amount.kind is not None else None,
                reason=amount.reason,
            )


def inventory(
    settings: AgentSettings,
    compute_ids: ComputeIds,
    agent_url: str,
    asleep: Collection[str] = (),
    links: Mapping[str, MeasuredLink] | None = None,
    divided: Divided | None = None,
) -> resource_pb2.DomainInventory:
    """The domain as declared, with the compute ids it was given, and the power states of the nodes that the agent can wake.

    ``links``: what probes found of the way to other domains; it stands before what is declared. ``divided``: accelerators of
    which the parts take work, and not the whole.
    """
    domain = settings.domain
    return resource_pb2.DomainInventory(
        domain_id=domain.domain_id,
        name=domain.name,
        region=domain.region,
        owner=domain.owner,
        emulated=domain.emulated,
        security_level=domain.security_level,
        price_per_accelerator_hour=types_pb2.Money(
            micro_units=domain.price_micro_per_accelerator_hour, currency=domain.currency
        ),
        carbon_g_per_kwh=domain.carbon_g_per_kwh,
        nodes=_nodes(domain, compute_ids, asleep, divided or {}),
        links=[_link(domain, link, (links or {}).get(link.to_domain_id)) for link in domain.links],
        agent_url=agent_url,
        own_scheduler=domain.own_scheduler is not None,
    )


def _link(domain: Domain, link: Link, measured: MeasuredLink | None) -> resource_pb2.Link:
    message = resource_pb2.Link(
        from_domain_id=domain.domain_id,
        to_domain_id=link.to_domain_id,
        rtt_s=link.rtt_s,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
        price_per_gb=types_pb2.Money(micro_units=link.price_micro_per_gb, currency=link.currency),
        emulated=domain.emulated,
        loss=link.loss,
    )
    if measured is not None:
        found, at = measured
        message.loss = found.loss
        if found.rtt_s is not None:
            message.rtt_s = found.rtt_s
        if found.bandwidth_bytes_per_s is not None:
            message.bandwidth_bytes_per_s = found.bandwidth_bytes_per_s
        message.measured_at.FromDatetime(at)
    return message


def _nodes(
    domain: Domain, compute_ids: ComputeIds, asleep: Collection[str], divided: Divided
) -> Iterable[resource_pb2.NodeInventory]:
    can_wake = domain.can_sleep
    for node in domain.nodes:
        power = {POWER_STATE_LABEL: "asleep" if node.node_id in asleep else "awake"} if node.node_id in can_wake else {}
        message = resource_pb2.NodeInventory(
            node_id=node.node_id,
            compute_id=compute_ids.get((node.node_id, None), ""),
            cpus=node.cpus,
            memory_bytes=node.memory_bytes,
            labels={**node.labels, **power},
            site=node.site,
            address=node.address,
            wake_s=node.wake_s,
        )
        for group in node.accelerators:
            for number in range(group.count):
                index = len(message.accelerators)
                parts = divided.get((node.node_id, index))
                message.accelerators.add(
                    index=index,
                    compute_id=compute_ids.get((node.node_id, index), ""),
                    vendor=group.vendor,
                    model=group.model,
                    memory_bytes=group.memory_bytes,
                    peak_flops=group.peak_flops,
                    emulated=domain.emulated,
                    aliases={"uuid": group.uuids[number]} if number < len(group.uuids) else {},
                    partitioned=parts is not None,
                    parts=[_part(part, group.model, group.peak_flops) for part in parts or ()],
                )
        yield message


def _part(part: Part, model: str, peak_flops: float) -> resource_pb2.AcceleratorPart:
    return resource_pb2.AcceleratorPart(
        id=part.id,
        profile=part.profile,
        memory_bytes=part.memory_bytes,
        index=part.index,
        peak_flops=peak_flops * (compute_share(model, part.profile) or 0.0),
    )


def resource_report(
    *,
    domain: resource_pb2.DomainInventory,
    agent_id: str,
    incarnation: int,
    readings: Iterable[Reading],
    now: datetime,
) -> resource_pb2.ResourceReported:
    """An inventory with readings."""
    message = resource_pb2.ResourceReported(
        domain_id=domain.domain_id,
        agent_id=agent_id,
        incarnation=incarnation,
        inventory=domain,
        readings=[reading(item) for item in readings],
    )
    _size_parts(message.readings)
    message.reported_at.FromDatetime(now)
    return message


def _size_parts(readings: Sequence[resource_pb2.Reading]) -> None:
    """The memory that was read of each part stands with all its readings."""
    parts = [item for item in readings if item.HasField("part")]
    limits = {
        (item.node_id, item.accelerator_index, item.part.id): int(item.value)
        for item in parts
        if item.metric == Metric.GPU_MEMORY_LIMIT and item.HasField("value")
    }
    for item in parts:
        item.part.memory_bytes = limits.get((item.node_id, item.accelerator_index, item.part.id), 0)


def heartbeat(
    *,
    settings: AgentSettings,
    agent_id: str,
    incarnation: int,
    sequence: int,
    nodes: Iterable[NodeStatus],
    now: datetime,
) -> resource_pb2.Heartbeat:
    """A sign of life of the agent with one of each node."""
    message = resource_pb2.Heartbeat(
        domain_id=settings.domain.domain_id,
        agent_id=agent_id,
        incarnation=incarnation,
        sequence=sequence,
        nodes=[node_beat(status) for status in nodes],
        interval_s=1 / settings.heartbeat_hz,
        lease_s=settings.lease_s,
    )
    message.sent_at.FromDatetime(now)
    return message
