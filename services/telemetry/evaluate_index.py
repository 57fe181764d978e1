"""`meridian evaluate index`: how far off the compute index is for a chip it has not seen. Method: docs/index.md."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

import click

from meridian.cli.evaluation import USER_FILE, one_thread, refused, result_option, say_each, write_result
from meridian.hardware import InvalidCatalogueError, standard
from meridian.result import Row, print_table

if TYPE_CHECKING:
    from services.telemetry.index.evaluation import Evaluation
    from services.telemetry.index.matrix import Matrix


@click.command()
@click.argument("matrix_path", metavar="MATRIX.csv", type=USER_FILE)
@click.option(
    "--chips",
    "chips_path",
    metavar="SPECS.csv",
    type=USER_FILE,
    help="Chips that the catalogue does not know; its columns.",
)
@click.option(
    "--probes",
    type=click.IntRange(0, 64),
    default=3,
    show_default=True,
    help="Probe runs on the chip left out; 0, 1 and 3 are always shown.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of random probes and intervals.")
@result_option
@click.option("--all-rows", is_flag=True, help="Print every slice, not the pooled figures and those per chip only.")
def index(matrix_path: Path, chips_path: Path | None, probes: int, seed: int, out: Path | None, all_rows: bool) -> None:
    """Leave each chip of MATRIX.csv out and predict its throughputs from the others.

    Columns: chip, task, throughput, and optionally precision, n_accel, group (rows of different groups, such as rounds of
    a benchmark, are never compared). More throughput is better; any unit, the same for all chips of a task.
    """
    one_thread()
    import numpy as np

    from services.telemetry.index.evaluation import TooManyColumnsError, leave_one_chip_out, subject_of
    from services.telemetry.index.matrix import InvalidMatrixError, read_matrix
    from services.telemetry.index.report import rows_of

    catalogue = standard()
    paths = [matrix_path]
    try:
        if chips_path is not None:
            catalogue = catalogue.with_chips(chips_path)
            paths.append(chips_path)
        matrix = read_matrix(matrix_path, catalogue)
    except (InvalidMatrixError, InvalidCatalogueError) as error:
        raise refused("MATRIX.csv", str(error)) from None
    draws = np.random.default_rng(seed)
    try:
        evaluation = leave_one_chip_out(matrix, catalogue, sorted({0, 1, 3, probes}), draws)
    except TooManyColumnsError as error:
        raise refused("MATRIX.csv", f"{matrix_path.name}: {error}") from None
    _say_what_was_left_aside(matrix, evaluation)
    if not evaluation.scores:
        raise refused("MATRIX.csv", f"{matrix_path.name}: no task is measured on two chips that the catalogue knows")
    rows = rows_of(evaluation, matrix, draws)
    write_result(out, paths, seed, rows)
    _say_what_it_rests_on(evaluation)
    in_parts = {subject_of(0), subject_of(probes or 3)}
    print_table([row for row in rows if all_rows or _worth_printing(row, in_parts)])


def _worth_printing(row: Row, in_parts: Set[str]) -> bool:
    if row.slice == "all":
        return True
    return row.slice.startswith(("chip=", "task=")) and row.subject in in_parts and row.value is not None


def _say_what_was_left_aside(matrix: Matrix, evaluation: Evaluation) -> None:
    for unknown in (*matrix.unknown, *evaluation.unusable):
        means = f"; it may be {', '.join(unknown.candidates)}" if unknown.candidates else ""
        click.echo(f"chip {unknown.name!r} ({unknown.rows} rows) is left aside: {unknown.reason}{means}", err=True)
    say_each([f"line {rejected.line} is left aside: {rejected.reason}" for rejected in matrix.rejected], "lines")


def _say_what_it_rests_on(evaluation: Evaluation) -> None:
    from services.telemetry.index.selection import MOST_CELLS

    if evaluation.unstated:
        click.echo(
            f"precision is not stated in {evaluation.unstated} cells: single precision is given "
            f"{evaluation.single_precision:.0%}, 16 bits the rest",
            err=True,
        )
    if evaluation.times:
        named = ", ".join(sorted(evaluation.times))
        click.echo(f"values that fall as chips get faster are taken as times (1 / value): {named}", err=True)
    if evaluation.limited:
        click.echo(
            f"the table is too large for one fit: {evaluation.limited} chips are predicted from about {MOST_CELLS} cells each, "
            "those of the chips nearest by their facts",
            err=True,
        )
    click.echo(f"reference chip of ratios: {evaluation.reference}", err=True)
