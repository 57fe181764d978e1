"""Tables of text (CSV, UTF-8) that name the line at which they cannot be read."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class UnreadableTableError(ValueError):
    """The message says at which line of the file, and why."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path.name}, line {line}: {reason}")


class TextTable:
    """A table with a header: the names of its ``columns``, and its rows with the last line of each.

    :raises UnreadableTableError: when it is made or read: no UTF-8, or no CSV.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UnreadableTableError(
                path, error.object.count(b"\n", 0, error.start) + 1, "is no UTF-8 text"
            ) from None
        # Strict: a quote that is never closed would take every row after it for one cell.
        self._reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        try:
            self.columns = tuple(self._reader.fieldnames or ())
        except csv.Error as error:
            raise self._unreadable(error) from None

    def rows(self) -> Iterator[tuple[int, dict[str | Any, str | Any]]]:
        """(line, cells by column) of each row; lines without a cell are passed over."""
        while True:
            try:
                row = next(self._reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise self._unreadable(error) from None
            self._read = self._reader.line_num
            yield self._read, row

    def _unreadable(self, error: csv.Error) -> UnreadableTableError:
        # The line of the last row that was read is not that of the one that cannot be.
        line, start = self._reader.reader.line_num, self._read + 1
        begun = f", in a row that begins at line {start}" if start < line else ""
        return UnreadableTableError(self._path, line, f"{error}{begun}")
