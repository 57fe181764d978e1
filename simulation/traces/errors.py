"""What a trace reader says about a file that it refuses: which file, which line, which column."""

from __future__ import annotations

from pathlib import Path

from meridian.errors import MeridianError


class TraceError(MeridianError):
    """A trace (or a request about one) is malformed. ``line`` counts from 1, the header included."""

    code = "INVALID_TRACE"
    status = 400
    title = "Invalid trace"

    def __init__(
        self, message: str, *, path: Path | str | None = None, line: int | None = None, column: str | None = None
    ) -> None:
        where = [str(path)] if path is not None else []
        if line is not None:
            where.append(f"line {line}")
        if column is not None:
            where.append(f"column {column!r}")
        super().__init__(f"{', '.join(where)}: {message}" if where else message)
        self.path = None if path is None else Path(path)
        self.line = line
        self.column = column
