"""Reading measured runs, scores against hand-computed ones, and the command on files good and bad."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from meridian.cli.evaluation import SHOWN
from meridian.cli.main import main
from meridian.errors import FieldError, InvalidArgumentError
from meridian.result import read
from services.forecast.commands import estimate as estimate_command
from services.forecast.commands import layouts as layouts_command
from services.forecast.cost_model import fitted
from services.forecast.cost_model.evaluation.report import rows_of
from services.forecast.cost_model.evaluation.runs import read_runs, run_of
from services.forecast.cost_model.evaluation.scores import (
    calibrated_as_advised,
    calibrated_draws,
    constant_mfu,
    drawn_available,
    groups_to_calibrate,
    layout_regrets,
    memory_score,
    predicted_steps,
    probes_of,
    ran_and_fits,
    telling_of,
    time_score,
    to_measure,
    traits_of_runs,
    within_band,
)
from services.forecast.cost_model.layout import Recompute
from services.forecast.cost_model.memory import memory_of
from services.forecast.evaluate_cost_model import cost_model

BASE = {
    "accelerator": "A100-SXM4-80GB",
    "model": "llama2-7b",
    "n_accel": "8",
    "seq": "4096",
    "tp": "1",
    "pp": "1",
    "mbs": "1",
    "gbs": "64",
    "precision": "bf16",
    "recompute": "full",
    "step_s": "20",
}
COLUMNS = "accelerator,model,n_accel,seq,tp,pp,mbs,gbs,precision,recompute,step_s,mem_gib,group,notes"


def test_what_a_row_leaves_open_is_derived() -> None:
    run = run_of({**BASE, "dp": "", "vpp": "n/a"})
    # 18 bytes for 6.7 B parameters do not fit on 80 GiB: shards, and with them fused attention.
    assert (run.layout.dp, run.layout.zero, run.layout.fused_attention, run.layout.vpp) == (8, 3, True, 1)
    assert set(run.derived) == {"dp", "zero", "attention"}
    assert run.group == "all rows"
    free = run_of({**BASE, "recompute": "", "mbs": "", "model": "llama3-8b", "seq": "8192"})
    assert free.layout.recompute is not Recompute.SELECTIVE
    assert memory_of(free.shape, free.layout).total <= free.machine.memory_bytes
    assert {"recompute", "mbs"} <= set(free.derived)


def test_recomputation_is_derived_without_what_an_allocator_gives_back() -> None:
    row = {**BASE, "recompute": "", "n_accel": "8", "mbs": "8"}
    run = run_of({**row, "accelerator": "H200"})
    needed = memory_of(run.shape, run.layout)
    assert run.layout.recompute is not Recompute.NONE
    assert needed.total - needed.reserve <= run.machine.memory_bytes < needed.total * 1.2
    assert run_of({**BASE, "recompute_share": "0.5"}).layout.recompute_share == 0.5
    assert run_of(BASE).layout.recompute_share == 1.0
    assert (run_of({**BASE, "eager": "1"}).layout.eager, run_of(BASE).layout.eager) == (True, False)


def test_how_experts_run_is_read_or_usual() -> None:
    stated = {"captured": "1", "expert_overlap": "1", "fused_experts": "1", "dispatch_once": "0"}
    for row, flags in ((BASE, (False, False, False, True)), ({**BASE, **stated}, (True, True, True, False))):
        found = run_of(row).layout
        assert (found.captured, found.expert_overlap, found.fused_experts, found.dispatch_once) == flags


def test_a_model_by_its_sizes_or_by_a_file(tmp_path: Path) -> None:
    sizes = {
        **BASE,
        "model": "",
        "layers": "32",
        "hidden": "4096",
        "heads": "32",
        "ffn": "11008",
        "gated": "1",
        "vocab": "32000",
    }
    assert run_of(sizes).shape == run_of(BASE).shape
    body = {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "intermediate_size": 11008,
        "vocab_size": 32000,
    }
    (tmp_path / "config.json").write_text(json.dumps(body), encoding="utf-8")
    assert run_of({**BASE, "model": "config.json"}, folder=tmp_path).shape == run_of(BASE).shape


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": "gpt-17"}, "model"),
        ({"model": "nowhere.json"}, "model"),
        ({"model": ""}, "layers"),
        ({"accelerator": "abacus"}, "accelerator"),
        ({"accelerator": ""}, "accelerator"),
        ({"seq": ""}, "seq"),
        ({"gbs": "many"}, "gbs"),
        ({"gbs": "-4"}, "gbs"),
        ({"gbs": "1e300"}, "gbs"),
        ({"layers": "1e300", "hidden": "1e300"}, "layers"),
        ({"gbs": "60"}, "gbs"),
        ({"tp": "3"}, "n_accel"),
        ({"tp": "", "pp": ""}, "tp"),
        ({"n_accel": ""}, "n_accel"),
        ({"n_accel": "9", "dp": "8"}, "n_accel"),
        ({"step_s": "nan"}, "step_s"),
        ({"step_s": "0"}, "step_s"),
        ({"mem_gib": "-1"}, "mem_gib"),
        ({"precision": "int3"}, "precision"),
        ({"precision": "fp64"}, "precision"),
        ({"recompute": "perhaps"}, "recompute"),
        ({"attention": "magic"}, "attention"),
        ({"power_w": "0"}, "power_w"),
        ({"memory_gbps": "fast"}, "memory_gbps"),
        ({"recompute_share": "1.5"}, "recompute_share"),
        ({"tp": "0"}, "tp"),
        ({"gbs": "0"}, "gbs"),
        ({"mbs": "0"}, "mbs"),
        ({"node_size": "0"}, "node_size"),
        ({"sp": "maybe"}, "sp"),
        ({"eager": "2"}, "eager"),
        ({"dispatch_once": "?"}, "dispatch_once"),
        ({"model": "", "layers": "32", "hidden": "4096", "gated": "swiglu"}, "gated"),
        # 40 heads are divisible by 8, their 10 heads of keys and values are not, nor 8 by 10.
        ({"model": "phi-4", "tp": "8"}, "tp"),
        ({"model": "llama2-7b", "pp": "64", "n_accel": "64"}, "pp"),
        ({"model": "llama2-7b", "pp": "4", "n_accel": "4", "stage_layers": "8;8;8"}, "stage_layers"),
        # More stages than any list of them could hold.
        ({"pp": "1000000000000", "n_accel": "", "dp": "1"}, "pp"),
        ({"gradients": "int8"}, "gradients"),
        ({"cp": "8", "context": "star"}, "context"),
        # 32 heads are no more than 32 places.
        ({"cp": "64", "n_accel": "64", "context": "ulysses"}, "cp"),
        ({"repeated_keys": "all"}, "repeated_keys"),
    ],
)
def test_a_row_that_cannot_be_used_names_the_field(changes: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        run_of({**BASE, **changes})
    assert field in [item.pointer[1:] for item in caught.value.errors]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        # 11 s at the peak: 20 thousandths of a second, or batches in tokens, are no step of 64 sequences.
        ({"step_s": "0.02"}, r"step_s: 0.02 s is \d+ times as fast as the peak allows: is it in seconds"),
        ({"gbs": "262144"}, r"step_s: 20 s is .* and gbs in sequences"),
        ({"mem_gib": "61440"}, r"mem_gib: 61440 is more than the 80 of a100-sxm4-80gb: is it in GiB"),
    ],
)
def test_measurements_in_other_units_are_refused(changes: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        run_of({**BASE, **changes})


def test_what_is_said_to_be_unknown_is_not_stated() -> None:
    open_row = run_of({**BASE, "step_s": "-", "mem_gib": "N/A", "recompute": "n/a", "precision": "-", "zero": "na"})
    assert open_row == run_of({**BASE, "step_s": "", "mem_gib": "", "recompute": "", "precision": "", "zero": ""})
    assert (open_row.step_s, open_row.memory_bytes) == (None, None)


CELLS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["", "0", "1", "8", "-1", "1e300", "nan", "inf", "3.5", "n/a", "64", "4096", "1000000000000"]),
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                *BASE,
                "layers",
                "hidden",
                "heads",
                "experts",
                "top_k",
                "ffn",
                "vpp",
                "cp",
                "ep",
                "dp",
                "zero",
                "mem_gib",
                "fabric_gbps",
                "node_size",
            ]
        ),
        CELLS,
        max_size=6,
    )
)
def test_any_row_is_used_or_refused_by_name(cells: dict[str, str]) -> None:
    refused: tuple[FieldError, ...] = ()
    try:
        run = run_of({**BASE, **cells})
    except InvalidArgumentError as error:
        refused = error.errors
    if refused:
        assert all(item.pointer.startswith("/") for item in refused)
        return
    assert predicted_steps([run], fitted())[0] > 0
    assert memory_of(run.shape, run.layout).total > 0


def test_sizes_beside_the_name_of_a_model_are_its_own() -> None:
    usual = run_of(BASE).shape
    assert run_of({**BASE, "layers": "32", "heads": "32", "gated": "yes", "tied": "0"}).shape == usual
    padded = run_of({**BASE, "vocab": "32768", "tied": "1"}).shape
    assert padded == replace(usual, vocabulary=32768, tied=True)
    for cells, field in (({"layers": "16"}, "layers"), ({"experts": "8"}, "experts"), ({"gated": "0"}, "gated")):
        with pytest.raises(InvalidArgumentError) as caught:
            run_of({**BASE, **cells})
        assert [item.pointer for item in caught.value.errors] == [f"/{field}"]
        assert "llama2-7b" in caught.value.detail
    # With layers and hidden the row states a model of its own, and `model` names it.
    assert run_of({**BASE, "layers": "16", "hidden": "4096"}).shape.layers == 16


def test_scores_by_hand() -> None:
    found = time_score([110, 91, 150, 100], [100, 100, 100, 100])
    assert found.mape == pytest.approx((0.10 + 0.09 + 0.50 + 0) / 4)
    assert found.bias == pytest.approx((0.10 - 0.09 + 0.50) / 4)
    assert (found.within_8, found.within_10) == (0.25, pytest.approx(0.75))


def test_constant_mfu_is_fitted_to_the_rows_it_is_tested_on() -> None:
    runs = [run_of({**BASE, "gbs": str(64 * n), "step_s": str(20 * n)}) for n in (1, 2, 3)]
    assert constant_mfu(runs) == pytest.approx([20, 40, 60])


def test_regret_counts_layouts_that_do_the_same_work() -> None:
    layouts = [{"tp": "1", "step_s": "20"}, {"tp": "2", "step_s": "25"}, {"tp": "1", "gbs": "128", "step_s": "10"}]
    runs = [run_of({**BASE, **each}) for each in layouts]
    assert layout_regrets(runs, [1.0, 2.0, 3.0]) == [0.0]
    assert layout_regrets(runs, [2.0, 1.0, 3.0]) == [0.25]
    assert layout_regrets(runs[:1], [1.0]) == []


def test_regret_does_not_depend_on_the_order_of_rows() -> None:
    cells = [{"tp": "1", "step_s": "20"}, {"tp": "2", "step_s": "25"}, {"tp": "4", "step_s": "30"}]
    runs = [run_of({**BASE, **each}) for each in cells]
    # Constant MFU tells no layout from another: that of a random one.
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        some = [runs[place] for place in order]
        assert layout_regrets(some, constant_mfu(some)) == [pytest.approx(25 / 20 - 1)]
    # A run that is measured again in the same layout is the same choice.
    twice = [*runs[:2], run_of({**BASE, "tp": "1", "step_s": "22"})]
    assert layout_regrets(twice, [1.0, 2.0, 1.0]) == layout_regrets(twice[::-1], [1.0, 2.0, 1.0]) == [0.0]
    # Another machine is no choice of layouts.
    slower = [runs[0], run_of({**BASE, "tp": "2", "step_s": "25", "fabric_gbps": "5"})]
    assert layout_regrets(slower, [1.0, 2.0]) == []


def test_memory_and_verdicts() -> None:
    run = run_of({**BASE})
    size = memory_of(run.shape, run.layout).total / 2**30
    fits = run_of({**BASE, "mem_gib": str(size / 1.1)})
    out = run_of({**BASE, "mem_gib": "OOM"})
    found = memory_score([fits, out, run])
    assert found is not None
    assert found.mape == pytest.approx(0.1)
    assert (found.count, found.verdicts, found.precision, found.precision_fits) == (1, 2, 0.5, 0.5)
    assert memory_score([run]) is None


def test_runs_that_ran_are_to_be_said_to_fit() -> None:
    small, large = {**BASE, "model": "llama2-7b", "zero": "3"}, {**BASE, "model": "llama2-70b", "zero": "0"}
    told = [run_of(row) for row in (small, large, {**large, "step_s": "", "mem_gib": "oom"}, {**small, "step_s": ""})]
    # What took a time ran; 70 B undivided are not said to fit. What ran out of memory, or states nothing, tells nothing here.
    assert ran_and_fits(told) == [True, False]


def test_calibration_does_not_score_the_runs_it_used() -> None:
    runs = [run_of({**BASE, "gbs": str(64 * n), "step_s": str(30 * n)}) for n in range(1, 7)]
    cold = time_score(predicted_steps(runs, fitted()), [run.step_s or 0 for run in runs]).mape
    for draw in calibrated_draws(runs, fitted(), 3, np.random.default_rng(1)):
        used = np.isnan(draw.predicted_s)
        assert used.sum() == 3
        left = [run.step_s or 0 for run, chosen in zip(runs, used, strict=True) if not chosen]
        assert time_score(draw.predicted_s[~used], left).mape < cold


def test_what_is_measured_as_advised_is_what_the_advice_names() -> None:
    rows = [
        {**BASE, "gbs": str(64 * n), "step_s": str(20 * n + n % 3), "group": group}
        for group in "ab"
        for n in range(1, 7)
    ]
    rows += [{**BASE, "mbs": mbs, "step_s": "23", "group": "a"} for mbs in ("2", "4", "8")]
    runs = [run_of(row) for row in rows]
    after, named = calibrated_as_advised(runs, fitted(), 3), to_measure(runs, fitted(), 3)
    assert np.flatnonzero(np.isnan(after.predicted_s)).tolist() == sorted(named["a"] + named["b"])
    # Whatever those took that are not measured.
    for position in set(range(len(rows))) - set(named["a"] + named["b"]):
        rows[position]["step_s"] = "50"
    again = calibrated_as_advised([run_of(row) for row in rows], fitted(), 3)
    assert again.predicted_s == pytest.approx(after.predicted_s, nan_ok=True)
    assert again.constant_s == pytest.approx(after.constant_s, nan_ok=True)


def test_constant_mfu_of_the_calibrating_runs_sees_no_others() -> None:
    # Three runs of one share of the peak, three of half of it: each draw sees but the share of its own one run.
    runs = [run_of({**BASE, "gbs": str(64 * n), "step_s": str(20.0 * n)}) for n in (1, 2, 3)]
    runs += [run_of({**BASE, "gbs": str(64 * n), "step_s": str(40.0 * n)}) for n in (4, 5, 6)]
    for draw in calibrated_draws(runs, fitted(), 1, np.random.default_rng(1)):
        used = np.isnan(draw.constant_s)
        assert used.tolist() == np.isnan(draw.predicted_s).tolist()
        each = 20.0 if used[:3].any() else 40.0
        work = np.arange(1, 7)
        assert draw.constant_s[~used] == pytest.approx(each * work[~used])


def test_drawings_measure_what_tells_most_of_what_they_make_available() -> None:
    """Ten runs of two groups; a drawing makes four fifths of each available, and no more than twelve. No measured time changes the choice."""
    rows = [{**BASE, "gbs": str(64 * n), "group": group} for group in "ab" for n in (1, 2, 3, 4, 5)]
    rows += [
        {**BASE, "mbs": mbs, "tp": tp, "group": "a"} for mbs, tp in (("2", "1"), ("4", "1"), ("1", "2"), ("1", "4"))
    ]
    runs = [run_of(row) for row in rows]
    other = [run_of({**row, "step_s": str(10 + 7 * (n % 5))}) for n, row in enumerate(rows)]
    groups = groups_to_calibrate(runs, 3)
    telling = telling_of(groups, traits_of_runs(runs, fitted()))
    draws, again = np.random.default_rng(2), np.random.default_rng(2)
    for draw, same in zip(
        calibrated_draws(runs, fitted(), 3, draws),
        calibrated_draws(other, fitted(), 3, np.random.default_rng(2)),
        strict=True,
    ):
        measured = np.flatnonzero(np.isnan(draw.predicted_s)).tolist()
        assert measured == np.flatnonzero(np.isnan(same.predicted_s)).tolist()
        available = drawn_available(groups, 3, again)
        assert [len(each) for each in available] == [8, 4]
        assert [len(each) for each in drawn_available([list(range(40)), [0, 1, 2]], 3, np.random.default_rng(2))] == [
            12,
            3,
        ]
        probes = probes_of(groups, telling, available, 3)
        assert measured == sorted(position for chosen, _ in probes for position in chosen)
        for (chosen, others), members, possible in zip(probes, groups, available, strict=True):
            assert set(chosen) <= {members[index] for index in possible}
            assert sorted([*chosen, *others]) == members


def _file(folder: Path, lines: list[str], header: str = COLUMNS, end: str = "\n") -> Path:
    path = folder / "rows.csv"
    path.write_text(end.join([header, *lines]) + end, encoding="utf-8", newline="")
    return path


ROWS = [
    "A100-SXM4-80GB,llama2-7b,8,4096,1,1,1,64,bf16,full,20.0,,seven,kept",
    "A100-SXM4-80GB,llama2-7b,8,4096,2,1,1,64,bf16,full,24.0,60,seven,",
    "A100-SXM4-80GB,llama2-7b,8,4096,4,1,1,64,bf16,full,30.0,oom,seven,",
    "H100,llama3-8b,16,8192,1,1,1,128,bf16,,8.0,,eight,",
    "H100,llama3-8b,16,8192,1,1,1,128,bf16,,,,eight,no time",
    "H100,gpt-17,16,8192,1,1,1,128,bf16,,8.0,,eight,",
    "abacus,llama3-8b,16,8192,1,1,1,128,bf16,,8.0,,eight,",
]


def test_the_command_prints_and_writes_every_measure(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = [str(_file(tmp_path, ROWS)), "--calibrate", "1", "--seed", "3", "--json", str(out), "--rows"]
    answer = CliRunner().invoke(cost_model, arguments)
    assert answer.exit_code == 0, answer.output
    assert "line 7 is left aside: model: 'gpt-17'" in answer.stderr
    assert "line 8 is left aside: accelerator: 'abacus'" in answer.stderr
    assert "h100-sxm5-80gb assumed (2 rows)" in answer.stderr
    body = read(out)
    assert body["seed"] == 3
    found = {(row["subject"], row["measure"], row["slice"]): row for row in body["rows"]}
    assert found["input", "rows_rejected_count", "all"]["value"] == 2
    assert found["input", "rows_without_step_time_count", "all"]["value"] == 1
    for name in ("all", "group=seven", "group=eight"):
        for measure in ("step_time_mape_ratio", "step_time_bias_ratio", "step_time_within_10_percent_share"):
            assert found["cost_model", measure, name]["value"] is not None
            assert found["constant_mfu_of_test_rows", measure, name]["baseline"] is True
        assert found["calculon", "step_time_mape_ratio", name]["value"] is None
        assert "PyPI" in found["calculon", "step_time_mape_ratio", name]["reason"]
    assert found["cost_model_calibrated", "step_time_mape_ratio", "group=seven"]["n"] == 2
    assert found["cost_model_calibrated", "step_time_mape_ratio", "group=eight"]["value"] is None
    advised = found["cost_model_calibrated_as_advised", "step_time_mape_ratio", "group=seven"]
    assert advised["n"] == 2
    assert advised["low"] is None
    assert found["constant_mfu_of_advised_rows", "step_time_mape_ratio", "group=seven"]["baseline"] is True
    assert found["cost_model", "layout_regret_mean_ratio", "group=seven"]["n"] == 1
    assert found["cost_model", "memory_mape_ratio", "group=seven"]["n"] == 1
    assert found["cost_model", "memory_verdict_precision_share", "all"]["n"] == 2


def test_times_far_above_what_is_predicted_are_said(tmp_path: Path) -> None:
    lines = [ROWS[0], ROWS[0].replace("20.0", "20000"), *[ROWS[0].replace("20.0", "90000")] * SHOWN]
    answer = CliRunner().invoke(cost_model, [str(_file(tmp_path, lines))])
    assert answer.exit_code == 0, answer.output
    assert "line 2:" not in answer.stderr
    assert "line 3: 20,000 s measured" in answer.stderr
    assert "is step_s in seconds?" in answer.stderr
    assert "and 1 more rows that took more than 100 times what is predicted" in answer.stderr


@pytest.mark.parametrize("times", [("",) * 6, ("9", "8", "7", "99", "8", "7")])
def test_the_command_names_the_runs_to_measure(tmp_path: Path, times: tuple[str, ...]) -> None:
    """By lines of the file, as many as are asked for, whatever was measured: fully sharded runs (tp 1) are of another kind than
    the others, so one of each."""
    layouts = [(1, 1), (1, 2), (1, 4), (2, 1), (4, 1), (8, 1)]
    lines = [
        f"A100-SXM4-80GB,llama2-7b,8,4096,{tp},1,{mbs},64,bf16,full,{time},,seven,"
        for (tp, mbs), time in zip(layouts, times, strict=True)
    ]
    arguments = [str(_file(tmp_path, [*lines, ROWS[3]])), "--calibrate", "2", "--measure"]
    answer = CliRunner().invoke(cost_model, arguments)
    assert answer.exit_code == 0, answer.output
    of_one, of_seven = answer.stdout.splitlines()
    assert of_one == "eight: line 8 (llama3-8b)"
    group, chosen = of_seven.split(": ")
    numbers = [int(each.removeprefix("line ").removesuffix(" (llama2-7b)")) for each in chosen.split(", ")]
    assert group == "seven"
    assert sorted(number in {2, 3, 4} for number in numbers) == [False, True]


def test_the_same_seed_gives_the_same_figures(tmp_path: Path) -> None:
    path = _file(tmp_path, ROWS)
    first, second = (
        CliRunner().invoke(cost_model, [str(path), "--calibrate", "1", "--seed", "7"]).stdout for _ in "ab"
    )
    assert first == second


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", COLUMNS + "\n", COLUMNS + "\nabacus,llama3-8b,1,1,1,1,1,1,,,1,,,\n"]
)
def test_a_file_without_usable_rows_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="utf-8")
    answer = CliRunner().invoke(cost_model, [str(path)])
    assert answer.exit_code != 0
    assert isinstance(answer.exception, InvalidArgumentError)


def test_headings_may_be_capitalised_and_other_separators_are_said(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("Accelerator, Model ,SEQ,gbs,DP,Tp,Step_s\nA100,llama2-7b,4096,64,8,1,20\n", encoding="utf-8")
    runs, rejected = read_runs(path)
    assert rejected == []
    assert (runs[0].layout.dp, runs[0].step_s) == (8, 20.0)
    path.write_text("accelerator,Accelerator,model,seq,gbs\n", encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match="has accelerator more than once"):
        read_runs(path)
    path.write_text("accelerator;model;seq;gbs\nA100;llama2-7b;4096;64\n", encoding="utf-8")
    with pytest.raises(
        InvalidArgumentError, match=r"needs accelerator, .*; it has one column: cells are divided by commas"
    ):
        read_runs(path)


def test_a_column_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("accelerator,model,seq,gbs,tp,notes,notes,tp\n", encoding="utf-8")
    answer = CliRunner().invoke(cost_model, [str(path)])
    assert isinstance(answer.exception, InvalidArgumentError)
    assert answer.exception.detail == "rows.csv, line 1: has tp more than once"


def test_columns_that_nothing_reads_and_cells_without_a_column_are_said(tmp_path: Path) -> None:
    """A misspelt column is not taken for one that states nothing, nor is a shifted row read."""
    header = "\ufeffaccelerator,model,n_accel,seq,tp,pp,mbs,gbs,precision,recompte,step_s,colour"
    row = "A100-SXM4-80GB,llama2-7b,8,4096,1,1,1,64,bf16,full,20,red"
    path = _file(tmp_path, [row, f"{row},8", f"{row},,"], header=header, end="\r\n")
    answer = CliRunner().invoke(cost_model, [str(path), "--calibrate", "0"])
    assert answer.exit_code == 0, answer.output
    assert "columns that are not used: recompte, colour" in answer.stderr
    assert "line 3 is left aside: row: has more cells than there are columns: 8" in answer.stderr
    assert "recompute: derived in 2 of 2 rows" in answer.stderr


def test_a_quote_that_is_never_closed_takes_no_rows_with_it(tmp_path: Path) -> None:
    path = _file(tmp_path, [ROWS[0], ROWS[1].replace("seven", '"seven'), ROWS[2], ROWS[3]])
    answer = CliRunner().invoke(cost_model, [str(path)])
    assert isinstance(answer.exception, InvalidArgumentError)
    assert answer.exception.detail == "rows.csv, line 5: unexpected end of data, in a row that begins at line 3"


def test_a_file_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"\xff\xfe\x00a")
    assert isinstance(CliRunner().invoke(cost_model, [str(path)]).exception, InvalidArgumentError)


def test_rows_are_numbered_as_in_the_file(tmp_path: Path) -> None:
    runs, rejected = read_runs(_file(tmp_path, ROWS))
    assert [run.line for run in runs] == [2, 3, 4, 5, 6]
    assert [item.line for item in rejected] == [7, 8]


def test_blank_lines_and_cells_of_several_lines_count_as_lines(tmp_path: Path) -> None:
    """A row is numbered by its last line, as in the other evaluations."""
    runs, rejected = read_runs(
        _file(tmp_path, ["", ROWS[0], "", "", ROWS[3][: -len(",")] + ',"two\nlines"', "", ROWS[6]])
    )
    assert [run.line for run in runs] == [3, 7]
    assert [item.line for item in rejected] == [9]


def test_a_line_that_is_no_text_is_named_and_nothing_is_told_of_others(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("\n".join([COLUMNS, ROWS[0], "", ""]).encode() + b"H100,\xff\n" + ROWS[6].encode())
    answer = CliRunner().invoke(cost_model, [str(path)])
    assert isinstance(answer.exception, InvalidArgumentError)
    assert answer.exception.detail == "rows.csv, line 4: is no UTF-8 text"
    assert [error.pointer for error in answer.exception.errors] == ["/rows"]
    assert not answer.stderr


COMMON = ["--model", "llama3-8b", "--accelerator", "H100-SXM5-80GB", "--seq", "8192", "--gbs", "128"]


@pytest.mark.parametrize("option", ["--seq", "--gbs", "--pp", "--dp", "--node-size"])
def test_counts_are_within_reason(option: str) -> None:
    told = CliRunner().invoke(estimate_command, [*COMMON, option, "9" * 400])
    assert told.exit_code == 2
    assert option in told.stderr


def test_layouts_over_unlike_chips_say_their_own_stages_or_why_there_are_none() -> None:
    others = ["--with", "A100-SXM4-80GB", "5", "1", "10"]
    told = CliRunner().invoke(layouts_command, [*COMMON, "--accelerators", "8", *others])
    assert told.exit_code == 0, told.output
    stages = told.stdout.partition("layers ")[2].partition("  ")[0]
    assert f"note: stages of {stages.replace('/', ', ')} layers" not in told.stdout
    assert "layers assumed" not in told.stdout
    for count in ("200", "1000000000"):
        others[2] = count
        failed = CliRunner().invoke(layouts_command, [*COMMON, "--accelerators", "7", *others])
        assert isinstance(failed.exception, InvalidArgumentError)
        assert [item.pointer for item in failed.exception.errors] == ["/accelerators"]


def test_a_large_prime_pool_is_answered() -> None:
    failed = CliRunner().invoke(layouts_command, [*COMMON, "--accelerators", "999999937"])
    assert isinstance(failed.exception, InvalidArgumentError)
    assert "no layout divides" in failed.exception.detail


def test_estimate_explains_and_answers_in_json() -> None:
    told = CliRunner().invoke(estimate_command, [*COMMON, "--dp", "16", "--zero", "3", "--steps", "1000"])
    assert told.exit_code == 0, told.output
    for word in (
        "8.03 B parameters on 16 x h100-sxm5-80gb",
        "compute",
        "exposed dp",
        "fits",
        "activations",
        "fabric",
        "1000 steps",
    ):
        assert word in told.stdout
    body = json.loads(CliRunner().invoke(estimate_command, [*COMMON, "--dp", "16", "--zero", "3", "--json"]).stdout)
    assert body["accelerators"] == 16
    low, high = body["step_band_s"]["low_s"], body["step_band_s"]["high_s"]
    assert f"{low:.3f} to {high:.3f} s with a probability of 80%" in told.stdout
    assert f"({1000 * low / 3600:.1f} to {1000 * high / 3600:.1f})" in told.stdout
    assert body["memory_bytes"] == pytest.approx(sum(body["memory_parts_bytes"].values()))
    failed = CliRunner().invoke(estimate_command, [*COMMON, "--tp", "3"])
    assert isinstance(failed.exception, InvalidArgumentError)
    staged = CliRunner().invoke(estimate_command, [*COMMON, "--pp", "3", "--stage-layers", "12, 12,8"])
    assert "layers=12,12,8" in staged.stdout, staged.output
    assert CliRunner().invoke(estimate_command, [*COMMON, "--pp", "3", "--stage-layers", "12,x"]).exit_code == 2
    halved = CliRunner().invoke(estimate_command, [*COMMON, "--gradients", "bf16", "--json"])
    layout = json.loads(halved.stdout)
    assert layout["layout"]["gradients"] == "bf16"
    assert layout["memory_parts_bytes"]["gradients"] == layout["memory_parts_bytes"]["parameters"]


def test_layouts_lists_what_fits_best_first() -> None:
    told = CliRunner().invoke(layouts_command, [*COMMON, "--accelerators", "16", "--count", "3"])
    assert told.exit_code == 0, told.output
    lines = told.stdout.splitlines()
    assert "possible layouts fit on 16 x h100-sxm5-80gb" in lines[0]
    times = [float(line.split()[0]) for line in lines[1:4]]
    assert times == sorted(times)
    body = json.loads(CliRunner().invoke(layouts_command, [*COMMON, "--accelerators", "16", "--json"]).stdout)
    assert body["layouts"][0]["step_s"] == pytest.approx(times[0], abs=1e-3)
    band = body["layouts"][0]["step_band_s"]
    assert band["low_s"] < times[0] < band["high_s"]
    assert lines[4].startswith(f"the first: {band['low_s']:.3f} to {band['high_s']:.3f} s with a probability of 80%")


def test_layouts_over_two_kinds_of_chips() -> None:
    arguments = [*COMMON, "--accelerators", "8", "--with", "A100-SXM4-80GB", "8", "1.25", "10"]
    told = CliRunner().invoke(layouts_command, arguments)
    assert told.exit_code == 0, told.output
    assert "8 x h100-sxm5-80gb + 8 x a100-sxm4-80gb" in told.stdout
    assert "paced by" in told.stdout
    body = json.loads(CliRunner().invoke(layouts_command, [*arguments, "--json"]).stdout)
    assert sum(body["layouts"][0]["layers"]) == 32


def test_the_commands_are_installed() -> None:
    told = CliRunner().invoke(main, ["evaluate", "--help"])
    assert "cost-model" in told.output
    names = CliRunner().invoke(main, ["--help"]).output
    assert "estimate" in names
    assert "layouts" in names


def test_a_band_by_hand() -> None:
    # ln 1.1 = 0.095 is within two of 0.1, ln 1.3 = 0.26 and ln 0.7 = -0.36 are not; within two of 0.2 all are.
    measured, ones = np.array([1.1, 1.3, 0.7]), np.ones(3)
    assert within_band(ones, measured, np.full(3, 0.1)) == pytest.approx(1 / 3)
    assert within_band(ones, measured, np.full(3, 0.2)) == 1


def test_bands_are_reported_before_and_after_calibration() -> None:
    """Eight runs that all take twice as long: beyond the band before anything is measured, within it after three of them."""
    plain = [run_of({**BASE, "gbs": str(64 * number)}) for number in range(1, 9)]
    times = predicted_steps(plain, fitted())
    rows = [{**BASE, "gbs": str(64 * number), "step_s": repr(2 * times[number - 1])} for number in range(1, 9)]
    found = rows_of([run_of(row) for row in rows], [], fitted(), 3, np.random.default_rng(0))
    measure = "step_time_within_two_standard_deviations_share"
    shares = {(row.subject, row.slice): (row.value, row.n) for row in found if row.measure == measure}
    assert shares["cost_model", "all"] == (0, 8)
    assert shares["cost_model_calibrated", "all"] == (1, 5)
    untimed = [run_of({**BASE, "step_s": "", "gbs": "64"})]
    nothing = rows_of(untimed, [], fitted(), 3, np.random.default_rng(0))
    assert {row.value for row in nothing if row.measure == measure} == {None}
