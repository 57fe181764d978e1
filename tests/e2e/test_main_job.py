"""The main job end to end: submitted over REST, run as real processes, moved off a dead node, finished, explained."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meridian.cli.job_files import read_job_file
from tests.network import PATIENCE_S, Network

pytestmark = pytest.mark.timeout(900)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# The program's own log: step,loss,learning_rate,gradient_norm,step_s
LOSS = re.compile(r"^(\d+),([-\d.e]+),", re.MULTILINE)


def training(steps: int, step_time_s: float) -> dict[str, Any]:
    spec = read_job_file(EXAMPLES / "train_transformer" / "job.yaml")
    spec["command"] = [
        "python", "train.py", "--steps", str(steps), "--checkpoint-every", "10", "--step-time-s", str(step_time_s), "--seed", "7",
    ]  # fmt: skip
    return spec


def until(
    running: Network, job_id: str, reached: Callable[[dict[str, Any]], bool], timeout_s: float = PATIENCE_S
) -> dict[str, Any]:
    deadline_s = time.monotonic() + timeout_s
    while True:
        job = running.client.job(job_id)
        if job["units"] and reached(job["units"][0]):
            return job["units"][0]
        assert job["state"] not in {"failed", "cancelled"}, job
        assert time.monotonic() < deadline_s, job
        time.sleep(0.05)


def whole_log(running: Network, job_id: str) -> str:
    text, offset = "", 0
    while True:
        piece = running.client.log(job_id, offset=offset)
        text += piece["text"]
        if piece["next_offset"] == offset:
            return text
        offset = piece["next_offset"]


def losses(text: str) -> dict[int, str]:
    return {int(step): loss for step, loss in LOSS.findall(text)}


def test_a_killed_node_costs_a_resumption_and_changes_no_loss(running: Network) -> None:
    steps = 60
    undisturbed = running.client.submit(training(steps, 0.0))
    assert running.client.wait(undisturbed["job_id"], timeout_s=2 * PATIENCE_S)["state"] == "succeeded"
    expected = losses(whole_log(running, undisturbed["job_id"]))
    assert sorted(expected) == list(range(1, steps + 1))

    # Long enough that nobody who stands still for some seconds finds it finished.
    job_id = running.client.submit(training(steps, 0.2))["job_id"]
    unit = until(running, job_id, lambda unit: unit["checkpoint"] is not None and unit["step"] >= 15)
    victim = unit["placement"][-1]["node_id"]
    running.client.kill_node(victim)
    job = running.client.wait(job_id, timeout_s=2 * PATIENCE_S)
    assert job["state"] == "succeeded", job
    # What the killed run had said until then, which its domain keeps; and what the last one said.
    [killed] = running.data_dir.glob(f"agents/*/logs/{job_id}.0.1/rank-0.log")
    before = losses(killed.read_text())
    after = losses(whole_log(running, job_id))

    final = job["units"][0]
    assert final["epoch"] == 2
    assert victim not in {rank["node_id"] for rank in final["placement"]}
    assert min(after) > 1, "the resumed run started from the beginning"
    assert {**before, **after} == expected
    assert all(before[step] == after[step] for step in before.keys() & after.keys())

    def incident() -> bool:
        return any(item["node_id"] == victim and item["recoveries"] >= 1 for item in running.client.incidents())

    running.until(incident, f"an incident of {victim} with a recovery")
    trace = running.trace_with(job_id, "RunStarted", "RunStarted", "RunFinished", "JobFinished")
    kinds = [event["type"] for event in trace["events"]]
    assert kinds.count("RunStarted") == 2
    assert kinds.count("JobFinished") == 1
    assert len(trace["trace_ids"]) == 1
    assert running.client.explanation(job_id)
    # What the next test needs: the node is repaired and takes work again.
    running.until(lambda: running.client.node(victim)["state"] in {"healthy", "busy"}, f"{victim} in health")


def test_the_first_step_comes_soon_after_submission(running: Network) -> None:
    started_s = time.monotonic()
    job_id = running.client.submit(training(10, 0.0))["job_id"]
    until(running, job_id, lambda unit: unit["step"] > 0)
    print(f"\nfirst step {time.monotonic() - started_s:.2f} s after submission")
    assert running.client.wait(job_id, timeout_s=PATIENCE_S)["state"] == "succeeded"


@pytest.mark.parametrize("example", ["array", "workflow"])
def test_the_other_examples_finish(running: Network, example: str) -> None:
    job = running.client.submit(read_job_file(EXAMPLES / example / "job.yaml"))
    final = running.client.wait(job["job_id"], timeout_s=3 * PATIENCE_S)
    assert final["state"] == "succeeded", final
    assert final["units_total"] > 1

    def all_units() -> bool:
        return running.client.job(job["job_id"])["units_succeeded"] == final["units_total"]

    running.until(all_units, "the ends of all units")


def test_a_service_runs_until_it_is_cancelled(running: Network) -> None:
    job_id = running.client.submit(read_job_file(EXAMPLES / "service" / "job.yaml"))["job_id"]
    until(running, job_id, lambda unit: unit["state"] == "running")
    time.sleep(1.0)
    assert running.client.job(job_id)["state"] == "running"
    running.client.cancel(job_id, "enough")
    assert running.client.wait(job_id, timeout_s=PATIENCE_S)["state"] == "cancelled"


def test_a_failing_program_is_restarted_and_then_fails_with_its_reason(running: Network) -> None:
    spec = {
        "name": "fails",
        "kind": "task",
        "command": ["sh", "-c", "echo before the end; exit 3"],
        "max_restarts": 1,
        "working_dir": str(running.folder),
    }
    job = running.client.wait(running.client.submit(spec)["job_id"], timeout_s=PATIENCE_S)
    assert job["state"] == "failed"
    assert job["restarts"] == 1
    assert "3" in job["reason"]
    running.until(lambda: "before the end" in whole_log(running, job["job_id"]), "what the program said")
