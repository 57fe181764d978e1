"""Where a job stands in its file is known after the file was read, whatever its format."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.domains import NetworkError
from simulation.made_networks import philly_network
from simulation.traces import limited, load

SWF = "; a comment\n" + "".join(f"{job} {10 * job} 0 5 2 -1 -1 2 10 -1 1 1 1 1 1 1 -1 -1\n" for job in (1, 2))
TEXTS = {
    "csv": ("job_id,submit_s,duration_s\nlate,9,1\n\nearly,1,1\n", {"late": 2, "early": 4}),
    "swf": (SWF, {"1": 2, "2": 3}),
}


@pytest.mark.parametrize("form", TEXTS)
def test_lines_of_jobs(tmp_path: Path, form: str) -> None:
    text, lines = TEXTS[form]
    file = tmp_path / "jobs.txt"
    file.write_text(text)
    trace = load(str(file), form)
    assert {job.job_id: trace.place(job.job_id) for job in trace.jobs} == {
        job_id: f"{file}, line {line}: " for job_id, line in lines.items()
    }
    first = trace.jobs[0].job_id
    assert limited(trace, 1).place(first) == trace.place(first)
    assert not trace.place("another")


def test_a_network_that_is_made_for_a_trace_names_the_line_of_a_job_that_is_too_large(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("submit_s,duration_s,accelerators\n0,1,1\n0,1,9\n")
    with pytest.raises(NetworkError, match="line 3: job 3 has ranks of 9 accelerators: nodes have 8"):
        philly_network(load(str(file), "csv"), 8)


def test_only_ends_of_lines_end_a_line(tmp_path: Path) -> None:
    """Comments of old logs hold form feeds, and UTF-8 has separators of lines of its own."""
    file = tmp_path / "jobs.swf"
    for end in ("\n", "\r\n", "\r"):
        file.write_bytes(f"; page\x0cone\x85\u2028; more\n{SWF}".replace("\n", end).encode())
        trace = load(str(file), "swf")
        assert [trace.place(job.job_id) for job in trace.jobs] == [f"{file}, line {line}: " for line in (3, 4)]
