"""The array, workflow and service examples as processes."""

import json
import signal
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import yaml

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_elements_of_the_array_add_up_to_the_known_number_of_primes(launcher):
    ranks = [
        launcher.rank(
            "array",
            ["count_primes.py", "--limit", "10000000", "--slices", "4"],
            {"MERIDIAN_ARRAY_INDEX": str(index)},
        )
        for index in range(4)
    ]
    assert [rank.wait() for rank in ranks] == [0] * 4
    last = [rank.messages("progress")[-1] for rank in ranks]
    assert all(entry["step"] == entry["total_steps"] for entry in last)
    assert sum(entry["metrics"]["primes"] for entry in last) == 664_579


def test_an_index_outside_the_array_is_refused(launcher):
    rank = launcher.rank("array", ["count_primes.py", "--slices", "4"], {"MERIDIAN_ARRAY_INDEX": "4"})
    assert rank.wait() == 2
    assert "MERIDIAN_ARRAY_INDEX=4" in rank.lines[-1]


def _task(launcher, task, work_dir):
    return launcher.rank("workflow", task["command"][1:], {"MERIDIAN_WORK_DIR": str(work_dir)})


def test_the_workflow_finds_the_better_model_and_may_be_run_again(launcher, tmp_path):
    tasks = {
        task["name"]: task
        for task in yaml.safe_load((EXAMPLES / "workflow" / "job.yaml").read_text())["workflow"]["tasks"]
    }
    for _ in range(2):
        assert _task(launcher, tasks["prepare"], tmp_path).wait() == 0
        sweeps = [_task(launcher, tasks[name], tmp_path) for name in tasks["merge"]["depends_on"]]
        assert [sweep.wait() for sweep in sweeps] == [0, 0]
        assert _task(launcher, tasks["merge"], tmp_path).wait() == 0
    result = json.loads(next(tmp_path.glob("work/*/result.json")).read_text())
    assert result["best"]["order"] == 3
    assert [candidate["order"] for candidate in result["candidates"]] == [2, 3]
    assert 1.0 < result["best"]["loss"] < result["candidates"][0]["loss"] < 3.0
    for sweep, candidate in zip(sweeps, result["candidates"], strict=True):
        assert candidate["loss"] == min(entry["metrics"]["loss"] for entry in sweep.messages("progress"))
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


def test_a_step_out_of_order_says_what_is_missing(launcher, tmp_path):
    for step, missing in (("sweep", "text.npz"), ("merge", "sweep-2.json")):
        rank = launcher.rank("workflow", ["pipeline.py", step], {"MERIDIAN_WORK_DIR": str(tmp_path)})
        assert rank.wait() == 1
        assert missing in rank.lines[-1]


def _get(port, target):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{target}", timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except urllib.error.URLError:
        return 0, None


def _serve(launcher, port, checkpoint_dir, *arguments):
    return launcher.rank(
        "service",
        ["serve.py", *arguments],
        {"MERIDIAN_SERVICE_PORT": str(port), "MERIDIAN_CHECKPOINT_DIR": str(checkpoint_dir)},
    )


def test_the_service_trains_serves_stops_and_serves_again_at_once(launcher, until, tmp_path, free_port):
    service = _serve(launcher, free_port, tmp_path, "--steps", "60")
    until(lambda: _get(free_port, "/health")[0] == 200, "the model")
    query = urllib.parse.urlencode({"prompt": "The statement", "max_bytes": 20})
    status, answer = _get(free_port, f"/complete?{query}")
    assert status == 200
    assert answer["prompt"] == "The statement"
    assert len(answer["completion"].encode()) >= 20
    assert answer["step"] == 60
    assert _get(free_port, "/complete?prompt=a&max_bytes=x")[0] == 400
    service.process.send_signal(signal.SIGTERM)
    assert service.wait() == 143

    again = _serve(launcher, free_port, tmp_path, "--steps", "60")
    until(lambda: _get(free_port, "/health")[0] == 200, "the restarted service")
    assert _get(free_port, f"/complete?{query}")[1] == answer
    assert not again.messages("progress")


def test_sigterm_while_the_service_trains_saves_what_it_has(launcher, until, tmp_path, free_port):
    service = _serve(launcher, free_port, tmp_path, "--steps", "100000")
    until(lambda: _get(free_port, "/health")[0] == 503, "the service to listen")
    until(lambda: service.last_step() >= 3, "step 3")
    service.process.send_signal(signal.SIGTERM)
    assert service.wait() == 143
    assert service.messages("checkpoint")[-1]["step"] == service.last_step()


def test_a_checkpoint_that_cannot_be_read_ends_the_service_with_its_name(launcher, tmp_path, free_port):
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"not an archive")
    service = _serve(launcher, free_port, tmp_path, "--checkpoint", str(broken))
    assert service.wait() == 2
    assert any("broken.npz" in line for line in service.lines)
