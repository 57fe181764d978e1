"""Who asks for changes while there is another one is given it, and not told that changes are missing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from meridian.clock import SystemClock
from meridian.contracts.graph.v1 import graph_pb2
from meridian.database import Database, migrate
from meridian.http import install_errors
from services.graph import change_log, store
from services.graph.api import graph_router
from services.graph.recognition.recogniser import Recogniser

MIGRATIONS = Path(store.__file__).parent / "migrations"


ADVANCE = "UPDATE graph_version SET version = version + 1 RETURNING version"


async def change(database: Database) -> None:
    async with database.transaction() as connection:
        version = (await connection.execute(sa.text(ADVANCE))).scalar_one()
        update = graph_pb2.GraphUpdated(domain_id="d", version=version)
        await change_log.add_changes(
            connection, [change_log.LoggedChange(version, "d", datetime.now(UTC), "structure", update)]
        )


@pytest.mark.parametrize(("module", "step"), [(store, "version"), (change_log, "changes_since")])
async def test_a_change_between_two_looks_is_none_that_is_gone(
    database_url: str, monkeypatch: pytest.MonkeyPatch, module: ModuleType, step: str
) -> None:
    await migrate(database_url, "graph", MIGRATIONS)
    database = Database(database_url, "graph")
    app = FastAPI()
    install_errors(app)
    app.include_router(graph_router(database, SystemClock(), cast("Recogniser", None)))
    real: Callable[..., Awaitable[Any]] = getattr(module, step)

    async def meanwhile(*arguments: Any) -> Any:
        await change(database)
        return await real(*arguments)

    await change(database)
    monkeypatch.setattr(module, step, meanwhile)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://graph") as http:
        answer = await http.get("/v1/graph/changes", params={"since": 1})
    assert answer.status_code == 200, answer.text
    assert [item["version"] for item in answer.json()["items"]] == [2]
    assert answer.json()["version"] == 2
    await database.close()
