"""`meridian telemetry`: what exporters say, as canonical metrics. Guide: docs/telemetry.md."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from agent.collectors.base import Reading
from agent.collectors.metrics import CORE
from agent.collectors.peaks import peak_source
from agent.collectors.sensing import AUTO, Sensed, sense
from agent.collectors.table_file import load_table
from meridian.cli.amounts import Amount
from meridian.cli.output import print_json, print_table
from meridian.errors import InvalidArgumentError

MAX_FILE_BYTES = 64 * 1024 * 1024
_NUMBER_OF = {metric: number for number, metrics in CORE.items() for metric in metrics}


@click.group()
def telemetry() -> None:
    """Sensing: metrics of any vendor's exporter as canonical ones."""


class Moment(click.ParamType[datetime]):
    """A time: ISO 8601 (with a zone, or UTC) or seconds since 1970."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """The time in UTC."""
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        try:
            return datetime.fromtimestamp(float(text), UTC)
        except (ValueError, OverflowError, OSError):
            pass
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{text!r} is neither ISO 8601 nor seconds since 1970", param, ctx)
        return found.astimezone(UTC) if found.tzinfo is not None else found.replace(tzinfo=UTC)


@telemetry.command()
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--vendor", default=AUTO, show_default=True, metavar="auto|NAME|TABLE.yaml", help="Whose exporter it is.")
@click.option("--at", type=Moment(), help="The time of the scrape. [default: now]")
@click.option(
    "--previous", type=click.Path(path_type=Path), help="The scrape before it: for rates and frozen counters."
)
@click.option(
    "--interval", type=Amount(0.001, 31_536_000), default=15.0, show_default=True, help="Seconds between both."
)
@click.option("--unread", is_flag=True, help="Also list the families that nothing reads.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
@click.pass_context
def parse(
    ctx: click.Context,
    file: Path,
    vendor: str,
    at: datetime | None,
    previous: Path | None,
    interval: float,
    unread: bool,
    as_json: bool,
) -> None:
    """The twelve core metrics of an exposition FILE (- is standard input), or of Slurm's or Kubernetes' JSON.

    A value that is not known has no number but a kind and a reason. Exit code 2: nothing in the file is known.
    """
    sensed = sense(
        _text(file),
        at or datetime.now(UTC),
        vendor=vendor,
        previous=None if previous is None else _text(previous),
        interval_s=interval,
        peak_of=peak_source(),
    )
    if as_json or bool(getattr(ctx.obj, "as_json", False)):
        print_json(_document(file, sensed))
        return
    click.echo(f"{file}: " + ", ".join(f"{exporter} ({vendor_name})" for exporter, vendor_name in sensed.sources))
    rows = [_row(reading) for reading in sensed.readings]
    print_table(("NODE", "DEVICE", "NO", "METRIC", "VALUE", "UNIT", "SOURCE", "STAT", "WHY NOT"), rows, empty="nothing")
    for line, problem in sensed.bad_lines[:20]:
        click.echo(f"line {line}: {problem}", err=True)
    if len(sensed.bad_lines) > 20:
        click.echo(f"... and {len(sensed.bad_lines) - 20} more lines that cannot be read", err=True)
    for family, labels, kind, reason in sensed.set_aside[:20]:
        click.echo(f"{family}{{{labels}}}: {kind.value}: {reason}")
    if len(sensed.set_aside) > 20:
        click.echo(f"... and {len(sensed.set_aside) - 20} more samples that say nothing")
    if sensed.unread:
        names = f": {', '.join(sensed.unread)}" if unread else " (--unread lists them)"
        click.echo(f"{len(sensed.unread)} families are not read{names}")


@telemetry.command()
@click.argument("table")
@click.pass_context
def check(ctx: click.Context, table: str) -> None:
    """Check a mapping TABLE (a file, or the name of a shipped one) and list what it reads."""
    found = load_table(table)
    rows = [
        (
            _NUMBER_OF.get(metric, ""),
            metric.value,
            place + 1,
            " ".join(term.family for term in way.terms),
            way.source.value,
        )
        for metric, ways in found.metrics.items()
        for place, way in enumerate(ways)
    ]
    click.echo(f"{found.exporter} ({found.vendor or 'no vendor named'}): the table is sound")
    print_table(("NO", "METRIC", "WAY", "FAMILIES", "SOURCE"), rows, empty="nothing")


def _text(path: Path) -> str:
    try:
        with click.open_file(str(path), "rb") as file:
            body: bytes = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidArgumentError(f"{path}: {error.strerror or error}") from None
    if len(body) > MAX_FILE_BYTES:
        raise InvalidArgumentError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path}: not UTF-8 at byte {error.start}") from None


def _place(reading: Reading) -> str:
    if reading.accelerator_index is None and not reading.device:
        return ""
    index = "?" if reading.accelerator_index is None else str(reading.accelerator_index)
    profile = f" {reading.profile}" if reading.profile else ""
    part = f" part {reading.partition}{profile}" if reading.partition else ""
    return f"{index} {reading.device}".strip() + part


def _row(reading: Reading) -> tuple[Any, ...]:
    return (
        reading.node_id,
        _place(reading),
        _NUMBER_OF.get(reading.metric, ""),
        reading.metric.value,
        "unknown" if reading.value is None else f"{reading.value:.10g}",
        reading.unit,
        "" if reading.value is None else reading.source.value,
        "" if reading.value is None else reading.statistic.value,
        _why(reading),
    )


def _why(reading: Reading) -> str:
    if reading.kind is None:
        return reading.reason
    words = reading.kind.value.replace("_", " ")
    return words if words == reading.reason else f"{words}: {reading.reason}"


def _document(file: Path, sensed: Sensed) -> dict[str, Any]:
    return {
        "schema": "meridian.sensed/1",
        "file": str(file),
        "at": sensed.at.isoformat(),
        "exporters": [{"exporter": exporter, "vendor": vendor} for exporter, vendor in sensed.sources],
        "readings": [
            {
                "node_id": reading.node_id,
                "accelerator_index": reading.accelerator_index,
                "device": reading.device or None,
                "partition": reading.partition or None,
                "profile": reading.profile or None,
                "core": _NUMBER_OF.get(reading.metric),
                "metric": reading.metric.value,
                "value": reading.value,
                "unit": reading.unit,
                "source": None if reading.value is None else reading.source.value,
                "statistic": None if reading.value is None else reading.statistic.value,
                "observed_at": reading.observed_at.isoformat(),
                "quality": "ok"
                if reading.value is not None
                else (reading.kind.value if reading.kind else "unspecified"),
                "reason": reading.reason or None,
            }
            for reading in sensed.readings
        ],
        "bad_lines": [{"line": line, "problem": problem} for line, problem in sensed.bad_lines],
        "set_aside": [
            {"family": family, "labels": labels, "quality": kind.value, "reason": reason}
            for family, labels, kind, reason in sensed.set_aside
        ],
        "unread_families": list(sensed.unread),
    }
