"""Promises as several shards tell them: whom the gateway asks, and how their answers become one."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from meridian.errors import UnavailableError
from meridian.sharding import shard_of
from services.gateway.schedulers import Schedulers
from services.gateway.shards import service_levels_of_all, shares_of_all

PLAN = {"kind": "fraction", "window_s": 3600.0, "tolerance": 0.05}


def share(name: str, planned: float, given: float, infeasible: str | None = None) -> dict[str, Any]:
    return {
        "domain_id": name,
        "planned_share": 0.5,
        "promised_share": 0.5,
        "given_share": None,
        "planned_accelerator_s": planned,
        "promised_accelerator_s": planned,
        "given_accelerator_s": given,
        "deviation": None,
        "promise_deviation": None,
        "owed_accelerator_s": 0.0,
        "kept": None,
        "infeasible": infeasible,
    }


def told(*rows: dict[str, Any], over: bool = True, plan: dict[str, Any] | None = None) -> dict[str, Any]:
    window = {"from": "2026-05-01T10:00:00Z", "until": "2026-05-01T11:00:00Z", "over": over, "domains": list(rows)}
    period = {"from": "2026-05-01T09:00:00Z", "until": "2026-05-01T10:00:00Z", "domains": list(rows)}
    return {"policy_version": "p", "plan": plan or PLAN, "windows": [window], "period": period}


def test_what_domains_gave_is_the_sum_over_the_shards() -> None:
    # Neither shard kept the fractions for its own tenants, both together did.
    answers = [told(share("a", 50, 100), share("b", 50, 0)), told(share("a", 50, 0), share("b", 50, 100))]
    rows = {row["domain_id"]: row for row in shares_of_all(answers)["windows"][0]["domains"]}
    assert {name: (row["given_share"], row["deviation"], row["kept"]) for name, row in rows.items()} == {
        "a": (0.5, 0.0, True),
        "b": (0.5, 0.0, True),
    }
    worse = [told(share("a", 60, 90), share("b", 60, 30)), told(share("a", 40, 40), share("b", 40, 40))]
    row = shares_of_all(worse)["windows"][0]["domains"][0]
    assert (row["planned_accelerator_s"], row["given_accelerator_s"]) == (100, 130)
    assert (row["deviation"], row["kept"], row["given_share"]) == (0.3, False, 0.65)
    assert (row["promised_share"], row["promise_deviation"]) == (0.5, 0.3)
    period = shares_of_all(worse)["period"]
    assert period["domains"][0] == {
        "domain_id": "a",
        "promised_share": 0.5,
        "given_share": 0.65,
        "promised_accelerator_s": 100.0,
        "given_accelerator_s": 130.0,
        "deviation": 0.3,
        "owed_accelerator_s": 0.0,
    }


def test_a_plan_of_accelerators_is_not_promised_once_per_shard() -> None:
    plan = {**PLAN, "kind": "accelerators"}
    answers = [told(share("a", 7200, 3600), plan=plan), told(share("a", 7200, 3600), plan=plan)]
    row = shares_of_all(answers)["windows"][0]["domains"][0]
    assert (row["planned_accelerator_s"], row["given_accelerator_s"], row["kept"]) == (7200, 7200, True)
    [over_a_day] = shares_of_all(answers)["period"]["domains"]
    assert (over_a_day["promised_accelerator_s"], over_a_day["given_accelerator_s"]) == (7200, 7200)
    answers[1]["period"] = None
    assert shares_of_all(answers)["period"]["domains"][0]["given_accelerator_s"] == 3600
    answers[0]["period"] = None
    assert shares_of_all(answers)["period"] is None


def test_what_nobody_could_keep_is_not_judged_but_what_one_shard_could_is() -> None:
    both = [told(share("a", 10, 0, "no demand")), told(share("a", 10, 0, "capacity"))]
    row = shares_of_all(both)["windows"][0]["domains"][0]
    assert (row["infeasible"], row["kept"]) == ("no demand", None)
    one = [told(share("a", 10, 0, "no demand")), told(share("a", 10, 0))]
    assert shares_of_all(one)["windows"][0]["domains"][0]["kept"] is False
    still = [told(share("a", 10, 0), over=True), told(share("a", 10, 0), over=False)]
    assert shares_of_all(still)["windows"][0]["domains"][0]["kept"] is None


def test_one_shard_or_no_plan_is_told_as_it_is() -> None:
    answer = told(share("a", 1, 1))
    assert shares_of_all([answer]) is answer
    nothing: dict[str, Any] = {"policy_version": "p", "plan": None, "windows": []}
    assert shares_of_all([nothing, nothing]) == nothing


def test_service_levels_are_told_by_the_shard_of_the_tenant() -> None:
    tenants = [f"tenant-{number}" for number in range(9)]
    answers = [
        {"policy_version": "p", "at": None, "items": [{"tenant_id": name, "said_by": shard} for name in tenants]}
        for shard in range(3)
    ]
    items = service_levels_of_all(answers)["items"]
    assert [item["tenant_id"] for item in items] == tenants
    assert all(item["said_by"] == shard_of(item["tenant_id"], 3) for item in items)


async def test_all_shards_are_asked_and_the_error_of_one_is_told() -> None:
    down = {"c"}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host in down:
            raise httpx.ConnectError("nobody there")
        return httpx.Response(200, json={"from": request.url.host})

    found = Schedulers(httpx.AsyncClient(transport=httpx.MockTransport(answer)), "http://a,http://b,http://c")
    with pytest.raises(UnavailableError):
        await found.ask_all("GET", "/v1/shares")
    down.clear()
    assert [item["from"] for item in await found.ask_all("GET", "/v1/shares")] == ["a", "b", "c"]
