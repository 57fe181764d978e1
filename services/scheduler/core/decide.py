"""One scheduling cycle as a pure function: ``(snapshot, policy) -> decisions``, each with its explanation.

Steps:
1. Order the units that may be placed (queue.py).
2. Take them in turn. Units with equal demands are one class: the first of a class has it judged (placement.py).
3. Place the unit if all its ranks fit; what it takes is seen by all that follow, and its tenant's share grows.
4. Capacity only shrinks within a cycle, so a class that did not fit once is not tried again in it: its other units wait
   with the same explanation. Smaller units behind it go on (there is no reservation for large ones).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from services.scheduler.core.book import Book
from services.scheduler.core.explanation import Explanation, best_of
from services.scheduler.core.ledger import Ledger
from services.scheduler.core.placement import Candidates, Choice, plugins_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.queue import PendingUnit, Queue, Shares
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.table import Table, View, table_of


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """What one cycle decides on. ``ledger`` is only read."""

    table: Table
    ledger: Ledger
    pending: Sequence[PendingUnit]


@dataclass(frozen=True, slots=True)
class Placement:
    """A unit's ranks and why they are where they are."""

    key: UnitKey
    ranks: tuple[PlacedRank, ...]
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class Waiting:
    """A unit that stays in the queue: ``position`` counts from 1 in this cycle's order."""

    key: UnitKey
    position: int
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class Decisions:
    """What a cycle decided, in order. ``classes`` is the number of different demands it judged."""

    policy_version: str
    placed: tuple[Placement, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    classes: int = 0


@dataclass(slots=True)
class _Class:
    alternatives: list[Candidates]
    blocked: Explanation | None = field(default=None)


def snapshot_of(book: Book, now_s: float, table: Table | None = None) -> Snapshot:
    """The book as a cycle at ``now_s`` sees it; ``table`` saves building the arrays when the fleet is unchanged."""
    return Snapshot(table or table_of(book.fleet), book.ledger, book.eligible(now_s))


def decide(snapshot: Snapshot, policy: Policy) -> Decisions:
    """Decide about every pending unit of the snapshot. PolicyError when the policy names an unknown plugin."""
    if not snapshot.pending:
        return Decisions(policy.version)
    view = View(snapshot.table, snapshot.ledger)
    shares = Shares(
        snapshot.ledger.tenants,
        float(snapshot.table.domain_devices.sum()),
        float(snapshot.table.domain_cpus.sum()),
        dict(policy.tenant_weights),
    )
    queue = Queue(snapshot.pending, plugins_of(policy).order, shares)
    classes: dict[Demand, _Class] = {}
    placed: list[Placement] = []
    waiting: list[Waiting] = []
    while (unit := queue.pop()) is not None:
        group = classes.get(unit.demand)
        if group is None:
            group = classes[unit.demand] = _Class(_alternatives(view, unit.demand, policy))
        if group.blocked is None:
            found = _best(group.alternatives)
            if found is not None:
                candidates, choice = found
                explanation = _among(group.alternatives, candidates.explain(choice))
                placed.append(Placement(unit.key, candidates.take(choice), explanation))
                queue.charge(unit)
                continue
            roomiest = max(group.alternatives, key=lambda item: int(item.domain_fits.max(initial=0)))
            group.blocked = _among(group.alternatives, roomiest.explain_waiting())
        waiting.append(Waiting(unit.key, len(waiting) + 1, group.blocked))
    return Decisions(policy.version, tuple(placed), tuple(waiting), len(classes))


def _alternatives(view: View, demand: Demand, policy: Policy) -> list[Candidates]:
    """The ways to satisfy a demand: a gang takes one accelerator model for all ranks, so each is judged by itself."""
    columns = view.columns(demand)
    if demand.ranks > 1 and demand.accelerators and len(columns) > 1 and policy.one_accelerator_model_per_gang:
        return [Candidates(view, demand, np.array([column]), policy) for column in columns]
    return [Candidates(view, demand, columns, policy)]


def _among(alternatives: Sequence[Candidates], explanation: Explanation) -> Explanation:
    """The explanation with the domains of all alternatives beside the one that was chosen."""
    if len(alternatives) == 1:
        return explanation
    return replace(explanation, domains=best_of([item.domain_ranking() for item in alternatives]))


def _best(alternatives: Sequence[Candidates]) -> tuple[Candidates, Choice] | None:
    if len(alternatives) == 1:
        choice = alternatives[0].choose()
        return (alternatives[0], choice) if choice is not None else None
    found = [(candidates, choice) for candidates in alternatives if (choice := candidates.choose()) is not None]
    # Fewest domains first, then the best score.
    return max(found, key=lambda pair: (-len(pair[1].domains), pair[1].score), default=None)
