"""What domains were promised: shares per window, how far what was given deviates, and what nobody could have kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.options import numbers_of, refuse_unknown
from services.scheduler.core.policy import Policy
from services.scheduler.core.table import Floats

WINDOW_S = 3600.0
TOLERANCE = 0.05
PLUGIN = "share_deficit"
KINDS = ("fraction", "accelerators")
STANDING, PER_WINDOW = "standing", "per_window"
PLANS = (STANDING, PER_WINDOW)


@dataclass(frozen=True, slots=True)
class SharePlan:
    """What was promised. ``shares`` are (domain, amount) rows, one per window, repeated when the windows outnumber them.

    ``kind`` "fraction": relative amounts of what all the named domains give together. "accelerators": accelerator-hours per
    hour, whatever the others give. Domains that are not named have no contract. ``plan`` "standing": these shares are to be
    given in each window. "per_window": they are the promise, kept over a day, and each window has a plan of its own that is
    issued when it begins (issue.py); of fractions only. ``move_every_s`` above 0, with plans per window: so often it is looked
    whether running units must be moved for a plan (moves.py). Raises PolicyError naming the field.
    """

    shares: tuple[tuple[tuple[str, float], ...], ...]
    kind: str = "fraction"
    window_s: float = WINDOW_S
    tolerance: float = TOLERANCE
    plan: str = STANDING
    move_every_s: float = 0.0

    def __post_init__(self) -> None:
        where = f"options.{PLUGIN}"
        if self.kind not in KINDS:
            raise PolicyError(f"{where}.kind: {self.kind!r} is none of {', '.join(KINDS)}")
        if self.plan not in PLANS:
            raise PolicyError(f"{where}.plan: {self.plan!r} is none of {', '.join(PLANS)}")
        if self.plan == PER_WINDOW and self.kind != "fraction":
            raise PolicyError(f"{where}.plan: {PER_WINDOW} is for shares of the kind fraction, not {self.kind}")
        if not (math.isfinite(self.move_every_s) and self.move_every_s >= 0):
            raise PolicyError(f"{where}.move_every_s: must be a finite number from 0 on, not {self.move_every_s!r}")
        if self.move_every_s and self.plan != PER_WINDOW:
            raise PolicyError(
                f"{where}.move_every_s: is for plans {PER_WINDOW}; for a {self.plan} one too many would move"
            )
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
        ``window_s``, ``tolerance``, ``plan``, ``move_every_s``. PolicyError names the wrong one."""
        refuse_unknown(PLUGIN, options, ("shares", "kind", "window_s", "tolerance", "plan", "move_every_s"))
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
            {name: value for name, value in options.items() if name not in {"shares", "kind", "plan"}},
            window_s=1.0,
            tolerance=1e-6,
            move_every_s=0.0,
        )
        return cls(shares, options.get("kind", "fraction"), **numbers, plan=options.get("plan", STANDING))

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
    ``committed`` (D) what was given by the others, whose domains had been chosen before. A window that was `judged` has
    the plan of its time in accelerator-seconds (``wanted``, D) and what was `infeasible` (``reasons``, D) instead. With plans per
    window ``issued`` (D) are the fractions that were issued when it began (None: none were, so the promise was the plan);
    ``promised`` (D) is the promise of a judged window in accelerator-seconds, and ``owed`` (D) what was owed at its end.
    """

    number: int
    given: Floats
    up: Floats
    pieces: tuple[float, ...] = ()
    fresh: tuple[float, ...] = ()
    committed: Floats | None = None
    wanted: Floats | None = None
    reasons: tuple[str, ...] | None = None
    issued: Floats | None = None
    promised: Floats | None = None
    owed: Floats | None = None


def judged(plan: SharePlan, window: Window, domain_ids: Sequence[str]) -> Window:
    """The window with its judgement in place of single units' parts: small, and not touched by later plans."""
    reasons = tuple(infeasible(plan, window, domain_ids))
    return Window(
        window.number,
        window.given,
        window.up,
        wanted=planned(plan, window, domain_ids),
        reasons=reasons,
        issued=window.issued,
        promised=promised(plan, window, domain_ids),
        owed=window.owed,
    )


def planned(plan: SharePlan, window: Window, domain_ids: Sequence[str]) -> Floats:
    """(D) accelerator-seconds that each domain was to give in this window, by the plan that was issued for it if there is one;
    NaN without a contract."""
    if window.wanted is not None:
        return window.wanted
    return promised(plan, window, domain_ids) if window.issued is None else _of_total(window.issued, window)


def promised(plan: SharePlan, window: Window, domain_ids: Sequence[str]) -> Floats:
    """(D) accelerator-seconds that the standing promise asks for in this window; NaN without a contract."""
    if window.promised is not None:
        return window.promised
    row = plan.row(window.number, domain_ids)
    return row * plan.window_s if plan.kind == "accelerators" else _of_total(row, window)


def _of_total(row: Floats, window: Window) -> Floats:
    return row * float(window.given[~np.isnan(row)].sum())


def deviations(plan: SharePlan, window: Window, domain_ids: Sequence[str]) -> Floats:
    """(D) |given - planned| / planned; NaN without a contract or when nothing at all was given against fractions."""
    return apart(window.given, planned(plan, window, domain_ids))


def apart(given: Floats, wanted: Floats) -> Floats:
    """(D) |given - wanted| / wanted; NaN where nothing is wanted."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = np.abs(given - wanted) / np.where(wanted > 0, wanted, np.nan)
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
    if window.reasons is not None:
        return list(window.reasons)
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
