"""`meridian simulate` on recorded jobs: what it writes is checked against the trace and the network, not against itself."""

from __future__ import annotations

import csv
import hashlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from meridian.cli.main import main
from meridian.result import read
from simulation.cli import simulate
from simulation.made_networks import philly_network
from simulation.traces import limited, load, scaled
from tests.public_data import public_data

pytestmark = [pytest.mark.external, pytest.mark.timeout(300)]

POLICIES = ("isolated-fifo", "isolated-sjf", "fifo", "sjf", "sjf-predicted", "srtf")
JOBS = 2000


@pytest.fixture(scope="module")
def philly() -> Path:
    return public_data("philly", "october_5_clusters.csv")


@pytest.fixture(scope="module")
def outcome(philly: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """The result and the schedule of 2,000 jobs on 176 accelerators that do not fail, at load 0.9."""
    folder = tmp_path_factory.mktemp("simulate")
    words = ["simulate", "--trace", str(philly), "--format", "philly", "--jobs", str(JOBS), "--load", "0.9"]
    words += ["--domains", "auto", "--accelerators", "176", "--quiet"]
    for name in POLICIES:
        words += ["--policy", name]
    words += [
        "--json",
        str(folder / "out.json"),
        "--schedule",
        str(folder / "out.csv"),
        "--plot",
        str(folder / "out.png"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(main.commands, "simulate", simulate)
        result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    with (folder / "out.csv").open(newline="") as stream:
        return read(folder / "out.json"), list(csv.DictReader(stream))


def value(body: dict[str, Any], subject: str, measure: str, part: str = "all") -> float:
    [row] = [row for row in body["rows"] if (row["subject"], row["measure"], row["slice"]) == (subject, measure, part)]
    return float(row["value"])


def test_schedule_keeps_to_trace_and_network(
    philly: Path, outcome: tuple[dict[str, Any], list[dict[str, str]]]
) -> None:
    """Every job once, never early, for its duration; no node and no domain ever holds more than it has."""
    trace = limited(load(philly, "philly"), JOBS)
    network = philly_network(trace, 176)
    jobs = {job.job_id: job for job in scaled(trace, network, 0.9).jobs}
    capacity = {domain.domain_id: sum(node.accelerators for node in domain.nodes) for domain in network.domains}
    held: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    seen: dict[str, set[str]] = defaultdict(set)
    for line in outcome[1]:
        policy, job = line["policy"], jobs[line["job_id"]]
        start, finish = float(line["first_start_s"]), float(line["finish_s"])
        assert line["state"] == "finished"
        assert float(line["submit_s"]) == pytest.approx(job.submit_s)
        assert start >= job.submit_s - 1e-6
        seen[policy].add(job.job_id)
        domains, nodes = line["domains"].split("|"), line["nodes"].split("|")
        assert len(domains) == 1
        assert len(nodes) == job.ranks if job.ranks > 1 else len(nodes) == 1
        if policy.startswith("isolated"):
            assert domains == [job.home_domain]
        if line["interruptions"] != "0":
            assert policy == "srtf"
            continue
        assert finish - start == pytest.approx(job.duration_s)
        if policy != "srtf":  # of interrupted jobs the schedule only tells the last place
            for place, devices in [(domains[0], job.devices), *((node, job.devices / len(nodes)) for node in nodes)]:
                held[policy][place] += [(start, devices), (finish, -devices)]
    assert seen == {name: set(jobs) for name in POLICIES}
    for places in held.values():
        for place, changes in places.items():
            total = 0.0
            # At one instant what ends comes before what begins.
            for _, change in sorted((round(at, 3), change) for at, change in changes):
                total += change
                assert total <= capacity.get(place, 8) + 1e-6


def test_isolated_first_in_first_out_starts_in_order(outcome: tuple[dict[str, Any], list[dict[str, str]]]) -> None:
    last: dict[str, float] = defaultdict(float)
    for line in outcome[1]:
        if line["policy"] == "isolated-fifo":
            start = float(line["first_start_s"])
            assert start >= last[line["home_domain"]] - 1e-6
            last[line["home_domain"]] = start


def test_figures_follow_from_the_schedule(philly: Path, outcome: tuple[dict[str, Any], list[dict[str, str]]]) -> None:
    body, lines = outcome
    assert body["data"] == [
        {"name": philly.name, "sha256": hashlib.sha256(philly.read_bytes()).hexdigest()},
    ]
    means = {}
    for name in POLICIES:
        mine = [line for line in lines if line["policy"] == name]
        jct = sorted(float(line["finish_s"]) - float(line["submit_s"]) for line in mine)
        means[name] = sum(jct) / JOBS
        assert value(body, name, "jct_mean_h") == pytest.approx(means[name] / 3600)
        assert value(body, name, "jct_p50_h") == pytest.approx((jct[999] + jct[1000]) / 2 / 3600)
        span = max(float(line["finish_s"]) for line in mine) - min(float(line["submit_s"]) for line in mine)
        assert value(body, name, "makespan_h") == pytest.approx(span / 3600)
        part = f"load={0.9:g}"
        assert value(body, name, "jct_mean_h", part) == value(body, name, "jct_mean_h")
    blind = min(("fifo", "sjf-predicted"), key=lambda name: means[name])
    closed = (means[blind] - means["sjf"]) / (means[blind] - means["srtf"])
    assert value(body, "sjf", "jct_gap_closed_share", f"from={blind} to=srtf") == pytest.approx(closed)
    reduction = 1 - means["srtf"] / means["isolated-fifo"]
    assert value(body, "srtf", "jct_mean_reduction_ratio", "against=isolated-fifo") == pytest.approx(reduction)


def test_what_is_known_of_these_policies(outcome: tuple[dict[str, Any], list[dict[str, str]]]) -> None:
    """Heavy-tailed run times: shortest first beats first in, first out by far, and pooling helps it."""
    mean = {name: value(outcome[0], name, "jct_mean_h") for name in POLICIES}
    assert mean["sjf"] < 0.5 * mean["fifo"]
    assert mean["sjf"] < mean["isolated-sjf"]
    assert mean["srtf"] < mean["isolated-sjf"]
    assert value(outcome[0], "srtf", "interruptions_count") > 0
    assert value(outcome[0], "sjf", "interruptions_count") == 0
