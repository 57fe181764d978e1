"""CSV files of people's own measurements: read with the lines that cannot be used counted by reason, never dropped."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast


class InvalidTableError(ValueError):
    """The file cannot be read as a table with the columns that are needed; the message names the column or the line."""


@dataclass(slots=True)
class LeftAside:
    """What was not used: how many lines (or of their cells, ``noun``) and the first of the lines, by reason."""

    noun: str = "line"
    said: str = "left aside"
    lines: dict[str, list[int]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str, line: int) -> None:
        """Count ``line`` under ``reason``."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        first = self.lines.setdefault(reason, [])
        if len(first) < 5:
            first.append(line)

    @property
    def total(self) -> int:
        """Lines left aside."""
        return sum(self.counts.values())

    def sentences(self) -> list[str]:
        """One for each reason, with its first lines."""
        return [
            f"{count} {self.noun}{'s' if count > 1 else ''} {self.said}: {reason}"
            f" (line{'s' if count > 1 else ''} {', '.join(map(str, self.lines[reason]))}"
            f"{', ...' if count > len(self.lines[reason]) else ''})"
            for reason, count in self.counts.items()
        ]


def _instead(names: Sequence[str]) -> str:
    """What a header has instead of a column that is missing."""
    for separator, called in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if len(names) == 1 and separator in names[0]:
            return f": cells are separated by {called}, where commas are needed"
    shown = ", ".join(name[:40] for name in names[:12]) + (", ..." if len(names) > 12 else "")
    return f" (columns: {shown})" if any(names) else " (the first line is empty)"


def cells_taken_for_empty() -> LeftAside:
    """For cells of optional columns that cannot be read, in lines that are used without them."""
    return LeftAside("cell", "taken for empty")


def _opened(path: Path) -> IO[bytes]:
    """The bytes of a file, decompressed where it begins as a gzip file does, whatever its name."""
    with path.open("rb") as stream:
        compressed = stream.read(2) == b"\x1f\x8b"
    return cast("IO[bytes]", gzip.open(path, "rb")) if compressed else path.open("rb")


def _headings(cells: Sequence[str]) -> list[str]:
    """The names of columns, which may be capitalised, where no other is spelt so without."""
    names = [cell.strip() for cell in cells]
    return [name if name.lower() in names else name.lower() for name in names]


def columns_of(path: Path) -> list[str]:
    """The names in the header of a CSV file (also a compressed one); InvalidTableError where it is no text table."""
    try:
        with (
            _opened(path) as raw,
            io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as stream,
        ):
            return _headings(next(csv.reader(stream), []))
    except (UnicodeDecodeError, csv.Error, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidTableError(f"{path.name}: not a table of text ({error})") from None


def lines_of(
    path: Path, needed: Sequence[str], optional: Sequence[str], aside: LeftAside
) -> Iterator[tuple[int, dict[str, str]]]:
    """The lines of a CSV file (also a compressed one) with a header, as (line number, cells by column; a missing cell is empty).

    A line with more cells than the header has columns (from decimal commas, say) is added to ``aside``. Raises InvalidTableError
    where a column of ``needed`` is missing, one of these or of ``optional`` is twice there, or where it is no text table.
    """
    last = 0
    try:
        with (
            _opened(path) as raw,
            io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as stream,
        ):
            # Not strict, a quote that is not closed would make one cell of all lines after it.
            rows = csv.reader(stream, strict=True)
            names = _headings(next(rows, []))
            for name in (*needed, *optional):
                if names.count(name) > 1 or (name in needed and name not in names):
                    problem = f"is missing{_instead(names)}" if name not in names else "is there twice"
                    raise InvalidTableError(f"{path.name}, line 1: the column {name} {problem}")
            for row in rows:
                last = rows.line_num
                if any(cell.strip() for cell in row[len(names) :]):
                    aside.add("more cells than columns", last)
                elif row:
                    cells = dict.fromkeys(names, "") | dict(zip(names, map(str.strip, row), strict=False))
                    yield last, cells
    except csv.Error as error:
        raise InvalidTableError(f"{path.name}, line {last + 1}: not a table of text ({error})") from None
    except (UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidTableError(f"{path.name}: not a table of text ({error})") from None
