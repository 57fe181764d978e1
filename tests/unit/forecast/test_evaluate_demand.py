"""`meridian evaluate demand`: hand-computed figures, irregular and broken files, refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from meridian.cli.main import main
from services.forecast.autoregression import Autoregression
from services.forecast.demand_scoring import Scored, Sums, score_all, windows_ahead
from services.forecast.demand_series import Series, read_demand, time_of
from services.forecast.methods import forecast_history


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["evaluate", "demand", *map(str, arguments)])


def figures(path: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    rows = json.loads(path.read_text())["rows"]
    return {(row["subject"], row["measure"], row["slice"]): row for row in rows}


def table(path: Path, lines: list[str], header: str = "series,time,value") -> Path:
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def daily(name: str, count: int = 1000, seed: int = 0) -> list[str]:
    chance = np.random.default_rng(seed)
    return [
        f"{name},{600 * t},{60 + 40 * math.sin(2 * math.pi * t / 144) + chance.normal(0, 1):.3f}" for t in range(count)
    ]


def test_figures_by_hand() -> None:
    value, origin = np.array([10.0, 20.0, 0.0, 30.0]), np.array([10.0, 10.0, 20.0, 29.0])
    made = np.array([11.0, 16.0, 10.0, 30.0])
    nothing = np.full(4, math.nan)
    scored = Scored("s", value, origin, {"served": made}, made - 4, made + 4, nothing, nothing, 0, 30.0)
    sums = Sums.of(scored, "served")
    assert (sums.error, sums.volume, sums.error_last) == (15.0, 60.0, 31.0)
    # Changed by more than 10 % of the last value: the second and the third; 29 to 30 is less.
    assert (sums.error_changed, sums.error_last_changed, sums.volume_changed, sums.changed) == (14.0, 30.0, 20.0, 2)
    # The second lies on its bound, the third outside.
    assert (sums.inside, sums.banded) == (3, 4)
    # Pinball of 0.1, 0.5, 0.9 at 10 in [7, 15] about 11: 0.3, 0.5, 0.5; the mean over the levels.
    none = nothing[:1]
    one = Scored("s", value[:1], origin[:1], {"served": made[:1]}, made[:1] - 4, made[:1] + 4, none, none, 0, 30.0)
    first = Sums.of(one, "served")
    assert first.pinball == pytest.approx((0.3 + 0.5 + 0.5) / 3)


def test_a_daily_pattern_is_forecast_with_skill(tmp_path: Path) -> None:
    path = table(tmp_path / "d.csv", daily("a") + daily("b", seed=1))
    result = run(path, "--horizon", "10m", "--horizon", "1h", "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    found = figures(tmp_path / "out.json")
    assert found["served", "accuracy_10m_ratio", "all"]["value"] > 0.92
    assert found["served", "accuracy_1h_ratio", "series=b"]["value"] > 0.88
    assert found["served", "skill_over_persistence_median_series_1h_ratio", "all"]["value"] > 0.5
    assert found["served", "wape_changed_to_persistence_1h_ratio", "all"]["value"] < 0.85
    assert 0.7 < found["served", "coverage_80_1h_ratio", "all"]["value"] < 0.9
    assert found["persistence", "skill_over_persistence_1h_ratio", "all"]["value"] == 0
    assert found["persistence", "accuracy_1h_ratio", "all"]["baseline"]
    assert found["seasonal_86400s", "accuracy_1h_ratio", "all"]["baseline"]
    assert found["served", "accuracy_10m_ratio", "all"]["n"] == 400


def test_a_method_that_never_spoke_has_no_target_and_that_is_said(tmp_path: Path) -> None:
    path = table(tmp_path / "d.csv", daily("a", 400))
    assert run(path, "--horizon", "10m", "--json", tmp_path / "out.json").exit_code == 0
    found = figures(tmp_path / "out.json")
    silent = [row for (subject, measure, _), row in found.items() if subject == "median" and measure.endswith("_ratio")]
    assert {(row["value"], row["reason"]) for row in silent} == {(None, "no target")}


def test_a_week_is_a_season_where_two_of_them_are_known(tmp_path: Path) -> None:
    chance = np.random.default_rng(3)
    hours = np.arange(3 * 168)
    busy = np.where(hours // 24 % 7 < 5, 150 + 80 * np.sin(2 * np.pi * hours / 24), 30.0) + chance.normal(
        0, 8, len(hours)
    )
    lines = [f"w,{3600 * hour},{max(0.0, value)}" for hour, value in zip(hours, busy, strict=True)]
    found = {}
    for weeks in (3, 1):
        path = table(tmp_path / f"{weeks}.csv", lines[: weeks * 168])
        assert run(path, "--horizon", "6h", "--json", tmp_path / "out.json").exit_code == 0
        found[weeks] = figures(tmp_path / "out.json")
    # What a day says of a Saturday is wrong: without the week it was 0.18.
    assert found[3]["served", "skill_over_persistence_6h_ratio", "all"]["value"] > 0.7
    assert ("seasonal_604800s", "accuracy_6h_ratio", "all") not in found[1]


def test_a_season_that_is_not_known_yet_takes_nothing_from_what_else_is_learned() -> None:
    # Two weeks of noise about a mean: all that is to be learned is to return to it, in the first week as in the second.
    values = np.random.default_rng(4).normal(100, 20, (4, 2016))
    errors = {}
    for periods in ((6, 144), (6, 144, 1008)):
        made = forecast_history(Autoregression(periods), values, 6)
        errors[len(periods)] = float(np.abs(values[:, 612:1000] - made[:, 606:994]).mean())
    assert errors[3] == pytest.approx(errors[2], rel=0.02)


def test_units_do_not_change_the_figures(tmp_path: Path) -> None:
    dates = [
        f"a,{np.datetime64('2026-01-01T00:00:00') + np.timedelta64(600 * t, 's')},{line.split(',')[2]}"
        for t, line in enumerate(daily("a", 300))
    ]
    outs = []
    for name, lines in {"seconds": daily("a", 300), "dates": dates}.items():
        run(table(tmp_path / f"{name}.csv", lines), "--horizon", "1h", "--json", tmp_path / name)
        outs.append(figures(tmp_path / name)["served", "accuracy_1h_ratio", "all"]["value"])
    assert outs[0] == outs[1]


def test_a_series_that_stands_newest_first_is_the_same(tmp_path: Path) -> None:
    lines = daily("a", 100)
    newest_first = table(tmp_path / "newest.csv", [lines[-1], *lines[::-1]])
    (series,) = read_demand(table(tmp_path / "d.csv", lines)).series
    read = read_demand(newest_first)
    np.testing.assert_array_equal(read.series[0].values, series.values)
    assert read.left_aside.total == 1
    # One step back is no order: the lines before it count, those that go back do not.
    read = read_demand(table(tmp_path / "step.csv", [lines[1], lines[0], *lines[2:]]))
    np.testing.assert_array_equal(read.series[0].values, series.values[1:])
    assert read.left_aside.sentences() == ["1 line left aside: time goes back (line 3)"]


@pytest.mark.parametrize("scale", [1e-14, 1e-7, 1e13])
def test_the_scale_of_a_demand_changes_no_figure(tmp_path: Path, scale: float) -> None:
    values = [(name, t, float(value)) for name, t, value in (line.split(",") for line in daily("a", 400))]
    outs = []
    for name, factor in (("one", 1.0), ("scaled", scale)):
        lines = [f"{series},{t},{value * factor!r}" for series, t, value in values]
        run(table(tmp_path / f"{name}.csv", lines), "--horizon", "1h", "--json", tmp_path / name)
        outs.append(figures(tmp_path / name))
    for measure in ("accuracy", "changed_share", "wape_changed", "coverage_80", "pinball_to_volume"):
        for subject in ("served", "persistence"):
            key = subject, f"{measure}_1h_ratio", "all"
            assert outs[1][key]["value"] == pytest.approx(outs[0][key]["value"], abs=0.03), key
    key = "autoregression", "accuracy_1h_ratio", "all"
    assert outs[1][key]["value"] == pytest.approx(outs[0][key]["value"], rel=1e-6)


def test_samples_that_come_as_they_like_are_gathered_in_longer_windows(tmp_path: Path) -> None:
    times = np.sort(np.random.default_rng(0).uniform(0, 10 * 86400, 2400))
    path = table(
        tmp_path / "d.csv", [f"a,{time:.2f},{60 + 40 * math.sin(2 * math.pi * time / 86400):.3f}" for time in times]
    )
    read = read_demand(path)
    assert read.unusable == {}
    (series,) = read.series
    # 360 s apart on average, 250 s at the median: of the usual lengths the next is ten minutes.
    assert series.window_s == 600.0
    assert np.isnan(series.values).mean() < 0.3
    assert series.start_s <= times[0] < series.start_s + 600
    inside = times[(times >= series.start_s + 6000) & (times < series.start_s + 6600)]
    wanted = np.mean(60 + 40 * np.sin(2 * math.pi * inside / 86400))
    assert series.values[10] == pytest.approx(wanted, abs=0.01)


def test_what_cannot_be_used_is_counted_and_listed(tmp_path: Path) -> None:
    lines = daily("good", 200)
    lines += ["good,119400,5", "good,600,5", "good,119460,-1", "good,119470,nan", "good,119480,", "good,then,5", ",1,1"]
    lines += [f"short,{600 * t},1" for t in range(10)]
    lines += [f"empty,{600 * t}," for t in range(100)]
    lines += [f"constant,{600 * t},7" for t in range(100)]
    lines += [f"zero,{600 * t},0" for t in range(100)]
    lines += [f"mixed,{600 * (37 * t % 101)},3" for t in range(100)]
    lines += [f"coarse,{7200 * t},{t % 5}" for t in range(100)]
    lines += [f"holes,{600 * t * (1 if t < 60 else 40)},3" for t in range(100)]
    path = table(tmp_path / "d.csv", lines)
    result = run(path, "--horizon", "1h", "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    found = figures(tmp_path / "out.json")
    latest = np.maximum.accumulate([37 * t % 101 for t in range(100)])
    aside = 100 - len(np.unique(latest))
    assert found["series", "lines_left_aside_count", "all"]["value"] == 7 + 100 + aside
    for said in ("time is there twice (line 202)", "value is negative (line 204)", "no series (line 208)"):
        assert said in result.output
    for name, reason in {
        "short": "10 usable values",
        "empty": "no usable value",
        "mixed": "repeat or go back",
        "coarse": "a value every 7200 s",
        "holes": "hold no value",
    }.items():
        row = found["served", "accuracy_1h_ratio", f"series={name}"]
        assert row["value"] is None
        assert reason in row["reason"]
    assert found["served", "accuracy_1h_ratio", "series=constant"]["value"] == 1
    assert (
        found["served", "skill_over_persistence_1h_ratio", "series=constant"]["reason"] == "persistence made no error"
    )
    assert found["served", "accuracy_1h_ratio", "series=zero"]["reason"] == "demand was zero throughout"


def test_irregular_samples_are_gathered_and_gaps_are_not_scored(tmp_path: Path) -> None:
    lines = [f"a,{600 * t + (37 * t) % 60},{t % 7}" for t in range(300) if not 250 <= t < 270]
    path = table(tmp_path / "d.csv", lines)
    (series,) = read_demand(path).series
    assert len(series.values) == pytest.approx(300, abs=6)
    result = run(path, "--horizon", "10m", "--json", tmp_path / "out.json")
    found = figures(tmp_path / "out.json")
    assert result.exit_code == 0
    assert 30 < found["served", "accuracy_10m_ratio", "all"]["n"] <= 42


def test_a_forecast_does_not_exceed_the_capacity(tmp_path: Path) -> None:
    lines = [f"a,{600 * t},{t},{300}" for t in range(301)]
    path = table(tmp_path / "d.csv", lines, "series,time,value,capacity")
    run(path, "--horizon", "1h", "--json", tmp_path / "out.json")
    bare = table(tmp_path / "b.csv", [line.rsplit(",", 1)[0] for line in lines])
    run(bare, "--horizon", "1h", "--json", tmp_path / "bare.json")
    measure = ("served", "accuracy_1h_ratio", "all")
    assert figures(tmp_path / "out.json")[measure]["value"] >= figures(tmp_path / "bare.json")[measure]["value"] > 0.95


def test_how_far_ahead_a_horizon_is_in_windows() -> None:
    # (horizon, window): nearest where that is within 5 %, else never nearer than what was asked for.
    cases = {
        (600, 600): 1,
        (3600, 600): 6,
        (600, 420): 2,
        (3600, 420): 9,
        (3600, 2400): 2,
        (600, 585): 1,
        (3600, 608): 6,
    }
    assert {case: windows_ahead(*map(float, case)) for case in cases} == cases
    assert windows_ahead(600.0, 600.3) == 1


def test_a_horizon_between_windows_is_forecast_further_ahead_and_said(tmp_path: Path) -> None:
    lines = [f"a,{420 * t},{t}" for t in range(300)] + [f"b,{600 * t},{t}" for t in range(300)]
    result = run(table(tmp_path / "d.csv", lines), "--horizon", "10m", "--json", tmp_path / "out.json")
    found = figures(tmp_path / "out.json")
    row = found["series", "ahead_10m_s", "all"]
    assert (row["value"], row["low"], row["high"], row["n"]) == (840.0, 600.0, 840.0, 2)
    assert "series a: 10m is forecast 840 s ahead, 2 windows of 420 s" in result.output
    assert "series b" not in result.output
    # Persistence misses a ramp of one a window by as many windows as it looks ahead.
    first, last = 240, 300
    accuracy = 1 - 2 * (last - first) / sum(range(first, last))
    assert found["persistence", "accuracy_10m_ratio", "series=a"]["value"] == pytest.approx(accuracy)


def test_a_horizon_as_long_as_the_series_is_unknown_and_takes_no_memory(tmp_path: Path) -> None:
    path = table(tmp_path / "d.csv", daily("a", 200) + [f"b,{600 * t},{t % 5}" for t in range(1500)])
    result = run(path, "--horizon", "9d", "--horizon", "9999999d", "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    found = figures(tmp_path / "out.json")
    row = found["served", "accuracy_9d_ratio", "series=a"]
    assert (row["value"], row["reason"]) == (None, "unknown: 200 windows of 600 s are no longer than 777600 s")
    assert found["served", "accuracy_9d_ratio", "series=b"]["value"] is not None
    assert found["served", "accuracy_9999999d_ratio", "all"]["reason"] == "no series can be judged at this horizon"


def test_times_in_milliseconds_are_left_aside_and_not_taken_for_seconds(tmp_path: Path) -> None:
    lines = [f"a,{1_700_000_000_000 + 1000 * t},{t % 5}" for t in range(100)]
    result = run(table(tmp_path / "d.csv", lines), "--horizon", "1h", "--json", tmp_path / "out.json")
    assert "100 lines left aside: time is no number of seconds since 1970 (milliseconds?)" in result.output
    assert figures(tmp_path / "out.json")["served", "accuracy_1h_ratio", "series=a"]["value"] is None


def test_values_of_any_size_end_in_figures_or_are_left_aside(tmp_path: Path) -> None:
    lines = [f"large,{600 * t},{2e100 * (1 + t % 5)}" for t in range(100)]
    lines += [f"larger,{600 * t},{1e308 * (t % 2)}" for t in range(100)]
    result = run(table(tmp_path / "d.csv", lines), "--horizon", "1h", "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    assert "value is larger than 1e+100" in result.output
    found = figures(tmp_path / "out.json")
    assert found["served", "accuracy_1h_ratio", "series=large"]["value"] is None
    assert "no usable value" in found["served", "accuracy_1h_ratio", "series=large"]["reason"]


def test_values_up_to_the_largest_have_figures(tmp_path: Path) -> None:
    lines = [f"a,{600 * t},{2e99 * (t % 5)}" for t in range(200)]
    result = run(table(tmp_path / "d.csv", lines), "--horizon", "10m", "--horizon", "1h", "--json", tmp_path / "o.json")
    assert result.exit_code == 0, result.output
    found = figures(tmp_path / "o.json")
    small = [f"a,{600 * t},{2 * (t % 5)}" for t in range(200)]
    run(table(tmp_path / "s.csv", small), "--horizon", "10m", "--horizon", "1h", "--json", tmp_path / "s.json")
    for key, row in figures(tmp_path / "s.json").items():
        if key[0] == "persistence" and row["value"] is not None:
            assert found[key]["value"] == pytest.approx(row["value"]), key


def test_two_series_of_one_name_are_none(tmp_path: Path) -> None:
    first = [f"a,{600 * t},{t % 5}" for t in range(200)]
    longer = [f"a,{600 * t},{100 + t % 7}" for t in range(450)]
    clock_set_back = [*first[:100], f"a,{600 * 90},3", *first[100:]]
    for lines, reason in ((first + longer, "begin again: two series of one name"), (clock_set_back, None)):
        result = run(table(tmp_path / "d.csv", lines), "--horizon", "1h", "--json", tmp_path / "o.json")
        assert result.exit_code == 0, result.output
        row = figures(tmp_path / "o.json")["served", "accuracy_1h_ratio", "series=a"]
        assert (row["value"] is None) == (reason is not None)
        assert reason is None or reason in row["reason"]


@pytest.mark.parametrize(
    ("arguments", "header", "lines", "said"),
    [
        ([], "series,time,amount", ["a,1,2"], "the column value is missing"),
        ([], "series,time,value", [], "no line names a series"),
        ([], "series;time;value", ["a;1;2"], "cells are separated by semicolons, where commas are needed"),
        ([], "start;duration_s;accelerators", ["1;2;3"], "cells are separated by semicolons"),
        ([], "series,time,value,capacity,capacity", ["a,1,2,3,4"], "the column capacity is there twice"),
        ([], "start,duration_s,accelerators,user,user", ["1,2,3,a,b"], "the column user is there twice"),
        (
            [],
            "start,duration_s,accelerators",
            ["1,-2,3"],
            "no line is a job; 1 line left aside: duration_s is no positive",
        ),
        (
            [],
            "series,time,value",
            ["a,1,2,5"],
            "no line names a series; 1 line left aside: more cells than columns (line 2)",
        ),
        ([], "series,time,value", ["a,1,2", 'a,2,"3', "a,3,4"], "line 3: not a table of text (unexpected end of data)"),
        (["--horizon", "10"], "series,time,value", ["a,1,2"], "'10' is no length of time"),
        (["--horizon", "0m"], "series,time,value", ["a,1,2"], "'0m' is no length of time"),
    ],
)
def test_refusals_name_what_is_wrong(
    tmp_path: Path, arguments: list[str], header: str, lines: list[str], said: str
) -> None:
    result = run(table(tmp_path / "d.csv", lines, header), *arguments, "--json", tmp_path / "out.json")
    assert result.exit_code != 0
    assert said in (result.output + str(result.exception))
    assert not (tmp_path / "out.json").exists()


def test_times() -> None:
    assert time_of("1970-01-01 00:10:00") == 600
    assert time_of("1970-01-01T01:00:00+01:00") == 0
    assert time_of("60.5") == 60.5
    assert math.isnan(time_of("inf"))
    assert math.isnan(time_of("noon"))


def test_series_scored_together_are_scored_as_alone() -> None:
    chance = np.random.default_rng(8)
    series = [
        Series(f"s{length}-{number}", 0.0, 600.0, np.abs(np.cumsum(chance.normal(0, 2, length))))
        for length in (120, 200)
        for number in range(3)
    ]
    order = [4, 0, 5, 2, 1, 3]
    together = score_all([series[i] for i in order], 1800.0)
    for place, scored in zip(order, together, strict=True):
        (alone,) = score_all([series[place]], 1800.0)
        assert scored.name == alone.name
        for name, forecast in alone.forecasts.items():
            assert np.allclose(scored.forecasts[name], forecast, equal_nan=True)
        assert np.allclose(scored.high, alone.high, equal_nan=True)


def test_series_that_end_at_other_times_are_scored_as_alone() -> None:
    chance = np.random.default_rng(9)
    series = []
    for length in (90, 305, 121, 300, 333):
        values = np.abs(np.cumsum(chance.normal(0, 2, length)))
        values[chance.random(length) < 0.05] = math.nan
        capacity = np.full(length, float(np.nanmax(values))) if length % 2 else None
        series.append(Series(f"s{length}", 0.0, 600.0, values, capacity))
    for place, scored in enumerate(score_all(series, 1800.0)):
        (alone,) = score_all([series[place]], 1800.0)
        assert (scored.name, scored.missing, scored.largest) == (alone.name, alone.missing, alone.largest)
        assert np.array_equal(scored.value, alone.value)
        assert len(alone.value) > 10
        assert scored.forecasts.keys() == alone.forecasts.keys()
        for name, forecast in alone.forecasts.items():
            assert np.allclose(scored.forecasts[name], forecast, equal_nan=True, rtol=1e-12), name
        for name in ("origin", "low", "high", "low_last", "high_last"):
            assert np.allclose(getattr(scored, name), getattr(alone, name), equal_nan=True, rtol=1e-12), name


def test_headings_may_be_capitalised(tmp_path: Path) -> None:
    lines = [f"a,{600 * t},{t % 7}" for t in range(100)]
    usual, other = (
        read_demand(table(tmp_path / "d.csv", lines, header)) for header in ("series,time,value", "Series,TIME,Value")
    )
    assert np.array_equal(usual.series[0].values, other.series[0].values)
    # Where one is spelt so without capitals, the other is another column.
    both = read_demand(table(tmp_path / "d.csv", [f"{line},9" for line in lines], "series,time,value,Value"))
    assert np.array_equal(usual.series[0].values, both.series[0].values)


def test_a_capacity_that_cannot_be_read_is_counted_and_listed(tmp_path: Path) -> None:
    cells = {3: "n/a", 7: "-5", 9: "inf", 11: "1e200", 13: ""}
    lines = [f"a,{600 * t},{t % 7},{cells.get(t, '300')}" for t in range(100)]
    path = table(tmp_path / "d.csv", lines, "series,time,value,capacity")
    result = run(path, "--horizon", "1h", "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    found = figures(tmp_path / "out.json")
    assert found["series", "cells_taken_for_empty_count", "all"]["value"] == 4
    assert found["series", "lines_left_aside_count", "all"]["value"] == 0
    assert "4 cells taken for empty: capacity is no number from 0 to 1e+100 (lines 5, 9, 11, 13)" in result.output
    (series,) = read_demand(path).series
    assert series.capacity is not None
    assert np.flatnonzero(np.isnan(series.capacity)).tolist() == sorted(cells)


def test_decimal_commas_are_left_aside_and_not_cut_off(tmp_path: Path) -> None:
    lines = [*daily("a", 200), "a,120000,61,5", "a,120600,60,"]
    result = run(table(tmp_path / "d.csv", lines), "--horizon", "1h", "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    assert "1 line left aside: more cells than columns (line 202)" in result.output
    assert figures(tmp_path / "out.json")["series", "lines_left_aside_count", "all"]["value"] == 1


def test_a_series_that_is_not_judged_at_a_horizon_is_said(tmp_path: Path) -> None:
    # Times in minutes, say: windows of ten seconds.
    lines = [f"a,{10 * t},{t % 7}" for t in range(200)]
    result = run(table(tmp_path / "d.csv", lines), "--json", tmp_path / "out.json")
    assert "series a is not judged 1h ahead: 200 windows of 10 s are no longer than 3600 s" in result.output
    assert "10m ahead" not in result.output
