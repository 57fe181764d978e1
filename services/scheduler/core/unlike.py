"""A policy that serves unlike workloads unlike: which planner, if any, decides now.

An order with a place for each unit when its turn comes is what units need that run equally fast wherever they are put. Where rates
differ from one accelerator model to the next, who runs on what has to be planned together: ordering alone took 1.7 times as
long as Gavel's program on Gavel's traces (docs/simulating.md). So a policy may name an ``unlike_planner``. It decides about units
with accelerators while the rates of at least half of them, waiting or running, are known to differ between the models of the
network (by more than `LEAST_RATIO`), and goes on until that are fewer than a quarter, so that one unit more or less does not
change the way of deciding again and again. Beyond `MOST_UNITS` each is placed in its turn: a plan is made in a cycle. Units without accelerators are decided on in the order of the policy all the while.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.policy import Policy
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.scoring.facts import with_method
from services.scheduler.core.stages import Stages, stages_of, unlike_stages_of
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Table

LEAST_RATIO = 1.05
"""Rates that differ by less are alike."""
_BEGINS, _GOES_ON = 0.5, 0.25
MOST_UNITS = 2000
"""Units with accelerators that are planned together: more would hold a cycle for seconds (10,000 took 1.2 to 3.3 s each)."""
IN_TURN = "placed_in_turn"
"""The fact that nothing is planned here, whatever the policy says: on two levels each unit is placed in its turn."""
_NAME, _STAGES = "unlike", "stages"


@dataclass(frozen=True, slots=True)
class Unlike:
    """Units with accelerators that wait or run (``units``), those of them whose rates differ, and whether a planner is followed."""

    units: int = 0
    differ: int = 0
    follows: bool = False


class _Count:
    """Running units by what their rates hang on, and whether the planner was followed last. It belongs to the cluster."""

    def __init__(self) -> None:
        self.running: Counter[tuple[str, int]] = Counter()
        self.follows = False
        self._known: dict[tuple[str, int, tuple[str, ...]], bool] = {}
        self._of: tuple[Table, object] | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> _Count:
        other = _Count()
        other.running, other.follows = self.running.copy(), self.follows
        return other

    def began(self, running: RunningUnit) -> None:
        """A unit holds nodes."""
        demand = running.unit.demand
        if demand.accelerators and running.unit.key.is_unit:
            self.running[demand.profile, demand.ranks] += 1

    def ended(self, running: RunningUnit, now_s: float) -> None:
        """A unit holds nothing more."""
        demand = running.unit.demand
        if demand.accelerators and running.unit.key.is_unit:
            self.running[demand.profile, demand.ranks] -= 1

    def of(self, cluster: Cluster) -> Unlike:
        """How it is now."""
        rates = cluster.view.facts.get("throughputs")
        if self._of is None or self._of[0] is not cluster.table or self._of[1] is not rates:
            self._known, self._of = {}, (cluster.table, rates)
        units = differ = 0
        for (profile, ranks), count in self.running.items():
            units += count
            # What a plan gave it says nothing of what it accepts.
            differ += count if profile and self._differ(cluster, profile, ranks, ()) else 0
        for lane in cluster.pending.lanes.values():
            demand: Demand = lane.demand
            if demand.accelerators:
                count = len(lane.entries)
                units += count
                profile = demand.profile
                differ += count if profile and self._differ(cluster, profile, demand.ranks, _types(demand)) else 0
        least = _GOES_ON if self.follows else _BEGINS
        if cluster.view.facts.get(IN_TURN):
            return Unlike(units, differ)
        return Unlike(units, differ, differ > 0 and differ >= least * units and units <= MOST_UNITS)

    def _differ(self, cluster: Cluster, profile: str, ranks: int, types: tuple[str, ...]) -> bool:
        found = self._known.get((profile, ranks, types))
        if found is None:
            asked = with_method(cluster.view, "throughputs", "rate")
            columns = cluster.view.columns(Demand(ranks, accelerators=1, accelerator_types=types))
            values = (
                [asked.rate(profile, ranks, cluster.table.models[column].model) for column in columns] if asked else []
            )
            found = bool(values) and max(values) > LEAST_RATIO * min(values)
            self._known[profile, ranks, types] = found
        return found


def _types(demand: Demand) -> tuple[str, ...]:
    return demand.accelerator_types


def unlike(cluster: Cluster) -> Unlike:
    """How the units of a cluster are, whose policy has an ``unlike_planner``."""
    return _count(cluster).of(cluster)


def _count(cluster: Cluster) -> _Count:
    return cluster.watch(_NAME, None, _Count)


def stages_now(cluster: Cluster, policy: Policy) -> Stages:
    """The policy's plugins as they apply to what waits and runs now. Nothing is changed."""
    if policy.unlike_planner and unlike(cluster).follows:
        return unlike_stages_of(policy)
    return stages_of(policy)


def begin_cycle(cluster: Cluster, policy: Policy) -> Stages:
    """The same for a cycle that begins: another way of deciding forgets what the last cycle found."""
    if not policy.unlike_planner:
        known: Stages | None = cluster.looked_up.get(_STAGES)
        if known is None:
            known = cluster.looked_up[_STAGES] = stages_of(policy)
        return known
    count = _count(cluster)
    before, count.follows = count.follows, count.of(cluster).follows
    if count.follows != before:
        cluster.forget()
    return unlike_stages_of(policy) if count.follows else stages_of(policy)


def stages_of_last(cluster: Cluster, policy: Policy) -> Stages:
    """The policy's plugins as they applied in the cluster's last cycle."""
    if policy.unlike_planner and _count(cluster).follows:
        return unlike_stages_of(policy)
    return stages_of(policy)


def plans(cluster: Cluster, policy: Policy) -> bool:
    """Whether a planner decides now."""
    return bool(policy.planner) or (bool(policy.unlike_planner) and unlike(cluster).follows)


def said(cluster: Cluster, policy: Policy) -> str:
    """Why the planner decides, for people."""
    found = unlike(cluster)
    return f"the planner {policy.unlike_planner} decides while rates differ by accelerator ({found.differ} of {found.units} units)"
