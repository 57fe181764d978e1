"""Measured throughputs of chips on tasks: reading a table, saying what could not be used, medians of repeated runs."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from meridian.hardware import Catalogue
from meridian.text_table import TextTable, UnreadableTableError

REQUIRED = ("chip", "task", "throughput")
OPTIONAL = ("precision", "n_accel", "group")
UNSTATED = "unstated"
LEAST, MOST = 1e-60, 1e60
"""Throughputs beyond these are no measurements of anything, and ratios between them no numbers."""
_SHOWN = 10
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:(?:,\d{3})+|(?:[ \u00a0\u2009\u202f]\d{3})+)(?:\.\d*)?")
_PRECISIONS = {
    "": UNSTATED, "half": "fp16", "float16": "fp16", "float32": "fp32", "single": "fp32", "bfloat16": "bf16",
    "mixed": "amp", "mixed precision": "amp", "float64": "fp64", "double": "fp64",
}  # fmt: skip


class InvalidMatrixError(ValueError):
    """The table cannot be used at all; the message names the file and the column."""


@dataclass(frozen=True, slots=True, order=True)
class Column:
    """What is compared across chips: one task at one precision and scale, within a group."""

    group: str
    task: str
    precision: str
    n_accel: int


@dataclass(frozen=True, slots=True)
class Run:
    """One measured throughput (any unit that is the same over a column; more is better)."""

    chip_id: str
    column: Column
    throughput: float
    line: int = 0


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that was not used, with its line in the file."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class UnknownName:
    """A chip's name that does not resolve, with what it may mean."""

    name: str
    reason: str
    candidates: tuple[str, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """What a table holds: runs, and what had to be left aside."""

    runs: tuple[Run, ...]
    rejected: tuple[Rejected, ...] = ()
    unknown: tuple[UnknownName, ...] = ()
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Chip id -> the names it has in the table."""

    def cells(self) -> dict[tuple[str, Column], float]:
        """(chip, column) -> median throughput over its runs."""
        return {key: statistics.median(values) for key, values in self.repeats().items()}

    def repeats(self) -> dict[tuple[str, Column], list[float]]:
        """(chip, column) -> throughputs of all its runs."""
        found: dict[tuple[str, Column], list[float]] = {}
        for run in self.runs:
            found.setdefault((run.chip_id, run.column), []).append(run.throughput)
        return found


def precision_of(text: str) -> str:
    """The usual spelling of a precision; what is not known stays as it is."""
    lowered = text.strip().lower()
    return _PRECISIONS.get(lowered, lowered)


def read_matrix(path: Path, catalogue: Catalogue) -> Matrix:
    """The matrix in the CSV file ``path`` (columns ``REQUIRED`` and ``OPTIONAL``, any others are ignored).

    Rows that do not hold up are listed, not used. Raises InvalidMatrixError when a required column is missing, one
    stands there twice, or no row is left.
    """
    try:
        table = TextTable(path)
        missing = [name for name in REQUIRED if name not in table.columns]
        if missing:
            there = f"; there are {', '.join(map(repr, table.columns[:_SHOWN]))}" if table.columns else ""
            raise InvalidMatrixError(f"{path.name}, line 1: no column {', '.join(missing)}{there}")
        twice = [name for name in (*REQUIRED, *OPTIONAL) if table.columns.count(name) > 1]
        if twice:
            raise InvalidMatrixError(f"{path.name}, line 1: column {twice[0]} is there more than once")
        matrix = assemble(table.rows(), catalogue)
    except UnreadableTableError as error:
        raise InvalidMatrixError(str(error)) from None
    if not matrix.runs:
        raise InvalidMatrixError(f"{path.name}: no row can be used{_why_none(matrix)}")
    return matrix


def _why_none(matrix: Matrix) -> str:
    if matrix.rejected:
        return f" (line {matrix.rejected[0].line}: {matrix.rejected[0].reason})"
    if matrix.unknown:
        return f" (chip {matrix.unknown[0].name!r}: {matrix.unknown[0].reason})"
    return ""


def assemble(rows: Iterable[tuple[int, Mapping[str, str | None]]], catalogue: Catalogue) -> Matrix:
    """The matrix of ``rows`` (line, cells by column)."""
    runs: list[Run] = []
    rejected: list[Rejected] = []
    unknown: dict[str, UnknownName] = {}
    names: dict[str, dict[str, None]] = {}
    rows = list(rows)
    # One number like "12,5" shows that "1,234" of the same table may be little more than one.
    commas = [str(row.get("throughput")) for _, row in rows if "," in str(row.get("throughput"))]
    number = _without_thousands if all(_THOUSANDS.fullmatch(text.strip()) for text in commas) else str
    for line, row in rows:
        if None in row:
            rejected.append(
                Rejected(line, "it has more cells than there are columns (a number with commas needs quotes)")
            )
            continue
        cells = {name: (row.get(name) or "").strip() for name in (*REQUIRED, *OPTIONAL)}
        empty = [name for name in REQUIRED if not cells[name]]
        if empty:
            rejected.append(Rejected(line, f"{empty[0]} is empty"))
            continue
        found = catalogue.resolve(cells["chip"])
        if found.chip_id is None:
            known = unknown.get(found.name)
            rows_so_far = known.rows if known else 0
            unknown[found.name] = UnknownName(found.name, found.reason, found.candidates, rows_so_far + 1)
            continue
        throughput = _positive(number(cells["throughput"]), float)
        if throughput is None:
            rejected.append(Rejected(line, f"throughput {cells['throughput']!r} is no positive number"))
            continue
        if not LEAST <= throughput <= MOST:
            reason = f"throughput {cells['throughput']!r} is not within {LEAST:g} and {MOST:g}"
            rejected.append(Rejected(line, reason))
            continue
        n_accel = found.count
        if cells["n_accel"]:
            stated = _positive(number(cells["n_accel"]), float)
            if stated is None or stated != int(stated):
                rejected.append(Rejected(line, f"n_accel {cells['n_accel']!r} is no positive whole number"))
                continue
            if n_accel is not None and n_accel != stated and not found.is_machine:
                rejected.append(Rejected(line, f"n_accel is {stated:g}, but the name {found.name!r} says {n_accel}"))
                continue
            n_accel = int(stated)
        column = Column(cells["group"], cells["task"], precision_of(cells["precision"]), n_accel or 1)
        runs.append(Run(found.chip_id, column, throughput, line))
        names.setdefault(found.chip_id, {})[found.name] = None
    return Matrix(
        tuple(runs),
        tuple(rejected),
        tuple(unknown.values()),
        {chip_id: tuple(found) for chip_id, found in names.items()},
    )


def _without_thousands(text: str) -> str:
    """``text`` without the commas or spaces between groups of three digits; any other comma stays, and is refused later."""
    return re.sub(r"[,\s]", "", text) if _THOUSANDS.fullmatch(text) else text


def _positive(text: str, kind: Callable[[str], float]) -> float | None:
    try:
        value = kind(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def columns_of(cells: Iterable[tuple[str, Column]]) -> Sequence[Column]:
    """The columns of ``cells`` in order."""
    return sorted({column for _, column in cells})
