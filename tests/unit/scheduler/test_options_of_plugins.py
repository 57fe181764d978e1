"""Options of plugins that are of a wrong type or beyond what can be computed: a policy error by their path, from whatever document."""

from __future__ import annotations

from typing import Any

import pytest

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.policy import policy_from_json
from services.scheduler.core.stages import check


@pytest.mark.parametrize(
    ("field", "plugin", "option", "value", "path"),
    [
        ("scores", "fgd", "demands", 5, "demands"),
        ("scores", "fgd", "demands", None, "demands"),
        ("scores", "fgd", "demands", [{"popularity": 1, "accelerator_types": 5}], r"demands\[0\]\.accelerator_types"),
        ("scores", "compact", "levels", 5, "levels"),
        ("scores", "compact", "levels", True, "levels"),
        ("order", "least_attained", "levels", 65, "levels"),
        ("order", "least_attained", "levels", 2**53, "levels"),
        ("order", "least_attained", "growth", 1e300, "growth"),
    ],
)
def test_it_is_named(field: str, plugin: str, option: str, value: Any, path: str) -> None:
    options: dict[str, Any] = {option: value}
    if option == "growth":
        options["levels"] = 4
    named: Any = {plugin: 1.0} if field == "scores" else [plugin]
    with pytest.raises(PolicyError, match=rf"^options\.{plugin}\.{path}: "):
        check(policy_from_json({field: named, "options": {plugin: options}}))


def test_as_many_queues_as_are_allowed() -> None:
    options = {"levels": 64, "growth": 2, "threshold_s": 1}
    check(policy_from_json({"order": ["least_attained"], "options": {"least_attained": options}}))


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"interval_s": "x"}, "interval_s"),
        ({"interval_s": None}, "interval_s"),
        ({"interval_s": True}, "interval_s"),
        ({"reservation_depth": True}, "reservation_depth"),
        ({"shown_nodes": "x"}, "shown_nodes"),
        ({"shown_candidates": -1}, "shown_candidates"),
        ({"one_accelerator_model_per_gang": "no"}, "one_accelerator_model_per_gang"),
        ({"name": 5}, "name"),
        ({"planner": 5}, "planner"),
        ({"filters": "up"}, "filters"),
        ({"order": 5}, "order"),
        ({"scores": 5}, "scores"),
        ({"scores": {"price": "x"}}, r"scores\.price"),
        ({"tenant_weights": {"a": []}}, r"tenant_weights\.a"),
        ({"domain_node_scores": {"a": 5}}, r"domain_node_scores\.a"),
        ({"domain_node_scores": {"a": {"pack": "x"}}}, r"domain_node_scores\.a\.pack"),
        ({"options": {"fgd": 5}}, r"options\.fgd"),
        ({"restarts": 5}, "restarts"),
        ({"restarts": {"backoff_s": "x"}}, r"restarts\.backoff_s"),
        ({"restarts": {"backoff_s": -1}}, r"restarts\.backoff_s"),
        ({"restarts": {"stop_timeout_s": float("nan")}}, r"restarts\.stop_timeout_s"),
        ({"restarts": {"max_recoveries": 1.5}}, r"restarts\.max_recoveries"),
        ({"restarts": {"retries": 1}}, r"restarts\.retries"),
    ],
)
def test_fields_of_a_policy_that_are_wrong_are_named(body: dict[str, Any], path: str) -> None:
    with pytest.raises(PolicyError, match=rf"^{path}: "):
        policy_from_json(body)
