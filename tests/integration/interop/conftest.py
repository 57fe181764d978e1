"""The third-party cloud of `examples/third_party_cloud`, installed once per session outside of the source tree."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.fixtures_embedded import data_directory

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "examples" / "third_party_cloud"

StartCloud = Callable[..., AbstractContextManager["subprocess.Popen[bytes]"]]


@pytest.fixture(scope="session")
def cloud_program() -> Iterator[Path]:
    """The folder of the client with its npm packages; skipped where there is no Node.js."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js and npm are not installed")
    with data_directory() as directory:
        program = directory / "cloud"
        shutil.copytree(SOURCE, program, ignore=shutil.ignore_patterns("node_modules", "partner-data"))
        result = subprocess.run(
            ["npm", "ci", "--no-audit", "--no-fund"],
            cwd=program,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        if result.returncode != 0:
            pytest.fail(f"npm could not install the client's packages: {result.stderr[-500:]}")
        yield program


@pytest.fixture
def start_cloud(cloud_program: Path, tmp_path: Path) -> StartCloud:
    """``with start_cloud(bootstrap_servers, PARTNER_EVENT_MODE=...) as process:`` runs the client until the block ends."""

    @contextmanager
    def start(bootstrap_servers: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
        environment = {
            **os.environ,
            "MERIDIAN_KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers,
            "MERIDIAN_CONTRACTS": str(ROOT),
            "PARTNER_DATA_DIR": str(tmp_path / "partner"),
            **variables,
        }
        with (tmp_path / "cloud.log").open("ab") as log:
            process = subprocess.Popen(["node", "cloud.js"], cwd=cloud_program, env=environment, stdout=log, stderr=log)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            print((tmp_path / "cloud.log").read_text(errors="replace")[-4000:])

    return start
