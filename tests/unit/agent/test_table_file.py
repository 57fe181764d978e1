"""A vendor without code: a mapping file is read, and a wrong one is refused by place and line; the command that uses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli import telemetry
from agent.collectors.table_file import read_table
from meridian.errors import ConfigurationError, InvalidArgumentError

TABLE = """exporter: acme-exporter
vendor: Acme
detect: ["acme_.*"]
index_label: card
identity_labels: [serial]
sentinels: [{from: -7, to: -7, reason: "no sensor"}]
metrics:
  hw.gpu.utilization:
    - {family: acme_busy_permille, scale: 0.001, valid: [0, 1]}
  hw.power:
    - {sum_of: [acme_core_mw, {family: acme_hbm_mw, labels: {state: "on"}}], scale: 0.001, zero: placeholder}
  cpn.health:
    - {family: acme_state, enum: {3: 1, 4: 0.5, 5: 0}}
"""
PAGE = """acme_busy_permille{card="2",serial="S2"} 625
acme_core_mw{card="2",serial="S2"} 200000
acme_hbm_mw{card="2",serial="S2",state="on"} 45500
acme_hbm_mw{card="2",serial="S2",state="off"} 9
acme_state{card="2",serial="S2"} 4
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("exporter: acme-exporter", "exporter: ''", "line 1: exporter: is missing"),
        ("hw.power:", "hw.voltage:", "line 10: metrics.hw.voltage: 'hw.voltage' is no canonical metric"),
        ("scale: 0.001, valid", "scales: 0.001, valid", "line 9: metrics.hw.gpu.utilization.0.scales: unknown keys"),
        ("valid: [0, 1]", "valid: [1, 0]", "line 9: metrics.hw.gpu.utilization.0.valid"),
        ("scale: 0.001, zero", "scale: much, zero", "line 11: metrics.hw.power.0.scale"),
        ('state: "on"', 'state: "("', "line 11"),
        ("zero: placeholder", "zero: nothing", "line 11: metrics.hw.power.0.zero"),
        ("{family: acme_state,", "{sum_of: [], ", "line 13"),
        ("{3: 1, 4: 0.5, 5: 0}", "[3]", "line 13: metrics.cpn.health.0.enum"),
        ("from: -7", "from: .nan", "line 6: sentinels.0.from"),
        ("detect: [", "detect: [[", "own.yaml"),
        ("vendor: Acme", "vendor: 5", "line 2: vendor"),
        ("index_label: card", "index_label: card\nindexx: 5", "line 5: indexx"),
    ],
)
def test_a_wrong_table_is_refused_by_place_and_line(old: str, new: str, words: str) -> None:
    assert old in TABLE
    with pytest.raises(ConfigurationError) as refusal:
        read_table(TABLE.replace(old, new, 1), "own.yaml")
    assert words in refusal.value.detail


@pytest.mark.parametrize("text", ["", "[]", "3", "exporter: x", "a: &a [*a]", "x" * 300_000, "{" * 5000])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"own\.yaml"):
        read_table(text, "own.yaml")


def _run(*arguments: str, page: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(telemetry, arguments, input=page)
    if isinstance(result.exception, ConfigurationError | InvalidArgumentError):
        return 2, result.exception.detail
    return result.exit_code, result.output


def test_a_vendor_without_code(tmp_path: Path) -> None:
    table, page = tmp_path / "acme.yaml", tmp_path / "page.prom"
    table.write_text(TABLE)
    page.write_text(PAGE)
    status, output = _run("parse", str(page), "--vendor", str(table), "--json", "--at", "2026-05-01T12:00:00Z")
    assert status == 0
    document = json.loads(output)
    assert document["exporters"] == [{"exporter": "acme-exporter", "vendor": "Acme"}]
    found = {item["metric"]: item for item in document["readings"] if item["device"] == "S2"}
    assert {name: item["value"] for name, item in found.items() if item["value"] is not None} == {
        "hw.gpu.utilization": 0.625, "hw.power": 245.5, "cpn.health": 0.5,
    }  # fmt: skip
    assert (found["hw.power"]["unit"], found["hw.power"]["source"], found["hw.power"]["statistic"]) == (
        "W", "directly_measured", "cur",
    )  # fmt: skip
    assert found["hw.gpu.memory.usage"]["quality"] == "not_exported"
    cores = {item["core"] for item in document["readings"] if item["core"]}
    assert cores == set(range(1, 13)), "all twelve are listed"
    status, output = _run("check", str(table))
    assert status == 0
    assert "acme_busy_permille" in output


def test_the_table_for_people_and_wrong_input(tmp_path: Path) -> None:
    status, output = _run(
        "parse", "-", page='DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="G"} 40\nDCGM_FI_DEV_FB_USED{gpu=0} 3\n'
    )
    assert status == 0
    assert "dcgm-exporter (NVIDIA)" in output
    assert "0.4" in output
    assert "line 2: the labels cannot be read" in output
    assert _run("parse", "-", page="nothing here 5\n")[0] == 2
    assert "no known exporter" in _run("parse", "-", page="strange_family 5\n")[1]
    assert _run("parse", str(tmp_path / "none.prom"))[0] == 2
    bad = tmp_path / "bad.prom"
    bad.write_bytes(b"a 1\n\xff")
    assert "not UTF-8 at byte 4" in _run("parse", str(bad))[1]
    assert _run("parse", "-", "--at", "yesterday", page=PAGE)[0] == 2
