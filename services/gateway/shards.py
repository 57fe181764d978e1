"""Answers of the shards of the scheduler as one: what domains gave to the tenants of all of them, and all tenants' promises.

Each shard keeps promises for its own tenants (services/scheduler/README.md), so what it says of others' is left out, and what a
domain gave is the sum over the shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meridian.sharding import shard_of_tenant

Json = dict[str, Any]
_SLACK = 1e-9


def service_levels_of_all(answers: Sequence[Json]) -> Json:
    """Each tenant's as its shard tells them; the answers are in the order of the shards."""
    items = [
        item
        for number, answer in enumerate(answers)
        for item in answer["items"]
        if shard_of_tenant(item["tenant_id"], len(answers)) == number
    ]
    return {**answers[0], "items": sorted(items, key=lambda item: str(item["tenant_id"]))}


def shares_of_all(answers: Sequence[Json]) -> Json:
    """Planned against given over all shards, by window and domain.

    A plan of fractions is over what was given, so what it planned is added up; a plan of accelerators promises the same amount
    whoever asks. A domain could not have kept its share when no shard says that it could.
    """
    first = answers[0]
    plan = first["plan"]
    if len(answers) == 1 or plan is None:
        return first
    merged: dict[str, list[Json]] = {}
    for answer in answers:
        for window in answer["windows"]:
            merged.setdefault(window["from"], []).append(window)
    return {
        **first,
        "windows": [_window(merged[begin], plan) for begin in sorted(merged, reverse=True)],
        "period": _period([answer["period"] for answer in answers if answer["period"] is not None], plan),
    }


def _window(windows: Sequence[Json], plan: Json) -> Json:
    rows: dict[str, list[Json]] = {}
    for window in windows:
        for row in window["domains"]:
            rows.setdefault(row["domain_id"], []).append(row)
    over = all(window["over"] for window in windows)
    amounts = {name: _sums(found, plan, "planned", "promised", "given") for name, found in rows.items()}
    planned_sum, promised_sum, given_sum = (sum(row[at] for row in amounts.values()) for at in range(3))
    domains = []
    for name, found in rows.items():
        planned, promised, given = amounts[name]
        deviation = _deviation(given, planned)
        reasons = [row["infeasible"] for row in found]
        infeasible = reasons[0] if all(reasons) else None
        judged = over and deviation is not None and infeasible is None
        domains.append(
            {
                "domain_id": name,
                "planned_share": planned / planned_sum if planned_sum > 0 else found[0]["planned_share"],
                "promised_share": promised / promised_sum if promised_sum > 0 else found[0]["promised_share"],
                "given_share": given / given_sum if given_sum > 0 else None,
                "planned_accelerator_s": planned,
                "promised_accelerator_s": promised,
                "given_accelerator_s": given,
                "deviation": deviation,
                "promise_deviation": _deviation(given, promised),
                "kept": deviation <= plan["tolerance"] + _SLACK if judged and deviation is not None else None,
                "infeasible": infeasible,
            }
        )
    return {**windows[0], "over": over, "domains": domains}


def _period(periods: Sequence[Json], plan: Json) -> Json | None:
    if not periods:
        return None
    rows: dict[str, list[Json]] = {}
    for period in periods:
        for row in period["domains"]:
            rows.setdefault(row["domain_id"], []).append(row)
    amounts = {name: _sums(found, plan, "promised", "given") for name, found in rows.items()}
    promised_sum, given_sum = (sum(row[at] for row in amounts.values()) for at in range(2))
    domains = [
        {
            "domain_id": name,
            "promised_share": promised / promised_sum if promised_sum > 0 else None,
            "given_share": given / given_sum if given_sum > 0 else None,
            "promised_accelerator_s": promised,
            "given_accelerator_s": given,
            "deviation": _deviation(given, promised),
            "owed_accelerator_s": sum(float(row["owed_accelerator_s"]) for row in rows[name]),
        }
        for name, (promised, given) in amounts.items()
    ]
    return {
        "from": min(item["from"] for item in periods),
        "until": max(item["until"] for item in periods),
        "domains": domains,
    }


def _sums(rows: Sequence[Json], plan: Json, *names: str) -> list[float]:
    """Accelerator-seconds of all shards by name. Fractions are over what was given, so they add up; accelerators are the same in all."""
    columns = {name: [float(row[f"{name}_accelerator_s"]) for row in rows] for name in names}
    adds_up = plan["kind"] == "fraction"
    return [sum(column) if adds_up or name == "given" else max(column) for name, column in columns.items()]


def _deviation(given: float, wanted: float) -> float | None:
    return abs(given - wanted) / wanted if wanted > 0 else None
