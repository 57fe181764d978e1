"""Results of the programs that simulate name the command that gives them again, and the data."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bench import share_contract, simulator
from bench.result import DataSource, read


def test_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MERIDIAN_DATA", raising=False)
    words = ["--jobs", "64", "--policy", "first-fit", "--load", "0.5", "--json", str(tmp_path / "out.json")]
    assert simulator.main(words) == 0
    body = read(tmp_path / "out.json")
    assert shlex.split(body["command"]) == ["python", "-m", "bench.simulator", *words]
    [finished] = [row["value"] for row in body["rows"] if row["measure"] == "jobs_finished_count"]
    assert finished == 64


def test_share_contract(tmp_path: Path) -> None:
    """At this load a week's jobs come within hours: no window is left after the first two days, which is said and no error."""
    trace = tmp_path / "jobs of a week.csv"
    first = datetime(2017, 10, 1, tzinfo=UTC)
    lines = [f"{(first + timedelta(hours=2 * number)).isoformat()},36000,8,vc{number % 2}" for number in range(84)]
    trace.write_text("\n".join(["timestamp,duration,num_gpus,cluster", *lines]) + "\n")
    words = ["--philly", str(trace), "--loads", "0.8", "--plans", "capacity", "--copies", "1"]
    words += ["--json", str(tmp_path / "out.json")]
    assert share_contract.main(words) == 0
    body = read(tmp_path / "out.json")
    assert shlex.split(body["command"]) == ["python", "-m", "bench.share_contract", *words]
    rows = {row["measure"]: row for row in body["rows"] if row["subject"] == "spread"}
    assert (rows["kept_ratio"]["value"], rows["kept_ratio"]["n"]) == (None, 0)
    assert rows["kept_ratio"]["reason"] == "no window counts"
    assert (rows["jct_mean_h"]["value"], rows["jct_mean_h"]["n"]) == (pytest.approx(10.0), 84)
    assert body["data"] == [{"name": trace.name, "sha256": DataSource.of(trace).sha256}]
