"""One unit decided about again with one thing otherwise; for counterfactual.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.deciding.decisions import Placement
from services.scheduler.core.errors import GivenUpError
from services.scheduler.core.explaining.allowance import Allowance
from services.scheduler.core.explaining.explanation import Explanation
from services.scheduler.core.pending import Pending
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import UnitKey
from services.scheduler.core.table import Table, sum_by
from services.scheduler.core.unlike import stages_now
from services.scheduler.core.waiting_unit import PendingUnit

SHOWN = 3
"""Changes of one kind that are returned for one decision."""
TRIED = 8
"""Changes of one kind that are tried, and nodes that are named."""
_STEPS = 16


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is otherwise; None and empty: as it is."""

    policy: Policy | None = None
    unit: PendingUnit | None = None
    price: tuple[str, float] | None = None
    up: str = ""
    ended: UnitKey | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where the unit goes, and whom it takes off."""

    place: str
    nodes: tuple[str, ...]
    preempted: tuple[UnitKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """With ``field`` at ``new`` instead of ``old`` the decision is ``outcome``, as was verified. ``bound``: "at most", "at least"
    (further the same way does not matter up to here) or "exactly"."""

    field: str
    old: Any
    new: Any
    bound: str
    outcome: Outcome
    sentence: str
    change: Change

    def as_json(self) -> dict[str, Any]:
        """For people and programs."""
        return {
            "field": self.field,
            "old": self.old,
            "new": self.new,
            "bound": self.bound,
            "place": self.outcome.place,
            "nodes": list(self.outcome.nodes[:TRIED]),
            "preempted": [str(key) for key in self.outcome.preempted],
            "sentence": self.sentence,
        }


@dataclass(frozen=True, slots=True)
class Remedy:
    """One kind of change: the ``fields`` (or a part of their names) that it changes, the part of the search (0-1) that may be used up when it ends, and how it is
    looked for; GivenUpError comes from there when that part is used up."""

    fields: tuple[str, ...]
    part: float
    find: Callable[[], Iterator[Counterfactual]]


class Question:
    """One unit on one state; see step 1 of counterfactual.py."""

    def __init__(
        self, cluster: Cluster, policy: Policy, key: UnitKey, now_s: float, allowance: Allowance | None = None
    ) -> None:
        self.policy, self.key, self.now_s = policy, key, now_s
        self.allowance = allowance or Allowance()
        self.base = base = cluster.copy()
        base.use(policy)
        # Everything is decided anew, as each change is: what a change does is told from what deciding anew does.
        base.forget()
        unit = base.pending.get(key)
        self.waits = unit is not None
        if unit is None:
            if key not in base.running:
                raise KeyError(str(key))
            running = base.release(key, now_s)
            assert running is not None
            unit = running.unit
            base.pending = Pending(base.pending.order)
            base.add(unit)
        elif _only_those_before(base, policy):
            order = base.pending.in_order()
            for other in order[order.index(unit) + 1 :]:
                base.withdraw(other.key)
        self.unit = unit

    def ask(self, change: Change) -> Outcome | None:
        """Decide again with the change; GivenUpError when that is no longer allowed."""
        placement, preempted = self._decided(change, explain=False)
        if placement is None:
            return None
        domains = "+".join(dict.fromkeys(rank.domain_id for rank in placement.ranks))
        return Outcome(domains, tuple(dict.fromkeys(rank.node_id for rank in placement.ranks)), preempted)

    def explanation(self) -> Explanation:
        """Why it goes where it goes as things are."""
        placement, _ = self._decided(Change(), explain=True)
        assert placement is not None
        assert placement.explanation is not None
        return placement.explanation

    def _decided(self, change: Change, *, explain: bool) -> tuple[Placement | None, tuple[UnitKey, ...]]:
        self.allowance.decide()
        cluster = self.base.copy()
        policy = change.policy or self.policy
        if change.unit is not None:
            cluster.add(change.unit)
        if change.ended is not None:
            cluster.release(change.ended, self.now_s)
        table = cluster.table
        if change.price is not None:
            prices = table.price.copy()
            prices[table.domain_ids.index(change.price[0])] = change.price[1]
            cluster.view.table = replace(table, price=prices)
            cluster.view.generation += 1
        if change.up:
            row = table.node_index[change.up]
            cluster.view.table = _with_up(table, row)
            cluster.view.set_up([row], True)
        decisions = decide(cluster, policy, self.now_s, explain=explain, goes_on=self.allowance.goes_on)
        placement = next((item for item in decisions.placed if item.key == self.key), None)
        return placement, tuple([item.key for item in decisions.preempted if item.beneficiary == self.key])


def _only_those_before(cluster: Cluster, policy: Policy) -> bool:
    """Whether those behind a unit in the order change nothing for it, whatever is changed about it."""
    stages = stages_now(cluster, policy)
    if stages.planner is not None or stages.preemptions or policy.backfill_order:
        return False
    compares = any(getattr(item, "compares", False) for item in (*cluster.pending.order, *stages.limits))
    return cluster.pending.settled and not compares


def _with_up(table: Table, row: int) -> Table:
    """The table of a fleet in which the node takes work: scores look at what domains have in all, too."""
    up, down, size = table.up.copy(), list(table.down), len(table.domain_ids)
    up[row], down[row] = True, ""
    return replace(
        table,
        up=up,
        down=tuple(down),
        domain_cpus=sum_by(table.node_domain, table.cpus * up, size),
        domain_devices=sum_by(table.node_domain, table.devices.sum(axis=1) * up, size),
    )


@dataclass(frozen=True, slots=True)
class Greatest:
    """A value that was asked, with its outcome; ``over`` when the search ended before it was known to be the greatest."""

    value: float
    outcome: Outcome
    over: bool = False


def greatest(ask: Callable[[float], Outcome | None], least: float, now: float, *, whole: bool) -> Greatest | None:
    """The greatest value below ``now`` (a bound that does not do) with an outcome, by bisection between powers and then
    evenly; None when not even ``least`` has one. GivenUpError when not even that may be asked."""
    found = ask(least)
    if found is None:
        return None
    low, high = least, now
    for _ in range(_STEPS):
        if high - low <= (1.0 if whole else 1e-3):
            break
        middle = math.sqrt(low * high) if low > 0 and high > 4 * low else (low + high) / 2
        middle = float(math.floor(middle)) if whole else middle
        if middle <= low:
            middle = low + 1.0
        if middle >= high:
            break
        try:
            answer = ask(middle)
        except GivenUpError:
            return Greatest(low, found, over=True)
        if answer is None:
            high = middle
        else:
            low, found = middle, answer
    return Greatest(low, found)
