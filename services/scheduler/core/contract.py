"""The share contract between the network and its domains: what each was promised, what it gave, and who comes next.

A plan says which part of all accelerator time each domain gives per window (an hour). Given time is counted exactly: what a
unit holds, from the moment it begins to the moment it ends, cut at the borders of windows. The deviation of a domain in a
window is ``|given share - planned share| / planned share``.

Keeping it (`ShareDeficitScore`), without taking anything off:
1. Project what each domain will have given at the end of the window: what it gave, and what its units are thought to go on
   holding; the same for the window after it, so that a correction late in one window is no excess in the next.
2. A domain's need is how far its projection with the unit stays below its plan, relative to the plan.
3. Need 0 gives one half; the value moves away from it the steeper, the less is tolerated.

A promise that nobody could have kept is told apart (`infeasible`), by rules that do not depend on what was decided in the
window: see there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.options import numbers_of, refuse_unknown
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import Floats, View

if TYPE_CHECKING:
    from services.scheduler.core.cluster import Cluster, RunningUnit
    from services.scheduler.core.policy import Policy

WINDOW_S = 3600.0
TOLERANCE = 0.05
PLUGIN = "share_deficit"
KINDS = ("fraction", "accelerators")
_KEPT_WINDOWS = 48
_ENOUGH = 0.8
"""Part of the tolerated deviation that no unit is moved for."""


@dataclass(frozen=True, slots=True)
class SharePlan:
    """What was promised. ``shares`` are (domain, amount) rows, one per window, repeated when the windows outnumber them.

    ``kind`` "fraction": relative amounts of what all the named domains give together. "accelerators": accelerator-hours per
    hour, whatever the others give. Domains that are not named have no contract. Raises PolicyError naming the field.
    """

    shares: tuple[tuple[tuple[str, float], ...], ...]
    kind: str = "fraction"
    window_s: float = WINDOW_S
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        where = f"options.{PLUGIN}"
        if self.kind not in KINDS:
            raise PolicyError(f"{where}.kind: {self.kind!r} is none of {', '.join(KINDS)}")
        for name in ("window_s", "tolerance"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise PolicyError(f"{where}.{name}: must be a finite number above 0, not {value!r}")
        if not self.shares or not all(self.shares):
            raise PolicyError(f"{where}.shares: names no domain")
        for row in self.shares:
            for domain, amount in row:
                good = isinstance(amount, int | float) and not isinstance(amount, bool) and math.isfinite(amount)
                if not good or amount <= 0:
                    raise PolicyError(f"{where}.shares.{domain}: must be a finite number above 0, not {amount!r}")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SharePlan:
        """From the options of a policy: ``shares``, an object {domain: amount} or a list of them, one per window; ``kind``,
        ``window_s``, ``tolerance``. PolicyError names the wrong one."""
        refuse_unknown(PLUGIN, options, ("shares", "kind", "window_s", "tolerance"))
        if "shares" not in options:
            raise PolicyError(f"options.{PLUGIN}.shares: missing")
        given = options["shares"]
        if isinstance(given, Mapping):
            given = (given,)
        try:
            rows = tuple(given)
            # An object in a policy is a tuple of pairs; so is a list of objects with one more level.
            if rows and not isinstance(rows[0], Mapping) and isinstance(rows[0][0], str):
                rows = (rows,)
            shares = tuple(tuple((str(name), amount) for name, amount in dict(row).items()) for row in rows)
        except (TypeError, ValueError, IndexError, KeyError):
            raise PolicyError(f"options.{PLUGIN}.shares: an object of numbers by domain is wanted") from None
        numbers = numbers_of(
            PLUGIN,
            {name: value for name, value in options.items() if name not in {"shares", "kind"}},
            window_s=1.0,
            tolerance=1e-6,
        )
        return cls(shares, options.get("kind", "fraction"), **numbers)

    def row(self, window: int, domain_ids: Sequence[str]) -> Floats:
        """(D) planned amounts in the ``window``-th window since time 0; NaN for domains without a contract. Fractions sum
        to 1 over the known domains."""
        amounts = dict(self.shares[window % len(self.shares)])
        row = np.array([amounts.get(name, math.nan) for name in domain_ids], dtype=np.float64)
        if self.kind == "fraction":
            row /= max(float(np.nansum(row)), 1e-300)
        return row


def plan_of(policy: Policy) -> SharePlan | None:
    """The share plan in the options of a policy; None when it has none."""
    options = policy.options_of(PLUGIN)
    return SharePlan.of(options) if options else None


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A window that is over: accelerator-seconds given (D) and those that were up (D).

    ``pieces`` are the parts of single units, if they were kept; ``fresh`` those of them that began in the window, and
    ``committed`` (D) what was given by the others, whose domains had been chosen before.
    """

    number: int
    given: Floats
    up: Floats
    pieces: tuple[float, ...] = ()
    fresh: tuple[float, ...] = ()
    committed: Floats | None = None


def planned(plan: SharePlan, window: Window, domain_ids: Sequence[str]) -> Floats:
    """(D) accelerator-seconds that each domain was to give in this window; NaN without a contract."""
    row = plan.row(window.number, domain_ids)
    if plan.kind == "accelerators":
        return row * plan.window_s
    total = float(window.given[~np.isnan(row)].sum())
    return row * total


def deviations(plan: SharePlan, window: Window, domain_ids: Sequence[str]) -> Floats:
    """(D) |given - planned| / planned; NaN without a contract or when nothing at all was given against fractions."""
    wanted = planned(plan, window, domain_ids)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = np.abs(window.given - wanted) / np.where(wanted > 0, wanted, np.nan)
    return found


def infeasible(plan: SharePlan, window: Window, domain_ids: Sequence[str]) -> list[str]:
    """(D) why a domain could not have kept its share in the window, whoever decided; empty where that is not proved.

    With what the units held in the window taken as it was, and only the domain of each left open:
      "no demand"   nothing was given at all, or less than the plan asks for in absolute terms
      "capacity"    the whole domain, in use all the time, stays below the tolerated least
      "too coarse"  units whose part alone is above the tolerated most must go elsewhere, and all the others together stay
                    below the tolerated least
    Sufficient, not necessary: what is not proved counts as feasible.
    """
    wanted = planned(plan, window, domain_ids)
    pieces = np.sort(window.pieces)
    total = float(window.given.sum())
    reasons = []
    for domain, amount in enumerate(wanted.tolist()):
        least, most = amount * (1.0 - plan.tolerance), amount * (1.0 + plan.tolerance)
        if math.isnan(amount):
            reasons.append("")
        elif amount <= 0 or total < least - 1e-6:
            reasons.append("no demand")
        elif float(window.up[domain]) < least - 1e-6:
            reasons.append("capacity")
        elif len(pieces) and _most_below(pieces, most) < least - 1e-6:
            reasons.append("too coarse")
        else:
            reasons.append("")
    return reasons


def committed(plan: SharePlan, window: Window, domain_ids: Sequence[str]) -> list[bool]:
    """(D) whether a domain could not keep its share any more when the window began, unless running units were moved: what
    they gave alone is above the tolerated most, or all that began in the window, had it gone there, is too little or too
    coarse to lift it to the tolerated least. This does depend on former decisions, so it excuses nothing."""
    wanted = planned(plan, window, domain_ids)
    before = window.given if window.committed is None else window.committed
    fresh = np.sort(window.fresh)
    found = []
    for domain, amount in enumerate(wanted.tolist()):
        least, most = amount * (1.0 - plan.tolerance), amount * (1.0 + plan.tolerance)
        held = float(before[domain])
        found.append(held > most + 1e-6 or held + _most_below(fresh, most - held) < least - 1e-6)
    return found


def _most_below(pieces: Floats, most: float) -> float:
    """The sum of the pieces that are not greater than ``most``; ``pieces`` are sorted."""
    return float(pieces[: int(np.searchsorted(pieces, most + 1e-6, side="right"))].sum())


@dataclass(slots=True)
class _Held:
    """What a unit holds: (domain, accelerators) parts, since when at all and in this window."""

    running: RunningUnit
    parts: tuple[tuple[int, float], ...]
    began_s: float
    since_s: float


class ShareAccount:
    """What the domains of a plan give, window by window; keeps itself up as an observer of the cluster (`install`).

    ``windows`` are the last ``kept`` that are over. ``pieces`` says whether each unit's part is kept too (for `infeasible`).
    """

    def __init__(
        self,
        plan: SharePlan,
        domain_ids: Sequence[str],
        accelerators: Floats,
        from_s: float,
        *,
        kept: int = _KEPT_WINDOWS,
        pieces: bool = False,
    ) -> None:
        self.plan, self.domain_ids = plan, tuple(domain_ids)
        self.windows: list[Window] = []
        self.now_s = self._from_s = from_s
        self._kept, self._with_pieces = kept, pieces
        self._index = {name: index for index, name in enumerate(self.domain_ids)}
        self._up_level = np.asarray(accelerators, dtype=np.float64).copy()
        size = len(self.domain_ids)
        self._level, self._given, self._up = np.zeros(size), np.zeros(size), np.zeros(size)
        self._held: dict[UnitKey, _Held] = {}
        self._pieces: list[float] = []
        self._fresh: list[float] = []
        self._committed = np.zeros(size)
        self._number = math.floor(from_s / plan.window_s)
        self._projections: tuple[Floats, Floats] | None = None
        self._free: Floats | None = None

    # -- events ------------------------------------------------------------------------------------------------------

    def began(self, running: RunningUnit) -> None:
        """A unit holds nodes."""
        self.advance(max(running.since_s, self.now_s))
        demand = running.unit.demand
        amount = demand.accelerators * demand.device_milli / 1000.0
        parts: dict[int, float] = {}
        for rank in running.ranks:
            domain = self._index.get(rank.domain_id)
            if domain is not None and amount:
                parts[domain] = parts.get(domain, 0.0) + amount
        for domain, size in parts.items():
            self._level[domain] += size
        self._held[running.unit.key] = _Held(running, tuple(parts.items()), self.now_s, self.now_s)
        self._projections = None

    def ended(self, running: RunningUnit, now_s: float) -> None:
        """A unit holds nothing more; a time that is not known counts as now."""
        self.advance(self.now_s if math.isnan(now_s) else max(now_s, self.now_s))
        held = self._held.pop(running.unit.key, None)
        if held is None:
            return
        for domain, size in held.parts:
            self._level[domain] -= size
        self._cut(held, self.now_s)
        self._projections = None

    def advance(self, now_s: float) -> None:
        """Time passes with everything as it is."""
        if now_s < self.now_s:
            raise PolicyError(f"the share account is at {self.now_s:g} s already, not {now_s:g} s")
        if now_s > self.now_s:
            self._projections = None
        while now_s >= self.end_s:
            self._pass(self.end_s)
            for held in self._held.values():
                self._cut(held, self.now_s)
                held.since_s = self.now_s
            self.windows.append(self._window())
            del self.windows[: max(len(self.windows) - self._kept, 0)]
            self._given[:], self._up[:], self._committed[:] = 0.0, 0.0, 0.0
            self._pieces, self._fresh = [], []
            self._number += 1
        self._pass(now_s)

    def set_up(self, accelerators: Floats) -> None:
        """So many accelerators (D) are up from now on."""
        self._up_level = np.asarray(accelerators, dtype=np.float64).copy()

    def _pass(self, now_s: float) -> None:
        passed = now_s - self.now_s
        if passed > 0:
            self._given += self._level * passed
            self._up += self._up_level * passed
            self.now_s = now_s

    def _window(self) -> Window:
        known = self._committed.copy() if self._with_pieces else None
        return Window(self._number, self._given.copy(), self._up.copy(), tuple(self._pieces), tuple(self._fresh), known)

    def _cut(self, held: _Held, now_s: float) -> None:
        if not (self._with_pieces and now_s > held.since_s and held.parts):
            return
        whole = sum(size for _, size in held.parts) * (now_s - held.since_s)
        # A unit that may span domains can be cut between its ranks.
        demand = held.running.unit.demand
        count = demand.ranks if demand.cross_domain else 1
        pieces = [whole / count] * count
        self._pieces += pieces
        if held.began_s >= self.end_s - self.plan.window_s:
            self._fresh += pieces
            return
        for domain, size in held.parts:
            self._committed[domain] += size * (now_s - held.since_s)

    # -- figures -----------------------------------------------------------------------------------------------------

    @property
    def end_s(self) -> float:
        """When the current window ends."""
        return (self._number + 1) * self.plan.window_s

    @property
    def given(self) -> Floats:
        """(D) accelerator-seconds given so far in the current window."""
        return self._given.copy()

    def planned_row(self, ahead: int = 0) -> Floats:
        """(D) the plan of the current window, or of one that follows it."""
        return self.plan.row(self._number + ahead, self.domain_ids)

    def gap(self) -> Floats:
        """(D) planned less given share in the current window so far, -1 to 1: the fact ``share_gap``. NaN without a
        contract; 0 before anything was given. Absolute plans: the part of the plan that is missing, pro rata of time."""
        row = self.planned_row()
        if self.plan.kind == "accelerators":
            due = row * max(self.now_s - (self.end_s - self.plan.window_s), 1e-9)
            gap: Floats = np.clip(1.0 - self._given / np.maximum(due, 1e-9), -1.0, 1.0)
            return gap
        total = float(self._given[~np.isnan(row)].sum())
        if total <= 0:
            return np.where(np.isnan(row), np.nan, 0.0)
        return np.clip(row - self._given / total, -1.0, 1.0)

    def projections(self) -> tuple[Floats, Floats]:
        """(D), (D) accelerator-seconds that each domain will have given at the end of the current window, and of the next
        one, if nothing began any more and units end when they are thought to."""
        if self._projections is None:
            end_s, window_s = self.end_s, self.plan.window_s
            this, following = self._given.copy(), np.zeros(len(self._given))
            for held in self._held.values():
                until_s = held.running.end_s(self.now_s, "expected")
                now, then = min(until_s, end_s) - self.now_s, min(max(until_s - end_s, 0.0), window_s)
                for domain, size in held.parts:
                    this[domain] += size * now
                    following[domain] += size * then
            self._projections = this, following
        return self._projections


def install(
    cluster: Cluster, plan: SharePlan, now_s: float, *, kept: int = _KEPT_WINDOWS, pieces: bool = False
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

    view: View


def tell(where: Sees, account: ShareAccount, now_s: float) -> None:
    """It is ``now_s``: the facts ``share_gap`` and ``share_contract`` are brought up to date."""
    account.advance(now_s)
    view = where.view
    view.facts["share_gap"] = account.gap()
    view.facts["share_contract_free"] = view.domain_free_devices.copy()
    view.state("share_contract", account)


def moves(account: ShareAccount, running: Iterable[RunningUnit], free: Floats) -> list[UnitKey]:
    """Units that had to be taken off, and placed anew by need, for every domain to be within four fifths of what is tolerated at
    the end of the window; ``free`` (D) are free accelerators. A suggestion: it costs interruptions, the score does not.

    Steps: 1. by the projection to the window's end, how many accelerators each domain would have to hold more or less for
    the rest of it; 2. from the domain with the greatest excess to the one with the greatest lack that has room; 3. the unit
    that is thought to run longest among those that are no larger than both, until nothing fits.
    """
    left_s = account.end_s - account.now_s
    row = account.planned_row()
    this, _ = account.projections()
    wanted = row * (account.plan.window_s if account.plan.kind == "accelerators" else float(this[~np.isnan(row)].sum()))
    over = np.nan_to_num((this - wanted) / left_s)
    least = np.nan_to_num(_ENOUGH * account.plan.tolerance * wanted / left_s)
    room = np.array(free, dtype=np.float64)
    by_domain: dict[int, list[tuple[float, float, UnitKey]]] = {}
    index = {name: place for place, name in enumerate(account.domain_ids)}
    for item in running:
        places = {rank.domain_id for rank in item.ranks}
        if item.unit.preemptible and item.unit.devices and len(places) == 1:
            lasts_s = min(item.end_s(account.now_s, "expected") - account.now_s, left_s)
            by_domain.setdefault(index[places.pop()], []).append((lasts_s, item.unit.devices, item.unit.key))
    for units in by_domain.values():
        units.sort()
    found: list[UnitKey] = []
    while True:
        give, take = int(over.argmax()), int(np.where(room >= 1.0, over, np.inf).argmin())
        if over[give] <= least[give] and -over[take] <= least[take]:
            return found
        most = min(over[give], -over[take], room[take]) + 0.5
        units = by_domain.get(give, [])
        place = next((n for n in range(len(units) - 1, -1, -1) if units[n][1] <= most), None)
        if place is None:
            return found
        lasts_s, size, key = units.pop(place)
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
