"""Job files and plans that hold what no job can have: an error that names the place, and no trace of Python."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from meridian.cli.forecast_commands import read_plan
from meridian.cli.job_files import read_job_file
from meridian.cli.main import main
from meridian.client import Client
from meridian.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("planned: [{job: {name: a}, start: 12}]", r"planned\[0\].start: 12 is no time"),
        ("planned: [{job: {name: a}, start: [1]}]", r"planned\[0\].start: \[1\] is no time"),
        ("planned: [{job: {name: a}, start: 2026-02-30}]", "is not valid YAML: day"),
        ("name: a\ndeadline: 2026-02-30T10:00:00Z", "is not valid YAML: day"),
        ("planned: [{job: job.yaml}]", "is not valid YAML: day"),
        ("[" * 5000, "is not valid YAML"),
    ],
)
def test_what_no_plan_can_hold_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "plan.yaml").write_text(text)
    (tmp_path / "job.yaml").write_text("deadline: 2026-02-30")
    with pytest.raises(InvalidArgumentError, match=said):
        read_plan(tmp_path / "plan.yaml")


def test_times_of_a_plan_are_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("planned: [{job: {name: a}, start: 2026-11-21T10:00:00Z}, {job: {name: b}, start: tomorrow}]")
    assert [item["start"] for item in read_plan(path)] == ["2026-11-21T10:00:00+00:00", "tomorrow"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_run_time_s: .inf", "max_run_time_s: 'inf' is no text, finite number"),
        ("env: {A: [1, .nan]}", r"env.A\[1\]: 'nan' is no text, finite number"),
        ("command: !!set {a, b}", "command: .* is no text, finite number"),
        ("env: {A: !!binary aGVsbG8=}", "env.A: .* is no text, finite number"),
        ("env: &a {A: [*a]}", r"env.A\[0\]: it holds itself"),
        ("- 1", "a job file is a mapping"),
    ],
)
def test_what_json_cannot_say_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError, match=said):
        read_job_file(path)


def test_times_of_a_job_file_are_texts_with_and_without_quotes(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    env = "env: {DAY: 2026-11-23, 2026-11-24: x}"
    for deadline in ("2026-11-23T18:55:00Z", "2026-11-23 19:55:00 +01:00", "'2026-11-23T18:55:00+00:00'"):
        path.write_text(f"name: a\ndeadline: {deadline}\n{env}\n")
        found = read_job_file(path)
        assert datetime.fromisoformat(found["deadline"]) == datetime(2026, 11, 23, 18, 55, tzinfo=UTC)
        assert found["env"] == {"DAY": "2026-11-23", "2026-11-24": "x"}
        json.dumps(found, allow_nan=False)


def test_names_with_brackets_are_shown_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    band = {"low": 60.0, "expected": 60.0, "high": 60.0}
    job = {"name": "a[/b]", "accelerators": 8, "run_time_s": band, "rests_on": "[declared]"}
    offer = {
        "domain_id": "north", "accelerator_type": "H100", "peak_accelerators": None, "accelerator_hours": None,
        "cost_micro_units": None, "currency": "", "end_s": None, "unknown": [], "jobs": [job],
    }  # fmt: skip
    answer = {"best": 0, "offers": [offer], "curve": [], "window_s": 600.0}

    def waveform(_self: Client, _plan: Any, **_: Any) -> Any:
        return answer

    def put_policy(_self: Client, _document: str, **_: Any) -> Any:
        return {"version": "v1", "changes": []}

    monkeypatch.setattr(Client, "waveform", waveform)
    monkeypatch.setattr(Client, "put_policy", put_policy)
    monkeypatch.setenv("MERIDIAN_URL", "http://127.0.0.1:9")
    path = tmp_path / "[bold].yaml"
    path.write_text("name: a")
    done = CliRunner().invoke(main, ["waveform", str(path)])
    assert done.exit_code == 0, done.output
    assert "a[/b]: 8 accelerators" in done.output
    assert "from [declared]" in done.output
    assert "too long" not in done.output
    assert "too long for windows of 60 s: they are of 10 min" in (
        CliRunner().invoke(main, ["waveform", "--window", "60", str(path)]).output
    )
    done = CliRunner().invoke(main, ["policy", "check", str(path)])
    assert done.exit_code == 0, done.output
    assert "[bold].yaml is a sound policy" in done.output.replace("\n", "")
