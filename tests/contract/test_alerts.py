"""Alerts and dashboard ask only for what the services measure, and say what `docs/operations.md` says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from meridian.service import build_service
from meridian.settings import SERVICES, KernelSettings

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS: dict[str, Any] = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
ALERTS: dict[str, Any] = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/meridian.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = {
    **{rule["alert"]: rule["expr"] for rule in RULES},
    **{f"{panel['title']} {item['refId']}": item["expr"] for panel in PANELS for item in panel["targets"]},
}
# Set by the scrape configuration, or by Prometheus itself.
TARGET_LABELS = {"job", "instance", "service"}
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def samples_of(registry: CollectorRegistry) -> Iterator[tuple[str, set[str]]]:
    """Each name under which a metric of the registry is scraped, with its labels."""
    for collector in registry._collector_to_names:
        kind: Any = collector
        # A collector of several families describes them; the others are one family each.
        if hasattr(kind, "_type"):
            families = [(kind._name, kind._type, kind._labelnames)]
        else:
            families = [(family.name, family.type, family._labelnames) for family in kind.describe()]
        for name, form, own in families:
            for suffix in SUFFIXES[form]:
                yield name + suffix, set(own) | ({"le"} if suffix == "_bucket" else set()) | TARGET_LABELS


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Labels by name of everything the services measure; the services are wired, not started."""
    settings = KernelSettings(data_dir=tmp_path_factory.mktemp("data"))
    return {
        name: labels for service in SERVICES for name, labels in samples_of(build_service(service, settings).registry)
    } | {"up": TARGET_LABELS}


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:meridian_[a-z_]+|up)\b", expression))


def labels_in(expression: str) -> set[str]:
    selected = re.findall(r"\{([^}]*)\}", expression)
    grouped = re.findall(r"\bby \(([^)]*)\)", expression)
    return {name for text in selected for name in re.findall(r"(\w+)\s*(?:=|!)", text)} | {
        name.strip() for text in grouped for name in text.split(",")
    }


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_every_metric_is_measured_with_the_labels_asked_for(where: str, measured: dict[str, set[str]]) -> None:
    names = names_in(EXPRESSIONS[where])
    assert names, "an expression that asks for nothing"
    assert names - set(measured) == set()
    known = {label for name in names for label in measured[name]}
    assert labels_in(EXPRESSIONS[where]) - known == set()


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_what_is_shown_of_a_label_is_kept_by_the_expression(where: str, measured: dict[str, set[str]]) -> None:
    texts = [json.dumps(rule["annotations"]) for rule in RULES if rule["alert"] == where]
    texts += [
        item["legendFormat"]
        for panel in PANELS
        for item in panel["targets"]
        if where == f"{panel['title']} {item['refId']}"
    ]
    shown = set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", " ".join(texts)))
    expression = EXPRESSIONS[where]
    grouped = re.findall(r"\bby \(([^)]*)\)", expression)
    if grouped:
        kept = {name.strip() for text in grouped for name in text.split(",")} - {"le"}
    else:
        kept = {label for name in names_in(expression) for label in measured[name]}
    assert shown <= kept


def documented() -> list[tuple[str, str]]:
    """(expressions, duration) of each row of the table, in order."""
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    table = text.partition("| alert when |")[2].partition("\n\n")[0]
    rows = [line.split(" | ")[0] for line in table.splitlines()[2:]]
    return [(" ".join(re.findall(r"`([^`]+)`", row)), "".join(re.findall(r" for (\d+ \w+)", row))) for row in rows]


def test_the_rules_are_those_of_the_handbook() -> None:
    rows = documented()
    assert len(rows) == len(RULES) > 10
    for (expressions, duration), rule in zip(rows, RULES, strict=True):
        assert names_in(expressions) == names_in(rule["expr"]), rule["alert"]
        for part in (r"[<>=]=? ?(\d+)", r"\[(\w+)\]", r"quantile\(([\d.]+)"):
            assert set(re.findall(part, expressions)) == set(re.findall(part, rule["expr"])), rule["alert"]
        words = duration.replace(" min", "m").replace(" s", "s")
        assert rule.get("for", "") == words, rule["alert"]


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert set(rule["annotations"]) == {"summary", "action"}
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_every_service_is_scraped_where_its_container_listens() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    services, agents = PROMETHEUS["scrape_configs"]
    targets = {item["labels"]["service"]: item["targets"] for item in services["static_configs"]}
    for name in SERVICES:
        port = compose["services"][name]["environment"][f"MERIDIAN_{name.upper()}_HTTP_PORT"]
        assert targets.pop(name) == [f"{name}:{port}"]
    assert targets == {}
    assert agents["file_sd_configs"]
    assert [(ROOT / "deploy/prometheus" / name).is_file() for name in PROMETHEUS["rule_files"]] == [True]
    jobs = next(rule["expr"] for rule in RULES if rule["alert"] == "ServiceDown")
    pattern = re.findall(r'job=~"([^"]+)"', jobs)[0]
    assert all(re.fullmatch(pattern, item["job_name"]) for item in (services, agents))


def test_the_dashboard_can_be_drawn() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {"datasource"}
    for panel in PANELS:
        for item in [panel, *panel["targets"]]:
            assert item["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
