"""Domains for what waits: the question that a round begins with, over what the domains told, awake or asleep."""

from __future__ import annotations

from collections.abc import Iterable

from services.scheduler.core.admission import Gate
from services.scheduler.core.apart.refusals import Refusals
from services.scheduler.core.apart.shares import whole
from services.scheduler.core.apart.told import Told
from services.scheduler.core.apart.waking import Waking, with_sleepers
from services.scheduler.core.book import Book
from services.scheduler.core.contracts.contract import tell
from services.scheduler.core.policy import Policy
from services.scheduler.core.stages import stages_of
from services.scheduler.core.two_level import Dispatch, InterDomain
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit


class Choosing:
    """Chooses by ``policy``, from what was ``told``, with what was refused lately left out."""

    def __init__(self, policy: Policy, told: Told, refusals: Refusals, waking: Waking) -> None:
        self.policy = policy
        self._told, self._refusals, self._waking = told, refusals, waking

    def choose(self, inter: InterDomain, book: Book, now_s: float, *, certain: bool) -> tuple[Dispatch, list[Gate]]:
        """Domains for what waits, and the limits that held units back; ``certain`` as in `InterDomain.dispatch`."""
        cluster = book.cluster
        account = book.promises.shares
        if account is not None:
            table = inter.view.table
            tell(inter, whole(account, self._told.shares.values(), table.domain_ids, table.domain_devices), now_s)
        facts = {**cluster.view.facts, "running": cluster.running, "order": cluster.pending.order, "cluster": cluster}
        context = OrderContext(cluster.shares(), now_s, facts)
        gates = [limit.open(context) for limit in stages_of(self.policy).limits]
        self._refusals.begin_round(cluster.pending, self._told.summaries, self._told.links, now_s)
        found = inter.dispatch(
            cluster.pending,
            context,
            excluded=self._refusals.excluded,
            refused=self._refusals.not_asked,
            gates=gates,
            certain=certain,
            explain=True,
        )
        return found, gates

    def choose_sleepers(self, book: Book, now_s: float, *, certain: bool) -> Dispatch | None:
        """Domains that would have room if their sleeping nodes were woken; None when nobody sleeps who could help."""
        told, pending = self._told.summaries, book.cluster.pending
        waiting = list(dict.fromkeys(demand for _, _, demand in pending.lanes))
        names = [name for name in sorted(told) if self._told.reachable(name)]
        if not any(self._waking.has_room(name, waiting) for name in names):
            return None
        summaries = [with_sleepers(told[name], self._waking.asleep.get(name)) for name in names]
        inter = InterDomain(book.fleet, summaries, self.policy)
        inter.know(pending)
        return self.choose(inter, book, now_s, certain=certain)[0]


def no_room(unit: PendingUnit, gates: Iterable[Gate]) -> str:
    """Why a unit waits that no domain has room for, or that a limit holds back."""
    reason = next((reason for gate in gates if (reason := gate.refuses(unit))), "")
    return reason or f"waiting for capacity: no domain told of room for {unit.demand.ranks} ranks"
