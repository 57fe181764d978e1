"""One cycle on a book: what was kept for units is given to them, then it is decided, and the decisions become changes.

The live service, replay and tests run this same function; they differ in what they do with the draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from services.scheduler.core import binding, nominations
from services.scheduler.core.book import Book, Draft
from services.scheduler.core.contracts.moves import repairs
from services.scheduler.core.decide import decide
from services.scheduler.core.deciding.decisions import Decisions, Placement, Preempted
from services.scheduler.core.effects import DecisionRecord
from services.scheduler.core.explaining.explanation import with_cause
from services.scheduler.core.placement import best
from services.scheduler.core.policy import Policy
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand, Nomination, PlacedRank, Run, RunState, UnitKey, UnitState
from services.scheduler.core.tenants_objectives import state_tenant

MOVED = "moved: its domain would give more than was planned for this window, another one less"
WAKE_PATIENCE = 3.0
"""A node that has not woken after so many times its waking time is given up for a while."""


@dataclass(slots=True)
class Cycle:
    """What a cycle did: runs that began, nodes kept for units until others have ended, runs that were taken off; ``moves`` are those to
    be taken off for the plan of a window."""

    decisions: Decisions
    moves: tuple[Preempted, ...] = ()
    begun: list[Run] = field(default_factory=list)
    nominated: list[tuple[UnitKey, Nomination]] = field(default_factory=list)
    preempted: list[tuple[Run, Preempted]] = field(default_factory=list)


def run_cycle(draft: Draft, policy: Policy, now_s: float, new_id: Callable[[], str], most: int = 0) -> Cycle:
    """Decide at ``now_s`` and write what follows to an empty draft. ``new_id`` gives names for decisions, ``most`` bounds the
    placements (`decide`; 0: does not).

    Steps:
    1. Units whose nodes were kept for them, and are free now, are placed there.
    2. The policy decides on the book's cluster (`decide`); where nobody waits, units may be moved for the plan of shares.
    3. Runs that are preempted are told to stop. A placement on a node where one of them still runs is not carried out: the
       unit is nominated, its nodes are kept for it for at most ``stop_timeout_s``. So it is for nodes that sleep: they are woken,
       and kept for some times their waking time longer. All others are placed.
    """
    cycle = begin_cycle(draft, policy, now_s, most)
    carry_out(draft, cycle, policy, now_s, new_id)
    return cycle


def begin_cycle(draft: Draft, policy: Policy, now_s: float, most: int = 0) -> Cycle:
    """Steps 1 and 2 of `run_cycle`."""
    book = draft.book
    book.advance(now_s)
    begun = []
    for key in list(book.nominated):
        run = nominations.carry_out_nomination(draft, key, now_s, room=book.has_room(key))
        if run is not None:
            begun.append(run)
    return Cycle(decide(book.cluster, policy, now_s, most=most), _moves(book), begun)


def _moves(book: Book) -> tuple[Preempted, ...]:
    """Units that go elsewhere so that the domains keep the plan of the window, where the policy wants that. None while anybody waits:
    what comes free goes where it is needed, and who was moved before has its place first. None that this policy would not give another
    domain now: it would be interrupted for nothing."""
    account, cluster = book.promises.shares, book.cluster
    if account is None or not account.plan.move_every_s or book.queued or book.nominated:
        return ()
    free = cluster.view.domain_free_devices
    active = [item for key, item in cluster.running.items() if key in book.runs_of]
    known: dict[Demand, str] = {}

    def goes_to(item: RunningUnit) -> str:
        demand = item.unit.demand
        if cluster.plugins.per_tenant:
            state_tenant(cluster.view, item.unit.tenant_id)
        elif demand in known:
            return known[demand]
        found = best(cluster.candidates(demand))
        domains = found[1].domains if found is not None else ()
        known[demand] = cluster.table.domain_ids[domains[0]] if len(domains) == 1 else ""
        return known[demand]

    return tuple(Preempted(key, MOVED) for key in repairs(account, active, free, goes_to))


def carry_out(draft: Draft, cycle: Cycle, policy: Policy, now_s: float, new_id: Callable[[], str]) -> None:
    """Step 3 of `run_cycle`."""
    decisions, rules = cycle.decisions, policy.restarts
    leaving: dict[str, set[str]] = {}
    for item in (*decisions.preempted, *cycle.moves):
        run = binding.preempt(draft, item.key, item.reason, now_s, rules, beneficiary=item.beneficiary)
        if run is not None:
            cycle.preempted.append((run, item))
            _note_nodes(leaving, run.run_id, run.open_ranks)
        elif (ending := draft.run(item.key.job_id)) is not None and ending.state is RunState.STOPPING:
            # A planner took off what is ending already.
            _note_nodes(leaving, ending.run_id, ending.open_ranks)
    for placement in decisions.placed:
        _carry_out(draft, cycle, placement, leaving, now_s, rules.stop_timeout_s, new_id())


def _note_nodes(leaving: dict[str, set[str]], run_id: str, ranks: Iterable[PlacedRank]) -> None:
    for rank in ranks:
        leaving.setdefault(rank.node_id, set()).add(run_id)


def _carry_out(
    draft: Draft,
    cycle: Cycle,
    placement: Placement,
    leaving: dict[str, set[str]],
    now_s: float,
    timeout_s: float,
    decision_id: str,
) -> None:
    unit = draft.unit(placement.key)
    if unit is None or unit.state is not UnitState.QUEUED:
        return
    assert placement.explanation is not None
    version = cycle.decisions.policy_version
    reason = placement.explanation.reason
    waits_for = {run.run_id for run in draft.runs_of(placement.key)}
    for rank in placement.ranks:
        waits_for |= leaving.get(rank.node_id, set())
    wake_s = max((_wake_s(draft, rank) for rank in placement.ranks), default=0.0)
    woken: tuple[str, ...] = ()
    if waits_for or wake_s:
        until_s = now_s + timeout_s + WAKE_PATIENCE * wake_s
        kept = Nomination(placement.ranks, frozenset(waits_for), until_s, decision_id, version, reason)
        nominations.nominate(draft, placement.key, kept)
        woken = nominations.wake(draft, placement.key, kept)
        cycle.nominated.append((placement.key, kept))
    else:
        run = binding.place(
            draft,
            placement.key,
            placement.ranks,
            now_s,
            decision_id=decision_id,
            policy_version=version,
            reason=reason,
        )
        cycle.begun.append(run)
    kind = "nominated" if waits_for or wake_s else "placed"
    off = [(str(item.key), item.reason) for item in cycle.decisions.preempted if item.beneficiary == placement.key]
    explanation = with_cause(placement.explanation.as_json(), placement.reason, off)
    if woken:
        explanation["woken"] = {"nodes": list(woken), "wake_s": wake_s}
    draft.record(DecisionRecord(decision_id, placement.key, kind, now_s, version, explanation))


def _wake_s(draft: Draft, rank: PlacedRank) -> float:
    node = draft.fleet.nodes.get(rank.node_id)
    return node.wake_s if node is not None and draft.fleet.sleeps(rank.node_id) else 0.0
