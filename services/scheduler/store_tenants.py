"""SQL of the weights that tenants gave their objectives themselves."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

_metadata = sa.MetaData()
tenant_objectives = sa.Table(
    "tenant_objectives",
    _metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True),
    sa.Column("weights", postgresql.JSONB),
    sa.Column("changed_by", sa.Text),
    sa.Column("changed_at_s", sa.Double),
)


@dataclass(frozen=True, slots=True)
class TenantObjectives:
    """What a tenant weighs, by objective."""

    tenant_id: str
    weights: dict[str, float]
    changed_by: str
    changed_at_s: float


async def load(connection: AsyncConnection) -> dict[str, TenantObjectives]:
    """All of them, by tenant."""
    rows = (await connection.execute(sa.select(tenant_objectives))).mappings()
    return {row["tenant_id"]: TenantObjectives(**row) for row in rows}


async def put(connection: AsyncConnection, item: TenantObjectives) -> None:
    """Write those of one tenant."""
    row = asdict(item)
    statement = postgresql.insert(tenant_objectives).values(row)
    changes = {name: value for name, value in row.items() if name != "tenant_id"}
    await connection.execute(statement.on_conflict_do_update(index_elements=["tenant_id"], set_=changes))


async def remove(connection: AsyncConnection, tenant_id: str) -> None:
    """Forget those of one tenant."""
    await connection.execute(sa.delete(tenant_objectives).where(tenant_objectives.c.tenant_id == tenant_id))
