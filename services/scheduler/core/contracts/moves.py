"""Which running units would have to go elsewhere so that a window's plan is kept, where starts alone cannot: as few as possible.

A unit that ends in a small domain, or a large one that begins, can put a window out of reach that nothing else begins in. `repairs`
names units whose move brings at least one domain more within what is tolerated; it costs them an interruption each, so those that
were interrupted before go first: few bear the moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from services.scheduler.core.contracts.account import ShareAccount
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import UnitKey
from services.scheduler.core.table import Floats

_Group = tuple[float, str]
"""Accelerators of a unit, and the domain it would be given now; empty for any."""

_BROKEN = 0.9
"""Part of the tolerated deviation from which on a projected one counts as broken."""
_AIM = 0.8
"""Part of it that moves aim at."""
_GIVES = 0.5
"""A domain that is projected to be so far above its plan, as a part of what is tolerated, may give units away."""


def repairs(
    account: ShareAccount,
    running: Iterable[RunningUnit],
    free: Floats,
    goes_to: Callable[[RunningUnit], str] | None = None,
) -> list[UnitKey]:
    """Units to be taken off and placed anew by need; ``free`` (D) are free accelerators, ``goes_to`` says which domain a unit would be
    given now (None: any that has so many free). Empty when each domain is projected to keep its plan to the end of the window, and when
    no move would help.

    Steps, until no move helps: 1. a domain that is projected above its plan gives, another one that has room takes; 2. of the units of
    each size (and domain they would be given) one is looked at, one that was interrupted before if there is any; 3. the move that leaves the fewest domains broken
    is taken, of those one of a unit that was interrupted before, of those the one after which least is above the aim.
    """
    row = account.planned_row()
    named = ~np.isnan(row)
    this = account.projections()[0].copy()
    left_s = account.end_s - account.now_s
    wanted = np.where(named, row, 0.0) * (
        account.plan.window_s if account.plan.kind == "accelerators" else float(this[named].sum())
    )
    tolerance, room = account.plan.tolerance, np.array(free, dtype=np.float64)
    named &= wanted > 0
    if not named.any() or left_s <= 0:
        return []

    def off(given: Floats) -> Floats:
        return np.where(named, (given - wanted) / np.where(named, wanted, 1.0), 0.0)

    def broken(apart: Floats) -> int:
        return int((np.abs(apart) > _BROKEN * tolerance).sum())

    if not broken(off(this)):
        return []
    choices = _choices(account, running, left_s, goes_to)
    found: list[UnitKey] = []
    while before := broken(now := off(this)):
        best: tuple[tuple[int, bool, float, float], int, int, _Group] | None = None
        for give in np.flatnonzero(now > _GIVES * tolerance).tolist():
            for group, units in choices.get(give, {}).items():
                size, target = group
                again, lasts_s, _ = units[-1]
                for take in np.flatnonzero(named & (now < 0) & (room >= size)).tolist():
                    if target not in {"", account.domain_ids[take]}:
                        continue
                    moved = this.copy()
                    moved[give] -= size * lasts_s
                    moved[take] += size * lasts_s
                    apart = np.abs(off(moved))
                    if (count := broken(apart)) >= before:
                        continue
                    excess = float(np.maximum(apart - _AIM * tolerance, 0.0).sum())
                    rank = (count, not again, excess, float(apart.max()))
                    if best is None or rank < best[0]:
                        best = rank, give, take, group
        if best is None:
            return found
        _, give, take, group = best
        _, lasts_s, key = choices[give][group].pop()
        if not choices[give][group]:
            del choices[give][group]
        found.append(key)
        size = group[0]
        this[give] -= size * lasts_s
        this[take] += size * lasts_s
        room[give] += size
        room[take] -= size
    return found


def _choices(
    account: ShareAccount, running: Iterable[RunningUnit], left_s: float, goes_to: Callable[[RunningUnit], str] | None
) -> dict[int, dict[_Group, list[tuple[bool, float, UnitKey]]]]:
    """Units that may be moved by domain and group, (was interrupted before, seconds it is thought to last, key), the best one last."""
    index = {name: place for place, name in enumerate(account.domain_ids)}
    found: dict[int, dict[_Group, list[tuple[bool, float, UnitKey]]]] = {}
    for item in running:
        places = {rank.domain_id for rank in item.ranks}
        if not (item.unit.preemptible and item.unit.devices and len(places) == 1):
            continue
        domain = index.get(places.pop())
        target = "" if goes_to is None else goes_to(item)
        if domain is None or target == account.domain_ids[domain] or (goes_to is not None and not target):
            continue
        lasts_s = min(item.end_s(account.now_s, "expected") - account.now_s, left_s)
        units = found.setdefault(domain, {}).setdefault((item.unit.devices, target), [])
        units.append((item.unit.service_s > 0, lasts_s, item.unit.key))
    for sizes in found.values():
        for units in sizes.values():
            units.sort()
    return found
