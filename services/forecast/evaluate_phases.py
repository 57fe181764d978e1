"""`meridian evaluate phases`: how well the phases of training runs are told. Method: docs/forecasting.md."""

from __future__ import annotations

from pathlib import Path

import click

from meridian.cli.evaluation import USER_FILE, one_thread, refused, result_option, say_each, write_result
from meridian.result import Row, print_table


@click.command()
@click.argument("path", metavar="CURVES.csv", type=USER_FILE)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the noise added to the truth.")
@result_option
@click.option("--all-rows", is_flag=True, help="Print the figures of every run, not the pooled ones only.")
def phases(path: Path, seed: int, out: Path | None, all_rows: bool) -> None:
    """Tell warm-up, fast and stable convergence of each run of CURVES.csv as it went on, and compare with the truth.

    Columns: run, step, train_loss, and optionally lr, gbs, total_steps, group (its family; default: what stands before
    the first slash of the run's name). Other columns are ignored. The file may be compressed (.gz).
    """
    one_thread()
    import numpy as np

    from services.forecast.phases.report import judge, rows_of
    from services.forecast.phases.table import read_curves
    from services.forecast.tables import InvalidTableError

    try:
        found = read_curves(path)
    except InvalidTableError as error:
        raise refused("CURVES.csv", str(error)) from None
    if not found.curves and not found.unusable:
        raise refused("CURVES.csv", "; ".join([f"{path.name}: no line names a run", *found.left_aside.sentences()]))
    judged = judge(found)
    rows = rows_of(found, judged, np.random.default_rng(seed))
    write_result(out, [path], seed, rows)
    for sentence in (*found.left_aside.sentences(), *found.unread.sentences()):
        click.echo(sentence, err=True)
    _say_unknown(judged.unknown)
    print_table([row for row in rows if all_rows or _worth_printing(row)])


def _worth_printing(row: Row) -> bool:
    return not row.slice.startswith("run=")


def _say_unknown(unknown: dict[str, str]) -> None:
    sentences = [f"phases of {run} are unknown: {reason}" for run, reason in unknown.items()]
    say_each(sentences, "runs with unknown phases (all are in the rows of --json)")
