"""`meridian evaluate demand`: how well recorded demand would have been forecast. Method: docs/forecasting.md."""

from __future__ import annotations

import re
from pathlib import Path

import click

from meridian.cli.evaluation import USER_FILE, one_thread, refused, result_option, say_each, write_result
from meridian.result import print_table

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
@click.argument("path", metavar="SERIES.csv", type=USER_FILE)
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
@result_option
@click.option("--all-rows", is_flag=True, help="Print the figures of every series, not the pooled ones only.")
def demand(path: Path, horizons: tuple[tuple[str, float], ...], seed: int, out: Path | None, all_rows: bool) -> None:
    """Forecast the last fifth of each series of SERIES.csv from its past, origin by origin.

    Columns: series, time (seconds, or a date of ISO 8601), value (from 0), and optionally capacity. Other columns are
    ignored. The file may be compressed (.gz). Samples are gathered in windows as long as they are mostly apart.
    """
    one_thread()
    import numpy as np

    from services.forecast.demand_report import rows_of
    from services.forecast.demand_series import read_demand
    from services.forecast.tables import InvalidTableError

    try:
        table = read_demand(path)
    except InvalidTableError as error:
        raise refused("SERIES.csv", str(error)) from None
    if not table.series and not table.unusable:
        raise refused("SERIES.csv", f"{path.name}: no line names a series")
    rows = rows_of(table, list(dict.fromkeys(horizons)), np.random.default_rng(seed))
    write_result(out, [path], seed, rows)
    for sentence in table.left_aside.sentences():
        click.echo(sentence, err=True)
    unusable = [f"series {name} is left aside: {reason}" for name, reason in table.unusable.items()]
    say_each(unusable, "series (all are in the rows of --json)")
    print_table([row for row in rows if all_rows or row.slice == "all"])
