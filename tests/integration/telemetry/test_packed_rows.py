"""Rows that an earlier release stored are read after the migration as what they were."""

from __future__ import annotations

import json
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from meridian.database import Database, migrate
from services.graph import store as graph_store
from services.telemetry import store as telemetry_store
from services.telemetry.reading_check import Series

SERVICES = Path(telemetry_store.__file__).parent.parent


async def _migrate_to(url: str, schema: str, revision: str) -> None:
    def upgrade(connection: sa.Connection) -> None:
        config = Config()
        config.set_main_option("script_location", str(SERVICES / schema / "migrations"))
        config.attributes["connection"] = connection
        config.attributes["schema"] = schema
        command.upgrade(config, revision)

    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.begin() as connection:
        await connection.execute(sa.text(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'))
        await connection.execute(sa.text(f'SET LOCAL search_path TO "{schema}"'))
        await connection.run_sync(upgrade)
    await engine.dispose()


async def test_series_of_an_earlier_release(database_url: str) -> None:
    await _migrate_to(database_url, "telemetry", "0003")
    series = {
        "hw.power": {"0": [310.5, 1000.25, 2, 1, "", 0, 990.0, 1000.25, 0, "", 0]},
        "hw.energy": {"0": [7.0, 1000.5, 2, 1, "unchanged at 7 J", 4, 985.0, 900.0, 18, "", 0]},
        "hw.gpu.utilization#7": {"0": [None, 999.0, 1, 2, "blank", 0, 0.0, 0.0, 4, "1g.10gb", 10737418240]},
        "cpn.health": {"-1": [1.0, 1000.0, 2, 1, "", 0, 985.0]},
    }
    database = Database(database_url, "telemetry")
    async with database.transaction() as connection:
        await connection.execute(
            sa.text("INSERT INTO newest VALUES ('d', 'n', CAST(:series AS jsonb), to_timestamp(1000))"),
            {"series": json.dumps(series)},
        )
    await migrate(database_url, "telemetry", SERVICES / "telemetry" / "migrations")
    async with database.reading() as connection:
        found = (await telemetry_store.newest_of_domains(connection, ["d"]))["d"]["n"]
        shown = await telemetry_store.read_newest(
            connection, node_id=None, domain_id="d", metric="hw.gpu.utilization", limit=10
        )
    await database.close()
    assert found == {
        (0, "hw.power"): Series(310.5, 1000.25, 2, 1, 0, 990.0, 1000.25),
        (0, "hw.energy"): Series(7.0, 1000.5, 2, 1, 4, 985.0, 900.0, 18, "unchanged at 7 J"),
        (0, "hw.gpu.utilization#7"): Series(None, 999.0, 1, 2, 0, 0.0, 0.0, 4, "blank", "1g.10gb", 10737418240),
        (-1, "cpn.health"): Series(1.0, 1000.0, 2, 1, 0, 985.0),
    }
    assert [(row["metric"], row["value"], row["reason"], row["part_profile"]) for row in shown] == [
        ("hw.gpu.utilization#7", None, "blank", "1g.10gb")
    ]


async def test_readings_of_nodes_of_an_earlier_release(database_url: str) -> None:
    await _migrate_to(database_url, "graph", "0001")
    readings = {"hw.power": {"0": [310.5, 1000.25], "1": [290.0, 1000.5]}, "cpn.health": {"-1": [1.0, 1000.0]}}
    database = Database(database_url, "graph")
    async with database.transaction() as connection:
        await connection.execute(
            sa.text(
                "INSERT INTO nodes (domain_id, node_id, published, state, readings, bad_readings, rule) "
                "VALUES ('d', 'n', '', 1, CAST(:readings AS jsonb), '{}', 'fit')"
            ),
            {"readings": json.dumps(readings)},
        )
    await migrate(database_url, "graph", SERVICES / "graph" / "migrations")
    async with database.reading() as connection:
        view = await graph_store.node(connection, "n")
    await database.close()
    assert view is not None
    assert view.readings == {"hw.power": {0: (310.5, 1000.25), 1: (290.0, 1000.5)}, "cpn.health": {-1: (1.0, 1000.0)}}
