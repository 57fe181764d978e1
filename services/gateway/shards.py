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
    return {**first, "windows": [_window(merged[begin], plan) for begin in sorted(merged, reverse=True)]}


def _window(windows: Sequence[Json], plan: Json) -> Json:
    rows: dict[str, list[Json]] = {}
    for window in windows:
        for row in window["domains"]:
            rows.setdefault(row["domain_id"], []).append(row)
    over = all(window["over"] for window in windows)
    adds_up = plan["kind"] == "fraction"
    amounts = {name: _amounts(found, adds_up=adds_up) for name, found in rows.items()}
    planned_sum = sum(planned for planned, _ in amounts.values())
    given_sum = sum(given for _, given in amounts.values())
    domains = []
    for name, found in rows.items():
        planned, given = amounts[name]
        deviation = abs(given - planned) / planned if planned > 0 else None
        reasons = [row["infeasible"] for row in found]
        infeasible = reasons[0] if all(reasons) else None
        judged = over and deviation is not None and infeasible is None
        domains.append(
            {
                "domain_id": name,
                "planned_share": planned / planned_sum if planned_sum > 0 else found[0]["planned_share"],
                "given_share": given / given_sum if given_sum > 0 else None,
                "planned_accelerator_s": planned,
                "given_accelerator_s": given,
                "deviation": deviation,
                "kept": deviation <= plan["tolerance"] + _SLACK if judged and deviation is not None else None,
                "infeasible": infeasible,
            }
        )
    return {**windows[0], "over": over, "domains": domains}


def _amounts(rows: Sequence[Json], *, adds_up: bool) -> tuple[float, float]:
    """Planned and given accelerator seconds."""
    planned = [float(row["planned_accelerator_s"]) for row in rows]
    return sum(planned) if adds_up else max(planned), sum(float(row["given_accelerator_s"]) for row in rows)
