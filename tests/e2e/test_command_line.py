"""The command line as a user has it: a process of its own, tables and JSON, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.network import Network

pytestmark = pytest.mark.timeout(900)


def meridian(running: Network, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "meridian.cli.main", "--data-dir", str(running.data_dir), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )


def answer(running: Network, *arguments: str) -> Any:
    result = meridian(running, *arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def job_file(running: Network) -> Path:
    path = running.folder / "hello.yaml"
    path.write_text("name: hello\nkind: task\ncommand: [sh, -c, 'echo hello from $MERIDIAN_NODE']\n", encoding="utf-8")
    return path


def test_a_job_from_file_to_log(running: Network, job_file: Path) -> None:
    job = answer(running, "submit", str(job_file), "--wait")
    assert job["state"] == "succeeded"
    assert job["spec"]["working_dir"] == str(running.folder)
    job_id = job["job_id"]
    assert answer(running, "job", job_id)["units"][0]["state"] == "succeeded"
    assert job_id in [item["job_id"] for item in answer(running, "jobs")]
    node = job["units"][0]["placement"][0]["node_id"]
    assert meridian(running, "logs", job_id).stdout == f"hello from {node}\n"
    assert answer(running, "explain", job_id)
    expected = ("JobSubmitted", "JobQueued", "JobPlaced", "RunStarted", "RunFinished", "JobFinished")
    running.trace_with(job_id, *expected)
    kinds = [event["type"] for event in answer(running, "trace", job_id)["events"]]
    assert kinds[0] == "JobSubmitted"
    assert set(expected) <= set(kinds)


def test_the_tables_name_what_they_show(running: Network, job_file: Path) -> None:
    job_id = answer(running, "submit", str(job_file), "--wait")["job_id"]
    for arguments, expected in [
        (("domains",), "guizhou"),
        (("nodes",), "guizhou-1"),
        (("nodes", "guizhou-1"), "guizhou"),
        (("jobs",), job_id),
        (("job", job_id), "succeeded"),
        (("status",), "scheduler"),
        (("trace", job_id), "JobPlaced"),
        (("explain", job_id), "polic"),
        (("incidents",), ""),
        (("forecasts",), ""),
    ]:
        result = meridian(running, *arguments, COLUMNS="200")
        assert result.returncode == 0, result.stderr
        assert expected in result.stdout, (arguments, result.stdout)


def test_submitting_twice_with_one_key_gives_one_job(running: Network, job_file: Path) -> None:
    first, second = (answer(running, "submit", str(job_file), "--idempotency-key", "once")["job_id"] for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("name: x\nkind: task\n", "command"),
        ("name: x\nkind: task\ncommand: [echo]\nresources: {accelerators: -1}\n", "accelerators"),
        ("name: x\nkind: task\ncommand: [echo]\nresources: {accelerators: 100000}\n", "accelerators"),
        ("name: x\nkind: dance\ncommand: [echo]\n", "kind"),
        ("name: x\nkind: task\ncommand: [echo]\nsurprise: 1\n", "surprise"),
        ("- a list\n", "mapping"),
        ("name: [unclosed\n", "YAML"),
    ],
)
def test_bad_files_name_the_field_and_submit_nothing(
    running: Network, tmp_path: Path, content: str, named: str
) -> None:
    before = len(answer(running, "jobs", "--limit", "1000"))
    path = tmp_path / "bad.yaml"
    path.write_text(content, encoding="utf-8")
    result = meridian(running, "submit", str(path))
    assert result.returncode == 2
    assert named in result.stderr
    assert len(answer(running, "jobs", "--limit", "1000")) == before


def test_exit_codes_tell_what_went_wrong(running: Network, tmp_path: Path, job_file: Path) -> None:
    assert meridian(running, "job", "job-that-never-was").returncode == 5
    assert meridian(running, "jobs", MERIDIAN_URL="http://127.0.0.1:9").returncode == 3
    assert meridian(running, "jobs", MERIDIAN_URL=running.client.url, MERIDIAN_TOKEN="wrong").returncode == 4
    assert meridian(running, "submit", str(tmp_path / "absent.yaml")).returncode == 2
    failing = tmp_path / "fails.yaml"
    failing.write_text("name: f\nkind: task\ncommand: ['false']\nmax_restarts: 0\n", encoding="utf-8")
    assert meridian(running, "submit", str(failing), "--wait").returncode == 1


def test_up_again_leaves_the_running_network_alone(running: Network) -> None:
    pids = {item.name: item.pid for item in running.state.processes}
    assert meridian(running, "up").returncode == 0
    assert {item.name: item.pid for item in running.state.processes} == pids
