"""Strict reading of text tables: every cell is checked where it is used, and a wrong one is named by file, line, column."""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import io
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from simulation.model import Throughputs, Trace, TraceJob
from simulation.traces.errors import TraceError

_GZIP = b"\x1f\x8b"
_PADDED = re.compile(r'(^|[,\n])[ \t]*("(?:[^"]|"")*")[ \t]*(?=,|\r?\n|$)')
MOST_WHOLE = 2**63 - 1
"""Amounts are added up in 64 bits."""
MOST_YEARS = 100
"""No job comes or lasts longer: its times are in another unit, or there for "never"."""
MOST_S = MOST_YEARS * 365.25 * 86_400
_OTHER_SIGNS = ((";", "semicolons"), ("\t", "tabs"), ("|", "bars"))
_LINE_END = re.compile(r"\r\n|\r|\n")


def number(text: str) -> float | None:
    """A finite number, or None (also for ``nan``, ``inf`` and digits with underscores)."""
    if "_" in text:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def read_text(path: Path | str, *, comment: bytes = b"") -> tuple[str, str]:
    """The text of a UTF-8 file, which may be compressed by gzip, and the SHA-256 of its bytes.

    Lines that begin with ``comment`` may be in any encoding. Raises `TraceError`: not readable, not UTF-8, empty.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror}", path=path) from error
    digest = hashlib.sha256(data).hexdigest()
    if data.startswith(_GZIP):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise TraceError(f"cannot be unpacked: {error}", path=path) from error
    text = _decoded(path, data, comment)
    if not text.strip():
        raise TraceError("is empty", path=path)
    return text, digest


def _decoded(path: Path | str, data: bytes, comment: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if not comment:
            raise TraceError("is not UTF-8 text", path=path, line=data.count(b"\n", 0, error.start) + 1) from error
    lines = [
        line.decode("utf-8", "replace").encode() if line.lstrip().startswith(comment) else line
        for line in data.removeprefix(codecs.BOM_UTF8).split(b"\n")
    ]
    return _decoded(path, b"\n".join(lines), b"")


def read_json(path: Path | str) -> tuple[Any, str]:
    """The value of a JSON file without NaN, infinity, numbers too great for a float and keys that are there twice, and the SHA-256 of its
    bytes."""

    def refuse(constant: str) -> float:
        raise TraceError(f"{constant[:30]} is no value", path=path)

    def finite(digits: str) -> float:
        value = float(digits)
        return value if math.isfinite(value) else refuse(digits)

    def whole(digits: str) -> int | float:
        return refuse(digits) if math.isinf(float(digits)) else int(digits)

    def entries(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            raise TraceError(f"the key {twice!r} is there twice", path=path)
        return found

    text, digest = read_text(path)
    try:
        value = json.loads(text, parse_constant=refuse, parse_float=finite, parse_int=whole, object_pairs_hook=entries)
        return value, digest
    except json.JSONDecodeError as error:
        raise TraceError(f"is not JSON: {error.msg}", path=path, line=error.lineno) from error
    except RecursionError as error:
        raise TraceError("is nested too deeply", path=path) from error


def lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a text with their numbers. Only line feeds and carriage returns end one: comments may hold other separators."""
    return enumerate(_LINE_END.split(text), start=1)


class Row:
    """The cells of one line by column name; reading one checks it."""

    __slots__ = ("cells", "columns", "line", "path")

    def __init__(self, path: Path | str, line: int, columns: dict[str, int], cells: list[str]) -> None:
        self.path = path
        self.line = line
        self.columns = columns
        self.cells = cells

    def error(self, column: str | None, message: str) -> TraceError:
        """The error to raise about this line."""
        return TraceError(message, path=self.path, line=self.line, column=column)

    def text(self, column: str, *, required: bool = True) -> str:
        """The cell without surrounding blanks; an empty one is an error if ``required``."""
        index = self.columns.get(column)
        value = "" if index is None else self.cells[index].strip()
        if required and not value:
            raise self.error(column, "is empty")
        return value

    def number(self, column: str, *, least: float = 0.0) -> float:
        """A finite number of at least ``least``."""
        return self.as_number(column, self.text(column), least=least)

    def as_number(self, column: str, text: str, *, least: float = 0.0) -> float:
        """``text``, found in ``column``, as a finite number of at least ``least``."""
        value = number(text)
        if value is None:
            raise self.error(column, f"is not a number: {text!r}")
        if value < least:
            raise self.error(column, f"is less than {least:g}: {text}")
        return value

    def whole(self, column: str, *, least: int = 0, most: int = MOST_WHOLE) -> int:
        """An integer of at least ``least`` and at most ``most``; ``4.0`` is one, ``4.5`` is not."""
        value = self.number(column, least=least)
        if not value.is_integer():
            raise self.error(column, f"is not a whole number: {self.text(column)}")
        if value > most:
            raise self.error(column, f"is more than {most}: {self.text(column)}")
        return int(value)


def table(
    path: Path | str, text: str, required: Iterable[str], *, allowed: Iterable[str] | None = None
) -> Iterator[Row]:
    """The lines of a CSV text with a header, lazily. Lines that hold nothing are passed over, columns without a name, and blanks around a
    quoted cell.

    Raises `TraceError`: a required column missing, a column twice or (with ``allowed``) unknown or not empty without a name, a line with more or fewer
    cells than the header, broken quoting, no line after the header.
    """
    # To the csv module the blanks around quotes would be a part of the cell, or an error.
    unpadded = _PADDED.sub(r"\1\2", text) if '"' in text else text
    reader = csv.reader(io.StringIO(unpadded, newline=""), strict=True)
    columns: dict[str, int] | None = None
    unnamed: list[int] = []
    width = 0
    found = False
    try:
        for cells in reader:
            if not cells or (len(cells) == 1 and not cells[0].strip()):
                continue
            if columns is None:
                columns, width = _header(path, reader.line_num, cells, required, allowed), len(cells)
                unnamed = [place for place in range(width) if place not in columns.values()]
            elif len(cells) != width:
                message = f"{len(cells)} cells, but the header has {width} columns"
                raise TraceError(message, path=path, line=reader.line_num)
            elif unnamed and allowed is not None and any(cells[place].strip() for place in unnamed):
                raise TraceError("a cell in a column without a name", path=path, line=reader.line_num)
            elif any(cells):
                found = True
                yield Row(path, reader.line_num, columns, cells)
    except csv.Error as error:
        raise TraceError(f"is not CSV: {error}", path=path, line=reader.line_num) from error
    if not found:
        raise TraceError("holds a header and nothing else", path=path)


def _header(
    path: Path | str, line: int, cells: list[str], required: Iterable[str], allowed: Iterable[str] | None
) -> dict[str, int]:
    # Spreadsheets end every line with the commas of columns that hold nothing.
    names = [cell.strip() for cell in cells]
    columns = {name: index for index, name in enumerate(names) if name}
    if len(columns) != len(names) - names.count(""):
        twice = next(name for name, count in Counter(names).items() if name and count > 1)
        raise TraceError("is there twice", path=path, line=line, column=twice)
    for name in required:
        if name not in columns:
            other = next((sign for sign, _ in _OTHER_SIGNS if len(cells) == 1 and sign in cells[0]), "")
            hint = f"; cells are between commas, not {dict(_OTHER_SIGNS)[other]}" if other else ""
            raise TraceError(f"is missing from the header{hint}", path=path, line=line, column=name)
    if allowed is not None:
        known = set(allowed)
        for name in columns:
            if name not in known:
                raise TraceError("is not a known column", path=path, line=line, column=name)
    return columns


class Collected:
    """The jobs of a trace as they are read: ids are unique, lines left out are counted by reason."""

    def __init__(self) -> None:
        self.jobs: list[TraceJob] = []
        self.skipped: Counter[str] = Counter()
        self._lines: dict[str, int] = {}
        self._places: dict[str, tuple[str, int]] = {}

    def add(self, row: Row, job: TraceJob) -> None:
        """A job, found on this line."""
        self.jobs.append(job)
        self._places[job.job_id] = str(row.path), row.line

    def claim(self, row: Row, column: str, job_id: str) -> str:
        """``job_id``, which no earlier line has."""
        earlier = self._lines.setdefault(job_id, row.line)
        if earlier != row.line:
            raise row.error(column, f"job {job_id!r} is already on line {earlier}")
        return job_id

    def trace(self, path: Path | str, name: str, sha256: str, throughputs: Throughputs | None = None) -> Trace:
        """The finished trace, in order of submission (lines of one time in their order).

        Raises `TraceError`: no job is left, or one that comes or lasts beyond `MOST_YEARS`.
        """
        if not self.jobs:
            reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(self.skipped.items()))
            raise TraceError(f"holds no job that can run ({reasons or 'no line with a job'})", path=path)
        for job in self.jobs:
            for what, seconds in (("submission", job.submit_s), ("run time", job.duration_s)):
                if not seconds <= MOST_S:
                    file, line = self._places[job.job_id]
                    message = f"{what} of job {job.job_id}: {seconds:g} s are more than {MOST_YEARS} years; is the file's unit the second?"
                    raise TraceError(message, path=file, line=line)
        self.jobs.sort(key=lambda job: job.submit_s)
        return Trace(name, self.jobs, throughputs, dict(sorted(self.skipped.items())), sha256, self._places)


def split_ranks(devices: int, node_size: int) -> tuple[int, int]:
    """Ranks and accelerators of each for a job of so many devices: one rank up to a whole node, else ranks of a whole node
    each, the last one filled up (a gang that spans nodes takes them whole)."""
    return (1, devices) if devices <= node_size else (-(-devices // node_size), node_size)


def check_node_size(node_size: int) -> None:
    """Raises `TraceError` unless it is at least 1."""
    if node_size < 1:
        raise TraceError(f"option node_size must be at least 1, not {node_size}")
