"""The failure detector: which nodes and domains are alive, decided from heartbeats alone.

Pure: no clock, no I/O. All times are seconds on one monotonic clock, that of the caller; silence is measured by arrival
times, so the clocks of agents do not matter.

A node is heard through its agent. Its silence is the age in the agent's newest summary plus the time since that summary
arrived, and it is judged only while the agent itself is heard: when the agent is silent, nothing is known about its
nodes ("unreachable" is not "dead").

1. `observe` takes one summary: duplicates, older agents and backlog are passed over; a node that came back under a new
   incarnation without having been declared dead is noted as died and returned, because its runs are gone.
2. `tick` judges. Nothing is declared in the grace period after the start, after a stall of the caller's own loop, or
   when all domains fell silent together (then the fault is here or in the bus: Dadgar et al., "Lifeguard: Local Health
   Awareness for More Accurate Failure Detection", 2018, arXiv:1707.00788).
3. A node that died three times in ten minutes is quarantined: it counts as returned only after a minute of beats.
4. A failed node that its agent has not named for very long has left the network: it is forgotten, and is new if it comes again.
   So is a domain whose agent has been silent for very long, with all its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from services.failover.backlog import BacklogFilter
from services.failover.beliefs import (
    Beat,
    DomainState,
    DomainView,
    Evidence,
    KnownDomain,
    KnownNode,
    NodeState,
    NodeView,
    Summary,
    Thresholds,
)
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

# What has been gone for long is looked for this often at most.
_FORGET_EVERY_S = 60.0


class Detector:
    """The state of all nodes and domains; see the module's text for the steps."""

    def __init__(
        self,
        thresholds: Thresholds,
        now_s: float,
        *,
        domains: Iterable[KnownDomain] = (),
        nodes: Iterable[KnownNode] = (),
    ) -> None:
        self.thresholds = thresholds
        self.domains: dict[str, DomainView] = {}
        self._pending: list[Transition] = []
        self._quiet_until_s = now_s + thresholds.start_grace_s
        self._ears_since_s = now_s
        self._last_tick_s = now_s
        self._held_since_s: float | None = None
        self._hold_used_up = False
        self._forget_from_s = now_s
        for domain in domains:
            self.domains[domain.domain_id] = DomainView(
                domain.domain_id,
                heard_at_s=now_s,
                state=domain.state,
                lease_s=domain.lease_s,
                lease_ran_out=domain.lease_ran_out,
                silent_since_s=now_s - domain.changed_ago_s if domain.state is DomainState.UNREACHABLE else inf,
                backlog=BacklogFilter(thresholds.backlog_s),
            )
        for node in nodes:
            view = self.domains.get(node.domain_id)
            if view is None:
                continue
            view.nodes[node.node_id] = NodeView(
                node.node_id,
                node.domain_id,
                node.incarnation,
                heard_at_s=now_s,
                state=node.state,
                failed_incarnation=node.incarnation if node.state is NodeState.FAILED else None,
                failed_at_s=now_s - node.changed_ago_s if node.state is NodeState.FAILED else -inf,
                failures_s=sorted(now_s - ago_s for ago_s in node.failed_ago_s),
                quarantined=node.quarantined,
            )

    # -- hearing -------------------------------------------------------------------------------------------------

    def observe(self, summary: Summary, now_s: float) -> bool:
        """Take one summary that arrived at ``now_s``; False when it was passed over (duplicate, older agent, backlog)."""
        domain = self.domains.get(summary.domain_id)
        if domain is None:
            domain = DomainView(summary.domain_id, heard_at_s=now_s, backlog=BacklogFilter(self.thresholds.backlog_s))
            domain.lease_s = summary.lease_s if summary.lease_s > 0 else domain.lease_s
            self.domains[summary.domain_id] = domain
            self._pending.append(DomainAppeared(summary.domain_id, domain.lease_s))
        if summary.incarnation < domain.incarnation:
            return False
        if summary.incarnation == domain.incarnation and summary.sequence <= domain.sequence:
            return False
        if summary.incarnation > domain.incarnation:
            domain.incarnation = summary.incarnation
            domain.backlog = BacklogFilter(self.thresholds.backlog_s)
            domain.judge_from_s = now_s + self.thresholds.agent_grace_s
        domain.sequence = summary.sequence
        if domain.backlog.is_backlog(summary.sent_at_s, now_s):
            return False
        self._hear_agent(domain, summary, now_s)
        for beat in summary.beats:
            self._hear_node(domain, beat, now_s)
        return True

    def _hear_agent(self, domain: DomainView, summary: Summary, now_s: float) -> None:
        domain.heard_at_s = now_s
        domain.interval_s = summary.interval_s if summary.interval_s > 0 else domain.interval_s
        if summary.lease_s > 0 and summary.lease_s != domain.lease_s:
            domain.lease_s = summary.lease_s
            self._pending.append(DomainLeaseChanged(domain.domain_id, domain.lease_s))
        if domain.state is DomainState.UNREACHABLE:
            domain.state = DomainState.REACHABLE
            domain.lease_ran_out = False
            domain.silent_since_s = inf
            domain.judge_from_s = max(domain.judge_from_s, now_s + self.thresholds.agent_grace_s)
            self._pending.append(DomainReturned(domain.domain_id))
        self._hold_used_up = False
        if self._held_since_s is not None:
            self._held_since_s = None
            self._ears_since_s = now_s

    def _hear_node(self, domain: DomainView, beat: Beat, now_s: float) -> None:
        node = domain.nodes.get(beat.node_id)
        if node is None:
            node = NodeView(beat.node_id, domain.domain_id, beat.incarnation, heard_at_s=now_s)
            domain.nodes[beat.node_id] = node
            self._pending.append(NodeAppeared(domain.domain_id, beat.node_id, beat.incarnation))
        node.named_at_s = now_s
        if beat.incarnation < node.incarnation:
            return
        if beat.incarnation > node.incarnation:
            if node.state is not NodeState.FAILED:
                with_agent = now_s < domain.judge_from_s
                evidence = Evidence.AGENT_RESTARTED if with_agent else Evidence.RESTARTED
                self._pending.append(self._declare_dead(node, evidence, now_s, frozenset(beat.run_ids)))
            node.incarnation = beat.incarnation
            node.exited_since_s = node.exited_until_s = node.steady_since_s = None
        node.heard_at_s = now_s - max(0.0, beat.age_s)
        node.reported_at_s = now_s
        node.run_ids = beat.run_ids
        if beat.exited:
            node.exited_since_s = now_s if node.exited_since_s is None else node.exited_since_s
            node.exited_until_s = now_s
        else:
            node.exited_since_s = node.exited_until_s = None
        if beat.exited or not beat.running or beat.age_s > self._calm_s:
            node.steady_since_s = None
        elif node.steady_since_s is None:
            node.steady_since_s = now_s

    @property
    def _calm_s(self) -> float:
        return self.thresholds.suspect_after_s / 2

    @property
    def untold(self) -> int:
        """How many changes the next `tick` returns that were heard since the last one."""
        return len(self._pending)

    def drop_untold(self) -> None:
        """Return none of them: somebody else tells them."""
        self._pending.clear()

    # -- judging -------------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> list[Transition]:
        """Judge everything at ``now_s``, in calls a fraction of the suspect time apart; returns what changed, in order."""
        transitions, self._pending = self._pending, []
        late_s = now_s - self._last_tick_s
        self._last_tick_s = now_s
        if late_s > self.thresholds.stall_s:
            # What arrived meanwhile has not been heard yet.
            self._ears_since_s = now_s
            self._quiet_until_s = max(self._quiet_until_s, now_s + self.thresholds.stall_s)
        quiet = now_s < self._quiet_until_s
        self._update_hold(now_s)
        forgets = now_s >= self._forget_from_s
        if forgets:
            shortest_s = min(self.thresholds.forget_after_s, self.thresholds.forget_domain_after_s)
            self._forget_from_s = now_s + min(_FORGET_EVERY_S, shortest_s / 1000)
        for domain in list(self.domains.values()):
            if not quiet and self._held_since_s is None:
                transitions.extend(self._judge_domain(domain, now_s))
            if domain.state is DomainState.REACHABLE and self._has_voice(domain, now_s):
                may_die = not quiet and now_s >= domain.judge_from_s
                for node in domain.nodes.values():
                    transitions.extend(self._judge_node(node, now_s, may_die=may_die))
                if may_die and forgets:
                    transitions.extend(self._forget(domain, now_s))
            elif forgets and domain.lease_ran_out and not quiet:
                transitions.extend(self._forget(domain, now_s))
                if now_s - domain.silent_since_s >= self.thresholds.forget_domain_after_s:
                    del self.domains[domain.domain_id]
                    transitions.append(DomainForgotten(domain.domain_id, now_s - domain.silent_since_s))
        return transitions

    def held(self, now_s: float) -> str:
        """Why nothing is declared at present; empty when declarations are made."""
        if now_s < self._quiet_until_s:
            return "grace period"
        return "all domains fell silent together" if self._held_since_s is not None else ""

    def _has_voice(self, domain: DomainView, now_s: float) -> bool:
        # However seldom an agent beats: who is declared dead for silence has been silent by its agent's word too.
        longest_s = self.thresholds.failed_after_s - self._calm_s
        return now_s - domain.heard_at_s <= min(max(self.thresholds.voice_s, 3 * domain.interval_s), longest_s)

    def _gap_s(self, domain: DomainView, now_s: float) -> float:
        return now_s - max(domain.heard_at_s, self._ears_since_s)

    def _update_hold(self, now_s: float) -> None:
        if self._held_since_s is not None:
            if now_s - self._held_since_s >= self.thresholds.hold_s:
                self._held_since_s = None
                self._hold_used_up = True
            return
        gaps_s = [
            self._gap_s(domain, now_s) for domain in self.domains.values() if domain.state is DomainState.REACHABLE
        ]
        if len(gaps_s) < 2 or self._hold_used_up:
            return
        limit_s = self.thresholds.unreachable_after_s
        silent_too_s = max(limit_s - self.thresholds.together_s, limit_s / 2)
        if max(gaps_s) >= limit_s and min(gaps_s) >= silent_too_s:
            self._held_since_s = now_s

    def _judge_domain(self, domain: DomainView, now_s: float) -> Iterable[Transition]:
        if domain.state is DomainState.REACHABLE and self._gap_s(domain, now_s) >= self.thresholds.unreachable_after_s:
            domain.state = DomainState.UNREACHABLE
            domain.silent_since_s = now_s
            for node in domain.nodes.values():
                node.steady_since_s = None
            yield DomainWentSilent(domain.domain_id, domain.heard_at_s)
        if (
            domain.state is DomainState.UNREACHABLE
            and not domain.lease_ran_out
            and now_s >= domain.heard_at_s + domain.lease_s + self.thresholds.lease_margin_s
        ):
            domain.lease_ran_out = True
            yield DomainLeaseRanOut(domain.domain_id, domain.heard_at_s, domain.lease_s)

    def _judge_node(self, node: NodeView, now_s: float, *, may_die: bool) -> Iterable[Transition]:
        if node.state is NodeState.FAILED:
            if node.steady_since_s is not None and now_s - node.steady_since_s >= self._needed_calm_s(node):
                node.state = NodeState.ALIVE
                node.quarantined = False
                node.failed_incarnation = None
                yield NodeReturned(node.domain_id, node.node_id, node.incarnation, NodeState.FAILED)
            return
        silence_s = node.silence_s(now_s)
        if node.state is NodeState.SUSPECTED and silence_s <= self._calm_s and node.exited_since_s is None:
            node.state = NodeState.ALIVE
            yield NodeReturned(node.domain_id, node.node_id, node.incarnation, NodeState.SUSPECTED)
            return
        if not may_die:
            return
        if self._exit_is_confirmed(node):
            yield self._declare_dead(node, Evidence.EXITED, now_s)
        elif silence_s >= self.thresholds.failed_after_s:
            listed = node.reported_at_s is not None and self._has_named(node)
            yield self._declare_dead(node, Evidence.SILENT if listed else Evidence.NOT_LISTED, now_s)
        elif node.state is NodeState.ALIVE and silence_s >= self.thresholds.suspect_after_s:
            node.state = NodeState.SUSPECTED
            yield NodeBecameSuspect(node.domain_id, node.node_id, node.heard_at_s, silence_s)

    def _forget(self, domain: DomainView, now_s: float) -> list[NodeForgotten]:
        limit_s = now_s - self.thresholds.forget_after_s
        gone = [
            node
            for node in domain.nodes.values()
            if node.state is NodeState.FAILED and node.failed_at_s <= limit_s and node.named_at_s <= limit_s
        ]
        for node in gone:
            del domain.nodes[node.node_id]
        return [
            NodeForgotten(node.domain_id, node.node_id, node.incarnation, now_s - node.failed_at_s) for node in gone
        ]

    def _has_named(self, node: NodeView) -> bool:
        return node.reported_at_s == self.domains[node.domain_id].heard_at_s

    def _exit_is_confirmed(self, node: NodeView) -> bool:
        if node.exited_since_s is None or node.exited_until_s is None:
            return False
        # Half a millisecond for the rounding of sums of intervals.
        return node.exited_until_s - node.exited_since_s >= self.thresholds.exit_confirmation_s - 0.0005

    def _needed_calm_s(self, node: NodeView) -> float:
        if node.quarantined:
            return self.thresholds.quarantine_s
        is_new = node.failed_incarnation is None or node.incarnation > node.failed_incarnation
        return 0.0 if is_new else self.thresholds.steady_s

    def _declare_dead(
        self, node: NodeView, evidence: Evidence, now_s: float, surviving_runs: frozenset[str] = frozenset()
    ) -> NodeDied:
        recent = [at_s for at_s in node.failures_s if now_s - at_s < self.thresholds.flap_window_s]
        # A restart of the agent says nothing against its nodes.
        node.failures_s = recent if evidence is Evidence.AGENT_RESTARTED else [*recent, now_s]
        node.quarantined = len(node.failures_s) >= self.thresholds.flap_failures
        node.state = NodeState.FAILED
        node.failed_incarnation = node.incarnation
        node.failed_at_s = now_s
        node.steady_since_s = None
        return NodeDied(
            node.domain_id,
            node.node_id,
            node.incarnation,
            node.heard_at_s,
            evidence,
            node.quarantined,
            tuple(node.failures_s),
            surviving_runs,
        )

    def nodes(self) -> Mapping[str, NodeView]:
        """All nodes by id."""
        return {node.node_id: node for domain in self.domains.values() for node in domain.nodes.values()}
