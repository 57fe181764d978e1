"""Nominations: nodes that are kept for a unit until the runs on them have ended, or until they are awake.

Every function writes to a draft.
"""

from __future__ import annotations

from dataclasses import replace

from services.scheduler.core.binding import PORTS, place
from services.scheduler.core.book import Draft
from services.scheduler.core.effects import Wake
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.state import Nomination, Run, RunState, Unit, UnitKey, UnitState
from services.scheduler.core.transitions import in_book


def nominate(draft: Draft, key: UnitKey, nomination: Nomination) -> None:
    """Keep nodes for a queued unit until the runs on them have ended."""
    _, unit = in_book(draft, key)
    assert unit.state is UnitState.QUEUED, f"{key} is {unit.state}"
    draft.units[key] = replace(unit, nomination=nomination, reason=nomination.reason)


def wake(draft: Draft, key: UnitKey, nomination: Nomination) -> tuple[str, ...]:
    """Ask for the nodes of a nomination that sleep to be woken; returns them."""
    job, _ = in_book(draft, key)
    asleep = {rank.node_id: rank.domain_id for rank in nomination.ranks if draft.fleet.sleeps(rank.node_id)}
    for domain_id in sorted(set(asleep.values())):
        nodes = tuple(sorted(node_id for node_id, place in asleep.items() if place == domain_id))
        draft.effects.append(Wake(job, key, domain_id, nodes, f"{key} waits for them"))
    return tuple(sorted(asleep))


def carry_out_nomination(
    draft: Draft, key: UnitKey, now_s: float, *, room: bool, port_range: range = PORTS
) -> Run | None:
    """Place a nominated unit when the runs it waits for have ended. Without ``room`` (a node went away) it waits like others."""
    _, unit = in_book(draft, key)
    kept = unit.nomination
    if kept is None:
        return None
    if not kept_nodes_usable(draft.fleet, kept):
        drop_nomination(draft, unit)
        return None
    if draft.runs_of(key) or any(is_open(draft, run_id) for run_id in kept.waits_for):
        return None
    if any(draft.fleet.sleeps(rank.node_id) for rank in kept.ranks):
        return None
    if not room:
        drop_nomination(draft, unit)
        return None
    return place(
        draft,
        key,
        kept.ranks,
        now_s,
        decision_id=kept.decision_id,
        policy_version=kept.policy_version,
        reason=kept.reason,
        port_range=port_range,
    )


def give_up_nomination(draft: Draft, key: UnitKey) -> None:
    """No nodes are kept for the unit any more."""
    _, unit = in_book(draft, key)
    if unit.nomination is not None:
        drop_nomination(draft, unit)


def kept_nodes_usable(fleet: Fleet, kept: Nomination) -> bool:
    """Whether all nodes of a nomination take work and have its devices."""
    for rank in kept.ranks:
        node = fleet.nodes.get(rank.node_id)
        if node is None or node.domain_id != rank.domain_id or fleet.why_down(node):
            return False
        usable = {device.index for device in node.devices if fleet.usable(device)}
        if not usable.issuperset(rank.devices):
            return False
    return True


def is_open(draft: Draft, run_id: str) -> bool:
    """Whether something of the run may be left."""
    run = draft.run(run_id)
    return run is not None and run.state is not RunState.ENDED


def drop_nomination(
    draft: Draft, unit: Unit, reason: str = "the nodes that were kept for it did not become free"
) -> None:
    """The unit waits like others from now on."""
    draft.units[unit.key] = replace(unit, nomination=None, reason=reason)
