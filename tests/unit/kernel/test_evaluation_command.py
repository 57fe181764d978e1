"""What every `meridian evaluate` command says of its result's file."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from meridian.cli.main import main

MATRIX = "chip,task,throughput,precision\nRTX 3090,a,100,fp16\nRTX 4090,a,170,fp16\n"


def test_a_result_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    matrix = tmp_path / "matrix.csv"
    matrix.write_text(MATRIX, encoding="utf-8")
    out = tmp_path / "no such folder" / "result.json"
    answer = CliRunner().invoke(main, ["evaluate", "index", str(matrix), "--json", str(out)])
    assert answer.exit_code == 2
    assert "no such folder" in answer.stderr
    assert "mape_ratio" not in answer.stdout
