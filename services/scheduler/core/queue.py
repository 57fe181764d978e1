"""Which unit may go next: waiting units, what they declare about themselves, and the criteria that order them.

Order plugins compare lexicographically; the smallest key goes first, then the older unit, then the smaller id. The lanes
that make this cheap are in `pending.py`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.ledger import Usage
from services.scheduler.core.options import numbers_of
from services.scheduler.core.state import Demand, UnitKey

INFINITE = math.inf
_SLACK_S = 1e-6
_LEAST_EFFORT_S = 1.0
_MOST_LEVELS = 64
_DECIMALS = 6
"""Of cpus and accelerators held: what is less is left over from adding and taking away fractions."""


@dataclass(frozen=True, slots=True)
class PendingUnit:
    """A unit that may be placed now.

    ``queue`` names its place in the tree of quotas (empty: its tenant). ``limit_s`` is the run time that its user declared,
    ``expected_s`` what is predicted for a whole run of it (infinite: unknown), ``low_s`` and ``high_s`` the band of it;
    ``attained_s`` is how long it ran already (progress that it kept), ``served_s`` how long it
    held nodes for that, restarts and lost work included, ``service_index`` what the predictor says about its worth (greater goes first).
    ``deadline_s`` and ``queued_at_s`` are times, ``value`` what finishing in time is worth. ``min_ranks`` and ``max_ranks``
    other than 0 say that the number of ranks may change. ``restart_s`` is what an interruption costs it.
    """

    key: UnitKey
    tenant_id: str
    priority: int
    queued_at_s: float
    demand: Demand
    queue: str = ""
    submitted_at_s: float = 0.0
    limit_s: float = INFINITE
    expected_s: float = INFINITE
    low_s: float = 0.0
    high_s: float = INFINITE
    attained_s: float = 0.0
    served_s: float = 0.0
    service_index: float = 0.0
    deadline_s: float = INFINITE
    value: float = 1.0
    preemptible: bool = True
    min_ranks: int = 0
    max_ranks: int = 0
    restart_s: float = 0.0
    work: float = 0.0
    kind: str = "batch"

    @property
    def devices(self) -> float:
        """Accelerators over all ranks, counting shares."""
        demand = self.demand
        return demand.ranks * demand.accelerators * (demand.device_milli / 1000.0)

    @property
    def service_s(self) -> float:
        """How long it held nodes so far."""
        return max(self.served_s, self.attained_s)

    @property
    def remaining_s(self) -> float:
        """What is predicted to be left of its run."""
        return max(self.expected_s - self.attained_s, 0.0)


class Shares:
    """Dominant shares (Ghodsi et al., NSDI 2011): the greater of a tenant's parts of all accelerators and all cpus,
    divided by its weight. What a tenant holds is read when it is asked for first: to be used before the next change."""

    def __init__(
        self, held: Mapping[str, Usage], total_accelerators: float, total_cpus: float, weights: Mapping[str, float]
    ) -> None:
        self._usages = held
        self._held: dict[str, list[float]] = {}
        """What was asked about or charged."""
        self._total_accelerators = max(total_accelerators, 1.0)
        self._total_cpus = max(total_cpus, 1.0)
        self._weights = weights

    def of(self, tenant_id: str) -> float:
        """The tenant's weighted dominant share."""
        held = self._held.get(tenant_id)
        if held is None:
            held = self._read(tenant_id)
        accelerators, cpus = round(held[0], _DECIMALS), round(held[1], _DECIMALS)
        dominant = max(accelerators / self._total_accelerators, cpus / self._total_cpus)
        return dominant / self._weights.get(tenant_id, 1.0)

    def charge(self, tenant_id: str, demand: Demand, sign: int = 1) -> None:
        """Count a placed (with ``sign`` -1: a preempted) unit's demand as held."""
        held = self._held.get(tenant_id)
        if held is None:
            held = self._read(tenant_id)
        held[0] += sign * demand.ranks * demand.accelerators * (demand.device_milli / 1000.0)
        held[1] += sign * demand.ranks * demand.cpus

    def _read(self, tenant_id: str) -> list[float]:
        usage = self._usages.get(tenant_id)
        found = self._held[tenant_id] = [0.0, 0.0] if usage is None else [usage.accelerators, usage.cpus]
        return found


@dataclass(slots=True)
class OrderContext:
    """What order plugins may read: the tenants' shares, the time, and whatever else the cycle knows by name."""

    shares: Shares
    now_s: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    cache: dict[Any, Any] = field(default_factory=dict)
    """For plugins: what they worked out in this cycle."""


class Order(Protocol):
    """An ordering criterion. The smallest key goes first.

    ``per`` says what the key depends on: "unit" (nothing but the unit, so it is computed once), "tenant" (its tenant and
    queue too: only placements of the same tenant or queue may change it within a cycle, and only upwards), "placements"
    (the same, but any placement may), or "time" (on the unit and the time: computed anew in every cycle).

    A plugin may have more methods: ``keys(units, context)``, the keys of many units at once (an array, for "time");
    ``charged(unit, sign, context)``, told of each placement (1) and preemption (-1), which returns True when keys may have
    fallen; ``running_key(running, context)``, the key of a unit that runs, ``running_keys(running, context)`` of many;
    ``changes_at_s(running, now_s)``, when that key grows by itself. ``steady`` True promises that the key of a unit that runs
    never grows otherwise, but when it outlives its estimate. ``lasting`` True promises that this key stays the same altogether
    until then; ``by_end`` names the estimate by which this key is the time to the unit's end (``running.end_s`` less now).

    ``scale`` says what a ratio between two keys means: "amount" (keys are amounts of at least 0: how many times one is the other),
    "logarithm" (of amounts: the same of their difference). Without it keys only say who comes first, as points in time, levels and
    priorities do.
    """

    name: str
    per: str

    def key(self, unit: PendingUnit, context: OrderContext) -> float | tuple[float, ...]:
        """The unit's rank by this criterion."""
        ...


class PriorityOrder:
    """Higher priority first."""

    name = "priority"
    per = "unit"
    steady = True
    lasting = True

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return -float(unit.priority)

    def running_key(self, running: Any, context: OrderContext) -> float:
        """The same of a unit that runs."""
        return -float(running.unit.priority)


class FairShareOrder:
    """The tenant that holds least first."""

    name = "fair_share"
    per = "tenant"
    scale = "amount"

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return context.shares.of(unit.tenant_id)


class AgeOrder:
    """Who waits longest first; a unit that lost its run keeps its age."""

    name = "age"
    per = "unit"
    steady = True
    lasting = True

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return unit.queued_at_s

    def running_key(self, running: Any, context: OrderContext) -> float:
        """The same of a unit that runs."""
        return float(running.unit.queued_at_s)

    def running_keys(self, running: Sequence[Any], context: OrderContext) -> list[float]:
        """The same of many."""
        return [item.unit.queued_at_s for item in running]


class SmallestOrder:
    """Fewest accelerators, then fewest cpus first: shortest queue, at the cost of large gangs."""

    name = "smallest"
    per = "unit"
    scale = "amount"

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return unit.demand.ranks * (unit.demand.accelerators * 1e6 + unit.demand.cpus)


class ShortestOrder:
    """Least predicted run time first (shortest job first); with exact predictions an oracle."""

    name = "shortest"
    per = "unit"
    scale = "amount"

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return unit.expected_s


class ShortestRemainingOrder:
    """Least predicted remaining run time first."""

    name = "shortest_remaining"
    per = "unit"
    scale = "amount"
    steady = True
    by_end = "expected"

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return unit.remaining_s

    def running_key(self, running: Any, context: OrderContext) -> float:
        """The same of a unit that runs."""
        return float(running.end_s(context.now_s, "expected")) - context.now_s

    def running_keys(self, running: Sequence[Any], context: OrderContext) -> list[float]:
        """The same of many."""
        now_s, soon_s = context.now_s, context.now_s + _SLACK_S
        return [
            # What is as it was expected needs no estimate of how much longer.
            (end_s if soon_s < end_s < INFINITE else item.end_s(now_s, "expected")) - now_s
            for item in running
            for end_s in (item.expected_end_s,)
        ]


class LeastWorkOrder:
    """Least predicted remaining accelerator-seconds first (remaining time times accelerators)."""

    name = "least_work"
    per = "unit"
    scale = "amount"

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return unit.remaining_s * max(unit.devices, 1.0)

    def running_key(self, running: Any, context: OrderContext) -> float:
        """The same of a unit that runs."""
        left = float(running.end_s(context.now_s, "expected")) - context.now_s
        return left * max(float(running.unit.devices), 1.0)


class ServiceIndexOrder:
    """Greatest service index first (Gittins, or whatever the predictor gives)."""

    name = "service_index"
    per = "unit"
    renews = True

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return -unit.service_index

    def running_key(self, running: Any, context: OrderContext) -> float:
        """The same of a unit that runs, as it was last asked about."""
        return -float(running.service_index)


class ShortestEffortOrder:
    """Least effort until an end first: between the predicted remaining time and 1 / the Gittins index, the service that is
    spent per job of this kind that ends when each gets the share that suits best.

    The median says nothing about the few that end early or run on for days, the index nothing about a job's own
    predictions. The key is their geometric mean, remaining^(1 - weight) x index^-weight: as run times are spread over
    orders of magnitude, errors of both are of their logarithms. With exact run times both are the remaining time (SRPT).
    Without an index the remaining time decides.

    Efforts from ``ceiling_s`` on count alike, so what follows in the order, in the end age, decides between them. A job that
    has run long looks ever longer: without a ceiling the longest jobs share the time and all end late, while first come,
    first served is best for the tail where sizes are bounded (Wierman and Zwart, "Is Tail-Optimal Scheduling Possible?",
    Operations Research 60(5), 2012), and Tiresias serves its last queue so.

    With ``patience_s`` an effort below the ceiling counts as less, the longer ago the unit was queued: a factor of e for each
    ``patience_s``. Who waits is passed by shorter ones for a while, not for ever. That is the order by boosted arrivals, queued -
    patience x ln(1 / effort), whose tail is best where sizes are light-tailed (Yu and Scully, "Strongly Tail-Optimal Scheduling
    in the Light-Tailed M/G/1", Proc. ACM Meas. Anal. Comput. Syst. 8(2), 2024, there with another boost for long jobs). What
    has the ceiling comes last at any age: a few jobs of weeks would else get ahead of all others. Keys are logarithms then, so
    that they do not change with time while a unit waits.
    """

    name = "shortest_effort"
    per = "unit"
    renews = True

    def __init__(self, weight: float = 0.5, ceiling_s: float = INFINITE, patience_s: float = INFINITE) -> None:
        self.weight, self.ceiling_s, self.patience_s = weight, ceiling_s, patience_s
        self.scale = "amount" if patience_s == INFINITE else "logarithm"

    def configured(self, options: Mapping[str, Any]) -> ShortestEffortOrder:
        """With ``weight`` of the index (0-1; 0: the remaining time alone, 1: the index alone), ``ceiling_s`` and ``patience_s``
        (seconds, at least 1; without it there is none, and efforts keep what they are)."""
        made = ShortestEffortOrder(**numbers_of(self.name, options, weight=0.0, ceiling_s=1.0, patience_s=1.0))
        if made.weight > 1.0:
            raise PolicyError(f"options.{self.name}.weight: must be at most 1, not {made.weight:g}")
        return made

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return self._rank(self._effort_s(unit.remaining_s, unit.service_index), unit.queued_at_s)

    def running_key(self, running: Any, context: OrderContext) -> float:
        """The same of a unit that runs, with the index as it was last asked about."""
        left_s = float(running.end_s(context.now_s, "expected")) - context.now_s
        return self._rank(self._effort_s(left_s, float(running.service_index)), float(running.unit.queued_at_s))

    def _rank(self, effort_s: float, queued_at_s: float) -> float:
        if self.patience_s == INFINITE:
            return min(effort_s, self.ceiling_s)
        if effort_s >= self.ceiling_s:
            return INFINITE
        return math.log(max(effort_s, _LEAST_EFFORT_S)) + queued_at_s / self.patience_s

    def _effort_s(self, remaining_s: float, index: float) -> float:
        if index <= 0 or not self.weight:
            return remaining_s
        if self.weight == 1.0:
            return 1.0 / index
        return float(remaining_s ** (1.0 - self.weight) * index**-self.weight)


class DeadlineOrder:
    """Earliest deadline first."""

    name = "deadline"
    per = "unit"

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return unit.deadline_s


class LeastAttainedOrder:
    """Two-dimensional least attained service (Tiresias, Gu et al., NSDI 2019): accelerators times time so far, in queues;
    what follows in the order decides inside a queue (first in, first out: age).

    ``threshold_s`` are the accelerator-seconds after which a unit falls into the second queue; with ``levels`` L > 2 there
    are L queues, each ``growth`` times as long as the one before (multi-level feedback).
    """

    name = "least_attained"
    per = "unit"
    steady = True
    lasting = True

    def __init__(self, threshold_s: float = 3600.0, levels: float = 2, growth: float = 2.0) -> None:
        self._thresholds = [threshold_s * growth**level for level in range(int(levels) - 1)]

    def configured(self, options: Mapping[str, Any]) -> LeastAttainedOrder:
        """With ``threshold_s``, ``levels`` (2-64) and ``growth`` (at least 1)."""
        numbers = numbers_of(self.name, options, threshold_s=0.0, levels=2.0, growth=1.0)
        if numbers.get("levels", 0.0) > _MOST_LEVELS:
            raise PolicyError(f"options.{self.name}.levels: must be at most {_MOST_LEVELS}, not {numbers['levels']:g}")
        try:
            return LeastAttainedOrder(**numbers)
        except OverflowError:
            raise PolicyError(f"options.{self.name}.growth: is too great for so many levels") from None

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return float(bisect_right(self._thresholds, unit.service_s * max(unit.devices, 1.0) + _SLACK_S))

    def running_key(self, running: Any, context: OrderContext) -> float:
        """The same of a unit that runs."""
        served = float(running.service_s(context.now_s)) * max(float(running.unit.devices), 1.0)
        return float(bisect_right(self._thresholds, served + _SLACK_S))

    def running_keys(self, running: Sequence[Any], context: OrderContext) -> list[float]:
        """The same of many."""
        now_s, thresholds = context.now_s, self._thresholds
        width: dict[int, float] = {}
        keys = []
        alone = thresholds[0] if len(thresholds) == 1 else None
        for item in running:
            unit = item.unit
            devices = width.get(id(unit.demand))
            if devices is None:
                devices = width[id(unit.demand)] = max(unit.devices, 1.0)
            served_s = max(unit.attained_s, unit.served_s)
            if now_s > item.since_s:
                served_s += now_s - item.since_s
            served = served_s * devices + _SLACK_S
            level = served >= alone if alone is not None else bisect_right(thresholds, served)
            keys.append(float(level))
        return keys

    def changes_at_s(self, running: Any, now_s: float) -> float:
        """When a running unit falls into the next queue: a cycle is wanted then. Infinite when it is in the last one."""
        devices = max(float(running.unit.devices), 1.0)
        level = bisect_right(self._thresholds, float(running.service_s(now_s)) * devices + _SLACK_S)
        if level >= len(self._thresholds):
            return INFINITE
        return float(running.since_s + self._thresholds[level] / devices - running.unit.service_s)


ORDERS: dict[str, Order] = {}


def register(plugin: Order) -> None:
    """Make an order known by its name; PolicyError when the name is taken."""
    if plugin.name in ORDERS:
        raise PolicyError(f"an order {plugin.name!r} exists already")
    if plugin.per not in {"unit", "tenant", "placements", "time"}:
        raise PolicyError(f"order {plugin.name!r}: per must be unit, tenant, placements or time, not {plugin.per!r}")
    ORDERS[plugin.name] = plugin


for _plugin in (
    PriorityOrder(),
    FairShareOrder(),
    AgeOrder(),
    SmallestOrder(),
    ShortestOrder(),
    ShortestRemainingOrder(),
    LeastWorkOrder(),
    ServiceIndexOrder(),
    ShortestEffortOrder(),
    DeadlineOrder(),
    LeastAttainedOrder(),
):
    register(_plugin)


def orders(names: Iterable[str]) -> tuple[Order, ...]:
    """The order plugins of these names; PolicyError when one does not exist."""
    try:
        return tuple(ORDERS[name] for name in names)
    except KeyError as error:
        raise PolicyError(f"there is no order {error.args[0]!r}; known are {', '.join(sorted(ORDERS))}") from None
