"""Intervals, comparisons, reasons for missing figures, resampling, and networks made for a trace."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from meridian.errors import InvalidArgumentError
from meridian.result import document
from simulation.compare import Comparison, job_intervals, over_seeds
from simulation.domains import NetworkError
from simulation.experiment import (
    AUTO,
    Experiment,
    PlacedMeasures,
    Run,
    network_of,
    resampled,
    run_all,
    setting_of,
    unfit,
    without,
)
from simulation.made_networks import uniform
from simulation.measures import JobRecord, Measures
from simulation.model import Network, SimDomain, SimLink, SimNode, Throughputs, Trace, TraceJob
from simulation.plot import png
from simulation.policies import setting
from simulation.report import Report, measure_name
from simulation.schedule import schedule_csv

DAY = 86_400.0


def record(job_id: str, jct_s: float, duration_s: float = 10.0, tenant: str = "t") -> JobRecord:
    return JobRecord(
        job_id, tenant, "home", 0.0, 0.0, jct_s, duration_s, duration_s, 1.0, 0, 0.0, 0.0, math.nan, 1.0, rho=1.0
    )


def run(name: str, jcts: dict[str, float], seed: int = 0) -> Run:
    measures = PlacedMeasures(uniform(1, 1, 1))
    measures.now_s = measures.first_s = 0.0
    measures.jobs = [record(job_id, jct_s) for job_id, jct_s in jcts.items()]
    return Run(setting(name), seed, measures, 0.0)


def job(job_id: str, submit_s: float, duration_s: float = 10.0, **fields: object) -> TraceJob:
    return replace(TraceJob(job_id, submit_s, duration_s, accelerators=1), **fields)  # type: ignore[arg-type]


# -- intervals and comparisons ---------------------------------------------------------------------------------------


def test_bootstrap_has_the_width_of_the_standard_error() -> None:
    """The mean of 400 exponential JCTs of mean 3600 s has the standard error 1/20 h: the 95 % interval is 0.196 h wide."""
    values = np.random.default_rng(1).exponential(3600.0, 400)
    intervals = job_intervals([record(str(place), value) for place, value in enumerate(values)], seed=0)
    low, high = intervals["jct_mean_h"]
    assert low < values.mean() / 3600 < high
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20 / 3600, rel=0.15)
    assert intervals["fairness_rho_mean"] == (1.0, 1.0)
    assert job_intervals([record("a", 1.0)], seed=0) == {}


def test_interval_over_seeds_is_within_the_values() -> None:
    low, high = over_seeds([1.0, 2.0, 6.0], seed=0)
    assert 1.0 <= low < 3.0 < high <= 6.0
    assert over_seeds([2.0, 2.0], seed=0) == (2.0, 2.0)


def test_references_and_gap() -> None:
    """Mean JCTs: FIFO 40, LAS 30, SJF 20, SRTF 10, isolated 50: the blind reference is LAS, the best but SRTF is SJF."""
    runs = [
        run(name, {"a": mean, "b": mean})
        for name, mean in (("isolated-fifo", 50.0), ("fifo", 40.0), ("las", 30.0), ("sjf", 20.0), ("srtf", 10.0))
    ]
    comparison = Comparison(runs, 0)
    references = comparison.references
    assert (references.isolated, references.blind, references.best, references.oracle) == (
        ("isolated-fifo",), "las", "sjf", "srtf",
    )  # fmt: skip
    assert comparison.gap_closed("sjf").value == pytest.approx(0.5)
    assert comparison.gap_closed("fifo").value == pytest.approx(-0.5)
    assert references.unpredicted == "las"
    assert comparison.jct_reduction("srtf", "isolated-fifo").value == pytest.approx(0.8)


def test_the_gap_from_the_best_baseline_without_a_predictor_stands_beside_the_other() -> None:
    """Mean JCTs: FIFO 40, EASY by declared limits 30, predicted SJF 20, SRTF 10, ours 15."""
    means = {"fifo": 40.0, "easy-declared": 30.0, "sjf-predicted": 20.0, "srtf": 10.0, "meridian": 15.0}
    comparison = Comparison([run(name, {"a": mean, "b": mean}) for name, mean in means.items()], 0)
    assert (comparison.references.blind, comparison.references.unpredicted) == ("sjf-predicted", "easy-declared")
    assert comparison.gap_closed("meridian").value == pytest.approx(0.5)
    assert comparison.gap_closed("meridian", unpredicted=True).value == pytest.approx(0.75)
    assert comparison.gap_closed("sjf-predicted", unpredicted=True).value == pytest.approx(0.5)
    alone = Comparison([run("sjf-predicted", {"a": 2.0}), run("srtf", {"a": 1.0})], 0)
    assert "neither true run times nor a predictor" in str(alone.gap_closed("srtf", unpredicted=True).reason)


@pytest.mark.parametrize("names", [("fifo", "sjf-predicted", "srtf"), ("fifo", "srtf")])
def test_both_gaps_are_printed_where_they_differ(names: tuple[str, ...]) -> None:
    """A long job, then many short ones: of jobs alike the predictor learns, and lets the short ones go first."""
    lengths = [300.0, 5.0, *[300.0, 300.0, 300.0, 5.0, 5.0, 5.0] * 6]
    jobs = [
        TraceJob(str(place), place * 30.0, duration, accelerators=1, tenant="t", user="u" if duration > 5 else "v")
        for place, duration in enumerate(lengths)
    ]
    experiment = Experiment(uniform(1, 1, 2), Trace("t", jobs), tuple(setting(name) for name in names))
    report = Report(experiment, run_all(experiment))
    table = report.comparison_table()
    assert table is not None
    heads = [str(column.header) for column in table.columns if str(column.header).startswith("gap")]
    rows = {(row.subject, row.measure, row.slice): row.value for row in report.rows() if "gap_closed" in row.measure}
    assert rows["srtf", "jct_gap_closed_unpredicted_share", "from=fifo to=srtf"] == 1.0
    if len(names) == 2:
        assert heads == ["gap from fifo to srtf closed"]
        assert rows["srtf", "jct_gap_closed_share", "from=fifo to=srtf"] == 1.0
    else:
        assert heads == ["gap from sjf-predicted to srtf closed", "gap from fifo to srtf closed"]
        assert rows["sjf-predicted", "jct_gap_closed_share", "from=sjf-predicted to=srtf"] == 0.0
        assert 0.0 < (rows["sjf-predicted", "jct_gap_closed_unpredicted_share", "from=fifo to=srtf"] or 0.0) < 1.0
        assert any(
            note.startswith("the gap from fifo: from the best one that uses no predictor") for note in report.notes()
        )


@pytest.mark.parametrize(
    ("means", "reason"),
    [
        ({"fifo": 10.0, "sjf": 5.0}, "the oracle srtf is not among"),
        ({"sjf": 10.0, "srtf": 5.0}, "no pooled baseline without"),
        ({"fifo": 5.0, "srtf": 5.0}, "there is no gap"),
    ],
)
def test_a_gap_that_is_none_has_a_reason(means: dict[str, float], reason: str) -> None:
    comparison = Comparison([run(name, {"a": mean}) for name, mean in means.items()], 0)
    figure = comparison.gap_closed(next(iter(means)))
    assert figure.value is None
    assert reason in str(figure.reason)


def test_an_oracle_that_is_not_ahead_is_said() -> None:
    trace = Trace("t", [job("x", 0.0), job("y", 1.0)])
    experiment = Experiment(uniform(1, 1, 1), trace, tuple(setting(name) for name in ("fifo", "srtf")))
    notes = Report(experiment, run_all(experiment)).notes()
    assert "no share of the gap closed: fifo has a mean JCT no greater than srtf: there is no gap" in notes


def test_comparison_is_over_jobs_that_both_finished() -> None:
    comparison = Comparison([run("fifo", {"a": 10.0, "b": 30.0, "c": 1000.0}), run("las", {"a": 5.0, "b": 5.0})], 0)
    figure = comparison.jct_reduction("las", "fifo")
    assert (figure.value, figure.n) == (pytest.approx(0.75), 2)


def test_seeds_are_paired() -> None:
    """Halved with the first seed, a quarter less with the second: 37.5 % on average, whatever the seeds' own means."""
    runs = [
        run("fifo", {"a": 10.0}, 0),
        run("las", {"a": 5.0}, 0),
        run("fifo", {"a": 400.0}, 1),
        run("las", {"a": 300.0}, 1),
    ]
    figure = Comparison(runs, 0).jct_reduction("las", "fifo")
    assert figure.value == pytest.approx(0.375)
    assert figure.n == 2


# -- reasons ---------------------------------------------------------------------------------------------------------


def test_what_a_network_does_not_say_is_null_with_its_reason() -> None:
    cpus = [SimNode(f"{name}-0", name, 4.0, 0) for name in ("a", "b")]
    network = Network([SimDomain("a", [cpus[0]], currency="USD"), SimDomain("b", [cpus[1]], currency="EUR")])
    jobs = [TraceJob("x", 0.0, 10.0, cpus=1.0), TraceJob("y", 1.0, 10.0, cpus=1.0)]
    experiment = Experiment(network, Trace("t", jobs), (setting("fifo"),))
    rows = {row.measure: row for row in Report(experiment, run_all(experiment)).rows() if row.slice == "all"}
    assert rows["accelerator_cost_mixed"].reason == "the domains of the network have different currencies"
    assert rows["energy_kwh"].reason == "the network gives no watts"
    assert rows["fairness_jain_index"].reason == "all jobs are of one tenant"
    assert rows["jct_mean_h"].value == pytest.approx(10 / 3600)
    document("c", [], 0, "simulated", rows.values())


def test_processors_count_where_no_job_has_accelerators() -> None:
    """Four processors; x holds three for 10 s, y wants two from 4 s on and gets them at 10 for 20 s. While both are there 5 are wanted."""
    network = Network([SimDomain("a", [SimNode("a-0", "a", 4.0, 0)])])
    jobs = [TraceJob("x", 0.0, 10.0, ranks=3, cpus=1.0), TraceJob("y", 4.0, 20.0, cpus=2.0, tenant="other")]
    experiment = Experiment(network, Trace("t", jobs), (setting("fifo"),))
    runs = run_all(experiment)
    report = Report(experiment, runs)
    rows = {(row.measure, row.slice): row.value for row in report.rows()}
    assert rows["cpu_hours", "all"] == pytest.approx((3 * 10 + 2 * 20) / 3600)
    assert rows["cpu_hours", "tenant=other"] == pytest.approx(40 / 3600)
    assert rows["accelerator_hours", "all"] == 0
    assert rows["allocated_share", "all"] == pytest.approx(3 / 4)
    assert rows["allocated_share_all", "all"] == pytest.approx(70 / (4 * 30))
    assert (rows["used_of_held_share", "all"], rows["lost_cpu_hours", "all"]) == (1, 0)
    # x: contention 1 for 4 s and 5/4 for 6 s; y: 5/4 for 6 s and 1 for 20 s.
    contentions = ((4 + 6 * 5 / 4) / 10, (6 * 5 / 4 + 20) / 26)
    rho = (10 / (10 * contentions[0]) + 26 / (20 * contentions[1])) / 2
    assert rows["fairness_rho_mean_ratio", "all"] == pytest.approx(rho)
    assert "CPU h" in [column.header for table in report.tables(400) for column in table.columns]
    (first, second) = csv.DictReader(schedule_csv(experiment, runs).splitlines())
    assert (first["cpus"], second["cpus"], second["accelerators"]) == ("3.0", "2.0", "0.0")


def test_data_that_moves_over_links_without_prices_costs_an_unknown_amount() -> None:
    nodes = [SimNode("a-0", "a", 4.0, 0), SimNode("b-0", "b", 4.0, 0, accelerators=1, model="v100")]
    links = [SimLink("a", "b", 100.0), SimLink("b", "a", 100.0)]
    network = Network([SimDomain("a", [nodes[0]]), SimDomain("b", [nodes[1]])], links)
    trace = Trace("t", [job("x", 0.0, data_domain="a", data_bytes=1000.0)])
    for price in (0, 2**30):
        for link in links:
            link.price_micro_units_per_gib = price
        experiment = Experiment(network, trace, (setting("fifo"),))
        rows = {row.measure: row for row in Report(experiment, run_all(experiment)).rows() if row.slice == "all"}
        assert rows["wan_gb"].value == pytest.approx(1000 / 1e9)
        if price:
            assert rows["wan_cost_usd"].value == pytest.approx(0.001)  # 1000 bytes at 1 micro-unit each
        else:
            assert rows["wan_cost_usd"].reason == "the network gives no prices of links"
        # 10 s to bring the data, 10 s to run.
        assert rows["jct_mean_h"].value == pytest.approx(20 / 3600)


def test_names_of_measures_keep_the_form_and_end_in_units() -> None:
    network = Network([SimDomain("a", [], currency="CNY")])
    names = [measure_name(figure, network) for figure in Measures(network).figures()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", name) for name in names)
    units = ("_h", "_ms", "_ratio", "_share", "_share_all", "_count", "_index", "_hours", "_gb", "_kwh", "_kg", "_cny")
    assert [name for name in names if not name.endswith(units)] == []


def test_tables_fit_the_width() -> None:
    trace = Trace("t", [job("x", 0.0), job("y", 1.0)])
    experiment = Experiment(uniform(1, 1, 1), trace, tuple(setting(name) for name in ("fifo", "easy-predicted")))
    report = Report(experiment, run_all(experiment))
    assert not [note for note in report.notes() if "declares" in note]
    wide = report.tables(400)
    narrow = report.tables(60)
    assert len(wide) == 1
    assert sum(len(table.columns) - 1 for table in narrow) == len(wide[0].columns) - 1
    for table in narrow:
        assert Console(width=1000).measure(table).maximum <= 60
        assert table.row_count == 2


def test_policies_that_rest_on_what_nobody_declared_are_named() -> None:
    trace = Trace("t", [job("x", 0.0), job("y", 1.0)])
    experiment = Experiment(uniform(1, 1, 1), trace, tuple(setting(name) for name in ("fifo", "easy-declared")))
    notes = Report(experiment, run_all(experiment)).notes()
    assert "no job of the trace declares a run time: easy-declared know nothing of run times here" in notes


# -- resampling ------------------------------------------------------------------------------------------------------


def test_resampled_days_keep_the_hour_and_the_jobs_of_a_day_together() -> None:
    jobs = [job(f"d{day}-{hour}", day * DAY + hour * 3600.0) for day in range(6) for hour in (0, 9, 17)]
    jobs[1] = replace(jobs[1], deadline_s=jobs[1].submit_s + 500.0)
    trace = Trace("t", jobs)
    drawn = [resampled(trace, seed) for seed in range(20)]
    for one in drawn:
        assert len(one.jobs) == len(jobs)
        assert len({item.job_id for item in one.jobs}) == len(jobs)
        assert [item.submit_s for item in one.jobs] == sorted(item.submit_s for item in one.jobs)
        for item in one.jobs:
            assert int(item.job_id.split("-")[1].split("~")[0]) * 3600.0 == item.submit_s % DAY
            if not math.isnan(item.deadline_s):
                assert item.deadline_s - item.submit_s == 500.0
    assert str(resampled(trace, 3).jobs) == str(drawn[3].jobs)
    assert len({tuple(item.job_id for item in one.jobs) for one in drawn}) > 10
    assert [item.submit_s for item in trace.jobs] == [
        day * DAY + hour * 3600.0 for day in range(6) for hour in (0, 9, 17)
    ]
    with pytest.raises(InvalidArgumentError, match="two days"):
        resampled(Trace("t", jobs[:3]), 0)


def test_resampled_jobs_have_ids_of_their_own() -> None:
    """Also those of a trace that was itself drawn, where a job has the name that another's twin would get."""
    jobs = [TraceJob(job_id, day * 86_400.0, 1.0) for day, job_id in enumerate(("a", "a~2", "a~3"))]
    for seed in range(40):
        drawn = [job.job_id for job in resampled(Trace("t", jobs), seed).jobs]
        assert len(set(drawn)) == len(drawn), drawn


# -- networks and jobs that do not fit -------------------------------------------------------------------------------


def test_network_made_for_a_trace() -> None:
    """Demand 1000 accelerator-seconds in 100 s: 10 accelerators at work, 12.5 at a load of 0.8: 2 nodes of 8."""
    trace = Trace("t", [job("x", 0.0, 500.0, home_domain="h"), job("y", 100.0, 500.0, home_domain="h")])
    network = network_of(AUTO, trace)
    assert (network.accelerators, {node.accelerators for node in network.nodes}) == (16, {8})
    assert network_of(AUTO, trace, accelerators=32).accelerators == 32
    rates = Throughputs()
    rates.rates["model", 1] = {"t4": 1.0}
    profiled = replace(
        trace, jobs=[replace(item, profile="model", work=10.0) for item in trace.jobs], throughputs=rates
    )
    assert {node.model for node in network_of(AUTO, profiled).nodes} == {"t4"}
    cpus = Trace("t", [TraceJob("x", 0.0, 100.0, ranks=65, cpus=1.0), TraceJob("y", 1000.0, 10.0, cpus=1.0)])
    assert (len(network_of(AUTO, cpus).nodes), network_of(AUTO, cpus).accelerators) == (2, 0)
    with pytest.raises(InvalidArgumentError, match="no job of the trace"):
        network_of(AUTO, cpus, accelerators=8)
    with pytest.raises(
        NetworkError,
        match=r"greatest jobs need \d+ nodes, each domain for its own, but \d+ accelerators are \d+ of \d+; job \S+ needs",
    ):
        network_of(AUTO, Trace("t", [job("x", 0.0, ranks=2, accelerators=8)]), accelerators=8)


def test_jobs_without_a_place_by_setting() -> None:
    """Domains of 1 and 2 nodes with an accelerator: the job of two ranks fits one of them, never its home."""
    nodes = [
        SimNode(f"{name}-{place}", name, 8.0, 100, 1, "v100")
        for name, count in (("a", 1), ("b", 2))
        for place in range(count)
    ]
    network = Network([SimDomain("a", nodes[:1]), SimDomain("b", nodes[1:])])
    trace = Trace(
        "t",
        [
            job("fits", 0.0, home_domain="a"),
            job("pair", 0.0, home_domain="a", ranks=2),
            job("other-chip", 0.0, home_domain="b", accelerator_types=("h100",)),
            job("memory", 0.0, home_domain="b", memory_bytes=101),
        ],
    )
    found = {item.setting: item for item in unfit(network, trace, [setting("fifo"), setting("isolated-easy")])}
    assert found["fifo"].job_ids == ("other-chip", "memory")
    assert found["isolated-easy"].job_ids == ("pair", "other-chip", "memory")
    assert (
        found["isolated-easy"]
        .text(4)
        .startswith("3 of 4 jobs can never be placed by isolated-easy; for example pair: ")
    )
    assert [item.job_id for item in without(trace, {"pair", "memory"}).jobs] == ["fits", "other-chip"]
    with pytest.raises(InvalidArgumentError, match="no job"):
        without(trace, {item.job_id for item in trace.jobs})


def test_a_job_that_no_chip_here_was_measured_with_is_without_a_place() -> None:
    rates = Throughputs()
    rates.rates["model", 1] = {"k80": 1.0, "v100": 0.0}
    jobs = [job("slow", 0.0, profile="model", work=10.0), job("plain", 0.0)]
    [found] = unfit(uniform(1, 1, 1), Trace("t", jobs, rates), [setting("srtf")])
    assert found.job_ids == ("slow",)
    assert "was measured on none of v100" in found.reason


def test_unknown_policy_names_those_that_exist() -> None:
    with pytest.raises(InvalidArgumentError, match=r"known are .*fifo.*srtf"):
        setting_of("nope")
    assert setting_of("conservative-backfill")[0].knowledge == "declared"
    assert setting_of("balanced", isolated=True)[0].name == "isolated-balanced"


# -- pictures and schedules ------------------------------------------------------------------------------------------


def test_picture_of_many_points_and_of_none() -> None:
    busy, idle = run("fifo", {"a": 1.0}), run("las", {})
    busy.measures.series = [(float(place), 1.0, place % 3, 1.0) for place in range(9000)]
    busy.measures.now_s = 9000.0
    assert png([busy, idle]).startswith(b"\x89PNG")


def test_schedule_lists_jobs_that_were_never_submitted() -> None:
    trace = Trace("t", [job("x", 0.0), job("y", 100.0)])
    experiment = Experiment(uniform(1, 1, 1), trace, (setting("fifo"),), until_s=50.0)
    lines = schedule_csv(experiment, run_all(experiment)).splitlines()
    assert [line.split(",")[2:4] for line in lines[1:]] == [["x", "finished"], ["y", "not submitted"]]
