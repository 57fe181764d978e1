"""`meridian simulate` on traces of a few jobs: schedules worked out by hand, bad input, files, repeatability."""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from meridian.cli.main import main
from meridian.result import read
from simulation.cli import simulate
from simulation.measures import Measures
from simulation.model import Network, SimDomain
from simulation.policies import SETTINGS
from simulation.report import measure_name
from simulation.schedule import SCHEDULE_COLUMNS

NODE = """
name: one
domains:
  - id: only
    nodes: [{count: 1, cpus: 64, accelerators: 2, model: v100}]
"""
# A needs one accelerator of two for 10 s, then B both for 10 s; C (5 s) and D (20 s) one each.
TRACE = """job_id,submit_s,duration_s,accelerators,restart_cost_s
a,0,10,1,0
b,1,10,2,0
c,2,5,1,0
d,3,20,1,0
"""
TWO = """
domains:
  - {id: left, nodes: [{count: 1, cpus: 8, accelerators: 1, model: v100}]}
  - {id: right, nodes: [{count: 1, cpus: 8, accelerators: 1, model: v100}]}
links: [{from: left, to: right, bandwidth_bytes_per_s: 1000000, both_ways: true}]
"""
FAILING = """
domains:
  - id: only
    mtbf_node_s: 40
    mttr_node_s: 5
    nodes: [{count: 2, cpus: 8, accelerators: 2, model: v100}]
"""
Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs the command in a folder with trace.csv and network.yaml."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(main.commands, "simulate", simulate)
    Path("trace.csv").write_text(TRACE)
    Path("network.yaml").write_text(NODE)

    def run(*words: str, trace: str = "trace.csv", domains: str = "network.yaml") -> Result:
        command = ["simulate", "--trace", trace, "--format", "csv", "--domains", domains, *words]
        return CliRunner().invoke(main, command)

    return run


def policies(*names: str) -> list[str]:
    return [word for name in names for word in ("--policy", name)]


def rows_of(path: str = "out.json") -> dict[tuple[str, str, str], dict[str, Any]]:
    return {(row["subject"], row["measure"], row["slice"]): row for row in read(path)["rows"]}


def schedule() -> dict[tuple[str, str], dict[str, str]]:
    with Path("out.csv").open(newline="") as stream:
        return {(line["policy"], line["job_id"]): line for line in csv.DictReader(stream)}


def test_schedules_worked_out_by_hand(call: Call) -> None:
    """Start and finish of every job.

    FIFO: b waits for a, c and d for b. EASY: c fits before b's reservation at 10, d (20 s) would delay b. SJF: b never
    finds both free before d, started at 7, ends. SRTF: at 10 b (10 s) takes off d (17 s left of 20), which ends at 37.
    """
    result = call(*policies("fifo", "easy", "sjf", "srtf"), "--json", "out.json", "--schedule", "out.csv")
    assert result.exit_code == 0, result.output
    expected = {
        "fifo": {"a": (0, 10), "b": (10, 20), "c": (20, 25), "d": (20, 40)},
        "easy": {"a": (0, 10), "b": (10, 20), "c": (2, 7), "d": (20, 40)},
        "sjf": {"a": (0, 10), "b": (27, 37), "c": (2, 7), "d": (7, 27)},
        "srtf": {"a": (0, 10), "b": (10, 20), "c": (2, 7), "d": (7, 37)},
    }
    submitted = {"a": 0, "b": 1, "c": 2, "d": 3}
    lines, rows = schedule(), rows_of()
    for policy, jobs in expected.items():
        for job_id, (start, finish) in jobs.items():
            line = lines[policy, job_id]
            assert (float(line["first_start_s"]), float(line["finish_s"])) == pytest.approx((start, finish)), line
            assert float(line["jct_s"]) == pytest.approx(finish - submitted[job_id])
            assert (line["state"], line["domains"], line["nodes"]) == ("finished", "only", "only-0")
        mean_s = sum(finish - submitted[job_id] for job_id, (_, finish) in jobs.items()) / 4
        assert rows[policy, "jct_mean_h", "all"]["value"] * 3600 == pytest.approx(mean_s)
        assert rows[policy, "jobs_finished_count", "all"]["value"] == 4
    assert lines["srtf", "d"]["interruptions"] == "1"
    assert float(lines["srtf", "d"]["wait_s"]) == pytest.approx(4 + 10)
    # FIFO: 55 accelerator-seconds held of 2 for 40 s.
    assert rows["fifo", "allocated_share_all", "all"]["value"] == pytest.approx(55 / 80)
    assert rows["fifo", "makespan_h", "all"]["value"] * 3600 == pytest.approx(40)


def test_gap_to_the_oracle(call: Call) -> None:
    """Mean JCT: FIFO (10+19+23+37)/4 = 22.25, SJF 18.75, EASY 17.75, SRTF 17: SJF closes 3.5 of 5.25."""
    result = call(*policies("fifo", "easy", "sjf", "srtf"), "--json", "out.json")
    part = "from=fifo to=srtf"
    rows = rows_of()
    assert rows["sjf", "jct_gap_closed_share", part]["value"] == pytest.approx(3.5 / 5.25)
    assert rows["easy", "jct_gap_closed_share", part]["value"] == pytest.approx(4.5 / 5.25)
    assert rows["fifo", "jct_gap_closed_share", part]["value"] == pytest.approx(0)
    assert rows["srtf", "jct_gap_closed_share", part]["value"] == pytest.approx(1)
    assert "gap from fifo to srtf closed" in result.output
    assert "66.7 %" in result.output
    # Against the best pooled baseline but the oracle.
    assert rows["sjf", "jct_mean_reduction_ratio", "against=easy"]["value"] == pytest.approx(1 - 18.75 / 17.75)


def test_isolated_domains(call: Call) -> None:
    """Two jobs of 10 s from the left: alone one waits (10 and 20 s), pooled it goes to the right (10 and 10 s)."""
    Path("network.yaml").write_text(TWO)
    Path("trace.csv").write_text("submit_s,duration_s,accelerators,home_domain,tenant\n0,10,1,left,x\n0,10,1,left,y\n")
    result = call(*policies("isolated-fifo", "fifo"), "--json", "out.json", "--schedule", "out.csv")
    assert result.exit_code == 0, result.output
    rows = rows_of()
    assert rows["isolated-fifo", "jct_mean_h", "all"]["value"] * 3600 == pytest.approx(15)
    assert rows["fifo", "jct_mean_reduction_ratio", "against=isolated-fifo"]["value"] == pytest.approx(1 / 3)
    assert rows["isolated-fifo", "jct_mean_h", "tenant=y"]["value"] * 3600 == pytest.approx(20)
    assert rows["isolated-fifo", "accelerator_hours", "domain=right"]["value"] == 0
    assert rows["fifo", "accelerator_hours", "domain=right"]["value"] * 3600 == pytest.approx(10)
    # Slowdowns 1 and 2: (1 + 2)^2 / (2 x (1 + 4)).
    assert rows["isolated-fifo", "fairness_jain_index", "all"]["value"] == pytest.approx(0.9)
    assert {line["domains"] for (policy, _), line in schedule().items() if policy == "isolated-fifo"} == {"left"}


def test_every_measure_of_every_policy_in_the_result_form(call: Call) -> None:
    names = ("isolated-fifo", "fifo", "las", "balanced")
    result = call(*policies(*names), "--json", "out.json", "--seed", "3", "--load", "0.9")
    assert result.exit_code == 0, result.output
    body = read("out.json")
    assert body["setting"] == "simulated"
    assert body["seed"] == 3
    assert body["command"].startswith("meridian simulate --trace trace.csv --format csv")
    assert [source["name"] for source in body["data"]] == ["trace.csv", "network.yaml"]
    network = Network([SimDomain("only", [])])
    wanted = {measure_name(figure, network) for figure in Measures(network).figures()}
    rows = rows_of()
    for name in names:
        for part in ("all", "load=0.9"):
            assert {measure for subject, measure, one in rows if (subject, one) == (name, part)} >= wanted
        assert rows[name, "jct_mean_h", "all"]["baseline"] is (name in SETTINGS)
        assert rows[name, "jct_mean_h", "all"]["low"] <= rows[name, "jct_mean_h", "all"]["value"]
        assert rows[name, "jct_mean_h", "all"]["n"] == 4
        assert rows[name, "deadline_misses_count", "all"]["reason"] == "no finished job has a deadline"
        assert rows[name, "accelerator_cost_usd", "all"]["reason"] == "the network gives no prices of accelerators"
        assert rows[name, "energy_kwh", "all"]["value"] is None
        assert name in result.stdout


def without_decision_times(path: str) -> list[dict[str, Any]]:
    return [row for row in read(path)["rows"] if not row["measure"].startswith("decision_")]


def test_same_inputs_same_rows_also_in_several_processes(call: Call) -> None:
    Path("network.yaml").write_text(FAILING)
    words = [*policies("fifo", "srtf", "sjf-predicted"), "--seeds", "2", "--load", "1.2"]
    assert call(*words, "--json", "one.json").exit_code == 0
    assert call(*words, "--json", "two.json").exit_code == 0
    result = call(*words, "--json", "three.json", "--processes", "2")
    assert result.exit_code == 0, result.output
    assert without_decision_times("one.json") == without_decision_times("two.json")
    assert without_decision_times("one.json") == without_decision_times("three.json")
    assert read("one.json")["command"] == read("three.json")["command"]
    assert call(*words[:-4], "--seed", "5", "--seeds", "2", "--load", "1.2", "--json", "other.json").exit_code == 0
    assert without_decision_times("one.json") != without_decision_times("other.json")


def test_means_over_seeds(call: Call) -> None:
    Path("network.yaml").write_text(FAILING)
    each = []
    for seed in ("0", "1", "2"):
        assert call(*policies("fifo"), "--seed", seed, "--json", "out.json").exit_code == 0
        each.append(rows_of()["fifo", "jct_mean_h", "all"]["value"])
    assert len(set(each)) > 1
    result = call(*policies("fifo"), "--seeds", "3", "--json", "out.json")
    row = rows_of()["fifo", "jct_mean_h", "all"]
    assert row["value"] == pytest.approx(sum(each) / 3)
    assert row["n"] == 3
    assert min(each) <= row["low"] <= row["value"] <= row["high"] <= max(each)
    assert "at least 5 are needed" in result.stdout


def test_files_and_pipes(call: Call) -> None:
    result = call(*policies("fifo", "sjf"), "--plot", "out.png", "--schedule", "out.csv", "--quiet")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")
    assert tuple(Path("out.csv").read_text().splitlines()[0].split(",")) == SCHEDULE_COLUMNS
    assert sorted(path.name for path in Path().iterdir()) == ["network.yaml", "out.csv", "out.png", "trace.csv"]
    command = ["--json", "simulate", "--trace", "trace.csv", "--format", "csv", "--domains", "network.yaml"]
    printed = CliRunner().invoke(main, [*command, *policies("fifo"), "--quiet"])
    assert json.loads(printed.stdout)["schema"] == "meridian.result/1"


@pytest.mark.parametrize("option", ["--json", "--plot", "--schedule"])
@pytest.mark.parametrize(
    ("name", "reads"), [("trace.csv", "--trace"), ("network.yaml", "--domains"), ("own.yaml", "--policy")]
)
def test_what_is_read_is_never_written_over(call: Call, option: str, name: str, reads: str) -> None:
    Path("own.yaml").write_text("name: own\nextends: fifo\n")
    Path("again").symlink_to(".")
    before = Path(name).read_bytes()
    result = call(*policies("own.yaml"), option, f"again/{name}")
    assert result.exit_code == 2
    assert f"{option}: again/{name} is what {reads} reads" in result.stderr
    assert Path(name).read_bytes() == before


def test_a_folder_that_takes_no_file_is_said(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> tuple[int, str]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    result = call(*policies("fifo"), "--json", "out.json")
    assert (result.exit_code, "out.json cannot be written: No space left on device" in result.stderr) == (2, True)
    assert not Path("out.json").exists()


def test_figures_of_ends_are_null_while_nothing_ended(call: Call) -> None:
    assert call(*policies("fifo"), "--until", "5s", "--json", "out.json").exit_code == 0
    rows = {row["measure"]: row for row in json.loads(Path("out.json").read_text())["rows"] if row["slice"] == "all"}
    for measure in ("jct_mean_h", "wait_mean_h", "makespan_h"):
        assert (rows[measure]["value"], rows[measure]["reason"]) == (None, "no job finished")
    assert call(*policies("fifo"), "--jobs", "1", "--json", "out.json").exit_code == 0
    rows = {row["measure"]: row for row in json.loads(Path("out.json").read_text())["rows"] if row["slice"] == "all"}
    assert rows["makespan_h"]["value"] == pytest.approx(10 / 3600)
    assert rows["allocated_share"]["reason"] == "no accelerator was up while jobs arrived, or all arrived at one time"


def test_jobs_that_nodes_fail_too_often_for_are_named_and_given_up(call: Call) -> None:
    """Without checkpoints 1,000 s on a node that fails every 40 s take e^25 runs; the live scheduler gives up after 50."""
    Path("network.yaml").write_text(FAILING)
    Path("trace.csv").write_text(
        "job_id,submit_s,duration_s,accelerators,checkpoint_interval_s\nlong,0,1000,1,1e9\nsaved,0,1000,1,10\n"
    )
    result = call(*policies("fifo"), "--json", "out.json", "--quiet")
    assert result.exit_code == 0
    assert "warning: 1 of 2 jobs lose more than 50 runs" in " ".join(result.stderr.split())
    assert "such as long: 0.278 h with no checkpoints on 1 nodes of domain only" in " ".join(result.stderr.split())
    rows = rows_of()
    counts = [rows["fifo", f"jobs_{state}_count", "all"]["value"] for state in ("finished", "unfinished", "given_up")]
    assert counts == [1, 1, 1]
    assert "fifo: long lost 51 runs" in " ".join(result.stdout.split())
    Path("trace.csv").write_text("job_id,submit_s,duration_s,accelerators,checkpoint_interval_s\nsaved,0,1000,1,10\n")
    assert "warning" not in call(*policies("fifo")).stderr


def test_until_counts_from_the_first_submission(call: Call) -> None:
    lines = [line.split(",") for line in Path("trace.csv").read_text().splitlines()]
    place = lines[0].index("submit_s")
    for cells in lines[1:]:
        cells[place] = str(float(cells[place]) + 1e6)
    Path("trace.csv").write_text("".join(",".join(cells) + "\n" for cells in lines))
    assert call(*policies("fifo"), "--until", "12s", "--json", "out.json").exit_code == 0
    assert rows_of()["fifo", "jobs_finished_count", "all"]["value"] == 1


def test_until_counts_what_did_not_finish(call: Call) -> None:
    """At 12 s FIFO has finished a; b runs, c and d wait."""
    result = call(*policies("fifo"), "--until", "12s", "--json", "out.json", "--schedule", "out.csv")
    assert result.exit_code == 0, result.output
    rows = rows_of()
    assert rows["fifo", "jobs_finished_count", "all"]["value"] == 1
    assert rows["fifo", "jobs_unfinished_count", "all"]["value"] == 3
    assert "some jobs did not finish" in result.stdout
    lines = schedule()
    assert lines["fifo", "b"]["state"] == "unfinished"
    assert lines["fifo", "b"]["finish_s"] == ""


def test_every_line_of_the_trace_is_counted_once(call: Call) -> None:
    """Of seven lines two are no work and one has no place; at 2.5 s FIFO has ended none, and d would come at 3 s."""
    Path("trace.csv").write_text(TRACE + "huge,1,10,3,0\nnothing,1,0,1,0\nnone,1,0,1,0\n")
    result = call(*policies("fifo"), "--until", "2.5", "--skip-unfit", "--json", "out.json", "--quiet")
    assert result.exit_code == 0, result.output
    counts = {measure: row["value"] for (_, measure, part), row in rows_of().items() if part == "all"}
    names = ("jobs_finished", "jobs_unfinished", "jobs_not_submitted", "jobs_left_out", "lines_left_out")
    assert [counts[f"{name}_count"] for name in names] == [0, 3, 1, 1, 2]
    assert rows_of()["fifo", "lines_left_out_count", "reason=zero duration"]["value"] == 2
    assert "of the trace 2 lines are no work: zero duration: 2" in result.stdout
    assert "some jobs had not been submitted at the end" in result.stdout


def test_policy_of_a_file(call: Call) -> None:
    Path("mine.yaml").write_text(
        "name: mine\nselection: {order: [shortest]}\nallocation: {filters: [up, domain, capacity]}\n"
    )
    result = call(*policies("fifo", "mine.yaml"), "--knowledge", "exact", "--json", "out.json")
    assert result.exit_code == 0, result.output
    rows = rows_of()
    assert rows["mine", "jct_mean_h", "all"]["value"] * 3600 == pytest.approx(18.75)  # SJF, see above
    assert rows["mine", "jct_mean_h", "all"]["baseline"] is False
    assert read("out.json")["data"][-1]["name"] == "mine.yaml"


def test_jobs_that_can_never_run_are_refused_or_left_out(call: Call) -> None:
    Path("trace.csv").write_text(TRACE + "huge,4,10,3,0\nhuger,5,10,4,0\n")
    result = call(*policies("fifo"), "--json", "out.json")
    assert result.exit_code == 2
    assert "trace.csv, line 6: 2 of 6 jobs can never be placed by fifo; for example huge:" in result.stderr
    assert not Path("out.json").exists()
    result = call(*policies("fifo"), "--json", "out.json", "--skip-unfit")
    assert result.exit_code == 0, result.output
    rows = rows_of()
    assert rows["fifo", "jobs_left_out_count", "all"]["value"] == 2
    assert rows["fifo", "jct_mean_h", "all"]["value"] * 3600 == pytest.approx(22.25)
    assert "2 jobs that can never be placed were left out" in result.stdout


def test_some_days_of_the_trace(call: Call) -> None:
    """Days begin with the first submission: b comes one second before the second one, c with it."""
    begin_s = 5000
    lines = [("a", begin_s), ("b", begin_s + 86_399), ("c", begin_s + 86_400), ("d", begin_s + 200_000)]
    Path("trace.csv").write_text(
        "job_id,submit_s,duration_s,accelerators\n" + "".join(f"{name},{at_s},10,1\n" for name, at_s in lines)
    )
    for words, kept in ((["0"], "ab"), (["1-2"], "cd"), (["2-9"], "d"), (["0-1", "--jobs", "1"], "a")):
        result = call(*policies("fifo"), "--days", *words, "--schedule", "out.csv", "--json", "out.json")
        assert result.exit_code == 0, result.output
        assert "".join(name for _, name in schedule()) == kept


def test_the_command_of_a_result_can_be_repeated(call: Call) -> None:
    """Ranges of days as one word, numbers in full; giving the words again gives the same command."""
    words = [*policies("fifo"), "--days", "0-2", "--load", "0.123456789", "--until", "1234567.5", "--json", "out.json"]
    assert call(*words).exit_code == 0
    command = read("out.json")["command"]
    assert "--days 0-2" in command
    assert "--load 0.123456789" in command
    assert "--until 1234567.5" in command
    result = CliRunner().invoke(main, [*shlex.split(command)[1:], "--json", "again.json"])
    assert result.exit_code == 0, result.output
    assert read("again.json")["command"] == command


BAD: list[tuple[list[str], str]] = [
    (policies("nope"), "no policy 'nope'"),
    (policies("fifo", "fifo"), "two policies of the name 'fifo'"),
    (policies("missing.yaml"), "missing.yaml cannot be read"),
    (policies("bad.yaml"), "bad.yaml: line 2"),
    ([*policies("fifo"), "--load", "0"], "--load"),
    ([*policies("fifo"), "--load", "nan"], "--load"),
    ([*policies("fifo"), "--until", "-3h"], "--until"),
    ([*policies("fifo"), "--jobs", "0"], "--jobs"),
    ([*policies("fifo"), "--days", "3-1"], "--days"),
    ([*policies("fifo"), "--days", "-1"], "--days"),
    ([*policies("fifo"), "--days", "1-2"], "no job was submitted on the days 1 to 2"),
    ([*policies("fifo"), "--seeds", "0"], "--seeds"),
    ([*policies("fifo"), "--seeds", "5"], "seeds change nothing here"),
    ([*policies("fifo"), "--resample", "days"], "shorter than two days"),
    ([*policies("fifo"), "--knowledge", "exact"], "--knowledge"),
    ([*policies("fifo"), "--accelerators", "8"], "--accelerators"),
    ([*policies("fifo"), "--option", "node_size"], "NAME=VALUE"),
    ([*policies("fifo"), "--option", "node_size=8"], "no option 'node_size'"),
    ([*policies("fifo"), "--schedule", "nowhere/out.csv"], "--schedule: nowhere/out.csv"),
    ([*policies("fifo"), "--schedule", "out.json"], "different files"),
    ([*policies("fifo"), "--domains", "nowhere"], "neither a file nor a shipped network"),
    ([*policies("fifo"), "--domains", "bad.yaml"], "bad.yaml, line 2: selecton"),
    ([*policies("fifo"), "--trace", "nowhere.csv"], "nowhere.csv: cannot be read"),
    ([*policies("fifo"), "--trace", "short.csv"], "short.csv, line 1, column 'duration_s'"),
    ([*policies("fifo"), "--trace", "nan.csv"], "nan.csv, line 3, column 'duration_s'"),
    ([*policies("fifo"), "--trace", "long.csv", "--domains", "auto"], "--domains auto: the greatest job needs 1 nodes"),
    ([*policies("fifo"), "--trace", "wide.csv", "--domains", "auto"], "the greatest job needs 1,000,000,000 nodes"),
    ([*policies("fifo"), "--format", "xls"], "--format"),
    ([], "--policy"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input_is_named_and_nothing_written(call: Call, words: list[str], message: str) -> None:
    Path("bad.yaml").write_text("name: x\nselecton: {}\n")
    Path("short.csv").write_text("submit_s\n1\n")
    Path("nan.csv").write_text("submit_s,duration_s\n1,1\n2,nan\n")
    Path("long.csv").write_text("submit_s,duration_s,accelerators\n0,3e9,1\n5,3e9,1\n")
    Path("wide.csv").write_text("submit_s,duration_s,accelerators,ranks\n0,5,8,1000000000\n")
    before = sorted(Path().iterdir())
    result = call("--json", "out.json", *words)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
    assert sorted(Path().iterdir()) == before


def test_list_of_policies(call: Call) -> None:
    result = call("--list-policies")
    assert result.exit_code == 0
    for name in SETTINGS:
        assert name in result.stdout
    assert "cheapest" in result.stdout


class _Point:
    def __init__(self, name: str, found: object) -> None:
        self.name, self.value, self._found = name, f"somewhere:{name}", found

    def load(self) -> object:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


def test_commands_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [_Point("simulated", simulate), _Point("broken", ImportError("No module named 'numpy'")), _Point("odd", 3)]
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda *, group: points if group == "meridian.commands" else ()
    )
    listed = CliRunner().invoke(main, ["--help"])
    assert listed.exit_code == 0
    assert "Simulate policies" in listed.stdout
    assert "Not available: No module named 'numpy'" in listed.stdout
    used = CliRunner().invoke(main, ["broken", "--some", "word"])
    assert used.exit_code == 1
    assert "No module named 'numpy'" in used.stderr
    assert CliRunner().invoke(main, ["odd"]).exit_code == 1
    assert CliRunner().invoke(main, ["unknown"]).exit_code == 2


UNLINKED = TWO.split("links:", maxsplit=1)[0]
ONE_WAY = UNLINKED + "links: [{from: left, to: right, bandwidth_bytes_per_s: 1000000}]\n"
DATA = "job_id,submit_s,duration_s,accelerators,home_domain,data_domain,data_bytes\na,0,10,1,right,%s,100\n"
GANG = "job_id,submit_s,duration_s,ranks,accelerators,cross_domain,traffic_bytes_per_s\na,0,10,2,1,true,100\n"


@pytest.mark.parametrize(
    ("network", "trace", "message"),
    [
        (TWO, DATA % "nowhere", "moves.csv, line 2: job a: data_domain: the network has no domain 'nowhere'"),
        (
            ONE_WAY,
            DATA % "right",
            "moves.csv, line 2: job a: its data lie in 'right', and no link of the network leads from there to 'left'",
        ),
        (
            UNLINKED,
            GANG,
            "moves.csv, line 2: job a: its ranks may be in 'left', and no link of the network leads from there to 'right'",
        ),
    ],
)
def test_what_cannot_move_is_said_before_the_first_run(call: Call, network: str, trace: str, message: str) -> None:
    Path("two.yaml").write_text(network)
    Path("moves.csv").write_text(trace)
    result = call(*policies("fifo"), "--json", "out.json", trace="moves.csv", domains="two.yaml")
    assert (result.exit_code, Path("out.json").exists()) == (2, False)
    assert message in " ".join(result.stderr.split())


def test_what_need_not_move_needs_no_link(call: Call) -> None:
    Path("two.yaml").write_text(ONE_WAY)
    Path("moves.csv").write_text(DATA % "right")
    assert call(*policies("isolated-fifo"), trace="moves.csv", domains="two.yaml").exit_code == 0
    Path("moves.csv").write_text(DATA % "left")
    assert call(*policies("fifo"), trace="moves.csv", domains="two.yaml").exit_code == 0


@pytest.mark.parametrize("need", ["cpus,32", f"memory_bytes,{2**35}", "ranks,2"])
def test_a_domain_that_is_too_small_for_a_job_needs_no_link_for_it(call: Call, need: str) -> None:
    wide = "{count: 2, cpus: 64, memory_gib: 64, accelerators: 1, model: v100}"
    Path("two.yaml").write_text(UNLINKED.replace("{count: 1, cpus: 8, accelerators: 1, model: v100}", wide, 1))
    column, amount = need.split(",")
    Path("moves.csv").write_text(
        DATA.replace("data_bytes", f"data_bytes,{column}").replace("100\n", f"100,{amount}\n") % "left"
    )
    result = call(*policies("fifo"), "--json", "out.json", trace="moves.csv", domains="two.yaml")
    assert result.exit_code == 0, result.stderr


def test_a_gang_that_may_be_spread_goes_wherever_a_rank_fits(call: Call) -> None:
    Path("two.yaml").write_text(UNLINKED)
    Path("moves.csv").write_text(
        GANG.replace("a,0,10,2", "a,0,10,1") + GANG.splitlines()[1].replace("a,", "b,", 1) + "\n"
    )
    result = call(*policies("fifo"), trace="moves.csv", domains="two.yaml")
    assert result.exit_code == 2
    assert "job b: its ranks may be in 'left'" in " ".join(result.stderr.split())
