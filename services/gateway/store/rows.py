"""Many rows in one statement: rows travel as one JSON array, PostgreSQL gives them the types of the table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"a row holds a {type(value).__name__}")


def as_json(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as a JSON array."""
    return json.dumps(list(rows), default=_plain, ensure_ascii=False, allow_nan=False).replace("\\u0000", "\\ufffd")


def as_rows(records: Iterable[Any]) -> list[dict[str, Any]]:
    """Dataclass instances whose fields are columns, as rows."""
    return [asdict(record) for record in records]


async def upsert(
    connection: AsyncConnection, table: sa.Table, rows: Sequence[Mapping[str, Any]], *, newest_by: str | None = None
) -> None:
    """Insert rows or replace their columns; all rows have the same keys. ``newest_by``: keep rows that are newer there."""
    if not rows:
        return
    names = list(rows[0])
    keys = [column.name for column in table.primary_key]
    columns = ", ".join(names)
    changes = ", ".join(f"{name} = EXCLUDED.{name}" for name in names if name not in keys)
    guard = f" WHERE {table.name}.{newest_by} <= EXCLUDED.{newest_by}" if newest_by else ""
    # All names come from the code.
    statement = sa.text(
        f"INSERT INTO {table.name} ({columns}) "  # noqa: S608
        f"SELECT {columns} FROM json_populate_recordset(CAST(NULL AS {table.name}), CAST(:rows AS json)) "
        f"ORDER BY {', '.join(keys)} "
        f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changes}{guard}"
    )
    await connection.execute(statement, {"rows": as_json(rows)})


def texts(values: Iterable[str]) -> sa.ColumnElement[Any]:
    """A text array as a bound parameter, for ``= ANY``."""
    return sa.any_(sa.literal(sorted(values), sa.ARRAY(sa.Text)))
