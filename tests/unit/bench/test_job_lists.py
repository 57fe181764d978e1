"""Recorded jobs become a table that `meridian evaluate demand` replays."""

from __future__ import annotations

from pathlib import Path

from bench import job_lists
from services.forecast.job_list import is_job_list, read_jobs


def test_a_log_in_the_standard_workload_format(tmp_path: Path) -> None:
    source, out = tmp_path / "seth.swf", tmp_path / "out.csv"
    rest = "-1 -1 4 600 -1 1 {user} 1 -1 -1 1 -1 -1 -1"
    lines = [
        "; Version: 2.2",
        "1 100 20 300 4 " + rest.format(user=7),
        "2 90000 -1 60 1 " + rest.format(user=3),
        "3 90000 5 0 1 " + rest.format(user=3),
        "4 90000 5 60 -1 " + rest.format(user=3),
        "cut short",
    ]
    source.write_text("\n".join(lines) + "\n")
    assert job_lists.main([str(source), str(out)]) == 0
    assert is_job_list(out)
    found = read_jobs(out).jobs
    assert found.start_s.tolist() == [120.0, 90_000.0]
    assert found.duration_s.tolist() == [300.0, 60.0]
    assert found.accelerators.tolist() == [4.0, 1.0]
    assert (found.user_names, found.domain_names) == (("u3", "u7"), ("seth",))
    assert job_lists.main([str(source), str(out), "--days", "1"]) == 0
    assert read_jobs(out).jobs.accelerators.tolist() == [1.0]


def test_a_list_of_pods(tmp_path: Path) -> None:
    source, out = tmp_path / "pods.csv", tmp_path / "out.csv"
    source.write_text(
        "name,num_gpu,gpu_milli,qos,creation_time,deletion_time,scheduled_time\n"
        "a,1,460,LS,0,500,100\nb,8,1000,BE,0,900,300\nc,0,,LS,0,900,300\nd,1,1000,LS,0,900,\ne,1,1000,LS,0,300,300\n"
    )
    assert job_lists.main([str(source), str(out)]) == 0
    found = read_jobs(out).jobs
    assert found.accelerators.tolist() == [0.46, 8.0]
    assert found.duration_s.tolist() == [400.0, 600.0]
    assert found.user_names == ("BE", "LS")
