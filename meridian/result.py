"""The one form in which every measurement is written, so that figures can be compared, plotted and re-run.

The form is ``meridian.result/1``, described by ``result.schema.json`` beside this file: what was measured (subject), with
which unit (the end of the measure's name), on which slice, its value with the interval it was seen in, and whether it is
the baseline of the others. The checks here are the schema's, without a library for schemas; a test holds them together.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

SCHEMA_NAME = "meridian.result/1"
SCHEMA_PATH = Path(__file__).with_name("result.schema.json")


class Setting(StrEnum):
    """How real a figure is."""

    REAL = "real"
    """Real processes and sockets."""
    EMULATED = "emulated"
    """Real processes over a shaped network."""
    SIMULATED = "simulated"
    """Virtual time."""
    OFFLINE = "offline"
    """Computed from recorded data."""


class InvalidResultError(ValueError):
    """The result does not keep the form; the message names the field."""


@dataclass(frozen=True, slots=True)
class DataSource:
    """A data set a figure rests on, named so that anyone can tell whether theirs is the same."""

    name: str
    sha256: str

    @classmethod
    def of(cls, path: Path, name: str | None = None) -> DataSource:
        """The data in the file ``path``, under ``name`` (default: the file's name)."""
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256")
        return cls(name or path.name, digest.hexdigest())


def command_line(module: str, arguments: Sequence[str] | None = None) -> str:
    """``python -m MODULE`` with its arguments (default: those of this process) in the words of a shell."""
    return f"python -m {module} {in_words(sys.argv[1:] if arguments is None else arguments)}".rstrip()


def in_words(arguments: Sequence[str]) -> str:
    """Arguments in the words of a shell. Files below the folder that ``MERIDIAN_DATA`` names are named by it, so that the command is
    that of every machine."""
    folder = os.environ.get("MERIDIAN_DATA", "").rstrip("/")

    def word(item: str) -> str:
        if not folder or not f"{item}/".startswith(f"{folder}/"):
            return shlex.quote(item)
        below = item[len(folder) :]
        return '"$MERIDIAN_DATA"' + (shlex.quote(below) if below else "")

    return " ".join(map(word, arguments))


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    ``measure`` is a snake-case name that ends in its unit (``latency_p99_ms``, ``jct_mean_s``, ``wape_ratio``); ``low``
    and ``high`` bound the value over ``n`` runs or by a bootstrap interval. A value that could not be computed is None
    (NaN and infinities count as such) and then ``reason`` says why.
    """

    subject: str
    measure: str
    value: float | None
    slice: str = "all"
    low: float | None = None
    high: float | None = None
    n: int = 1
    baseline: bool = False
    reason: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The row as the form has it: ``reason`` only where one is given, numbers finite or null."""
        body = asdict(self)
        if self.reason is None:
            del body["reason"]
        for field in ("value", "low", "high"):
            if body[field] is not None:
                body[field] = float(body[field]) if math.isfinite(body[field]) else None
        return body


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


_Text = Annotated[str, Field(min_length=1)]


class _SourceForm(_Strict):
    name: _Text
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _RowForm(_Strict):
    subject: _Text
    measure: Annotated[str, Field(pattern=r"^[a-z0-9]+(_[a-z0-9]+)*$")]
    slice: _Text
    value: float | None
    low: float | None
    high: float | None
    n: Annotated[int, Field(ge=0)]
    baseline: bool
    reason: Annotated[str, Field(min_length=1)] = "none is needed"

    @model_validator(mode="after")
    def _has_reason(self) -> _RowForm:
        if self.value is None and "reason" not in self.model_fields_set:
            raise ValueError("a value of null needs a reason")
        return self


class _ResultForm(_Strict):
    schema_name: Annotated[Literal["meridian.result/1"], Field(alias="schema")]
    command: _Text
    data: list[_SourceForm]
    seed: int
    setting: Literal["real", "emulated", "simulated", "offline"]
    rows: Annotated[list[_RowForm], Field(min_length=1)]


def document(
    command: str, data: Iterable[DataSource], seed: int, setting: Setting | str, rows: Iterable[Row]
) -> dict[str, Any]:
    """The result as a validated JSON object; raises ``InvalidResultError``."""
    body = {
        "schema": SCHEMA_NAME,
        "command": command,
        "data": [asdict(source) for source in data],
        "seed": seed,
        "setting": str(setting),
        "rows": [row.as_json() for row in rows],
    }
    validate(body)
    return body


def validate(body: Any) -> None:
    """Raise ``InvalidResultError``, naming the first bad field, unless ``body`` keeps the form."""
    try:
        _ResultForm.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        raise InvalidResultError(f"${where}: {first['msg']}") from None


def write(
    path: Path | str,
    command: str,
    data: Iterable[DataSource],
    seed: int,
    setting: Setting | str,
    rows: Iterable[Row],
) -> None:
    """Write the result to ``path`` as JSON; raises ``InvalidResultError`` before anything is written."""
    body = document(command, data, seed, setting, rows)
    text = json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False)
    Path(path).write_text(text + "\n", encoding="utf-8")


def read(path: Path | str) -> dict[str, Any]:
    """The validated result in the file ``path``; raises ``InvalidResultError``."""
    body: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    validate(body)
    return body


def print_table(rows: Sequence[Row], out: TextIO | None = None) -> None:
    """Print the rows for people, in the order given, baselines marked with an asterisk; ``out`` defaults to stdout."""
    out = out or sys.stdout
    head = ("subject", "measure", "slice", "value", "low", "high", "n")
    lines = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for number, line in enumerate(lines):
        cells = (
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join(cells).rstrip(), file=out)
        if number == 0:
            print("  ".join("-" * width for width in widths), file=out)
    if any(row.baseline for row in rows):
        print("* baseline", file=out)
    for row in rows:
        if row.value is None and row.reason is not None:
            print(f"- {row.subject}, {row.measure}: {row.reason}", file=out)


def _cells(row: Row) -> tuple[str, ...]:
    numbers = (_number(value) for value in (row.value, row.low, row.high))
    return (row.subject + (" *" if row.baseline else ""), row.measure, row.slice, *numbers, str(row.n))


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    magnitude = abs(value)
    if magnitude >= 1000:
        return f"{value:,.0f}"
    if magnitude >= 1 or magnitude == 0:
        return f"{value:.2f}"
    return f"{value:.3g}"
