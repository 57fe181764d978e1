"""What a person sees: tables, progress bars, times and amounts; and JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

# A pipe or file has no width; lines there are not folded at 80 columns.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
errors = Console(stderr=True, highlight=False)

_COLOURS = {
    "succeeded": "green", "healthy": "green", "ready": "green", "done": "green", "recovered": "green", "finished": "green",
    "running": "cyan", "busy": "cyan", "started": "cyan", "placed": "cyan", "assigned": "cyan",
    "queued": "yellow", "submitted": "yellow", "suspected": "yellow", "degraded": "yellow", "starting": "yellow",
    "failed": "red", "unreachable": "red", "failing": "red", "back_off": "red", "preempted": "magenta", "cancelled": "magenta",
    "forgotten": "dim",
}  # fmt: skip


# Columns whose content is copied or compared are never broken over lines.
_WHOLE = frozenset({"JOB", "NODE", "DOMAIN", "STATE", "REACHABLE", "PROCESS", "PROGRESS", "TIME", "EVENT", "INCIDENT"})


def print_json(value: Any) -> None:
    """One JSON document on standard output, never wrapped or coloured."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def state(name: str) -> Text:
    """A state in its colour."""
    return Text(name, style=_COLOURS.get(name, ""))


def plain(text: str | None) -> str:
    """Text of others for ``console.print``: what looks like markup in it is shown, and breaks nothing. None: nothing."""
    return escape(text or "")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """A table without a frame; ``empty`` is said when there are no rows."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(
            name.removeprefix(">"),
            justify="right" if name.startswith(">") else "left",
            overflow="fold",
            no_wrap=name in _WHOLE,
        )
    count = 0
    for row in rows:
        count += 1
        # As text, not as markup: names and reasons come from others.
        table.add_row(*(cell if isinstance(cell, Text) else Text("" if cell is None else str(cell)) for cell in row))
    if count:
        console.print(table)
    else:
        console.print(empty)


def bar(share: float | None, width: int = 20) -> str:
    """A progress bar for a share of 0-1; empty when unknown."""
    if share is None:
        return ""
    filled = round(max(0.0, min(1.0, share)) * width)
    return "█" * filled + "░" * (width - filled) + f" {share:4.0%}"


def parse_time(text: str | None) -> datetime | None:
    """An RFC 3339 time of the API."""
    return datetime.fromisoformat(text) if text else None


def age(text: str | None) -> str:
    """How long ago a time was, in two units at most."""
    moment = parse_time(text)
    return "" if moment is None else duration((datetime.now(UTC) - moment).total_seconds())


def clock(text: str | None) -> str:
    """A time of day with milliseconds, in the local zone."""
    moment = parse_time(text)
    return "" if moment is None else moment.astimezone().strftime("%H:%M:%S.%f")[:-3]


def duration(seconds: float) -> str:
    """``3d 4h``, ``2h 5m``, ``3m 20s``, ``12s``, ``0.4s``."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    whole = int(seconds)
    for size, unit, smaller_size, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // smaller_size}{smaller}"
    return f"{whole}s"


def money(value: dict[str, Any] | None) -> str:
    """An amount of micro-units with its currency."""
    return "" if not value else f"{int(value['micro_units']) / 1e6:.2f} {value['currency']}"
