"""Rows of tables that were read in last: what is derived, and what is left aside because it contradicts itself."""

import csv
from pathlib import Path

import pytest

from bench.cost_model_later_data import bigscience, flagperf, jax_on_gpus, mlperf, narayanan
from services.forecast.cost_model.evaluation.runs import run_of

_BIGSCIENCE = [
    "file",
    "section",
    "line",
    "GPUs",
    "Size",
    "DP",
    "PP",
    "PP Chunks",
    "Mic-BS",
    "Glob-BS",
    "Speed",
    "GPU M",
    "GAS",
    "MBS",
    "GBS",
    "PP chunks",
    "TP",
    "Zero",
    "Opt Offl",
    "Par Offl",
    "Notes",
]


def _write(path: Path, names: list[str], *rows: dict[str, str]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, names, restval="")
        table.writeheader()
        table.writerows(rows)
    return path.parent


def test_bigscience_takes_rows_that_agree_with_themselves(tmp_path: Path) -> None:
    pipeline = {"file": "experiments/gpt2.md", "section": "Megatron", "line": "113", "DP": "1", "Speed": "129s"}
    sizes = {"GPUs": "64", "Size": "52B", "PP": "16", "PP Chunks": "256", "Mic-BS": "4", "Glob-BS": "1024"}
    folder = _write(
        tmp_path / "bigscience_chronicles_throughput.csv",
        _BIGSCIENCE,
        {**pipeline, **sizes},
        # Twice the stages on as many chips; a batch that is not micro batch x accumulation; a model of unknown shape.
        {**pipeline, **sizes, "PP": "32"},
        {**pipeline, **sizes, "Glob-BS": "512"},
        {**pipeline, **sizes, "Size": "24B"},
    )
    (row,) = bigscience(folder)
    run = run_of(row)
    assert (run.layout.tp, run.layout.pp, run.layout.micro_batches) == (4, 16, 256)
    # 50,257 words, padded to a multiple of 128 on each of four ranks.
    assert run.shape.vocabulary == 50688
    assert run.machine.node_size == 4
    assert run.step_s == 129


def test_bigscience_derives_micro_batches_and_reads_memory(tmp_path: Path) -> None:
    deep = {"file": "experiments/gpt2.md", "section": "Megatron + Deepspeed 3D (new branch)", "Speed": "206s"}
    sizes = {"line": "181", "GPUs": "64", "Size": "52B", "DP": "1", "PP": "16", "GAS": "256", "MBS": "4", "GBS": "1536"}
    small = {"file": "experiments/tr3m-1B3.md", "section": "32GB node", "DP": "4", "PP": "2", "TP": "1", "MBS": "2"}
    folder = _write(
        tmp_path / "bigscience_chronicles_throughput.csv",
        _BIGSCIENCE,
        {**deep, **sizes, "GPU M": "29GB"},
        {**small, "line": "27", "Speed": "29", "Notes": "11GB"},
        {**small, "line": "45", "Speed": "23", "Notes": "21GB"},
    )
    large, recomputed, whole = (run_of(row) for row in bigscience(folder))
    assert large.layout.micro_batch == 6
    assert large.memory_bytes == 29 * 2**30
    assert [run.layout.recompute.value for run in (recomputed, whole)] == ["full", "none"]
    assert recomputed.layout.zero == 1


def test_offload_and_runs_of_other_tables_are_left_aside(tmp_path: Path) -> None:
    shared = {"file": "experiments/gpt2.md", "section": "HF + Deepspeed Zero 3 + Full Offload", "line": "476"}
    sizes = {"GPUs": "64", "Size": "52B", "Mic-BS": "8", "Glob-BS": "512", "Speed": "139s", "Par Offl": "N"}
    folder = _write(
        tmp_path / "bigscience_chronicles_throughput.csv",
        _BIGSCIENCE,
        {**shared, **sizes, "Opt Offl": "N"},
        {**shared, **sizes, "Opt Offl": "Y"},
        {"file": "jz/frameworks/megatron-lm.md", "section": "General Performance Notes", "line": "61", "Speed": ""},
        {"file": "experiments/tr8-104B.md", "section": "Train 8 104B wide tune up", "line": "19", "Speed": "256"},
    )
    (row,) = bigscience(folder)
    assert run_of(row).layout.zero == 3


def test_times_are_derived_as_the_sources_say(tmp_path: Path) -> None:
    names = ["vendor", "case", "config", "n_accel", "parallel", "hp", "value", "mem_used_over_cap_gib"]
    folder = _write(
        tmp_path / "flagperf_training.csv",
        names,
        dict(
            zip(
                names,
                ("nvidia", "aquila2_7b-flagscale", "A800", "8", "TP2PP2DP2", "LBS=4", "3468.3", "52/80"),
                strict=True,
            )
        ),
        dict(zip(names, ("nvidia", "WaveGlow-pytorch", "A800", "8", "", "", "997479", ""), strict=True)),
    )
    (row,) = flagperf(folder)
    run = run_of(row)
    # Nine micro batches of four on two replicas; tokens per second of each of eight chips.
    assert run.layout.global_batch == 72
    assert run.step_s == pytest.approx(72 * 2048 / (3468.3 * 8))
    names = ["table", "column", "step_s"]
    _write(
        tmp_path / "nvidia_dgxc_benchmarking.csv",
        names,
        {"table": "Paxml GPT5B FP8 (FSDP+DP, MBS=4)", "column": "16x H100 GPUs (GBS=64)", "step_s": "0.47"},
        {"table": "Maxtext Llama3 70b FP8", "column": "Throughput on 128x H100 GPUs", "step_s": "9.074"},
    )
    (row,) = jax_on_gpus(folder)
    assert (row["group"], row["n_accel"], row["gbs"], row["mbs"]) == ("paxml-h100-fp8", "16", "64", "4")
    names = ["tp", "pp", "cp", "vpp", "dp", "mbs", "gbs", "seq", "n_accel", "step_s_median"]
    _write(
        tmp_path / "mlperf_llm_layouts_steps.csv",
        names,
        dict(zip(names, ["4.0", "8.0", "1.0", "12.0", "16.0", "1.0", "2048.0", "2048.0", "512", "12.07"], strict=True)),
        {"n_accel": "256", "seq": "2048.0"},
    )
    (row,) = mlperf(folder)
    assert run_of(row).layout.vpp == 12


def test_a_rate_becomes_a_time_by_the_equation_of_its_paper(tmp_path: Path) -> None:
    names = ["note", "params_b", "seq", "gbs", "n_accel", "mbs", "precision", "recompute", "tflops_per_accel"]
    common = {"params_b": "174.6", "seq": "2048", "gbs": "1536", "precision": "fp16", "recompute": "full"}
    folder = _write(
        tmp_path / "literature_llm_training.csv",
        names,
        {**common, "note": "ZeRO-3; 90 days", "n_accel": "384", "mbs": "4", "tflops_per_accel": "144"},
        {**common, "note": "PTD; 84 days", "n_accel": "384", "mbs": "1", "tflops_per_accel": "153"},
        {**common, "note": "another", "n_accel": "384"},
    )
    sharded, divided = (run_of(row) for row in narayanan(folder))
    # 300 billion tokens in 90 and 84 days, as the paper rounds them.
    days = [300e9 / (1536 * 2048) * (run.step_s or 0) / 86400 for run in (sharded, divided)]
    assert days == pytest.approx([90, 84], abs=1)
    assert (sharded.layout.zero, sharded.layout.dp, divided.layout.tp, divided.layout.pp) == (3, 384, 8, 12)
