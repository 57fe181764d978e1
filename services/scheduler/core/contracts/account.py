"""The account of what domains give, kept up with each unit that begins or ends to hold nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from services.scheduler.core.contracts.issue import Issuer
from services.scheduler.core.contracts.plan import PER_WINDOW, SharePlan, Window, judged, promised
from services.scheduler.core.contracts.windows import (
    floats,
    maybe_floats,
    maybe_list,
    moved,
    moved_fractions,
    moved_window,
    row_of,
    window_of,
)
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import UnitKey
from services.scheduler.core.table import Floats

KEPT_WINDOWS = 48


@dataclass(slots=True)
class _Held:
    """What a unit holds: (domain, accelerators) parts, since when at all and in this window; ``pieces``: into how many parts
    it may be cut."""

    running: RunningUnit | None
    pieces: int
    parts: tuple[tuple[int, float], ...]
    began_s: float
    since_s: float


@dataclass(frozen=True, slots=True)
class Held:
    """What a unit held that has ended: from when to when, accelerators by domain, and into how many parts it may be cut."""

    began_s: float
    ended_s: float
    parts: tuple[tuple[str, float], ...]
    pieces: int = 1


class ShareAccount:
    """What the domains of a plan give, window by window; keeps itself up as an observer of the cluster (`install`).

    ``windows`` are the last ``kept`` that are over. ``pieces`` says whether each unit's part is kept too (for `infeasible`);
    with ``judge`` a window is judged when it ends, and its parts are forgotten. With plans per window the account issues each when
    its window begins, before anything that happens in it.
    """

    def __init__(
        self,
        plan: SharePlan,
        domain_ids: Sequence[str],
        accelerators: Floats,
        from_s: float,
        *,
        kept: int = KEPT_WINDOWS,
        pieces: bool = False,
        judge: bool = False,
    ) -> None:
        self.plan, self.domain_ids = plan, tuple(domain_ids)
        self.windows: list[Window] = []
        self.now_s = self._from_s = from_s
        self._kept, self._judge = kept, judge
        self._with_pieces = pieces or plan.plan == PER_WINDOW
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
        self._issuer = Issuer(size)
        self._issued: Floats | None = None

    # -- events ------------------------------------------------------------------------------------------------------

    def began(self, running: RunningUnit) -> None:
        """A unit holds nodes; one that is known already changes nothing."""
        known = self._held.get(running.unit.key)
        if known is not None and known.running is running:
            return
        self.advance(max(running.since_s, self.now_s))
        self._hold(running, self.now_s)

    def _hold(self, running: RunningUnit, began_s: float) -> None:
        demand = running.unit.demand
        amount = demand.accelerators * demand.device_milli / 1000.0
        parts: dict[int, float] = {}
        for rank in running.ranks:
            domain = self._index.get(rank.domain_id)
            if domain is not None and amount:
                parts[domain] = parts.get(domain, 0.0) + amount
        self._take(running.unit.key, running, demand.ranks if demand.cross_domain else 1, parts, began_s)

    def restated(self, running: RunningUnit) -> None:
        """A unit that holds what it held is thought to end at another time."""
        held = self._held.get(running.unit.key)
        if held is not None and held.running is not None:
            held.running = running
            self._projections = None

    def ended(self, running: RunningUnit, now_s: float) -> None:
        """A unit holds nothing more; a time that is not known counts as now."""
        self.advance(self.now_s if math.isnan(now_s) else max(now_s, self.now_s))
        self._give(running.unit.key)

    def _take(
        self, key: UnitKey, running: RunningUnit | None, pieces: int, parts: Mapping[int, float], began_s: float
    ) -> None:
        for domain, size in parts.items():
            self._level[domain] += size
        since_s = max(began_s, self.end_s - self.plan.window_s)
        self._held[key] = _Held(running, pieces, tuple(parts.items()), began_s, since_s)
        self._projections = None

    def _give(self, key: UnitKey) -> None:
        held = self._held.pop(key, None)
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
            window = self._window()
            if self.plan.plan == PER_WINDOW:
                window = self._close(window)
            self.windows.append(judged(self.plan, window, self.domain_ids) if self._judge else window)
            del self.windows[: max(len(self.windows) - self._kept, 0)]
            self._given[:], self._up[:], self._committed[:] = 0.0, 0.0, 0.0
            self._pieces, self._fresh = [], []
            self._number += 1
            if self.plan.plan == PER_WINDOW:
                self._issued = self._issuer.issue(self.plan, self._promise(), self._level)
        self._pass(now_s)

    def _close(self, window: Window) -> Window:
        begun = float((window.given - self._committed).sum())
        self._issuer.close(promised(self.plan, window, self.domain_ids), window.given, begun)
        return replace(window, owed=self._issuer.owed)

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
        return Window(
            self._number,
            self._given.copy(),
            self._up.copy(),
            tuple(self._pieces),
            tuple(self._fresh),
            known,
            issued=self._issued,
        )

    def _cut(self, held: _Held, now_s: float) -> None:
        if not (self._with_pieces and now_s > held.since_s and held.parts):
            return
        whole = sum(size for _, size in held.parts) * (now_s - held.since_s)
        # A unit that may span domains can be cut between its ranks.
        pieces = [whole / held.pieces] * held.pieces
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

    @property
    def held(self) -> Floats:
        """(D) accelerators that units hold now."""
        return self._level.copy()

    @property
    def number(self) -> int:
        """Of the current window, from 1970 on."""
        return self._number

    def open_window(self) -> Window:
        """The current window so far."""
        return self._window()

    @property
    def owed(self) -> Floats:
        """(D) accelerator-seconds that were promised and not given up to the begin of the current window, less what was forgotten;
        zeros where each window is to keep the promise by itself."""
        return self._issuer.owed.copy()

    def planned_row(self, ahead: int = 0) -> Floats:
        """(D) the plan of the current window, or of one that follows it. Where plans are issued per window, the current one's if
        there is one, and for those that follow, what they should give to keep the promise and to pay back what is owed."""
        row = self._promise(ahead)
        if self.plan.plan != PER_WINDOW:
            return row
        if not ahead:
            return row if self._issued is None else self._issued.copy()
        return self._issuer.wanted(self.plan, row, float(self._level[~np.isnan(row)].sum()) * self.plan.window_s)

    def _promise(self, ahead: int = 0) -> Floats:
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
                if held.running is None:
                    continue
                until_s = held.running.end_s(self.now_s, "expected")
                now, then = min(until_s, end_s) - self.now_s, min(max(until_s - end_s, 0.0), window_s)
                for domain, size in held.parts:
                    this[domain] += size * now
                    following[domain] += size * then
            self._projections = this, following
        return self._projections

    # -- other networks, other plans, other processes ----------------------------------------------------------------

    def fit(self, domain_ids: Sequence[str], accelerators: Floats) -> None:
        """The network has these domains from now on, with so many accelerators (D) up. Domains that are gone lose their past."""
        self.set_up(accelerators)
        if self.domain_ids == tuple(domain_ids):
            return
        places = [self._index.get(name, -1) for name in domain_ids]
        self._level, self._given, self._up, self._committed = (
            moved(row, places, 0.0) for row in (self._level, self._given, self._up, self._committed)
        )
        self._issuer.fit(places)
        if self._issued is not None:
            self._issued = moved_fractions(self._issued, places)
        self.windows = [moved_window(window, places) for window in self.windows]
        self.domain_ids = tuple(domain_ids)
        back = {old: new for new, old in enumerate(places) if old >= 0}
        self._index = {name: index for index, name in enumerate(self.domain_ids)}
        for held in self._held.values():
            held.parts = tuple((back[domain], size) for domain, size in held.parts if domain in back)
        self._projections = None

    def under(self, plan: SharePlan) -> ShareAccount:
        """The same account under another plan from now on, or one that begins now where windows have another length."""
        if plan.window_s != self.plan.window_s:
            return ShareAccount(
                plan,
                self.domain_ids,
                self._up_level,
                self.now_s,
                kept=self._kept,
                pieces=self._with_pieces,
                judge=self._judge,
            )
        other: ShareAccount = self.snapshot()
        other.plan = plan
        if plan.plan != PER_WINDOW:
            other._issued = None
        else:
            other._with_pieces = True
        if plan.shares != self.plan.shares or plan.plan != PER_WINDOW:
            other._issuer = Issuer(len(self.domain_ids))
        return other

    def join(self, given: Floats, held: Floats, this: Floats, following: Floats) -> None:
        """For the present, count (D) accelerator-seconds more as given, (D) accelerators more as held, and (D), (D) more in
        the `projections`."""
        mine = self.projections()
        self._given += given
        self._level += held
        self._projections = mine[0] + this, mine[1] + following

    def snapshot(self) -> ShareAccount:
        """A copy that goes its own way."""
        other = object.__new__(ShareAccount)
        for name, value in self.__dict__.items():
            setattr(other, name, value.copy() if isinstance(value, np.ndarray | list | dict) else value)
        other._issuer = self._issuer.copy()
        other._held = {key: replace(held) for key, held in self._held.items()}
        other._projections = None
        return other

    def __deepcopy__(self, _memo: object) -> ShareAccount:
        # Units that run are shared by copies of a cluster.
        return self.snapshot()

    def state(self) -> dict[str, Any]:
        """All but what units hold now, as JSON types; see `restored`."""
        return {
            "domain_ids": list(self.domain_ids),
            "window_s": self.plan.window_s,
            "now_s": self.now_s,
            "given": self._given.tolist(),
            "up": self._up.tolist(),
            "committed": self._committed.tolist(),
            "pieces": list(self._pieces),
            "fresh": list(self._fresh),
            "issued": maybe_list(self._issued),
            "owed": self._issuer.owed.tolist(),
            "begun": self._issuer.begun,
            "windows": [row_of(window) for window in self.windows],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Be as `state` had it, with nothing held."""
        names = state["domain_ids"]
        self.domain_ids = tuple(names)
        self._index = {name: index for index, name in enumerate(names)}
        self.now_s = self._from_s = state["now_s"]
        self._number = math.floor(self.now_s / self.plan.window_s)
        self._given, self._up, self._committed = (floats(state[name]) for name in ("given", "up", "committed"))
        self._level, self._up_level = np.zeros(len(names)), np.zeros(len(names))
        self._pieces, self._fresh, self._held = list(state["pieces"]), list(state["fresh"]), {}
        self._issued = maybe_floats(state.get("issued"))
        self._issuer = Issuer(len(names))
        self._issuer.owed = floats(state.get("owed", [0.0] * len(names)))
        self._issuer.begun = state.get("begun")
        self.windows = [window_of(row) for row in state["windows"]]

    def catch_up(self, running: Sequence[RunningUnit], ended: Sequence[Held]) -> None:
        """Count what began and ended since, in order of time; units that run still hold what they do."""
        from_s = self.now_s
        steps: list[tuple[float, int, int]] = []
        for place, item in enumerate(ended):
            if item.ended_s > from_s:
                steps += [(max(item.began_s, from_s), 0, place), (item.ended_s, 1, place)]
        steps += [(max(item.since_s, from_s), 2, place) for place, item in enumerate(running)]
        for at_s, step, place in sorted(steps):
            self.advance(max(at_s, self.now_s))
            if step == 2:
                self._hold(running[place], min(running[place].since_s, self.now_s))
            elif step == 1:
                self._give(UnitKey("", place))
            else:
                held = ended[place]
                parts = {self._index[name]: size for name, size in held.parts if name in self._index}
                self._take(UnitKey("", place), None, held.pieces, parts, held.began_s)


def restored(
    plan: SharePlan,
    state: Mapping[str, Any],
    accelerators: Mapping[str, float],
    running: Sequence[RunningUnit],
    ended: Sequence[Held],
    now_s: float,
) -> ShareAccount:
    """An account as `ShareAccount.state` had it, brought to ``now_s`` by what ran since: units that still do, and units that
    have ``ended`` since. ``accelerators`` that are up by domain. One that begins now when the state is of other windows, or so
    old that nothing of it counts."""
    names = tuple(accelerators)
    level = np.array(list(accelerators.values()), dtype=np.float64)
    account = ShareAccount(plan, names, level, now_s, pieces=True, judge=True)
    if state and state["window_s"] == plan.window_s and now_s - state["now_s"] <= KEPT_WINDOWS * plan.window_s:
        account.load(state)
        account.fit(names, level)
    account.catch_up(running, ended)
    account.advance(max(now_s, account.now_s))
    return account
