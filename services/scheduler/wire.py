"""Between the contracts and the values of the core."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from meridian.contracts.common.v1 import types_pb2
from meridian.contracts.failover.v1 import failover_pb2
from meridian.contracts.graph.v1 import graph_pb2
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.resource.v1 import resource_pb2
from meridian.contracts.run.v1 import run_pb2
from meridian.hardware.parts import part_model
from services.scheduler.core import effects
from services.scheduler.core.declared_rates import profile_of
from services.scheduler.core.errors import MalformedJobError
from services.scheduler.core.fleet import Device, Domain, Link, Node, NodeState
from services.scheduler.core.lifecycle import RecoveryPlan
from services.scheduler.core.scaling import DEFAULT_METRIC, Scaling
from services.scheduler.core.state import (
    Checkpoint,
    Demand,
    FailureKind,
    JobKind,
    JobSpec,
    JobState,
    PlacedRank,
    UnitKey,
    WorkflowTask,
)

_KINDS = {
    job_pb2.JOB_KIND_TASK: JobKind.TASK,
    job_pb2.JOB_KIND_ARRAY: JobKind.ARRAY,
    job_pb2.JOB_KIND_GANG: JobKind.GANG,
    job_pb2.JOB_KIND_WORKFLOW: JobKind.WORKFLOW,
    job_pb2.JOB_KIND_SERVICE: JobKind.SERVICE,
}
_OUTCOMES = {
    JobState.SUCCEEDED: job_pb2.JOB_OUTCOME_SUCCEEDED,
    JobState.FAILED: job_pb2.JOB_OUTCOME_FAILED,
    JobState.CANCELLED: job_pb2.JOB_OUTCOME_CANCELLED,
}
_FAILURES: dict[int, FailureKind] = {
    run_pb2.RUN_FAILURE_KIND_PROGRAM: FailureKind.PROGRAM,
    run_pb2.RUN_FAILURE_KIND_NODE_LOST: FailureKind.NODE_LOST,
    run_pb2.RUN_FAILURE_KIND_TIME_LIMIT: FailureKind.TIME_LIMIT,
    run_pb2.RUN_FAILURE_KIND_OUT_OF_MEMORY: FailureKind.OUT_OF_MEMORY,
    run_pb2.RUN_FAILURE_KIND_STOPPED: FailureKind.STOPPED,
    run_pb2.RUN_FAILURE_KIND_REFUSED: FailureKind.REFUSED,
    run_pb2.RUN_FAILURE_KIND_NOT_STARTABLE: FailureKind.NOT_STARTABLE,
    run_pb2.RUN_FAILURE_KIND_AGENT_RESTARTED: FailureKind.AGENT_RESTARTED,
    run_pb2.RUN_FAILURE_KIND_LEASE_EXPIRED: FailureKind.LEASE_EXPIRED,
}
_NODE_STATES: dict[int, NodeState] = {
    graph_pb2.NODE_STATE_HEALTHY: NodeState.HEALTHY,
    graph_pb2.NODE_STATE_BUSY: NodeState.BUSY,
    graph_pb2.NODE_STATE_DEGRADED: NodeState.DEGRADED,
    graph_pb2.NODE_STATE_FAILING: NodeState.FAILING,
    graph_pb2.NODE_STATE_UNREACHABLE: NodeState.UNREACHABLE,
    graph_pb2.NODE_STATE_ASLEEP: NodeState.ASLEEP,
    graph_pb2.NODE_STATE_FAILED: NodeState.FAILED,
}


# More than any number of jobs asks for of a resource that they do not use up.
_NEVER_USED_UP = 1e12


def seconds(stamp: Timestamp, default: float) -> float:
    """Seconds since 1970; ``default`` when the stamp is not set."""
    return stamp.seconds + stamp.nanos / 1e9 if stamp.seconds or stamp.nanos else default


def timestamp(at_s: float) -> Timestamp:
    """The contracts' form of a time in seconds since 1970."""
    whole = int(at_s)
    return Timestamp(seconds=whole, nanos=int((at_s - whole) * 1e9))


# -- inbound -----------------------------------------------------------------------------------------------------------


def spec_from(message: job_pb2.JobSpec) -> JobSpec:
    """A job specification; MalformedJobError when it has no kind."""
    kind = _KINDS.get(message.kind)
    if kind is None:
        raise MalformedJobError("kind is missing or unknown")
    place = message.placement
    demand = Demand(
        ranks=1,
        domains=frozenset(place.domains),
        excluded_domains=frozenset(place.exclude_domains),
        min_security_level=place.min_security_level,
        real_accelerators=place.require_real_accelerators,
        cross_domain=message.allow_cross_domain,
        profile=profile_of((item.accelerator_type, item.ranks, item.rate) for item in message.rates),
    )
    return JobSpec(
        kind=kind,
        demand=_with_resources(demand, message.resources),
        name=message.name,
        command=tuple(message.command),
        working_dir=message.working_dir,
        env=dict(message.env),
        ranks=message.ranks,
        array_size=message.array_size,
        replicas=message.replicas,
        service_port=message.service_port,
        tasks=tuple(
            WorkflowTask(
                task.name,
                tuple(task.command),
                tuple(task.depends_on),
                task.ranks,
                _with_resources(demand, task.resources) if task.HasField("resources") else None,
            )
            for task in message.tasks
        ),
        max_restarts=message.max_restarts,
        priority=message.priority,
        max_run_time_s=message.max_run_time_s,
        min_ranks=message.min_ranks or (message.ranks if message.max_ranks else 0),
        max_ranks=message.max_ranks or (message.ranks if message.min_ranks else 0),
        steps=message.model.steps,
        deadline_s=seconds(message.deadline, 0.0),
        scaling=_scaling(message.scaling) if message.HasField("scaling") and kind is JobKind.SERVICE else None,
        least_milli=message.resources.min_accelerator_milli,
        most_milli=message.resources.max_accelerator_milli,
    )


def _scaling(message: job_pb2.ReplicaScaling) -> Scaling:
    given = {
        name: getattr(message, name) for name in ("tolerance", "down_after_s", "cooldown_s") if message.HasField(name)
    }
    return Scaling(
        message.min_replicas, message.max_replicas, message.target, message.metric or DEFAULT_METRIC, **given
    )


def _with_resources(demand: Demand, resources: types_pb2.Resources) -> Demand:
    # A rank that names neither cpus nor accelerators still runs on one cpu.
    implied = 1.0 if not resources.cpus and not resources.accelerators else resources.cpus
    return Demand(
        ranks=demand.ranks,
        cpus=implied,
        memory_bytes=resources.memory_bytes,
        accelerators=resources.accelerators,
        accelerator_types=tuple(sorted(resources.accelerator_types)),
        domains=demand.domains,
        excluded_domains=demand.excluded_domains,
        min_security_level=demand.min_security_level,
        real_accelerators=demand.real_accelerators,
        cross_domain=demand.cross_domain,
        device_milli=resources.accelerator_milli or 1000,
        resources=tuple(sorted(resources.user_resources.items())),
        profile=demand.profile,
    )


def failure_kind(kind: int) -> FailureKind:
    """The kind of a failure; one that is unknown counts as the program's."""
    return _FAILURES.get(kind, FailureKind.PROGRAM)


def plan_from(message: failover_pb2.RecoveryPlanned) -> RecoveryPlan:
    """A recovery plan."""
    checkpoint = Checkpoint(message.restore_from, message.restore_step) if message.restore_from else None
    return RecoveryPlan(
        UnitKey(message.job_id, message.unit_index),
        message.epoch,
        checkpoint,
        frozenset(message.exclude_node_ids),
        message.reason,
    )


def node_state(state: int) -> NodeState:
    """State of a node in the graph."""
    return _NODE_STATES.get(state, NodeState.UNKNOWN)


def node_from(message: graph_pb2.GraphNode, domain_id: str) -> Node:
    """A node of the graph, without its metrics."""
    inventory = message.inventory
    return Node(
        node_id=inventory.node_id,
        domain_id=domain_id,
        cpus=inventory.cpus,
        memory_bytes=inventory.memory_bytes,
        devices=tuple(device for item in inventory.accelerators for device in _devices(item)),
        address=inventory.address,
        compute_id=inventory.compute_id,
        state=node_state(message.state),
        state_reason=message.state_reason,
        certified=message.certified,
        resources=_user_resources(inventory.user_resources),
        wake_s=inventory.wake_s,
    )


def _devices(item: resource_pb2.Accelerator) -> Iterator[Device]:
    """An accelerator, or the parts that take work in its place; all have its identity."""
    if not item.partitioned:
        yield Device(item.index, item.vendor, item.model, item.emulated, item.compute_id)
        return
    for part in item.parts:
        if part.index:
            yield Device(part.index, item.vendor, part_model(item.model, part.profile), item.emulated, item.compute_id)


def _user_resources(amounts: Iterable[resource_pb2.ResourceAmount]) -> dict[str, float]:
    """What a node may give of resources that users define: of one that work does not use up, as much as is ever asked for."""
    return {
        item.name: item.value if item.consumable else (_NEVER_USED_UP if item.value > 0 else 0.0)
        for item in amounts
        if item.HasField("value")
    }


def domain_from(
    message: resource_pb2.DomainInventory, links: Sequence[resource_pb2.Link], before: Domain | None, *, full: bool
) -> Domain:
    """A domain's facts; links that a partial update does not name stay as they were."""
    by_target = {} if full or before is None else {link.to_domain_id: link for link in before.links}
    for link in links:
        by_target[link.to_domain_id] = Link(link.to_domain_id, link.rtt_s, link.bandwidth_bytes_per_s)
    price = message.price_per_accelerator_hour
    return Domain(
        domain_id=message.domain_id,
        security_level=message.security_level,
        price_micro_units=price.micro_units,
        currency=price.currency,
        carbon_g_per_kwh=message.carbon_g_per_kwh,
        links=tuple(by_target[name] for name in sorted(by_target)),
        region=message.region,
        own_scheduler=message.own_scheduler,
    )


# -- outbound ----------------------------------------------------------------------------------------------------------


def message_of(effect: effects.Effect, at_s: float) -> Message:
    """The event that tells of an effect."""
    match effect:
        case effects.Queued():
            return job_pb2.JobQueued(
                job_id=effect.job.job_id,
                tenant_id=effect.job.tenant_id,
                units=effect.job.spec.replicas if effect.job.spec.scaling is not None else len(effect.job.units),
                queued_at=timestamp(at_s),
                unit_index=effect.unit_index,
                reason=effect.reason,
            )
        case effects.Placed():
            return _placed(effect)
        case effects.Start():
            return _start(effect)
        case effects.Stop():
            run = effect.run
            return run_pb2.Assignment(
                domain_id=effect.domain_id,
                action=run_pb2.ASSIGNMENT_ACTION_STOP,
                run_id=run.run_id,
                job_id=run.key.job_id,
                unit_index=run.key.unit_index,
                epoch=run.epoch,
                tenant_id=run.tenant_id,
                reason=effect.reason,
                grace_s=effect.grace_s,
                assigned_at=timestamp(at_s),
            )
        case effects.Wake():
            return run_pb2.Assignment(
                domain_id=effect.domain_id,
                action=run_pb2.ASSIGNMENT_ACTION_WAKE,
                job_id=effect.key.job_id,
                unit_index=effect.key.unit_index,
                tenant_id=effect.job.tenant_id,
                node_ids=effect.node_ids,
                reason=effect.reason,
                assigned_at=timestamp(at_s),
            )
        case effects.Adjust():
            run = effect.run
            return run_pb2.Assignment(
                domain_id=run.ranks[0].domain_id,
                action=run_pb2.ASSIGNMENT_ACTION_ADJUST,
                run_id=run.run_id,
                job_id=run.key.job_id,
                unit_index=run.key.unit_index,
                epoch=run.epoch,
                tenant_id=run.tenant_id,
                ranks=_assigned(run.ranks),
                assigned_at=timestamp(at_s),
            )
        case effects.Sleep():
            return run_pb2.Assignment(
                domain_id=effect.domain_id,
                action=run_pb2.ASSIGNMENT_ACTION_SLEEP,
                node_ids=effect.node_ids,
                reason=effect.reason,
                assigned_at=timestamp(at_s),
            )
        case effects.Preempted():
            run = effect.run
            return job_pb2.JobPreempted(
                job_id=run.key.job_id,
                tenant_id=run.tenant_id,
                unit_index=run.key.unit_index,
                run_id=run.run_id,
                epoch=run.epoch,
                reason=effect.reason,
                preempted_at=timestamp(at_s),
            )
        case effects.Finished():
            return job_pb2.JobFinished(
                job_id=effect.job.job_id,
                tenant_id=effect.job.tenant_id,
                outcome=_OUTCOMES[effect.outcome],
                reason=effect.reason,
                restarts=effect.job.restarts,
                finished_at=timestamp(at_s),
            )


def share_of(rank: PlacedRank) -> int:
    """Thousandths of its devices that a rank holds; 0 when it has none."""
    return rank.device_milli if rank.devices else 0


def _placed(effect: effects.Placed) -> job_pb2.JobPlaced:
    run, checkpoint = effect.run, effect.checkpoint
    return job_pb2.JobPlaced(
        job_id=run.key.job_id,
        tenant_id=run.tenant_id,
        unit_index=run.key.unit_index,
        run_id=run.run_id,
        epoch=run.epoch,
        ranks=[
            job_pb2.PlacedRank(
                rank=rank.rank,
                domain_id=rank.domain_id,
                node_id=rank.node_id,
                accelerator_indices=rank.devices,
                accelerator_milli=share_of(rank),
            )
            for rank in run.ranks
        ],
        restore_from=checkpoint.path if checkpoint else "",
        restore_step=checkpoint.step if checkpoint else 0,
        decision_id=run.decision_id,
        policy_version=effect.policy_version,
        reason=effect.reason,
        placed_at=timestamp(run.assigned_at_s),
        accelerators=run.accelerators,
    )


def _assigned(ranks: Iterable[PlacedRank]) -> list[run_pb2.AssignedRank]:
    return [
        run_pb2.AssignedRank(
            rank=rank.rank,
            node_id=rank.node_id,
            local_rank=rank.local_rank,
            accelerator_indices=rank.devices,
            accelerator_milli=share_of(rank),
        )
        for rank in ranks
    ]


def _start(effect: effects.Start) -> run_pb2.Assignment:
    run, spec, checkpoint = effect.run, effect.job.spec, effect.checkpoint
    return run_pb2.Assignment(
        domain_id=effect.domain_id,
        action=run_pb2.ASSIGNMENT_ACTION_START,
        run_id=run.run_id,
        job_id=run.key.job_id,
        unit_index=run.key.unit_index,
        epoch=run.epoch,
        tenant_id=run.tenant_id,
        ranks=_assigned([rank for rank in run.ranks if rank.domain_id == effect.domain_id]),
        world_size=len(run.ranks),
        command=effect.unit.command,
        env=spec.env,
        working_dir=spec.working_dir,
        cpus=run.cpus,
        memory_bytes=run.memory_bytes,
        max_run_time_s=spec.max_run_time_s,
        restore_from=checkpoint.path if checkpoint else "",
        restore_step=checkpoint.step if checkpoint else 0,
        master_addr=run.master_addr,
        master_port=run.master_port,
        array_index=effect.unit.array_index,
        service_port=run.service_port,
        assigned_at=timestamp(run.assigned_at_s),
        unit_name=effect.unit.name,
    )
