"""`meridian evaluate demand`: how well recorded demand would have been forecast. Method: docs/forecasting.md."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import click

from meridian.errors import FieldError, InvalidArgumentError
from meridian.result import DataSource, Setting, print_table, write

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUT = click.Path(dir_okay=False, writable=True, path_type=Path)
_SHOWN = 10
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class _Horizon(click.ParamType):  # type: ignore[type-arg]
    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        """A length of time such as 90s, 10m, 1h or 1d, as (its text, seconds)."""
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", str(value))
        if found is None:
            self.fail(f"{value!r} is no length of time such as 90s, 10m, 1h or 1d", param, ctx)
        return str(value), int(found[1]) * _UNITS_S[found[2]]


@click.command()
@click.argument("path", metavar="SERIES.csv", type=_FILE)
@click.option(
    "--horizon",
    "horizons",
    type=_Horizon(),
    multiple=True,
    default=("10m", "1h"),
    show_default=True,
    help="How far ahead; may be given several times.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of bootstrapped intervals.")
@click.option("--json", "out", type=_OUT, metavar="OUT", help="Write meridian.result/1.")
@click.option("--all-rows", is_flag=True, help="Print the figures of every series, not the pooled ones only.")
def demand(path: Path, horizons: tuple[tuple[str, float], ...], seed: int, out: Path | None, all_rows: bool) -> None:
    """Forecast the last fifth of each series of SERIES.csv from its past, origin by origin.

    Columns: series, time (seconds, or a date of ISO 8601), value (from 0), and optionally capacity. Other columns are
    ignored. The file may be compressed (.gz). Samples are gathered in windows as long as they are mostly apart.
    """
    # Small arrays: threads would only wait for each other. Read when numpy is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import numpy as np

    from services.forecast.demand_report import rows_of
    from services.forecast.demand_series import read_demand
    from services.forecast.tables import InvalidTableError

    try:
        table = read_demand(path)
    except InvalidTableError as error:
        raise InvalidArgumentError(str(error), errors=(FieldError("SERIES.csv", str(error)),)) from None
    if not table.series and not table.unusable:
        detail = f"{path.name}: no line names a series"
        raise InvalidArgumentError(detail, errors=(FieldError("SERIES.csv", detail),))
    rows = rows_of(table, list(dict.fromkeys(horizons)), np.random.default_rng(seed))
    if out is not None:
        write(out, f"meridian {shlex.join(sys.argv[1:])}", [DataSource.of(path)], seed, Setting.OFFLINE, rows)
    for sentence in table.left_aside.sentences():
        click.echo(sentence, err=True)
    for name, reason in list(table.unusable.items())[:_SHOWN]:
        click.echo(f"series {name} is left aside: {reason}", err=True)
    if len(table.unusable) > _SHOWN:
        click.echo(f"and {len(table.unusable) - _SHOWN} more series (all are in the rows of --json)", err=True)
    print_table([row for row in rows if all_rows or row.slice == "all"])
