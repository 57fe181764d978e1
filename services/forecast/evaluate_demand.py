"""`meridian evaluate demand`: how well recorded demand would have been forecast. Method: docs/forecasting.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click

from meridian.cli.amounts import Amount
from meridian.cli.evaluation import USER_FILE, one_thread, refused, result_option, say_each, write_result
from meridian.result import Row, print_table

# Of a list of jobs, some minutes of work.
_MOST_WINDOWS = 200_000
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
@click.argument("path", metavar="FILE.csv", type=USER_FILE)
@click.option(
    "--horizon",
    "horizons",
    type=_Horizon(),
    multiple=True,
    default=("10m", "1h"),
    show_default=True,
    help="How far ahead; may be given several times.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of intervals and shown steps.")
@click.option(
    "--steps",
    "shares",
    type=Amount(0, 1),
    multiple=True,
    default=(0.0, 1.0),
    show_default=True,
    help="Lists of jobs: share of the jobs that show steps; may be given several times.",
)
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=5, show_default=True, help="Lists of jobs: draws of shown steps."
)
@click.option(
    "--without",
    "left_out",
    multiple=True,
    metavar="DOMAIN",
    help="Lists of jobs: a domain to leave out, for example one that was tuned on.",
)
@click.option("--window", type=_Horizon(), default="10m", show_default=True, help="Lists of jobs: length of a window.")
@result_option
@click.option("--all-rows", is_flag=True, help="Print the figures of every series, not the pooled ones only.")
def demand(
    path: Path,
    horizons: tuple[tuple[str, float], ...],
    seed: int,
    shares: tuple[float, ...],
    seeds: int,
    left_out: tuple[str, ...],
    window: tuple[str, float],
    out: Path | None,
    all_rows: bool,
) -> None:
    """Forecast recorded demand from its past, origin by origin.

    FILE.csv holds series: columns series, time (seconds, or a date of ISO 8601), value (from 0), and optionally capacity;
    the last fifth of each is forecast. Samples are gathered in windows as long as they are mostly apart. Or it is a list
    of jobs: columns start, duration_s, accelerators, and optionally user and domain; these are replayed with their ends
    hidden, and the demand of each domain is forecast from its history, from the structure of its jobs, and from both,
    in all but the first fifth of the windows. Other columns are ignored. The file may be compressed (.gz).
    """
    one_thread()
    import numpy as np

    from services.forecast.demand_report import further_ahead, rows_of, unfit
    from services.forecast.demand_series import read_demand
    from services.forecast.job_list import is_job_list
    from services.forecast.tables import InvalidTableError

    try:
        if is_job_list(path):
            rows = _replayed(path, list(dict.fromkeys(horizons)), window, shares, seed, seeds, frozenset(left_out))
            write_result(out, [path], seed, rows)
            print_table(rows)
            return
        table = read_demand(path)
    except InvalidTableError as error:
        raise refused("FILE.csv", str(error)) from None
    if not table.series and not table.unusable:
        raise refused("FILE.csv", "; ".join([f"{path.name}: no line names a series", *table.left_aside.sentences()]))
    rows = rows_of(table, list(dict.fromkeys(horizons)), np.random.default_rng(seed))
    write_result(out, [path], seed, rows)
    for sentence in (*table.left_aside.sentences(), *table.unread.sentences()):
        click.echo(sentence, err=True)
    unusable = [f"series {name} is left aside: {reason}" for name, reason in table.unusable.items()]
    say_each(unusable, "series (all are in the rows of --json)")
    say_each(unfit(table, list(dict.fromkeys(horizons))), "series and horizons (all are in the rows of --json)")
    say_each(further_ahead(table, list(dict.fromkeys(horizons))), "series and horizons")
    print_table([row for row in rows if all_rows or row.slice == "all"])


def _replayed(
    path: Path,
    horizons: Sequence[tuple[str, float]],
    window: tuple[str, float],
    shares: Sequence[float],
    seed: int,
    seeds: int,
    left_out: frozenset[str],
) -> list[Row]:
    import numpy as np

    from services.forecast.demand_scoring import NEAR, windows_ahead
    from services.forecast.job_list import read_jobs, without
    from services.forecast.job_replay import Learning, Steps, replay
    from services.forecast.job_report import JobReport

    table = read_jobs(path)
    for sentence in table.left_aside.sentences():
        click.echo(sentence, err=True)
    unknown = left_out - set(table.jobs.domain_names)
    if unknown or left_out == set(table.jobs.domain_names):
        name = min(unknown, default="every domain")
        raise refused("--without", f"--without: {name} cannot be left out of {path.name}")
    jobs = without(table.jobs, left_out)
    name, window_s = window
    windows = int(table.last_start_s // window_s)
    if windows > _MOST_WINDOWS:
        raise refused(
            "--window",
            f"--window: {path.name} has {windows} windows of {window_s:g} s, at most {_MOST_WINDOWS} are gone through",
        )
    for label, horizon_s in horizons:
        if horizon_s < window_s:
            raise refused("--horizon", f"--horizon: {label} is shorter than a window of {name}")
    ahead = [windows_ahead(horizon_s, window_s) for _, horizon_s in horizons]
    for (label, horizon_s), count in zip(horizons, ahead, strict=True):
        if count * window_s > (1 + NEAR) * horizon_s:
            click.echo(f"{label} is forecast {count * window_s:g} s ahead, {count} windows of {window_s:g} s", err=True)
    first = max(windows // 5, *ahead)
    if windows - first <= max(ahead):
        raise refused(
            "FILE.csv",
            f"{path.name}: {windows} windows of {window_s:g} s are too few to forecast {horizons[-1][0]} ahead",
        )
    labels = [label for label, _ in horizons]
    rows = [
        Row("jobs", "jobs_count", float(len(jobs.start_s)), n=len(jobs.start_s)),
        Row("jobs", "lines_left_aside_count", float(table.left_aside.total), n=table.left_aside.total),
    ]
    for share in dict.fromkeys(shares):
        report = JobReport(f"steps={share:g}", labels, ahead, window_s)
        # Without steps nothing is drawn.
        draws = seeds if share else 1
        for number in range(draws):
            found = replay(jobs, ahead, window_s, windows, Steps(share=share), Learning(), seed + number)
            report.add(found, first, windows)
        rows += report.rows(np.random.default_rng(seed), draws)
    return rows
