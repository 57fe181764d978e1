"""How `meridian graph` puts things: links, changes, the tree."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from meridian.cli.graph_commands import accelerator_texts, change_lines, link_text, only, tree
from meridian.cli.main import main
from meridian.cli.output import duration
from meridian.client import Client


def link(**changes: Any) -> dict[str, Any]:
    return {
        "from_domain_id": "north",
        "to_domain_id": "south",
        "rtt_s": 0.0424,
        "bandwidth_bytes_per_s": 625e6,
        "loss": 0.0,
        "price_per_gb": {"micro_units": 60000, "currency": "CNY"},
        "measured_at": None,
        **changes,
    }


def graph() -> dict[str, Any]:
    chips = [{"model": "H100"}, {"model": "H100"}]
    nodes = [
        {"node_id": "n-1", "domain_id": "north", "site": "a", "state": "busy", "state_reason": "", "accelerators": chips},
        {"node_id": "s-1", "domain_id": "south", "site": "", "state": "failed", "state_reason": "no [beat]", "accelerators": []},
    ]  # fmt: skip
    domains = [
        {"domain_id": name, "region": "r", "nodes_by_state": {state: 1}} for name, state in (("north", "busy"), ("south", "failed"))
    ]  # fmt: skip
    return {"version": 7, "domains": domains, "nodes": nodes, "links": [link()]}


def test_a_link_in_words() -> None:
    assert link_text(link()) == "42.4 ms, 5.00 Gbit/s, 0.06 CNY/GB, declared"
    nothing = link(rtt_s=0, bandwidth_bytes_per_s=0, price_per_gb=None)
    assert link_text(nothing) == "declared"
    measured = (datetime.now(UTC) - timedelta(days=3, hours=4, minutes=30)).isoformat()
    assert link_text(link(loss=0.125, measured_at=measured)).endswith("12.5% lost, 0.06 CNY/GB, measured 3d 4h ago")


def test_a_duration_in_words() -> None:
    assert [duration(seconds) for seconds in (-1, 0.44, 9.9, 10, 70, 7500, 273_600)] == [
        "0.0s", "0.4s", "9.9s", "10s", "1m 10s", "2h 5m", "3d 4h",
    ]  # fmt: skip


def test_the_tree_names_everything_and_takes_no_text_for_markup() -> None:
    console = Console(width=120, record=True, file=None, no_color=True)
    with console.capture() as shown:
        console.print(tree(graph()))
    for expected in (
        "north  r  1 busy",
        "site a",
        "busy  n-1",
        "2 x H100",
        "to south  42.4 ms",
        "no site",
        "no [beat]",
    ):
        assert expected in shown.get(), shown.get()


def test_one_domain_keeps_its_links_at_either_end() -> None:
    found = only(graph(), "south")
    assert [item["node_id"] for item in found["nodes"]] == ["s-1"]
    assert len(found["links"]) == 1
    assert only(graph(), "west") == {"version": 7, "domains": [], "nodes": [], "links": []}
    assert only(graph(), None) == graph()


def test_a_domain_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "graph", lambda _self, _when=None: graph())
    monkeypatch.setenv("MERIDIAN_URL", "http://127.0.0.1:9")
    for more in ([], ["--json"]):
        assert CliRunner().invoke(main, ["graph", "--domain", "south", *more]).exit_code == 0
        done = CliRunner().invoke(main, ["graph", "--domain", "west", *more])
        assert done.exit_code == 5
        assert "there is no domain 'west' in the graph" in done.output


def test_a_change_in_words() -> None:
    node = {"node_id": "n-1", "state": "degraded", "state_reason": "hot"}
    change = {"version": 9, "domain_id": "north", "at": "2026-01-01T00:00:00Z", "kind": "structure", "full": False}
    change |= {"nodes": [node], "removed_node_ids": ["n-2"], "links": []}
    head, line = change_lines(change)
    assert head.endswith("9  north  structure: 1 nodes, 1 gone")
    assert line == "    n-1  degraded  hot"
    assert change_lines(change | {"kind": "metrics"})[0].endswith("metrics: 1 nodes, 1 gone")
    assert len(change_lines(change | {"full": True})) == 1
    assert change_lines({"reset": 12}) == ["changes are missing; the graph is at version 12"]


def test_a_divided_accelerator_is_shown_with_its_parts() -> None:
    whole = {"model": "H100"}
    parts = [{"id": "2", "profile": "3g.40gb"}, {"id": "7", "profile": ""}]
    divided = {"model": "H100", "partitioned": True, "parts": parts}
    assert accelerator_texts({"accelerators": [whole, whole, divided, {**divided, "parts": []}]}) == [
        "2 x H100",
        "1 x H100 in parts 3g.40gb, 7",
        "1 x H100 in parts that are not known",
    ]
