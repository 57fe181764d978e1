"""Binding units to nodes, and taking them off: what decisions do to the book. Every function writes to a draft."""

from __future__ import annotations

import zlib
from dataclasses import replace

from services.scheduler.core.book import Draft
from services.scheduler.core.effects import Placed, Preempted, Queued, Start
from services.scheduler.core.fleet import DEFAULT_ADDRESS, Fleet
from services.scheduler.core.policy import RestartRules
from services.scheduler.core.state import JobKind, PlacedRank, Run, RunState, UnitKey, UnitState, run_id_of
from services.scheduler.core.transitions import in_book, note, put_run, queue_again, stop_run

PORTS = range(20_000, 30_000)
"""What jobs get for rendezvous and services; the one-machine stack keeps its own ports out of it."""


def place(
    draft: Draft,
    key: UnitKey,
    ranks: tuple[PlacedRank, ...],
    now_s: float,
    *,
    decision_id: str,
    policy_version: str,
    reason: str,
    port_range: range = PORTS,
) -> Run:
    """Give a queued unit its nodes: the next epoch begins. The unit must have no open run. Its ports come from ``port_range``."""
    job, unit = in_book(draft, key)
    assert unit.state is UnitState.QUEUED, f"{key} is {unit.state}"
    assert not draft.runs_of(key), f"{key} has an open run"
    spec = job.units[key.unit_index]
    epoch = unit.epoch + 1
    run_id = run_id_of(key, epoch)
    address = address_of(draft.fleet, ranks[0].node_id)
    ports = draft.ports(address)
    service_port = spec.demand.service_port
    if service_port:
        ports.add(service_port)
    elif job.spec.kind is JobKind.SERVICE:
        service_port = _free_port(ports, run_id + "/service", port_range)
    run = Run(
        run_id=run_id,
        key=key,
        epoch=epoch,
        tenant_id=job.tenant_id,
        ranks=ranks,
        open_domains=frozenset(rank.domain_id for rank in ranks),
        cpus=spec.demand.cpus,
        memory_bytes=spec.demand.memory_bytes,
        assigned_at_s=now_s,
        master_addr=address,
        master_port=_free_port(ports, run_id, port_range),
        service_port=service_port,
        reason=reason,
        decision_id=decision_id,
    )
    draft.units[key] = replace(
        unit,
        state=UnitState.RUNNING,
        epoch=epoch,
        not_before_s=0.0,
        recovery_due_s=0.0,
        reason=reason,
        attained_s=unit.attained_s + unit.kept_s,
        kept_s=0.0,
        nomination=None,
    )
    job = put_run(draft, run)
    draft.effects.append(Placed(job, run, unit.checkpoint, policy_version, reason))
    draft.effects.extend(Start(job, spec, run, domain_id, unit.checkpoint) for domain_id in run.domains)
    return run


def preempt(
    draft: Draft, key: UnitKey, reason: str, now_s: float, rules: RestartRules, *, beneficiary: UnitKey | None = None
) -> Run | None:
    """Take a unit's run off for ``beneficiary`` (None: for a planner's plan). Returns the run as it was, None without one.

    The run is told to stop and keeps its nodes until it has; the unit is queued again with the time it was queued first.
    """
    run = next((item for item in draft.runs_of(key) if item.state is RunState.ACTIVE), None)
    if run is None:
        return None
    job, _ = in_book(draft, key)
    draft.effects.append(Preempted(job, run, reason, beneficiary))
    whom = "plan" if beneficiary is None else str(beneficiary)
    body: dict[str, object] = {"run_id": run.run_id, "reason": reason, "beneficiary": whom}
    note(draft, key, f"{run.run_id}.preempted", "preempted", now_s, body)
    stop_run(draft, replace(run, preempted_for=whom), reason, now_s, rules)
    _, unit = in_book(draft, key)
    queue_again(draft, unit, reason, 0.0)
    return run


def park(draft: Draft, key: UnitKey, reason: str, now_s: float, rules: RestartRules) -> None:
    """A replica is not wanted: its run is told to stop, and it waits for nothing but `unpark`."""
    job, _ = in_book(draft, key)
    for run in draft.runs_of(key):
        if run.state is RunState.ACTIVE:
            draft.effects.append(Preempted(job, run, reason))
            note(draft, key, f"{run.run_id}.parked", "parked", now_s, {"run_id": run.run_id, "reason": reason})
            stop_run(draft, run, reason, now_s, rules)
    _, unit = in_book(draft, key)
    draft.units[key] = replace(
        unit, state=UnitState.BLOCKED, not_before_s=0.0, recovery_due_s=0.0, reason=reason, nomination=None
    )


def unpark(draft: Draft, key: UnitKey, reason: str, now_s: float) -> None:
    """A replica is wanted (again): it is queued from now on."""
    job, unit = in_book(draft, key)
    draft.units[key] = replace(unit, state=UnitState.QUEUED, queued_at_s=now_s, failures=0, reason=reason)
    draft.effects.append(Queued(job, reason, key.unit_index))


def address_of(fleet: Fleet, node_id: str) -> str:
    """The address on which the ranks of other nodes reach a node."""
    node = fleet.nodes.get(node_id)
    return (node.address if node is not None else "") or DEFAULT_ADDRESS


def _free_port(taken: set[int], seed: str, among: range) -> int:
    """A port that no open run has on the address; 0 when all are taken. Each attempt begins at another place."""
    if len(taken) >= len(among) and taken.issuperset(among):
        return 0  # else each further placement would look at every port again
    start = zlib.crc32(seed.encode()) % len(among)
    for offset in range(len(among)):
        port = among[(start + offset) % len(among)]
        if port not in taken:
            taken.add(port)
            return port
    return 0
