"""Jobs replayed with their ends hidden: exact demand, nothing seen too early, and what structure adds where it knows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from services.forecast.evaluate_demand import demand
from services.forecast.job_list import is_job_list, read_jobs, without
from services.forecast.job_replay import ColdJob, JobList, Learning, Steps, demand_by_window, replay
from services.forecast.job_report import JobReport
from services.forecast.tables import InvalidTableError


def jobs_of(rows: list[tuple[float, float, float, int]]) -> JobList:
    """Start, duration, accelerators, domain."""
    rows = sorted(rows)
    start, duration, accelerators = (np.array([row[place] for row in rows]) for place in range(3))
    domains = np.array([row[3] for row in rows], np.intp)
    return JobList(start, duration, accelerators, domains, domains, ("a", "b"), ("a", "b"))


def drawn(seed: int, count: int = 400, days: float = 3.0) -> JobList:
    chance = np.random.default_rng(seed)
    return jobs_of(
        [
            (
                float(chance.uniform(0, days * 86_400)),
                float(chance.lognormal(8, 1)),
                float(chance.choice([1, 2, 4, 8])),
                int(chance.integers(2)),
            )
            for _ in range(count)
        ]
    )


def test_demand_is_the_exact_mean_over_each_window() -> None:
    # 4 from 150 s to 450 s, 2 from 500 s on, in windows of 200 s; domain b is idle.
    found = demand_by_window(jobs_of([(150.0, 300.0, 4.0, 0), (500.0, 1e6, 2.0, 0)]), 200.0, 4)
    assert found[0].tolist() == pytest.approx([4 * 50 / 200, 4.0, (4 * 50 + 2 * 100) / 200, 2.0])
    assert found[1].tolist() == [0, 0, 0, 0]


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.0, 1.0]))
def test_ends_that_come_later_change_nothing_before(seed: int, share: float) -> None:
    jobs, cut = drawn(seed, 120, 1.0), 60
    running = jobs.end_s > cut * 600.0
    other = JobList(
        jobs.start_s, np.where(running, jobs.duration_s + 5000.0, jobs.duration_s), jobs.accelerators, jobs.users,
        jobs.domains, jobs.user_names, jobs.domain_names,
    )  # fmt: skip
    # With steps the length shows in them, as it may: then only jobs of which nothing was seen are changed.
    if share:
        late = jobs.start_s > cut * 600.0
        other = JobList(
            jobs.start_s, np.where(late, jobs.duration_s + 5000.0, jobs.duration_s), jobs.accelerators, jobs.users,
            jobs.domains, jobs.user_names, jobs.domain_names,
        )  # fmt: skip
    one, two = (replay(each, (1, 6), 600.0, 100, Steps(share=share), Learning(), seed) for each in (jobs, other))
    for name in ("history", "structure", "fused", "low", "high", "coming"):
        np.testing.assert_array_equal(getattr(one, name)[:, :, :cut], getattr(two, name)[:, :, :cut])


def test_structure_beats_history_where_runs_of_a_user_last_alike() -> None:
    # 8 accelerators for 40 minutes, every 2 hours on average.
    chance = np.random.default_rng(1)
    starts = np.cumsum(chance.exponential(7200.0, 300))
    jobs = jobs_of([(float(start), 2400.0, 8.0, 0) for start in starts])
    found = replay(jobs, (1,), 600.0, 2500, Steps(), Learning(), 0)
    origins = np.arange(1000, 2499)
    value = found.value[0, origins + 1]
    missed = {
        name: np.abs(value - getattr(found, name)[0, 0, origins]).sum() for name in ("history", "structure", "fused")
    }
    assert missed["structure"] < 0.7 * missed["history"]
    assert missed["fused"] < 1.05 * missed["structure"]


def test_shown_steps_tell_cold_jobs_apart() -> None:
    jobs = drawn(3)
    without_steps, with_steps = (
        replay(jobs, (1, 6), 600.0, 500, Steps(share=share), Learning(), 0) for share in (0.0, 1.0)
    )

    def accuracy(found: list[ColdJob]) -> float:
        return 1 - sum(abs(job.expected - job.value) for job in found) / sum(job.value for job in found)

    later = [[job for job in found.cold if job.horizon == 6] for found in (without_steps, with_steps)]
    assert len(later[0]) == len(later[1]) > 200
    assert accuracy(later[1]) > 0.8
    assert accuracy(later[1]) > accuracy(later[0]) + 0.3


HEADER = "timestamp,duration,num_gpus,cluster"


def write(path: Path, lines: list[str], header: str = HEADER) -> Path:
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def test_lists_of_jobs_are_read_with_what_is_left_aside(tmp_path: Path) -> None:
    path = write(
        tmp_path / "jobs.csv",
        [
            "1970-01-03 00:10:00,60,8,x",
            "1970-01-02 06:00:00,30,1,y",
            "never,1,1,x",
            "0,-5,1,x",
            "0,5,0,x",
            "0,5,nan,x",
            "0,5,1e300,x",
        ],
    )
    assert is_job_list(path)
    found = read_jobs(path)
    # From the midnight before the first job.
    assert found.jobs.start_s.tolist() == [6 * 3600.0, 86_400.0 + 600.0]
    assert found.jobs.domain_names == ("x", "y")
    assert found.jobs.domains.tolist() == [1, 0]
    assert found.left_aside.counts == {
        "timestamp is neither a number of seconds nor a date in ISO 8601": 1,
        "duration is no positive number": 1,
        "num_gpus is no positive number": 2,
        "num_gpus is larger than 1e+09": 1,
    }
    left = without(found.jobs, frozenset({"y"}))
    assert (left.domain_names, left.accelerators.tolist()) == (("x",), [8.0])
    series = write(tmp_path / "series.csv", ["a,0,1"], "series,time,value")
    assert not is_job_list(series)
    with pytest.raises(InvalidTableError, match="no line is a job"):
        read_jobs(write(tmp_path / "none.csv", ["never,1,1,x"]))
    with pytest.raises(InvalidTableError, match="column duration_s is missing"):
        read_jobs(write(tmp_path / "short.csv", ["0,1"], "start,accelerators"))


def test_the_command_replays_a_list_of_jobs(tmp_path: Path) -> None:
    jobs = drawn(5, 150, 1.0)
    lines = [
        f"{start:.0f},{duration:.0f},{amount:.0f},{'ab'[domain]},u{domain}"
        for start, duration, amount, domain in zip(
            jobs.start_s, jobs.duration_s, jobs.accelerators, jobs.domains, strict=True
        )
    ]
    path = write(tmp_path / "jobs.csv", lines, "start,duration_s,accelerators,domain,user")
    out = tmp_path / "out.json"
    run = CliRunner().invoke(
        demand, [str(path), "--seeds", "2", "--without", "b", "--horizon", "10m", "--json", str(out)]
    )
    assert run.exit_code == 0, run.output
    rows = {
        (row["subject"], row["measure"], row["slice"]): row
        for row in json.loads(out.read_text(encoding="utf-8"))["rows"]
    }
    for where in ("steps=0", "steps=1"):
        for subject in ("both", "structure", "history", "persistence", "level_stays"):
            row = rows[subject, "accuracy_10m_ratio", where]
            assert row["low"] is None or row["low"] <= row["value"] <= row["high"]
        assert rows["persistence", "skill_over_persistence_10m_ratio", where]["value"] == 0
        assert 0 <= rows["both", "coverage_80_10m_ratio", where]["value"] <= 1
    assert rows["history", "accuracy_10m_ratio", "steps=0"]["baseline"] is True
    assert (
        rows["structure", "accuracy_10m_ratio", "steps=1"]["value"]
        > rows["history", "accuracy_10m_ratio", "steps=1"]["value"]
    )


@pytest.mark.parametrize(
    ("arguments", "lines", "said"),
    [
        (["--without", "z"], ["0,60,1,x", "90000,60,1,x"], "z cannot be left out"),
        (["--without", "x"], ["0,60,1,x", "90000,60,1,x"], "every domain cannot be left out"),
        ([], ["0,60,1,x", "3000,60,1,x"], "too few to forecast 1h ahead"),
        ([], ["never,60,1,x"], "no line is a job"),
        (["--window", "1h", "--horizon", "10m"], ["0,60,1,x", "900000,60,1,x"], "10m is shorter than a window of 1h"),
        ([], ["0,60,1,x", "4102444800,60,1,x"], "6837408 windows of 600 s, at most 200000"),
        (["--window", "1s"], ["0,60,1,x", "900000,60,1,x"], "900000 windows of 1 s, at most 200000"),
        ([], ["1700000000000,60,1,x"], "no line is a job"),
    ],
)
def test_refusals_name_what_is_wrong(tmp_path: Path, arguments: list[str], lines: list[str], said: str) -> None:
    path = write(tmp_path / "jobs.csv", lines)
    out = tmp_path / "out.json"
    run = CliRunner().invoke(demand, [str(path), *arguments, "--json", str(out)])
    assert run.exit_code != 0
    assert said in (run.output + str(run.exception))
    assert not out.exists()


def cold_rows(jobs: JobList, steps: Steps) -> dict[str, float | None]:
    report = JobReport("x", ["1h"], [6], 600.0)
    report.add(replay(jobs, [6], 600.0, 200, steps, Learning(), 3), 30, 200)
    rows = report.rows(np.random.default_rng(0), 1)
    return {row.subject: row.value for row in rows if row.measure == "cold_start_accuracy_1h_ratio"}


def test_who_knows_the_steps_exactly_misses_only_what_ends_early() -> None:
    jobs = drawn(4)
    assert cold_rows(jobs, Steps(share=1.0, early=0.0))["steps_known_exactly"] == pytest.approx(1.0)
    found = cold_rows(jobs, Steps(share=1.0, early=0.3))
    known, said = found["steps_known_exactly"], found["structure"]
    assert known is not None
    assert said is not None
    assert said < known < 1
    assert "steps_known_exactly" not in cold_rows(jobs, Steps(share=0.5))


def test_hindsight_knows_the_middle_of_each_user_and_size() -> None:
    # Every four hours two of domain a that last two hours and one that lasts ten minutes and one of b that lasts half an hour.
    rows = []
    for at in range(8):
        start = 30 * 600.0 + at * 4 * 3600.0 + 300.0
        rows += [
            (start, 7200.0, 2.0, 0),
            (start + 1, 7200.0, 2.0, 0),
            (start + 2, 900.0, 2.0, 0),
            (start, 1800.0, 4.0, 1),
        ]
    # Asked for an hour later: 2 + 2 of a; said: 2 for each of a, so that the short one is wrong.
    assert cold_rows(jobs_of(rows), Steps())["user_and_size_in_hindsight"] == pytest.approx(0.5)
