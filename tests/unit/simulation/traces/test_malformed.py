"""A malformed file is refused as a whole, and the error names the file, the line and the column."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulation.traces import TraceError, load, openb_nodes, spot_series, swf_machines

PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-01 00:00:00,10,1,10,a\n"
SECONDS = "timestamp,duration,num_gpus,cluster\n"
OWN = "job_id,submit_s,duration_s,ranks,device_share,preemptible,max_ranks,deadline_s,resources,accelerator_types\n"
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
)
CHRONUS = (
    "job_id,user,num_gpu,submit_time,model_name,duration,expect_time_list,expect_value_list,best_effort,job_type\n"
)
BATSIM = (
    "job_id,submission_time,requested_number_of_resources,requested_time,success,"
    "starting_time,execution_time,finish_time\n"
)
SWF = "1 0 5 100 4 90.5 -1 8 3600 -1 1 3 2 7 1 1 -1 -1\n"

CASES = [
    # format, text, line, column, part of the message
    ("philly", "", None, None, "is empty"),
    ("philly", "timestamp,duration,num_gpus,cluster\n", None, None, "a header and nothing else"),
    ("philly", "timestamp,duration,cluster\n2017-10-01 00:00:00,1,a\n", 1, "num_gpus", "missing from the header"),
    ("philly", "timestamp,duration,duration,num_gpus,cluster\n", 1, "duration", "is there twice"),
    ("philly", PHILLY + "2017-10-01 00:00:00,nan,1,10,a\n", 3, "duration", "not a number: 'nan'"),
    ("philly", PHILLY + "2017-10-01 00:00:00,inf,1,10,a\n", 3, "duration", "not a number: 'inf'"),
    ("philly", PHILLY + "2017-10-01 00:00:00,-1,1,10,a\n", 3, "duration", "less than 0: -1"),
    ("philly", PHILLY + "\n2017-10-01 00:00:00,ten,1,10,a\n", 4, "duration", "not a number: 'ten'"),
    ("philly", PHILLY + "2017-10-01 00:00:00,10,1.5,10,a\n", 3, "num_gpus", "not a whole number: 1.5"),
    ("philly", PHILLY + "2017-10-01 00:00:00,10,1,10,\n", 3, "cluster", "is empty"),
    ("philly", PHILLY + "2017-10-01 00:00:00,10,1,10\n", 3, None, "4 cells, but the header has 5"),
    ("philly", PHILLY + "yesterday,10,1,10,a\n", 3, "timestamp", "not an ISO 8601 time"),
    ("philly", PHILLY + '2017-10-01 00:00:00,10,1,10,"a\n', 3, None, "is not CSV"),
    (
        "philly",
        PHILLY + "12345678,10,1,10,a\n",
        3,
        "timestamp",
        "is a number of seconds, but line 2 has a date: 12345678",
    ),
    (
        "philly",
        SECONDS + "7.5,1,1,a\n2017-10-01,1,1,a\n",
        3,
        "timestamp",
        "is a date, but line 2 has a number of seconds",
    ),
    ("philly", SECONDS + "-7,1,1,a\n", 2, "timestamp", "is less than 0: -7"),
    ("philly", SECONDS + "0,1,1,a\n1507532515000,1,1,a\n", 3, "timestamp", "more than 100 years: 1.50753e+12 s"),
    ("philly", SECONDS + "20171009,1,1,a\n20171010,1,1,a\n", 2, "timestamp", "write 2017-10-09 or 20171009.0"),
    ("philly", "timestamp;duration;num_gpus;cluster\n0;1;1;a\n", 1, "timestamp", "between commas, not semicolons"),
    ("csv", "submit_s,duration_s,,\n1,1,,\n1,1,,9\n", 3, None, "a cell in a column without a name"),
    ("csv", "submit_s,duration_s,colour\n1,1,red\n", 1, "colour", "not a known column"),
    ("csv", 'submit_s,duration_s,tenant\n1,1,"a" b\n', 2, None, "is not CSV"),
    ("csv", OWN + "a,0,1,,,,,,,\na,1,1,,,,,,,\n", 3, "job_id", "already on line 2"),
    ("csv", OWN + "a,,1,,,,,,,\n", 2, "submit_s", "is empty"),
    ("csv", OWN + "a,0,1,1_0,,,,,,\n", 2, "ranks", "not a number: '1_0'"),
    ("csv", OWN + "a,0,1,,0,,,,,\n", 2, "device_share", "not within 0.001 to 1: 0"),
    ("csv", OWN + "a,0,1,,1.5,,,,,\n", 2, "device_share", "not within 0.001 to 1: 1.5"),
    ("csv", OWN + "a,0,1,,0.0004,,,,,\n", 2, "device_share", "not within 0.001 to 1: 0.0004"),
    (
        "csv",
        "submit_s,duration_s,memory_bytes\n0,1,1e25\n",
        2,
        "memory_bytes",
        "is more than 9223372036854775807: 1e25",
    ),
    ("csv", "submit_s,duration_s,ranks,min_ranks\n0,1,2,3\n", 2, "min_ranks", "is more than the 2 ranks: 3"),
    ("csv", OWN + "a,0,1,,,yes,,,,\n", 2, "preemptible", "not true or false"),
    ("csv", OWN + "a,0,1,4,,,2,,,\n", 2, "max_ranks", "4 ranks are not within 0 to 2"),
    ("csv", OWN + "a,5,1,,,,,4,,\n", 2, "deadline_s", "before the submission"),
    ("csv", OWN + "a,0,1,,,,,,fpga,\n", 2, "resources", "name=amount"),
    ("csv", OWN + "a,0,1,,,,,,,v100||k80\n", 2, "accelerator_types", "empty name"),
    ("csv", "submit_s,duration_s,work\n0,1,5\n", 2, "work", "goes with a profile"),
    ("csv", "submit_s,duration_s\n0,0\n", None, None, "no job that can run (zero duration: 1)"),
    ("openb", OPENB + "p,1,1,1,0,,LS,Running,1,3,2\n", 2, "gpu_milli", "not within 1 to 1000"),
    ("openb", OPENB + "p,1,1,2,500,,LS,Running,1,3,2\n", 2, "gpu_milli", "is a share, but num_gpu is 2"),
    ("openb", OPENB + "p,1,1,1,500,,LS,Running,1,1,2\n", 2, "deletion_time", "less than 2"),
    ("openb", OPENB + "p,1,1,1,500,,XX,Running,1,3,2\n", 2, "qos", "none of BE"),
    ("openb", OPENB + "p,1,1,1,500,,LS,Running,1,3,2\n" * 2, 3, "name", "already on line 2"),
    ("chronus", CHRONUS + "0,a,1,5,m,5,-9,10,0,strict\n", 2, "expect_time_list", "not a number"),
    ("chronus", CHRONUS + "0,a,1,5,m,5,9,10,2,strict\n", 2, "best_effort", "not 0 or 1"),
    ("batsim", BATSIM + "1,5,1,9,1,4,1,5\n", 2, "starting_time", "less than 5"),
    ("swf", SWF + "2 0 5\n", 2, None, "3 fields, not 18"),
    ("swf", "; comment\n" + SWF.replace(" 100 ", " nan "), 2, "run_time", "not a number"),
    ("swf", SWF.replace("1 0 5", "1 -1 5"), 1, "submit", "less than 0"),
    ("swf", SWF.replace(" 4 90.5", " -2 90.5"), 1, "allocated_processors", "less than -1"),
    ("swf", SWF.replace(" 4 90.5", " 4.5 90.5"), 1, "allocated_processors", "not a whole number"),
    ("swf", SWF * 2, 2, "job", "already on line 1"),
    (
        "swf",
        SWF.replace("3600 -1", "3600 1e20"),
        1,
        "requested_memory",
        "more than 9223372036854775807 bytes: 1e+20 kB",
    ),
    ("swf", SWF.replace(" 100 4", " -0.5 4"), 1, "run_time", "less than 0, and not -1: -0.5"),
    ("swf", SWF.replace(" -1 1 3 2", " -1 1.5 3 2"), 1, "status", "not a whole number: 1.5"),
    ("swf", SWF.replace(" -1 1 3 2", " -1 1 3.5 2"), 1, "user", "not a whole number: 3.5"),
    ("swf", SWF.replace(" 4 90.5", " 1e30 90.5"), 1, "allocated_processors", "more than 9223372036854775807: 1e+30"),
    ("csv", "submit_s,duration_s,priority\n0,1,-1e30\n", 2, "priority", "beyond 64 bits: -1e30"),
    # A unit that is not the second, a time that stands for never, a product that is none.
    ("csv", "submit_s,duration_s\n0,1\n1600000000000,1\n", 3, None, "1.6e+12 s are more than 100 years"),
    ("csv", "submit_s,duration_s\n0,1e300\n", 2, None, "run time of job 2: 1e+300 s are more than 100 years"),
    ("swf", SWF.replace("1 0 5 100", "1 0 5 1e10"), 1, None, "run time of job 1: 1e+10 s are more than 100 years"),
    ("openb", OPENB + "p,1,1,1,500,,LS,Running,1,1e12,2\n", 2, None, "run time of job p: 1e+12 s"),
    ("chronus", CHRONUS + "0,a,1,5,m,1e307,9,10,0,strict\n", 2, None, "run time of job 0: inf s"),
    ("openb", OPENB + "p,1,1e13,1,500,,LS,Running,1,3,2\n", 2, "memory_mib", "is more than 8796093022207: 1e13"),
]


@pytest.mark.parametrize(("kind", "text", "line", "column", "message"), CASES)
def test_refused(tmp_path: Path, kind: str, text: str, line: int | None, column: str | None, message: str) -> None:
    path = tmp_path / "bad.trace"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        load(path, kind)
    error = caught.value
    assert message in error.detail
    assert (error.path, error.line, error.column) == (path, line, column)
    assert str(path) in error.detail
    assert (error.status, error.code) == (400, "INVALID_TRACE")


def test_no_such_file_format_option(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    with pytest.raises(TraceError, match="cannot be read"):
        load(path, "csv")
    with pytest.raises(TraceError, match=r"unknown format 'parquet'.*philly"):
        load(path, "parquet")
    with pytest.raises(TraceError, match="format swf has no option 'node_size'; it has: processors, statuses"):
        load(path, "swf", node_size=4)
    path.write_bytes(b"submit_s,duration_s\n1,\xff\n")
    with pytest.raises(TraceError, match=r"line 2: is not UTF-8"):
        load(path, "csv")
    with pytest.raises(TraceError, match="node_size must be at least 1"):
        load(path, "philly", node_size=0)


@pytest.mark.parametrize(
    ("kind", "option", "value", "message"),
    [
        ("philly", "node_size", "eight", "option node_size must be a whole number, not 'eight'"),
        ("philly", "node_size", 2.5, "option node_size must be a whole number, not 2.5"),
        ("chronus", "time_unit_s", float("nan"), "option time_unit_s must be a number"),
        ("chronus", "time_unit_s", 0, "option time_unit_s must be positive"),
        ("openb", "pending", "perhaps", "option pending must be true or false"),
        ("swf", "statuses", "done", "option statuses must be completion codes"),
        ("swf", "processors", "all", "option processors is"),
        ("gavel", "unmeasured", "guess", "option unmeasured is"),
        ("sia", "reference", "h100", "option reference is one of t4"),
    ],
)
def test_options_refused(tmp_path: Path, kind: str, option: str, value: object, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        load(tmp_path / "never-read", kind, **{option: value})


def test_options_as_text(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(PHILLY.replace(",10,1,", ",10,16,"))
    assert load(path, "philly", node_size="4").jobs[0].ranks == 4
    path.write_text(SWF)
    assert len(load(path, "swf", statuses="0,1").jobs) == 1
    path.write_text(OPENB + "p,1,1,1,500,,LS,Pending,1,3,\n")
    assert len(load(path, "openb", pending="true").jobs) == 1


RATES = {"v100": {"('A', 1)": {"null": 2.0}}}


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "not a JSON object"),
        ('{"v100": {"A": {"null": 1}}}', "not a key of the form"),
        ('{"v100": {"(\'A\', 1)": {"null": -1}}}', "not a rate: -1"),
        ('{"v100": {"(\'A\', 1)": {"null": NaN}}}', "NaN is no value"),
        ('{"v100": {"(\'A\', 1)": {"null": 1e400}}}', "1e400 is no value"),
        ('{"v100": {"(\'A\', 1)": {"null": 1' + "0" * 400 + "}}}", "100000000000000000000000000000 is no value"),
        ('{"v100": {"(\'A\', 1)": {"null": 1' + "0" * 5000 + "}}}", "100000000000000000000000000000 is no value"),
        ('{"v100": {"(\'A\', 1)": {"null": 1, "(\'A\', 1)": [1]}}}', "not a pair"),
        ("[" * 100_000, "nested too deeply"),
        ('{"v100": {"(\'A\', 1)": {"null": 1}, "(\'A\', 1)": {"null": 2}}}', r"the key .*'A', 1.* is there twice"),
    ],
)
def test_gavel_rates_refused(tmp_path: Path, rates: str, message: str) -> None:
    (tmp_path / "simulation_throughputs.json").write_text(rates)
    (tmp_path / "a.trace").write_text("A\tcmd\t-n\t1\t10\t0.0\t1\n")
    with pytest.raises(TraceError, match=message):
        load(tmp_path / "a.trace", "gavel")


@pytest.mark.parametrize(
    ("line", "column", "message"),
    [
        ("A\tcmd\t-n\t1\t10\t0.0", None, "6 cells"),
        ("A\tcmd\tdir\t-n\t1\t10\t1\t1\t-1\t0", None, "10 cells between tabs, not the 7 of job_type"),
        ("Z\tcmd\t-n\t1\t10\t0.0\t1", "job_type", "no measured throughput: 'Z'"),
        ("A\tcmd\t-n\t1\tmany\t0.0\t1", "total_steps", "not a number"),
        ("A\tcmd\t-n\t1\t10\t-1\t1", "arrival_time", "less than 0"),
        ("A\tcmd\t-n\t1\t10\t0.0\t1.5", "scale_factor", "not a whole number"),
    ],
)
def test_gavel_lines_refused(tmp_path: Path, line: str, column: str | None, message: str) -> None:
    (tmp_path / "simulation_throughputs.json").write_text(json.dumps(RATES))
    (tmp_path / "a.trace").write_text("A\tcmd\t-n\t1\t10\t0.0\t1\n" + line + "\n")
    with pytest.raises(TraceError, match=message) as caught:
        load(tmp_path / "a.trace", "gavel")
    assert (caught.value.line, caught.value.column) == (2, column)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"data": [1]}', "needs metadata.gap_seconds"),
        ('{"metadata": {"gap_seconds": 0}, "data": [1]}', "not a positive number"),
        ('{"metadata": {"gap_seconds": 1e400}, "data": [1]}', "1e400 is no value"),
        ('{"metadata": {"gap_seconds": 1e308}, "data": [1, 2, 3]}', "gap_seconds is too long for 3 of them"),
        ('{"metadata": {"gap_seconds": 5}, "data": []}', "not a list with numbers"),
        ('{"metadata": {"gap_seconds": 5}, "data": [1, -1]}', r"data\[1\] is not a number of instances"),
        ('{"metadata": {"gap_seconds": 5}, "data": [true]}', r"data\[0\]"),
    ],
)
def test_spot_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "zone.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        spot_series(path)


def test_nodes_beyond_what_a_network_may_have_are_refused(tmp_path: Path) -> None:
    """Before they are made, one by one."""
    path = tmp_path / "nodes"
    path.write_text("1 seth 1e12 2 1 100\n")
    with pytest.raises(TraceError, match="line 1, column 'nodes': is more than 1000000: 1e12"):
        swf_machines(path)
    path.write_text("1 seth 2 2 1 1e18\n")
    with pytest.raises(TraceError, match="line 1, column 'memory_kb': is more than"):
        swf_machines(path)
    path.write_text("sn,cpu_milli,memory_mib,gpu,model\na,1,1,1e12,V100\n")
    with pytest.raises(TraceError, match="line 2, column 'gpu': is more than 1024: 1e12"):
        openb_nodes(path)
