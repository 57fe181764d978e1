"""The thinking of the array, workflow and service examples, and the job files of all."""

import importlib.util
import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from checkpoints import Checkpoint
from hypothesis import given
from hypothesis import strategies as st
from reporting import report_progress
from transformer import TransformerConfig, initial_parameters, parameter_count

from agent.node.rank_output import parse_report

EXAMPLES = Path(__file__).parents[3] / "examples"
JOB_KEYS = {
    "name", "kind", "command", "working_dir", "env", "resources", "gang", "array", "service", "workflow",
    "checkpoint", "max_restarts", "priority", "max_run_time_s", "model", "placement",
}  # fmt: skip


def _load(path):
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


count_primes = _load(EXAMPLES / "array" / "count_primes.py")
pipeline = _load(EXAMPLES / "workflow" / "pipeline.py")
serve = _load(EXAMPLES / "service" / "serve.py")


@given(st.integers(1, 30), st.integers(0, 3000))
def test_the_slices_of_an_array_cover_every_number_once_and_count_its_primes(slices, limit):
    bounds = [count_primes.slice_bounds(index, slices, limit) for index in range(slices)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == limit
    assert all(left[1] == right[0] for left, right in itertools.pairwise(bounds))
    expected = sum(1 for n in range(2, limit) if all(n % d for d in range(2, math.isqrt(n) + 1)))
    counted = [list(count_primes.segment_counts(*bound))[-1:] for bound in bounds]
    assert sum(last[0][1] for last in counted if last) == expected


def test_the_sieve_agrees_with_the_known_count_across_segments():
    *_, (done, counted) = count_primes.segment_counts(0, 3_000_000)
    assert (done, counted) == (3_000_000, 216_816)


def test_the_ngram_loss_is_that_of_the_formula():
    training, held_out = np.frombuffer(b"abab", np.uint8), np.frombuffer(b"aba", np.uint8)
    unigram = 3 / 260  # a and b: twice each of four, plus one imaginary occurrence of each of 256 bytes
    # as histories, a occurs twice and b once: the last b of the training text is followed by nothing
    expected = -(math.log((2 + unigram) / (2 + 1)) + math.log((1 + unigram) / (1 + 1))) / 2
    assert pipeline.held_out_loss(training, held_out, order=2, alpha=1.0) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_ngram_probabilities_of_all_bytes_add_up_to_one(order):
    training = np.frombuffer(b"the cat sat on the mat, the end", np.uint8)
    context = b"th"[: order - 1]
    total = sum(
        math.exp(-pipeline.held_out_loss(training, np.frombuffer(context + bytes([byte]), np.uint8), order, 0.5))
        for byte in range(256)
    )
    assert total == pytest.approx(1.0, abs=1e-9)


@pytest.fixture
def model():
    config = TransformerConfig(layers=1, hidden=16, heads=2, sequence=8)
    header = {"recipe": {"model": {"layers": 1, "hidden": 16, "heads": 2, "sequence": 8, "vocabulary": 256}}}
    return serve.Model(Checkpoint(Path("x"), 7, header, {"parameters": initial_parameters(config, 0)}))


def test_a_completion_is_greedy_repeatable_and_sees_only_the_last_context(model):
    text = model.complete(b"abcdefgh", 5)
    assert len(text) == 5
    assert model.complete(b"abcdefgh", 5) == text
    assert model.complete(b"what came before: abcdefgh", 5) == text
    assert model.complete(b"abcdefgh" + text[:2], 3) == text[2:]


@pytest.mark.parametrize(
    ("target", "status", "named"),
    [
        ("/nothing", 404, "/health"),
        ("/complete", 400, "prompt"),
        ("/complete?prompt=", 400, "prompt"),
        ("/complete?prompt=" + "a" * 4097, 400, "4097"),
        ("/complete?prompt=a&max_bytes=0", 400, "max_bytes"),
        ("/complete?prompt=a&max_bytes=257", 400, "max_bytes"),
        ("/complete?prompt=a&max_bytes=" + "9" * 5000, 400, "max_bytes"),
        ("/complete?prompt=a&max_bytes=-1", 400, "max_bytes"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(model, target, status, named):
    with pytest.raises(serve.RequestError, match=named) as refused:
        serve.Endpoints(model).answer(target)
    assert refused.value.status == status


def test_before_there_is_a_model_the_service_says_so(model):
    for target in ("/health", "/complete?prompt=a"):
        with pytest.raises(serve.RequestError) as refused:
            serve.Endpoints().answer(target)
        assert refused.value.status == 503
    assert serve.Endpoints(model).answer("/health") == {"status": "ready", "step": 7}
    assert serve.Endpoints(model).answer("/complete?prompt=%C3%A9&max_bytes=3")["prompt"] == "é"


def test_reports_are_what_the_agent_understands_even_when_a_loss_diverges(capsys):
    report_progress(3, 10, {"loss": math.nan, "gradient_norm": math.inf, "tokens_per_s": 5.0})
    report = parse_report(capsys.readouterr().out.rstrip("\n").encode())
    assert report.kind == "progress"
    assert report.body == {"step": 3, "total_steps": 10, "metrics": {"tokens_per_s": 5.0}}


def test_the_documented_lines_are_what_the_agent_understands():
    text = (EXAMPLES.parent / "docs" / "program-protocol.md").read_text()
    lines = [line.strip() for line in text.splitlines() if line.startswith("    @meridian")]
    assert [parse_report(line.encode()).kind for line in lines] == ["progress", "checkpoint"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/job.yaml")), ids=lambda path: path.parent.name)
def test_a_job_file_is_well_formed_and_names_programs_that_exist(path):
    job = yaml.safe_load(path.read_text())
    assert job.keys() <= JOB_KEYS
    kind_keys = {"array", "gang", "workflow", "service"}
    assert job.keys() & kind_keys == {job["kind"]} & kind_keys
    tasks = job["workflow"]["tasks"] if job["kind"] == "workflow" else [job]
    for task in tasks:
        program, script, *_ = task["command"]
        assert program == "python"
        assert (path.parent / script).is_file()
    names = [task["name"] for task in tasks]
    for position, task in enumerate(tasks):
        assert set(task.get("depends_on", [])) <= set(names[:position])


def test_the_job_file_describes_the_model_that_the_program_trains():
    job = yaml.safe_load((EXAMPLES / "train_transformer" / "job.yaml").read_text())
    model = job["model"]
    train = _load(EXAMPLES / "train_transformer" / "train.py")
    options = train._parser().parse_args(job["command"][2:])
    assert (options.layers, options.hidden, options.heads, options.sequence, options.batch) == tuple(
        model[key] for key in ("layers", "hidden", "heads", "sequence", "global_batch")
    )
    config = TransformerConfig(options.layers, options.hidden, options.heads, options.sequence)
    assert model["parameters"] == parameter_count(config)
    assert model["vocabulary"] == config.vocabulary
    array = yaml.safe_load((EXAMPLES / "array" / "job.yaml").read_text())
    assert array["command"][-1] == str(array["array"]["size"])
