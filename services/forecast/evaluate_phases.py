"""`meridian evaluate phases`: how well the phases of training runs are told. Method: docs/forecasting.md."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click

from meridian.errors import FieldError, InvalidArgumentError
from meridian.result import DataSource, Row, Setting, print_table, write

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUT = click.Path(dir_okay=False, writable=True, path_type=Path)
_SHOWN = 10


@click.command()
@click.argument("path", metavar="CURVES.csv", type=_FILE)
@click.option("--json", "out", type=_OUT, metavar="OUT", help="Write meridian.result/1.")
@click.option("--all-rows", is_flag=True, help="Print the figures of every run, not the pooled ones only.")
def phases(path: Path, out: Path | None, all_rows: bool) -> None:
    """Tell warm-up, fast and stable convergence of each run of CURVES.csv as it went on, and compare with the truth.

    Columns: run, step, train_loss, and optionally lr, gbs, total_steps, group (its family; default: what stands before
    the first slash of the run's name). Other columns are ignored. The file may be compressed (.gz).
    """
    # Small arrays: threads would only wait for each other. Read when numpy is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from services.forecast.phases.report import judge, rows_of
    from services.forecast.phases.table import read_curves
    from services.forecast.tables import InvalidTableError

    try:
        found = read_curves(path)
    except InvalidTableError as error:
        raise InvalidArgumentError(str(error), errors=(FieldError("CURVES.csv", str(error)),)) from None
    if not found.curves and not found.unusable:
        detail = f"{path.name}: no line names a run"
        raise InvalidArgumentError(detail, errors=(FieldError("CURVES.csv", detail),))
    judged = judge(found)
    rows = rows_of(found, judged)
    if out is not None:
        write(out, f"meridian {shlex.join(sys.argv[1:])}", [DataSource.of(path)], 0, Setting.OFFLINE, rows)
    for sentence in found.left_aside.sentences():
        click.echo(sentence, err=True)
    _say_unknown(judged.unknown)
    print_table([row for row in rows if all_rows or _worth_printing(row)])


def _worth_printing(row: Row) -> bool:
    return not row.slice.startswith("run=")


def _say_unknown(unknown: dict[str, str]) -> None:
    for run, reason in list(unknown.items())[:_SHOWN]:
        click.echo(f"phases of {run} are unknown: {reason}", err=True)
    if len(unknown) > _SHOWN:
        click.echo(f"and those of {len(unknown) - _SHOWN} more runs (all are in the rows of --json)", err=True)
