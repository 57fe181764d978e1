"""What was promised and what became of it, over HTTP: shares of domains, service levels of tenants.

Looking changes nothing: the answers are read off copies that are brought to the present. Whose service levels one may see is
decided by the gateway.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.scheduler.core.contracts.account import KEPT_WINDOWS, ShareAccount
from services.scheduler.core.contracts.plan import Window, apart, infeasible, planned, promised
from services.scheduler.core.selection.objectives_sla import SlaRow
from services.scheduler.core.table import Floats
from services.scheduler.live import LiveScheduler
from services.scheduler.times import rfc3339

Json = dict[str, Any]
PERIOD_WINDOWS = 24
"""Windows over which the promise is told beside each window's plan."""
_SLACK = 1e-9


def create_promises_router(live: LiveScheduler) -> APIRouter:
    """The routes of what was promised."""
    router = APIRouter(prefix="/v1")

    @router.get("/shares")
    async def shares(windows: Annotated[int, Query(ge=1, le=KEPT_WINDOWS + 1)] = 24) -> Json:
        """Planned, promised and given shares of the domains per window (an hour), newest first; the first one is not over yet; and
        the same over a day."""
        account = live.book.promises.shares
        body: Json = {"policy_version": live.policy.version, "plan": None, "windows": [], "period": None}
        return body if account is None else {**body, **shares_json(account, live.now_s(), windows)}

    @router.get("/service-levels")
    async def service_levels(tenant_id: Annotated[str | None, Query(max_length=200)] = None) -> Json:
        """How each objective stands: what was promised to whom, whether it is kept, and what breaking it has cost."""
        levels, now_s = live.book.promises.levels, live.now_s()
        rows = [] if levels is None else levels.rows(now_s)
        shown = [_level(row) for row in rows if tenant_id in {None, row.tenant_id}]
        return {"policy_version": live.policy.version, "at": rfc3339(now_s), "items": shown}

    return router


def shares_json(account: ShareAccount, now_s: float, windows: int) -> Json:
    """The plan of an account and its newest windows at ``now_s``; the account stays as it is."""
    copy = account.snapshot()
    copy.advance(max(now_s, copy.now_s))
    found = [_window(copy, copy.open_window(), over=False)]
    found += [_window(copy, window, over=True) for window in reversed(copy.windows)]
    plan = copy.plan
    return {
        "plan": {"kind": plan.kind, "window_s": plan.window_s, "tolerance": plan.tolerance, "plan": plan.plan},
        "windows": found[:windows],
        "period": _period(copy),
    }


def _window(account: ShareAccount, window: Window, *, over: bool) -> Json:
    plan, names = account.plan, account.domain_ids
    begin_s = window.number * plan.window_s
    wanted, promise = planned(plan, window, names), promised(plan, window, names)
    if not over and plan.kind == "accelerators":
        # What was due until now.
        wanted = promise = wanted * (account.now_s - begin_s) / plan.window_s
    off, off_promise = apart(window.given, wanted), apart(window.given, promise)
    reasons = infeasible(plan, window, names) if over else [""] * len(names)
    named = ~np.isnan(wanted)
    planned_sum, promised_sum, given_sum = (float(row[named].sum()) for row in (wanted, promise, window.given))
    planned_row, promised_row = _fractions(account, window)
    domains = []
    for place, name in enumerate(names):
        if not named[place]:
            continue
        deviation = _finite(off[place])
        kept = None if deviation is None or reasons[place] or not over else deviation <= plan.tolerance + _SLACK
        domains.append(
            {
                "domain_id": name,
                "planned_share": _part(wanted[place], planned_sum)
                if planned_row is None
                else float(planned_row[place]),
                "promised_share": _part(promise[place], promised_sum)
                if promised_row is None
                else float(promised_row[place]),
                "given_share": _part(window.given[place], given_sum),
                "planned_accelerator_s": float(wanted[place]),
                "promised_accelerator_s": float(promise[place]),
                "given_accelerator_s": float(window.given[place]),
                "deviation": deviation,
                "promise_deviation": _finite(off_promise[place]),
                "kept": kept,
                "infeasible": reasons[place] or None,
            }
        )
    return {"from": rfc3339(begin_s), "until": rfc3339(begin_s + plan.window_s), "over": over, "domains": domains}


def _fractions(account: ShareAccount, window: Window) -> tuple[Floats | None, Floats | None]:
    """(D), (D) planned and promised fractions, as far as they are known by themselves: whatever is given, these stand. None for
    accelerators, and for what was judged by the policy of its time."""
    plan = account.plan
    row = plan.row(window.number, account.domain_ids) if plan.kind == "fraction" and window.wanted is None else None
    return (row if window.issued is None else window.issued), row


def _period(account: ShareAccount) -> Json | None:
    """The promise over the newest windows that are over, a day of them where they are hours; None when none is."""
    plan, names, windows = account.plan, account.domain_ids, account.windows[-PERIOD_WINDOWS:]
    if not windows:
        return None
    promise = np.sum([promised(plan, window, names) for window in windows], axis=0)
    given = np.sum([window.given for window in windows], axis=0)
    off, named = apart(given, promise), ~np.isnan(promise)
    promised_sum, given_sum, owed = float(promise[named].sum()), float(given[named].sum()), account.owed
    return {
        "from": rfc3339(windows[0].number * plan.window_s),
        "until": rfc3339((windows[-1].number + 1) * plan.window_s),
        "domains": [
            {
                "domain_id": name,
                "promised_share": _part(promise[place], promised_sum),
                "given_share": _part(given[place], given_sum),
                "promised_accelerator_s": float(promise[place]),
                "given_accelerator_s": float(given[place]),
                "deviation": _finite(off[place]),
                "owed_accelerator_s": float(owed[place]),
            }
            for place, name in enumerate(names)
            if named[place]
        ],
    }


def _part(value: float, whole: float) -> float | None:
    return float(value) / whole if whole > 0 else None


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _level(row: SlaRow) -> Json:
    return {
        "tenant_id": row.tenant_id,
        "kind": row.kind,
        "target": row.target,
        "window_s": row.window_s,
        "value": _finite(row.value),
        "met": row.met,
        "observations": row.observations,
        "violations": row.violations,
        "penalty": {"micro_units": row.penalty_micro_units, "currency": row.currency},
    }


class PromisesCollector(Collector):
    """Metrics of what was promised, read when they are asked for."""

    def __init__(self, live: LiveScheduler, registry: CollectorRegistry) -> None:
        self._live = live
        registry.register(self)

    def describe(self) -> list[Metric]:
        """The families without values, so that registering asks for none."""
        return list(_families())

    def collect(self) -> list[Metric]:
        """Deviations in the newest window that is over, and how objectives stand."""
        deviation, left_out, promise, period, share, violations, met = _families()
        promises, now_s = self._live.book.promises, self._live.now_s()
        if promises.shares is not None:
            told = shares_json(promises.shares, now_s, 2)
            for window in told["windows"][1:]:
                for domain in window["domains"]:
                    name = domain["domain_id"]
                    _add(deviation, [name], domain["deviation"])
                    _add(promise, [name], domain["promise_deviation"])
                    left_out.add_metric([name], float(domain["infeasible"] is not None))
                    for of in ("planned", "promised", "given"):
                        _add(share, [name, of], domain[f"{of}_share"])
            for domain in told["period"]["domains"] if told["period"] is not None else ():
                _add(period, [domain["domain_id"]], domain["deviation"])
        rows = promises.levels.rows(now_s) if promises.levels is not None else []
        for labels, (broken, kept) in series_of(rows).items():
            violations.add_metric(labels, broken)
            met.add_metric(labels, float(kept))
        return [deviation, left_out, promise, period, share, violations, met]


def _add(family: GaugeMetricFamily, labels: list[str], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)


def series_of(rows: Iterable[SlaRow]) -> dict[tuple[str, str, str], tuple[int, bool]]:
    """Violations, and whether all is kept, by the labels of a series (tenant, kind, target). Objectives that differ in their windows
    or penalties alone are one series: a page with two samples of one name is refused as a whole."""
    found: dict[tuple[str, str, str], tuple[int, bool]] = {}
    for row in rows:
        name = row.tenant_id, row.kind, f"{row.target:g}"
        violations, met = found.get(name, (0, True))
        found[name] = violations + row.violations, met and row.met
    return found


def _families() -> tuple[GaugeMetricFamily, ...]:
    levels = ("tenant_id", "kind", "target")
    return (
        GaugeMetricFamily(
            "meridian_scheduler_share_deviation",
            "|given - planned| / planned accelerator time of a domain in the newest window that is over",
            labels=("domain_id",),
        ),
        GaugeMetricFamily(
            "meridian_scheduler_share_infeasible",
            "1 where nobody could have kept the domain's share in that window",
            labels=("domain_id",),
        ),
        GaugeMetricFamily(
            "meridian_scheduler_share_promise_deviation",
            "|given - promised| / promised accelerator time of a domain in that window, by the standing promise",
            labels=("domain_id",),
        ),
        GaugeMetricFamily(
            "meridian_scheduler_share_period_deviation",
            "|given - promised| / promised accelerator time of a domain in the newest 24 windows that are over",
            labels=("domain_id",),
        ),
        GaugeMetricFamily(
            "meridian_scheduler_share",
            "Planned, promised and given share (0-1) of a domain in the newest window that is over",
            labels=("domain_id", "of"),
        ),
        GaugeMetricFamily(
            "meridian_scheduler_service_level_violations",
            "Broken promises of a service-level objective so far",
            labels=levels,
        ),
        GaugeMetricFamily(
            "meridian_scheduler_service_level_met", "1 while a service-level objective is kept", labels=levels
        ),
    )
