"""`meridian graph` on the real network: tree, tables, the past, the reason of a state, live changes, probed links."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from tests.e2e.test_command_line import answer, meridian
from tests.network import Network

pytestmark = pytest.mark.timeout(900)


def test_tree_tables_and_reasons(running: Network) -> None:
    shown = meridian(running, "graph", COLUMNS="200")
    assert shown.returncode == 0, shown.stderr
    for expected in ("guizhou", "site guizhou-a", "guizhou-1", "8 x Ascend 910B", "links", "to shenzhen"):
        assert expected in shown.stdout, shown.stdout
    table = meridian(running, "graph", "--table", "--domain", "shenzhen", COLUMNS="200").stdout
    assert "shenzhen-1" in table
    assert "beijing-1" not in table
    body = answer(running, "graph", "--domain", "shenzhen")
    assert {item["domain_id"] for item in body["nodes"]} == {"shenzhen"}
    reason = meridian(running, "graph", "node", "beijing-1")
    assert reason.returncode == 0, reason.stderr
    assert "because" in reason.stdout
    assert answer(running, "graph", "node", "beijing-1")["rule"]
    assert meridian(running, "graph", "node", "nobody").returncode == 5


def test_the_past_and_bad_times(running: Network) -> None:
    now = answer(running, "graph", "--as-of", datetime.now(UTC).isoformat())
    assert {item["domain_id"] for item in now["domains"]} >= {"beijing", "guizhou"}
    assert meridian(running, "graph", "--as-of", "2020-01-01T00:00:00Z").returncode == 5
    wrong = meridian(running, "graph", "--as-of", "yesterday")
    assert (wrong.returncode, "--as-of" in wrong.stderr) == (2, True)
    assert meridian(running, "graph", "--as-of", "2020-01-01T00:00:00Z", "--watch").returncode == 2


def test_changes_are_followed_from_a_version(running: Network) -> None:
    version = answer(running, "graph")["version"]
    change = next(running.client.graph_changes(max(0, version - 1), reconnect=False))
    assert change["version"] == version
    assert change["domain_id"]
    command = [
        sys.executable,
        "-m",
        "meridian.cli.main",
        "--data-dir",
        str(running.data_dir),
        "--json",
        "graph",
        "--watch",
    ]
    with subprocess.Popen(
        [*command, "--after", str(max(0, version - 1))], stdout=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        line = watching.stdout.readline()
        watching.terminate()
    assert json.loads(line)["version"] == version


def test_links_are_measured_by_probes(running: Network) -> None:
    deadline_s = time.monotonic() + 300
    while True:
        links = answer(running, "graph")["links"]
        measured = [item for item in links if item["measured_at"]]
        if len(measured) == len(links) == 20:
            break
        assert time.monotonic() < deadline_s, f"{len(measured)} of {len(links)} links were measured"
        time.sleep(0.5)
    [way] = [item for item in measured if (item["from_domain_id"], item["to_domain_id"]) == ("guizhou", "shenzhen")]
    # The emulated way takes at least the round trip that is declared.
    assert way["rtt_s"] >= 0.018
    assert way["price_per_gb"]["micro_units"] == 40000
