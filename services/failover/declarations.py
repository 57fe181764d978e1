"""What follows from a change of state: the incident, the events and the plans, all in one transaction.

A declaration and the recovery plans of the runs it takes with it are committed together or not at all, so a crash at
any moment loses none: what was not committed is seen again by the next detector.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import sqlalchemy as sa

from meridian.contracts.failover.v1 import failover_pb2 as pb
from meridian.ids import NewId
from meridian.outbox import Transaction
from services.failover.beliefs import DomainState, Evidence, NodeState
from services.failover.metrics import FailoverMetrics
from services.failover.recovery import Cause, LostRun, Plan, plan_recoveries
from services.failover.run_store import RunStore
from services.failover.store import Store
from services.failover.transitions import (
    DomainAppeared,
    DomainForgotten,
    DomainLeaseChanged,
    DomainLeaseRanOut,
    DomainReturned,
    DomainWentSilent,
    NodeAppeared,
    NodeBecameSuspect,
    NodeDied,
    NodeForgotten,
    NodeReturned,
    Transition,
)

# A program that failed this long before its node was last heard, or later, failed with the node.
_COLLATERAL = timedelta(seconds=5)

_REASONS = {
    Evidence.SILENT: "no beat from the node",
    Evidence.EXITED: "the node's process has exited",
    Evidence.RESTARTED: "the node was restarted; what ran on it is gone",
    Evidence.AGENT_RESTARTED: "the node was restarted with its agent; what ran on it is gone",
    Evidence.NOT_LISTED: "the agent does not name the node any more",
}


@dataclass(frozen=True, slots=True)
class TimeBase:
    """Relates the detector's clock to UTC at one moment."""

    now: datetime
    now_s: float

    def at(self, at_s: float) -> datetime:
        """The UTC time of a time on the detector's clock."""
        return self.now - timedelta(seconds=self.now_s - at_s)


async def publish_plans(
    transaction: Transaction,
    lost: Sequence[LostRun],
    *,
    incident_id: str,
    cause: Cause,
    reason: str,
    at: datetime,
    last_seen_at: datetime | None,
    metrics: FailoverMetrics,
    unusable: Iterable[str] = (),
) -> list[Plan]:
    """Plan the lost runs that have no plan yet, keep the plans and publish them."""
    if not lost:
        return []
    store, runs = Store(transaction.connection), RunStore(transaction.connection)
    run_ids = [run.run_id for run in lost]
    plans = plan_recoveries(
        lost,
        await runs.newest_checkpoints(run.unit for run in lost),
        await store.unusable_nodes() | set(unusable),
        await runs.planned(run_ids),
    )
    new = await runs.claim_plans(plans, incident_id, cause, at, last_seen_at)
    for plan in new:
        message = pb.RecoveryPlanned(
            domain_id=plan.run.domain_id,
            incident_id=incident_id,
            job_id=plan.run.unit.job_id,
            unit_index=plan.run.unit.unit_index,
            run_id=plan.run.run_id,
            epoch=plan.run.epoch,
            restore_from=plan.restore_from,
            restore_step=plan.restore_step,
            exclude_node_ids=plan.exclude_node_ids,
            reason=reason,
        )
        message.at.FromDatetime(at)
        transaction.publish(message)
    if new:
        await store.advance_incident(
            incident_id, at, "recovery_planned", ", ".join(sorted(plan.run.run_id for plan in new))
        )
        transaction.on_commit(lambda: metrics.planned.labels(cause).inc(len(new)))
    return new


class Declarations:
    """Carries out transitions of the detector, in order, inside one transaction.

    A node that is suspected again within ``flap_window_s`` of a suspicion that was not confirmed flaps: its suspicions are one
    incident, opened again each time.
    """

    def __init__(
        self,
        transaction: Transaction,
        times: TimeBase,
        new_id: NewId,
        metrics: FailoverMetrics,
        *,
        flap_window_s: float,
    ) -> None:
        self._transaction = transaction
        self._flap_window = timedelta(seconds=flap_window_s)
        self._store = Store(transaction.connection)
        self._runs = RunStore(transaction.connection)
        self._times = times
        self._new_id = new_id
        self._metrics = metrics

    async def carry_out(self, transitions: Sequence[Transition]) -> None:
        """Write the incidents, publish the events, plan the recoveries."""
        for part in _parts(transitions):
            await self._carry_out(part)

    async def _carry_out(self, transitions: Sequence[Transition]) -> None:
        now = self._times.now
        appeared = [item for item in transitions if isinstance(item, DomainAppeared)]
        await self._store.add_domains({item.domain_id: item.lease_s for item in appeared}, now)
        # The row of one that was away for long may have been removed, by releases that did not tell of it.
        new_nodes = [item for item in transitions if isinstance(item, NodeAppeared | NodeReturned)]
        before = await self._store.nodes_known(item.node_id for item in new_nodes)
        await self._store.add_nodes([(item.node_id, item.domain_id, item.incarnation) for item in new_nodes], now)
        for transition in transitions:
            match transition:
                case NodeBecameSuspect():
                    await self._suspect(transition)
                case NodeDied():
                    await self._node_died(transition)
                case NodeReturned():
                    await self._node_returned(transition)
                case NodeForgotten():
                    await self._node_forgotten(transition)
                case DomainWentSilent():
                    await self._domain_went_silent(transition)
                case DomainLeaseRanOut():
                    await self._lease_ran_out(transition)
                case DomainLeaseChanged():
                    await self._store.set_lease(transition.domain_id, transition.lease_s)
                case DomainForgotten():
                    await self._domain_forgotten(transition)
                case DomainReturned():
                    await self._domain_returned(transition)
                case NodeAppeared():
                    known = before.get(transition.node_id)
                    if known is not None and known.domain_id != transition.domain_id and known.incident_id is not None:
                        await self._handed_over(known.domain_id, transition.node_id, transition.incarnation)
                case DomainAppeared():
                    pass

    async def _suspect(self, event: NodeBecameSuspect) -> None:
        now = self._times.now
        if await self._elsewhere(event.node_id, event.domain_id) is not None:
            return
        reason = f"no beat from the node for {event.silence_s:.1f} s"
        incident_id = await self._store.report_about_node(event.node_id, now)
        if incident_id is None:
            before = await self._store.last_suspicion(event.node_id, event.domain_id, now - self._flap_window)
            if before is not None:
                incident_id, suspicions = before
                reason += f"; suspicion {suspicions + 1} of a node that flaps"
        if incident_id is None:
            incident_id = self._new_id("inc")
            await self._store.open_incident(
                incident_id,
                "node_suspected",
                event.domain_id,
                event.node_id,
                reason,
                now,
                self._times.at(event.last_heard_s),
                detected=False,
                event="suspected",
            )
        else:
            await self._store.advance_incident(
                incident_id, now, "suspected", reason, kind="node_suspected", reason=reason, reopen=True
            )
        await self._store.set_node(event.node_id, NodeState.SUSPECTED, now, incident_id=incident_id)
        message = pb.NodeSuspected(
            domain_id=event.domain_id,
            node_id=event.node_id,
            incident_id=incident_id,
            reason=reason,
            silence_s=event.silence_s,
        )
        message.at.FromDatetime(now)
        self._transaction.publish(message)
        self._transaction.on_commit(self._metrics.suspicions.inc)

    async def _node_died(self, event: NodeDied) -> None:
        now, last_seen_at = self._times.now, self._times.at(event.last_heard_s)
        elsewhere = await self._elsewhere(event.node_id, event.domain_id)
        reason = _REASONS[event.evidence]
        if event.quarantined:
            reason += f"; {len(event.failures_s)} failures in a short time: quarantined until it has been steady"
        incident_id = await self._store.incident_of_node(event.node_id)
        if incident_id is None:
            incident_id = await self._store.report_about_node(event.node_id, now)
        if incident_id is None:
            incident_id = self._new_id("inc")
            await self._store.open_incident(
                incident_id,
                "node_failed",
                event.domain_id,
                event.node_id,
                reason,
                now,
                last_seen_at,
                detected=True,
                event="failed",
            )
        else:
            await self._store.advance_incident(
                incident_id, now, "failed", reason, kind="node_failed", reason=reason, detected=True, reopen=True
            )
        await self._store.set_node(
            event.node_id,
            NodeState.FAILED,
            now,
            incarnation=event.incarnation if elsewhere is None else None,
            incident_id=incident_id,
            quarantined=event.quarantined,
            failures=[self._times.at(at_s) for at_s in event.failures_s],
        )
        found = await self._runs.runs_on_node(
            event.domain_id, event.node_id, collateral_since=last_seen_at - _COLLATERAL
        )
        lost = [run for run in found if run.run_id not in event.surviving_runs]
        message = pb.NodeFailed(
            domain_id=event.domain_id,
            node_id=event.node_id,
            incident_id=incident_id,
            reason=reason,
            incarnation=event.incarnation,
            run_ids=sorted(run.run_id for run in lost),
        )
        message.at.FromDatetime(now)
        message.last_seen_at.FromDatetime(last_seen_at)
        self._transaction.publish(message)
        await publish_plans(
            self._transaction,
            lost,
            incident_id=incident_id,
            cause=Cause.NODE_FAILED,
            reason=f"node {event.node_id}: {reason}",
            at=now,
            last_seen_at=last_seen_at,
            metrics=self._metrics,
        )
        if elsewhere is not None and elsewhere.state != NodeState.FAILED:
            await self._handed_over(event.domain_id, event.node_id, elsewhere.incarnation)
        detection_s = (now - last_seen_at).total_seconds()

        def count() -> None:
            self._metrics.failures.labels(event.evidence).inc()
            self._metrics.detection.labels("node").observe(detection_s)

        self._transaction.on_commit(count)

    async def _node_returned(self, event: NodeReturned) -> None:
        falsely = event.previous is NodeState.SUSPECTED
        reason = "the suspicion was not confirmed" if falsely else "the node beats again"
        incident_id = await self._store.incident_of_node(event.node_id) if falsely else None
        suspicions = await self._store.suspicions_of(incident_id) if incident_id else 0
        if suspicions > 1:
            reason += f", nor were {suspicions - 1} before it"
        await self._recovered(event.domain_id, event.node_id, event.incarnation, reason)
        if falsely:
            self._transaction.on_commit(self._metrics.false_suspicions.inc)

    async def _handed_over(self, domain_id: str, node_id: str, incarnation: int) -> None:
        """A node that was given up in this domain is alive in another: what was lost in this one is lost, the node is not."""
        await self._recovered(domain_id, node_id, incarnation, "the agent of another domain names the node")

    async def _elsewhere(self, node_id: str, domain_id: str) -> sa.Row[Any] | None:
        """The node as it is known, if the agent that named it last is that of another domain: whether it lives is its to say."""
        known = (await self._store.nodes_known([node_id])).get(node_id)
        return known if known is not None and known.domain_id != domain_id else None

    async def _recovered(self, domain_id: str, node_id: str, incarnation: int, reason: str) -> None:
        now = self._times.now
        incident_id = await self._store.incident_of_node(node_id) or ""
        await self._store.set_node(node_id, NodeState.ALIVE, now, incarnation=incarnation, quarantined=False)
        await self._store.advance_incident(incident_id, now, "recovered", reason, close=True)
        message = pb.NodeRecovered(
            domain_id=domain_id,
            node_id=node_id,
            incident_id=incident_id,
            reason=reason,
            incarnation=incarnation,
        )
        message.at.FromDatetime(now)
        self._transaction.publish(message)

    async def _node_forgotten(self, event: NodeForgotten) -> None:
        if await self._elsewhere(event.node_id, event.domain_id) is not None:
            return
        reason = f"the node failed {event.failed_for_s / 86_400:.1f} days ago and its agent does not name it any more"
        incident_id = await self._store.incident_of_node(event.node_id) or ""
        await self._store.remove_node(event.node_id, event.domain_id)
        await self._tell_forgotten(event.domain_id, event.node_id, event.incarnation, incident_id, reason)

    async def _tell_forgotten(
        self, domain_id: str, node_id: str, incarnation: int, incident_id: str, reason: str
    ) -> None:
        now = self._times.now
        await self._store.advance_incident(incident_id, now, "forgotten", reason, close=True)
        message = pb.NodeForgotten(
            domain_id=domain_id, node_id=node_id, incident_id=incident_id, reason=reason, incarnation=incarnation
        )
        message.at.FromDatetime(now)
        self._transaction.publish(message)

    async def _domain_forgotten(self, event: DomainForgotten) -> None:
        now = self._times.now
        reason = f"the domain's agent has been silent for {event.silent_for_s / 86_400:.1f} days"
        incident_id = await self._store.incident_of_domain(event.domain_id) or ""
        for node_id, incarnation, of_node in await self._store.remove_domain(event.domain_id):
            await self._tell_forgotten(event.domain_id, node_id, incarnation, of_node, reason)
        await self._store.advance_incident(incident_id, now, "forgotten", reason, close=True)
        message = pb.DomainForgotten(domain_id=event.domain_id, incident_id=incident_id, reason=reason)
        message.at.FromDatetime(now)
        self._transaction.publish(message)

    async def _domain_went_silent(self, event: DomainWentSilent) -> None:
        now, last_seen_at = self._times.now, self._times.at(event.last_heard_s)
        incident_id, silence_s = self._new_id("inc"), (now - last_seen_at).total_seconds()
        reason = f"the domain's agent has been silent for {silence_s:.1f} s"
        await self._store.set_domain(event.domain_id, DomainState.UNREACHABLE, now, incident_id=incident_id)
        await self._store.open_incident(
            incident_id,
            "domain_unreachable",
            event.domain_id,
            None,
            reason,
            now,
            last_seen_at,
            detected=True,
            event="unreachable",
        )
        message = pb.DomainUnreachable(domain_id=event.domain_id, incident_id=incident_id, reason=reason)
        message.at.FromDatetime(now)
        message.last_seen_at.FromDatetime(last_seen_at)
        self._transaction.publish(message)

        def count() -> None:
            self._metrics.unreachable.inc()
            self._metrics.detection.labels("domain").observe(silence_s)

        self._transaction.on_commit(count)

    async def _lease_ran_out(self, event: DomainLeaseRanOut) -> None:
        now = self._times.now
        incident_id = await self._store.incident_of_domain(event.domain_id)
        if incident_id is None:
            return
        await self._store.set_domain(
            event.domain_id, DomainState.UNREACHABLE, now, incident_id=incident_id, lease_ran_out=True
        )
        reason = f"the agent's lease of {event.lease_s:.0f} s has run out"
        await self._store.advance_incident(incident_id, now, "lease_ran_out", reason)
        lost = await self._runs.runs_in_domain(event.domain_id)
        await publish_plans(
            self._transaction,
            lost,
            incident_id=incident_id,
            cause=Cause.DOMAIN_LOST,
            reason=f"domain {event.domain_id} is unreachable and {reason}",
            at=now,
            last_seen_at=self._times.at(event.last_heard_s),
            metrics=self._metrics,
            unusable=[node_id for run in lost for node_id in run.node_ids],
        )

    async def _domain_returned(self, event: DomainReturned) -> None:
        now = self._times.now
        incident_id = await self._store.incident_of_domain(event.domain_id) or ""
        await self._store.set_domain(event.domain_id, DomainState.REACHABLE, now, incident_id=None)
        await self._store.advance_incident(incident_id, now, "reachable", close=True)
        message = pb.DomainReachable(domain_id=event.domain_id, incident_id=incident_id)
        message.at.FromDatetime(now)
        self._transaction.publish(message)


def _parts(transitions: Sequence[Transition]) -> list[Sequence[Transition]]:
    """Cut behind each node and domain that is forgotten: what appears under its name after that is another one."""
    cuts = [place + 1 for place, item in enumerate(transitions) if isinstance(item, NodeForgotten | DomainForgotten)]
    bounds = sorted({0, *cuts, len(transitions)})
    return [transitions[begin:end] for begin, end in pairwise(bounds)]


async def report_lost_runs(
    transaction: Transaction,
    lost: Sequence[tuple[LostRun, str, str]],
    at: datetime,
    new_id: NewId,
    metrics: FailoverMetrics,
) -> None:
    """Plan runs that their agents reported as lost: (run, node that was lost or empty, the agent's reason)."""
    store, runs = Store(transaction.connection), RunStore(transaction.connection)
    known = await runs.restore_points([run.run_id for run, _, _ in lost])
    skip = await runs.planned(known) | await runs.ended_otherwise(known)
    for reported, node_id, reason in lost:
        if reported.run_id in skip:
            continue
        restore_from, restore_step, node_ids = known.get(reported.run_id, ("", 0, ()))
        run = replace(reported, restore_from=restore_from, restore_step=restore_step, node_ids=(*node_ids, node_id))
        incident_id = None
        if node_id:
            incident_id = await store.incident_of_node(node_id) or await store.report_about_node(node_id, at)
        if incident_id is None:
            incident_id = new_id("inc")
            await store.open_incident(
                incident_id,
                "run_lost",
                run.domain_id,
                node_id or None,
                f"{run.run_id}: {reason}",
                at,
                None,
                detected=True,
                event="run_lost",
            )
        await publish_plans(
            transaction,
            [run],
            incident_id=incident_id,
            cause=Cause.RUN_LOST,
            reason=reason,
            at=at,
            last_seen_at=None,
            metrics=metrics,
            unusable=[node_id] if node_id else [],
        )
