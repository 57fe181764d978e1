"""The share contract between the network and its domains: what each was promised, what it gave, and who comes next.

A plan says which part of all accelerator time each domain gives per window (an hour). Given time is counted exactly: what a
unit holds, from the moment it begins to the moment it ends, cut at the borders of windows. The deviation of a domain in a
window is ``|given share - planned share| / planned share``.

Keeping it (`ShareDeficitScore`), without taking anything off:
1. Project what each domain will have given at the end of the window: what it gave, and what its units are thought to go on
   holding; the same for the window after it, so that a correction late in one window is no excess in the next.
2. A domain's need is how far its projection with the unit stays below its plan, relative to the plan.
3. Need 0 gives one half; the value moves away from it the steeper, the less is tolerated.

A promise that nobody could have kept is told apart (plan.py: `infeasible`), by rules that do not depend on what was decided in
the window: see there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from services.scheduler.core.contracts.account import KEPT_WINDOWS, ShareAccount
from services.scheduler.core.contracts.plan import (
    PLUGIN,
    SharePlan,
)
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import Floats
from services.scheduler.core.view import View
from services.scheduler.core.watching import Watched

_ENOUGH = 0.8
"""Part of the tolerated deviation that no unit is moved for."""


def install(
    cluster: Watched, plan: SharePlan, now_s: float, *, kept: int = KEPT_WINDOWS, pieces: bool = False
) -> ShareAccount:
    """Count what the cluster's domains give from now on, and let the scores see it. What runs counts from ``now_s`` on.

    The caller tells the time before each cycle with `tell`.
    """
    table = cluster.table

    def make() -> ShareAccount:
        return ShareAccount(plan, table.domain_ids, table.domain_devices, now_s, kept=kept, pieces=pieces)

    account: ShareAccount = cluster.watch("share_contract", plan, make)
    tell(cluster, account, now_s)
    return account


class Sees(Protocol):
    """What has a view of the domains: a cluster, or the network's side of two levels."""

    @property
    def view(self) -> View:
        """What is free, and the facts that plugins read by name."""
        ...


def tell(where: Sees, account: ShareAccount, now_s: float) -> None:
    """It is ``now_s``: the facts ``share_gap`` and ``share_contract`` are brought up to date."""
    account.advance(now_s)
    view = where.view
    view.facts["share_gap"] = account.gap()
    view.facts["share_contract_free"] = view.domain_free_devices.copy()
    view.state("share_contract", account)


def refitted(cluster: Watched) -> None:
    """The cluster's table is another one: so are the domains of its share account, if it has one."""
    account = cluster.view.facts.get("share_contract")
    if isinstance(account, ShareAccount):
        account.fit(cluster.table.domain_ids, cluster.table.domain_devices)
        tell(cluster, account, account.now_s)


def moves(
    account: ShareAccount, running: Iterable[RunningUnit], free: Floats, *, again_first: bool = False
) -> list[UnitKey]:
    """Units that had to be taken off, and placed anew by need, for every domain to be within four fifths of what is tolerated at
    the end of the window; ``free`` (D) are free accelerators. A suggestion: it costs interruptions, the score does not.

    Steps: 1. by the projection to the window's end, how many accelerators each domain would have to hold more or less for
    the rest of it; 2. from the domain with the greatest excess to the one with the greatest lack that has room; 3. the unit
    that is thought to run longest among those that are no larger than both, until nothing fits. With ``again_first`` one that
    was interrupted before, if there is any: fewer units bear the moves, which may have to be more, or may not suffice.
    """
    left_s = account.end_s - account.now_s
    row = account.planned_row()
    this, _ = account.projections()
    wanted = row * (account.plan.window_s if account.plan.kind == "accelerators" else float(this[~np.isnan(row)].sum()))
    over = np.nan_to_num((this - wanted) / left_s)
    least = np.nan_to_num(_ENOUGH * account.plan.tolerance * wanted / left_s)
    room = np.array(free, dtype=np.float64)
    by_domain: dict[int, list[tuple[bool, float, float, UnitKey]]] = {}
    index = {name: place for place, name in enumerate(account.domain_ids)}
    for item in running:
        places = {rank.domain_id for rank in item.ranks}
        if item.unit.preemptible and item.unit.devices and len(places) == 1:
            lasts_s = min(item.end_s(account.now_s, "expected") - account.now_s, left_s)
            before = again_first and item.unit.service_s > 0
            by_domain.setdefault(index[places.pop()], []).append((before, lasts_s, item.unit.devices, item.unit.key))
    for units in by_domain.values():
        units.sort()
    found: list[UnitKey] = []
    while True:
        give, take = int(over.argmax()), int(np.where(room >= 1.0, over, np.inf).argmin())
        if over[give] <= least[give] and -over[take] <= least[take]:
            return found
        most = min(over[give], -over[take], room[take]) + 0.5
        units = by_domain.get(give, [])
        place = next((n for n in range(len(units) - 1, -1, -1) if units[n][2] <= most), None)
        if place is None:
            return found
        _, lasts_s, size, key = units.pop(place)
        found.append(key)
        over[give] -= size * lasts_s / left_s
        over[take] += size * lasts_s / left_s
        room[give] += size
        room[take] -= size


class ShareDeficitScore:
    """The domain that is farthest below its promise first; see the module. One half without a contract.

    The value is ``(1 + need / (|need| + tolerance)) / 2``, need the projected lack with half of the unit there, relative to
    the plan: at the tolerated deviation three quarters or one quarter. Options: those of `SharePlan`.
    """

    name = PLUGIN
    dynamic = True

    def __init__(self, plan: SharePlan | None = None) -> None:
        self._plan = plan

    def configured(self, options: Mapping[str, Any]) -> ShareDeficitScore:
        """With the options of a policy; PolicyError names the wrong one."""
        return ShareDeficitScore(SharePlan.of(options))

    def domains(self, view: View, demand: Demand) -> Floats:
        account = view.facts.get("share_contract")
        if not isinstance(account, ShareAccount):
            return np.full(len(view.table.domain_ids), 0.5)
        need = needs(account, demand.ranks * demand.accelerators * demand.device_milli / 1000.0, self._placed(view))
        tolerance = account.plan.tolerance
        values: Floats = (1.0 + np.nan_to_num(need / (np.abs(need) + tolerance))) / 2.0
        return values

    def _placed(self, view: View) -> Floats:
        """Accelerators (D) that were taken since the account was told the time."""
        before = view.facts.get("share_contract_free")
        if before is None:
            return np.zeros(len(view.table.domain_ids))
        taken: Floats = before - view.domain_free_devices
        return taken


def needs(account: ShareAccount, accelerators: float, placed: Floats) -> Floats:
    """(D) how far each domain is projected to stay below its plan with half of a unit of so many accelerators, relative to
    the plan; ``placed`` (D) accelerators were taken since. The greater part of the current window counts by what is left of
    it. NaN without a contract."""
    this, following = account.projections()
    window_s = account.plan.window_s
    left_s = account.end_s - account.now_s
    now = _need(account.planned_row(), account.plan, this + placed * left_s, accelerators * left_s)
    then = _need(account.planned_row(1), account.plan, following + placed * window_s, accelerators * window_s)
    share = left_s / window_s
    return share * now + (1.0 - share) * then


def _need(row: Floats, plan: SharePlan, projected: Floats, unit: float) -> Floats:
    if plan.kind == "accelerators":
        wanted = row * plan.window_s
    else:
        wanted = row * (float(projected[~np.isnan(row)].sum()) + unit)
    need: Floats = (wanted - projected - unit / 2.0) / np.maximum(wanted, 1e-9)
    return need
