"""Every format becomes the jobs that its documentation says; all expected values are worked out by hand."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest

from simulation.model import Trace
from simulation.traces import TraceError, batsim_schedule, load, openb_nodes, sia_tables, spot_series, swf_machines

HEADERS = {
    "philly": "timestamp,duration,num_gpus,gpu_time,cluster\n",
    "openb": "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n",
    "chronus": "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,"
    "expect_time_list,expect_value_list,best_effort,job_type\n",
    "batsim": "job_id,submission_time,requested_number_of_resources,requested_time,success,"
    "starting_time,execution_time,finish_time\n",
}


def _read(tmp_path: Path, kind: str, body: str, **options: object) -> Trace:
    path = tmp_path / f"trace.{kind}"
    path.write_text(HEADERS.get(kind, "") + body)
    return load(path, kind, **options)


def test_philly(tmp_path: Path) -> None:
    body = (
        "2017-10-01 00:01:00,50.0,16,800.0,b\n"
        "2017-10-01 00:00:00,10.5,4,42.0,a\n"
        "2017-10-01 00:02:00,0.0,1,0.0,a\n"
        "2017-10-01 00:02:00,5.0,0,0.0,a\n"
        "2017-10-01 00:03:00,5.0,9,45.0,a\n"
    )
    trace = _read(tmp_path, "philly", body)
    assert [(job.submit_s, job.duration_s, job.ranks, job.accelerators) for job in trace.jobs] == [
        (0.0, 10.5, 1, 4),
        (60.0, 50.0, 2, 8),
        (180.0, 5.0, 2, 8),
    ]
    assert [(job.tenant, job.home_domain) for job in trace.jobs] == [("a", "a"), ("b", "b"), ("a", "a")]
    assert trace.skipped == {"zero duration": 1, "no processors": 1}
    assert len(trace.sha256) == 64
    assert [job.ranks for job in _read(tmp_path, "philly", body, node_size=4).jobs] == [1, 4, 3]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        # 12345678 is no date, so 20171009 is none either.
        (["20171009", "12345678", "12345680.5"], [0.0, 2.5, 7825331.0]),
        (["1507532515", "1507532455", "1507532575"], [0.0, 60.0, 120.0]),
        (["20171009", "2017-10-09T00:01:00+00:00", "2017-10-09 02:02:00+02:00"], [0.0, 60.0, 120.0]),
    ],
    ids=["eight digits", "epoch", "dates"],
)
def test_philly_times_are_of_the_kind_that_all_lines_can_be(
    tmp_path: Path, times: list[str], expected: list[float]
) -> None:
    trace = _read(tmp_path, "philly", "".join(f"{time},9,1,9,a\n" for time in times))
    assert [job.submit_s for job in trace.jobs] == expected


def test_cells_that_are_not_needed_may_be_empty(tmp_path: Path) -> None:
    assert len(_read(tmp_path, "philly", "2017-10-01,9,1,,a\n").jobs) == 1
    openb = _read(tmp_path, "openb", "a,1000,1,0,,,LS,Running,0,9,0\nb,1000,1,1,1000,,LS,Running,0,,0\n")
    assert ([job.job_id for job in openb.jobs], openb.skipped) == (["a"], {"not ended": 1})
    chronus = _read(tmp_path, "chronus", "0,a,1,0,,,5,,,,1,best\n")
    assert math.isnan(chronus.jobs[0].deadline_s)
    assert chronus.jobs[0].value == 1
    # Batsim's jobs without a limit, and those that it rejected.
    batsim = _read(tmp_path, "batsim", "0,0,1,-1,1,0,5,5\n1,0,1,9,0,-1,-1,-1\n2,0,1,9,0,,,\n")
    assert (len(batsim.jobs), math.isnan(batsim.jobs[0].estimate_s)) == (1, True)
    assert batsim.skipped == {"did not succeed": 2}


def test_columns_and_lines_that_hold_nothing_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "spreadsheet.csv"
    path.write_text("submit_s,duration_s,,\n0,5,,\n,,,\n1,6,,\n")
    assert [job.duration_s for job in load(path, "csv").jobs] == [5.0, 6.0]
    # The numbers of lines that a table program writes.
    path.write_text(",timestamp,duration,num_gpus,cluster\n0,2017-10-01,9,1,a\n1,2017-10-02,9,1,a\n")
    assert len(load(path, "philly").jobs) == 2


GAVEL = {
    "v100": {
        "('A (batch size 2)', 1)": {"null": 2.0, "('B', 1)": [1.5, 3.0], "('C', 1)": [0.0, 0.0]},
        "('A (batch size 2)', 4)": {"null": 6.0},
        "('B', 1)": {"null": 4.0, "('A (batch size 2)', 1)": [3.0, 1.5]},
        "('C', 1)": {"null": 1.0},
    },
    "k80": {"('A (batch size 2)', 1)": {"null": 0.5}, "('C', 1)": {"null": 0.0}},
}


def _gavel_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "gavel" / "seed=0"
    folder.mkdir(parents=True)
    (tmp_path / "gavel" / "simulation_throughputs.json").write_text(json.dumps(GAVEL))
    lines = ["A (batch size 2)\tcmd\t-n\t1\t120\t0.0\t4", "A (batch size 2)\tcmd\t-n\t1\t120\t5.0\t2"]
    (folder / "x.trace").write_text("\n".join(lines) + "\n")
    (folder / "y.trace").write_text("B\tcmd\t-n\t0\t80\t3.0\t1\nB\tcmd\t-n\t0\t80\t9.0\t8\nB\tcmd\t-n\t0\t0\t9.5\t1\n")
    return folder


def test_gavel(tmp_path: Path) -> None:
    folder = _gavel_folder(tmp_path)
    trace = load(folder, "gavel")
    # 120 steps at 6/s; at 2 ranks 2 + (6 - 2) / 3 = 10/3 per s; B alone 4/s, also (never measured) with 8 ranks.
    assert [(job.home_domain, job.submit_s, job.ranks, job.accelerators) for job in trace.jobs] == [
        ("x", 0.0, 4, 1),
        ("y", 3.0, 1, 1),
        ("x", 5.0, 2, 1),
        ("y", 9.0, 8, 1),
    ]
    assert [job.duration_s for job in trace.jobs] == pytest.approx([20.0, 20.0, 36.0, 20.0])
    assert [job.work for job in trace.jobs] == [120, 80, 120, 80]
    assert trace.skipped == {"zero duration": 1}
    rates = trace.throughputs
    assert rates is not None
    assert rates.rates["A (batch size 2)", 1] == {"v100": 2.0, "k80": 0.5}
    assert rates.rate("C", 1, "k80") == 0.0
    assert rates.pairs["A (batch size 2)", 1, "v100"] == {("B", 1): (1.5, 3.0)}


def test_gavel_file_and_options(tmp_path: Path) -> None:
    folder = _gavel_folder(tmp_path)
    skipping = load(folder / "y.trace", "gavel", unmeasured="skip")
    assert len(skipping.jobs) == 1
    assert skipping.skipped == {"scale factor never measured": 1, "zero duration": 1}
    with pytest.raises(TraceError, match="no throughput of a chip 'h100'"):
        load(folder, "gavel", reference="h100")
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "z.trace").write_text((folder / "y.trace").read_text())
    with pytest.raises(TraceError, match="option throughputs names it"):
        load(tmp_path / "alone" / "z.trace", "gavel")
    named = load(
        tmp_path / "alone" / "z.trace", "gavel", throughputs=tmp_path / "gavel" / "simulation_throughputs.json"
    )
    assert [job.job_id for job in named.jobs] == ["z-1", "z-2"]


def test_gavel_of_the_physical_cluster(tmp_path: Path) -> None:
    folder = _gavel_folder(tmp_path)
    lines = ["A (batch size 2)\tcmd\tdir\t-n\t1\t120\t4\t1\t-1.000000\t7", "B\tcmd\tdir\t-n\t0\t80\t1\t2\t1.5\t9.5"]
    (folder / "x.trace").write_text("\n".join(lines) + "\n")
    without, with_level = load(folder / "x.trace", "gavel").jobs
    assert (without.submit_s, without.ranks, without.duration_s) == (7.0, 4, pytest.approx(20.0))
    assert math.isnan(without.deadline_s)
    # 80 steps at 4/s are 20 s; one and a half times as long after 9.5.
    assert (with_level.submit_s, with_level.ranks, with_level.deadline_s) == (9.5, 1, pytest.approx(39.5))


def test_gavel_of_shockwave(tmp_path: Path) -> None:
    folder = _gavel_folder(tmp_path)
    (folder / "x.trace").write_text("A (batch size 2)\tcmd\tdir\t-n\t1\t120\t4\tgns\t1\t-1.000000\t1418\t7\n")
    (job,) = load(folder / "x.trace", "gavel").jobs
    assert (job.submit_s, job.ranks, job.duration_s) == (7.0, 4, pytest.approx(20.0))


def test_the_oldest_gavel_traces_name_no_data_folder(tmp_path: Path) -> None:
    folder = _gavel_folder(tmp_path)
    (folder / "x.trace").write_text("A (batch size 2)\tcmd\t-n\t120\t1958\t4\n")
    (job,) = load(folder / "x.trace", "gavel").jobs
    assert (job.submit_s, job.ranks, job.duration_s) == (1958.0, 4, pytest.approx(20.0))


def test_blanks_around_a_quoted_cell_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    header = 'submit_s, "duration_s" ,accelerator_types,name\n'
    path.write_text(header + '0 ,"5","H100" , "a ""b"" , c"\n"1" , 6,\t"L4"\t,"two\n lines" \n2,7,say "it",\n')
    assert [(job.submit_s, job.duration_s, job.accelerator_types, job.name) for job in load(path, "csv").jobs] == [
        (0.0, 5.0, ("H100",), 'a "b" , c'),
        (1.0, 6.0, ("L4",), "two\n lines"),
        (2.0, 7.0, ('say "it"',), ""),
    ]
    assert [job.job_id for job in load(path, "csv").jobs] == ["2", "4", "5"]


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.csv.gz"
    path.write_bytes(gzip.compress((HEADERS["philly"] + "2017-10-01 00:01:00,50.0,16,800.0,b\n").encode()))
    assert [job.duration_s for job in load(path, "philly").jobs] == [50.0]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(TraceError, match="cannot be unpacked"):
        load(path, "philly")


SWF = """; Version: 2.2
;  UnixStartTime: 0

1 0 5 100 4 90.5 -1 8 3600 972800 1 3 2 7 1 1 -1 -1
2 7 0 50 -1 -1 2048 2 -1 -1 0 -1 -1 -1 1 1 -1 -1
3 8 0 -1 4 -1 -1 4 60 -1 5 1 1 -1 1 1 -1 -1
4 9 0 0 4 -1 -1 4 60 -1 1 1 1 -1 1 1 -1 -1
5 9 0 -1 4 -1 -1 4 60 -1 -1 1 1 -1 1 1 -1 -1
6 9 0 10 -1 -1 -1 -1 60 -1 1 1 1 -1 1 1 -1 -1
1 0 5 40 4 -1 -1 8 3600 -1 2 3 2 7 1 1 -1 -1
"""


def test_swf(tmp_path: Path) -> None:
    trace = _read(tmp_path, "swf", SWF)
    one, two = trace.jobs
    assert (one.job_id, one.submit_s, one.duration_s, one.ranks, one.cpus, one.estimate_s) == ("1", 0, 100, 4, 1, 3600)
    assert (one.user, one.tenant, one.name, one.memory_bytes) == ("user-3", "group-2", "executable-7", 972800 * 1024)
    assert (two.ranks, two.user, two.tenant, two.memory_bytes) == (2, "", "default", 2048 * 1024)
    assert math.isnan(two.estimate_s)
    assert trace.skipped == {
        "cancelled before start": 1,
        "zero duration": 1,
        "unknown duration": 1,
        "no processors": 1,
        "partial execution": 1,
    }
    assert [job.ranks for job in _read(tmp_path, "swf", SWF, processors="requested").jobs] == [8, 2]
    completed = _read(tmp_path, "swf", SWF, statuses={1})
    assert [job.job_id for job in completed.jobs] == ["1"]
    assert completed.skipped["status 0"] == 1


def test_swf_comments_may_be_in_any_encoding(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    path.write_bytes(b"; Installation: Universit\xe9\n  ;Note: caf\xe9\x85\n" + SWF.encode())
    assert len(load(path, "swf").jobs) == 2
    path.write_bytes(b"\xef\xbb\xbf; Universit\xe9\n" + SWF.encode())
    assert len(load(path, "swf").jobs) == 2
    path.write_bytes(b"; fine \xe9\n1 0 \xe9\n")
    with pytest.raises(TraceError, match=r"line 2: is not UTF-8 text"):
        load(path, "swf")
    path.write_text("; a header and nothing else\n")
    with pytest.raises(TraceError, match=r"holds no job that can run \(no line with a job\)"):
        load(path, "swf")


def test_swf_machines(tmp_path: Path) -> None:
    path = tmp_path / "log.swf.machines"
    path.write_text("0\tseth\t3\t2\t1\t1048576\n")
    network = swf_machines(path)
    assert [(node.node_id, node.cpus, node.memory_bytes) for node in network.nodes] == [
        (f"seth-{index}", 2.0, 1 << 30) for index in range(3)
    ]


def test_openb(tmp_path: Path) -> None:
    body = (
        "p1,12000,1024,1,460,,LS,Running,100,400,110\n"
        "p2,8000,512,0,0,,BE,Succeeded,90,200,90\n"
        "p3,1000,1,8,1000,V100M16|V100M32,Burstable,Running,120,130,125\n"
        "p4,1000,1,1,1000,,BE,Pending,130,180,\n"
    )
    trace = _read(tmp_path, "openb", body)
    two, one, three = trace.jobs
    assert (two.job_id, two.submit_s, two.duration_s, two.cpus, two.accelerators) == ("p2", 0, 110, 8.0, 0)
    assert (one.submit_s, one.duration_s, one.device_share, one.memory_bytes) == (10, 290, 0.46, 1 << 30)
    assert one.devices == pytest.approx(0.46)
    assert (three.accelerators, three.accelerator_types) == (8, ("V100M16", "V100M32"))
    assert [(job.priority, job.preemptible) for job in trace.jobs] == [(0, True), (2, False), (1, True)]
    assert trace.skipped == {"never scheduled": 1}
    kept = _read(tmp_path, "openb", body, pending=True)
    assert (kept.jobs[-1].job_id, kept.jobs[-1].duration_s, kept.skipped) == ("p4", 50, {})


def test_openb_nodes(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,32000,1024,0,\nn1,96000,2048,8,G2\n")
    network = openb_nodes(path)
    assert [(node.cpus, node.accelerators, node.model) for node in network.nodes] == [(32.0, 0, ""), (96.0, 8, "G2")]
    path.write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,32000,1024,2,\n")
    with pytest.raises(TraceError, match=r"line 2, column 'model': is empty"):
        openb_nodes(path)


def test_chronus(tmp_path: Path) -> None:
    body = (
        "0,vc_a,16,10,99,vgg16,20,14,50,7,0,strict\n"
        "1,vc_b,1,12,99,alexnet,5,14,12,10,1,best\n"
        "2,vc_b,1,13,99,alexnet,5,14,8-16,10-5,0,soft\n"
        "3,vc_b,0,13,99,alexnet,5,14,8,10,0,strict\n"
    )
    trace = _read(tmp_path, "chronus", body)
    strict, best, soft = trace.jobs
    assert (strict.submit_s, strict.duration_s, strict.deadline_s, strict.value) == (600, 1200, 3600, 7)
    assert (strict.ranks, strict.accelerators, strict.home_domain) == (2, 8, "vc_a")
    assert math.isnan(best.deadline_s)
    assert (soft.deadline_s, soft.value) == ((13 + 8) * 60, 10)
    assert trace.skipped == {"no processors": 1}
    assert _read(tmp_path, "chronus", body, time_unit_s=1).jobs[0].deadline_s == 60


def test_batsim(tmp_path: Path) -> None:
    body = "7,4.5,2,400,1,5.0,265.5,270.5\n8,1.0,1,50,0,1.0,50.0,51.0\n"
    trace = _read(tmp_path, "batsim", body)
    (job,) = trace.jobs
    assert (job.job_id, job.submit_s, job.duration_s, job.ranks, job.cpus, job.estimate_s) == (
        "7",
        4.5,
        265.5,
        2,
        1,
        400,
    )
    assert trace.skipped == {"did not succeed": 1}
    schedule = batsim_schedule(tmp_path / "trace.batsim")
    assert (schedule.start_s, schedule.finish_s) == ({"7": 5.0}, {"7": 270.5})


def _sia_folder(tmp_path: Path) -> Path:
    tables = tmp_path / "traces" / "net"
    tables.mkdir(parents=True)
    header = "placement,local_bsz,step_time,sync_time\n"
    rows = "1,10,1.0,0.0\n1,20,2.0,0.0\n2,10,1.2,0.2\n2,20,2.2,0.2\n13,10,1.5,0.5\n44,10,1.6,0.6\n"
    (tables / "placements-aws.csv").write_text(header + rows)
    (tables / "scalability-aws.csv").write_text(
        "num_nodes,num_replicas,local_bsz,step_time,sync_time\n1,4,10,1.25,0.25\n"
    )
    (tables / "placements-quad.csv").write_text("local_bsz,placement,step_time,sync_time\n10,1,0.5,0.1\n40,1,2.0,0.1\n")
    (tables / "validation-40.csv").write_text(
        "progress,iteration,metric,grad_sqr,grad_var\n9,50,0.5,1,2\n20,100,0.9,1,3\n"
    )
    path = tmp_path / "workload.csv"
    path.write_text("name,time,application,num_replicas,batch_size\nnet-0,7.0,net,2,40\nnet-1,8.0,net,3,40\n")
    return path


def test_sia(tmp_path: Path) -> None:
    trace = load(_sia_folder(tmp_path), "sia")
    rates = trace.throughputs
    assert rates is not None
    # One T4: two passes of 20 -> 2 + 2 s. Two: 20 each, 2.2 s. Four in one node: 10 each, 1.25 s (scalability table).
    # Eight in two nodes: 5 each, below what was measured. Three: halfway between two and four.
    assert rates.rate("net/40", 1, "t4") == pytest.approx(1 / 4)
    assert rates.rate("net/40", 2, "t4") == pytest.approx(1 / 2.2)
    assert rates.rate("net/40", 4, "t4") == pytest.approx(1 / 1.25)
    assert rates.rate("net/40", 3, "t4") == pytest.approx((1 / 2.2 + 1 / 1.25) / 2)
    assert ("net/40", 8) not in rates.rates
    assert rates.rates["net/40", 1]["rtx6000"] == pytest.approx(0.5)
    assert "rtx6000" not in rates.rates["net/40", 2]
    one, two = trace.jobs
    assert (one.work, one.ranks, one.min_ranks, one.max_ranks, one.accelerators) == (100, 2, 1, 4, 1)
    assert one.duration_s == pytest.approx(220.0)
    assert two.duration_s == pytest.approx(100 / ((1 / 2.2 + 1 / 1.25) / 2))
    rigid = load(tmp_path / "workload.csv", "sia", elastic=False).jobs[0]
    assert (rigid.min_ranks, rigid.max_ranks) == (0, 0)


def test_sia_tables_keep_the_measurements(tmp_path: Path) -> None:
    _sia_folder(tmp_path)
    tables = sia_tables(tmp_path / "traces")
    assert tables.placements["net", "t4"][1, 3].at(10) == (1.5, 0.5)
    assert tables.placements["net", "t4"][2,].at(15) == pytest.approx((1.7, 0.2))
    assert tables.placements["net", "t4"][2,].at(21) is None
    assert tables.convergence["net"][40].grad_var.tolist() == [2, 3]
    with pytest.raises(TraceError, match="holds no folder"):
        sia_tables(tmp_path / "nowhere")


def test_spot(tmp_path: Path) -> None:
    path = tmp_path / "zone.json"
    path.write_text('{"metadata": {"gap_seconds": 300}, "data": [4, 4, 3, 0, 0, 4]}')
    assert spot_series(path) == ((0.0, 4), (600.0, 3), (900.0, 0), (1500.0, 4))
    assert spot_series(path, accelerators_per_instance=8)[1] == (600.0, 24)
    assert spot_series(path, counts="preempted", instances=4) == ((0.0, 0), (600.0, 1), (900.0, 4), (1500.0, 0))


def test_own_csv(tmp_path: Path) -> None:
    body = (
        "duration_s,submit_s,ranks,accelerators,accelerator_types,resources,preemptible,deadline_s,priority,tenant\n"
        "60,5,2,4,v100|a100,fpga=1|license=0.5,false,100,-1,physics\n"
        "0,6,,,,,,,,\n"
        "30,1,,,,,,,,\n"
    )
    trace = _read(tmp_path, "csv", body)
    plain, full = trace.jobs
    assert (plain.job_id, plain.submit_s, plain.ranks, plain.tenant, plain.preemptible) == ("4", 1, 1, "default", True)
    assert (full.job_id, full.ranks, full.accelerators, full.devices) == ("2", 2, 4, 8)
    assert (full.accelerator_types, full.resources) == (("v100", "a100"), {"fpga": 1.0, "license": 0.5})
    assert (full.preemptible, full.deadline_s, full.priority, full.tenant) == (False, 100, -1, "physics")
    assert trace.skipped == {"zero duration": 1}


def test_own_csv_with_profiles(tmp_path: Path) -> None:
    rates = tmp_path / "rates.json"
    rates.write_text(json.dumps(GAVEL))
    body = "submit_s,duration_s,profile,work\n0,20,B,80\n"
    assert _read(tmp_path, "csv", body, throughputs=rates).jobs[0].work == 80
    with pytest.raises(TraceError, match=r"line 2, column 'profile': has no rate"):
        _read(tmp_path, "csv", body)


def test_every_field_of_a_job_is_a_column() -> None:
    from dataclasses import fields

    from simulation.model import TraceJob
    from simulation.traces.jobs_csv import PARSERS

    assert set(PARSERS) == {field.name for field in fields(TraceJob)}
