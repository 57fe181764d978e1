"""PostgreSQL and Valkey as children of ours: they start anywhere, survive kill -9, and keep what they promise."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import asyncpg
import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from meridian.embedded import postgres, valkey
from meridian.errors import ConfigurationError
from tests.fixtures_embedded import data_directory, free_port, running

AS_ROOT = os.geteuid() == 0


async def query(url: str, *statements: str) -> list[object]:
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        return [await connection.fetchval(statement) for statement in statements]
    finally:
        await connection.close()


def servers_in(cluster: Path) -> list[int]:
    found = []
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "postgres":
            try:
                if Path(process.cwd()) == cluster:
                    found.append(process.pid)
            except psutil.Error:
                continue
    return found


async def until_no_server_in(cluster: Path) -> None:
    """What its first process has ended ends when it gets the processor."""
    async with asyncio.timeout(60):
        while servers_in(cluster):
            await asyncio.sleep(0.05)


async def test_database_url_is_an_empty_database_for_sqlalchemy(database_url: str) -> None:
    engine = create_async_engine(database_url)
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE t (x int)"))
        assert (await connection.execute(text("SELECT count(*) FROM t"))).scalar_one() == 0
    await engine.dispose()


@pytest.mark.parametrize("_", range(2))
async def test_each_test_has_its_own_database(database_url: str, _: int) -> None:
    assert await query(database_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [0]
    await query(database_url, "CREATE TABLE left_over (x int)")


async def test_postgres_keeps_data_through_kill_and_restart() -> None:
    with data_directory() as directory:
        server = postgres.locate(directory, free_port())
        log = directory / "log" / "postgres.log"
        with running(server.process(log)) as process:
            await query(server.url, "CREATE TABLE t (x int)", "INSERT INTO t VALUES (41), (42)")
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert (server.cluster / "postmaster.pid").exists()
        again = postgres.locate(directory, free_port())
        with running(again.process(log)):
            assert await query(again.url, "SELECT sum(x) FROM t", "SHOW fsync") == [83, "on"]
        await until_no_server_in(server.cluster)


async def test_postgres_starts_although_an_earlier_server_still_runs_on_the_data() -> None:
    with data_directory() as directory:
        first = postgres.locate(directory, free_port(), fsync=False)
        with running(first.process(directory / "first.log")) as left_over:
            await query(first.url, "CREATE TABLE t AS SELECT 7 AS x")
            second = postgres.locate(directory, free_port(), fsync=False)
            with running(second.process(directory / "second.log")):
                assert left_over.wait(60) is not None
                assert await query(second.url, "SELECT x FROM t") == [7]


async def test_postgres_removes_a_lock_file_that_names_a_process_of_somebody_else() -> None:
    with data_directory() as directory:
        server = postgres.locate(directory, free_port(), fsync=False)
        with running(server.process(directory / "log")):
            pass
        (server.cluster / "postmaster.pid").write_text(f"{os.getpid()}\n{server.cluster}\n0\n5432\n\n\n\n")
        with running(server.process(directory / "log")):
            assert await query(server.url, "SELECT 1") == [1]


async def test_postgres_wants_the_password() -> None:
    with data_directory() as directory:
        server = postgres.locate(directory, free_port(), fsync=False)
        with running(server.process(directory / "log")), pytest.raises(asyncpg.InvalidPasswordError):
            await query(server.url.replace(server.password, "wrong"), "SELECT 1")


async def test_a_killed_initialisation_is_done_anew() -> None:
    with data_directory() as directory:
        server = postgres.locate(directory, free_port(), fsync=False)
        half_done = server.cluster.with_name("postgres.new")
        half_done.mkdir()
        (half_done / "PG_VERSION").write_text("18")
        with running(server.process(directory / "log")):
            assert await query(server.url, "SELECT 1") == [1]


@pytest.mark.skipif(not AS_ROOT, reason="only root may run a server under another account")
async def test_as_root_a_data_directory_out_of_reach_has_its_cluster_elsewhere() -> None:
    with data_directory() as private:
        private.chmod(0o700)
        directory = private / "data"
        server = postgres.locate(directory, free_port(), fsync=False)
        try:
            assert not server.cluster.is_relative_to(private)
            with running(server.process(directory / "log")) as process:
                assert psutil.Process(process.pid).uids().effective != 0
                await query(server.url, "CREATE TABLE t AS SELECT 7 AS x")
            again = postgres.locate(directory, free_port(), fsync=False)
            assert again.cluster == server.cluster
            with running(again.process(directory / "log")):
                assert await query(again.url, "SELECT x FROM t") == [7]
        finally:
            shutil.rmtree(server.cluster.parent)
        assert private.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(not AS_ROOT, reason="only root may run a server under another account")
async def test_as_root_a_server_out_of_reach_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    with data_directory() as private, data_directory() as directory, data_directory() as common:
        common.chmod(0o755)
        monkeypatch.setattr(postgres, "COMMON_DIRECTORY", common)
        installed = postgres.installed_servers()[0]
        package = installed.bin_dir.parent.parent
        shutil.copytree(package, private / package.name)
        if package.with_name(f"{package.name}.libs").exists():
            shutil.copytree(package.with_name(f"{package.name}.libs"), private / f"{package.name}.libs")
        hidden = postgres.PostgresServer.at("hidden", private / package.name / "pginstall" / "bin")
        assert hidden is not None
        monkeypatch.setattr(postgres, "installed_servers", lambda: [hidden])
        server = postgres.locate(directory, free_port(), fsync=False)
        assert server.server.bin_dir.is_relative_to(common)
        with running(server.process(directory / "log")):
            assert await query(server.url, "SELECT 1") == [1]


async def test_every_installed_server_works(monkeypatch: pytest.MonkeyPatch) -> None:
    for installed in postgres.installed_servers():
        monkeypatch.setattr(postgres, "installed_servers", lambda only=installed: [only])
        with data_directory() as directory:
            server = postgres.locate(directory, free_port(), fsync=False)
            with running(server.process(directory / "log")):
                assert str(await query(server.url, "SHOW server_version")).startswith(f"['{installed.major}.")


def test_a_cluster_without_its_password_is_not_touched() -> None:
    with data_directory() as directory:
        (directory / "postgres").mkdir()
        with pytest.raises(ConfigurationError, match="password"):
            postgres.locate(directory, 1)


def test_redis_url_is_an_empty_valkey(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)
    assert client.dbsize() == 0
    client.set("key", "value")
    assert client.get("key") == b"value"
    client.close()


def test_valkey_wants_the_password_and_keeps_it_over_a_restart() -> None:
    with data_directory() as directory:
        server = valkey.locate(directory, free_port())
        with running(server.process(directory / "log")):
            with pytest.raises(redis.AuthenticationError):
                redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)).ping()
            assert redis.Redis.from_url(server.url).ping()
        assert valkey.locate(directory, server.port).url == server.url
