"""A result names the command that gives it again, with its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import records_heard, two_level
from bench.result import read


def test_records_heard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "of this run.json"
    assert records_heard.main(["--records", "40", "--rounds", "1", "--json", str(out)]) == 0
    assert read(out)["command"] == f"python -m bench.records_heard --records 40 --rounds 1 --json '{out}'"
    assert "time_ratio" in capsys.readouterr().out


def test_two_level(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert two_level.main(["--steps", "2", "--domains", "5", "--units", "1", "--json", str(out)]) == 0
    body = read(out)
    assert body["command"] == f"python -m bench.two_level --steps 2 --domains 5 --units 1 --json {out}"
    assert {row["slice"] for row in body["rows"]} == {
        "5 domains, 250 nodes, 1 units",
        "5 domains, 250 nodes, 100 units, fresh",
    }
    assert "agreement_ratio" in capsys.readouterr().out
