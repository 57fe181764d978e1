"""The stack in the background with its real servers: up, used, killed, up again on the same addresses, down."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest
import redis
from click.testing import CliRunner

from meridian.cli.main import main
from meridian.embedded import control, leftovers, stack
from meridian.embedded.child import StackStartError
from tests.fixtures_embedded import data_directory


@pytest.fixture
def options() -> Iterator[stack.StackOptions]:
    """Servers without services and agents; the broker is external (and not used here)."""
    with data_directory() as directory:
        none = directory / "none.yaml"
        none.write_text("domains: []")
        data_dir = directory / "data"
        directory.chmod(0o711)
        yield stack.StackOptions(
            data_dir,
            domains_file=none,
            services=(),
            kafka_bootstrap_servers="127.0.0.1:1",
            database_url=None,
            redis_url=None,
        )
        stack.stop(data_dir)


async def fetch(url: str, statement: str) -> object:
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def test_up_killed_up_again_and_down(options: stack.StackOptions) -> None:
    first = stack.start_detached(options)
    assert first.phase == "ready"
    assert redis.Redis.from_url(first.urls["redis"]).ping()
    await fetch(first.urls["database"], "CREATE TABLE t AS SELECT 7 AS x")
    os.kill(first.supervisor.pid, signal.SIGKILL)
    os.waitpid(first.supervisor.pid, 0)

    second = stack.start_detached(options)
    assert second.supervisor != first.supervisor
    assert second.urls == first.urls
    assert await fetch(second.urls["database"], "SELECT x FROM t") == 7
    assert stack.start_detached(options).supervisor == second.supervisor
    asked_again = ["--data-dir", str(options.data_dir), "up"]
    answer = CliRunner().invoke(main, [*asked_again, "--json", "--domains", str(options.domains_file), "--shards", "1"])
    assert answer.exit_code == 0, answer.output
    assert " ".join(answer.stderr.split()).count("--domains, --shards changes nothing of it") == 1
    assert json.loads(answer.stdout)["supervisor"]["pid"] == second.supervisor.pid
    assert stack.start_detached(options).supervisor == second.supervisor

    assert stack.stop(options.data_dir) is True
    assert leftovers.members(second) == []
    assert stack.stop(options.data_dir) is False


async def test_a_killed_postgres_comes_back_on_its_address(options: stack.StackOptions) -> None:
    state = stack.start_detached(options)
    await fetch(state.urls["database"], "CREATE TABLE t AS SELECT 7 AS x")
    postgres = next(process for process in state.processes if process.name == "postgres")
    assert postgres.pid is not None
    os.kill(postgres.pid, signal.SIGKILL)
    async with asyncio.timeout(120):
        while True:
            try:
                value = await fetch(state.urls["database"], "SELECT x FROM t")
                break
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await asyncio.sleep(0.05)
    assert value == 7
    now = stack.status(options.data_dir)
    assert now is not None
    assert next(process for process in now.processes if process.name == "postgres").restarts >= 1


def test_a_port_that_is_taken_is_named(options: stack.StackOptions) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = stack.StackOptions(options.data_dir, gateway_port=taken.getsockname()[1], services=("gateway",))
        with pytest.raises(StackStartError, match="wanted for gateway, is in use"):
            stack.start_detached(wanted)


BLOCK = """
import sys, time
from pathlib import Path
from meridian.embedded import stack

data_dir = Path(sys.argv[1])
options = stack.StackOptions(
    data_dir, domains_file=data_dir.parent / "none.yaml", services=(),
    kafka_bootstrap_servers="127.0.0.1:1", database_url="postgresql://u:p@127.0.0.1:1/d", redis_url="redis://127.0.0.1:1",
)
with stack.running(options):
    print("runs", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("ran_before", [False, True])
def test_who_is_told_to_end_leaves_no_stack_but_one_that_ran_before(
    options: stack.StackOptions, ran_before: bool
) -> None:
    given = replace(options, database_url="postgresql://u:p@127.0.0.1:1/d", redis_url="redis://127.0.0.1:1")
    if ran_before:
        stack.start_detached(given)
    argv = [sys.executable, "-c", BLOCK, str(options.data_dir)]
    environment = {**os.environ, "PYTHONPATH": stack.import_path()}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == "runs\n"
        user.terminate()
        assert user.wait() == 128 + signal.SIGTERM
    state = stack.status(options.data_dir)
    assert state is not None
    assert control.is_running(state) is ran_before


def late_stack(tmp_path: Path) -> str:
    """A program that runs a stack whose one part never gets ready."""
    return f"""
import asyncio, sys
from pathlib import Path
from meridian.embedded.process import ProcessSpec
from meridian.embedded.supervisor import Supervisor, claimed

async def never():
    return False

async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(15, stop.set)
    directory = Path({str(tmp_path)!r})
    argv = (sys.executable, "-c", "import time; print('waiting for godot', flush=True); time.sleep(600)")
    with claimed(directory) as stack_id:
        spec = ProcessSpec("estragon", argv, directory / "log", ready=never)
        await Supervisor([spec], state_dir=directory, stack_id=stack_id).run(stop)

asyncio.run(main())
"""


def test_who_is_interrupted_while_a_stack_starts_leaves_nothing_running(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def now_s() -> float:
        if log.exists() and "godot" in log.read_text():
            raise KeyboardInterrupt
        return 0.0

    with pytest.raises(KeyboardInterrupt):
        control.spawn_and_wait(
            [sys.executable, "-c", late_stack(tmp_path)],
            env={**os.environ, "PYTHONPATH": stack.import_path()},
            state_dir=tmp_path,
            log_path=tmp_path / "supervisor.log",
            timeout_s=2.0,
            now_s=now_s,
        )
    state = stack.read_state(tmp_path)
    assert state is not None
    try:
        assert not control.is_running(state)
        assert leftovers.members(state) == []
    finally:
        control.stop(tmp_path)


def test_a_stack_that_is_late_is_stopped_and_the_late_part_named(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def now_s() -> float:
        """No time passes until the process has said that it waits, and more than enough then."""
        return 1000.0 if log.exists() and "godot" in log.read_text() else 0.0

    with pytest.raises(StackStartError, match=r"(?s)estragon: not ready after 2 s.*waiting for godot"):
        control.spawn_and_wait(
            [sys.executable, "-c", late_stack(tmp_path)],
            env={**os.environ, "PYTHONPATH": stack.import_path()},
            state_dir=tmp_path,
            log_path=tmp_path / "supervisor.log",
            timeout_s=2.0,
            now_s=now_s,
        )
    state = stack.read_state(tmp_path)
    assert state is not None
    assert leftovers.members(state) == []
