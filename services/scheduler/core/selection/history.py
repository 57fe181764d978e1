"""Usage that fades (entitlement/fair_share.py: `DecayedUsage`), kept from cycle to cycle: a unit that runs uses its dominant share of the
cluster in each second, so that a unit of usage is the whole cluster for one second.

Per account (queue or tenant) the rate of use and the time of its last change are kept, so that an event costs O(1) and
reading costs O(accounts), however many units run.
"""

from __future__ import annotations

import math

from services.scheduler.core.entitlement.fair_share import DecayedUsage
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.selection.amounts import Amounts, Meter, account_of, index_key
from services.scheduler.core.state import UnitKey
from services.scheduler.core.watching import Watched


class UsageHistory:
    """See the module. An end without a time counts as one at the next event or cycle. The share of a unit is that of the nodes
    that there are when it begins."""

    def __init__(self, half_life_s: float, cluster: Watched) -> None:
        self._decay = math.log(2.0) / half_life_s if half_life_s else 0.0
        self._past = DecayedUsage(half_life_s)
        self._meter = Meter(cluster)
        self._rates: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._units: dict[UnitKey, tuple[str, float]] = {}
        self._ending: list[tuple[str, float]] = []

    def began(self, running: RunningUnit) -> None:
        """A unit uses its share from now on."""
        now_s = running.since_s
        self.settle(now_s)
        account = account_of(running.unit)
        rate = dominant_part(self._meter.held(running), self._meter.capacity())
        self._units[running.unit.key] = account, rate
        self._change(account, rate, now_s)

    def ended(self, running: RunningUnit, now_s: float) -> None:
        """A unit uses nothing more."""
        known = self._units.pop(running.unit.key, None)
        if known is None:
            return
        if math.isnan(now_s):
            self._ending.append(known)
            return
        self.settle(now_s)
        self._change(known[0], -known[1], now_s)

    def settle(self, now_s: float) -> None:
        """Units that ended at an unknown time ended now."""
        while self._ending:
            account, rate = self._ending.pop()
            self._change(account, -rate, now_s)

    def values(self, now_s: float) -> dict[str, float]:
        """Faded usage of all accounts at a time; O(accounts)."""
        return {account: self._value(account, now_s) for account in self._since}

    def _value(self, account: str, now_s: float) -> float:
        since_s = self._since[account]
        now_s = max(now_s, since_s)
        length = now_s - since_s
        running = -math.expm1(-self._decay * length) / self._decay if self._decay else length
        return self._past.value(account, now_s) + self._rates[account] * running

    def _change(self, account: str, rate: float, now_s: float) -> None:
        before = self._rates.get(account, 0.0)
        since_s = self._since.get(account, now_s)
        # Units that ran before they were watched may come in any order of time.
        at_s = max(now_s, since_s)
        self._past.add_run(account, before, since_s, at_s)
        if now_s < at_s and rate > 0:
            self._past.add_run(account, rate, now_s, at_s)
        after = before + rate
        self._rates[account] = after if after > 1e-15 else 0.0
        self._since[account] = at_s


def dominant_part(amounts: Amounts, capacity: Amounts) -> float:
    """The greatest part of the cluster's accelerators, cpus, memory or a named resource that amounts are (0-1)."""
    return max((amounts.get(name, 0) / total for name, total in capacity.items() if total), default=0.0)


def history_of(cluster: Watched, half_life_s: float) -> UsageHistory:
    """The history of a cluster at this half-life (seconds; 0: nothing fades), shared by the plugins that want the same."""
    name = f"usage {half_life_s:g}"
    return cluster.watch(name, index_key(cluster), lambda: UsageHistory(half_life_s, cluster))
