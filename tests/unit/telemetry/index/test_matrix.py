"""Reading measured throughputs: what is used, what is set aside and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from meridian.hardware import standard
from services.telemetry.index.matrix import Column, InvalidMatrixError, Matrix, read_matrix


def read(tmp_path: Path, text: str) -> Matrix:
    path = tmp_path / "matrix.csv"
    path.write_bytes(text.encode("latin-1"))
    return read_matrix(path, standard())


def test_rows_become_runs_with_ids_and_columns(tmp_path: Path) -> None:
    matrix = read(
        tmp_path,
        "chip,task,throughput,precision,n_accel,group,remark\n"
        "NVIDIA A100-SXM4-80GB,bert,100,AMP,8,v1.0,x\n8x A100-SXM4-80GB,bert,110,amp,,v1.0,\nT4,bert,7,,,,\n",
    )
    column = Column("v1.0", "bert", "amp", 8)
    assert [(run.chip_id, run.column, run.throughput) for run in matrix.runs] == [
        ("a100-sxm4-80gb", column, 100.0),
        ("a100-sxm4-80gb", column, 110.0),
        ("t4", Column("", "bert", "unstated", 1), 7.0),
    ]
    assert matrix.cells()["a100-sxm4-80gb", column] == 105.0
    assert matrix.names["a100-sxm4-80gb"] == ("NVIDIA A100-SXM4-80GB", "8x A100-SXM4-80GB")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (",bert,1,,,", "chip is empty"),
        ("T4,,1,,,", "task is empty"),
        ("T4,bert,,,,", "throughput is empty"),
        ("T4,bert,fast,,,", "throughput 'fast' is no positive number"),
        ("T4,bert,0,,,", "throughput '0' is no positive number"),
        ("T4,bert,-3,,,", "throughput '-3' is no positive number"),
        ("T4,bert,nan,,,", "throughput 'nan' is no positive number"),
        ("T4,bert,inf,,,", "throughput 'inf' is no positive number"),
        ("T4,bert,1e300,,,", "throughput '1e300' is not within 1e-60 and 1e+60"),
        ("T4,bert,5e-324,,,", "throughput '5e-324' is not within 1e-60 and 1e+60"),
        ("T4,bert,1,,1.5,", "n_accel '1.5' is no positive whole number"),
        ("T4,bert,1,,0,", "n_accel '0' is no positive whole number"),
        ("2x T4,bert,1,,4,", "n_accel is 4, but the name '2x T4' says 2"),
        ('T4,bert,"12,5",,,', "throughput '12,5' is no positive number"),
        ('T4,bert,"0,123",,,', "throughput '0,123' is no positive number"),
        ('T4,bert,"1,23,456",,,', "throughput '1,23,456' is no positive number"),
        (
            "T4,bert,2,940,fp32,1,a",
            "it has more cells than there are columns (a number with commas needs quotes)",
        ),
    ],
)
def test_bad_rows_are_listed_with_their_lines(row: str, reason: str, tmp_path: Path) -> None:
    matrix = read(tmp_path, f"chip,task,throughput,precision,n_accel,group\nT4,bert,5,,,\n{row}\n")
    assert len(matrix.runs) == 1
    assert [(each.line, each.reason) for each in matrix.rejected] == [(3, reason)]


def test_thousands_are_read(tmp_path: Path) -> None:
    matrix = read(tmp_path, 'chip,task,throughput,n_accel\nT4,a,"2,940.5",\nT4,b,12 345,\nT4,c,"1,234,567","1,024"\n')
    assert [run.throughput for run in matrix.runs] == [2940.5, 12345.0, 1234567.0]
    assert [run.column.n_accel for run in matrix.runs] == [1, 1, 1024]
    assert matrix.rejected == ()


def test_where_a_comma_is_a_decimal_none_is_taken_for_thousands(tmp_path: Path) -> None:
    matrix = read(tmp_path, 'chip,task,throughput\nT4,a,"1,234"\nT4,b,"12,5"\nT4,c,7\n')
    assert [run.throughput for run in matrix.runs] == [7.0]
    assert [each.line for each in matrix.rejected] == [2, 3]


def test_unknown_chips_are_reported_by_name(tmp_path: Path) -> None:
    matrix = read(tmp_path, "chip,task,throughput\nT4,a,5\nMystery 1,a,4\nMystery 1,b,4\nTPU,a,3\n")
    assert [(each.name, each.rows) for each in matrix.unknown] == [("Mystery 1", 2), ("TPU", 1)]
    assert "tpu-v3" in matrix.unknown[1].candidates
    assert {run.chip_id for run in matrix.runs} == {"t4"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("chip,throughput\nT4,1\n", "line 1: no column task"),
        ("", "line 1: no column chip, task, throughput"),
        ("chip,task,throughput\nT4,a,1\nT4,b,\xff\n", "line 3: is no UTF-8 text"),
        ("chip,task,throughput\nT4,a,1\n\nT4,b," + "1" * 140_000 + "\n", "line 4: field larger than field limit"),
        ("chip,task,throughput\n", "no row can be used"),
        ("chip,task,throughput\nT4,a,x\n", "no row can be used .line 2: throughput 'x'"),
        ("chip,task,throughput\nMystery,a,1\n", "no row can be used .chip 'Mystery'"),
    ],
)
def test_a_table_without_use_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidMatrixError, match=complaint):
        read(tmp_path, text)


def test_a_run_may_use_fewer_accelerators_than_the_machine_has(tmp_path: Path) -> None:
    matrix = read(tmp_path, "chip,task,throughput,n_accel\np4d.24xlarge,bert,100,\np4d.24xlarge,bert,30,2\n")
    assert [run.column.n_accel for run in matrix.runs] == [8, 2]
    assert matrix.rejected == ()
