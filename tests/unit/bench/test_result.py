"""The result form: what is written keeps the schema, and what does not keep it is refused before it is written."""

from __future__ import annotations

import hashlib
import io
import json
import math
from pathlib import Path

import jsonschema
import pytest

from bench.result import SCHEMA_PATH, DataSource, InvalidResultError, Row, Setting, document, print_table, read, write

ROWS = [
    Row("easy", "jct_mean_s", 812.5, slice="load=0.9", low=790.0, high=840, n=5, baseline=True),
    Row("ours", "jct_mean_s", 0.0123, slice="load=0.9", n=5),
    Row("ours", "hypervolume_ratio", None, reason="no front of more than one point"),
]


def test_schema_is_itself_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(SCHEMA_PATH.read_text(encoding="utf-8")))


def test_written_result_reads_back(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_bytes(b"a,b\n")
    out = tmp_path / "result.json"
    write(out, "python -m bench.example", [DataSource.of(trace)], 7, Setting.REAL, ROWS)
    body = read(out)
    assert body["schema"] == "meridian.result/1"
    assert body["data"] == [{"name": "trace.csv", "sha256": hashlib.sha256(b"a,b\n").hexdigest()}]
    assert body["rows"][0] == {
        "subject": "easy", "measure": "jct_mean_s", "slice": "load=0.9", "value": 812.5,
        "low": 790.0, "high": 840.0, "n": 5, "baseline": True,
    }  # fmt: skip
    assert body["rows"][2]["value"] is None
    assert body["rows"][2]["reason"].startswith("no front")


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (Row("x", "latency_ms", None), "reason"),
        (Row("x", "latency_ms", math.nan), "reason"),
        (Row("x", "Latency ms", 1.0), "measure"),
        (Row("", "latency_ms", 1.0), "subject"),
        (Row("x", "latency_ms", 1.0, n=-1), "rows[0].n"),
    ],
)
def test_bad_row_is_refused_and_nothing_written(tmp_path: Path, row: Row, field: str) -> None:
    out = tmp_path / "result.json"
    with pytest.raises(InvalidResultError, match=r"rows\[0\]") as caught:
        write(out, "c", [], 0, "real", [row])
    assert field in str(caught.value)
    assert not out.exists()


def test_unknown_setting_and_empty_rows_are_refused() -> None:
    with pytest.raises(InvalidResultError, match="setting"):
        document("c", [], 0, "guessed", ROWS)
    with pytest.raises(InvalidResultError, match="rows"):
        document("c", [], 0, "real", [])


def test_table_marks_baselines_and_reasons() -> None:
    out = io.StringIO()
    print_table(ROWS, out)
    text = out.getvalue()
    assert "easy *" in text
    assert "812.50" in text
    assert "0.0123" in text
    assert "no front of more than one point" in text
