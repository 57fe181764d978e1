"""A policy with a planner on the whole network, set by the command line: real programs take turns and lose nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_command_line import answer, meridian
from tests.e2e.test_main_job import losses
from tests.network import PATIENCE_S, Network

pytestmark = pytest.mark.timeout(900)

TRAINING = Path(__file__).resolve().parents[2] / "examples" / "train_transformer"
POLICY = """\
extends: balanced
name: turns
planner: gavel
interval_s: 3
restarts: {least_run_s: 4, stop_grace_s: 60, stop_timeout_s: 90}
"""
STEPS = 80


@pytest.fixture
def turns(running: Network) -> Iterator[str]:
    """Gavel every three seconds; afterwards the policy is as it was."""
    file = running.folder / "turns.yaml"
    file.write_text(POLICY, encoding="utf-8")
    version = answer(running, "policy", "set", str(file))["version"]
    try:
        yield version
    finally:
        assert meridian(running, "policy", "reset").returncode == 0


def job(number: int) -> dict[str, Any]:
    """Half of a domain of four nodes."""
    command = ["python", "train.py", "--steps", str(STEPS), "--step-time-s", "0.15", "--checkpoint-every", "10"]
    small = ["--layers", "1", "--hidden", "16", "--heads", "2", "--seq", "16", "--batch", "8"]
    return {
        "name": f"turn-{number}",
        "kind": "gang",
        "command": [*command, *small],
        "working_dir": str(TRAINING),
        "resources": {"cpus": 0.1, "memory_bytes": 2**28, "accelerators": 8},
        "gang": {"ranks": 2},
        "placement": {"domains": ["beijing"]},
    }


def steps_made(running: Network, job_id: str) -> list[int]:
    """Steps of all runs of a job, as their first ranks tell them."""
    logs = [path.read_text() for path in running.data_dir.glob(f"agents/*/logs/{job_id}.0.*/rank-0.log")]
    return [step for text in logs for step in losses(text)]


def test_three_jobs_take_turns_on_room_for_two(running: Network, turns: str) -> None:
    jobs = [running.client.submit(job(number))["job_id"] for number in range(3)]
    ended = [running.client.wait(job_id, timeout_s=4 * PATIENCE_S) for job_id in jobs]
    assert [item["state"] for item in ended] == ["succeeded"] * 3
    epochs = [item["units"][0]["epoch"] for item in ended]
    assert sum(epochs) > 3, "nobody was taken off"
    said = []
    for job_id, epoch in zip(jobs, epochs, strict=True):
        events = running.trace_with(job_id, "RunFinished", "JobFinished")["events"]
        kinds = [event["type"] for event in events]
        assert kinds.count("RunStarted") <= epoch
        assert kinds.count("JobPreempted") == epoch - 1
        assert kinds.count("RunFinished") == kinds.count("JobFinished") == 1
        # Each run began where the one before had stopped: no step was made twice, none is missing.
        placed = [event["data"] for event in events if event["type"] == "JobPlaced"]
        steps = [int(item["restore_step"]) for item in placed]
        assert steps == sorted(steps)
        assert sorted(steps_made(running, job_id)) == list(range(1, STEPS + 1))
        assert {item["policy_version"] for item in placed} == {turns}
        explained = running.client.explanation(job_id)
        assert explained["units"][0]["program_failures"] == explained["units"][0]["recoveries"] == 0
        said += [item["explanation"].get("plan", "") for item in explained["decisions"]]
    assert any(text.startswith("its turn in Gavel's las round") for text in said)


def test_a_share_of_an_accelerator_reaches_the_program(running: Network) -> None:
    """From the job file over the scheduler and the agent into the environment."""
    spec = {
        "name": "quarter",
        "kind": "task",
        "command": ["sh", "-c", "echo share=$MERIDIAN_DEVICE_SHARE"],
        "working_dir": str(running.folder),
        "resources": {"cpus": 0.1, "accelerators": 1, "accelerator_milli": 250},
    }
    done = running.client.wait(running.client.submit(spec)["job_id"], timeout_s=PATIENCE_S)
    assert done["state"] == "succeeded", done
    assert done["spec"]["resources"]["accelerator_milli"] == 250
    assert done["units"][0]["placement"][0]["accelerator_milli"] == 250
    assert running.client.log(done["job_id"])["text"] == "share=0.25\n"
