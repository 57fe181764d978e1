"""Which setting serves a workload under the name `meridian`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from simulation.cli import simulate
from simulation.made_networks import uniform
from simulation.model import Network, Throughputs, Trace, TraceJob
from simulation.policies import SETTINGS
from simulation.suited import suited

PLANNED = ("completion-blind", "elastic-exact")


def network(*models: str) -> Network:
    made = uniform(len(models), 1, 4)
    for node, model in zip(made.nodes, models, strict=True):
        node.model = model
    return made


def job(number: int, **fields: object) -> TraceJob:
    return replace(TraceJob(f"j{number}", float(number), 60.0, accelerators=1, profile="p", work=60.0), **fields)  # type: ignore[arg-type]


def trace(*jobs: TraceJob, fast: float = 2.0) -> Trace:
    rates = Throughputs()
    rates.rates["p", 1] = {"v100": fast, "k80": 1.0}
    rates.rates["p", 2] = {"v100": 2 * fast, "k80": 2.0}
    return Trace("t", list(jobs), rates)


UNLIKE = trace(job(0), job(1))
ELASTIC = trace(*(job(number, min_ranks=1, max_ranks=2) for number in range(2)))


@pytest.mark.parametrize(
    ("workload", "models", "expected"),
    [
        (UNLIKE, ("v100", "k80"), "completion-blind"),
        (UNLIKE, ("v100", "v100"), ""),
        (trace(job(0), fast=1.04), ("v100", "k80"), ""),
        (trace(job(0, accelerator_types=("k80",)), job(1, accelerator_types=("k80",))), ("v100", "k80"), ""),
        (trace(job(0), job(1, profile="", work=0.0)), ("v100", "k80"), "completion-blind"),
        (trace(job(0), job(1, profile=""), job(2, profile="")), ("v100", "k80"), ""),
        (trace(job(0), job(1, accelerators=0), job(2, accelerators=0)), ("v100", "k80"), "completion-blind"),
        (replace(UNLIKE, throughputs=None), ("v100", "k80"), ""),
        (ELASTIC, ("v100", "v100"), "elastic-exact"),
        (ELASTIC, ("v100", "k80"), "elastic-exact"),
        (trace(job(0, min_ranks=1, max_ranks=2), job(1), job(2)), ("v100", "k80"), "completion-blind"),
        (trace(job(0, min_ranks=1, max_ranks=1)), ("v100", "v100"), ""),
    ],
)
def test_what_half_of_the_jobs_are_decides(workload: Trace, models: tuple[str, ...], expected: str) -> None:
    own = SETTINGS["meridian"]
    found = suited(own, network(*models), workload)
    assert (found.name, found.follows) == ("meridian", expected)
    assert found.policy == (SETTINGS[expected] if expected else own).policy
    assert found.knowledge == (SETTINGS[expected] if expected else own).knowledge


@pytest.mark.parametrize("name", [name for name, each in SETTINGS.items() if each.suits is None])
def test_no_baseline_is_changed(name: str) -> None:
    assert suited(SETTINGS[name], network("v100", "k80"), UNLIKE) is SETTINGS[name]


def test_idle_nodes_sleep_as_before() -> None:
    own = SETTINGS["meridian-sleeping"]
    found = suited(own, network("v100", "k80"), UNLIKE)
    assert (found.sleep_after_s, found.follows) == (own.sleep_after_s, "completion-blind")
    assert SETTINGS["meridian-energy"].suits is None


@pytest.mark.parametrize("name", PLANNED)
def test_the_named_settings_are_ours(name: str) -> None:
    assert not SETTINGS[name].baseline


def test_the_command_says_whom_it_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rates = {chip: {"('p', 1)": {"null": rate}} for chip, rate in (("v100", 4.0), ("k80", 1.0))}
    Path("rates.json").write_text(json.dumps(rates))
    Path("trace.csv").write_text("job_id,submit_s,duration_s,accelerators,profile,work\na,0,900,1,p,3600\n")
    nodes = "nodes: [{count: 1, cpus: 8, accelerators: 1, model: %s}]"
    Path("network.yaml").write_text(
        f"domains:\n  - {{id: slow, {nodes % 'k80'}}}\n  - {{id: fast, {nodes % 'v100'}}}\n"
        "links: [{from: slow, to: fast, bandwidth_bytes_per_s: 1000000000, both_ways: true}]\n"
    )
    words = [
        "--trace",
        "trace.csv",
        "--format",
        "csv",
        "--option",
        "throughputs=rates.json",
        "--domains",
        "network.yaml",
    ]
    ran = CliRunner().invoke(simulate, [*words, "--policy", "meridian", "--schedule", "runs.csv", "--quiet"])
    assert ran.exit_code == 0, ran.output
    assert "meridian follows completion-blind here" in ran.output
    assert "fast" in Path("runs.csv").read_text()
