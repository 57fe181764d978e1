"""Set-wise statements: one per table and transaction, all its rows as one JSON parameter."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import create_mock_engine
from sqlalchemy.ext.asyncio import AsyncConnection

from services.scheduler.store_rows import Row

# An escaped NUL, which PostgreSQL does not take in text: after an even number of backslashes.
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


def compact(value: Any) -> str:
    """``value`` as JSON for PostgreSQL. Texts come from programs too: NUL characters in them are dropped."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return _NUL.sub(r"\1", text) if "\\u0000" in text else text


_DIALECT = create_mock_engine("postgresql+asyncpg://", lambda *_: None).dialect


def _record_type(table: sa.Table, columns: Sequence[str]) -> str:
    return ", ".join(f'"{name}" {table.c[name].type.compile(_DIALECT)}' for name in columns)


@cache
def _upsert_statement(table: sa.Table, columns: tuple[str, ...]) -> sa.TextClause:
    types = _record_type(table, columns)
    names = ", ".join(f'"{name}"' for name in columns)
    keys = [column.name for column in table.primary_key if column.name in columns]
    changes = ", ".join(f'"{name}" = excluded."{name}"' for name in columns if name not in keys)
    conflict = f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changes}" if keys else ""
    return sa.text(
        f"INSERT INTO {table.name} ({names}) SELECT {names} "  # noqa: S608 - names of our own columns
        f"FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS rows({types}){conflict}"
    )


async def upsert(connection: AsyncConnection, table: sa.Table, rows: Sequence[Row]) -> None:
    """Insert rows, all with the same columns; those whose primary key is there already are updated."""
    if rows:
        await connection.execute(_upsert_statement(table, tuple(rows[0])), {"rows": compact(rows)})


async def update(connection: AsyncConnection, table: sa.Table, rows: Sequence[Row]) -> None:
    """Update rows that exist by their primary key."""
    if not rows:
        return
    columns = tuple(rows[0])
    keys = [column.name for column in table.primary_key]
    types = _record_type(table, columns)
    changes = ", ".join(f'"{name}" = rows."{name}"' for name in columns if name not in keys)
    where = " AND ".join(f'{table.name}."{name}" = rows."{name}"' for name in keys)
    statement = sa.text(
        f"UPDATE {table.name} SET {changes} "  # noqa: S608 - names of our own columns
        f"FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS rows({types}) WHERE {where}"
    )
    await connection.execute(statement, {"rows": compact(rows)})
