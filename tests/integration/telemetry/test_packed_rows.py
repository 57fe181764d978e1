"""Rows that an earlier release stored are read after the migration as what they were."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from meridian.contracts.graph.v1.graph_pb2 import GraphNode
from meridian.database import Database, migrate
from services.graph import store as graph_store
from services.graph.facts import Decided
from services.graph.node_state import Rule
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


# -- beside processes of the release before: what was written last counts, whoever wrote it ----------------------------


_SERIES_BEFORE = sa.text(
    "INSERT INTO newest (domain_id, node_id, series, observed_at) VALUES ('d', 'n', CAST(:series AS jsonb), to_timestamp(:at_s)) "
    "ON CONFLICT (domain_id, node_id) DO UPDATE SET series = excluded.series, observed_at = excluded.observed_at"
)
_READINGS_BEFORE = sa.text(
    "INSERT INTO nodes (domain_id, node_id, published, state, readings, bad_readings, rule) "
    "VALUES ('d', 'n', '', 1, CAST(:readings AS jsonb), '{}', 'fit') "
    "ON CONFLICT (domain_id, node_id) DO UPDATE SET readings = excluded.readings"
)


async def test_series_written_in_turns_by_both_releases(database_url: str) -> None:
    await migrate(database_url, "telemetry", SERVICES / "telemetry" / "migrations")
    database = Database(database_url, "telemetry")

    async def written_before(value: float, at_s: float) -> None:
        series = {"cpn.health": {"-1": [value, at_s, 2, 1, "", 3, 985.0, 990.0, 0, "", 0]}}
        async with database.transaction() as connection:
            await connection.execute(_SERIES_BEFORE, {"series": json.dumps(series), "at_s": at_s})

    async def written_now(value: float, at_s: float) -> None:
        series = {"d": {"n": {(-1, "cpn.health"): Series(value, at_s, 2, 1, 3, 985.0, 990.0)}}}
        batch = telemetry_store.Batch({}, {}, series, {"d": 1})
        async with database.transaction() as connection:
            await telemetry_store.save(connection, batch, datetime.fromtimestamp(at_s, UTC), 0.0)

    for write, value, at_s in (
        (written_before, 1.0, 1000.0),
        (written_now, 0.5, 1003.0),
        (written_before, 0.0, 1006.0),
        (written_now, 1.0, 1009.0),
    ):
        await write(value, at_s)
        async with database.reading() as connection:
            found = await telemetry_store.newest_of_domains(connection, ["d"])
            [shown] = await telemetry_store.read_newest(
                connection, node_id=None, domain_id=None, metric="cpn.health", limit=10
            )
        assert found == {"d": {"n": {(-1, "cpn.health"): Series(value, at_s, 2, 1, 3, 985.0, 990.0)}}}
        assert (shown["value"], shown["observed_at"]) == (value, datetime.fromtimestamp(at_s, UTC))
    await database.close()


async def test_readings_of_a_node_written_in_turns_by_both_releases(database_url: str) -> None:
    await migrate(database_url, "graph", SERVICES / "graph" / "migrations")
    database = Database(database_url, "graph")

    async def written_before(value: float, at_s: float) -> None:
        async with database.transaction() as connection:
            readings = json.dumps({"cpn.health": {"-1": [value, at_s]}})
            await connection.execute(_READINGS_BEFORE, {"readings": readings})

    async def written_now(value: float, at_s: float) -> None:
        async with database.transaction() as connection:
            domain = (await graph_store.load(connection, ["d"]))["d"]
            domain.facts.readings["n"] = {"cpn.health": {-1: (value, at_s)}}
            domain.facts.touched.add("n")
            domain.published.nodes.setdefault("n", GraphNode())
            domain.facts.decided.setdefault("n", Decided(Rule.FIT, "", at_s))
            await graph_store.save(connection, [domain], at_s)

    for write, value, at_s in (
        (written_now, 1.0, 1000.0),
        (written_before, 0.0, 1003.0),
        (written_now, 0.5, 1006.0),
        (written_before, 1.0, 1009.0),
    ):
        await write(value, at_s)
        async with database.reading() as connection:
            view = await graph_store.node(connection, "n")
            domain = (await graph_store.load(connection, ["d"]))["d"]
        assert view is not None
        assert view.readings == {"cpn.health": {-1: (value, at_s)}}
        assert domain.facts.readings["n"] == view.readings
    await database.close()
