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

from services.scheduler.core.selection.objectives_sla import SlaRow
from services.scheduler.core.share_account import KEPT_WINDOWS, ShareAccount
from services.scheduler.core.share_plan import Window, deviations, infeasible, planned
from services.scheduler.live import LiveScheduler
from services.scheduler.times import rfc3339

Json = dict[str, Any]
_SLACK = 1e-9


def create_promises_router(live: LiveScheduler) -> APIRouter:
    """The routes of what was promised."""
    router = APIRouter(prefix="/v1")

    @router.get("/shares")
    async def shares(windows: Annotated[int, Query(ge=1, le=KEPT_WINDOWS + 1)] = 24) -> Json:
        """Planned and given shares of the domains per window (an hour), newest first; the first one is not over yet."""
        account = live.book.promises.shares
        body: Json = {"policy_version": live.policy.version, "plan": None, "windows": []}
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
        "plan": {"kind": plan.kind, "window_s": plan.window_s, "tolerance": plan.tolerance},
        "windows": found[:windows],
    }


def _window(account: ShareAccount, window: Window, *, over: bool) -> Json:
    plan, names = account.plan, account.domain_ids
    begin_s = window.number * plan.window_s
    wanted, apart = planned(plan, window, names), deviations(plan, window, names)
    if not over and plan.kind == "accelerators":
        # What was due until now.
        wanted = wanted * (account.now_s - begin_s) / plan.window_s
        with np.errstate(invalid="ignore", divide="ignore"):
            apart = np.abs(window.given - wanted) / np.where(wanted > 0, wanted, np.nan)
    reasons = infeasible(plan, window, names) if over else [""] * len(names)
    named = ~np.isnan(wanted)
    planned_sum, given_sum = float(wanted[named].sum()), float(window.given[named].sum())
    domains = []
    for place, name in enumerate(names):
        if not named[place]:
            continue
        deviation = _finite(apart[place])
        kept = None if deviation is None or reasons[place] or not over else deviation <= plan.tolerance + _SLACK
        row = plan.row(window.number, names) if plan.kind == "fraction" and window.wanted is None else None
        share = float(row[place]) if row is not None else _part(wanted[place], planned_sum)
        domains.append(
            {
                "domain_id": name,
                "planned_share": share,
                "given_share": _part(window.given[place], given_sum),
                "planned_accelerator_s": float(wanted[place]),
                "given_accelerator_s": float(window.given[place]),
                "deviation": deviation,
                "kept": kept,
                "infeasible": reasons[place] or None,
            }
        )
    return {"from": rfc3339(begin_s), "until": rfc3339(begin_s + plan.window_s), "over": over, "domains": domains}


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
        deviation, left_out, violations, met = _families()
        promises, now_s = self._live.book.promises, self._live.now_s()
        if promises.shares is not None:
            for window in shares_json(promises.shares, now_s, 2)["windows"][1:]:
                for domain in window["domains"]:
                    if domain["deviation"] is not None:
                        deviation.add_metric([domain["domain_id"]], domain["deviation"])
                    left_out.add_metric([domain["domain_id"]], float(domain["infeasible"] is not None))
        rows = promises.levels.rows(now_s) if promises.levels is not None else []
        for name, (broken, kept) in series_of(rows).items():
            violations.add_metric(name, broken)
            met.add_metric(name, float(kept))
        return [deviation, left_out, violations, met]


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
            "meridian_scheduler_service_level_violations",
            "Broken promises of a service-level objective so far",
            labels=levels,
        ),
        GaugeMetricFamily(
            "meridian_scheduler_service_level_met", "1 while a service-level objective is kept", labels=levels
        ),
    )
