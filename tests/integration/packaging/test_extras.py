"""Each service's extra, installed alone in a fresh virtual environment, starts that service on real servers.

Long (an installation per service), so not in `make test`: `pytest -m slow tests/integration/packaging`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from meridian.bus import ensure_topics
from meridian.embedded.probes import http_ok
from meridian.settings import SERVICES
from tests.fixtures_embedded import ProcessSpec, data_directory, free_port, running
from tests.integration.packaging.distributions import ROOT, canonical, closure, requirements_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MIGRATE = """
import asyncio, importlib, sys
from pathlib import Path
from meridian.database import migrate
name, url = sys.argv[1:]
module = importlib.import_module(f"services.{name}.app")
asyncio.run(migrate(url, name, Path(module.__file__).parent / "migrations"))
print(module.__file__)
"""
NAMES = "import importlib.metadata as m, json; print(json.dumps([d.name for d in m.distributions()]))"


def call(*command: str | Path, timeout_s: float = 600, cwd: Path | None = None) -> str:
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=timeout_s, check=False, cwd=cwd
    )
    assert result.returncode == 0, f"{command}: {result.stdout[-1500:]}\n{result.stderr[-3000:]}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel() -> Iterator[Path]:
    """The distribution, built once."""
    with data_directory() as directory:
        call(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", directory, ROOT)
        [built] = directory.glob("*.whl")
        yield built


def installed(wheel: Path, extra: str, directory: Path) -> Path:
    """The interpreter of a fresh environment with the extra in it, and nothing of this one."""
    call(sys.executable, "-m", "venv", directory)
    python = directory / "bin" / "python"
    requirement = f"meridian-network[{extra}] @ file://{wheel}"
    call(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", requirement)
    return python


def distributions_in(python: Path, directory: Path) -> set[str]:
    return {canonical(name) for name in json.loads(call(python, "-I", "-c", NAMES, cwd=directory))}


@pytest.mark.parametrize("name", SERVICES)
async def test_a_service_starts_with_its_extra_alone(
    name: str, wheel: Path, database_url: str, redis_url: str, bootstrap_servers: str, tmp_path: Path
) -> None:
    assert (ROOT / "services" / name / "app.py").exists(), f"there is no services/{name}/app.py"
    python = installed(wheel, name, tmp_path / "venv")
    distributions = distributions_in(python, tmp_path)
    assert not {"torch", "pytest", "grpcio-tools"} & distributions
    assert distributions - {"pip", "setuptools", "meridian-network"} == closure(requirements_of(name))
    await ensure_topics(bootstrap_servers)
    where = call(python, "-I", "-c", MIGRATE, name, database_url, cwd=tmp_path)
    assert where.startswith(str(tmp_path)), "the installed package is used, not the source tree"
    port = free_port(name)
    spec = ProcessSpec(
        name=name,
        argv=(str(python), "-I", "-m", "meridian.service", name),
        cwd=tmp_path,
        log_path=tmp_path / "service.log",
        env={
            "MERIDIAN_KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers,
            "MERIDIAN_DATABASE_URL": database_url,
            "MERIDIAN_REDIS_URL": redis_url,
            "MERIDIAN_DATA_DIR": str(tmp_path / "data"),
            f"MERIDIAN_{name.upper()}_HTTP_PORT": str(port),
        },
        ready=http_ok(f"http://127.0.0.1:{port}/health/ready"),
        ready_timeout_s=240,
    )
    with running(spec):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            assert (await http.get("/health/ready")).text == "ok"
            assert (await http.get("/health/live")).status_code == 200
            assert "meridian_outbox_oldest_seconds" in (await http.get("/metrics")).text


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("agent", ("-c", "import agent.engines.local.engine, agent.run_book, agent.collectors.prometheus")),
        ("cli", ("-m", "meridian.cli.main", "--help")),
        ("embedded", ("-m", "meridian.embedded.broker", "--help")),
    ],
)
def test_other_parts_start_with_their_extra_alone(
    extra: str, command: tuple[str, ...], wheel: Path, tmp_path: Path
) -> None:
    python = installed(wheel, extra, tmp_path / "venv")
    assert "torch" not in distributions_in(python, tmp_path)
    call(python, "-I", *command, cwd=tmp_path)
