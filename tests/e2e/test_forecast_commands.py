"""Phases of a training job, the waveform of a plan and the advice for a domain, from the command line of a running network."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from meridian.client import ApiError
from tests.e2e.test_command_line import answer, meridian
from tests.network import Network

pytestmark = pytest.mark.timeout(900)

# The learning rate rises in every report, and the loss falls: the run is in its warm-up to the end.
PROGRAM = """
import json, time
for step in range(40):
    metrics = {"loss": 5 / (step + 1), "learning_rate": (step + 1) / 40}
    print("@meridian " + json.dumps({"progress": {"step": step, "total_steps": 400, "metrics": metrics}}), flush=True)
    time.sleep(0.12)
"""
LAST_STEP = 39
MODEL = """
model: {parameters: 1000000, layers: 2, hidden: 64, heads: 2, sequence: 128, vocabulary: 1000, global_batch: 4, steps: 400,
        warm_up_steps: 100}
"""


def test_the_phase_of_a_training_job_is_shown(running: Network) -> None:
    (running.folder / "train.py").write_text(PROGRAM, encoding="utf-8")
    path = running.folder / "train.yaml"
    path.write_text(
        f"name: train\nkind: gang\ngang: {{ranks: 1}}\nresources: {{accelerators: 1}}\ncommand: [python, train.py]\n{MODEL}",
        encoding="utf-8",
    )
    job_id = answer(running, "submit", str(path), "--wait")["job_id"]

    def told() -> bool:
        with contextlib.suppress(ApiError):
            return [unit["step"] for unit in running.client.phases(job_id)["units"]] == [LAST_STEP]
        return False

    running.until(told, "the last step of the job")
    found = answer(running, "phases", job_id)
    [unit] = found["units"]
    assert found["schedule_known"] is True
    assert (unit["phase"], unit["total_steps"]) == ("warm_up", 400)
    # Told until now, the declared rest of the warm-up, and what comes behind it.
    assert [need["phase"] for need in unit["demand"]][-2:] == ["warm_up", "unknown"]
    assert unit["demand"][-1]["end_step"] == 400
    shown = meridian(running, "phases", job_id, COLUMNS="200")
    assert "warm_up since step" in shown.stdout
    assert "training, unit 0: warm_up" in meridian(running, "job", job_id, COLUMNS="200").stdout
    assert meridian(running, "phases", "job-that-never-was").returncode == 5


def test_a_plan_is_told_before_it_is_submitted(running: Network, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: long\nkind: gang\ngang: {ranks: 2}\nresources: {accelerators: 1}\ncommand: ['true']\nmax_run_time_s: 7200\n",
        encoding="utf-8",
    )
    plan = tmp_path / "plan.yaml"
    plan.write_text("planned:\n  - {job: job.yaml, start: 2099-01-01T00:00:00Z, copies: 3}\n", encoding="utf-8")
    found = answer(running, "waveform", str(job))
    best = found["offers"][found["best"]]
    assert best["jobs"][0]["rests_on"] == "time limit"
    assert best["accelerator_hours"]["expected"] == pytest.approx(2.0, rel=0.01)
    shown = meridian(running, "waveform", str(job), COLUMNS="220")
    assert shown.returncode == 0, shown.stderr
    assert best["domain_id"] in shown.stdout
    bad = tmp_path / "bad.yaml"
    bad.write_text("planned:\n  - {start: now}\n", encoding="utf-8")
    refused = meridian(running, "waveform", str(bad))
    assert refused.returncode == 2
    assert "planned[0]" in refused.stderr

    domain = best["domain_id"]
    advised = answer(running, "advice", domain, str(plan), "--hours", "12")
    assert advised["capacity_accelerators"] > 0
    shown = meridian(running, "advice", domain, COLUMNS="220")
    assert shown.returncode == 0, shown.stderr
    assert "as submitted: peak" in shown.stdout
    assert meridian(running, "advice", "nowhere").returncode == 5
