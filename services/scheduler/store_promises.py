"""SQL of the accounts of what was promised: their state as it was saved last, and what was observed since, row by row.

Observations are written in the transactions of the changes that they tell of, so that a crash loses none.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from services.scheduler.core.contracts.service_levels import Observation

_metadata = sa.MetaData()
promises = sa.Table(
    "promises",
    _metadata,
    sa.Column("single", sa.Boolean, primary_key=True),
    sa.Column("state", sa.LargeBinary),
)
observation = sa.Table(
    "observation",
    _metadata,
    sa.Column("number", sa.BigInteger, primary_key=True),
    sa.Column("body", postgresql.JSONB),
)


async def add_observations(connection: AsyncConnection, first: int, observations: Sequence[Observation]) -> None:
    """Note observations; the first one has the number ``first``."""
    if observations:
        rows = [{"number": first + place, "body": item.as_row()} for place, item in enumerate(observations)]
        await connection.execute(sa.insert(observation), rows)


async def observations_after(connection: AsyncConnection, number: int) -> tuple[list[Observation], int]:
    """Those with greater numbers, in order, and the greatest number."""
    query = sa.select(observation).where(observation.c.number > number).order_by(observation.c.number)
    rows = (await connection.execute(query)).all()
    return [Observation.from_row(row.body) for row in rows], max([number, *(row.number for row in rows)])


def packed(state: dict[str, Any]) -> bytes:
    """A state as it is stored."""
    return zlib.compress(json.dumps(state, separators=(",", ":")).encode(), 1)


async def save_state(connection: AsyncConnection, state: bytes, number: int) -> None:
    """Keep a state that took in all observations up to ``number``; they are not needed any more."""
    statement = postgresql.insert(promises).values(single=True, state=state)
    await connection.execute(statement.on_conflict_do_update(index_elements=["single"], set_={"state": state}))
    await connection.execute(sa.delete(observation).where(observation.c.number <= number))


async def load_state(connection: AsyncConnection) -> dict[str, Any]:
    """What `save_state` kept; empty when it never did."""
    found = (await connection.execute(sa.select(promises.c.state))).scalar_one_or_none()
    state: dict[str, Any] = {} if found is None else json.loads(zlib.decompress(found))
    return state
