"""Resources that users define: the routes, and the statements behind them. Definitions go out as events to all agents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Body, Query, Response
from pydantic import StringConstraints
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from meridian.clock import Clock
from meridian.contracts.resource.v1 import resource_pb2 as pb
from meridian.database import Database
from meridian.errors import ConflictError, NotFoundError
from meridian.outbox import Outbox
from meridian.resource_model import ResourceModel, resource_from

MAX_RESOURCES = 1000
_KINDS = {number: name.removeprefix("UNKNOWN_KIND_").lower() for name, number in pb.UnknownKind.items()}
Name = Annotated[str, StringConstraints(max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]
Actor = Annotated[str, Query(max_length=200, pattern=r"^[^\x00]*$")]


def definition_of(model: ResourceModel) -> pb.ResourceDefinition:
    """The model as its contract."""
    return pb.ResourceDefinition(
        name=model.name,
        description=model.description,
        dynamic=model.dynamic,
        consumable=model.consumable,
        shareable=model.shareable,
        value=model.value,
        command=model.command,
        interval_s=model.interval_s or 0,
        scope=model.scope,
    )


def amounts_of(node: pb.NodeInventory) -> dict[str, list[Any]]:
    """What a node has, by name: value, attributes, unknown kind, reason."""
    return {
        item.name: [
            item.value if item.HasField("value") else None,
            dict(item.attributes),
            _KINDS.get(item.unknown_kind, "unspecified") if not item.HasField("value") else None,
            item.reason or None,
        ]
        for item in node.user_resources
    }


async def save_amounts(
    connection: AsyncConnection, domain_id: str, nodes: Mapping[str, dict[str, list[Any]]], now: datetime
) -> None:
    """Store what the nodes of a domain have; nodes that are not named have nothing any more."""
    await connection.execute(
        sa.text(
            "DELETE FROM resource_amounts WHERE domain_id = :domain_id AND NOT node_id = ANY(:node_ids)"
        ).bindparams(sa.bindparam("node_ids", type_=postgresql.ARRAY(sa.Text))),
        {"domain_id": domain_id, "node_ids": list(nodes)},
    )
    if nodes:
        await _keep_amounts(connection, domain_id, nodes, now)


async def save_amounts_of(
    connection: AsyncConnection, domain_id: str, nodes: Mapping[str, dict[str, list[Any]]], now: datetime
) -> None:
    """Store what these nodes of a domain have, some of them nothing; of its other nodes nothing is said."""
    having = {node_id: amounts for node_id, amounts in nodes.items() if amounts}
    await connection.execute(
        sa.text("DELETE FROM resource_amounts WHERE domain_id = :domain_id AND node_id = ANY(:node_ids)").bindparams(
            sa.bindparam("node_ids", type_=postgresql.ARRAY(sa.Text))
        ),
        {"domain_id": domain_id, "node_ids": [node_id for node_id in nodes if node_id not in having]},
    )
    if having:
        await _keep_amounts(connection, domain_id, having, now)


async def _keep_amounts(
    connection: AsyncConnection, domain_id: str, nodes: Mapping[str, dict[str, list[Any]]], now: datetime
) -> None:
    statement = sa.text(
        "INSERT INTO resource_amounts (domain_id, node_id, amounts, observed_at) "
        "SELECT :domain_id, n, CAST(a AS jsonb), :now FROM unnest(:node_ids, :amounts) AS x (n, a) "
        "ON CONFLICT (domain_id, node_id) DO UPDATE SET amounts = excluded.amounts, observed_at = excluded.observed_at"
    ).bindparams(
        sa.bindparam("node_ids", type_=postgresql.ARRAY(sa.Text)),
        sa.bindparam("amounts", type_=postgresql.ARRAY(sa.Text)),
    )
    stored = [json.dumps(amounts).replace("\\u0000", "\\ufffd") for amounts in nodes.values()]
    parameters = {"domain_id": domain_id, "now": now, "node_ids": list(nodes), "amounts": stored}
    await connection.execute(statement, parameters)


async def _definitions(connection: AsyncConnection, name: str | None = None) -> list[dict[str, Any]]:
    rows = await connection.execute(
        sa.text(
            "SELECT definition, defined_by, defined_at FROM user_resources "
            "WHERE CAST(:name AS text) IS NULL OR name = :name ORDER BY name"
        ),
        {"name": name},
    )
    return [{**row.definition, "defined_by": row.defined_by, "defined_at": row.defined_at} for row in rows]


async def _amounts(connection: AsyncConnection, name: str) -> list[dict[str, Any]]:
    rows = await connection.execute(
        sa.text(
            "SELECT domain_id, node_id, amounts -> :name AS amount, observed_at FROM resource_amounts "
            "WHERE jsonb_exists(amounts, :name) ORDER BY domain_id, node_id"
        ),
        {"name": name},
    )
    return [
        {
            "domain_id": row.domain_id,
            "node_id": row.node_id,
            "value": row.amount[0],
            "attributes": row.amount[1],
            "quality": row.amount[2] or "ok",
            "reason": row.amount[3],
            "observed_at": row.observed_at,
        }
        for row in rows
    ]


def user_resource_router(database: Database, outbox: Outbox, clock: Clock) -> APIRouter:
    """Add, list, look at and remove."""
    router = APIRouter()

    @router.get("/v1/resources")
    async def list_resources() -> dict[str, Any]:
        async with database.reading() as connection:
            return {"items": await _definitions(connection)}

    @router.get("/v1/resources/{name}")
    async def get_resource(name: Name) -> dict[str, Any]:
        async with database.reading() as connection:
            found = await _definitions(connection, name)
            amounts = await _amounts(connection, name)
        if not found and not amounts:
            raise NotFoundError(f"there is no resource {name!r}")
        # One that an agent's own file declares has no definition here.
        return {**(found[0] if found else {"name": name}), "nodes": amounts}

    @router.put("/v1/resources/{name}")
    async def put_resource(
        name: Name, content: Annotated[dict[str, Any], Body()], response: Response, changed_by: Actor = ""
    ) -> dict[str, Any]:
        model = resource_from({**content, "name": content.get("name", name)})
        if model.name != name:
            raise ConflictError(f"the resource in the body is {model.name!r}, not {name!r}")
        now = clock.now()
        body = model.model_dump(mode="json")
        async with outbox.transaction() as transaction:
            connection = transaction.connection
            await connection.execute(sa.text("LOCK TABLE user_resources IN SHARE ROW EXCLUSIVE MODE"))
            known = await _definitions(connection)
            is_new = name not in {item["name"] for item in known}
            if is_new and len(known) >= MAX_RESOURCES:
                raise ConflictError(f"there are {MAX_RESOURCES} resources already")
            await connection.execute(
                sa.text(
                    "INSERT INTO user_resources (name, definition, defined_by, defined_at) "
                    "VALUES (:name, CAST(:definition AS jsonb), :by, :at) ON CONFLICT (name) DO UPDATE "
                    "SET definition = excluded.definition, defined_by = excluded.defined_by, "
                    "defined_at = excluded.defined_at"
                ),
                {"name": name, "definition": json.dumps(body), "by": changed_by, "at": now},
            )
            event = pb.ResourceDefined(name=name, definition=definition_of(model), actor_id=changed_by)
            event.at.FromDatetime(now)
            transaction.publish(event)
        response.status_code = 201 if is_new else 200
        return {**body, "defined_by": changed_by, "defined_at": now}

    @router.delete("/v1/resources/{name}")
    async def delete_resource(name: Name, changed_by: Actor = "") -> dict[str, Any]:
        async with outbox.transaction() as transaction:
            removed = await transaction.connection.execute(
                sa.text("DELETE FROM user_resources WHERE name = :name"), {"name": name}
            )
            if not removed.rowcount:
                raise NotFoundError(f"no user has defined a resource {name!r}")
            event = pb.ResourceDefined(name=name, removed=True, actor_id=changed_by)
            event.at.FromDatetime(clock.now())
            transaction.publish(event)
        return {"name": name, "removed": True}

    return router
