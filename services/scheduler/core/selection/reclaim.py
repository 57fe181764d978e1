"""The preemption "reclaim": a queue takes back, for what is within its quota, what others borrowed.

Whole units only; from the queue most over its share, in it the least priority, then the least lost work (accelerator-seconds
since the last checkpoint). After each unit the tree of quotas is asked again, so that no queue is taken from that is within
its quota. Kueue: `reclaimWithinCohort: Any`; with ``only_lower_priority`` `LowerPriority`.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.options import refuse_unknown
from services.scheduler.core.policy import Policy
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.selection.quotas import QUOTA, QuotaAccount
from services.scheduler.core.selection.settings import flag_of
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit


class ReclaimPreemption:
    """See the module. It needs the limit "quota" in the same policy.

    Steps of `relieve`, when the quota refuses a unit:
    1. Ask the tree from which queue to take (`QuotaTree.reclaimable`); it names none for a unit beyond its own quota.
    2. Take that queue's cheapest unit; a queue without one that may be taken is passed over.
    3. Until the unit is admitted, go on with 1; when there is nothing more to take, take nothing.
    4. Give back, last first, each unit without which it is admitted too.
    """

    name = "reclaim"

    def __init__(self, only_lower_priority: bool = False) -> None:
        self._only_lower_priority = only_lower_priority

    def configured(self, options: Mapping[str, Any]) -> ReclaimPreemption:
        """With ``only_lower_priority`` (true or false)."""
        refuse_unknown(self.name, options, ("only_lower_priority",))
        path = "options.reclaim.only_lower_priority"
        return ReclaimPreemption(flag_of(path, options.get("only_lower_priority", False)))

    def requires(self, policy: Policy) -> None:
        """PolicyError without the limit that says who borrowed."""
        if QUOTA not in policy.limits:
            raise PolicyError("preemptions: reclaim needs the limit quota; name it in limits")

    def relieve(
        self, unit: PendingUnit, running: Sequence[RunningUnit], context: OrderContext
    ) -> Sequence[RunningUnit]:
        """Units to take off so that the quota admits ``unit``; empty when there is no right way, or no need."""
        account: QuotaAccount = context.cache[QUOTA]
        queue = account.queue_of(unit)
        amounts = account.amounts_of(unit)
        if not queue or account.admits(unit).ok or not account.tree.reclaimable(queue, amounts):
            return ()
        left = self._by_queue(unit, running, account, context)
        taken: list[RunningUnit] = []
        spared: set[tuple[str, str]] = set()
        while not account.admits(unit).ok:
            plan = account.tree.reclaimable(queue, amounts, spared)
            if not plan:
                break
            debtor, resource = plan[0].queue, plan[0].resource
            victim = _first_holding(left.get(debtor, []), resource, account)
            if victim is None:
                spared.add((debtor, resource))
                continue
            left[debtor].remove(victim)
            account.tree.refund(debtor, account.amounts_of(victim.unit))
            taken.append(victim)
        enough = account.admits(unit).ok
        needed = []
        for victim in reversed(taken):
            debtor, held = account.queue_of(victim.unit), account.amounts_of(victim.unit)
            account.tree.charge(debtor, held)
            if enough and not account.admits(unit).ok:
                account.tree.refund(debtor, held)
                needed.append(victim)
        for victim in needed:
            account.tree.charge(account.queue_of(victim.unit), account.amounts_of(victim.unit))
        return needed[::-1]

    def victims(
        self, unit: PendingUnit, running: Sequence[RunningUnit], context: OrderContext
    ) -> Sequence[RunningUnit]:
        """Units of queues that borrow, for a unit that is within quota and finds no room; most over its share first."""
        account: QuotaAccount = context.cache[QUOTA]
        queue = account.queue_of(unit)
        if not queue:
            return ()
        verdict = account.admits(unit)
        path = account.tree.path(queue)
        if not verdict.ok or verdict.covered_by == path[-1] != queue:
            return ()
        wanted = tuple([name for name, amount in account.amounts_of(unit).items() if amount])
        rank = unit.priority if self._only_lower_priority else 0
        state = (self.name, queue, verdict.covered_by, wanted, rank), (account.version, len(running))
        known = context.cache.get(state[0])
        if known is None or known[0] != state[1]:
            own = set(path[: path.index(verdict.covered_by) + 1])
            left = self._by_queue(unit, running, account, context)
            known = context.cache[state[0]] = state[1], _owing(account, left, path, own, wanted)
        found: list[RunningUnit] = known[1]
        return found

    def _by_queue(
        self, unit: PendingUnit, running: Sequence[RunningUnit], account: QuotaAccount, context: OrderContext
    ) -> dict[str, list[RunningUnit]]:
        """Units that may be taken, by queue, the cheapest first. Within a cycle units that run only become fewer."""
        known = context.cache.get("reclaimable")
        if known is None or known[0] != len(running):
            by_queue: dict[str, list[RunningUnit]] = {}
            for item in running:
                if item.unit.preemptible and account.is_charged(item.unit.key):
                    by_queue.setdefault(account.queue_of(item.unit), []).append(item)
            for units in by_queue.values():
                units.sort(key=lambda item: (item.unit.priority, _lost_work(item, context.now_s), item.unit.key))
            known = context.cache["reclaimable"] = len(running), by_queue
        return {
            queue: [item for item in units if not self._only_lower_priority or item.unit.priority < unit.priority]
            for queue, units in known[1].items()
        }


def _owing(
    account: QuotaAccount,
    left: dict[str, list[RunningUnit]],
    path: Sequence[str],
    own: set[str],
    wanted: Sequence[str],
) -> list[RunningUnit]:
    """Units of queues that borrow, in the order in which to take them; the tree is left as it was."""
    taken: list[RunningUnit] = []
    heap = [(-_over_share(account, name, path, own, wanted), name) for name in account.borrowing() & left.keys()]
    heapq.heapify(heap)
    while heap:
        share, debtor = heapq.heappop(heap)
        # Shares only fall as units are taken.
        now = -_over_share(account, debtor, path, own, wanted)
        if now >= 0 or not left[debtor]:
            continue
        if now == share:
            victim = left[debtor].pop(0)
            account.tree.refund(debtor, account.amounts_of(victim.unit))
            taken.append(victim)
        heapq.heappush(heap, (now, debtor))
    for victim in reversed(taken):
        account.tree.charge(account.queue_of(victim.unit), account.amounts_of(victim.unit))
    return taken


def _first_holding(units: Sequence[RunningUnit], resource: str, account: QuotaAccount) -> RunningUnit | None:
    return next((item for item in units if account.amounts_of(item.unit).get(resource, 0)), None)


def _over_share(account: QuotaAccount, debtor: str, path: Sequence[str], own: set[str], wanted: Sequence[str]) -> float:
    """The part of the root's quota that the debtor borrowed, by its weight; 0 when the asking queue has no claim on it:
    it lies in the branch whose quota covers the unit, or it or a queue between it and the branching point owes nothing."""
    above = account.tree.path(debtor)
    between = [name for name in above if name not in path]
    if not between or above[len(between)] in own:
        return 0.0
    borrowed = [account.tree.borrowed(name) for name in between]
    owed = [name for name in wanted if name in borrowed[0] and all(part[name] > 0 for part in borrowed)]
    if not owed:
        return 0.0
    whole = account.tree.quota(path[-1])
    return max(borrowed[0][name] / max(whole[name], 1) for name in owed) / account.weights[debtor]


def _lost_work(running: RunningUnit, now_s: float) -> float:
    """Accelerator-seconds that an interruption now would cost."""
    return running.lost_s(now_s) * max(running.unit.devices, 1.0)
