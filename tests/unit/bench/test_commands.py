"""A result names the command that gives it again, with its options."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench import records_heard, two_level
from bench.result import command_line, read
from meridian.result import in_words


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


def test_data_are_named_by_their_variable_and_not_by_where_this_machine_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MERIDIAN_DATA", "/some where/data/")
    given = ["/some where/data/figures", "/some where/data", "/some where/database", "--seed", "0", "a b"]
    assert in_words(given) == (""""$MERIDIAN_DATA"/figures "$MERIDIAN_DATA" '/some where/database' --seed 0 'a b'""")
    told = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {in_words(given)}"],
        env={"MERIDIAN_DATA": "/some where/data"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout.splitlines() == given
    monkeypatch.delenv("MERIDIAN_DATA")
    assert command_line("bench.index", ["/data/x.csv"]) == "python -m bench.index /data/x.csv"
