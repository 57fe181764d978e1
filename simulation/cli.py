"""`meridian simulate`: policies over a trace in virtual time, compared on every measure. Guide: docs/simulating.md."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from meridian.cli.output import console, errors, print_json, print_table
from meridian.errors import InvalidArgumentError, MeridianError
from meridian.result import DataSource, document, in_words
from services.scheduler.core.errors import PolicyError
from services.scheduler.plugins import load_plugins
from services.scheduler.policy.file import shipped, shipped_names
from simulation.estimates import KNOWLEDGE
from simulation.experiment import (
    AUTO,
    RESAMPLINGS,
    Experiment,
    Run,
    Watch,
    network_names,
    network_of,
    read_trace,
    run_all,
    setting_of,
    unfit,
    without,
)
from simulation.hopeless import hopeless
from simulation.model import Network, Trace
from simulation.policies import SETTINGS
from simulation.reach import check_reach
from simulation.report import Report
from simulation.schedule import schedule_csv
from simulation.setting import Setting
from simulation.suited import suited
from simulation.traces import FORMATS, offered_load

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_WRONG_INPUT = frozenset({400, 422})


class Duration(click.ParamType[float]):
    """A positive time: ``3600``, ``90m``, ``12h``, ``7d``."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        text = str(value).strip()
        unit = _UNITS_S.get(text[-1:], 0.0)
        try:
            seconds = float(text[:-1]) * unit if unit else float(text)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            self.fail(f"{text!r} is no positive time such as 3600, 90m, 12h, 7d", param, ctx)
        return seconds


class Days(click.ParamType[tuple[int, int]]):
    """A range of days: ``0-20``; ``7`` is one day."""

    name = "days"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """First and last day."""
        first, dash, last = str(value).partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) < int(first):
            self.fail(f"{value!r} is no range of days such as 0-20", param, ctx)
        return int(first), int(last or first)


class Load(click.ParamType[float]):
    """A positive, finite number."""

    name = "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        try:
            number = float(str(value))
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            self.fail(f"{value!r} is not a positive number", param, ctx)
        return number


def _list_policies(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    rows = [
        (name, item.knowledge, "isolated" if item.isolated else "pooled", "yes" if item.baseline else "", item.about)
        for name, item in SETTINGS.items()
    ]
    for name in shipped_names():
        if name not in SETTINGS:
            knowledge = "declared" if shipped(name).estimate == "limit" else "predicted"
            rows.append((name, f"{knowledge} (or --knowledge)", "pooled (or --isolated)", "", "shipped policy"))
    print_table(("POLICY", "KNOWS OF RUN TIMES", "DOMAINS", "BASELINE", "WHAT IT IS"), rows, empty="none")
    ctx.exit()


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files to write, None for those that are not wanted."""

    json: Path | None
    plot: Path | None
    schedule: Path | None

    def check(self, read: Sequence[tuple[str, str]]) -> None:
        """Find out before the simulation that a file cannot be written, or is one of those ``read`` (option, path)."""
        named = [(name, path) for name in ("json", "plot", "schedule") if (path := getattr(self, name)) is not None]
        for name, path in named:
            if path.is_dir() or not path.parent.is_dir():
                raise InvalidArgumentError(f"--{name}: {path} is not a file in an existing folder")
            if not os.access(path if path.exists() else path.parent, os.W_OK):
                raise InvalidArgumentError(f"--{name}: {path} cannot be written")
            for option, source in read:
                if path.exists() and Path(source).exists() and path.samefile(source):
                    raise InvalidArgumentError(f"--{name}: {path} is what --{option} reads")
        if len({path.resolve() for _, path in named}) < len(named):
            raise InvalidArgumentError("--json, --plot and --schedule must name different files")


def _write(files: dict[Path, bytes]) -> None:
    """All files or none: each is written beside its place first. Raises `InvalidArgumentError`: the folder takes no file, the disk
    is full."""
    with ExitStack() as stack:
        made = [(_beside(path, data, stack), path) for path, data in files.items()]
        for temporary, path in made:
            temporary.replace(path)


def _beside(path: Path, data: bytes, stack: ExitStack) -> Path:
    """A file with the data in the folder of ``path``, which goes with the stack unless it is renamed."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        stack.callback(Path(name).unlink, missing_ok=True)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be written: {error.strerror}") from error
    return Path(name)


@click.command()
@click.option("--trace", required=True, metavar="FILE", help="Jobs: a file, or a folder for gavel.")
@click.option("--format", "form", required=True, type=click.Choice(sorted(FORMATS)), help="Format of the trace.")
@click.option(
    "--domains",
    default=AUTO,
    show_default=True,
    metavar="FILE|NAME",
    help=f"Network: a YAML file, a shipped one ({', '.join(network_names())}), or auto: made for the trace.",
)
@click.option("--policy", "policies", multiple=True, required=True, metavar="NAME|FILE", help="May be repeated.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="First seed.")
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(min=1), help="Number of seeds.")
@click.option("--load", type=Load(), help="Bring the trace to this offered load.")
@click.option("--days", "span", type=Days(), metavar="FIRST-LAST", help="Only these days of the trace, from 0.")
@click.option("--jobs", type=click.IntRange(min=1), help="Only the first jobs of the trace.")
@click.option("--until", type=Duration(), help="End so long after the first submission (3600, 12h, 7d).")
@click.option("--accelerators", type=click.IntRange(min=1), help="Size of the network that auto makes.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="For the trace reader (node_size=4).")
@click.option("--knowledge", type=click.Choice(KNOWLEDGE), help="What policies of files know of run times.")
@click.option("--isolated", is_flag=True, help="Policies of files keep every job in its home domain.")
@click.option(
    "--resample",
    default="none",
    show_default=True,
    type=click.Choice(RESAMPLINGS),
    help="days: each seed meets other days of the trace (block bootstrap).",
)
@click.option("--skip-unfit", is_flag=True, help="Leave out jobs that can never be placed, instead of refusing.")
@click.option("--processes", default=1, show_default=True, type=click.IntRange(min=1), help="Runs at the same time.")
@click.option("--json", "json_out", type=click.Path(path_type=Path), metavar="OUT", help="All measures (JSON).")
@click.option(
    "--plot", "plot_out", type=click.Path(path_type=Path), metavar="OUT", help="Use and queue over time (PNG)."
)
@click.option("--schedule", "schedule_out", type=click.Path(path_type=Path), metavar="OUT", help="Every job (CSV).")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option(
    "--list-policies", is_flag=True, is_eager=True, expose_value=False, callback=_list_policies, help="List them."
)
@click.pass_context
def simulate(
    context: click.Context,
    trace: str,
    form: str,
    domains: str,
    policies: tuple[str, ...],
    seed: int,
    seeds: int,
    load: float | None,
    span: tuple[int, int] | None,
    jobs: int | None,
    until: float | None,
    accelerators: int | None,
    options: tuple[str, ...],
    knowledge: str | None,
    isolated: bool,
    resample: str,
    skip_unfit: bool,
    processes: int,
    json_out: Path | None,
    plot_out: Path | None,
    schedule_out: Path | None,
    quiet: bool,
) -> None:
    """Simulate policies on a recorded trace and compare them.

    Every policy meets the same jobs, network and failures. With the same seed the outcome is the same, but for the times
    that decisions took.
    """
    try:
        outputs = Outputs(json_out, plot_out, schedule_out)
        outputs.check([("trace", trace), ("domains", domains), *(("policy", each) for each in policies)])
        load_plugins()
        settings, sources = _settings(policies, knowledge, isolated=isolated)
        reader_options = _reader_options(options)
        read = read_trace(trace, form, reader_options, jobs, span)
        node_size = int(reader_options.get("node_size", "8"))
        network = network_of(domains, read, accelerators=accelerators, node_size=node_size)
        settings = tuple(suited(each, network, read) for each in settings)
        check_reach(network, read, settings)
        read, left_out = _fitting(network, read, settings, skip=skip_unfit)
        experiment = Experiment(
            network,
            read,
            settings,
            tuple(range(seed, seed + seeds)),
            load,
            resample,
            math.inf if until is None else until,
        )
        if seeds > 1 and not experiment.has_chance():
            raise InvalidArgumentError(
                "--seeds: seeds change nothing here, as no node of the network ever fails; --resample days draws other days"
            )
        _check_load(experiment)
        doomed = hopeless(network, experiment.trace_of(seed), settings)
        if doomed is not None:
            errors.print(f"warning: {doomed.text(len(read.jobs))}", markup=False)
        if not quiet:
            errors.print(_opening(experiment))
        runs = _run(experiment, processes, quiet=quiet)
        report = Report(experiment, runs, left_out=left_out)
        data = [DataSource(Path(trace).name, read.sha256), *sources]
        if network.sha256:
            data.insert(1, DataSource(_network_file(domains), network.sha256))
        body = document(_command(context), data, seed, "simulated", report.rows())
        _write(_files(outputs, report, runs, body))
    except MeridianError as error:
        # Whatever a file or an option says wrong is wrong usage, with exit code 2.
        if error.status in _WRONG_INPUT:
            raise InvalidArgumentError(error.detail) from error
        raise
    if getattr(context.obj, "as_json", False):
        print_json(body)
        return
    for table in [*report.tables(console.width), report.comparison_table()]:
        if table is not None:
            console.print(table)
            console.print()
    for note in report.notes():
        console.print(note, markup=False)


def _settings(
    names: Sequence[str], knowledge: str | None, *, isolated: bool
) -> tuple[tuple[Setting, ...], list[DataSource]]:
    if (knowledge or isolated) and all(name in SETTINGS for name in names):
        raise InvalidArgumentError(
            "--knowledge and --isolated are for policies of files and shipped ones; a baseline's name says what it knows"
        )
    settings: list[Setting] = []
    sources: list[DataSource] = []
    for name in names:
        try:
            setting, source = setting_of(name, knowledge=knowledge, isolated=isolated)
        except PolicyError as error:
            raise InvalidArgumentError(error.detail) from error
        if any(other.name == setting.name for other in settings):
            raise InvalidArgumentError(f"--policy: there are two policies of the name {setting.name!r}")
        settings.append(setting)
        if source is not None:
            sources.append(source)
    return tuple(settings), sources


def _reader_options(options: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not equals or not name or name in found:
            raise InvalidArgumentError(f"--option: {text!r} is not NAME=VALUE, each name once")
        found[name] = value
    if not found.get("node_size", "8").isdecimal():
        raise InvalidArgumentError(f"--option: node_size must be a whole number, not {found['node_size']!r}")
    return found


def _fitting(network: Network, trace: Trace, settings: tuple[Setting, ...], *, skip: bool) -> tuple[Trace, int]:
    """The trace without jobs that can never be placed under any one of the settings, and their number."""
    found = unfit(network, trace, settings)
    if not found:
        return trace, 0
    if not skip:
        raise InvalidArgumentError(
            "; ".join(each.text(len(trace.jobs)) for each in found[:3]) + " (--skip-unfit leaves such jobs out)"
        )
    job_ids = {job_id for each in found for job_id in each.job_ids}
    for each in found:
        errors.print(f"left out: {each.text(len(trace.jobs))}", markup=False)
    return without(trace, job_ids), len(job_ids)


def _check_load(experiment: Experiment) -> None:
    for seed in experiment.seeds:
        experiment.trace_of(seed)


def _opening(experiment: Experiment) -> str:
    trace = experiment.trace_of(experiment.seeds[0])
    try:
        load = f", offered load {offered_load(trace, experiment.network):.2f}"
    except MeridianError:
        load = ""
    lines = f" ({experiment.trace.skipped_text()})" if experiment.trace.skipped else ""
    size = f"{len(experiment.network.domains)} domains, {experiment.network.accelerators} accelerators"
    return f"{len(trace.jobs)} jobs{lines}, {size}{load}"


def _run(experiment: Experiment, processes: int, *, quiet: bool) -> list[Run]:
    if quiet or not sys.stderr.isatty():
        return run_all(experiment, processes=processes)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} jobs"),
        TextColumn("{task.fields[virtual]}"),
        TimeElapsedColumn(),
        console=errors,
    )
    with progress:
        return run_all(experiment, processes=processes, watch=_watching(progress, experiment))


def _watching(progress: Progress, experiment: Experiment) -> Watch:
    tasks: dict[int, object] = {}
    jobs = len(experiment.trace.jobs)
    count = len(experiment.settings)
    shown_at = 0.0

    def watch(number: int, ended: int, now_s: float) -> None:
        nonlocal shown_at
        moment = time.monotonic()
        if number in tasks and moment - shown_at < 0.1:
            return
        shown_at = moment
        if number not in tasks:
            label = experiment.settings[number % count].name
            if len(experiment.seeds) > 1:
                label += f", seed {experiment.seeds[number // count]}"
            tasks[number] = progress.add_task(label, total=jobs, virtual="")
        progress.update(tasks[number], completed=ended, virtual=f"{now_s / 86_400.0:.1f} virtual days")  # type: ignore[arg-type]

    return watch


def _network_file(domains: str) -> str:
    return f"{domains}.yaml" if domains in network_names() else Path(domains).name


def _command(context: click.Context) -> str:
    """The call as it can be repeated."""
    words = ["meridian", "simulate"]
    for parameter in context.command.params:
        if not isinstance(parameter, click.Option) or parameter.name is None:
            continue
        value = context.params.get(parameter.name)
        if (
            parameter.name in {"json_out", "plot_out", "schedule_out", "quiet", "processes"}
            or value == parameter.default
        ):
            continue
        if isinstance(parameter.type, Days) and value is not None:
            value = f"{value[0]}-{value[1]}"
        for one in value if isinstance(value, tuple) else (value,):
            if one is True:
                words.append(parameter.opts[0])
            elif one is not None and one is not False:
                words += [parameter.opts[0], _number(one) if isinstance(one, float) else str(one)]
    return in_words(words)


def _number(value: float) -> str:
    """As short as it can be without being another number."""
    text = f"{value:g}"
    return text if float(text) == value else repr(value)


def _files(outputs: Outputs, report: Report, runs: Sequence[Run], body: dict[str, Any]) -> dict[Path, bytes]:
    files: dict[Path, bytes] = {}
    if outputs.json is not None:
        files[outputs.json] = (json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    if outputs.plot is not None:
        from simulation.plot import png

        files[outputs.plot] = png(runs)
    if outputs.schedule is not None:
        files[outputs.schedule] = schedule_csv(report.experiment, runs).encode()
    return files
